"""The study of losses and curricula: what it measures, and that it can go on."""

import copy

import pytest
import torch

from dsparkref import accept_rate, load_target, new_drafter, train_drafter
from dsparkref.train import curves, trainer
from dsparkref.train.corpus import training_examples
from dsparkref.train.data import tokenize_exchanges
from dsparkref.train.train_drafter import Recipe
from dsparkref.train.trainer import TrainConfig


@pytest.fixture(scope="module")
def target():
    return load_target("tiny")


def tapping(target, head):
    generator = torch.Generator().manual_seed(0)
    layers = curves.TARGET_LAYER_IDS
    return new_drafter(
        target, head=head, target_layer_ids=layers, num_layers=1, generator=generator
    )


@torch.no_grad()
def test_held_out_overlap_is_that_of_single_blocks(target):
    drafter = tapping(target, "markov")
    held_out = curves.HeldOut(
        target, curves.TARGET_LAYER_IDS, 1, drafter.block_size, num_anchors=2
    )
    total = torch.zeros(drafter.block_size)
    count = torch.zeros(drafter.block_size)
    for row, anchors in enumerate(held_out.anchors.tolist()):
        for n, anchor in enumerate(anchors):
            inside = held_out.supervised[row, n]
            ids = held_out.input_ids[row : row + 1]
            block = ids[:, anchor : anchor + drafter.block_size]
            if block.shape[1] < drafter.block_size:
                continue  # hangs over the end: only whole blocks are compared
            one = drafter.teacher_forced(held_out.hidden[row : row + 1, :anchor], block)
            p_target = held_out.logits[row, n].softmax(dim=-1)
            rate = accept_rate(p_target, one.draft_logits[0].softmax(dim=-1))
            total += torch.where(inside, rate, 0.0)
            count += inside
    whole = held_out.supervised.sum(dim=(0, 1))
    assert (count == whole).all(), "choose replies in which every block is whole"
    torch.testing.assert_close(
        torch.tensor(held_out(drafter)["overlap"]), total / count, atol=1e-5, rtol=0
    )


def test_a_watched_run_is_the_run(target):
    rows = [vars(example) for example in training_examples(24, seed=5)]
    samples, _ = tokenize_exchanges(target.tokenizer, rows, max_length=160)
    config = TrainConfig(steps=trainer.LOG_EVERY + 1, batch_size=2, learning_rate=1e-2)
    start = tapping(target, "gated")
    alone, watched = copy.deepcopy(start), copy.deepcopy(start)
    recipe, asked = Recipe(num_anchors=2), []

    def watch(drafter):
        asked.append(drafter)
        return {"calls": len(asked)}

    plain = train_drafter(target, alone, samples, config, recipe)
    seen = train_drafter(target, watched, samples, config, recipe, watch=watch)
    assert [row.pop("calls") for row in seen] == [1, 2]  # each row, and no other step
    assert seen == plain
    pairs = zip(alone.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_study_goes_on_where_it_stopped(target, tmp_path, monkeypatch):
    train, runs = curves.train_drafter, []

    def counted(*arguments, **keywords):
        if len(runs) == 3:
            raise KeyboardInterrupt
        runs.append(arguments[1].head_type)
        return train(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(curves, "train_drafter", counted)
        with pytest.raises(KeyboardInterrupt):
            curves.record_curves(target, tmp_path / "a", study="smoke")
    found = curves.record_curves(target, tmp_path / "a", study="smoke")
    assert found == curves.record_curves(target, tmp_path / "b", study="smoke")
    with monkeypatch.context() as patch:
        patch.setattr(curves, "train_drafter", None)  # nothing is made again
        assert found == curves.record_curves(target, tmp_path / "a", study="smoke")
    settings = curves.STUDIES["smoke"]
    assert list(found["variants"]) == list(curves.VARIANTS)
    for entry in found["variants"].values():
        first, second = entry["runs"]
        assert first != second  # other seeds, other runs
        assert [row["step"] for row in first] == [settings.train.steps]
        assert all(0 < value <= 1 for value in first[0]["overlap"])


def test_variants_of_one_head_differ_in_one_thing():
    recipes = {name: v.recipe for name, v in curves.VARIANTS.items()}
    mixed = recipes["0.1 CE + 0.9 TV"]
    assert mixed == Recipe()  # the shipped drafters' own
    assert recipes["CE"].weights[1] == 0 and recipes["TV"].weights[0] == 0
    base = vars(recipes["domino, base first"]) | {"base_curriculum": 0.0}
    assert base == vars(recipes["domino"]) == vars(mixed)


def test_an_unknown_study_is_refused(target, tmp_path):
    with pytest.raises(ValueError, match="study must be a known name"):
        curves.record_curves(target, tmp_path / "none", study="huge")
    assert not (tmp_path / "none").exists()
