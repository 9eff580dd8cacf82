"""For teachers: hand out the notebooks without answers, and see who solved what.

    python notebooks/teach.py student handout            # all, into handout/
    python notebooks/teach.py student handout 01 05      # these
    python notebooks/teach.py report returned            # every notebook below it
    python notebooks/teach.py report returned --csv marks.csv

The student version has no answers in words and no outputs, so that no prediction is
spoilt. A report looks at exercises alone: of all other cells it runs the imports and
definitions, so that a class takes seconds a notebook and not half an hour.

Students' code runs in a process of its own, with limits on time and memory, in an
empty folder. That keeps an endless loop from stopping the report. It is no prison:
code that means harm can still do it, and a student who wants to can fake a mark.
"""

import argparse
import ast
import csv
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from notebooks import build

ANSWER = "*Your answer:*"
MODULE = re.compile(r"^from (dsparkref\.lab\.exercises\.\w+) import EXERCISES", re.M)
FUNCTION = re.compile(r"^def (\w+)\(", re.M)
# What is kept of a cell that is no exercise.
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
# Beside those of `lab.checks.Feedback`.
BROKEN, TOO_LONG = "broken", "too long"
SECONDS, GIGABYTES = 60, 4
MARKS = {"correct": "✓", "wrong": "✗", "not attempted": "·"}


@dataclass(frozen=True)
class Mark:
    """What came of one exercise in one student's notebook."""

    # the file, relative to the folder of the report
    notebook: str
    # name of the function to write
    exercise: str
    # correct, wrong, not attempted, broken or too long
    status: str
    # the hint that the student saw, or the error
    message: str


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    student = commands.add_parser("student", help="write the students' version")
    student.add_argument("folder", type=Path, help="a new or empty folder")
    student.add_argument("numbers", nargs="*", metavar="NN", help="default: all")
    report = commands.add_parser("report", help="say which exercises are solved")
    report.add_argument("folder", type=Path, help="searched for *.ipynb at any depth")
    report.add_argument("--csv", type=Path, help="write all marks and hints here")
    report.add_argument("--seconds", type=int, default=SECONDS, help="per notebook")
    options = parser.parse_args()
    if options.command == "student":
        hand_out(options.folder, options.numbers)
    else:
        write_report(options.folder, options.csv, options.seconds)


def hand_out(folder: Path, numbers: list[str]) -> None:
    """Write the students' version of the notebooks; nothing is overwritten."""
    sources = [s for s in sorted(build.SOURCES.glob("[0-9][0-9]_*.py"))
               if not numbers or s.name[:2] in numbers]  # fmt: skip
    if not sources:
        sys.exit(f"no notebook has the number {', '.join(numbers)}")
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} must be empty: expected a new folder for the handout.")
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        path = folder / f"{source.stem}.ipynb"
        nbformat.write(student_version(build.read_source(source)), path)
        print(path)


def student_version(notebook: NotebookNode) -> NotebookNode:
    """Put a place to write in place of each answer; code cells have no outputs."""
    for cell in notebook.cells:
        if "solution" in cell.metadata.get("tags", []):
            cell.source = ANSWER
            cell.metadata.tags.remove("solution")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def write_report(folder: Path, table: Path | None, seconds: int) -> None:
    """Mark every notebook below a folder, and show who solved what."""
    paths = sorted(
        path for path in folder.rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    )  # fmt: skip
    if not paths:
        sys.exit(f"{folder} must hold notebooks: expected *.ipynb, got none.")
    marks = [mark for path in paths for mark in marked(path, folder, seconds)]
    if table is not None:
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Mark.__annotations__)
            writer.writerows(vars(mark).values() for mark in marks)
    Console().print(summary(marks))


def summary(marks: list[Mark]) -> Table:
    """Return a line for each notebook: how many are solved, and each exercise."""
    table = Table("notebook", "solved", "exercises", box=None)
    by_notebook: dict[str, list[Mark]] = {}
    for mark in marks:
        by_notebook.setdefault(mark.notebook, []).append(mark)
    for notebook, own in by_notebook.items():
        solved = sum(mark.status == "correct" for mark in own)
        shown = [f"{MARKS.get(m.status, m.status)} {m.exercise}" for m in own]
        table.add_row(notebook, f"{solved}/{len(own)}", "  ".join(shown))
    return table


def marked(path: Path, folder: Path, seconds: int) -> Iterator[Mark]:
    """Run one notebook's exercises apart from us, and yield a mark for each."""
    shown = str(path.relative_to(folder))
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:
        yield Mark(shown, "", BROKEN, f"not a notebook: {type(error).__name__}")
        return
    module, pieces = program(notebook)
    if module is None:
        yield Mark(shown, "", BROKEN, "no exercises of this course in it")
        return
    names = [name for name, _ in pieces if name]
    found = run_apart(module, pieces, seconds)
    for name in names:
        yield Mark(shown, name, *found.get(name, (TOO_LONG, f"over {seconds} s")))


def program(notebook: NotebookNode) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the exercises' module, and (exercise or "", code) in the cells' order.

    An exercise is told by its function's name, so that lost tags do no harm.
    """
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    found = MODULE.search("\n".join(sources))
    if found is None:
        return None, []
    pieces = []
    for source in sources:
        checked = re.search(r'EXERCISES\["(\w+)"\]\.check', source)
        name = checked.group(1) if checked else ""
        pieces.append((name, source if name else definitions(source)))
    return found.group(1), pieces


def definitions(source: str) -> str:
    """Return a cell's imports, functions and classes; nothing if it cannot be read."""
    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return ""
    kept = [node for node in tree.body if isinstance(node, DEFINITIONS)]
    return ast.unparse(ast.Module(kept, type_ignores=[]))


# Runs in the other process. Marks go out behind a word that the students' code has
# not seen, and each as soon as it is known: what came before a time-out counts.
RUNNER = """
import contextlib, io, json, sys
task = json.loads(sys.stdin.read())
from importlib import import_module
exercises = import_module(task["module"]).EXERCISES
out, space = sys.stdout, {"__name__": "__main__"}
for name, source in task["pieces"]:
    status = None
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(source, name or "cell", "exec"), space)
        except BaseException as error:
            status = "broken", f"{type(error).__name__}: {error}"
        if name in exercises and name in space:
            try:
                feedback = exercises[name].check(space[name])
                status = feedback.status, feedback.message
            except BaseException as error:
                status = "broken", f"{type(error).__name__}: {error}"
    if name in exercises:
        status = status or ("not attempted", "there is no such function")
        print(task["word"], json.dumps([name, *status]), file=out, flush=True)
"""


def run_apart(
    module: str, pieces: list[tuple[str, str]], seconds: int
) -> dict[str, tuple[str, str]]:
    """Run the pieces in a process with limits; return exercise -> status, message."""
    word = secrets.token_hex(8)
    task = json.dumps({"module": module, "pieces": pieces, "word": word})
    environment = os.environ | build.kernel_environment() | {"MPLBACKEND": "agg"}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            preexec_fn=_limit_memory if os.name == "posix" else None,
            text=True,
        )
        try:
            printed, _ = process.communicate(task, timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
    lines = [line for line in printed.splitlines() if line.startswith(word)]
    rows = [json.loads(line.removeprefix(word)) for line in lines]
    return {name: (status, message) for name, status, message in rows}


def _limit_memory() -> None:
    import resource

    limit = GIGABYTES << 30
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    main()
