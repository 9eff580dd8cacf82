"""Folders that are either complete or not there, and where to find them."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dsparkref.checkpoints.hub import download
from dsparkref.shapes import problem

Source = str | os.PathLike[str]

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
# the dtypes that a checkpoint here may hold; any other stands as uint8 and is refused
HEADER_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``folder``; it takes its place on success.

    Whatever interrupts the writing leaves the old folder as it was: at its place, or
    for the moment between two renames beside it, where readers and the next writer
    find it.
    """
    folder = Path(folder).absolute()  # "." has no name to put a dot before
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
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(folder: Path) -> None:
    """Put the old folder back where a run was killed just before the new one came."""
    _, old = _beside(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return where a folder is written, and where the old one waits meanwhile."""
    name = folder.name
    return folder.parent / f".{name}.writing", folder.parent / f".{name}.old"


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
    if Path(text).is_dir():
        return Path(text)
    if _beside(Path(text))[1].is_dir():
        return _beside(Path(text))[1]  # a save was killed between two renames
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
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        expected = "a file config.json"
        got = f"none in {folder}"
        raise problem("checkpoint", "be whole", expected, got) from None
    except (ValueError, RecursionError) as error:
        raise problem("config.json", "be JSON", "an object", error) from None
    if not isinstance(config, dict):
        raise problem("config.json", "be JSON", "an object", type(config).__name__)
    return config


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder's safetensors files."""
    return _read(folder, lambda file, name: file.get_tensor(name))


def read_headers(folder: Path) -> dict[str, Tensor]:
    """Return name, shape and dtype of all tensors, as tensors without values.

    They live on torch's meta device, so nothing of a file but its header is read.
    """
    return _read(folder, _header)


def _header(file: Any, name: str) -> Tensor:
    part = file.get_slice(name)
    return blank_tensor(part.get_shape(), part.get_dtype())


def blank_tensor(shape: Sequence[int], dtype: str) -> Tensor:
    """Return a tensor without values from a header's shape and dtype.

    >>> blank_tensor([2, 3], "BF16")
    tensor(..., device='meta', size=(2, 3), dtype=torch.bfloat16)
    """
    kind = HEADER_DTYPES.get(dtype, torch.uint8)
    return torch.empty(tuple(shape), dtype=kind, device="meta")


def _read(folder: Path, take: Callable[[Any, str], Tensor]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    if name in tensors:
                        rule, got = "stand in one file", f"a second one in {path.name}"
                        raise problem(name, rule, "one tensor of a name", got)
                    tensors[name] = take(file, name)
        except SafetensorError as error:
            expected = "a complete safetensors file"
            hint = "It may have been cut off while it was copied; fetch it again."
            got = f"{path.name} ({error})"
            raise problem("weights", "be readable", expected, got, hint) from None
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """Return a folder's safetensors files, in order; a pickle stays shut."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        pickles = sorted(p.name for p in folder.glob("*") if p.suffix in PICKLES)
        expected, got = "a *.safetensors file", f"none in {folder}"
        hint = ""
        if pickles:
            got = ", ".join(pickles)
            hint = "A pickle can run any program when it is opened: convert it first."
        raise problem("weights", "be there", expected, got, hint, FileNotFoundError)
    return paths


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
