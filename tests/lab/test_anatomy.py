"""What the notebooks measure inside a drafter, against plain ways to know it."""

from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_target

from dsparkref import new_drafter
from dsparkref.analysis.evaluate import EvalPrompt
from dsparkref.draft.blocks import aligned_target_logits, training_mask
from dsparkref.lab import anatomy
from dsparkref.lab.tensors import SYMBOLS, tensor_table
from dsparkref.records import TrainingOutput

IDS = torch.tensor([[5, 9, 2, 7, 7, 3, 8, 1]])


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def drafter(target):
    return new_drafter(
        target, head="dflash", block_size=3, mask_token_id=4, generator=0
    )


@pytest.fixture(scope="module")
def hidden(target, drafter):
    return target.forward(IDS, drafter.spec.target_layer_ids).hidden.detach()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("anchor_predicts", [False, True])
def test_what_moves_a_slot_is_what_the_mask_shows(
    drafter, hidden, causal, anchor_predicts
):
    told = anatomy.with_spec(
        drafter,
        causal_layers=(0, 1) if causal else (),
        anchor_predicts=anchor_predicts,
    )
    anchors = torch.tensor([[2, 5]])
    mask = training_mask(anchors, told.spec.num_slots, IDS.shape[1], causal=causal)
    assert torch.equal(anatomy.reach(told, IDS, hidden, anchors), mask[0, 0])


def test_the_recorded_attention_gives_the_layers_answer(drafter, hidden):
    answers = []
    hooks = [
        layer.attention.register_forward_hook(lambda *call: answers.append(call[2]))
        for layer in drafter.backbone.layers
    ]
    found = anatomy.cycle_attention(drafter, hidden, torch.tensor([6]))
    for hook in hooks:
        hook.remove()
    assert len(found) == len(answers) == drafter.spec.num_layers
    for record, layer, answer in zip(
        found, drafter.backbone.layers, answers, strict=True
    ):
        assert record.weights.shape[2:] == (3, IDS.shape[1] + 3)
        groups = record.weights.shape[1] // record.values.shape[1]
        mixed = record.weights @ record.values.repeat_interleave(groups, dim=1)
        again = layer.attention.o_proj(mixed.transpose(1, 2).flatten(2))
        assert torch.allclose(again, answer, atol=1e-6)


def test_nothing_is_left_hooked(drafter, hidden):
    anatomy.cycle_attention(drafter, hidden, torch.tensor([6]))
    assert not any(layer.attention._forward_hooks for layer in drafter.backbone.layers)


def test_a_drafter_told_otherwise_leaves_the_first_as_it_was(drafter):
    other = anatomy.with_spec(drafter, target_layer_ids=(-1,))
    assert other.spec.target_layer_ids == (-1,) != drafter.spec.target_layer_ids
    assert other.backbone is drafter.backbone


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_the_alignment_finds_the_token_that_a_draft_says(target, shift):
    """A drafter that says the target's own law of the token ``shift`` too far on."""

    def training_forward(ids, hidden, anchors):
        logits = target.forward(ids).logits
        said = aligned_target_logits(logits, anchors + shift, 3)
        return TrainingOutput(said, said, None, said.argmax(dim=-1))

    scripted = SimpleNamespace(
        block_size=3,
        spec=SimpleNamespace(target_layer_ids=()),
        training_forward=training_forward,
    )
    example = EvalPrompt("", [5, 9, 2], [7, 7, 3, 8, 1, 2, 6], "", {})
    table = anatomy.slot_alignment(target, scripted, [example], every=1)
    k = torch.arange(3)
    assert table.shape == (3, 5)
    assert torch.allclose(table[k, k + 1 + shift], torch.ones(3), atol=1e-6)
    assert (table < 1 - 1e-3).sum() == table.numel() - 3


def test_a_table_of_tensors_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="tensor must be a known name"):
        tensor_table(mystery=torch.zeros(1))
    with pytest.raises(ValueError, match=r"read must have shape \[B, l\+1\]"):
        tensor_table(drafts=torch.zeros(1, 4), read=torch.zeros(1, 4))
    assert "[1, 5]" in tensor_table(drafts=torch.zeros(1, 4), read=torch.zeros(1, 5))


def test_symbols_stay_short():
    assert all(len(symbol.words) <= 48 for symbol in SYMBOLS.values())
