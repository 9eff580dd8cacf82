"""H: installing, and what runs where."""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch
from tiny_models import (
    HEADS,
    ScriptedDrafter,
    greedy_reply,
    random_ids,
    tiny_drafter,
    tiny_target,
)

from dsparkref import (
    ConfidenceThreshold,
    Proposal,
    aligned_target_logits,
    block_loss,
    decode_cycles,
    generate,
    generate_batch,
    supervised_positions,
)
from dsparkref.lab.course import versions
from notebooks import build

ROOT = Path(__file__).resolve().parents[2]
PROMPT = [3, 14, 15, 9, 2, 6]
SOURCES = sorted(build.SOURCES.glob("[0-9][0-9]_*.py"))


# --- devices -------------------------------------------------------------------------


class Elsewhere(ScriptedDrafter):
    """Hands over one of its tensors on another device."""

    moved = "tokens"

    def propose(self, target_hidden, anchor, **options):
        tables = vars(super().propose(target_hidden, anchor, **options))
        return Proposal(**tables | {self.moved: tables[self.moved].to("meta")})


@pytest.mark.parametrize("moved", ["tokens", "p_draft"])
def test_a_proposal_on_another_device_is_refused(moved, no_shape_checks):
    """H1: both devices are named."""
    target = tiny_target()
    drafter = Elsewhere(PROMPT + greedy_reply(target, PROMPT, 20), 99)
    drafter.moved = moved
    pattern = f"proposal.{moved} must be on the target's device: expected cpu, got meta"
    with pytest.raises(ValueError, match=pattern):
        generate(target, drafter, PROMPT, max_new_tokens=9)


def test_a_prompt_without_values_is_refused(no_shape_checks):
    """H1: from a device with data a prompt is moved; "meta" has none."""
    target = tiny_target()
    prompt = torch.tensor(PROMPT, device="meta")
    with pytest.raises(ValueError, match=r"prompt_ids must hold values: .* got meta"):
        generate(target, tiny_drafter(target), prompt, max_new_tokens=9)


# --- dtypes --------------------------------------------------------------------------

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("own", [False, True], ids=["borrowed", "own"])
@pytest.mark.parametrize("of_drafter", DTYPES)
@pytest.mark.parametrize("of_target", DTYPES)
def test_dtypes_mix_and_laws_stay_wide(of_target, of_drafter, own, no_shape_checks):
    """H4: any target with any drafter, on a CPU; what is divided is float32."""
    target = tiny_target(dtype=of_target)
    for head in HEADS:
        drafter = tiny_drafter(target, head, owns_embedding=own, owns_lm_head=own)
        drafter = drafter.to(of_drafter)
        options = {"max_new_tokens": 6, "temperature": 1.0, "generator": 0}
        policy = ConfidenceThreshold(0.1, on="survival")
        options |= {"policy": policy, "keep_tensors": True}
        for trace in decode_cycles(target, drafter, PROMPT, **options):
            tables = trace.p_draft, trace.p_target, trace.proposal.confidence
            assert {table.dtype for table in tables} == {torch.float32}
        assert trace.index > 0
        rows = generate_batch(target, drafter, [PROMPT, [1, 2]], max_new_tokens=3)
        assert [len(row.tokens) for row in rows] == [3, 3]
        assert loss_of(target, drafter).dtype == torch.float32


def loss_of(target, drafter):
    """The training loss of two blocks, from half precision or not."""
    ids, anchors = random_ids(1, 8), torch.tensor([[2, 4]])
    with torch.no_grad():
        read = target.forward(ids, drafter.spec.target_layer_ids)
        output = drafter.training_forward(ids, read.hidden, anchors)
    loss_mask = torch.ones(1, 8, dtype=torch.bool)
    supervised = supervised_positions(loss_mask, anchors, drafter.block_size)
    laws = aligned_target_logits(read.logits, anchors, drafter.block_size)
    loss = block_loss(output, laws, supervised)
    assert all(term.isfinite() for term in vars(loss).values())
    return loss.total


# --- installing ----------------------------------------------------------------------


def test_a_cpu_build_brings_no_cuda_packages():
    """H5: what `make` or the README's lines made of this very environment."""
    if torch.version.cuda is not None:
        pytest.skip("a CUDA build")
    names = {found.metadata["Name"] or "" for found in distributions()}
    assert [name for name in names if name.startswith("nvidia-")] == []


def test_the_readme_says_how_to_install_for_a_cpu_and_for_a_gpu():
    """H5: PyTorch's CPU index, the Makefile's version, sizes, and the other way."""
    text = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (version,) = re.findall(r"^TORCH \?= (torch==\S+)$", makefile, re.M)
    rows = re.findall(r"^\| (Linux[^|]+) \| (.+) \|$", text, re.M)
    commands = {where: row.split("<br>") for where, row in rows}
    cpu = commands["Linux, CPU only"]
    assert f'"{version}" --extra-index-url' in cpu[1]
    assert cpu[1].rstrip("`").endswith("/whl/cpu")
    assert "without the second line" in commands["Linux with an NVIDIA GPU, macOS"][0]
    assert re.search(r"downloads about [\d.]+ GB", text)


# --- the notebooks' first cell -------------------------------------------------------


def first_cell(source: Path) -> str:
    cells = build.read_source(source).cells
    return next(cell.source for cell in cells if cell.cell_type == "code")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_kernel_without_the_package_is_told_what_to_do(source, monkeypatch):
    """H7: the interpreter that is running, and the line that installs into it."""
    monkeypatch.setitem(sys.modules, "dsparkref.lab.course", None)
    with pytest.raises(ImportError) as caught:
        exec(first_cell(source), {})
    assert str(caught.value).startswith(f"{sys.executable}: %pip install -e ")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_first_cell_prints_the_versions(source, capsys):
    exec(first_cell(source), {})
    assert versions() in capsys.readouterr().out
    for package in ("dsparkref", "torch", "transformers"):
        assert re.search(rf"\b{package} \d", versions())
