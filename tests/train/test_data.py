"""Samples, masks, batches, anchors, regeneration."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkref import supervised_positions, train_drafter, train_target
from dsparkref.train import corpus, data
from dsparkref.train.data import (
    BatchOrder,
    collate,
    regenerate,
    sample_anchors,
    seeded,
    tokenize_exchanges,
)
from dsparkref.train.teacher import RecordedTeacher
from dsparkref.train.trainer import TrainConfig
from tests.tiny_pair import random_drafter, random_target


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.build_tokenizer(corpus.training_examples(400, seed=0))


@pytest.fixture(scope="module")
def target(tokenizer):
    return random_target(tokenizer)


def test_the_loss_mask_covers_the_reply_and_its_end_marker_only(tokenizer):
    """D13."""
    row = {"prompt": "I start yoga today.", "reply": "Sure, happy to help!"}
    samples, dropped = tokenize_exchanges(tokenizer, [row], max_length=160)
    ids, mask = samples[0]["input_ids"], samples[0]["loss_mask"]
    taught = [token for token, on in zip(ids, mask, strict=True) if on]
    assert tokenizer.decode(taught) == "Sure, happy to help!<|im_end|>"
    header = tokenizer.decode(ids[: mask.index(1)])
    assert header.endswith("<|im_start|>assistant\n")
    assert dropped == 0


def test_a_sample_that_is_too_long_is_dropped_and_counted(tokenizer):
    rows = [{"prompt": "a", "reply": "b"}, {"prompt": "a " * 400, "reply": "b"}]
    samples, dropped = tokenize_exchanges(tokenizer, rows, max_length=100)
    assert (len(samples), dropped) == (1, 1)
    with pytest.raises(ValueError, match="training data must hold something"):
        tokenize_exchanges(tokenizer, rows[1:], max_length=100)


def test_padding_carries_no_loss_and_no_attention():
    rows = [
        {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]},
        {"input_ids": [8], "loss_mask": [1]},
    ]
    batch = collate(rows, pad_token_id=3)
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 3, 3]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.loss_mask.tolist() == [[0, 1, 1], [1, 0, 0]]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=4, max_size=80),
    batch_size=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_an_epoch_shows_no_sample_twice_and_any_step_can_come_first(
    lengths, batch_size, seed
):
    order = BatchOrder(lengths, batch_size, seed)
    count = order.batches_per_epoch
    epoch = [order.batch(step) for step in range(count)]
    flat = [row for batch in epoch for row in batch]
    assert len(flat) == len(set(flat)) == count * batch_size
    fresh = BatchOrder(lengths, batch_size, seed)
    later = count + count // 2
    assert fresh.batch(later) == order.batch(later)  # no step needs the ones before it


def test_epochs_differ():
    order = BatchOrder(list(range(1, 65)), 4, 0)
    epochs = [[order.batch(e * 16 + step) for step in range(16)] for e in range(2)]
    assert epochs[0] != epochs[1]


@settings(max_examples=50, deadline=None)
@given(
    mask=st.lists(
        st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=4
    ),
    count=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_anchors_are_distinct_eligible_and_supervised(mask, count, seed):
    loss_mask = torch.tensor(mask).int()
    anchors, keep = sample_anchors(loss_mask, count, generator=seeded(seed))
    for row, found, kept in zip(mask, anchors.tolist(), keep.tolist(), strict=True):
        chosen = [a for a, k in zip(found, kept, strict=True) if k]
        eligible = [a for a in range(8) if row[a] and row[a + 1]]
        assert set(chosen) <= set(eligible)
        assert len(chosen) == len(set(chosen)) == min(count, len(eligible))
    first = supervised_positions(loss_mask, anchors, 3, keep)[..., 0]
    assert first.equal(keep)


def test_anchors_depend_on_the_generator_alone():
    mask = torch.ones(2, 40, dtype=torch.long)
    draws = [
        sample_anchors(mask, 4, generator=seeded(1, step))[0] for step in (0, 0, 1)
    ]
    assert draws[0].equal(draws[1])
    assert not draws[0].equal(draws[2])


def test_an_interrupted_regeneration_ends_with_the_same_file(target, tmp_path):
    """Cut in the middle of a line: what is whole is kept, the rest made again."""
    prompts = [f"Hello {word}" for word in "abcde"]
    options = {"max_new_tokens": 12, "batch_size": 2, "seed": 3}
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    rows = regenerate(target, prompts, whole, **options)
    content = whole.read_bytes()
    lines = content.splitlines(keepends=True)
    assert len(lines) == 4  # whose they are, then batch by batch
    for whole_lines in range(4):
        broken = lines[whole_lines]
        cut.write_bytes(b"".join(lines[:whole_lines]) + broken[: len(broken) // 2])
        assert regenerate(target, prompts, cut, **options) == rows
        assert cut.read_bytes() == content


def test_regeneration_asks_for_the_law_and_not_for_the_models_habits(
    tokenizer, monkeypatch
):
    """A15: what a generation config brings along would bend the law that is learnt."""
    monkeypatch.setattr(data, "_until_stop", lambda target, ids: str(ids))
    options = {"prompts": ["Hello", "I start yoga"], "max_new_tokens": 24}
    drawn = []
    for habits in ({}, {"repetition_penalty": 1.8, "no_repeat_ngram_size": 1}):
        target = random_target(tokenizer)
        config = target.model.generation_config
        for name, value in habits.items():
            setattr(config, name, value)
        drawn.append(data._sampled_replies(target, **options, seed=(0, 0)))
        assert target.model.generation_config is config
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name", ["pad_token", "eos_token"])
def test_a_token_that_the_tokenizer_lacks_is_named_before_any_work(name, tmp_path):
    examples = corpus.training_examples(400, seed=0)
    target = random_target(corpus.build_tokenizer(examples))
    rows = [{"prompt": x.prompt, "reply": x.reply} for x in examples[:4]]
    samples, _ = tokenize_exchanges(target.tokenizer, rows, max_length=160)
    drafter, config = (
        random_drafter(target, "markov"),
        TrainConfig(steps=1, batch_size=2, learning_rate=1e-3),
    )
    setattr(target.tokenizer, name, None)
    path = tmp_path / "replies.jsonl"
    calls = [lambda: regenerate(target, ["a"], path)]
    if name == "eos_token":
        calls += [lambda: tokenize_exchanges(target.tokenizer, rows, max_length=160)]
    else:
        layers, folder = (0, 1), tmp_path / "teacher"
        calls += [
            lambda: train_target(target, samples, config),
            lambda: train_drafter(target, drafter, samples, config),
            lambda: RecordedTeacher.record(target, layers, samples, folder),
        ]
    for call in calls:
        with pytest.raises(ValueError, match=f"tokenizer's {name} must be there"):
            call()
    assert not list(tmp_path.iterdir())


def test_regeneration_leaves_the_global_stream_alone(target, tmp_path):
    before = torch.get_rng_state()
    path = tmp_path / "replies.jsonl"
    regenerate(target, ["Hello"], path, max_new_tokens=4, seed=0)
    assert torch.get_rng_state().equal(before)


def test_a_reply_without_an_end_is_not_taught(target, tmp_path):
    path = tmp_path / "replies.jsonl"
    rows = regenerate(target, ["Hello"] * 8, path, max_new_tokens=1, seed=0)
    written = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [row for line in written for row in line if row["reply"] is not None] == rows
    assert len(written[0]) == 8
    assert all(row["reply"] == "" for row in rows)  # only an immediate end is whole


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"max_new_tokens": 3}, {"batch_size": 2}, {"prompts": 3}]
)
def test_replies_of_another_run_are_refused(target, tmp_path, changes):
    """D15: nor may a run that draws otherwise, or asks less, go on with them."""
    path, prompts = tmp_path / "replies.jsonl", ["a", "b", "c", "d"]
    options = {"max_new_tokens": 2, "batch_size": 1, "seed": 0}
    regenerate(target, prompts, path, **options)
    content = path.read_bytes()
    asked = prompts[: changes.get("prompts", 4)]
    changes = {name: x for name, x in changes.items() if name != "prompts"}
    with pytest.raises(ValueError, match="must belong to this run"):
        regenerate(target, asked, path, **options | changes)
    assert path.read_bytes() == content


def test_replies_of_another_target_are_refused(target, tmp_path):
    path, options = tmp_path / "replies.jsonl", {"max_new_tokens": 2}
    regenerate(target, ["a"], path, **options)
    other = random_target(target.tokenizer, seed=1)
    with pytest.raises(ValueError, match="must belong to this run"):
        regenerate(other, ["a"], path, **options)
    path.write_text("no JSON\n")
    with pytest.raises(ValueError, match="must be readable"):
        regenerate(target, ["a"], path, **options)
