"""Every notebook: in step with its source, readable, and still true when run again."""

import os
import re
import statistics
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from pretend_gpu import needs_registration, run_there
from tiny_pair import random_drafter, random_target

from dsparkref import load_pair, load_target, save_drafter
from dsparkref.lab.checks import CORRECT, NOT_ATTEMPTED
from notebooks import build

SOURCES = sorted(build.SOURCES.glob("[0-9][0-9]_*.py"))
# Not compared, by nbval and by us.
IGNORED = "nbval-ignore-output"
# Longer than other cells by design.
LONG = "build-it-once"
EXERCISE = re.compile(r"^def (\w+)\(", re.M)
# Words of a moment or of a machine.
OF_THE_MOMENT = re.compile(
    r"\d ?(?:seconds?|m?s)\b|it/s|%\||\r|0x[0-9a-f]{6}|\bcuda\b|/tmp/|site-packages"
    r"|^<Figure|^Text\(|^\[?<matplotlib",
    re.M,
)

by_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def stored(source: Path) -> nbformat.NotebookNode:
    return nbformat.read(build.notebook_path(source), as_version=4)


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def code_lines(source: str) -> list[str]:
    """Return a cell's lines, without those that are blank, remarks or imports."""
    source = re.sub(r"^(from|import) .*?(\([^)]*\))?$", "", source, flags=re.M)
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """Return the text of a cell's outputs."""
    return [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    ]


def test_there_are_notebooks_and_no_strays():
    assert SOURCES
    kept = sorted(build.FOLDER.glob("*.ipynb"))
    assert kept == [build.notebook_path(source) for source in SOURCES]


@by_source
def test_the_notebook_is_in_step_with_its_source(source):
    def described(notebook):
        return [(c.cell_type, c.id, c.source, tags(c)) for c in notebook.cells]

    notebook = stored(source)
    assert described(notebook) == described(build.read_source(source)), (
        "run `python notebooks/build.py`"
    )
    assert notebook.metadata == build.METADATA  # no kernel of one machine, no widgets


@by_source
def test_all_cells_ran_in_order_without_a_warning(source):
    cells = code(stored(source))
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "stream", "display_data", "execute_result",
    }  # fmt: skip
    assert all(output.get("name") != "stderr" for output in outputs)
    assert all(build.WIDGET not in output.get("data", {}) for output in outputs)


@by_source
def test_nothing_compared_depends_on_the_machine(source):
    for cell in code(stored(source)):
        if IGNORED not in tags(cell):
            for text in texts(cell):
                assert not OF_THE_MOMENT.search(text), text


@pytest.mark.parametrize(
    "text",
    ["took 3 seconds", "12 ms", "0.4s", "10%|#", "<Figure size 640x480>", "cuda:0"],
)
def test_words_of_the_moment_are_found(text):
    assert OF_THE_MOMENT.search(text)


@by_source
def test_the_notebook_has_the_shape_of_the_others(source):
    notebook = stored(source)
    assert 25 <= len(notebook.cells) <= 45
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert 900 <= sum(len(text.split()) for text in prose) <= 1600
    assert re.match(rf"# {source.stem[:2]} · .+\?\n", prose[0])  # the title asks
    whole = "\n".join(prose)
    for part in ("You will be able to", "**Predict**", "## Build it once"):
        assert part in whole
    for part in ("**Paper**", "**Why**", "**Differs**", "## Exercises", "## Recap"):
        assert part in whole
    assert IGNORED in tags(code(notebook)[0])  # versions
    assert any("solution" in tags(cell) for cell in notebook.cells)


@by_source
def test_cells_are_short(source):
    lengths = []
    for cell in code(stored(source)):
        lines = code_lines(cell.source)
        assert 1 <= len(lines) <= (15 if LONG in tags(cell) else 6), cell.source
        lengths.append(len(lines))
    assert 3 <= statistics.median(lengths) <= 6


@by_source
def test_pictures_come_with_their_numbers(source):
    pictures = 0
    for cell in code(stored(source)):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                title = output.data["text/plain"]
                printed = "".join(o.get("text", "") for o in cell.outputs)
                assert printed.startswith(title + "\n") and re.search(r"\d", printed)
                pictures += 1
    assert pictures


@by_source
def test_the_exercises_are_those_of_the_package_and_untouched(source):
    found = exercises(source)
    cells = [cell for cell in code(stored(source)) if "exercise" in tags(cell)]
    names = [EXERCISE.search(cell.source).group(1) for cell in cells]
    assert names == list(found)
    for cell in cells:
        assert texts(cell)[0].startswith(NOT_ATTEMPTED)


def exercises(source: Path):
    name = source.stem.partition("_")[2]
    return import_module(f"dsparkref.lab.exercises.{name}").EXERCISES


@by_source
def test_the_outputs_come_out_again(source):
    """As shipped, in a fresh kernel, every text compared (nbval)."""
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env"]
    command += ["--nbval-cell-timeout=300", "--nbval-kernel-startup-timeout=120"]
    command += ["-o", "addopts=", "-p", "no:cacheprovider", "-q", "--tb=short"]
    run = subprocess.run(
        [*command, build.notebook_path(source)],
        cwd=build.FOLDER,
        env=os.environ | build.kernel_environment(),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


@pytest.mark.slow
@by_source
def test_with_the_solutions_every_exercise_is_correct(source, monkeypatch):
    notebook = with_solutions(build.read_source(source))
    notebook = run_in(build.kernel_environment(), notebook, monkeypatch)
    solved = [cell for cell in code(notebook) if "exercise" in tags(cell)]
    assert [texts(cell)[0].split(":")[0] for cell in solved] == [CORRECT] * len(solved)


def with_solutions(notebook):
    """Put the package's functions where a learner's would be."""
    for cell in notebook.cells:
        if "exercise" in tags(cell):
            name = EXERCISE.search(cell.source).group(1)
            imports = re.findall(
                r"^from dsparkref\.lab\.exercises.*$", cell.source, re.M
            )
            exercise = f'EXERCISES["{name}"]'
            lines = [f"{name} = {exercise}.reference", f"{exercise}.check({name})"]
            cell.source = "\n".join(imports + lines)
    return notebook


@needs_registration
@pytest.mark.slow
@by_source
def test_with_the_solutions_it_runs_on_a_pretended_gpu(source, tmp_path):
    notebook = with_solutions(build.read_source(source))
    script = tmp_path / source.name
    lines = "\n".join(cell.source for cell in code(notebook))
    lines = re.sub(r"^(EXERCISES.*\.check\(\w+\))$", r"print(\1)", lines, flags=re.M)
    # Torch lends no generator for a device that is not its own.
    lines = lines.replace("torch.Generator(target.device)", "None  # ")
    script.write_text(lines, encoding="utf-8")
    printed = run_there(script, folder=build.FOLDER).splitlines()
    solved = [line for line in printed if line.startswith(f"{CORRECT}:")]
    assert len(solved) == len(exercises(source))


@pytest.mark.slow
@by_source
def test_it_runs_on_a_pair_of_the_readers_own(source, tmp_path, monkeypatch):
    pair = write_deepspec_pair(tmp_path)
    assert load_pair(pair).drafter.head_type == "gated"
    environment = build.kernel_environment() | {"DSPARKREF_PAIR": pair}
    notebook = run_in(environment, build.read_source(source), monkeypatch)
    printed = "".join(text for cell in code(notebook) for text in texts(cell))
    assert "gated" in printed


def run_in(environment, notebook, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return build.cleaned(build.executed(notebook))


def write_deepspec_pair(folder: Path) -> str:
    """Write a random Qwen3, and a random drafter for it as DeepSpec releases them."""
    target = random_target(load_target("tiny").tokenizer)
    target.model.save_pretrained(folder / "target")
    target.tokenizer.save_pretrained(folder / "target")
    drafter = random_drafter(target, "gated", block_size=5)
    save_drafter(drafter, folder / "drafter", layout="deepspec")
    return f"{folder / 'target'},{folder / 'drafter'}"
