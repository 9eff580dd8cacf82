"""What ``python -m dsparkref profile`` does: measure, print, write."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console, Group

from dsparkref.analysis.device_check import check_device
from dsparkref.analysis.profile import (
    Profile,
    device_name,
    profile_pair,
    read_profile,
    write_profile,
)
from dsparkref.analysis.random_pair import SIZES, random_pair
from dsparkref.checkpoints import files
from dsparkref.checkpoints.io import Pair, load_target
from dsparkref.checkpoints.targets import resolve_device
from dsparkref.lab.options import check_file
from dsparkref.lab.prompts import evaluation_prompts
from dsparkref.lab.sources import open_pair
from dsparkref.lab.tables import make_table, number
from dsparkref.shapes import check_known, problem

# Of each reply of the tiny pair that is compared with the CPU's.
CHECK_TOKENS = 64


def run_profile(
    console: Console,
    *,
    out: Path | None = None,
    pair: str | None = None,
    head: str | None = None,
    rows: str | None = None,
    tokens: str | None = None,
    context: int | None = None,
    repeats: int = 9,
) -> Profile:
    """Profile a pair and write the table; ``rows`` and ``tokens`` like "1,4,16"."""
    out = Path("profile.json") if out is None else out
    check_file("out", out)
    name = pair or os.environ.get("DSPARKREF_PAIR") or "tiny"
    found = _measure(
        console,
        open_pair(pair, head),
        name,
        rows=numbers_of("rows", rows or "1"),
        tokens=numbers_of("tokens", tokens) if tokens else None,
        context=64 if context is None else context,
        repeats=repeats,
    )
    return _written(console, found, out)


def run_random_profile(
    console: Console,
    size: str,
    *,
    out: Path | None = None,
    head: str = "markov",
    rows: str | None = None,
    tokens: str | None = None,
    context: int | None = None,
    repeats: int = 9,
) -> Profile:
    """Check this device against the CPU, then profile a random pair of a known size.

    Needs no network, and no file but those of ``data/``. out None is
    ``data/measured/DEVICE.json``; the table of another pair is not replaced.
    """
    check_known("random", size, tuple(SIZES))
    device, name = resolve_device("auto"), f"random {size}"
    out = _place(device_name(device), name) if out is None else out
    check_file("out", out)
    wanted = numbers_of("rows", rows) if rows else SIZES[size].rows
    with console.status("the tiny pair on both devices"):
        check = str(check_device(device, _messages(), max_new_tokens=CHECK_TOKENS))
    console.print(check)
    found = _measure(
        console,
        random_pair(size, head, device=device),
        name,
        rows=wanted,
        tokens=numbers_of("tokens", tokens) if tokens else None,
        context=SIZES[size].context if context is None else context,
        repeats=repeats,
    )
    console.print("Random weights: seconds hold for any others, acceptance has none.")
    return _written(console, replace(found, check=check), out)


def _measure(
    console: Console,
    pair: Pair,
    name: str,
    *,
    rows: Sequence[int],
    tokens: Sequence[int] | None,
    context: int,
    repeats: int,
) -> Profile:
    drafter = pair.drafter
    with console.status("") as status:  # silent where the output is no terminal
        found = profile_pair(
            pair.target,
            drafter,
            rows=rows,
            tokens=tokens or range(1, drafter.block_size + 2),
            context=context,
            repeats=repeats,
            model=f"{name}, {drafter.head_type}, K = {drafter.block_size}",
            progress=status.update,
        )
    console.print(_table(found))
    if found.peak_bytes is not None:
        console.print(f"peak memory: {found.peak_bytes / 2**30:.1f} GiB")
    return found


def _table(found: Profile) -> Group:
    lines = [
        [
            f"{point.rows} x {point.tokens}",
            str(point.rows * point.tokens),
            number(1000 * point.draft_seconds),
            number(1000 * point.verify_seconds),
            number(1 / (point.draft_seconds + point.verify_seconds), 1),
        ]
        for point in found.points
    ]
    on = f"{found.device}, {found.threads} threads" if found.threads else found.device
    title = f"{found.model} on {on}, {found.dtype}, after {found.context} tokens"
    columns = ["requests x tokens", "B", "draft, ms", "verify, ms", "SPS(B)"]
    return make_table(title, columns, lines)


def _written(console: Console, found: Profile, out: Path) -> Profile:
    write_profile(found, out)
    console.print(f"table: {out}", soft_wrap=True)
    return found


def _place(device: str, name: str) -> Path:
    """Return where the table of a device is kept; another pair's stays as it is."""
    slug = re.sub(r"[^a-z0-9_]+", "-", device.lower()).strip("-")
    path = files.data_folder() / "measured" / f"{slug}.json"
    if path.exists() and not read_profile(path).model.startswith(name):
        got = f"{path.name}, a table of {read_profile(path).model}"
        hint = "Name another file: --out FILE."
        raise problem("out", "be free to replace", f"a table of {name}", got, hint)
    return path


def _messages() -> list[str]:
    """Return one message per domain of the evaluation set."""
    prompts = evaluation_prompts(load_target("tiny", device="cpu"), 1)
    return [example.message for [example] in prompts.values()]


def numbers_of(name: str, text: str) -> list[int]:
    """Return the integers of a text such as "1,4,16"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        expected = "integers with commas between them"
        raise problem(name, "be integers", expected, repr(text)) from None
