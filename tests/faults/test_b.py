"""B: contexts, positions and masks, beside what tests of drafter and target hold."""

import warnings

import pytest
import torch
from tiny_models import (
    ScriptedDrafter,
    greedy_reply,
    oracle,
    random_ids,
    tiny_drafter,
    tiny_target,
)
from transformers import GPT2Config, GPT2LMHeadModel

from dsparkref import (
    Target,
    autoregressive,
    decode_cycles,
    generate,
    generate_batch,
    new_drafter,
)
from dsparkref.draft.backbone import rotary

PROMPT = [3, 14, 15, 9, 2, 6]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("anchor_predicts", [True, False])
def test_the_last_slot_is_seen_unless_the_block_is_causal(anchor_predicts, causal):
    """B7: through `propose` itself, so that the flag reaches the mask in use."""
    layers = (0, 1) if causal else ()
    drafter = tiny_drafter(
        tiny_target(), "dflash", anchor_predicts=anchor_predicts, causal_layers=layers
    )
    rows, embed = torch.randn(1, 9, drafter.spec.feature_size), drafter.embed

    def hidden(push):
        drafter.embed = lambda tokens: (
            embed(tokens) + push * torch.eye(tokens.shape[1])[-1, :, None]
        )
        return drafter.propose(rows, torch.tensor([7])).hidden

    changed = (hidden(1.0) - hidden(0.0)).abs().amax(-1)[0] > 1e-4  # [K]
    assert changed.tolist() == [not causal] * 3 + [True]


@pytest.mark.parametrize("head", ["markov", "domino"])
def test_heads_whose_width_is_not_hidden_over_heads(head):
    """B13: 4 heads on 2, head_dim 32, hidden 64."""
    target = tiny_target(hidden_size=64, head_dim=32, initializer_range=0.2)
    drafter = tiny_drafter(target, head)
    reply = generate(target, drafter, PROMPT, max_new_tokens=24)
    assert reply.tokens == greedy_reply(target, PROMPT, 24)


SCALED = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 20,
        "short_factor": [1.0, 1.0, 1.0, 1.0],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
    },
}


@pytest.mark.parametrize("kind", SCALED)
def test_targets_with_scaled_rotations(kind):
    """A position is turned alike whatever was drafted and whoever shares the batch.

    LongRoPE is the kind that does not keep this past its first length: there the
    context ends, at 20 tokens; the others' ends at 32.
    """
    parameters = {"rope_type": kind, "rope_theta": 1e4} | SCALED[kind]
    target = tiny_target(rope_parameters=parameters, max_position_embeddings=32)
    limit = 20 if kind == "longrope" else 32
    assert target.max_length == limit
    expected = greedy_reply(target, PROMPT, limit - len(PROMPT))
    options = {"max_new_tokens": 100}
    for right in (99, (0, 2, 1)):
        drafter = ScriptedDrafter(PROMPT + expected, right, block_size=7)
        assert generate(target, drafter, PROMPT, **options).tokens == expected
    longer = random_ids(limit - 2).tolist()
    drafter = tiny_drafter(target)
    alone, beside = generate_batch(target, drafter, [PROMPT, longer], **options)
    assert alone.tokens == expected
    assert len(beside.tokens) == 2


# --- positions past the end ----------------------------------------------------------


def test_a_context_the_drafter_was_not_made_for_is_said_once():
    """B10: 32 positions, a prompt of 40: both numbers, one warning, the same text."""
    target = tiny_target()
    drafter = tiny_drafter(target, max_position_embeddings=32)
    prompt = random_ids(40).tolist()
    pattern = r"max_position_embeddings is 32 and a context has 41 tokens"
    with pytest.warns(UserWarning, match=pattern) as caught:
        reply = generate(target, drafter, prompt, max_new_tokens=12)
    assert len(caught) == 1
    assert reply.tokens == greedy_reply(target, prompt, 12)


def test_a_context_that_outgrows_the_drafter_on_its_way():
    target = tiny_target()
    drafter = tiny_drafter(target, max_position_embeddings=32)
    prompt = random_ids(25).tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"max_new_tokens": 20}
        cycles = decode_cycles(target, drafter, prompt, **options)
        said = [(cycle.context_len, len(caught)) for cycle in cycles]
    assert {count for length, count in said if length < 32} == {0}
    assert {count for length, count in said if length >= 32} == {1}


def test_no_two_positions_are_turned_alike():
    """B10: past every limit too: nothing is clamped."""
    cos, sin = rotary(torch.arange(600), head_dim=8, theta=1e4)
    phases = torch.cat([cos, sin], dim=-1)
    apart = (phases[:, None] - phases).abs().amax(-1) > 1e-6
    assert apart.sum() == 600 * 599


def with_learned_positions(size):
    """A GPT-2: a position past its table is an error, not another angle."""
    sizes = {"n_embd": 24, "n_layer": 4, "n_head": 4, "initializer_range": 0.4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=31,
            n_positions=size,
            eos_token_id=None,
            bos_token_id=None,
            **sizes,
        )
        return Target(GPT2LMHeadModel(config))


def positions_read(target):
    """Return a list that fills with the last position of every pass."""
    body, found = target.model.base_model, []
    table = body.wpe if hasattr(body, "wpe") else body.rotary_emb

    def note(_, args, keywords):
        found.append(int(keywords.get("position_ids", args[-1]).max()))

    table.register_forward_pre_hook(note, with_kwargs=True)
    return found


def test_a_drafter_shaped_after_a_target_of_few_words():
    """B13: GPT-2's config has no MLP width, no key-value heads and no rotary base."""
    target = with_learned_positions(40)
    assert target.num_layers == 4
    drafter = new_drafter(target, mask_token_id=30, block_size=3, generator=0)
    assert (drafter.spec.intermediate_size, drafter.spec.num_kv_heads) == (96, 4)
    reply = generate(target, drafter, PROMPT, max_new_tokens=12)
    assert reply.tokens == greedy_reply(target, PROMPT, 12)


TARGETS = {
    "rotary": lambda: tiny_target(max_position_embeddings=24),
    "learned": lambda: with_learned_positions(24),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_reply_ends_where_the_context_is_full(kind):
    """Never a position past the end, in a block, a batch's padding or a draft."""
    target = TARGETS[kind]()
    reply = greedy_reply(target, PROMPT, 18)
    read = positions_read(target)
    options = {"max_new_tokens": 1000}
    for right in (99, 0, (0, 2, 1)):
        drafter = ScriptedDrafter(PROMPT + reply, right, block_size=7)
        got = generate(target, drafter, PROMPT, **options)
        assert (got.tokens, got.finish_reason) == (reply, "length")
    got = autoregressive(target, PROMPT, **options)
    assert (got.tokens, got.finish_reason) == (reply, "length")
    prompts = [PROMPT, PROMPT + reply[:9], PROMPT + reply[:15]]
    text = ScriptedDrafter(PROMPT + reply, 99, block_size=7)
    rows = generate_batch(target, text, prompts, **options)
    assert [row.tokens for row in rows] == [reply, reply[9:], reply[15:]]
    assert max(read) == 23


@pytest.mark.parametrize("extra", [0, 1])
def test_a_prompt_that_fills_the_context_is_refused(extra, no_shape_checks):
    target = tiny_target(max_position_embeddings=24)
    drafter = oracle(target, PROMPT, count=4)
    target.model.forward = None  # no model may run
    prompt = [1] * (24 + extra)
    message = f"fewer tokens than the context of 24, got {24 + extra}"
    for call in (
        lambda: generate(target, drafter, prompt, max_new_tokens=3),
        lambda: autoregressive(target, prompt, max_new_tokens=3),
        lambda: generate_batch(target, drafter, [[1], prompt], max_new_tokens=3),
    ):
        with pytest.raises(ValueError, match=message):
            call()
