"""tests/FAULTS.md is complete in itself: unique ids, known verdicts, real tests."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
VERDICTS = {"held", "mended", "n/a"}
HEADING = re.compile(r"^## ([A-H])\. ", re.M)
# Every entry of the list that was gone through; a row cannot get lost.
NUMBERS = {
    "A": (1, 3, 5, 7, 8, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21, 22),
    "B": (2, 4, 5, 7, 10, 11, 12, 13, 15, 16),
    "C": (1, 3, 5, 7, 8, 10, 11, 12, 14, 17, 18, 19, 20, 21),
    "D": (1, 3, 7, 9, 10, 11, 12, 13, 14, 15),
    "E": (2, 4, 5, 6, 8, 10, 11, 13),
    "F": (1, 3, 5, 6, 7),
    "G": (1, 3, 4, 5, 7, 8, 9, 11, 12, 14),
    "H": (1, 2, 4, 5, 7),
}
# Fields are split at " | ", which stands in no text of ours.
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*?) \| (.*?) \| (.*?) \|$", re.M)
TEST = re.compile(r"`([\w/.]+\.py)::(\w+)`")
GITHUB = re.escape("https://github.com/")
REPORT = re.compile(rf"^\[[^\]]+\]\({GITHUB}[^)]+\): [\w`]")


def index() -> str:
    return (TESTS / "FAULTS.md").read_text("utf-8")


def problems(text: str) -> list[str]:
    """Return what is wrong with an index of faults; an empty list where nothing is."""
    found = []
    rows = ROW.findall(text)
    lines = [x for x in text.splitlines() if re.match(r"\| [A-Z]\d", x)]
    if len(lines) != len(rows):
        found.append(f"{len(lines) - len(rows)} rows without four fields")
    for name, count in Counter(row[0] for row in rows).items():
        if count > 1:
            found.append(f"{name}: {count} rows")
    for name, report, verdict, tests in rows:
        if not REPORT.match(report):
            found.append(f"{name}: no report and a description")
        if verdict not in VERDICTS:
            found.append(f"{name}: verdict {verdict!r}")
        named = TEST.findall(tests)
        if verdict == "n/a" and not tests.strip():
            found.append(f"{name}: no reason")
        if verdict != "n/a" and not named:
            found.append(f"{name}: no test")
        found += [f"{name}: no {path}::{test}" for path, test in named
                  if test not in named_in(path)]  # fmt: skip
    return found + misplaced(text)


def misplaced(text: str) -> list[str]:
    """Return the rows that stand under another letter than their own."""
    parts = HEADING.split(text)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return [
        f"{name}: under {letter}"
        for letter, body in sections.items()
        for name, *_ in ROW.findall(body)
        if name[0] != letter
    ]


@cache
def named_in(path: str) -> set[str]:
    """Return the names of the tests in a file of tests/; none where there is none."""
    file = TESTS / path
    if not file.is_file():
        return set()
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    functions = (node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return {name for name in functions if name.startswith("test_")}


def test_the_index_is_sound() -> None:
    assert HEADING.findall(index()) == list(NUMBERS)
    assert problems(index()) == []
    wanted = {f"{letter}{n}" for letter, found in NUMBERS.items() for n in found}
    assert {row[0] for row in ROW.findall(index())} == wanted


GOOD = (
    "| A1 | [x 1](https://github.com/x/y/issues/1): drafts differ | held |"
    " `faults/test_index.py::test_the_index_is_sound` |"
)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"held": "n/a", "`": ""}, []),
        ({"held": "fine"}, ["A1: verdict 'fine'"]),
        ({"_is_sound": "_is_not"}, [
            "A1: no faults/test_index.py::test_the_index_is_not"
        ]),
        ({"::": " "}, ["A1: no test"]),
        ({": drafts": " drafts"}, ["A1: no report and a description"]),
        ({" | held": ""}, ["1 rows without four fields"]),
        ({"A1": "B1"}, ["B1: under A"]),
    ],
)  # fmt: skip
def test_a_wrong_row_is_found(change: dict[str, str], found: list[str]) -> None:
    row = GOOD
    for old, new in change.items():
        row = row.replace(old, new)
    assert problems(f"## A. Verifier\n\n{row}\n") == found


def test_an_id_given_twice_is_found() -> None:
    assert problems(f"## A. Verifier\n{GOOD}\n{GOOD}\n") == ["A1: 2 rows"]
