"""Our own layout: the fields of ``DrafterSpec``, as they are."""

from dataclasses import MISSING, asdict, fields

import torch
from torch import Tensor

from dsparkref.checkpoints.formats.layout import Layout
from dsparkref.checkpoints.formats.reading import Config, Keys, Tensors
from dsparkref.draft.spec import HEADS, DrafterSpec
from dsparkref.shapes import problem

NOTES = ("layout", "dtype")
IDS = "vocabulary.ids"


def read(config: Config, tensors: Tensors) -> DrafterSpec:
    """Return the spec; a key that is none of its fields is refused."""
    given = {key: value for key, value in config.items() if key not in NOTES}
    known = {field.name: field for field in fields(DrafterSpec)}
    surplus = given.keys() - known.keys()
    if surplus:
        got = ", ".join(sorted(surplus))
        raise problem("config.json", "hold known keys", "DrafterSpec's fields", got)
    keys = Keys(config)
    for name, field in known.items():
        if field.default is MISSING:
            keys.take(name)
        if isinstance(field.default, tuple) or name == "target_layer_ids":
            given[name] = keys.integers(name, None if field.default is MISSING else [])
    temperatures = given.get("confidence_temperatures")
    if isinstance(temperatures, list):
        given["confidence_temperatures"] = tuple(temperatures)
    return DrafterSpec(**given)


def convert(tensors: dict[str, Tensor], spec: DrafterSpec) -> dict[str, Tensor]:
    """Check that a reduced vocabulary names tokens of the target, each once."""
    ids = tensors.get(IDS)
    if ids is None or ids.is_meta:
        return tensors
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise problem(IDS, "hold ids", "integers", ids.dtype)
    inside = ((ids >= 0) & (ids < spec.vocab_size)).all()
    if not inside or ids.unique().numel() != ids.numel():
        expected = f"0..{spec.vocab_size - 1}, each once"
        got = "an id outside, or one twice"
        raise problem(IDS, "name tokens of the target", expected, got)
    return tensors


def write(spec: DrafterSpec) -> Config:
    """Return the spec's fields, and the layout's name."""
    return {"layout": "dsparkref", **asdict(spec)}


OWN = Layout("dsparkref", read, {head: {} for head in HEADS}, write, convert=convert)
