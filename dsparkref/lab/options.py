"""What the commands share: options checked before work, results written after it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dsparkref.checkpoints.files import write_json
from dsparkref.lab.figures import save_figure
from dsparkref.shapes import check_range, problem
from dsparkref.verify.sampling import check_settings


def check_sampling(
    temperature: float,
    seed: int,
    top_k: int | None = None,
    top_p: float | None = None,
) -> None:
    """Check what the decoding will ask for, before anything is loaded."""
    check_settings(temperature, top_k, top_p)
    check_range("seed", seed, 0, 2**64 - 1, integer=True)


def check_folder(name: str, path: Path | None) -> None:
    """Check that a file can be written later, before any work is done."""
    if path is not None and not path.absolute().parent.is_dir():
        expected, got = "an existing folder", path.parent
        raise problem(name, "lie in a folder", expected, got, "", FileNotFoundError)


def check_file(name: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Check the same of a file: that it is no folder, and of a kind we can write."""
    check_folder(name, path)
    if path is None:
        return
    if path.is_dir():
        rule, error = "be a file", IsADirectoryError
        raise problem(name, rule, "a file", f"folder {path}", "", error)
    if suffixes and path.suffix.lower() not in suffixes:
        expected, got = f"a name that ends in {' or '.join(suffixes)}", path.name
        raise problem(name, "be of a known kind", expected, got)


def write_numbers(console: Console, path: Path | None, numbers: Any) -> None:
    """Write numbers as JSON where a path was given, and say so."""
    if path is not None:
        write_json(path, numbers)
        console.print(f"numbers: {path}", soft_wrap=True)


def write_figure(console: Console, path: Path, figure: Any) -> None:
    """Write a figure as a PNG, and say so."""
    save_figure(figure, path)
    console.print(f"figure: {path}", soft_wrap=True)
