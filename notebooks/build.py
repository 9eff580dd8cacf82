"""Make each notebook from its source, run it, and keep the outputs.

    python notebooks/build.py            # all of them
    python notebooks/build.py 01 05      # these

The source is ``src/NN_name.py`` (py:percent). What comes out is the same on every
machine: fixed cell ids, no times, no widgets (their static twins stay). A cell that
fails or warns stops the build, and the notebook stays as it was.
"""

import argparse
import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER / "src"
# Shown where a front end is alive; the picture beside it is what is kept.
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}
SECONDS_PER_CELL = 300


def main() -> None:
    """Build the notebooks that the command line names by number."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("numbers", nargs="*", metavar="NN", help="default: all")
    numbers = parser.parse_args().numbers
    sources = [
        path
        for path in sorted(SOURCES.glob("[0-9][0-9]_*.py"))
        if not numbers or path.name[:2] in numbers
    ]
    if not sources:
        sys.exit(f"no source in {SOURCES.name}/ has the number {', '.join(numbers)}")
    os.environ.pop("DSPARKREF_PAIR", None)  # the outputs kept are the tiny pair's
    os.environ.update(kernel_environment())
    for source in sources:
        notebook = cleaned(executed(read_source(source)))
        nbformat.write(notebook, notebook_path(source))
        print(f"{source.name} -> {notebook_path(source).name}")


def kernel_environment() -> dict[str, str]:
    """Return what a kernel needs: this checkout's package, no network, no bars."""
    path = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }


def notebook_path(source: Path) -> Path:
    """Return the notebook's place: beside the folder of its source."""
    return source.parents[1] / f"{source.stem}.ipynb"


def read_source(source: Path) -> NotebookNode:
    """Return the notebook that a source describes, without outputs."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
    return notebook


def executed(notebook: NotebookNode) -> NotebookNode:
    """Run all cells in order in a fresh kernel, and return the notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        record_timing=False,
        coalesce_streams=True,
    )
    return client.execute()


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """Drop what holds for one machine or one session; refuse what is a warning."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                sys.exit(f"a cell warns:\n{cell.source}\n\n{output.text}")
            output.get("data", {}).pop(WIDGET, None)
    nbformat.validate(notebook)
    return notebook


if __name__ == "__main__":
    main()
