"""Write a drafter in a layout that can say all of it, or what one agrees to drop."""

import os
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from dsparkref.checkpoints.files import (
    Source,
    read_config,
    replaceable_place,
    replaced_folder,
    write_json,
)
from dsparkref.checkpoints.formats import LAYOUTS, SAVED, recognise
from dsparkref.checkpoints.formats.layout import Layout
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.spec import DrafterSpec
from dsparkref.shapes import (
    check_known,
    check_offers,
    check_sequence,
    dtype_name,
    problem,
)

# Parts that a drafter can do without, and still draft: without its own embedding or
# LM head it borrows the target's, without its head it is a DFlash.
DROPPABLE = ("head", "confidence", "confidence_temperatures", "embedding", "lm_head")
# What stands in the folder of a drafter that was saved here, or trained, or half saved.
WRITTEN = ("config.json", "*.safetensors", "history.json", ".*.writing")


def save_drafter(
    drafter: Drafter,
    folder: Source,
    *,
    layout: str = "dsparkref",
    drop: Sequence[str] = (),
) -> None:
    """Write a drafter's config and weights; the folder is complete or unchanged.

    layout: dsparkref (says everything), deepspec, z-lab or domino. drop: parts to
    leave out, of head, confidence, confidence_temperatures, embedding, lm_head.
    Reading the folder back gives the same tensors and logits, to the bit, where all
    are of one dtype: the target's tables, which deepspec stores too, keep their own
    in the file. Whether a serving engine takes the file is not claimed: none was run.

    Raises ValueError where the layout cannot express a part that is not dropped, and
    where the folder holds anything but a drafter: it would be lost.
    """
    check_offers("drafter", drafter, "spec", "state_dict")
    check_known("layout", layout, SAVED)
    if isinstance(drop, str):
        drop = (drop,)
    check_sequence("drop", drop)
    for part in drop:
        check_known("drop", part, DROPPABLE)
    row, spec = LAYOUTS[layout], without(drafter.spec, drop)
    _check_expressible(row, spec)
    if not isinstance(folder, str | os.PathLike):
        got = type(folder).__name__
        raise problem("folder", "be a path", "a str or a Path", got, error=TypeError)
    check_replaceable(Path(folder))
    assert row.write is not None  # SAVED holds those that have one
    dtype = {"dtype": dtype_name(drafter.dtype)}
    tensors = _tensors(drafter, spec, row)
    with replaced_folder(Path(folder)) as fresh:
        save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        write_json(fresh / "config.json", row.write(spec) | dtype)


def parts_of(spec: DrafterSpec) -> list[str]:
    """Return the parts of a drafter that some layout cannot express.

    >>> from dsparkref.draft.spec import DrafterSpec
    >>> spec = DrafterSpec(
    ...     head="dflash", block_size=7, target_layer_ids=(1,), mask_token_id=9,
    ...     vocab_size=10, hidden_size=8, intermediate_size=8, num_layers=1,
    ...     num_heads=2, num_kv_heads=1, head_dim=4, confidence=True,
    ... )
    >>> parts_of(spec)
    ['confidence', 'an anchor slot that predicts']
    """
    there = {
        "head": spec.head != "dflash",
        "confidence": spec.confidence,
        "confidence_temperatures": spec.confidence_temperatures is not None,
        "embedding": spec.owns_embedding,
        "lm_head": spec.owns_lm_head,
        "an anchor slot that predicts": spec.anchor_predicts,
        "a dropped slot 0": not spec.anchor_predicts,
        "layers with a window": bool(spec.window_layers),
        "layers with a causal block": bool(spec.causal_layers),
        "a reduced vocabulary": spec.draft_vocab_size is not None,
    }
    return [part for part, is_there in there.items() if is_there]


def without(spec: DrafterSpec, drop: Sequence[str]) -> DrafterSpec:
    """Return the spec of the drafter that is left."""
    changes: dict[str, object] = {}
    if "confidence" in drop:
        changes |= {"confidence": False, "confidence_input": "hidden"}
    if {"confidence", "confidence_temperatures"} & set(drop):
        changes["confidence_temperatures"] = None
    if "head" in drop:
        changes |= {"head": "dflash", "rank": 0, "gru_size": 0, "inner_size": 0}
        changes["pure_draft_prefix_len"] = 0
    for part in {"embedding", "lm_head"} & set(drop):
        changes[f"owns_{part}"] = False
    return replace(spec, **changes)  # type: ignore[arg-type]


def _check_expressible(row: Layout, spec: DrafterSpec) -> None:
    """Say all parts that do not fit, and which of them could be left out."""
    if row.name == "dsparkref":
        return
    lost = [part for part in parts_of(spec) if part not in row.expresses]
    if spec.head not in row.heads and "head" not in lost:
        lost.insert(0, f"head {spec.head!r}")
    if not lost:
        return
    droppable = tuple(part for part in lost if part in DROPPABLE)
    hint = "Layout dsparkref can say everything."
    if droppable == tuple(lost):
        hint = f"To write without: drop={droppable}."
    rule, expected = "express every part of the drafter", "nothing lost"
    raise problem(f"layout {row.name!r}", rule, expected, ", ".join(lost), hint)


def _tensors(drafter: Drafter, spec: DrafterSpec, row: Layout) -> dict[str, Tensor]:
    """Return what goes into the file, by the layout's names."""
    ours = dict(drafter.state_dict())
    if "head" not in parts_of(spec):
        ours = {name: t for name, t in ours.items() if not name.startswith("head.")}
    left_out = {
        "confidence.": spec.confidence,
        "own_embedding": spec.owns_embedding,
        "own_lm_head": spec.owns_lm_head,
    }
    for start, kept in left_out.items():
        if not kept:
            ours = {name: t for name, t in ours.items() if not name.startswith(start)}
    if row.stores_embeddings:
        for name, table in zip(
            ("own_embedding", "own_lm_head"), drafter.tables(), strict=True
        ):
            ours.setdefault(name, table)
    return {
        row.tensor_name(name, spec.head): tensor.detach().cpu().clone().contiguous()
        for name, tensor in ours.items()
    }


def check_replaceable(folder: Path) -> None:
    """Refuse to replace what is no saved drafter and nothing else, and name it."""
    rule, expected = "be free to replace", "a new or empty folder, or a saved drafter"
    folder = replaceable_place(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise problem("folder", rule, expected, f"the file {folder}")
    found = sorted(folder.iterdir())
    lost = [path.name for path in found if not _is_written(path)]
    if found and not lost and not _holds_drafter(folder):
        lost = [path.name for path in found]
    if lost:
        few = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" * (len(lost) > 3))
        got = f"{folder} with {few}"
        raise problem("folder", rule, expected, got, "That would be lost.")


def _is_written(path: Path) -> bool:
    return path.is_file() and any(fnmatch(path.name, name) for name in WRITTEN)


def _holds_drafter(folder: Path) -> bool:
    """Whether a config is a drafter's; a target's, or a web project's, is not."""
    try:
        recognise(read_config(folder))
    except ValueError:
        return False
    return True
