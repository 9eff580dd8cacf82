"""The loop: resumed equals unbroken, a bad gradient stops it, weights stay float32."""

import copy

import pytest
import torch

from dsparkref import train_drafter, train_target
from dsparkref.train import corpus, trainer
from dsparkref.train.data import tokenize_exchanges
from dsparkref.train.train_drafter import Recipe
from dsparkref.train.trainer import TrainConfig
from tests.tiny_pair import random_drafter, random_target


@pytest.fixture(scope="module")
def setting():
    examples = corpus.training_examples(60, seed=0)
    tokenizer = corpus.build_tokenizer(corpus.training_examples(400, seed=0))
    rows = [{"prompt": e.prompt, "reply": e.reply} for e in examples]
    samples, _ = tokenize_exchanges(tokenizer, rows, max_length=160)
    return random_target(tokenizer), samples


CONFIG = TrainConfig(steps=6, batch_size=4, learning_rate=1e-2)


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


class Killed(Exception):
    pass


def interrupt_at(monkeypatch, step):
    """Save after every step, and die in the middle of one."""
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", -1.0)
    rate = TrainConfig.rate

    def dying(self, now):
        if now == step:
            raise Killed
        return rate(self, now)

    monkeypatch.setattr(TrainConfig, "rate", dying)


@pytest.mark.parametrize("head", ["markov", "domino"])
def test_a_resumed_drafter_ends_with_the_same_weights(
    setting, head, tmp_path, monkeypatch
):
    target, samples = setting
    start = random_drafter(target, head)
    recipe = Recipe(num_anchors=2, base_curriculum=1.0 if head == "domino" else 0.0)
    unbroken, resumed = copy.deepcopy(start), copy.deepcopy(start)
    history = train_drafter(target, unbroken, samples, CONFIG, recipe)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        with pytest.raises(Killed):
            train_drafter(target, resumed, samples, CONFIG, recipe, folder=tmp_path)
    later = copy.deepcopy(start)  # a new process: only the checkpoint remembers
    again = train_drafter(target, later, samples, CONFIG, recipe, folder=tmp_path)
    assert same(weights(unbroken), weights(later))
    assert not same(weights(unbroken), weights(start))
    assert again == history


def test_a_resumed_target_ends_with_the_same_weights(setting, tmp_path, monkeypatch):
    target, samples = setting
    unbroken, resumed, later = (copy.deepcopy(target) for _ in range(3))
    train_target(unbroken, samples, CONFIG)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(Killed):
            train_target(resumed, samples, CONFIG, folder=tmp_path)
    train_target(later, samples, CONFIG, folder=tmp_path)
    assert same(weights(unbroken.model), weights(later.model))


def test_a_checkpoint_of_another_run_is_refused(setting, tmp_path, monkeypatch):
    """D15: of other settings, another head, recipe, target or data; and it says which.

    And one that cannot be read is named, with what to do.
    """
    target, samples = setting
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", -1.0)
    drafter, recipe = random_drafter(target, "markov"), Recipe(num_anchors=2)
    trained = copy.deepcopy(drafter)
    train_drafter(target, trained, samples, CONFIG, recipe, folder=tmp_path)
    other = TrainConfig(steps=7, batch_size=4, learning_rate=1e-2)
    pair = target, drafter
    for arguments, named in (
        ((*pair, samples, other, recipe), "another steps"),
        ((*pair, samples, CONFIG, Recipe(num_anchors=3)), "another recipe"),
        ((*pair, samples.select(range(20)), CONFIG, recipe), "another samples"),
        (
            (target, random_drafter(target, "rnn"), samples, CONFIG, recipe),
            "another drafter",
        ),
        ((target, trained, samples, CONFIG, recipe), "another start"),
        (
            (random_target(target.tokenizer, 1), drafter, samples, CONFIG, recipe),
            "another target",
        ),
    ):
        with pytest.raises(ValueError, match=f"must belong to this run: .*{named}"):
            train_drafter(*arguments, folder=tmp_path)
    (tmp_path / "checkpoint" / "progress.json").write_text("{")
    with pytest.raises(ValueError, match=r"must be readable: .*Delete it"):
        train_drafter(*pair, samples, CONFIG, recipe, folder=tmp_path)


def test_an_interrupted_model_is_as_ready_for_use_as_a_trained_one(
    setting, monkeypatch
):
    target, samples = copy.deepcopy(setting[0]), setting[1]
    drafter, before = (
        random_drafter(target, "markov"),
        target.model.config._attn_implementation,
    )
    assert before != "eager"
    interrupt_at(monkeypatch, 1)
    for model, train in (
        (target.model, lambda: train_target(target, samples, CONFIG)),
        (drafter, lambda: train_drafter(target, drafter, samples, CONFIG)),
    ):
        with pytest.raises(Killed):
            train()
        assert not any(module.training for module in model.modules())
    assert target.model.config._attn_implementation == before


def test_sequences_of_one_token_cost_nothing(setting):
    """D3: they hold nothing to predict, and no anchor."""
    target, samples = copy.deepcopy(setting[0]), setting[1]
    rows = [{"input_ids": [5], "loss_mask": [1]}] * 4
    short, drafter = type(samples).from_list(rows), random_drafter(target, "markov")
    for model, train in (
        (target.model, lambda: train_target(target, short, CONFIG)),
        (drafter, lambda: train_drafter(target, drafter, short, CONFIG)),
    ):
        before = weights(model)
        assert train()[-1]["loss"] == 0.0
        assert same(before, weights(model))


def test_a_gradient_that_is_not_finite_stops_the_run(setting):
    """D12: named parameter, named step; the parameters stay finite."""
    target, samples = setting
    drafter = random_drafter(target, "markov")
    weight = drafter.backbone.norm.weight
    seen = []

    def poison(gradient):
        seen.append(1)
        return gradient * float("inf") if len(seen) == 3 else gradient

    weight.register_hook(poison)
    with pytest.raises(ValueError, match=r"backbone\.norm\.weight .* step 2"):
        train_drafter(target, drafter, samples, CONFIG)
    assert all(value.isfinite().all() for value in drafter.state_dict().values())


def test_training_lowers_the_loss_and_leaves_the_target_alone(setting):
    target, samples = setting
    before = weights(target.model)
    drafter = random_drafter(target, "rnn")
    config = TrainConfig(steps=75, batch_size=8, learning_rate=3e-3)
    history = train_drafter(target, drafter, samples, config, Recipe(num_anchors=4))
    assert [row["step"] for row in history] == [25, 50, 75]
    assert history[2]["loss"] < history[0]["loss"]
    assert same(before, weights(target.model))
    assert all(p.dtype == torch.float32 for p in drafter.parameters())  # D14


def test_a_drafter_of_half_precision_is_trained_in_float32(setting):
    """D14: in bfloat16 a small step is lost: 1 + 1e-4 is 1."""
    assert torch.tensor(1.0, dtype=torch.bfloat16) + 1e-4 == 1.0
    target, samples = setting
    drafter = random_drafter(target, "markov").to(dtype=torch.bfloat16)
    config = TrainConfig(steps=1, batch_size=2, learning_rate=1e-3)
    train_drafter(target, drafter, samples, config)
    assert all(p.dtype == torch.float32 for p in drafter.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be in range"),
        ({"learning_rate": 0.0}, "learning_rate must be in range"),
        ({"precision": "fp8"}, "precision must be a known name"),
        ({"seed": -1}, "seed must be in range"),
    ],
)
def test_bad_settings_are_refused(changes, message, no_shape_checks):
    options = {"steps": 1, "batch_size": 1, "learning_rate": 1.0} | changes
    with pytest.raises(ValueError, match=message):
        TrainConfig(**options)
