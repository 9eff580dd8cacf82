"""Out again in the published layouts: the same tensors and logits, or a clear no."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import GOLDEN, HEADS, random_ids, tiny_drafter, tiny_target

from dsparkref import describe, load_drafter, load_target, save_drafter
from dsparkref.checkpoints.formats import SAVED

TARGET = tiny_target()
NO_CONFIDENCE = {"confidence": False, "confidence_input": "hidden"}
GOLDEN_LAYOUTS = {
    "deepspec_dflash": "deepspec",
    "deepspec_vanilla": "deepspec",
    "zlab_dflash": "z-lab",
    "domino": "domino",
}


def block(drafter):
    rows = TARGET.forward(random_ids(1, 7), drafter.spec.target_layer_ids).hidden
    prev = random_ids(1, drafter.block_size, seed=5)
    with torch.no_grad():
        output = drafter.teacher_forced(rows.detach(), prev)
    return [value for value in vars(output).values() if value is not None]


def same_block(a, b):
    return all(x.equal(y) for x, y in zip(block(a), block(b), strict=True))


def round_trip(drafter, folder, layout, **options):
    save_drafter(drafter, folder, layout=layout, **options)
    assert f"layout: {layout}\n" in describe(folder)
    return load_drafter(folder, TARGET)


CASES = [
    ("deepspec", head, {"confidence_input": reads})
    for head in ("markov", "gated", "rnn")
    for reads in ("hidden", "hidden+head")
]
CASES += [
    ("deepspec", "dflash", {}),
    ("deepspec", "rnn", {"confidence_temperatures": (0.5, 1.0, 1.5, 2.0)}),
    ("deepspec", "gated", NO_CONFIDENCE | {"attention_bias": True}),
    ("z-lab", "dflash", NO_CONFIDENCE | {"anchor_predicts": False}),
    ("domino", "domino", NO_CONFIDENCE | {"pure_draft_prefix_len": 2}),
    ("domino", "domino", NO_CONFIDENCE | {"anchor_predicts": False}),
]


@pytest.mark.parametrize(("layout", "head", "changes"), CASES, ids=str)
def test_round_trip_is_bit_identical(layout, head, changes, tmp_path):
    drafter = tiny_drafter(TARGET, head, **changes)
    loaded = round_trip(drafter, tmp_path / "d", layout)
    before, after = drafter.state_dict(), loaded.state_dict()
    assert all(after[name].equal(value) for name, value in before.items())
    assert same_block(loaded, drafter)
    copies = {"own_embedding", "own_lm_head"} if layout == "deepspec" else set()
    assert after.keys() - before.keys() == copies
    if copies:  # DeepSpec's files hold them whoever owns them
        assert loaded.own_embedding.equal(TARGET.embedding)
        assert loaded.own_lm_head.equal(TARGET.lm_head)


@pytest.mark.parametrize("folder", GOLDEN_LAYOUTS)
def test_a_published_file_comes_back_tensor_by_tensor(folder, tmp_path):
    """The reference codes' own files: same names, same bits, and the keys they read."""
    source, target = (
        GOLDEN / folder / "drafter",
        load_target(GOLDEN / folder / "target"),
    )
    drafter = load_drafter(source, target)
    save_drafter(drafter, tmp_path / "d", layout=GOLDEN_LAYOUTS[folder])
    before = load_file(source / "model.safetensors")
    after = load_file(tmp_path / "d" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(after[name].equal(value) for name, value in before.items())
    old = json.loads((source / "config.json").read_text())
    new = json.loads((tmp_path / "d" / "config.json").read_text())
    assert {key: old[key] for key in new} == new


@pytest.mark.parametrize(
    ("layout", "head", "changes", "lost"),
    [
        ("z-lab", "dflash", {"anchor_predicts": False}, "got confidence"),
        ("domino", "domino", {}, "got confidence"),
        ("z-lab", "markov", {}, "got head, confidence, an anchor slot"),
        ("domino", "markov", NO_CONFIDENCE, "got head 'markov'"),
        ("deepspec", "domino", {}, "got head 'domino'"),
        ("deepspec", "rnn", {"anchor_predicts": False}, "got a dropped slot 0"),
        ("deepspec", "rnn", {"causal_layers": (1,)}, "got layers with a causal block"),
        ("deepspec", "dflash", {"window_layers": (1,), "window": 9}, "with a window"),
        (
            "deepspec",
            "markov",
            {"draft_vocab_size": 7, "owns_lm_head": True},
            "got a reduced vocabulary",
        ),
        ("domino", "domino", NO_CONFIDENCE | {"owns_lm_head": True}, "got lm_head"),
    ],
)
def test_what_a_layout_cannot_express_is_named(layout, head, changes, lost, tmp_path):
    drafter = tiny_drafter(TARGET, head, **changes)
    with pytest.raises(ValueError, match=f"layout '{layout}' must express .*{lost}"):
        save_drafter(drafter, tmp_path / "d", layout=layout)
    assert list(tmp_path.iterdir()) == []


def test_parts_are_dropped_when_told(tmp_path):
    domino = tiny_drafter(TARGET, "domino")
    loaded = round_trip(domino, tmp_path / "a", "domino", drop=("confidence",))
    assert loaded.confidence is None
    assert all(x.equal(y) for x, y in zip(block(loaded), block(domino), strict=False))
    parts = {"anchor_predicts": False, "owns_embedding": True, "owns_lm_head": True}
    gated = tiny_drafter(TARGET, "gated", **parts)
    every = ("head", "confidence", "embedding", "lm_head")
    bare = round_trip(gated, tmp_path / "b", "z-lab", drop=every)
    assert bare.head_type == "dflash"
    kept = gated.backbone.state_dict()
    assert all(bare.backbone.state_dict()[n].equal(value) for n, value in kept.items())
    fitted = tiny_drafter(TARGET, confidence_temperatures=(0.5, 1.0, 1.5, 2.0))
    save_drafter(fitted, tmp_path / "c", drop=["confidence_temperatures"])
    assert load_drafter(tmp_path / "c", TARGET).spec.confidence_temperatures is None


def test_unknown_parts_and_layouts(tmp_path):
    drafter = tiny_drafter(TARGET)
    with pytest.raises(ValueError, match="drop must be a known name"):
        save_drafter(drafter, tmp_path / "d", drop=("backbone",))
    with pytest.raises(ValueError, match="layout must be a known name"):
        save_drafter(drafter, tmp_path / "d", layout="speculators")
    assert SAVED == ("dsparkref", "deepspec", "z-lab", "domino")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("head", HEADS)
def test_our_own_layout_says_everything(head, tmp_path):
    parts = {"anchor_predicts": False, "causal_layers": (1,)}
    parts |= {"window_layers": (0,), "window": 5, "window_rule": "anchor"}
    drafter = tiny_drafter(TARGET, head, **parts)
    loaded = round_trip(drafter, tmp_path / "d", "dsparkref")
    assert loaded.spec == drafter.spec
    assert same_block(loaded, drafter)
