"""The published layouts: one table each, to and from ``DrafterSpec``.

A layout says how a checkpoint spells two things, its config and its tensor names.
Which layout a folder is in is recognised from both together; a wrong guess would load
cleanly and accept almost nothing, so where they leave it open, loading stops.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from dsparkref.draft.spec import DrafterSpec
from dsparkref.shapes import check_known, problem

Config = dict[str, Any]

BACKBONE_NAMES = {
    "backbone.context_proj.": "fc.",
    "backbone.context_norm.": "hidden_norm.",
    "backbone.norm.": "norm.",
    "backbone.layers.": "layers.",
    ".input_norm.": ".input_layernorm.",
    ".mlp_norm.": ".post_attention_layernorm.",
    ".attention.": ".self_attn.",
    "own_embedding": "embed_tokens.weight",
    "own_lm_head": "lm_head.weight",
}
MARKOV_NAMES = {
    "head.prev_embed.": "markov_head.markov_w1.",
    "head.bias_proj.": "markov_head.markov_w2.",
    "head.gate_proj.": "markov_head.gate_proj.",
    "head.joint_proj.": "markov_head.joint_proj.",
    "confidence.proj.": "confidence_head.proj.",
}
DOMINO_NAMES = {
    "head.gru.weight_ih": "prefix_gru.weight_ih_l0",
    "head.gru.weight_hh": "prefix_gru.weight_hh_l0",
    "head.inner_proj.": "embed_proj.0.",
    "head.bias_proj.": "embed_proj.2.",
}


@dataclass(frozen=True)
class Layout:
    """How one family of checkpoints spells a drafter."""

    name: str
    # the spec from a config and the names of the tensors beside it
    read: Callable[[Config, set[str]], DrafterSpec]
    # parts of our parameter names -> parts of theirs
    names: dict[str, str]

    def tensor_name(self, ours: str) -> str:
        """Return this layout's name of one of our parameters.

        >>> LAYOUTS["deepspec"].tensor_name("head.bias_proj.weight")
        'markov_head.markov_w2.weight'
        """
        for mine, theirs in self.names.items():
            ours = ours.replace(mine, theirs)
        return ours


def recognise(config: Config, names: Iterable[str] = ()) -> str:
    """Return the layout of a config, or stop and say what to pass.

    >>> recognise({"architectures": ["DFlashDraftModel"], "dflash_config": {}})
    'z-lab'
    """
    architectures = config.get("architectures") or ["none"]
    inner = config.get("dflash_config") or {}
    projector = inner.get("projector_type")
    if config.get("layout") == "dsparkref":
        return "dsparkref"
    if "speculators_model_type" not in config:
        if "Qwen3DSparkModel" in architectures:
            return "deepspec"
        if projector == "domino" or "DominoDraftModel" in architectures:
            return "domino"
        plain = not {"projector_type", "shift_label", "sample_from_anchor"} & {
            *inner,
            *config,
        }
        if "DFlashDraftModel" in architectures and plain:
            return "z-lab"
    got = f"architectures {', '.join(architectures)}"
    if projector:
        got += f" with projector_type {projector!r}"
    hint = f"Pass layout= one of {', '.join(LAYOUTS)} if you know that it fits."
    raise problem("checkpoint", "be in a known layout", "a known config", got, hint)


def read_spec(config: Config, names: set[str], layout: str) -> DrafterSpec:
    """Return the spec that ``config`` and the tensor names describe."""
    check_known("layout", layout, tuple(LAYOUTS))
    return LAYOUTS[layout].read(config, names)


def take(config: Config, key: str, where: str = "config.json") -> Any:
    """Return a key that has no safe default."""
    if config.get(key) is None:
        hint = "It cannot be guessed: a wrong value loads cleanly and drafts badly."
        raise problem(key, f"be given in {where}", f"a key {key!r}", "none", hint)
    return config[key]


def rope_theta(config: Config) -> float:
    """Return the rotary base, which stands flat or inside ``rope_parameters``.

    >>> rope_theta({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    1000000.0
    """
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind not in (None, "default"):
        raise problem("rope_type", "be the plain rotary", "'default'", repr(kind))
    found = {
        float(place["rope_theta"])
        for place in (config, nested)
        if place.get("rope_theta") is not None
    }
    if len(found) != 1:
        got = "none" if not found else f"{sorted(found)}"
        raise problem("rope_theta", "be given once", "one value", got)
    return found.pop()


def _backbone(config: Config, names: set[str]) -> dict[str, Any]:
    """Read what all layouts spell alike: a Qwen3 config and the common tensors."""
    if config.get("hidden_act", "silu") != "silu":
        got = repr(config["hidden_act"])
        raise problem("hidden_act", "be the SwiGLU's", "'silu'", got)
    if any(kind != "full_attention" for kind in config.get("layer_types") or []):
        got = ", ".join(sorted(set(config["layer_types"])))
        hint = "Sliding-window draft layers are not written yet."
        raise problem("layer_types", "be full", "full_attention", got, hint)
    heads = take(config, "num_attention_heads")
    hidden = take(config, "hidden_size")
    return {
        "vocab_size": take(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": take(config, "intermediate_size"),
        "num_layers": take(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_theta": rope_theta(config),
        "max_position_embeddings": config.get("max_position_embeddings", 32768),
        "attention_bias": bool(config.get("attention_bias", False)),
        "owns_embedding": "embed_tokens.weight" in names,
        "owns_lm_head": "lm_head.weight" in names,
    }


def _read_deepspec(config: Config, names: set[str]) -> DrafterSpec:
    """DeepSpec: all keys at the top level; the anchor's slot predicts."""
    rank = take(config, "markov_rank")
    head = "dflash"
    if rank:
        kind = take(config, "markov_head_type")
        check_known("markov_head_type", kind, ("vanilla", "gated", "rnn"))
        head = "markov" if kind == "vanilla" else kind
    confidence = bool(config.get("enable_confidence_head", False))
    with_markov = confidence and take(config, "confidence_head_with_markov")
    temperatures = config.get("confidence_temperatures")
    return DrafterSpec(
        head=head,
        block_size=take(config, "block_size"),
        target_layer_ids=tuple(take(config, "target_layer_ids")),
        mask_token_id=take(config, "mask_token_id"),
        rank=rank,
        confidence=confidence,
        confidence_input="hidden+head" if with_markov else "hidden",
        confidence_temperatures=None if temperatures is None else tuple(temperatures),
        **_backbone(config, names),
    )


def _read_zlab(config: Config, names: set[str]) -> DrafterSpec:
    """z-lab: slot 0 predicts nothing, so a block of B inputs gives B-1 drafts."""
    inner = take(config, "dflash_config")
    return DrafterSpec(
        head="dflash",
        block_size=_same(config, inner, "block_size") - 1,
        anchor_predicts=False,
        target_layer_ids=tuple(take(inner, "target_layer_ids", "dflash_config")),
        mask_token_id=take(inner, "mask_token_id", "dflash_config"),
        **_backbone(config, names),
    )


def _read_domino(config: Config, names: set[str]) -> DrafterSpec:
    """Domino: a GRU head; ``shift_label`` says whether the anchor's slot predicts.

    Where absent, ``shift_label`` is false and ``pure_draft_prefix_len`` 0, as in the
    author's code. The prefix counts drafts, the dropped slot 0 not among them.
    """
    inner = take(config, "dflash_config")
    anchor_predicts = bool(inner.get("shift_label", False))
    return DrafterSpec(
        head="domino",
        block_size=_same(config, inner, "block_size") - (not anchor_predicts),
        anchor_predicts=anchor_predicts,
        target_layer_ids=tuple(take(inner, "target_layer_ids", "dflash_config")),
        mask_token_id=take(inner, "mask_token_id", "dflash_config"),
        gru_size=take(inner, "gru_hidden_dim", "dflash_config"),
        inner_size=_same(config, inner, "emb_dim"),
        pure_draft_prefix_len=inner.get("pure_draft_prefix_len", 0),
        **_backbone(config, names),
    )


def _same(config: Config, inner: Config, key: str) -> Any:
    """Return a key that may stand at two places, and must agree if it does."""
    found = [place[key] for place in (config, inner) if place.get(key) is not None]
    if len(set(found)) > 1:
        raise problem(key, "agree at both places", "one value", found)
    return found[0] if found else take(config, key)


def _read_own(config: Config, names: set[str]) -> DrafterSpec:
    """Our own layout: the spec's fields, as they are."""
    notes = ("layout", "dtype")
    fields = {key: value for key, value in config.items() if key not in notes}
    for key in ("target_layer_ids", "confidence_temperatures"):
        if fields.get(key) is not None:
            fields[key] = tuple(fields[key])
    known = set(DrafterSpec.__dataclass_fields__)
    if fields.keys() - known:
        got = ", ".join(sorted(fields.keys() - known))
        raise problem("config.json", "hold known keys", "DrafterSpec's fields", got)
    return DrafterSpec(**fields)


def write_config(spec: DrafterSpec) -> Config:
    """Return the config of our own layout."""
    return {"layout": "dsparkref", **asdict(spec)}


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("dsparkref", _read_own, {}),
        Layout("deepspec", _read_deepspec, BACKBONE_NAMES | MARKOV_NAMES),
        Layout("z-lab", _read_zlab, BACKBONE_NAMES),
        Layout("domino", _read_domino, BACKBONE_NAMES | DOMINO_NAMES),
    )
}
