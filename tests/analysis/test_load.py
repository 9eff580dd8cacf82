"""The load simulation: small loads by hand, and what must hold for all of them."""

from dataclasses import replace

import pytest
import torch
from tiny_models import random_ids, tiny_drafter, tiny_target

from dsparkref import ConfidenceThreshold, FixedLength, generate
from dsparkref.analysis.load import (
    Autoregressive,
    Recorded,
    arrival_times,
    record_cycles,
    simulate_load,
)
from dsparkref.verify.policies import Policy

INF = float("inf")
CONFIDENCE = torch.tensor([[0.9, 0.8, 0.2], [0.3, 0.9, 0.9], [0.9, 0.9, 0.9]])
RECORDED = Recorded(CONFIDENCE, torch.tensor([2, 0, 3]), block_size=3)
ALWAYS_TWO = Recorded(None, torch.tensor([2]), block_size=3)
POLICIES = [Autoregressive(), FixedLength(0), FixedLength(3), ConfidenceThreshold(0.5)]


def at(rate):
    """The seconds of a step from steps per second over its tokens."""
    return lambda lengths, drafted: 1 / rate(len(lengths) + sum(lengths))


def test_two_users_one_place():
    """10 steps of one token a second each, one after the other: 5 s and 10 s."""
    got = simulate_load(
        ALWAYS_TWO,
        at(lambda batch: 2.0),
        FixedLength(0),
        rate=INF,
        concurrency=1,
        num_requests=2,
        tokens=10,
    )
    assert (got.steps, got.batch_requests, got.batch_tokens) == (20, 1, 1)
    assert (got.latency, got.throughput, got.user_speed) == (7.5, 2.0, 2.0)
    assert (got.accepted_length, got.verify_len) == (1.0, 0.0)


def test_two_users_two_places():
    """Together: 4 steps of 2 x (1 + 2) tokens; the last step gives one of its three."""
    batches = []

    def step_seconds(lengths, drafted):
        batches.append(len(lengths) + sum(lengths))
        return batches[-1] / 12 + 0.25 * drafted

    got = simulate_load(
        ALWAYS_TWO,
        step_seconds,
        FixedLength(2),
        rate=INF,
        concurrency=2,
        num_requests=2,
        tokens=10,
    )
    assert batches == [6] * 4
    assert (got.latency, got.latency_p95) == (3.0, 3.0)  # 4 x (1/2 + 1/4) s
    assert got.throughput == pytest.approx(20 / 3)
    assert got.accepted_length == 2.5
    assert got.verify_len == 2.0


def test_only_an_engine_without_a_drafter_saves_the_draft_pass():
    """A scheduler that verifies nothing has still paid for what it looked at."""
    options = {"rate": INF, "concurrency": 1, "num_requests": 1, "tokens": 4}
    found = [
        simulate_load(RECORDED, lambda _, drafted: 1.0 + drafted, policy, **options)
        for policy in (Autoregressive(), FixedLength(0), ConfidenceThreshold(1.0))
    ]
    assert [result.latency for result in found] == [4.0, 8.0, 8.0]
    assert {result.accepted_length for result in found} == {1.0}


def test_requests_of_one_kind_meet_cycles_of_that_kind():
    """Kinds in turn: always 0 kept, always 3 kept; so 4 steps and 1 step of 4."""
    kinds = Recorded(None, torch.tensor([3, 0, 3]), 3, kind=torch.tensor([1, 0, 1]))
    running = []

    def step_seconds(lengths, drafted):
        running.append(len(lengths))
        return 1.0

    options = {"rate": INF, "concurrency": 4, "num_requests": 4, "tokens": 4}
    got = simulate_load(kinds, step_seconds, FixedLength(3), **options)
    assert running == [4, 2, 2, 2]
    assert got.latency == (4 + 1 + 4 + 1) / 4


def test_a_replayed_cycle_gives_what_its_length_allows():
    """Lengths 2, 0, 3 of runs 2, 0, 3: 3, 1 and 4 tokens; nothing verified in vain."""
    got = simulate_load(
        RECORDED,
        at(lambda _: 1.0),
        ConfidenceThreshold(0.5),
        rate=INF,
        concurrency=50,
        num_requests=50,
        tokens=400,
    )
    assert got.accepted_length == pytest.approx(1 + got.verify_len, abs=0.02)
    assert got.accepted_length == pytest.approx(8 / 3, abs=0.05)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_same_seed_gives_the_same_load(policy):
    options = {"rate": 3.0, "concurrency": 4, "num_requests": 30, "tokens": 12}

    def run(seed):
        return simulate_load(
            RECORDED, at(lambda batch: 40 / (4 + batch)), policy, seed=seed, **options
        )

    before = torch.get_rng_state()
    assert run(1) == run(1) != run(2)
    assert torch.get_rng_state().equal(before)


def test_every_policy_meets_the_same_cycles():
    """With a clock that ignores the batch, more verified never means more steps."""
    options = {"rate": 2.0, "concurrency": 3, "num_requests": 20, "tokens": 30}
    results = [
        simulate_load(RECORDED, at(lambda _: 5.0), policy, **options)
        for policy in (FixedLength(0), FixedLength(1), FixedLength(2), FixedLength(3))
    ]
    lengths = [result.accepted_length for result in results]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == 4
    threshold = simulate_load(
        RECORDED, at(lambda _: 5.0), ConfidenceThreshold(0.5), **options
    )
    assert threshold.accepted_length == results[3].accepted_length
    assert threshold.verify_len < results[3].verify_len


def test_a_heavier_load_is_served_faster_in_all_and_slower_for_each():
    options = {"concurrency": 16, "num_requests": 80, "tokens": 20}
    light, heavy = (
        simulate_load(
            RECORDED, at(lambda b: 100 / (8 + b)), FixedLength(3), rate=rate, **options
        )
        for rate in (0.2, 50.0)
    )
    assert heavy.throughput > light.throughput
    assert heavy.user_speed < light.user_speed
    assert heavy.latency > light.latency
    assert light.batch_requests < 2 < 10 < heavy.batch_requests <= 16
    assert heavy.latency_p95 >= heavy.latency


def test_the_policy_sees_all_running_requests_and_starts_once():
    class Noted(Policy):
        shown, starts = [], 0

        def start(self):
            self.starts += 1
            return self

        def verify_lengths(self, confidence, *, block_size, num_requests=1):
            self.shown.append((len(confidence), num_requests, block_size))
            return torch.ones(num_requests, dtype=torch.long)

    policy = Noted()
    options = {"rate": INF, "concurrency": 3, "num_requests": 5, "tokens": 4}
    simulate_load(RECORDED, at(lambda _: 1.0), policy, **options)
    assert policy.starts == 1
    assert policy.shown[0] == (3, 3, 3)
    assert all(rows == number <= 3 for rows, number, _ in policy.shown)


def test_an_engine_that_refuses_a_batch_ends_the_simulation():
    def limited(batch):
        if batch > 8:
            raise ValueError("beyond the table")
        return 1.0

    options = {"rate": INF, "concurrency": 3, "num_requests": 3, "tokens": 4}
    simulate_load(RECORDED, at(limited), FixedLength(1), **options)
    with pytest.raises(ValueError, match="beyond the table"):
        simulate_load(RECORDED, at(limited), FixedLength(3), **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rate": 0.0}, ValueError),
        ({"rate": float("nan")}, ValueError),
        ({"concurrency": 0}, ValueError),
        ({"num_requests": 2.5}, TypeError),
        ({"tokens": 0}, ValueError),
    ],
    ids=str,
)
def test_bad_loads_are_refused_by_name(options, error, no_shape_checks):
    (name,) = options
    options = {"rate": 1.0, "concurrency": 1} | options
    with pytest.raises(error, match=f"{name} must be in range"):
        simulate_load(RECORDED, at(lambda _: 1.0), FixedLength(0), **options)


def test_recording_real_cycles():
    target = tiny_target()
    drafter = tiny_drafter(target)
    prompt, options = random_ids(6).tolist(), {"max_new_tokens": 20}
    cycles = generate(target, drafter, prompt, **options).cycles
    got = record_cycles(cycles)
    whole = [cycle for cycle in cycles if cycle.next_token is not None]
    assert got.num_accepted.tolist() == [cycle.num_accepted for cycle in whole]
    assert got.confidence.shape == (len(whole), 4)
    assert got.block_size == 4
    assert got.kind.tolist() == [0] * len(whole)
    both = record_cycles(cycles, cycles[:2])
    assert both.kind.bincount().tolist() == [len(whole), 2]
    without = [replace(cycle, confidence=None) for cycle in cycles]
    assert record_cycles(without).confidence is None
    short = generate(target, drafter, prompt, policy=FixedLength(2), **options).cycles
    with pytest.raises(ValueError, match=r"traces must be untruncated: .* 4, got 2"):
        record_cycles(short)
    for kinds in ([], [[]], [cycles, []]):
        with pytest.raises(ValueError, match="traces must hold cycles"):
            record_cycles(*kinds)


def test_arrivals_are_the_same_whatever_is_served():
    times = arrival_times(4.0, 20_000, seed=3)
    assert times == sorted(times)
    assert times[-1] / 20_000 == pytest.approx(1 / 4, rel=0.03)
    assert arrival_times(4.0, 5, seed=3) == times[:5]
    assert arrival_times(INF, 3, seed=3) == [0.0] * 3
