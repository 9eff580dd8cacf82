"""Exactness as a property: any pair, any request, any policy, alone or in a batch.

Targets and drafters are random, and so is every option that may be asked for. Greedy
text must be the target's own, token for token; sampled text must come out of a batch as
it comes out alone; and counts must add up. Where the vocabulary is small the law of the
whole reply is added up, too.
"""

from itertools import pairwise

import pytest
import torch
from exact_laws import CUTS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_whole_loop_law import check_qwen
from tiny_models import HEADS, tiny_drafter, tiny_target

from dsparkref import (
    ConfidenceThreshold,
    FixedLength,
    LaggedPrefixScheduler,
    PrefixScheduler,
    StepsPerSecond,
    autoregressive,
    generate,
    generate_batch,
)
from dsparkref.verify.rejection import VERIFIERS
from dsparkref.verify.sampling import probabilities

pytestmark = pytest.mark.usefixtures("no_shape_checks")
SPS = StepsPerSecond({1: 100.0, 4: 80.0, 30: 20.0})
TIE = 1e-4


def prop(examples):
    """Settings of a property: the same examples in every run."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[*checks, HealthCheck.data_too_large],
    )


# --- what is drawn --------------------------------------------------------------------


@st.composite
def targets(draw, dtype):
    """Grouped and ungrouped heads, tied or not, windows or none, long or short."""
    layers = draw(st.integers(2, 3))
    heads, groups = draw(st.sampled_from([(4, 2), (4, 4), (2, 1)]))
    changes = {
        "vocab_size": draw(st.integers(4, 31)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": draw(st.sampled_from([256, 20])),
    }
    if draw(st.booleans()):
        kinds = ["sliding_attention", "full_attention"]
        changes |= {
            "layer_types": [kinds[i % 2] for i in range(layers)],
            "use_sliding_window": True,
            "sliding_window": draw(st.integers(2, 6)),
        }
    return tiny_target(seed=draw(st.integers(0, 99)), dtype=dtype, **changes)


@st.composite
def drafters(draw, target):
    """Every head and layout: slots, masks, taps, own weights, a smaller vocabulary."""
    head, layers = draw(st.sampled_from(HEADS)), draw(st.integers(1, 2))
    some_layers = st.lists(st.integers(0, layers - 1), unique=True).map(tuple)
    taps = st.integers(-1, target.num_layers - 2)
    block_size = draw(st.integers(1, 6))
    changes = {
        "block_size": block_size,
        "num_layers": layers,
        "anchor_predicts": draw(st.booleans()),
        "causal_layers": draw(some_layers),
        "target_layer_ids": tuple(draw(st.lists(taps, min_size=1, max_size=3))),
        "confidence": draw(st.booleans()),
        "owns_embedding": draw(st.booleans()),
        "owns_lm_head": draw(st.booleans()),
    }
    if windows := draw(some_layers):
        rule = draw(st.sampled_from(["anchor", "slot", "slot, block too"]))
        window = draw(st.integers(1, 6))
        changes |= {"window_layers": windows, "window": window, "window_rule": rule}
    if head == "domino":
        changes["pure_draft_prefix_len"] = draw(st.integers(0, block_size))
    if head == "dflash" or draw(st.booleans()):
        changes["confidence_input"] = "hidden"
    if changes["owns_lm_head"] and draw(st.booleans()):
        changes["draft_vocab_size"] = draw(st.integers(1, target.vocab_size))
    drafter = tiny_drafter(target, head, seed=draw(st.integers(0, 99)), **changes)
    if drafter.vocabulary is not None:
        ids = draw(st.permutations(range(target.vocab_size)))
        drafter.vocabulary.ids.copy_(torch.tensor(ids[: len(drafter.vocabulary.ids)]))
    return drafter


def policies(drafter):
    """Every policy that the drafter can feed."""
    found = [st.none(), st.builds(FixedLength, st.integers(0, drafter.block_size))]
    if drafter.confidence is not None:
        rules = st.sampled_from(["conditional", "survival"])
        found += [
            st.builds(ConfidenceThreshold, st.floats(0, 1), rules),
            st.just(PrefixScheduler(SPS)),
            st.builds(LaggedPrefixScheduler, st.just(SPS), st.integers(1, 2)),
        ]
    return st.one_of(found)


def requests(vocab):
    """Prompts of unlike lengths, a cap and stop tokens."""
    ids = st.integers(0, vocab - 1)
    prompts = st.lists(st.lists(ids, min_size=1, max_size=12), min_size=1, max_size=3)
    return prompts, st.integers(0, 14), st.lists(ids, max_size=2)


# --- what must hold -------------------------------------------------------------------


@torch.no_grad()
def next_logits(target, text):
    return target.model(torch.tensor([text]), use_cache=False).logits[0, -1]


def greedy_text(target, prompt, count, stops):
    """The target's own text without cache or loop, and its narrowest choice."""
    text, gap = list(prompt), 1.0
    while len(text) - len(prompt) < count and len(text) < target.max_length:
        best = next_logits(target, text).topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        text.append(int(best.indices[0]))
        if text[-1] in stops:
            break
    return text[len(prompt) :], gap


def check_counts(generation, prompt, block_size, cap, stops):
    """The sums of a generation, and where and why it ends."""
    tokens, cycles = generation.tokens, generation.cycles
    emitted = [token for cycle in cycles for token in cycle.emitted]
    assert tokens[len(tokens[:1]) :] == emitted
    assert len(tokens) <= cap
    assert not set(tokens[:-1]) & set(stops)
    if generation.finish_reason == "stop":
        assert tokens[-1] in stops
    else:
        assert len(tokens) == cap and not set(tokens) & set(stops)
    for cycle in cycles:
        assert len(cycle.drafts) == block_size
        assert 0 <= cycle.num_accepted <= cycle.verify_len <= block_size
        bonus = [] if cycle.next_token is None else [cycle.next_token]
        assert cycle.emitted == [*cycle.drafts[: cycle.num_accepted], *bonus]
        assert cycle.emitted
    for before, after in pairwise(cycles):
        assert len(before.emitted) == before.num_accepted + 1
        assert after.anchor == before.next_token
        assert after.context_len == before.context_len + len(before.emitted)
    if cycles:
        assert (cycles[0].context_len, cycles[0].anchor) == (len(prompt), tokens[0])
        mean = len(emitted) / len(cycles)
        assert generation.accepted_length == pytest.approx(mean)
    else:
        assert generation.accepted_length is None and len(tokens) <= 1


def cap_of(target, prompt, count):
    return min(count, target.max_length - len(prompt))


def check_greedy(data):
    target = data.draw(targets(torch.float32))
    drafter = data.draw(drafters(target))
    prompts, count, stops = (data.draw(x) for x in requests(target.vocab_size))
    options = {
        "max_new_tokens": count,
        "stop_token_ids": stops,
        "policy": data.draw(policies(drafter)),
        "verifier": data.draw(st.sampled_from([*VERIFIERS])),
        "top_k": data.draw(st.none() | st.integers(1, 5)),  # greedy is greedy
    }
    texts = [greedy_text(target, prompt, count, stops) for prompt in prompts]
    assume(min(gap for _, gap in texts) > TIE)
    rows = generate_batch(target, drafter, prompts, **options)
    for prompt, (text, _), row in zip(prompts, texts, rows, strict=True):
        alone = generate(target, drafter, prompt, **options)
        assert alone.tokens == row.tokens == text
        for found in (alone, row):
            cap = cap_of(target, prompt, count)
            check_counts(found, prompt, drafter.block_size, cap, stops)
    plain = autoregressive(
        target, prompts[0], max_new_tokens=count, stop_token_ids=stops
    )
    assert plain.tokens == texts[0][0]


def check_sampled(data):
    """In float64, where a batch and a single run round alike enough to agree."""
    target = data.draw(targets(torch.float64))
    drafter = data.draw(drafters(target))
    prompts, count, stops = (data.draw(x) for x in requests(target.vocab_size))
    settings = {
        "temperature": data.draw(st.sampled_from([1e-6, 0.3, 1.0, 2.5])),
        "top_k": data.draw(st.none() | st.integers(1, 5)),
        "top_p": data.draw(st.none() | st.floats(0.05, 1.0)),
    }
    # a policy that shares a budget gives a row other lengths beside others
    one_by_one = FixedLength(0), FixedLength(drafter.block_size), None
    options = {
        "max_new_tokens": count,
        "stop_token_ids": stops,
        "policy": data.draw(st.sampled_from(one_by_one)),
        "verifier": data.draw(st.sampled_from([*VERIFIERS])),
        **settings,
    }
    seeds = list(range(len(prompts)))
    rows = generate_batch(target, drafter, prompts, generators=seeds, **options)
    for seed, prompt, row in zip(seeds, prompts, rows, strict=True):
        alone = generate(target, drafter, prompt, generator=seed, **options)
        assert alone.tokens == row.tokens
        cap = cap_of(target, prompt, count)
        check_counts(row, prompt, drafter.block_size, cap, stops)
        text = list(prompt)
        for token in row.tokens:  # possible, as the filters see it
            assert probabilities(next_logits(target, text), **settings)[token] > 0
            text.append(token)


@prop(20)
@given(st.data())
def test_greedy_text_is_the_targets_own(data):
    check_greedy(data)


@prop(15)
@given(st.data())
def test_sampled_text_is_possible_and_the_same_in_a_batch(data):
    check_sampled(data)


@pytest.mark.slow
@prop(150)
@given(st.data())
def test_greedy_text_is_the_targets_own_at_length(data):
    check_greedy(data)


@pytest.mark.slow
@prop(150)
@given(st.data())
def test_sampled_text_is_possible_and_the_same_in_a_batch_at_length(data):
    check_sampled(data)


@pytest.mark.slow
@prop(20)
@given(
    head=st.sampled_from(HEADS),
    block=st.integers(1, 2),
    cut=st.sampled_from([*CUTS]),
    count=st.integers(1, 3),
    stops=st.lists(st.integers(0, 1), max_size=1),
    verifier=st.sampled_from([*VERIFIERS]),
    rule=st.sampled_from([None, "conditional", "survival", "fixed"]),
    threshold=st.floats(0.2, 0.8),
)
def test_replies_have_the_targets_law(
    head, block, cut, count, stops, verifier, rule, threshold
):
    policy = FixedLength(1) if rule == "fixed" else None
    if rule in ("conditional", "survival"):
        policy = ConfidenceThreshold(threshold, on=rule)
    options = {"cut": cut, "count": count, "stops": stops, "verifier": verifier}
    check_qwen(head, 3, block, policy=policy, **options)
