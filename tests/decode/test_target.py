"""The target's three verbs against uncached forward passes of the model itself."""

import pytest
import torch
from tiny_models import random_ids, tiny_drafter, tiny_target

from dsparkref import Target

SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "use_sliding_window": True,
    "sliding_window": 8,
}
MODELS = pytest.mark.parametrize(
    "changes",
    [{}, SLIDING, {"tie_word_embeddings": True}],
    ids=["full", "sliding", "tied"],
)


def logits_of(target: Target, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return target.model(ids, use_cache=False).logits


def test_a_model_that_predicts_no_next_token_is_refused():
    body = tiny_target().model.base_model
    pattern = "model must be a causal language model: .* LM head, got Qwen3Model"
    with pytest.raises(ValueError, match=pattern):
        Target(body)


@pytest.mark.parametrize("kept", range(9))
@MODELS
def test_commit_keeps_exactly_n(changes, kept):
    """B2: prefix 10, block of 8, n kept; the next law must be a fresh forward's."""
    target = tiny_target(**changes)
    ids = random_ids(1, 20, seed=5)
    session, _ = target.prefill(ids[:, :10])
    session.verify(ids[:, 10:18])
    session.commit(kept)
    assert session.length == 10 + kept
    for layer in session._cache.layers:
        assert layer.keys.shape[2] == layer.values.shape[2] == 10 + kept
    committed = ids[:, : 10 + kept]
    following = random_ids(1, 3, seed=6)
    got = session.verify(following).logits
    want = logits_of(target, torch.cat([committed, following], dim=1))[:, -3:]
    assert (got - want).abs().max() < 1e-4


@MODELS
def test_any_pattern_of_accepts(changes):
    """B5: 0, 1, 2, ..., 8, 0, 8 kept; every round's logits as if never cached."""
    target = tiny_target(**changes)
    session, output = target.prefill(random_ids(1, 6))
    committed = random_ids(1, 6)
    assert (output.logits - logits_of(target, committed)[:, -1:]).abs().max() < 1e-4
    for seed, kept in enumerate((*range(9), 0, 8)):
        block = random_ids(1, 8, seed=seed)
        got = session.verify(block).logits
        want = logits_of(target, torch.cat([committed, block], dim=1))[:, -8:]
        assert (got - want).abs().max() < 1e-4
        assert got.argmax(-1).equal(want.argmax(-1))
        session.commit(kept)
        committed = torch.cat([committed, block[:, :kept]], dim=1)


def test_prefill_in_two_chunks():
    """B15: 20 at once or 7 + 13: same features, same drafts."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    ids, layers = random_ids(1, 20), drafter.spec.target_layer_ids
    _, whole = target.prefill(ids, layers)
    session, first = target.prefill(ids[:, :7], layers)
    second = session.verify(ids[:, 7:])
    chunked = torch.cat([first.hidden, second.hidden], dim=1)
    assert (whole.hidden - chunked).abs().max() < 1e-5 * whole.hidden.abs().max()
    drafts = [drafter.propose(h, ids[:, 0]).tokens for h in (whole.hidden, chunked)]
    assert drafts[0].equal(drafts[1])


@pytest.mark.parametrize("layer_id", [0, 1, 2])
def test_layer_id_means_the_output_of_that_layer(layer_id):
    """C1: id i is what layer i returns: hidden_states[i+1]."""
    target, caught = tiny_target(), []
    layer = target.model.model.layers[layer_id]
    layer.register_forward_hook(
        lambda _, __, out: caught.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        output = target.forward(random_ids(1, 6), [layer_id])
    assert output.hidden.equal(caught[0].view_as(output.hidden))


def test_layers_stand_side_by_side_in_the_order_asked():
    target = tiny_target()
    ids = random_ids(1, 6)
    with torch.no_grad():
        both = target.forward(ids, [2, -1]).hidden
        assert both[..., :24].equal(target.forward(ids, [2]).hidden)
        assert both[..., 24:].equal(target.embedding[ids])


def test_sessions_do_not_share_a_cache():
    target = tiny_target()
    first, _ = target.prefill(random_ids(1, 6))
    second, _ = target.prefill(random_ids(1, 4, seed=1))
    block = random_ids(1, 2, seed=2)
    got = first.verify(block).logits
    want = logits_of(target, torch.cat([random_ids(1, 6), block], dim=1))[:, -2:]
    assert (got - want).abs().max() < 1e-4
    assert (first.length, second.length) == (6, 4)


def test_verify_twice_without_commit_is_refused():
    target = tiny_target()
    session, _ = target.prefill(random_ids(1, 6))
    session.verify(random_ids(1, 2))
    with pytest.raises(ValueError, match="session must commit before it verifies"):
        session.verify(random_ids(1, 2))
    with pytest.raises(ValueError, match=r"num_kept must be in range: .* <= 2, got 3"):
        session.commit(3)


def test_stop_token_ids_of_the_configs():
    assert tiny_target().stop_token_ids == []
    assert tiny_target(eos_token_id=5).stop_token_ids == [5]
    target = tiny_target(eos_token_id=5)
    target.model.generation_config.eos_token_id = [7, 8]
    assert target.stop_token_ids == [7, 8]


def test_without_tokenizer_only_text_is_refused():
    target = tiny_target()
    for call in (lambda: target.encode("hi"), lambda: target.decode([1])):
        with pytest.raises(ValueError, match="target must have a tokenizer"):
            call()


@pytest.mark.parametrize(
    ("given", "want"),
    [(None, []), (-1, []), (3, [3]), ([3, 5], [3, 5]), (torch.tensor([3]), [3])],
    ids=str,
)
def test_stop_tokens_as_configs_write_them(given, want):
    target = tiny_target()
    target.model.generation_config.eos_token_id = given
    target.model.config.eos_token_id = None
    assert target.stop_token_ids == want
