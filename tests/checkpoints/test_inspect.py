"""What a checkpoint holds, told from its config and headers alone."""

import json
import re

import pytest
import torch
from tiny_models import GOLDEN, tiny_drafter, tiny_target
from typer.testing import CliRunner

from dsparkref import cli, describe, load_drafter, load_target, save_drafter
from dsparkref.checkpoints import weights
from dsparkref.checkpoints.inspect import inspect_source
from dsparkref.draft.describe import head_cost

LAYOUTS = {
    "deepspec_dflash": ("deepspec", "5 drafts", "layers 0, 2, 4 of 6"),
    "deepspec_vanilla": ("deepspec", "5 drafts", "layers 0, 2, 4 of 6"),
    "domino": ("domino", "6 drafts", "layers 0, 2, 4 of 6"),
    "modelopt_vanilla": ("modelopt", "5 drafts", "layers 1, 3 of 6"),
    "speculators_dspark": ("speculators", "5 drafts", "layers 0, 2, 4 ("),
    "zlab_dflash": ("z-lab", "5 drafts", "layers 1, 3 of 6"),
}


@pytest.fixture
def no_values(monkeypatch):
    """Reading a tensor's values is an error."""

    def read(*_):
        raise AssertionError("values were read")

    monkeypatch.setattr(weights, "read_tensors", read)
    monkeypatch.setattr("dsparkref.checkpoints.load.read_tensors", read)


@pytest.mark.parametrize("folder", LAYOUTS)
def test_headers_say_what_the_loaded_drafter_says(folder, no_values):
    source = GOLDEN / folder / "drafter"
    layout, drafts, taps = LAYOUTS[folder]
    facts = inspect_source(source)
    assert facts["layout"] == layout
    assert drafts in facts["block"] and taps in facts["taps"]


def test_headers_and_loaded_drafter_agree_in_words():
    for folder in ("domino", "speculators_dspark"):
        drafter = load_drafter(
            GOLDEN / folder / "drafter", load_target(GOLDEN / folder / "target")
        )
        assert describe(GOLDEN / folder / "drafter").endswith(drafter.describe())


def test_a_file_cut_off_behind_its_header_still_tells(tmp_path, no_values):
    """A file of the right length whose values are holes: nothing reads them."""
    save_drafter(tiny_drafter(tiny_target()), tmp_path / "d")
    path = tmp_path / "d" / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    path.write_bytes(whole[:header] + b"\xff" * (len(whole) - header))
    assert "Markov head" in describe(tmp_path / "d")


@pytest.mark.parametrize(
    ("head", "cost", "state"),
    [
        ("dflash", 0, 0),
        ("markov", 31 * 5, 0),
        ("gated", 31 * 5 + 5 * (24 + 5), 0),
        ("rnn", 31 * 5 + 15 * (24 + 10), 5),
        ("domino", 31 * 7 + 7 * (24 + 6) + 18 * (24 + 6), 6),
    ],
)
def test_the_cost_of_a_step_is_that_of_its_matrices(head, cost, state):
    """Multiply-adds counted by running; here, from the equations' shapes."""
    spec = tiny_drafter(tiny_target(), head).spec
    assert head_cost(spec) == (cost, state)


def test_describe_refuses_what_loading_refuses(tmp_path):
    source = GOLDEN / "domino" / "drafter"
    folder = tmp_path / "d"
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 2]
    (folder / "config.json").write_text(json.dumps(config))
    whole = (source / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole)
    with pytest.raises(ValueError, match=r"fc.weight must match .*\[32, 64\], got"):
        describe(folder)


def test_inspect_one_and_two(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    sources = [str(GOLDEN / name / "drafter") for name in ("zlab_dflash", "domino")]
    one = CliRunner().invoke(cli.app, ["inspect", sources[0]])
    assert one.exit_code == 0, one.output
    words = " ".join(one.output.split())
    assert "5 drafts per cycle; slot k predicts anchor+k, slot 0 dropped" in words
    assert "borrowed from the target: embedding, LM head" in words
    two = CliRunner().invoke(cli.app, ["inspect", *sources])
    assert two.exit_code == 0, two.output
    rows = {line.split()[0]: line for line in two.output.splitlines() if line.strip()}
    assert rows["layout"].split() == ["layout", "z-lab", "domino", "differs"]
    assert re.search(r"differs\s*$", rows["block"])
    assert "differs" not in rows["rotary"]
    three = CliRunner().invoke(cli.app, ["inspect", *sources, sources[0]])
    assert three.exit_code == 2
    assert "error: sources must fit side by side" in three.output


def test_a_hub_id_fetches_config_and_headers_alone(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub.utils import (
        SafetensorsFileMetadata,
        SafetensorsRepoMetadata,
        TensorInfo,
    )

    source = GOLDEN / "zlab_dflash" / "drafter"
    tensors = {
        name: TensorInfo(dtype="F32", shape=list(value.shape), data_offsets=(0, 0))
        for name, value in weights.read_headers(source).items()
    }
    file = SafetensorsFileMetadata(metadata={}, tensors=tensors)
    repo = SafetensorsRepoMetadata(
        metadata=None, sharded=False, weight_map={}, files_metadata={"a": file}
    )
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda *_: str(source / "config.json")
    )
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda *_: repo)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    assert describe("owner/name") == describe(source)


def test_meta_tensors_have_the_files_own_dtype():
    headers = weights.read_headers(GOLDEN / "domino" / "drafter")
    assert {value.dtype for value in headers.values()} == {torch.float32}
    assert all(value.is_meta for value in headers.values())
