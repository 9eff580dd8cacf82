"""Parity with the released codes, on tiny random checkpoints in their own layouts.

``golden/README.md`` beside the folders says which code computed what. Agreement is
asked to 2e-5 on logits and to the token on greedy blocks.
"""

from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import GOLDEN

from dsparkref import (
    aligned_target_logits,
    load_drafter,
    load_target,
    supervised_positions,
)
from dsparkref.records import TrainingOutput
from dsparkref.train.loss import block_loss

FOLDERS = ("deepspec_dflash", "deepspec_vanilla", "domino", "zlab_dflash")
FOLDERS += ("modelopt_vanilla", "speculators_dspark")
TRAINED = ("deepspec_dflash", "deepspec_vanilla")
ROUNDS = {"round1": 9, "round2": 11}
TOLERANCE = 2e-5


@cache
def pair(folder):
    target = load_target(GOLDEN / folder / "target")
    return target, load_drafter(GOLDEN / folder / "drafter", target)


@cache
def numbers(folder, file="golden"):
    return load_file(GOLDEN / folder / f"{file}.safetensors")


def agree(got, want):
    assert got.shape == want.shape
    assert (got - want).abs().max() < TOLERANCE


def drafting(hidden, drafter):
    """z-lab's golden hidden states hold slot 0 too, which predicts nothing."""
    return hidden if drafter.spec.anchor_predicts else hidden[:, 1:]


def context(folder, round_name):
    golden, length = numbers(folder), ROUNDS[round_name]
    return golden["target_hidden"][:, :length], golden["input_ids"][:, length]


@pytest.mark.parametrize("folder", FOLDERS)
def test_target_logits_and_features(folder):
    target, drafter = pair(folder)
    golden = numbers(folder)
    with torch.no_grad():
        output = target.forward(golden["input_ids"], drafter.spec.target_layer_ids)
    agree(output.logits, golden["target_logits"])
    agree(output.hidden, golden["target_hidden"])


@pytest.mark.parametrize("round_name", ROUNDS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_greedy_block(folder, round_name):
    _, drafter = pair(folder)
    golden = numbers(folder)
    proposal = drafter.propose(*context(folder, round_name))
    assert proposal.tokens.equal(golden[f"{round_name}.greedy_tokens"])
    agree(proposal.hidden, drafting(golden[f"{round_name}.hidden"], drafter))
    names = {
        "base_logits": proposal.base_logits,
        "draft_logits": proposal.draft_logits,
        "greedy_logits": proposal.draft_logits,
    }
    compared = [name for name in names if f"{round_name}.{name}" in golden]
    for name in compared:
        agree(names[name], golden[f"{round_name}.{name}"])
    assert compared or (round_name == "round2" and folder in TRAINED)


@pytest.mark.parametrize(
    ("folder", "round_name", "field"),
    [
        ("deepspec_vanilla", "round1", "draft_logits"),
        ("deepspec_vanilla", "round1", "confidence_logits"),
        ("deepspec_vanilla", "round1", "base_logits"),
        ("domino", "round1", "draft_logits"),
        ("domino", "round2", "draft_logits"),
        ("domino", "round2", "base_logits"),
        *(
            (folder, round_name, field)
            for folder in ("modelopt_vanilla", "speculators_dspark")
            for round_name in ROUNDS
            for field in ("hidden", "base_logits", "draft_logits", "confidence_logits")
        ),
    ],
)
def test_teacher_forced(folder, round_name, field):
    _, drafter = pair(folder)
    golden = numbers(folder)
    hidden, _ = context(folder, round_name)
    with torch.no_grad():
        output = drafter.teacher_forced(hidden, golden[f"{round_name}.prev_tokens"])
    name = "teacher_forced_logits" if field == "draft_logits" else field
    agree(getattr(output, field), golden[f"{round_name}.{name}"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_round_two_from_the_cache_of_round_one(folder):
    _, drafter = pair(folder)
    golden = numbers(folder)
    hidden, ids = golden["target_hidden"], golden["input_ids"]
    context_cache = drafter.new_cache()
    drafter.propose(hidden[:, :9], ids[:, 9], cache=context_cache)
    proposal = drafter.propose(hidden[:, 9:11], ids[:, 11], cache=context_cache)
    assert context_cache.length == 11
    assert proposal.tokens.equal(golden["round2.greedy_tokens"])
    agree(proposal.hidden, drafting(golden["round2.hidden"], drafter))
    uncached = drafter.propose(hidden[:, :11], ids[:, 11])
    agree(proposal.draft_logits, uncached.draft_logits)


@pytest.mark.parametrize("folder", TRAINED)
def test_training_forward(folder):
    target, drafter = pair(folder)
    golden = numbers(folder, "train_golden")
    ids, anchors = golden["input_ids"], golden["anchor_positions"]
    with torch.no_grad():
        features = target.forward(ids, drafter.spec.target_layer_ids)
        output = drafter.training_forward(ids, features.hidden, anchors)
    where = supervised_positions(
        golden["loss_mask"], anchors, drafter.block_size, golden["block_keep_mask"]
    )
    assert where.equal(golden["supervised"])
    assert 0 < where.sum() < where.numel()  # the mask is put to the test
    assert output.labels[where].equal(golden["labels"][where])
    aligned = aligned_target_logits(features.logits, anchors, drafter.block_size)
    agree(aligned[where], golden["aligned_target_logits"][where])
    agree(output.draft_logits[where], golden["draft_logits"][where])
    if "confidence_logits" in golden:
        agree(output.confidence_logits[where], golden["confidence_logits"][where])
    else:
        assert output.confidence_logits is None


@pytest.mark.parametrize("folder", TRAINED)
def test_losses(folder):
    target, drafter = pair(folder)
    golden = numbers(folder, "train_golden")
    ids, anchors = golden["input_ids"], golden["anchor_positions"]
    with torch.no_grad():
        features = target.forward(ids, drafter.spec.target_layer_ids)
        output = drafter.training_forward(ids, features.hidden, anchors)
        aligned = aligned_target_logits(features.logits, anchors, drafter.block_size)
        loss = block_loss(output, aligned, golden["supervised"])
    agree(loss.ce[None], golden["loss.ce"])
    agree(loss.tv[None], golden["loss.l1"])
    agree(loss.confidence[None], golden["loss.confidence"])
    agree(loss.total[None], golden["loss.total"])


def test_loss_reads_supervised_positions_alone():
    golden = numbers("deepspec_vanilla", "train_golden")
    where = golden["supervised"]

    def loss(noise):
        """Fill what is not supervised with noise."""
        logits, confidence = golden["draft_logits"], golden["confidence_logits"]
        output = TrainingOutput(
            base_logits=logits,
            draft_logits=torch.where(where[..., None], logits, noise),
            confidence_logits=torch.where(where, confidence, noise),
            labels=torch.where(where, golden["labels"], 0),
        )
        return block_loss(output, golden["aligned_target_logits"], where).total

    assert loss(torch.tensor(0.0)).equal(loss(torch.tensor(9.0)))
    agree(loss(torch.tensor(0.0))[None], golden["loss.total"])
