"""Section D of tests/FAULTS.md: what the tests of the training do not show already."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from dsparkref import block_loss, train_drafter
from dsparkref.draft.blocks import block_positions, gather_rows
from dsparkref.train import corpus
from dsparkref.train.data import sample_anchors, seeded, tokenize_exchanges
from dsparkref.train.teacher import MANIFEST, LiveTeacher, RecordedTeacher
from dsparkref.train.train_drafter import Recipe
from dsparkref.train.trainer import TrainConfig
from tests.tiny_pair import random_drafter, random_target

CONFIG = TrainConfig(steps=1, batch_size=4, learning_rate=1e-3)


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.build_tokenizer(corpus.training_examples(400, seed=0))


@pytest.fixture(scope="module")
def target(tokenizer):
    return random_target(tokenizer)


@pytest.fixture(scope="module")
def samples(tokenizer):
    found = corpus.training_examples(16, seed=0)
    rows = [{"prompt": x.prompt, "reply": x.reply} for x in found]
    return tokenize_exchanges(tokenizer, rows, max_length=160)[0]


# --- D1, D3 --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafts", "labels"), [(4, [11, 12, 13, 14]), (3, [11, 12, 13])]
)
def test_labels_of_both_layouts(drafts, labels):
    """D1: id = position, anchor 10, four slots: with slot 0 dropped there are three."""
    ids, anchor = torch.arange(32)[None], torch.tensor([[10]])
    window = gather_rows(ids, block_positions(anchor, drafts + 1))
    assert window[0, 0].tolist() == [10, *labels]


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_batches_without_an_anchor_cost_nothing(target, samples, kept):
    """D3: no loss at all, one token of it, the last three of a sequence shorter than K.

    The run goes on; the loss is 0 where nothing is supervised, and such sequences are
    counted as skipped.
    """
    length = 6
    mask = ([0] * length + [1] * kept)[-length:]
    rows = [
        {"input_ids": row["input_ids"][:length], "loss_mask": mask} for row in samples
    ]
    drafter = random_drafter(target, "markov", block_size=7)
    before = copy.deepcopy(drafter.state_dict())
    history = train_drafter(target, drafter, type(samples).from_list(rows), CONFIG)
    assert all(value.isfinite().all() for value in drafter.state_dict().values())
    if kept < 2:
        assert history[-1]["loss"] == 0.0 and history[-1]["skipped"] == 1.0
        after = drafter.state_dict()
        assert all(after[name].equal(before[name]) for name in before)
    else:
        assert history[-1]["loss"] > 0 and history[-1]["skipped"] == 0.0


def test_a_row_shorter_than_two_tokens_has_no_anchor():
    anchors, keep = sample_anchors(torch.ones(2, 1).long(), 3, generator=seeded(0))
    assert anchors.tolist() == [[0], [0]] and not keep.any()


# --- D10, D13 ------------------------------------------------------------------------


def test_dominos_curriculum_counts_optimizer_steps():
    """D10: there is no accumulation here; a step is an optimizer step."""
    recipe = Recipe(base_curriculum=0.5)
    found = [recipe.base_weight(step, 100) for step in (0, 25, 50, 80)]
    assert found == [1.0, 0.5, 0.0, 0.0]


def test_dominos_two_ends(target, samples):
    """D10: at 1 the GRU and its correction learn nothing, at 0 the loss is CE alone."""
    drafter = random_drafter(target, "domino", block_size=4).float()
    ids = torch.tensor([samples[0]["input_ids"][:20]])
    hidden = target.forward(ids, drafter.spec.target_layer_ids).hidden.detach()
    output = drafter.training_forward(ids, hidden, torch.tensor([[3, 8]]))
    supervised = torch.ones(1, 2, 4, dtype=torch.bool)
    ce = {"weights": (1.0, 0.0, 0.0)}
    at_one = block_loss(output, None, supervised, base_weight=1.0, **ce)
    at_one.total.backward(retain_graph=True)
    for name, parameter in drafter.head.named_parameters():
        assert parameter.grad is None or parameter.grad.abs().max() == 0, name
    at_zero = block_loss(output, None, supervised, base_weight=0.0, **ce)
    final = replace(output, base_logits=output.draft_logits)
    assert at_zero.total.equal(at_zero.ce)
    assert at_zero.total.equal(block_loss(final, None, supervised, **ce).total)


def test_a_think_block_is_learnt_as_part_of_the_reply(tokenizer):
    """D13: what the template puts in is not; a prompt too long is dropped, counted."""
    reply = "<think>\nLet me see.\n</think>\n\nSure."
    rows = [{"prompt": "Hello", "reply": reply}, {"prompt": "x " * 500, "reply": "y"}]
    samples, dropped = tokenize_exchanges(tokenizer, rows, max_length=160)
    assert (len(samples), dropped) == (1, 1)
    ids, mask = samples[0]["input_ids"], samples[0]["loss_mask"]
    learnt = tokenizer.decode([x for x, on in zip(ids, mask, strict=True) if on])
    assert learnt == f"{reply}<|im_end|>"
    header = tokenizer.decode(ids[: mask.index(1)])
    assert header.endswith("<|im_start|>assistant\n") and mask == sorted(mask)


# --- D15 -----------------------------------------------------------------------------


def test_one_step_on_records_is_one_step_live(target, samples, tmp_path):
    """D15: the same loss, to what bfloat16 keeps."""
    start = random_drafter(target, "markov", block_size=4)
    layers = start.spec.target_layer_ids
    recorded = RecordedTeacher.record(target, layers, samples, tmp_path / "teacher")
    losses = []
    for teacher in (LiveTeacher(target, layers), recorded):
        drafter = copy.deepcopy(start)
        history = train_drafter(target, drafter, samples, CONFIG, teacher=teacher)
        losses.append(history[-1]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_records_of_something_else_are_refused(target, samples, tmp_path):
    """D15: of other layers, samples, weights or another dtype; or with no manifest."""
    folder, layers = tmp_path / "teacher", (0, 1, 2)
    RecordedTeacher.record(target, layers, samples, folder)
    RecordedTeacher.record(target, layers, samples, folder)  # its own: taken up
    other = copy.deepcopy(target)
    with torch.no_grad():
        next(other.model.parameters()).add_(1e-3)
    fewer = samples.select(range(8))
    for changed, words in (
        ((target, (0, 2, 1), samples), "another layer_ids"),
        ((target, layers, fewer), "another samples"),
        ((other, layers, samples), "another target"),
    ):
        with pytest.raises(ValueError, match=words):
            RecordedTeacher.record(*changed, folder)
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "float32"}))
    with pytest.raises(ValueError, match="another dtype"):
        RecordedTeacher.record(target, layers, samples, folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"must be whole.*manifest\.json"):
        RecordedTeacher.record(target, layers, samples, folder)
