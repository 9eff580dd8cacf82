"""The loop gives the target's own text, whoever drafts and whatever is accepted."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tiny_models import (
    HEADS,
    ScriptedDrafter,
    greedy_reply,
    oracle,
    random_ids,
    tiny_drafter,
    tiny_target,
)

from dsparkref import (
    ConfidenceThreshold,
    FixedLength,
    autoregressive,
    decode_cycles,
    generate,
)

PROMPT = [3, 14, 15, 9, 2, 6]
LENGTHS = (0, 1, 2, 7, 8, 9, 17)
VERIFIERS = ("rejection", "token_match")
TARGET = tiny_target()
REPLY = greedy_reply(TARGET, PROMPT, 80)
EVERY_VERIFIER = pytest.mark.parametrize("verifier", VERIFIERS)


def scripted(right, **options):
    return ScriptedDrafter(PROMPT + REPLY, right, **options)


def check_counts(generation, block_size):
    """The sums of DESIGN.md section 3, for any generation with cycles."""
    cycles = generation.cycles
    from_prefill = min(1, len(generation.tokens))  # none where none was asked for
    emitted = sum(len(cycle.emitted) for cycle in cycles)
    assert len(generation.tokens) == from_prefill + emitted
    for index, cycle in enumerate(cycles):
        assert cycle.index == index
        assert len(cycle.drafts) == block_size
        assert 0 <= cycle.num_accepted <= cycle.verify_len <= block_size
        assert cycle.emitted[: cycle.num_accepted] == cycle.drafts[: cycle.num_accepted]
        bonus = [] if cycle.next_token is None else [cycle.next_token]
        assert cycle.emitted[cycle.num_accepted :] == bonus
        assert min(cycle.draft_seconds, cycle.verify_seconds) >= 0
    for before, after in pairwise(cycles):
        assert len(before.emitted) == before.num_accepted + 1  # only the last is cut
        assert after.anchor == before.next_token
        assert after.context_len == before.context_len + 1 + before.num_accepted
    if cycles:
        assert cycles[0].context_len == len(PROMPT)
        assert cycles[0].anchor == generation.tokens[0]
        mean = sum(len(c.emitted) for c in cycles) / len(cycles)
        assert generation.accepted_length == pytest.approx(mean)
    else:
        assert generation.accepted_length is None


# --- greedy equality -------------------------------------------------------------


@EVERY_VERIFIER
@pytest.mark.parametrize("anchor_predicts", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_greedy_equals_transformers(head, anchor_predicts, verifier):
    drafter = tiny_drafter(TARGET, head, anchor_predicts=anchor_predicts)
    got = generate(TARGET, drafter, PROMPT, max_new_tokens=24, verifier=verifier)
    assert got.tokens == REPLY[:24]
    assert got.finish_reason == "length"
    check_counts(got, block_size=4)


@pytest.mark.parametrize("count", LENGTHS)
@EVERY_VERIFIER
@pytest.mark.parametrize("right", [99, 0, (0, 99), (0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 8)])
def test_greedy_equality_at_every_length(right, verifier, count):
    """A14: exactly as many tokens as asked for, whatever the drafter knows."""
    drafter = scripted(right, block_size=8)
    got = generate(TARGET, drafter, PROMPT, max_new_tokens=count, verifier=verifier)
    assert got.tokens == REPLY[:count]
    assert got.finish_reason == "length"
    check_counts(got, block_size=8)


def test_script_is_followed():
    pattern = (0, 1, 2, 3, 4, 0, 4)
    got = generate(TARGET, scripted(pattern), PROMPT, max_new_tokens=22)
    assert [cycle.num_accepted for cycle in got.cycles] == list(pattern)
    assert got.accepted_length == 3.0  # bonus counted: (14 drafts + 7) / 7


@pytest.mark.parametrize("block_size", [7, 15])
def test_oracle_fills_every_cycle(block_size):
    """C5, E4: 7 drafts, 8 emitted; 15 drafts, 16 emitted."""
    drafter = oracle(TARGET, PROMPT, block_size=block_size)
    count = 1 + 3 * (block_size + 1)
    got = generate(TARGET, drafter, PROMPT, max_new_tokens=count)
    assert [len(cycle.emitted) for cycle in got.cycles] == [block_size + 1] * 3
    assert got.accepted_length == block_size + 1


def test_no_tokens_means_no_model_call():
    target, drafter = tiny_target(), scripted(0)
    calls = []
    target.model.register_forward_pre_hook(lambda *_: calls.append(1))
    got = generate(target, drafter, PROMPT, max_new_tokens=0)
    assert (got.tokens, got.finish_reason, calls) == ([], "length", [])
    assert list(decode_cycles(target, drafter, PROMPT, max_new_tokens=0)) == []
    assert autoregressive(target, PROMPT, max_new_tokens=0).tokens == []
    assert calls == []
    generate(target, drafter, PROMPT, max_new_tokens=1)
    assert (calls, drafter.calls) == ([1], [])  # the prefill alone


# --- stop tokens -----------------------------------------------------------------


@pytest.mark.parametrize("right", [99, 0, 2])
@pytest.mark.parametrize("place", range(12))
def test_stop_at_every_place_of_a_block(place, right):
    """A12: nothing after the first stop token, in ids or in counts."""
    stop = REPLY[place]
    end = REPLY.index(stop) + 1
    drafter = scripted(right, block_size=8)
    options = {"max_new_tokens": 20, "stop_token_ids": [stop]}
    got = generate(TARGET, drafter, PROMPT, **options)
    assert got.tokens == REPLY[:end]
    assert got.finish_reason == "stop"
    check_counts(got, block_size=8)
    assert autoregressive(TARGET, PROMPT, **options).tokens == got.tokens
    if end == 1:
        assert (got.cycles, drafter.calls) == ([], [])


def test_two_stop_tokens_end_at_the_first():
    stops = [REPLY[9], REPLY[3]]
    end = min(REPLY.index(stop) for stop in stops) + 1
    got = generate(
        TARGET, scripted(99), PROMPT, max_new_tokens=20, stop_token_ids=stops
    )
    assert got.tokens == REPLY[:end]


def test_stop_token_among_the_accepted_drafts_cuts_the_bonus():
    fresh = next(i for i in range(2, 8) if REPLY[i] not in REPLY[:i])
    got = generate(
        TARGET,
        scripted(99, block_size=8),
        PROMPT,
        max_new_tokens=20,
        stop_token_ids=[REPLY[fresh]],
    )
    (cycle,) = got.cycles
    assert cycle.emitted == REPLY[1 : fresh + 1]
    assert (cycle.num_accepted, cycle.next_token) == (fresh, None)
    assert cycle.verify_len == 8


def test_stop_tokens_of_the_target_are_the_default():
    target = tiny_target(eos_token_id=REPLY[5])
    end = REPLY.index(REPLY[5]) + 1
    stopped = generate(target, scripted(99), PROMPT, max_new_tokens=20)
    assert (stopped.tokens, stopped.finish_reason) == (REPLY[:end], "stop")
    options = {"max_new_tokens": 20, "stop_token_ids": []}
    assert generate(target, scripted(99), PROMPT, **options).tokens == REPLY[:20]
    assert autoregressive(target, PROMPT, **options).tokens == REPLY[:20]


def test_stop_on_the_last_token_asked_for():
    stop = REPLY[4]
    count = REPLY.index(stop) + 1
    options = {"max_new_tokens": count, "stop_token_ids": [stop]}
    assert generate(TARGET, scripted(99), PROMPT, **options).finish_reason == "stop"


# --- policies --------------------------------------------------------------------


@EVERY_VERIFIER
@pytest.mark.parametrize("k", range(5))
def test_fixed_length(k, verifier):
    """C20: greedy equality at every verify length; never more accepted than shown."""
    got = generate(
        TARGET,
        scripted(99),
        PROMPT,
        max_new_tokens=20,
        policy=FixedLength(k),
        verifier=verifier,
    )
    assert got.tokens == REPLY[:20]
    assert {cycle.verify_len for cycle in got.cycles} == {k}
    check_counts(got, block_size=4)
    assert all(len(c.emitted) == k + 1 for c in got.cycles[:-1])


def test_length_beyond_the_block_is_refused():
    with pytest.raises(ValueError, match=r"k must be in range: .* <= 4, got 5\."):
        generate(TARGET, scripted(99), PROMPT, max_new_tokens=9, policy=FixedLength(5))


def test_threshold_never_reached():
    """E10: 32 tokens, 31 cycles of one, nothing verified, equal to greedy."""
    drafter = tiny_drafter(TARGET)
    with torch.no_grad():
        drafter.confidence.proj.weight.zero_()
        drafter.confidence.proj.bias.fill_(4.6)  # sigmoid is .99
    policy = ConfidenceThreshold(1.0)
    got = generate(TARGET, drafter, PROMPT, max_new_tokens=32, policy=policy)
    assert got.tokens == REPLY[:32]
    assert [(c.verify_len, len(c.emitted)) for c in got.cycles] == [(0, 1)] * 31
    assert all(c.draft_seconds > 0 for c in got.cycles)
    with torch.no_grad():
        drafter.confidence.proj.bias.fill_(30.0)  # in float32 its sigmoid is 1
    got = generate(TARGET, drafter, PROMPT, max_new_tokens=32, policy=policy)
    assert all(c.verify_len == 4 for c in got.cycles)
    assert got.tokens == REPLY[:32]


def test_threshold_without_confidence_is_refused():
    with pytest.raises(ValueError, match="confidence"):
        generate(
            TARGET,
            scripted(99),
            PROMPT,
            max_new_tokens=9,
            policy=ConfidenceThreshold(0.5),
        )


# --- seeds -----------------------------------------------------------------------


@EVERY_VERIFIER
def test_seeds(verifier):
    """A20: a seed decides everything, and leaves the global stream alone."""
    drafter = tiny_drafter(TARGET)

    def run(generator):
        return generate(
            TARGET,
            drafter,
            PROMPT,
            max_new_tokens=6,
            temperature=1.5,
            verifier=verifier,
            generator=generator,
        ).tokens

    before = torch.get_rng_state()
    assert run(7) == run(7) == run(torch.Generator().manual_seed(7))
    assert len({tuple(run(seed)) for seed in range(4)}) >= 2
    assert torch.get_rng_state().equal(before)
    assert run(None) != run(None)


def test_autoregressive_seeds():
    def run(generator):
        options = {"max_new_tokens": 8, "temperature": 1.5, "generator": generator}
        return autoregressive(TARGET, PROMPT, **options).tokens

    before = torch.get_rng_state()
    assert run(7) == run(7)
    assert len({tuple(run(seed)) for seed in range(4)}) >= 2
    assert torch.get_rng_state().equal(before)
    assert run(None) != run(None)


def test_autoregressive_is_greedy_at_temperature_0():
    got = autoregressive(TARGET, PROMPT, max_new_tokens=24)
    assert (got.tokens, got.finish_reason) == (REPLY[:24], "length")
    assert (list(got.cycles), got.accepted_length) == ([], None)


@pytest.mark.parametrize("temperature", [1e-8, 1e-5])
def test_tiny_temperatures_are_greedy(temperature):
    """A5: finite, and equal to greedy."""
    drafter = tiny_drafter(TARGET)
    options = {"max_new_tokens": 12, "temperature": temperature, "generator": 0}
    assert generate(TARGET, drafter, PROMPT, **options).tokens == REPLY[:12]


# --- traces ----------------------------------------------------------------------


def same_cycles(some, others):
    """Equal but for the seconds."""
    seconds = {"draft_seconds": 0.0, "verify_seconds": 0.0}
    return [replace(cycle, **seconds) for cycle in some] == [
        replace(cycle, **seconds) for cycle in others
    ]


def test_decode_cycles_is_generate_cycle_by_cycle():
    drafter = tiny_drafter(TARGET)
    options = {"max_new_tokens": 20, "temperature": 1.0, "generator": 3}
    whole = generate(TARGET, drafter, PROMPT, **options)
    traces = list(decode_cycles(TARGET, drafter, PROMPT, **options))
    assert len(traces) == len(whole.cycles) > 1
    assert same_cycles(traces, whole.cycles)
    emitted = [token for trace in traces for token in trace.emitted]
    assert [traces[0].anchor, *emitted] == whole.tokens


def test_tables_are_kept_on_request():
    drafter = tiny_drafter(TARGET)
    options = {"max_new_tokens": 20, "temperature": 1.0, "policy": FixedLength(3)}
    options["generator"] = 3
    bare = list(decode_cycles(TARGET, drafter, PROMPT, **options))
    full = list(decode_cycles(TARGET, drafter, PROMPT, **options, keep_tensors=True))
    tables = ("proposal", "p_draft", "p_target", "uniforms", "verdict")
    assert all(getattr(trace, name) is None for trace in bare for name in tables)
    for trace in full:
        assert trace.p_draft.shape == (4, 31)
        assert trace.p_target.shape == (4, 31)
        assert trace.uniforms.shape == (4,)
        assert trace.proposal.tokens[0].tolist() == trace.drafts
        assert trace.proposal.confidence[0].tolist() == trace.confidence
        assert int(trace.verdict.num_accepted) >= trace.num_accepted
        judged = trace.p_target[range(3), trace.drafts[:3]]
        drawn = trace.p_draft[range(3), trace.drafts[:3]]
        kept = trace.uniforms[:3] < (judged / drawn).clamp(max=1)
        assert int(kept.long().cumprod(0).sum()) == int(trace.verdict.num_accepted)


def test_target_law_of_a_trace_is_the_models():
    drafter = tiny_drafter(TARGET)
    options = {"max_new_tokens": 16, "temperature": 0.8, "generator": 1}
    text = list(PROMPT)
    for trace in decode_cycles(TARGET, drafter, PROMPT, **options, keep_tensors=True):
        if trace.index == 0:
            text.append(trace.anchor)
        seen = torch.tensor([[*text, *trace.drafts]])
        with torch.no_grad():
            logits = TARGET.model(seen, use_cache=False).logits[0, len(text) - 1 :]
        want = (logits / 0.8).softmax(dim=-1)
        assert (trace.p_target - want).abs().max() < 1e-4
        text += trace.emitted


# --- what a request may look like, and what it may leave behind ------------------


def test_prompt_forms():
    drafter = tiny_drafter(TARGET)
    forms = (PROMPT, tuple(PROMPT), torch.tensor(PROMPT), torch.tensor([PROMPT]))
    for form in forms:
        assert generate(TARGET, drafter, form, max_new_tokens=9).tokens == REPLY[:9]
        assert autoregressive(TARGET, form, max_new_tokens=9).tokens == REPLY[:9]


def test_prompt_of_one_token():
    for head in HEADS:
        got = generate(TARGET, tiny_drafter(TARGET, head), [5], max_new_tokens=9)
        assert got.tokens == greedy_reply(TARGET, [5], 9)


def test_sliding_window_target():
    """B4: window 8 on half the layers, prompt 20, 40 tokens, right half the time."""
    target = tiny_target(
        layer_types=["sliding_attention", "full_attention"] * 2,
        use_sliding_window=True,
        sliding_window=8,
    )
    prompt = random_ids(20, seed=8).tolist()
    text = list(prompt)
    for _ in range(60):  # uncached, as transformers' own sliding cache is no oracle
        with torch.no_grad():
            logits = target.model(torch.tensor([text]), use_cache=False).logits
        text.append(int(logits[0, -1].argmax()))
    got = generate(target, ScriptedDrafter(text, (2, 0, 4)), prompt, max_new_tokens=40)
    assert got.tokens == text[20:60]
    assert [c.num_accepted for c in got.cycles[:3]] == [2, 0, 4]
    drafter = tiny_drafter(target)
    assert generate(target, drafter, prompt, max_new_tokens=40).tokens == text[20:60]


def test_draft_cache_holds_each_committed_token_once():
    """B11: after every draft, features of all tokens but the pending anchor."""
    drafter, caches = tiny_drafter(TARGET), []
    real = drafter.new_cache
    drafter.new_cache = lambda: caches.append(real()) or caches[-1]
    lengths = []
    for trace in decode_cycles(TARGET, drafter, PROMPT, max_new_tokens=20):
        lengths.append(caches[0].length)
        assert lengths[-1] == trace.context_len
    assert len(caches) == 1
    assert len(lengths) > 9


def test_scripted_drafter_gets_all_rows():
    drafter = scripted((0, 3))
    got = generate(TARGET, drafter, PROMPT, max_new_tokens=15)
    assert drafter.calls == [cycle.context_len for cycle in got.cycles]


class FailsInRound2(ScriptedDrafter):
    error: type[BaseException] = RuntimeError

    def propose(self, target_hidden, anchor, **options):
        if len(self.calls) == 1:
            raise self.error("out of ink")
        return super().propose(target_hidden, anchor, **options)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_exception_in_round_2_reaches_the_caller_and_leaves_no_state(error):
    """F7 and B12."""
    drafter = FailsInRound2(PROMPT + REPLY, 2)
    drafter.error = error
    with pytest.raises(error, match="out of ink"):
        generate(TARGET, drafter, PROMPT, max_new_tokens=20)
    assert generate(TARGET, scripted(2), PROMPT, max_new_tokens=20).tokens == REPLY[:20]


def test_nothing_is_kept_from_the_request_before():
    """B12: a long prompt, then a short one, against fresh objects."""
    target, drafter = tiny_target(), tiny_drafter(TARGET)
    options = {"max_new_tokens": 16, "temperature": 1.0, "generator": 5}
    generate(target, drafter, random_ids(30).tolist(), **options)
    second = generate(target, drafter, PROMPT, **options)
    fresh = generate(tiny_target(), tiny_drafter(TARGET), PROMPT, **options)
    assert second.tokens == fresh.tokens
    assert same_cycles(second.cycles, fresh.cycles)


def test_abandoned_iterator_leaves_no_state():
    drafter = tiny_drafter(TARGET)
    next(decode_cycles(TARGET, drafter, PROMPT, max_new_tokens=20))
    assert generate(TARGET, drafter, PROMPT, max_new_tokens=20).tokens == REPLY[:20]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head", HEADS)
def test_half_precision_on_a_cpu(head, dtype):
    """H4: the loop runs; only at near ties may the tokens part from float32's."""
    target = tiny_target(dtype=dtype)
    drafter = tiny_drafter(target, head)
    options = {"max_new_tokens": 9, "temperature": 1.0, "generator": 0}
    assert len(generate(target, drafter, PROMPT, **options).tokens) == 9
