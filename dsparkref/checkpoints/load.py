"""Load a drafter: recognise its layout, read its spec, match every tensor by name."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dsparkref.checkpoints.files import (
    Source,
    find_folder,
    read_config,
    resolve_dtype,
)
from dsparkref.checkpoints.formats import find_layout, read_spec, recognise
from dsparkref.checkpoints.formats.layout import Layout
from dsparkref.checkpoints.targets import resolve_device
from dsparkref.checkpoints.weights import read_tensors
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.spec import DrafterSpec
from dsparkref.shapes import check_offers, problem

EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Checkpoint:
    """A folder, understood: every tensor is known by our names and has its shape."""

    layout: Layout
    spec: DrafterSpec
    # our name -> value; on the meta device where only headers were read
    tensors: dict[str, Tensor]


def load_drafter(
    source: Source,
    target: Target,
    *,
    layout: str | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
) -> Drafter:
    """Load a drafter for ``target``: ``"tiny/markov"``, a folder, or a Hub id.

    layout None: recognised, or loading stops and says what to pass. device and
    dtype None: the target's. Every tensor of the file is used or refused by name;
    an embedding or an LM head in the file wins over the target's.
    """
    check_offers("target", target, "model", "check_layer_ids")
    kind = target.dtype if dtype is None else resolve_dtype(dtype)
    where = target.device if device is None else resolve_device(device)
    folder = find_folder(source)
    checkpoint = understand(read_config(folder), read_tensors(folder), layout)
    check_fit(checkpoint.spec, target)
    drafter = Drafter(checkpoint.spec, target.embedding, target.lm_head)
    drafter = drafter.to(device=where, dtype=kind)  # before the values: float64 stays
    with torch.no_grad():
        for name, value in drafter.state_dict().items():
            value.copy_(checkpoint.tensors[name])
    return drafter.eval()


def understand(
    config: dict[str, Any], tensors: dict[str, Tensor], layout: str | None = None
) -> Checkpoint:
    """Read a config and the tensors beside it; on the meta device, all but values."""
    found = find_layout(recognise(config, tensors) if layout is None else layout)
    tensors = _without_prefix(tensors, found.old_prefix)
    spec = read_spec(config, tensors, found.name)
    if _is_tied(config) and EMBEDDING in tensors and not spec.draft_vocab_size:
        tensors.setdefault(LM_HEAD, tensors[EMBEDDING])
        spec = replace(spec, owns_lm_head=True)
    return Checkpoint(found, spec, match_tensors(found, spec, tensors))


def match_tensors(
    layout: Layout, spec: DrafterSpec, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return a file's tensors by our names; every name, shape and type must fit."""
    wanted = {
        layout.tensor_name(name, spec.head): (name, value)
        for name, value in blank_drafter(spec).state_dict().items()
    }
    tensors = layout.convert(tensors, spec)
    missing, unexpected = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or unexpected:
        got = (
            f"missing: {', '.join(sorted(missing)) or 'none'}; "
            f"unexpected: {', '.join(sorted(unexpected)) or 'none'}"
        )
        expected = f"the {len(wanted)} tensors of layout {layout.name!r}"
        raise problem("weights", "match the config by name", expected, got)
    for name, (_, blank) in wanted.items():
        found = tensors[name]
        if blank.shape != found.shape:
            shape, got_shape = list(blank.shape), list(found.shape)
            raise problem(name, "match the config by shape", shape, got_shape)
        if blank.is_floating_point() != found.is_floating_point():
            raise problem(name, "have a fitting type", blank.dtype, found.dtype)
    return {ours: tensors[name] for name, (ours, _) in wanted.items()}


def blank_drafter(spec: DrafterSpec) -> Drafter:
    """Return a drafter without values: names, shapes, and no memory."""
    try:
        with torch.device("meta"):
            table = torch.empty(spec.vocab_size, spec.hidden_size)
            return Drafter(spec, table, table)
    except RuntimeError as error:  # torch counts a tensor's bytes in 64 bits
        rule, expected = "have sizes that a tensor can have", "at most 2^63 bytes"
        got = str(error).splitlines()[0]
        raise problem("config.json", rule, expected, got) from None


def check_fit(spec: DrafterSpec, target: Target) -> None:
    """Refuse a drafter that was made for another target."""
    facts = [
        ("hidden_size", target.hidden_size, spec.hidden_size),
        ("vocab_size", target.vocab_size, spec.vocab_size),
        ("num_target_layers", target.num_layers, spec.num_target_layers),
    ]
    for name, expected, got in facts:
        if got is not None and got != expected:
            rule = "fit the target"
            hint = "The drafter was made for another target."
            raise problem(f"drafter's {name}", rule, expected, got, hint)
    target.check_layer_ids(spec.target_layer_ids)
    if spec.mask_token_id in target.stop_token_ids:
        what = f"mask_token_id {spec.mask_token_id} is a stop token of the target"
        warnings.warn(f"{what}: was it meant to fall back to it?", stacklevel=3)


def _without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Drop what older files put before some names; both spellings are one too many."""
    plain: dict[str, Tensor] = {}
    for name, value in tensors.items():
        short = name.removeprefix(prefix)
        if short in plain:
            rule, got = "be given once", f"{short} and {prefix}{short}"
            raise problem(short, rule, "one spelling", got)
        plain[short] = value
    return plain


def _is_tied(config: dict[str, Any]) -> bool:
    """Whether a file may leave its LM head out because it is the embedding."""
    layer = config.get("transformer_layer_config")
    places = [config, layer if isinstance(layer, dict) else {}]
    return any(place.get("tie_word_embeddings") is True for place in places)
