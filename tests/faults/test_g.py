"""Section G of tests/FAULTS.md: cells run twice, no widgets installed, little memory.

One run of each notebook shows it: every cell stands twice, the kernel finds no
ipywidgets, and a last cell says how much memory it took.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from matplotlib import pyplot

from dsparkref.lab.figures import curve_figure
from dsparkref.lab.pictures import Picture
from dsparkref.lab.widgets import Explorer
from notebooks import build

SOURCES = sorted(build.SOURCES.glob("[0-9][0-9]_*.py"))
# Most a notebook may hold, in bytes; notebooks/README.md says so.
MEMORY = 2 * 2**30
PEAK = "from dsparkref.analysis.speed import peak_memory\nprint(peak_memory())"
# A finder that says no, in every Python that starts with this folder on its path.
NO_WIDGETS = """
import sys

class NoWidgets:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ipywidgets":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoWidgets())
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_cells_twice_without_widgets_within_the_memory(source, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(NO_WIDGETS)
    for name, value in build.kernel_environment().items():
        monkeypatch.setenv(name, value)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", path)
    notebook = build.read_source(source)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            again = nbformat.from_dict(dict(cell))
            again.id = f"{cell.id}-again"
            again.metadata = nbformat.from_dict({"tags": ["raises-exception"]})
            cells.append(again)
    cells.append(nbformat.v4.new_code_cell(PEAK))
    notebook.cells = cells
    ran = [cell for cell in build.executed(notebook).cells if cell.cell_type == "code"]
    *ran, last = ran
    for first, second in zip(ran[::2], ran[1::2], strict=True):
        assert refused(second) or said_again(first, second), first.source
    assert int(outputs(last)[0]) < MEMORY


def said_again(first, second) -> bool:
    """Whether a cell said the same twice, or as much where it tells the time."""
    if any(output.output_type == "error" for output in second.outputs):
        return False
    if "nbval-ignore-output" in first.metadata.get("tags", ()):
        return len(outputs(first)) == len(outputs(second))
    return outputs(first) == outputs(second)


def refused(cell) -> bool:
    """Whether a cell that takes a step was told, in our voice, that it took it before.

    A session that has verified a block wants it committed before the next.
    """
    errors = [x for x in cell.outputs if x.output_type == "error"]
    said = [re.search(r" must .+: expected .+, got ", x.evalue) for x in errors]
    return bool(said) and all(said)


README = build.FOLDER.parent / "README.md"


@pytest.mark.slow
def test_the_readmes_table_comes_out_again(tmp_path):
    """G14: the command that the README names prints its numbers (two rows of them).

    Other machines round otherwise, and then replies part: 5 % is left for that.
    """
    row = re.compile(r"^\| (dflash|rnn) " + 4 * r"\| ([\d.]+) " + r"\|", re.M)
    said = {name: numbers for name, *numbers in row.findall(README.read_text("utf-8"))}
    assert said.keys() == {"dflash", "rnn"}
    command = ["evaluate", "--drafters", "dflash,rnn", "--json", "n.json"]
    run = subprocess.run(
        [sys.executable, "-m", "dsparkref", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(build.FOLDER.parent)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "n.json").read_text())["decoding"]
    for name, numbers in said.items():
        domains = ("math", "code", "chat", "all")
        lengths = [found[name][domain]["accepted_length"] for domain in domains]
        assert lengths == pytest.approx(list(map(float, numbers)), rel=0.05), name


def outputs(cell) -> list[str]:
    """Return what a cell says as text; pictures have their numbers beside them."""
    return [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
        if output.get("name") != "stderr"  # others' libraries miss their widgets
    ]


def test_without_widgets_the_package_is_imported(tmp_path):
    """G7: and the finder used above does hide them."""
    (tmp_path / "sitecustomize.py").write_text(NO_WIDGETS)
    program = "import dsparkref, dsparkref.lab.widgets as w\n"
    program += (
        "try:\n    import ipywidgets\nexcept ModuleNotFoundError:\n    print('none')"
    )
    path = os.pathsep.join([str(tmp_path), str(build.FOLDER.parent)])
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert run.stdout == "none\n", run.stderr


def test_a_slider_moved_five_times_draws_five_times_and_no_more():
    """G9: one callback per change, however often the cell was run; no figure stays."""
    drawn = []

    def draw(numbers):
        drawn.append(numbers)
        figure = curve_figure({"parallel": numbers}, "falls", ylabel="share")
        return Picture(figure, f"falls\n{numbers}")

    table = {(n,): [1.0, n / 10] for n in range(1, 7)}
    for _ in range(5):
        explorer = Explorer(table, draw, {"n": range(1, 7)})
        explorer._repr_mimebundle_()
    slider, *_ = explorer.widget.children
    before = len(drawn)
    for n in range(2, 7):
        slider.value = n
        slider.value = n  # no change, no call
    assert drawn[before:] == [[1.0, n / 10] for n in range(2, 7)]
    assert pyplot.get_fignums() == []


def test_the_documented_flags_are_nbvals_own():
    """G4: the command that runs the notebooks here names flags this nbval accepts."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-o", "addopts=", "--nbval", "--help"],
        cwd=build.FOLDER,
        capture_output=True,
        text=True,
    )
    text = (Path(__file__).parents[1] / "test_notebooks.py").read_text("utf-8")
    flags = set(re.findall(r"--nbval[\w-]*", text))
    assert flags and [flag for flag in flags if flag not in run.stdout] == []
