"""Threshold sweeps: counts that add up, both rates, and a threshold nobody passes."""

import pytest
import torch
from tiny_models import greedy_reply, random_ids, tiny_drafter, tiny_target

from dsparkref import ConfidenceThreshold, PrefixScheduler, StepsPerSecond, generate
from dsparkref.analysis.calibration_records import CalibrationRecords
from dsparkref.analysis.sweep import pruning_rates, replayed_rates, threshold_sweep
from dsparkref.records import CycleTrace

PROMPTS = {
    "math": [random_ids(5, seed=0).tolist(), random_ids(7, seed=1).tolist()],
    "chat": [random_ids(6, seed=2).tolist()],
}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.mark.parametrize("on", ["conditional", "survival"])
def test_a_sweep_is_decoding_with_the_policy(target, on):
    drafter, levels = tiny_drafter(target), (0.0, 0.4)
    options = {"max_new_tokens": 10, "temperature": 1.0}
    rows = threshold_sweep(target, drafter, PROMPTS, levels, on=on, seed=5, **options)
    names = [(row["threshold"], row["domain"]) for row in rows]
    assert names == [(t, d) for t in levels for d in ("math", "chat", "all")]
    for level in levels:
        whole = []
        for domain, prompts in PROMPTS.items():
            generator = torch.Generator().manual_seed(5)
            policy = ConfidenceThreshold(level, on=on)
            cycles = [
                cycle
                for prompt in prompts
                for cycle in generate(
                    target, drafter, prompt, policy=policy, generator=generator,
                    **options,
                ).cycles
            ]  # fmt: skip
            (row,) = [
                r for r in rows if (r["threshold"], r["domain"]) == (level, domain)
            ]
            assert row == {"threshold": level, "domain": domain} | pruning_rates(cycles)
            whole += cycles
        (row,) = [r for r in rows if (r["threshold"], r["domain"]) == (level, "all")]
        assert row["cycles"] == len(whole)
        judged = sum(
            c.num_accepted if c.next_token is None else c.verify_len for c in whole
        )
        kept = sum(c.num_accepted for c in whole)
        bonus = sum(c.next_token is not None for c in whole)
        assert row["verified"] * len(whole) == pytest.approx(judged)
        assert row["accepted"] + row["rejected"] == pytest.approx(row["verified"])
        if judged:
            assert row["acceptance"] == pytest.approx(kept / judged)
        want = (kept + bonus) / (judged + bonus)
        assert row["acceptance_with_bonus"] == pytest.approx(want)


def test_a_threshold_nobody_passes_still_makes_progress(target):
    """E10: one token from the prefill, 31 cycles of one, equal to greedy."""
    drafter, prompt = tiny_drafter(target), PROMPTS["math"][0]
    policy = ConfidenceThreshold(1.0)
    reply = generate(target, drafter, prompt, max_new_tokens=32, policy=policy)
    assert reply.tokens == greedy_reply(target, prompt, 32)
    assert [cycle.verify_len for cycle in reply.cycles] == [0] * 31
    assert all(max(cycle.confidence) < 1 for cycle in reply.cycles)
    assert sum(cycle.draft_seconds for cycle in reply.cycles) > 0
    found = pruning_rates(reply.cycles)
    assert found["acceptance"] is None and found["acceptance_with_bonus"] == 1.0
    assert found["verified"] == found["rejected"] == 0


def replayable(kept: list[int], counted: list[int]) -> CalibrationRecords:
    position = torch.arange(3)
    return CalibrationRecords(
        logits=torch.zeros(len(kept), 3),
        accepted=(position < torch.tensor(kept)[:, None]).double(),
        counted=position < torch.tensor(counted)[:, None],
        prompt=torch.arange(len(kept)),
    )


def cut(kept: int, verify_len: int, stop: int | None) -> CycleTrace:
    """The cycle that keeps ``kept`` of 3 drafts, had it verified fewer."""
    accepted = min(kept, verify_len)
    ends = stop is not None and accepted > stop
    accepted = stop + 1 if ends else accepted
    next_token = None if ends else 8
    emitted = [7] * accepted + ([] if ends else [8])
    return CycleTrace(
        0, 9, 1, [7] * 3, None, verify_len, accepted, next_token, emitted, 0.0, 0.0
    )


@pytest.mark.parametrize("length", range(4))
def test_a_replay_is_what_shorter_cycles_would_have_done(length):
    """Without a stop; with one drafted second, kept or not."""
    cases = [(0, None), (1, None), (3, None), (0, 1), (1, 1), (2, 1)]
    counted = [3 if stop is None else stop + 1 for _, stop in cases]
    records = replayable([kept for kept, _ in cases], counted)
    found = replayed_rates(records, torch.full((6,), length))
    wanted = pruning_rates([cut(kept, length, stop) for kept, stop in cases])
    # decoding counts drafts behind a rejected stop as verified; a record does not
    behind = sum(max(0, length - stop - 1) for kept, stop in cases if stop and kept < 2)
    assert wanted["verified"] * 6 - found["verified"] * 6 == pytest.approx(behind)
    for name in ("cycles", "accepted", "accepted_length"):
        assert found[name] == wanted[name]


def test_a_replay_takes_lengths_of_each_cycle():
    records = replayable([3, 3, 0], [3, 3, 3])
    found = replayed_rates(records, torch.tensor([3, 1, 2]))
    assert found["accepted"] == pytest.approx(4 / 3)
    assert found["rejected"] == pytest.approx(2 / 3)
    assert found["acceptance_with_bonus"] == pytest.approx(7 / 9)
    with pytest.raises(ValueError, match="verify_len must lie within the block"):
        replayed_rates(records, torch.tensor([3, 1, 4]))


def test_nothing_ran_is_nothing_known():
    found = pruning_rates([])
    assert found.pop("cycles") == 0 and set(found.values()) == {None}


def test_no_domain_is_refused(target):
    with pytest.raises(ValueError, match="prompts must name domains"):
        threshold_sweep(target, tiny_drafter(target), {}, [0.5])


def test_truncation_saves_the_target_real_tokens(target, monkeypatch):
    """What a policy leaves out never enters the verify forward: counted there."""
    seen, forward = [], type(target).forward

    def counting(self, input_ids, *arguments, **options):
        seen.append(input_ids.shape[1])
        return forward(self, input_ids, *arguments, **options)

    monkeypatch.setattr(type(target), "forward", counting)
    drafter, prompt = tiny_drafter(target), PROMPTS["math"][0]
    sps = StepsPerSecond({1: 1.0, 2: 0.7, 3: 0.6, 4: 0.5, 5: 0.1})
    chosen = set()
    for policy in PrefixScheduler(sps), None:
        seen.clear()
        reply = generate(target, drafter, prompt, max_new_tokens=24, policy=policy)
        lengths = [cycle.verify_len for cycle in reply.cycles]
        assert seen == [len(prompt), *(1 + length for length in lengths)]
        assert reply.tokens == greedy_reply(target, prompt, 24)
        chosen.add(tuple(sorted(set(lengths))))
    assert (drafter.block_size,) in chosen and len(chosen) == 2
