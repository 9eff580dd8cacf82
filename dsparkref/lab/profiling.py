"""What ``python -m dsparkref profile`` does: measure, print, write."""

import os
from pathlib import Path

from rich.console import Console

from dsparkref.analysis.profile import Profile, profile_pair, write_profile
from dsparkref.checkpoints.io import load_pair
from dsparkref.lab.evaluation import check_folder
from dsparkref.lab.tables import make_table, number
from dsparkref.shapes import problem


def run_profile(
    console: Console,
    *,
    out: Path,
    pair: str | None = None,
    head: str = "markov",
    rows: str = "1",
    tokens: str | None = None,
    context: int = 64,
    repeats: int = 9,
) -> Profile:
    """Profile a pair and write the table; ``rows`` and ``tokens`` like "1,4,16"."""
    check_folder("out", out)
    name = pair or os.environ.get("DSPARKREF_PAIR") or "tiny"
    loaded = load_pair(name, head)
    drafter = loaded.drafter
    sizes = range(1, drafter.block_size + 2)
    with console.status("") as status:  # silent where the output is no terminal
        found = profile_pair(
            loaded.target,
            drafter,
            rows=_numbers("rows", rows),
            tokens=sizes if tokens is None else _numbers("tokens", tokens),
            context=context,
            repeats=repeats,
            model=f"{name}, {drafter.head_type}, K = {drafter.block_size}",
            progress=status.update,
        )
    lines = [
        [
            f"{point.rows} x {point.tokens}",
            number(1000 * point.draft_seconds),
            number(1000 * point.verify_seconds),
            number(1 / (point.draft_seconds + point.verify_seconds), 1),
        ]
        for point in found.points
    ]
    title = f"{found.model} on {found.device}, {found.dtype}, {found.threads} threads"
    columns = ["requests x tokens", "draft, ms", "verify, ms", "steps/s"]
    console.print(make_table(title, columns, lines))
    write_profile(found, out)
    console.print(f"table: {out}", soft_wrap=True)
    return found


def _numbers(name: str, text: str) -> list[int]:
    """Return the integers of a text such as "1,4,16"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        expected = "integers with commas between them"
        raise problem(name, "be integers", expected, repr(text)) from None
