"""What is in a published drafter: its config and its headers, and no weights."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsparkref.checkpoints.files import (
    Source,
    find_folder,
    is_hub_id,
    read_config,
)
from dsparkref.checkpoints.hub import hub_errors
from dsparkref.checkpoints.load import Checkpoint, blank_drafter, understand
from dsparkref.checkpoints.weights import blank_tensor, read_headers
from dsparkref.shapes import dtype_name


def describe(source: Source, *, layout: str | None = None) -> str:
    """Return what a drafter's checkpoint holds, in a few labelled lines.

    Reads the config and the headers of the safetensors files, so it takes the same
    moment for every size; of a Hub id only these are fetched. Whatever ``load_drafter``
    refuses for its names, shapes or config is refused here with the same words.

    layout: None where the checkpoint says it, else one of the known layouts.
    """
    facts = inspect_source(source, layout)
    return "\n".join(f"{label}: {words}" for label, words in facts.items())


def inspect_source(source: Source, layout: str | None = None) -> dict[str, str]:
    """Return the facts of ``describe``: label -> words, the labels always the same."""
    if is_hub_id(source):
        config, headers = _read_remote(str(source))
    else:
        folder: Path = find_folder(source)
        config, headers = read_config(folder), read_headers(folder)
    checkpoint = understand(config, headers, layout)
    stored = {"layout": checkpoint.layout.name, "file": _stored(checkpoint, headers)}
    return stored | blank_drafter(checkpoint.spec).facts()


def _stored(checkpoint: Checkpoint, headers: dict[str, Tensor]) -> str:
    size = sum(value.numel() * value.element_size() for value in headers.values())
    kinds = {dtype_name(v.dtype) for v in headers.values() if v.is_floating_point()}
    of = " and ".join(sorted(kinds)) or dtype_name(torch.uint8)
    return f"{len(headers)} tensors, {of}, {size / 1e6:,.1f} MB"


def _read_remote(repo_id: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the headers of a Hub id, without its weights."""
    from huggingface_hub import get_safetensors_metadata, hf_hub_download

    with hub_errors(repo_id):
        config = Path(hf_hub_download(repo_id, "config.json"))
        files = get_safetensors_metadata(repo_id).files_metadata.values()
    headers = {}
    for file in files:
        for name, header in file.tensors.items():
            headers[name] = blank_tensor(header.shape, header.dtype)
    return read_config(config.parent), headers
