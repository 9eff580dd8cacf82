"""Folders that are either complete or not there, and where to find them."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dsparkref.checkpoints.hub import download
from dsparkref.shapes import problem

Source = str | os.PathLike[str]


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``folder``; it takes its place on success.

    Whatever interrupts the writing leaves the old folder as it was: at its place, or
    for the moment between two renames beside it, where readers and the next writer
    find it. Where a link leads to the folder, the link stays. All files are as
    readable as any new file of this process, whatever wrote them.
    """
    folder = replaceable_place(folder)
    restore_folder(folder)
    fresh, old = _beside(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
    except OSError as error:
        expected, got = "a folder that can be made", error.strerror
        name = f"folder {folder}"
        raise problem(name, "be writable", expected, got, "", OSError) from None
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    mode = fresh.stat().st_mode & 0o666  # the umask's; safetensors writes 0600
    for path in fresh.rglob("*"):
        if path.is_file():
            path.chmod(mode)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def replaceable_place(folder: Path) -> Path:
    """Return where a folder really is; the working directory must not move away."""
    folder = as_path(folder).resolve()
    if Path.cwd().is_relative_to(folder):
        rule, expected = "be free to replace", "a folder to be made anew"
        got = f"the working directory or one above it, {folder}"
        hint = "Name a new folder in it."
        raise problem("folder", rule, expected, got, hint)
    return folder


def restore_folder(folder: Path) -> None:
    """Put the old folder back where a run was killed just before the new one came."""
    folder = as_path(folder).resolve()
    _, old = _beside(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return where a folder is written, and where the old one waits meanwhile."""
    name = folder.name
    return folder.parent / f".{name}.writing", folder.parent / f".{name}.old"


def as_path(source: Source) -> Path:
    """Return a path; ``~`` is the home folder, as in a shell.

    >>> as_path("~").is_absolute()
    True
    """
    return Path(os.path.expanduser(source))


def write_text(path: Path, text: str) -> None:
    """Write a text file beside its place, then rename it there."""
    fresh = path.with_name(f".{path.name}.writing")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON that a person can read."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def data_folder() -> Path:
    """Return ``data/``: packed into a wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "data", package.parent / "data"):
        if candidate.is_dir():
            return candidate
    expected = f"{package / 'data'} or {package.parent / 'data'}"
    hint = "Make it with: python -m dsparkref train tiny"
    raise problem("data", "be there", expected, "neither", hint, FileNotFoundError)


def find_folder(source: Source, name: str = "source") -> Path:
    """Return the folder of a source: ``tiny...``, a folder, or a Hub id.

    A Hub id downloads configs, tokenizer and safetensors, nothing else. ``name`` is
    what an error calls the source.
    """
    text = str(source)
    if text == "tiny":
        return _member(data_folder() / "tiny", "target", name)
    if text.startswith("tiny/"):
        return _member(data_folder() / "tiny" / "drafters", text[5:], name)
    folder = as_path(text)
    if folder.is_dir():
        return folder
    _, old = _beside(folder.resolve())
    if old.is_dir():
        return old  # a save was killed between two renames
    if is_hub_id(text):
        return download(text, name)
    expected = "'tiny', 'tiny/NAME', an existing folder or a Hub id OWNER/NAME"
    raise problem(name, "exist", expected, repr(text), "", FileNotFoundError)


def is_hub_id(source: Source) -> bool:
    """Whether a source is OWNER/NAME on the Hub: no folder, and none of ours.

    >>> is_hub_id("z-lab/Qwen3-4B-DFlash-b16"), is_hub_id("tiny/markov")
    (True, False)
    """
    text = str(source)
    if text.startswith((".", "tiny/")) or Path(text).is_dir():
        return False
    return re.fullmatch(r"[\w.-]+/[\w.-]+", text) is not None


def _member(folder: Path, member: str, name: str) -> Path:
    if not member or not (folder / member).is_dir():
        known = sorted(path.name for path in folder.glob("[!.]*"))
        expected = f"one of {', '.join(known)}" if known else f"a folder in {folder}"
        raise problem(name, "exist", expected, repr(member), "", FileNotFoundError)
    return folder / member


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's ``config.json``."""
    path = folder / "config.json"
    if not path.exists():
        expected = "a file config.json"
        got = f"none in {folder}"
        raise problem("checkpoint", "be whole", expected, got)
    return read_object(path)


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; a byte order mark before it is no part of it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise problem(path.name, "be JSON", "an object", error) from None
    if not isinstance(found, dict):
        raise problem(path.name, "be JSON", "an object", type(found).__name__)
    return found


def resolve_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Return a dtype from itself or its name.

    >>> resolve_dtype("bfloat16")
    torch.bfloat16
    """
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        expected = "a floating dtype or its name, such as 'float32'"
        raise problem("dtype", "be known", expected, repr(dtype))
    return found
