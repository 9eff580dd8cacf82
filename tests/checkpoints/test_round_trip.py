"""What is saved is what is loaded, to the bit; and a save is whole or not there."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import (
    GOLDEN,
    HEADS,
    random_ids,
    shaken,
    tiny_drafter,
    tiny_target,
)

from dsparkref import autoregressive, load_drafter, load_target, save_drafter
from dsparkref.checkpoints import save

EVERY_HEAD = pytest.mark.parametrize("head", HEADS)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a)


@EVERY_HEAD
def test_round_trip_is_bit_identical(head, tmp_path):
    target = tiny_target()
    drafter = tiny_drafter(target, head)
    save_drafter(drafter, tmp_path / "one")
    loaded = load_drafter(tmp_path / "one", target)
    assert loaded.spec == drafter.spec
    assert same_weights(loaded, drafter)
    save_drafter(loaded, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    rows = target.forward(random_ids(1, 6), drafter.spec.target_layer_ids).hidden
    first, second = (
        d.propose(rows.detach(), torch.tensor([3])) for d in (drafter, loaded)
    )
    assert first.draft_logits.equal(second.draft_logits)
    assert first.confidence.equal(second.confidence)


@pytest.mark.parametrize(
    "changes",
    [
        {"anchor_predicts": False},
        {"owns_embedding": True, "owns_lm_head": True},
        {"confidence_temperatures": (0.5, 1.0, 1.5, 2.0)},
        {"confidence": False},
        {"attention_bias": True, "confidence_input": "hidden"},
        {"rope_theta": 500.0, "rms_norm_eps": 1e-5, "target_layer_ids": (-1, 2)},
        {"window_layers": (1,), "window": 9, "causal_layers": (0, 1)},
        {"draft_vocab_size": 7, "owns_lm_head": True},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_every_field_of_the_spec_comes_back(changes, tmp_path):
    target = tiny_target()
    drafter = tiny_drafter(target, "gated", **changes)
    save_drafter(drafter, tmp_path / "drafter")
    loaded = load_drafter(tmp_path / "drafter", target)
    assert loaded.spec == drafter.spec
    assert same_weights(loaded, drafter)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_round_trip_in_other_dtypes(dtype, tmp_path):
    target = tiny_target(dtype=dtype)
    drafter = tiny_drafter(target, "rnn")
    with torch.no_grad():  # more digits than float32 holds, where the dtype has them
        for parameter in drafter.parameters():
            parameter.mul_(torch.tensor(1 / 3, dtype=torch.float64))
    save_drafter(drafter, tmp_path / "drafter")
    loaded = load_drafter(tmp_path / "drafter", target)
    assert loaded.dtype == dtype
    assert same_weights(loaded, drafter)


def test_dtype_asked_for_wins(tmp_path):
    target = tiny_target()
    save_drafter(tiny_drafter(target), tmp_path / "drafter")
    loaded = load_drafter(tmp_path / "drafter", target, dtype="bfloat16")
    assert loaded.dtype == torch.bfloat16


def test_new_save_replaces_the_old_one_whole(tmp_path):
    target, folder = tiny_target(), tmp_path / "drafter"
    save_drafter(tiny_drafter(target, "markov"), folder)
    (folder / "stale.safetensors").write_bytes(b"stale")
    save_drafter(tiny_drafter(target, "domino"), folder)
    assert sorted(contents(folder)) == ["config.json", "model.safetensors"]
    assert load_drafter(folder, target).head_type == "domino"
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("step", ["save_file", "write_json"])
def test_interrupted_save_leaves_the_old_folder_and_no_debris(
    step, error, tmp_path, monkeypatch
):
    target = tiny_target()
    drafter = tiny_drafter(target)
    save_drafter(drafter, tmp_path / "drafter")
    before = contents(tmp_path / "drafter")

    def fail(*_, **__):
        raise error("disk full")

    monkeypatch.setattr(save, step, fail)
    for folder in ("drafter", "fresh"):
        with pytest.raises(error, match="disk full"):
            save_drafter(shaken(drafter, seed=9), tmp_path / folder)
    assert contents(tmp_path / "drafter") == before
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_folder_with_other_things_in_it_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("two years")
    for place in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(ValueError, match="folder must be free to replace"):
            save_drafter(tiny_drafter(tiny_target()), place)
    assert (tmp_path / "thesis.tex").read_text() == "two years"


def test_a_config_does_not_make_a_folder_a_drafters(tmp_path):
    """A web project, a target, a drafter with notes: what would be lost is named."""
    drafter, config = tiny_drafter(tiny_target()), tmp_path / "web" / "config.json"
    config.parent.mkdir()
    save_drafter(drafter, tmp_path / "notes")
    (tmp_path / "notes" / "thesis").mkdir()
    tiny_target().model.save_pretrained(tmp_path / "target")
    (tmp_path / "target" / "generation_config.json").unlink()
    config.write_text("{}")
    for name, lost in (
        ("web", "config.json"),
        ("target", "config.json, model.safetensors"),
        ("notes", "thesis"),
    ):
        before = sorted(path.name for path in (tmp_path / name).iterdir())
        with pytest.raises(ValueError, match=f"free to replace: .*{name} with {lost}"):
            save_drafter(drafter, tmp_path / name)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == before
    (tmp_path / "empty").mkdir()
    save_drafter(drafter, tmp_path / "empty")
    (tmp_path / "empty" / "history.json").write_text("[]")  # training leaves one
    save_drafter(drafter, tmp_path / "empty")


def test_a_link_stays_a_link_and_the_working_directory_where_it_is(
    tmp_path, monkeypatch
):
    drafter, link = tiny_drafter(tiny_target()), tmp_path / "link"
    (tmp_path / "there").mkdir()
    link.symlink_to(tmp_path / "there")
    for _ in range(2):
        save_drafter(drafter, link)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]
    monkeypatch.chdir(link)
    for place in (".", tmp_path / "there"):
        with pytest.raises(ValueError, match=r"free to replace: .*working directory"):
            save_drafter(drafter, place)
    monkeypatch.setenv("HOME", str(tmp_path))
    save_drafter(drafter, "~/mine")
    assert load_drafter("~/mine", tiny_target()).spec == drafter.spec
    assert (tmp_path / "mine" / "model.safetensors").is_file()


def test_weights_are_as_readable_as_other_files(tmp_path):
    save_drafter(tiny_drafter(tiny_target()), tmp_path / "drafter")
    (tmp_path / "mine").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "drafter").iterdir()}
    assert modes == {(tmp_path / "mine").stat().st_mode}


def test_a_borrowed_table_keeps_its_dtype_in_the_file(tmp_path):
    """DeepSpec's files hold the target's tables: float32 beside a bfloat16 drafter."""
    target = tiny_target()
    drafter = tiny_drafter(target).to(dtype=torch.bfloat16)
    save_drafter(drafter, tmp_path / "drafter", layout="deepspec")
    stored = load_file(tmp_path / "drafter" / "model.safetensors")
    assert stored["lm_head.weight"].equal(target.lm_head)
    loaded = load_drafter(tmp_path / "drafter", target)  # float32 holds both
    assert loaded.own_embedding.equal(target.embedding)
    assert loaded.backbone.norm.weight.equal(drafter.backbone.norm.weight.float())


@pytest.mark.parametrize("tied", [True, False])
def test_target_with_and_without_tied_embedding(tied, tmp_path):
    """C14: a tied file has no lm_head; text and drafts survive saving and loading."""
    from safetensors.torch import load_file

    target = tiny_target(tie_word_embeddings=tied)
    target.model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert ("lm_head.weight" in names) != tied
    loaded = load_target(tmp_path)
    assert loaded.lm_head.equal(loaded.embedding) == tied
    assert loaded.lm_head.equal(target.lm_head)
    texts = [
        autoregressive(t, [1, 2, 3], max_new_tokens=32).tokens for t in (target, loaded)
    ]
    assert texts[0] == texts[1]
    drafter = tiny_drafter(loaded)
    hidden = torch.ones(24)
    assert (drafter.unembed(hidden) - loaded.lm_head @ hidden).abs().max() < 1e-5


def test_a_drafter_with_tied_embeddings_unembeds_with_its_own(tmp_path):
    """transformers leaves a tied LM head out of the file: it is the embedding."""
    source = GOLDEN / "deepspec_vanilla"
    target = load_target(source / "target")
    weights = load_file(source / "drafter" / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    config = json.loads((source / "drafter" / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"tie_word_embeddings": True})
    )
    drafter = load_drafter(tmp_path, target)
    hidden = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    expected = hidden @ weights["embed_tokens.weight"].T
    assert torch.allclose(drafter.unembed(hidden), expected, atol=1e-5)
