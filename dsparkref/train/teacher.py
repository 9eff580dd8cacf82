"""What the target says about the training replies: seen live, or written down once.

A drafter learns from the target's tapped features and its logits. The target is frozen,
so nine drafters on the same replies would ask it the same questions nine times, and
most of the time of a drafter's training step would be the target's. A recorded teacher
answers from a file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from datasets import Dataset
from torch import Tensor
from tqdm.auto import tqdm

from dsparkref.checkpoints.files import (
    as_path,
    replaced_folder,
    restore_folder,
    write_json,
)
from dsparkref.decode.target import Target, TargetOutput
from dsparkref.shapes import dtype_name, problem
from dsparkref.train.data import Batch, collate, special_token_id
from dsparkref.train.fingerprint import fingerprint_samples, fingerprint_weights

RECORD_DTYPE = torch.bfloat16
MANIFEST = "manifest.json"


@runtime_checkable
class Teacher(Protocol):
    """Anything that gives the target's view of a batch."""

    def view(self, rows: Sequence[int], batch: Batch) -> TargetOutput:
        """Return logits [B, S, V] and features [B, S, L*D] of samples ``rows``."""
        ...


@dataclass(frozen=True)
class LiveTeacher:
    """The target itself, run on every batch."""

    target: Target
    layer_ids: Sequence[int]

    @torch.no_grad()
    def view(self, rows: Sequence[int], batch: Batch) -> TargetOutput:
        """Run the target; ``rows`` are not needed."""
        return self.target.forward(
            batch.input_ids, self.layer_ids, attention_mask=batch.attention_mask
        )


class RecordedTeacher:
    """The target's features and logits of every sample, in a folder, in bfloat16.

    The files are mapped into memory, not read: processes that train side by side
    share them. Where a sample has padding, features and logits are 0.
    """

    def __init__(self, folder: Path, samples: Dataset, widths: tuple[int, int]) -> None:
        lengths = [len(ids) for ids in samples["input_ids"]]
        bounds = list(accumulate(lengths, initial=0))
        self.places = [slice(*ends) for ends in pairwise(bounds)]
        self.hidden, self.logits = (
            _mapped(folder / name, bounds[-1], width)
            for name, width in zip(("hidden", "logits"), widths, strict=True)
        )

    @classmethod
    def record(
        cls,
        target: Target,
        layer_ids: Sequence[int],
        samples: Dataset,
        folder: Path,
        batch_size: int = 64,
    ) -> "RecordedTeacher":
        """Ask the target once about every sample, unless the folder is there already.

        Takes 2 (L D + V) bytes a token on the disk. A manifest beside them says what
        was recorded: records of another target, of other layers or samples are refused.
        """
        widths = (len(layer_ids) * target.hidden_size, target.vocab_size)
        manifest = {
            "target": fingerprint_weights(target.model),
            "layer_ids": list(layer_ids),
            "samples": fingerprint_samples(samples),
            "dtype": dtype_name(RECORD_DTYPE),
        }
        special_token_id(target.tokenizer, "pad_token")
        folder = as_path(folder)
        restore_folder(folder)
        if not folder.exists():
            with replaced_folder(folder) as fresh:
                records = cls(fresh, samples, widths)
                records._fill(LiveTeacher(target, layer_ids), samples, batch_size)
                write_json(fresh / MANIFEST, manifest)
        _check_manifest(folder, manifest)
        return cls(folder, samples, widths)

    def view(self, rows: Sequence[int], batch: Batch) -> TargetOutput:
        """Return what was recorded for samples ``rows``."""
        shape = batch.input_ids.shape
        hidden, logits = (
            torch.zeros(*shape, table.shape[-1]) for table in (self.hidden, self.logits)
        )
        for i, row in enumerate(rows):
            place = self.places[row]
            length = place.stop - place.start
            hidden[i, :length] = self.hidden[place]
            logits[i, :length] = self.logits[place]
        device = batch.input_ids.device
        return TargetOutput(logits.to(device), hidden.to(device))

    def _fill(self, teacher: LiveTeacher, samples: Dataset, batch_size: int) -> None:
        """Write the target's view of every sample, samples of like length together."""
        target = teacher.target
        pad, device = target.tokenizer.pad_token_id, target.device
        lengths = [place.stop - place.start for place in self.places]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        starts = range(0, len(order), batch_size)
        for start in tqdm(starts, desc="teacher", unit="batch", disable=None):
            rows = order[start : start + batch_size]
            batch = collate([samples[row] for row in rows], pad).to(device)
            with torch.autocast(device.type, torch.bfloat16):
                output = teacher.view(rows, batch)
            for i, row in enumerate(rows):
                self.hidden[self.places[row]] = output.hidden[i, : lengths[row]].cpu()
                self.logits[self.places[row]] = output.logits[i, : lengths[row]].cpu()


def _check_manifest(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse records that were made of something else."""
    name, hint = f"teacher's records {folder}", "Delete the folder to record anew."
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        expected = f"a file {MANIFEST}"
        raise problem(name, "be whole", expected, error, hint) from None
    if found != wanted:
        differs = [key for key in wanted if dict(found).get(key) != wanted[key]]
        got = f"another {', '.join(differs)}"
        raise problem(name, "belong to this run", "its own", got, hint)


def _mapped(path: Path, rows: int, width: int) -> Tensor:
    """Map a file as a table; it is made where it is not there."""
    size = rows * width
    if path.exists() and path.stat().st_size != size * RECORD_DTYPE.itemsize:
        expected = f"{rows} tokens x {width}, {size * RECORD_DTYPE.itemsize} bytes"
        rule, hint = "belong to these samples", "Delete it to record anew."
        raise problem(str(path), rule, expected, path.stat().st_size, hint)
    table = torch.from_file(str(path), shared=True, size=size, dtype=RECORD_DTYPE)
    return table.view(rows, width)
