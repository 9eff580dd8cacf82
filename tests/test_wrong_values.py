"""Every public function over a table of wrong values: one clear sentence, or none.

Each argument in turn is given everything in WRONG while the others stay good. What
happens must be a result, or a ValueError, TypeError or OSError in the project's voice;
and every argument must refuse something, so that none goes unchecked.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_drafter, tiny_target

import dsparkref
from dsparkref import (
    BatchDecoder,
    ConfidenceThreshold,
    FixedLength,
    LaggedPrefixScheduler,
    MarkovWorld,
    PrefixScheduler,
    StepsPerSecond,
    Target,
    TrainingOutput,
)
from dsparkref.train.train_drafter import Recipe
from dsparkref.train.trainer import TrainConfig

VOICE = re.compile(r"(?s)\A\S.* must .+: expected .+, got .+\.( .+)?\Z")
NAN, INF = float("nan"), float("inf")
WRONG: list[Any] = [
    None, -1, 10**30, 2.5, NAN, INF, True, "x", b"x", [], [1], [[1, 2]], {}, iter([1]),
    object(), float, torch.tensor([]), torch.tensor(NAN), torch.tensor([NAN, INF]),
    torch.zeros(3).long(), torch.ones(2, 2), torch.ones(1, 2, 3), torch.zeros(3, 0),
    torch.zeros(0, 3), torch.ones(3, dtype=torch.bool),
    torch.ones(3, dtype=torch.complex64), torch.ones(3, device="meta"),
    torch.ones(3).to_sparse(),
]  # fmt: skip


def ids(*values: int) -> torch.Tensor:
    return torch.tensor([values])


LAW, OTHER = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
BLOCK = {
    "tokens": ids(1, 2),
    "p_draft": torch.full((1, 2, 3), 1 / 3),
    "p_target": torch.full((1, 3, 3), 1 / 3),
    "uniforms": torch.full((1, 3), 0.5),
    "verify_len": 2,
}
SPS = StepsPerSecond({1: 1.0, 9: 0.5})
WORLD = MarkovWorld(torch.full((2, 2), 0.5))
CHANCES = torch.tensor([[0.5, 0.2]])
STEP = {"confidence": CHANCES, "block_size": 2}
RECORDS = {"predicted": LAW, "observed": torch.tensor([1, 0, 1])}
COUNTS = {"num_accepted": [1], "verify_len": [2], "block_size": 3}
OUTPUT = TrainingOutput(
    torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3),
    torch.zeros(1, 2, 3).long(),
)  # fmt: skip
LOGITS = torch.zeros(4, 2)
TRAINING = {"steps": 1, "batch_size": 1, "learning_rate": 1.0, "warmup": 0.1}
TRAINING |= {"clip": 1.0, "weight_decay": 0.0, "precision": "no", "seed": 0}

# what is called, with good arguments
PLAIN: dict[str, tuple[Callable, dict[str, Any]]] = {
    "probabilities": (
        dsparkref.probabilities,
        {"logits": LAW, "temperature": 1.0, "top_k": 2, "top_p": 0.9},
    ),
    "accept_probability": (
        dsparkref.accept_probability,
        {"p_target": LAW, "p_draft": OTHER, "tokens": torch.tensor(1)},
    ),
    "accept_rate": (dsparkref.accept_rate, {"p_target": LAW, "p_draft": OTHER}),
    "residual_distribution": (
        dsparkref.residual_distribution,
        {"p_target": LAW, "p_draft": OTHER},
    ),
    "verify_block": (dsparkref.verify_block, BLOCK),
    "token_match_block": (
        lambda **options: dsparkref.token_match_block(p_draft=None, **options),
        {name: value for name, value in BLOCK.items() if name != "p_draft"},
    ),
    "survival": (dsparkref.survival, {"confidence": LAW}),
    "expected_accepted_length": (
        dsparkref.expected_accepted_length,
        {"confidence": LAW},
    ),
    "expected_calibration_error": (
        dsparkref.expected_calibration_error,
        RECORDS | {"bins": 5},
    ),
    "brier_score": (dsparkref.brier_score, RECORDS),
    "auroc": (dsparkref.auroc, RECORDS),
    "fit_sts": (
        dsparkref.fit_sts,
        {"logits": LOGITS, "accepted": LOGITS + 1, "counted": LOGITS == 0, "bins": 5},
    ),
    "apply_sts": (
        dsparkref.apply_sts,
        {"logits": LOGITS, "temperatures": [1.0, 2.0]},
    ),
    "schedule_prefixes": (
        dsparkref.schedule_prefixes,
        {"survival": CHANCES, "steps_per_second": SPS, "early_stop": True},
    ),
    "StepsPerSecond": (StepsPerSecond, {"points": {1: 1.0}}),
    "StepsPerSecond()": (SPS, {"batch_tokens": 3}),
    "FixedLength": (FixedLength, {"k": 1}),
    "ConfidenceThreshold": (ConfidenceThreshold, {"threshold": 0.5, "on": "survival"}),
    "PrefixScheduler": (PrefixScheduler, {"steps_per_second": SPS}),
    "LaggedPrefixScheduler": (
        LaggedPrefixScheduler,
        {"steps_per_second": SPS, "lag": 2},
    ),
    "FixedLength's": (FixedLength(1).verify_lengths, STEP),
    "FixedLength's, blind": (
        FixedLength(1).verify_lengths,
        {"confidence": None, "block_size": 2, "num_requests": 1},
    ),
    "ConfidenceThreshold's": (ConfidenceThreshold(0.5).verify_lengths, STEP),
    "PrefixScheduler's": (PrefixScheduler(SPS).verify_lengths, STEP),
    "LaggedPrefixScheduler's": (LaggedPrefixScheduler(SPS).verify_lengths, STEP),
    "MarkovWorld": (
        MarkovWorld,
        {"transition": torch.full((2, 2), 0.5), "words": ("a", "b")},
    ),
    "MarkovWorld.block_laws": (WORLD.block_laws, {"context": [0], "length": 2}),
    "MarkovWorld.spell": (WORLD.spell, {"tokens": [0]}),
    "conditional_acceptance": (dsparkref.conditional_acceptance, COUNTS),
    "prefix_survival": (dsparkref.prefix_survival, COUNTS),
    "speedup": (
        dsparkref.speedup,
        {"draft_seconds": 1.0, "verify_seconds": 1.0, "accepted_length": 2.0,
         "token_seconds": 1.0},
    ),
    "supervised_positions": (
        dsparkref.supervised_positions,
        {"loss_mask": ids(0, 1, 1, 1), "anchors": ids(1, 2), "block_size": 2,
         "keep": ids(1, 0) == 1},
    ),
    "aligned_target_logits": (
        dsparkref.aligned_target_logits,
        {"target_logits": torch.zeros(1, 4, 5), "anchors": ids(1, 2), "block_size": 2},
    ),
    "block_loss": (
        dsparkref.block_loss,
        {"output": OUTPUT, "target_logits": torch.zeros(1, 2, 3, 5),
         "supervised": torch.ones(1, 2, 3).bool(), "weights": (0.1, 0.9, 1.0),
         "loss_decay": 4.0, "base_weight": 0.0},
    ),
    "TrainConfig": (TrainConfig, TRAINING),
    "Recipe": (
        Recipe,
        {"num_anchors": 8, "weights": (0.1, 0.9, 1.0), "loss_decay": 4.0,
         "base_curriculum": 0.0},
    ),
}  # fmt: skip


def outcome(call: Callable, options: dict[str, Any]) -> Exception | None:
    """Return what a call raised; None where it gave a result."""
    try:
        result = call(**options)
        if hasattr(result, "__next__"):
            list(result)
    except Exception as error:
        return error
    return None


def check(
    call: Callable,
    good: dict[str, Any],
    extra: dict[str, list[Any]] | None = None,
    wrong: list[Any] = WRONG,
) -> None:
    extra = extra or {}
    assert outcome(call, good) is None, "the good arguments are not good"
    for name in good:
        refused = 0
        for value in [*wrong, *extra.get(name, [])]:
            error = outcome(call, good | {name: value})
            if error is None:
                continue
            refused += 1
            said = f"{name}={value!r}: {type(error).__name__}: {error}"
            assert isinstance(error, ValueError | TypeError | OSError), said
            assert VOICE.match(str(error)), said
        assert refused, f"{name} takes anything"


@pytest.mark.parametrize("name", PLAIN)
def test_plain_functions(name, no_shape_checks):
    call, good = PLAIN[name]
    points = [{}, {0: 1.0}, {1: 0.0}, {1.5: 1.0}, {"a": 1.0}, {1: NAN}, {1: "x"}]
    weights = [(1,), (1, 2, 3, 4), (NAN, 0, 0), "abc"]
    anchors = [ids(-1, 2), ids(4, 2), torch.ones(1, 2)]
    check(call, good, {"points": points, "weights": weights, "anchors": anchors})


@pytest.fixture(scope="module")
def pair():
    target = tiny_target()
    return target, tiny_drafter(target)


def test_every_public_name_is_called_here():
    """Records are results, and their makers are in the tables below."""
    text = Path(__file__).read_text("utf-8")
    records = "Generation CycleTrace Proposal Verdict BlockOutput LossTerms Pair"
    elsewhere = "DrafterSpec Drafter train_drafter train_target"  # test_refusals, train
    skipped = {*records.split(), *elsewhere.split()}
    missing = [name for name in dsparkref.__all__ if name not in skipped]
    assert [name for name in missing if not re.search(rf"\b{name}\b", text)] == []


DECODING = {
    "max_new_tokens": 3, "temperature": 1.0, "top_k": 2, "top_p": 0.5,
    "stop_token_ids": [1],
}  # fmt: skip
SPECULATIVE = {"policy": FixedLength(1), "verifier": "rejection"}
TIDY_WRONG = {"stop_token_ids": [torch.tensor(1)], "max_new_tokens": [2.0]}


@pytest.mark.parametrize(
    "name",
    ["generate", "decode_cycles", "autoregressive", "generate_batch", "BatchDecoder"],
)
def test_decoding(name, pair, no_shape_checks):
    target, drafter = pair
    good: dict[str, Any] = {"target": target}
    if name != "autoregressive":
        good |= {"drafter": drafter} | SPECULATIVE
    if name == "generate_batch":
        good |= {"prompts": [[3, 4]], "generators": [0]} | DECODING
    elif name == "BatchDecoder":
        good |= {key: DECODING[key] for key in ("temperature", "top_k", "top_p")}
    else:
        good |= {"prompt_ids": [3, 4], "generator": 0} | DECODING
    if name == "decode_cycles":
        good["keep_tensors"] = True
    prompts = [[[3], "x"], [[]], [[99]], iter([[3]])]
    prompt_ids = [iter([1]), torch.ones(2, device="meta").long(), [99], ids(99)]
    extra = TIDY_WRONG | {"prompts": prompts, "prompt_ids": prompt_ids}
    # to ask for 10**30 tokens is no mistake, only a long wait
    wrong = [value for value in WRONG if not (type(value) is int and value > 1000)]
    check(getattr(dsparkref, name), good, extra, wrong)


def test_a_drafters_calls(pair, no_shape_checks):
    _, drafter = pair
    rows = torch.zeros(1, 5, drafter.spec.feature_size)

    def propose(cache, **options):
        if isinstance(cache, str) and cache == "new":
            cache = drafter.new_cache()
        return drafter.propose(cache=cache, **options)

    good = {"target_hidden": rows, "anchor": torch.tensor([3]), "cache": "new"}
    good |= {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "generator": 0}
    anchors = [torch.tensor([x]) for x in (99, -1, 2.0)]
    check(propose, good, {"anchor": anchors, "target_hidden": [rows.long()]})
    previous = torch.ones(1, 4).long()
    check(
        drafter.teacher_forced,
        {"target_hidden": rows, "prev_tokens": previous},
        {"prev_tokens": [previous.float(), 99 * previous, -previous]},
    )
    check(
        drafter.training_forward,
        {"input_ids": ids(1, 1, 1, 1, 1), "target_hidden": rows, "anchors": ids(1, 2)},
        {"anchors": [ids(5), ids(-1), torch.zeros(1, 0).long()], "input_ids": [
            ids(1, 1, 1, 1, 99), torch.ones(1, 5)]},
    )  # fmt: skip
    check(drafter.with_temperatures, {"temperatures": [1.0] * 4})


def test_batches_and_text(pair, no_shape_checks):
    target, drafter = pair
    decoder = BatchDecoder(target, drafter)
    number = decoder.add([3], max_new_tokens=2)
    check(lambda number: decoder.cancel(number), {"number": number})
    good = {"prompt_ids": [3], "max_new_tokens": 2, "generator": 0}
    check(decoder.add, good, TIDY_WRONG)
    check(lambda model: Target(model), {"model": target.model})


def test_checkpoints(pair, tmp_path, monkeypatch, no_shape_checks):
    """And nothing is left behind by what is refused."""
    target, drafter = pair
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dsparkref.checkpoints.files.download", None)
    monkeypatch.delenv("DSPARKREF_PAIR", raising=False)
    drafter_folder, target_folder = tmp_path / "drafter", tmp_path / "target"
    dsparkref.save_drafter(drafter, drafter_folder)
    target.model.save_pretrained(target_folder)
    devices = ["meta", "cuda:7", "vulkan", "xla", "cpu:x"]
    loading = {"device": devices, "dtype": ["complex64", "float8", 16]}
    check(
        dsparkref.load_target,
        {"source": target_folder, "device": "cpu", "dtype": "float32"},
        loading,
    )
    check(
        dsparkref.load_drafter,
        {"source": drafter_folder, "target": target, "layout": "dsparkref",
         "device": "cpu", "dtype": "float32"},
        loading,
    )  # fmt: skip
    check(dsparkref.describe, {"source": drafter_folder, "layout": "dsparkref"})
    name = f"{target_folder},{drafter_folder}"
    pairs = [",", " , ", "a,", "a,b,c"]
    check(lambda name: dsparkref.load_pair(name), {"name": name}, {"name": pairs})
    made = {
        "target": target, "head": "markov", "block_size": 4, "num_layers": 1, "rank": 4,
        "target_layer_ids": (1,), "confidence": True, "mask_token_id": 3,
        "generator": 0,
    }  # fmt: skip
    check(dsparkref.new_drafter, made)
    domino = {"gru_size": 4, "inner_size": 4, "pure_draft_prefix_len": 0}
    rest = {"target": target, "head": "domino", "mask_token_id": 3, "block_size": 4}
    check(lambda **options: dsparkref.new_drafter(**rest, **options), domino)
    before = sorted(path.name for path in tmp_path.iterdir())
    saved = {"drafter": drafter, "layout": "dsparkref", "drop": ("confidence",)}
    for key in saved:
        for value in WRONG:
            options = saved | {key: value, "folder": tmp_path / "out"}
            error = outcome(dsparkref.save_drafter, options)
            if error is not None:
                assert VOICE.match(str(error)), error
                assert sorted(path.name for path in tmp_path.iterdir()) == before
            elif (tmp_path / "out").exists():
                (tmp_path / "out" / "model.safetensors").unlink()
                (tmp_path / "out" / "config.json").unlink()
                (tmp_path / "out").rmdir()
