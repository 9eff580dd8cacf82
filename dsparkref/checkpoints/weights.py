"""What the safetensors files of a folder hold: all of it, or their headers alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dsparkref.checkpoints.files import read_object
from dsparkref.shapes import problem

# the names that transformers gives weights, whole or in parts
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
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
    """Return a folder's safetensors files, in order; a pickle stays shut.

    ``model.safetensors`` alone where it is there, else the files of its index, as in
    transformers; without either, all but hidden ones.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return _indexed_files(folder)
    paths = sorted(folder.glob("[!.]*.safetensors"))
    if not paths:
        pickles = sorted(p.name for p in folder.glob("*") if p.suffix in PICKLES)
        expected, got = "a *.safetensors file", f"none in {folder}"
        hint = ""
        if pickles:
            got = ", ".join(pickles)
            hint = "A pickle can run any program when it is opened: convert it first."
        raise problem("weights", "be there", expected, got, hint, FileNotFoundError)
    return paths


def _indexed_files(folder: Path) -> list[Path]:
    """Return the files that an index lists; they stand beside it."""
    listed = read_object(folder / INDEX).get("weight_map")
    files = list(listed.values()) if isinstance(listed, dict) else []
    if not files or not all(isinstance(x, str) and Path(x).name == x for x in files):
        expected = "weight_map: tensor -> file beside it"
        raise problem(INDEX, "list the files", expected, listed)
    names = sorted(set(files))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        got = f"{', '.join(missing)} missing in {folder}"
        expected = f"all files of {INDEX}"
        raise problem("weights", "be there", expected, got, error=FileNotFoundError)
    return [folder / name for name in names]
