"""The family around z-lab's DFlash, with its keys in ``dflash_config``.

Four layouts share it and differ in defaults: z-lab's own (and SpecForge's and
ModelOpt's plain DFlash, which are in it too), Domino, SpecForge's DSpark, ModelOpt's.
A block of B slots gives B drafts where the anchor's slot predicts, else B-1.
"""

from typing import Any

from dsparkref.checkpoints.formats.layout import Layout
from dsparkref.checkpoints.formats.names import (
    BARE_DSPARK,
    DFLASH,
    DOMINO,
    DSPARK,
)
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
from dsparkref.checkpoints.formats.writing import write_dflash
from dsparkref.draft.spec import DrafterSpec
from dsparkref.shapes import check_known, problem


def read_zlab(config: Config, tensors: Tensors) -> DrafterSpec:
    """z-lab: no head; slot 0 predicts nothing unless a key says that it does."""
    keys = _keys(config)
    shifted = keys.flag("shift_label", keys.flag("sample_from_anchor", False))
    rule = "slot, block too"
    return _spec(config, tensors, shifted, window_rule=rule, head="dflash")


def read_domino(config: Config, tensors: Tensors) -> DrafterSpec:
    """Domino: a GRU head. Where absent, no label shift and no prefix.

    The prefix counts drafts, a dropped slot 0 not among them.
    """
    return _domino(config, tensors, shift_label=False, prefix=0)


def read_specforge(config: Config, tensors: Tensors) -> DrafterSpec:
    """SpecForge's DSpark: the anchor's slot predicts; confidence reads h_k alone."""
    keys = _keys(config)
    keys.refuse_unless("sample_from_anchor", True)
    trained = keys.number("confidence_head_alpha", 0.0) > 0
    present = keys.flag("enable_confidence_head", trained)
    return _spec(
        config,
        tensors,
        True,
        **read_markov(keys, keys.integer("markov_rank", 0), "vanilla"),
        **read_confidence(keys, present, with_markov=False),
    )


def read_modelopt(config: Config, tensors: Tensors) -> DrafterSpec:
    """ModelOpt: DSpark or Domino, the anchor's slot predicts; else plain DFlash."""
    keys = _keys(config)
    projector = keys.get("projector_type", "dflash")
    check_known("projector_type", projector, ("dflash", "dspark", "domino"))
    if projector == "dflash":
        return read_zlab(config, tensors)
    if projector == "domino":
        return _domino(config, tensors, shift_label=True, prefix=1)
    keys.refuse_unless("shift_label", True)
    keys.refuse_unless("confidence_head_with_markov", True)
    present = keys.flag("use_confidence_head", False)
    return _spec(
        config,
        tensors,
        True,
        **read_markov(keys, keys.integer("markov_rank"), "vanilla"),
        **read_confidence(keys, present, with_markov=True),
    )


def write_zlab(spec: DrafterSpec) -> Config:
    """Return a config of plain DFlash."""
    return write_dflash(spec, "DFlashDraftModel")[0]


def write_domino(spec: DrafterSpec) -> Config:
    """Return a config of Domino; it repeats ``emb_dim`` at the top level."""
    config, inner = write_dflash(spec, "DominoDraftModel")
    inner |= {
        "projector_type": "domino",
        "shift_label": spec.anchor_predicts,
        "pure_draft_prefix_len": spec.pure_draft_prefix_len,
        "gru_hidden_dim": spec.gru_size,
        "emb_dim": spec.inner_size,
    }
    return config | {"emb_dim": spec.inner_size}


def _keys(config: Config) -> Keys:
    inner = section(config, "dflash_config")
    return Keys(config, inner, where="dflash_config")


def _domino(
    config: Config, tensors: Tensors, *, shift_label: bool, prefix: int
) -> DrafterSpec:
    keys = _keys(config)
    keys.refuse_unless("projector_type", "domino")
    return _spec(
        config,
        tensors,
        keys.flag("shift_label", shift_label),
        head="domino",
        gru_size=keys.integer("gru_hidden_dim"),
        inner_size=keys.integer("emb_dim"),
        pure_draft_prefix_len=keys.integer("pure_draft_prefix_len", prefix),
    )


def _spec(
    config: Config,
    tensors: Tensors,
    anchor_predicts: bool,
    *,
    window_rule: str = "slot",
    **parts: Any,
) -> DrafterSpec:
    """Return the spec from what the family spells alike and the parts given."""
    keys, backbone = _keys(config), read_backbone(Keys(config), tensors)
    keys.refuse_unless("attention_sink_bias", False)
    keys.refuse_unless("output_multiplier", 1)
    keys.refuse_unless("final_logit_softcapping", 0)
    return DrafterSpec(
        block_size=keys.integer("block_size") - (not anchor_predicts),
        anchor_predicts=anchor_predicts,
        target_layer_ids=keys.integers("target_layer_ids"),
        mask_token_id=keys.integer("mask_token_id"),
        **_attention(keys, backbone["num_layers"], window_rule),
        **parts,
        **backbone,
    )


def _attention(keys: Keys, num_layers: int, window_rule: str) -> dict[str, Any]:
    """Read windows and causal blocks.

    Layers named sliding have a window and, unless told otherwise, a causal block.
    ModelOpt names all layers full, and says ``use_swa`` and ``causal`` for all.
    """
    everywhere = tuple(range(num_layers))
    swa = keys.flag("use_swa", False)
    windowed = everywhere if swa else windowed_layers(keys, num_layers)
    causal = () if keys.flag("sliding_window_non_causal", False) else windowed
    for key in ("is_causal", "causal"):
        if keys.has(key):
            causal = everywhere if keys.flag(key, False) else ()
    if not windowed:
        return {"causal_layers": causal}
    window = keys.integer("swa_window_size" if swa else "sliding_window")
    if keys.get("sliding_window", window) != window:
        got = f"{window} and {keys.get('sliding_window')}"
        rule = "agree with sliding_window"
        raise problem("swa_window_size", rule, "one window", got)
    return {
        "window_layers": windowed,
        "window": window,
        "window_rule": "slot" if swa else window_rule,
        "causal_layers": causal,
    }


OLD_PREFIX = "logit_head."
ZLAB = Layout(
    "z-lab",
    read_zlab,
    DFLASH,
    write_zlab,
    expresses=frozenset(("a dropped slot 0",)),
)
DOMINO_LAYOUT = Layout(
    "domino",
    read_domino,
    DOMINO,
    write_domino,
    expresses=frozenset(("head", "an anchor slot that predicts", "a dropped slot 0")),
    old_prefix=OLD_PREFIX,
)
SPECFORGE = Layout("specforge", read_specforge, DSPARK, old_prefix=OLD_PREFIX)
MODELOPT = Layout("modelopt", read_modelopt, BARE_DSPARK | DOMINO | DFLASH)
