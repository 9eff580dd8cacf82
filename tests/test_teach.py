"""The teacher's tools: a handout without answers, a report of who solved what."""

import csv
import re
import subprocess
import sys

import nbformat
import pytest

from notebooks import build, teach

SOURCES = sorted(build.SOURCES.glob("[0-9][0-9]_*.py"))
FIRST = build.SOURCES / "01_suffix_decay.py"


def with_answer(notebook, name, body):
    """Write a function's body where its dots are."""
    for cell in notebook.cells:
        if re.search(rf"^def {name}\(", cell.source, re.M):
            assert cell.source.count("    return ...") == 1
            cell.source = cell.source.replace("    return ...", body)
    return notebook


def handed_in(folder, student, answers):
    """Write one student's notebook, with some exercises done."""
    notebook = teach.student_version(build.read_source(FIRST))
    for name, body in answers.items():
        with_answer(notebook, name, body)
    (folder / student).mkdir()
    nbformat.write(notebook, folder / student / "01_suffix_decay.ipynb")


def marks_of(folder, seconds=60):
    found = {}
    for path in sorted(folder.rglob("*.ipynb")):
        for mark in teach.marked(path, folder, seconds):
            found[path.parent.name, mark.exercise] = mark
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_students_version_gives_nothing_away(source):
    original = build.read_source(source)
    answers = [
        cell.source
        for cell in original.cells
        if "solution" in cell.metadata.get("tags", [])
    ]
    notebook = teach.student_version(build.read_source(source))
    whole = nbformat.writes(notebook)
    assert answers and teach.ANSWER in whole
    assert not any(
        answer in cell.source for cell in notebook.cells for answer in answers
    )
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert len(notebook.cells) == len(original.cells)  # all else is there
    nbformat.validate(notebook)


def test_a_handout_is_never_written_over(tmp_path):
    teach.hand_out(tmp_path / "new", ["01"])
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["01_suffix_decay.ipynb"]
    with pytest.raises(SystemExit, match="must be empty"):
        teach.hand_out(tmp_path / "new", ["01"])
    with pytest.raises(SystemExit, match="no notebook has the number 99"):
        teach.hand_out(tmp_path / "other", ["99"])


def test_each_kind_of_answer_gets_its_mark(tmp_path):
    right = "    return torch.cumprod(confidence, dim=-1)"
    handed_in(tmp_path, "ada", {"survival_of": right})
    handed_in(tmp_path, "bob", {"survival_of": "    return confidence"})
    handed_in(tmp_path, "cyd", {"survival_of": "    return confidence +"})
    handed_in(tmp_path, "dan", {"survival_of": "    return missing(confidence)"})
    marks = marks_of(tmp_path)
    status = {who: marks[who, "survival_of"].status for who in ("ada", "bob", "cyd")}
    assert status == {"ada": "correct", "bob": "wrong", "cyd": "broken"}
    assert "SyntaxError" in marks["cyd", "survival_of"].message
    assert marks["dan", "survival_of"].status == "wrong"
    assert "NameError" in marks["dan", "survival_of"].message
    others = {mark.status for key, mark in marks.items() if key[1] != "survival_of"}
    assert others == {"not attempted"}


def test_students_code_cannot_stop_the_report(tmp_path):
    handed_in(tmp_path, "endless", {"conditional_of": "    while True: pass"})
    handed_in(tmp_path, "leaves", {"survival_of": "    raise SystemExit(0)"})
    faked = "    print('correct'); import sys; sys.stdout.write('correct'); return 1"
    handed_in(tmp_path, "prints", {"survival_of": faked})
    marks = marks_of(tmp_path, seconds=25)
    # What was known before the endless loop counts.
    assert marks["endless", "survival_of"].status == "not attempted"
    assert marks["endless", "conditional_of"].status == teach.TOO_LONG
    assert marks["endless", "decoded_acceptance"].status == teach.TOO_LONG
    assert marks["leaves", "survival_of"].status in (teach.BROKEN, "wrong")
    assert marks["leaves", "conditional_of"].status == "not attempted"
    assert marks["prints", "survival_of"].status == "wrong"


def test_files_that_are_no_notebooks_are_named(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.ipynb").write_text("{", encoding="utf-8")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "x" / "b.ipynb")
    found = [
        next(teach.marked(path, tmp_path, 5))
        for path in sorted(tmp_path.rglob("*.ipynb"))
    ]
    assert [mark.status for mark in found] == [teach.BROKEN, teach.BROKEN]
    assert "not a notebook" in found[0].message
    assert "no exercises" in found[1].message


def test_the_command_writes_a_table_of_all_marks(tmp_path):
    right = "    import torch\n    return torch.cumprod(confidence, dim=-1)"
    handed_in(tmp_path, "ada", {"survival_of": right})
    command = [sys.executable, build.FOLDER / "teach.py", "report", tmp_path]
    run = subprocess.run(
        [*command, "--csv", tmp_path / "marks.csv"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "ada/01_suffix_decay.ipynb" in run.stdout and "1/3" in run.stdout
    with (tmp_path / "marks.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["correct"] + ["not attempted"] * 2
