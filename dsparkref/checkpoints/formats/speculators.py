"""speculators: DFlash and DSpark, the backbone in ``transformer_layer_config``.

Its layer ids already count the embedding as 0, so they are one more than the others'.
A reduced draft vocabulary comes with two maps: ``t2d`` (bool, which target tokens can
be drafted) and ``d2t`` (int64 offsets: row i stands for token i + d2t[i]).
"""

from typing import Any

import torch
from torch import Tensor

from dsparkref.checkpoints.formats.layout import Layout
from dsparkref.checkpoints.formats.names import DSPARK, REDUCED, extended
from dsparkref.checkpoints.formats.reading import (
    Config,
    Keys,
    Tensors,
    read_backbone,
    read_confidence,
    read_markov,
    section,
    windowed_layers,
)
from dsparkref.draft.spec import DrafterSpec
from dsparkref.shapes import check_known, problem

KINDS = ("dflash", "dspark")
DEFAULT_RANK = 256


def read(config: Config, tensors: Tensors) -> DrafterSpec:
    """Return the spec; ``speculators_model_type`` says which of the two it is."""
    keys, layer = Keys(config), Keys(section(config, "transformer_layer_config"))
    kind = keys.take("speculators_model_type")
    check_known("speculators_model_type", kind, KINDS)
    dspark = kind == "dspark"
    backbone = read_backbone(layer, tensors)
    keys.refuse_unless("target_hidden_size", backbone["hidden_size"])
    predicts = keys.flag("sample_from_anchor", dspark)
    markov: dict[str, Any] = {"head": "dflash"}
    if dspark:
        rank = keys.integer("markov_rank", DEFAULT_RANK)
        present = keys.flag("enable_confidence_head", True)
        markov = read_markov(keys, rank, "vanilla")
        markov |= read_confidence(keys, present, with_markov=True)
    ids = keys.integers("aux_hidden_state_layer_ids")
    return DrafterSpec(
        block_size=keys.integer("block_size") - (not predicts),
        anchor_predicts=predicts,
        target_layer_ids=tuple(layer_id - 1 for layer_id in ids),
        mask_token_id=keys.integer("mask_token_id"),
        **_attention(keys, layer, backbone["num_layers"]),
        **_vocabulary(keys, backbone.pop("vocab_size"), backbone),
        **markov,
        **backbone,
    )


def _attention(keys: Keys, layer: Keys, num_layers: int) -> dict[str, Any]:
    """Read windows, which count from the anchor; they make the block causal."""
    windowed = windowed_layers(layer, num_layers)
    if not windowed:
        return {}
    non_causal = keys.flag("sliding_window_non_causal", False)
    return {
        "window_layers": windowed,
        "window": layer.integer("sliding_window"),
        "window_rule": "anchor",
        "causal_layers": () if non_causal else windowed,
    }


def _vocabulary(keys: Keys, vocab_size: int, backbone: dict[str, Any]) -> dict:
    """Read the reduced vocabulary; it always has its own LM head in the file."""
    rows = keys.integer("draft_vocab_size", vocab_size)
    if rows == vocab_size:
        return {"vocab_size": vocab_size}
    backbone["owns_lm_head"] = True
    return {"vocab_size": vocab_size, "draft_vocab_size": rows}


def convert(tensors: dict[str, Tensor], spec: DrafterSpec) -> dict[str, Tensor]:
    """Turn the offsets into target ids, and check the two maps against each other.

    >>> offsets, mask = torch.tensor([1, 2]), torch.tensor([0, 1, 0, 1]).bool()
    >>> token_ids(offsets, mask, 4).tolist()
    [1, 3]
    """
    maps = {name for name in ("d2t", "t2d") if name in tensors}
    if not maps:
        return tensors
    rest = {name: value for name, value in tensors.items() if name not in maps}
    if len(maps) == 1:
        got = f"{maps.pop()} alone"
        raise problem("draft vocabulary", "have both maps", "d2t and t2d", got)
    ids = token_ids(tensors["d2t"], tensors["t2d"], spec.vocab_size)
    if spec.draft_vocab_size is not None:
        return rest | {"d2t": ids}
    if not ids.is_meta and not ids.equal(torch.arange(spec.vocab_size)):
        expected = "maps that change nothing"
        got = "draft_vocab_size of the whole vocabulary with other maps"
        raise problem("draft vocabulary", "agree with its maps", expected, got)
    return rest


def token_ids(offsets: Tensor, drafted: Tensor, vocab_size: int) -> Tensor:
    """Return the target id of each draft row: i + d2t[i].

    Raises where the maps have another type or shape, or say different things.
    """
    for name, value, dtype in (
        ("d2t", offsets, torch.int64),
        ("t2d", drafted, torch.bool),
    ):
        if value.dtype != dtype or value.dim() != 1:
            got = f"{value.dtype} of shape {list(value.shape)}"
            raise problem(name, "be a map", f"a row of {dtype}", got)
    if len(drafted) != vocab_size:
        raise problem("t2d", "cover the vocabulary", vocab_size, len(drafted))
    ids = offsets if offsets.is_meta else offsets + torch.arange(len(offsets))
    if not ids.is_meta and not ids.sort().values.equal(drafted.nonzero()[:, 0]):
        expected = "the tokens that t2d marks, each once"
        got = f"{len(ids)} rows for {int(drafted.sum())} marked tokens"
        raise problem("d2t", "agree with t2d", expected, got)
    return ids


SPECULATORS = Layout("speculators", read, extended(DSPARK, REDUCED), convert=convert)
