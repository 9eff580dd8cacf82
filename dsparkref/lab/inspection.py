"""Checkpoints in the terminal: one as lines, two side by side."""

from rich import box
from rich.console import Console
from rich.table import Table

from dsparkref.checkpoints.inspect import inspect_source


def run_inspect(
    console: Console, sources: list[str], *, layout: str | None = None
) -> None:
    """Show what is in one checkpoint, or in two, and where the two differ."""
    columns = [inspect_source(source, layout) for source in sources]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for source in sources:
        table.add_column(source, overflow="fold")
    if len(sources) > 1:
        table.add_column("")
    for label in columns[0]:
        words = [facts[label] for facts in columns]
        differ = "" if len(set(words)) == 1 else "differs"
        table.add_row(label, *words, *([differ] if len(sources) > 1 else []))
    console.print(table, markup=False)
