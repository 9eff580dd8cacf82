"""Checkpoints in the terminal: one as lines, two side by side."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from dsparkref.checkpoints.inspect import inspect_source
from dsparkref.checkpoints.io import PAIRS, QWEN3_4B_DRAFTERS
from dsparkref.lab.sources import drafter_source, tiny_drafters
from dsparkref.shapes import problem


def run_inspect(
    console: Console, sources: Sequence[str], *, layout: str | None = None
) -> None:
    """Show what is in one checkpoint, or in two, and where the two differ.

    The name of a whole pair shows which drafters it has.
    """
    if len(sources) == 1 and sources[0] in PAIRS:
        return show_drafters(console, sources[0])
    for pair in set(PAIRS).intersection(sources):
        hint = f"`inspect {pair}` alone says which drafters it has."
        raise problem("source", "be a drafter", "one drafter", repr(pair), hint)
    places = [drafter_source(name, "source") for name in sources]
    columns = [inspect_source(place, layout) for place in places]
    table = _table(["", *sources, *[""][: len(sources) - 1]])
    for label in columns[0]:
        words = [facts[label] for facts in columns]
        differ = "" if len(set(words)) == 1 else "differs"
        table.add_row(label, *words, *[differ][: len(sources) - 1])
    console.print(table, markup=False)


def show_drafters(console: Console, pair: str) -> None:
    """Show which drafters a pair has, and how each goes by ``inspect``."""
    if pair == "tiny":
        table = _table(["", "drafts", "head"])
        names = tiny_drafters()
        for name in names:
            facts = inspect_source(f"tiny/{name}")
            table.add_row(name, facts["block"].split()[0], facts["head"])
    else:
        table = _table(["head", "on the Hub"])
        names = list(QWEN3_4B_DRAFTERS.values())
        for head, source in QWEN3_4B_DRAFTERS.items():
            table.add_row(head, source)
    console.print(table, markup=False)
    line = f"One of them, or two side by side: inspect {' '.join(names[:2])}"
    console.print(line, soft_wrap=True)


def _table(columns: Sequence[str]) -> Table:
    first, *others = columns
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, overflow="fold")
    return table
