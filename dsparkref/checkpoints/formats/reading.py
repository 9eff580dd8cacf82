"""How to read a config: a key is there, of its type, and the same wherever it stands.

The words of the layouts differ; the rules here are theirs in common. A key that is
given at two places must agree, a key without a safe default must be there, and a
value of the wrong type is named before it reaches anything that computes.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dsparkref.draft.spec import MOST
from dsparkref.shapes import check_known, check_range, problem

Config = dict[str, Any]
# tensors by the file's own names; on the meta device where only headers were read
Tensors = Mapping[str, Tensor]

UNGUESSABLE = "It cannot be guessed: a wrong value loads cleanly and drafts badly."
HEADS_BY_TYPE = {"vanilla": "markov", "gated": "gated", "rnn": "rnn"}


def section(config: Config, key: str) -> Config:
    """Return an object inside a config; it must be there."""
    found = config.get(key)
    if not isinstance(found, dict):
        got = "none" if found is None else repr(found)
        raise problem(key, "be given in config.json", f"an object {key!r}", got)
    return found


class Keys:
    """A config's keys, looked up at one or two places that must agree.

    >>> keys = Keys({"block_size": 8}, {"block_size": 8, "mask_token_id": 3})
    >>> keys.integer("block_size"), keys.flag("shift_label", False)
    (8, False)
    >>> Keys({"block_size": 8}, {"block_size": 7}).integer("block_size")
    Traceback (most recent call last):
    ValueError: block_size must agree at both places: expected one value, got 8 and 7.
    """

    def __init__(self, *places: Config, where: str = "config.json") -> None:
        self.places = places
        self.where = where  # what an error calls the place where a key is missing

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; null counts as absent."""
        found = [place[key] for place in self.places if place.get(key) is not None]
        if any(value != found[0] for value in found):
            got = " and ".join(map(str, found))
            raise problem(key, "agree at both places", "one value", got)
        return found[0] if found else default

    def has(self, key: str) -> bool:
        """Whether a key is given."""
        return self.get(key) is not None

    def take(self, key: str) -> Any:
        """Return a value that has no safe default."""
        found = self.get(key)
        if found is None:
            rule, expected = f"be given in {self.where}", f"a key {key!r}"
            raise problem(key, rule, expected, "none", UNGUESSABLE)
        return found

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer >= 0; without a default it must be there."""
        found = self.take(key) if default is None else self.get(key, default)
        check_range(key, found, 0, integer=True)
        return found

    def number(self, key: str, default: float) -> float:
        """Return a finite number >= 0."""
        found = self.get(key, default)
        check_range(key, found, 0.0)
        return float(found)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false, never the truth of a string."""
        found = self.get(key, default)
        if not isinstance(found, bool):
            raise problem(key, "be a flag", "true or false", repr(found))
        return found

    def integers(self, key: str, default: list[int] | None = None) -> tuple[int, ...]:
        """Return a list of integers; without a default it must be there."""
        found = self.take(key) if default is None else self.get(key, default)
        if not isinstance(found, list):
            raise problem(key, "be a list", "integers", repr(found))
        for value in found:
            check_range(key, value, -1, integer=True)
        return tuple(found)

    def refuse_unless(self, key: str, *values: Any) -> None:
        """Refuse a value that nothing here computes; absent is fine."""
        found = self.get(key)
        if found is not None and found not in values:
            expected = " or ".join(map(repr, values)) or "no such key"
            hint = "This project does not compute it otherwise."
            raise problem(key, "be what is computed here", expected, repr(found), hint)


def rope_theta(keys: Keys) -> float:
    """Return the rotary base: flat, or inside ``rope_parameters`` or ``rope_scaling``.

    >>> rope_theta(Keys({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e6}))
    1000000.0
    """
    places = list(keys.places)
    for name in ("rope_parameters", "rope_scaling"):
        nested = keys.get(name) or {}
        if not isinstance(nested, dict):
            raise problem(name, "be an object", "rotary settings", repr(nested))
        # some configs hold one object per kind of layer
        kinds = [value for value in nested.values() if isinstance(value, dict)]
        places += kinds or [nested]
    for place in places[len(keys.places) :]:
        for kind in (place.get("rope_type"), place.get("type")):  # the older name
            if kind not in (None, "default"):
                rule, expected = "be the plain rotary", "'default'"
                raise problem("rope_type", rule, expected, repr(kind))
    Keys(*places).refuse_unless("partial_rotary_factor", 1.0)
    found = [p["rope_theta"] for p in places if p.get("rope_theta") is not None]
    for value in found:
        check_range("rope_theta", value, 0.0, open_low=True)
    if len({float(value) for value in found}) != 1:
        got = sorted(map(float, found)) or "none"
        raise problem("rope_theta", "be given once", "one value", got)
    return float(found[0])


def read_backbone(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    """Read what all layouts spell alike: a Qwen3 config and the common tensors."""
    keys.refuse_unless("hidden_act", "silu")
    keys.refuse_unless("attention_sink_bias", False)
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    check_range("num_attention_heads", heads, 1, integer=True)
    layers = keys.integer("num_hidden_layers")
    check_range("num_hidden_layers", layers, 1, MOST, integer=True)
    return {
        "vocab_size": keys.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": keys.integer("intermediate_size"),
        "num_layers": layers,
        "num_target_layers": keys.get("num_target_layers"),
        "num_heads": heads,
        "num_kv_heads": keys.integer("num_key_value_heads", heads),
        "head_dim": keys.integer("head_dim", _head_dim(tensors, hidden // heads)),
        "rms_norm_eps": keys.number("rms_norm_eps", 1e-6),
        "rope_theta": rope_theta(keys),
        "max_position_embeddings": keys.integer("max_position_embeddings", 32768),
        "attention_bias": keys.flag("attention_bias", False),
        "owns_embedding": "embed_tokens.weight" in tensors,
        "owns_lm_head": "lm_head.weight" in tensors,
    }


def _head_dim(tensors: Tensors, default: int) -> int:
    """Return the width of a head: q_norm has one weight for each of its numbers."""
    norm = tensors.get("layers.0.self_attn.q_norm.weight")
    return default if norm is None or not norm.numel() else norm.numel()


def read_markov(keys: Keys, rank: int, default_type: str | None) -> dict[str, Any]:
    """Read which of DSpark's heads it is; rank 0 is none, which is DFlash."""
    if not rank:
        return {"head": "dflash"}
    kind = keys.get("markov_head_type", default_type) or keys.take("markov_head_type")
    check_known("markov_head_type", kind, tuple(HEADS_BY_TYPE))
    return {"head": HEADS_BY_TYPE[kind], "rank": rank}


def read_confidence(
    keys: Keys, present: bool, with_markov: bool | None
) -> dict[str, Any]:
    """Read the confidence head; ``with_markov`` None: the key must be there."""
    if not present:
        return {}
    if with_markov is None:
        keys.take("confidence_head_with_markov")
    reads_head = keys.flag("confidence_head_with_markov", bool(with_markov))
    temperatures = keys.get("confidence_temperatures")
    if temperatures is not None and not isinstance(temperatures, list):
        got = repr(temperatures)
        raise problem("confidence_temperatures", "be a list", "numbers", got)
    return {
        "confidence": True,
        "confidence_input": "hidden+head" if reads_head else "hidden",
        "confidence_temperatures": temperatures and tuple(temperatures),
    }


def windowed_layers(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """Return which draft layers ``layer_types`` calls sliding."""
    types = keys.get("layer_types", [])  # none: all full
    if not isinstance(types, list):
        raise problem("layer_types", "be a list", "a name per layer", repr(types))
    for kind in types:
        check_known("layer_types", kind, ("full_attention", "sliding_attention"))
    sliding = tuple(i for i, kind in enumerate(types) if kind == "sliding_attention")
    if sliding and len(types) != num_layers:
        expected = f"{num_layers} names"
        raise problem("layer_types", "have one name per layer", expected, len(types))
    return sliding


def refuse_windows(keys: Keys, num_layers: int) -> None:
    """Refuse draft layers with a window, of which this layout's code says nothing."""
    if windowed_layers(keys, num_layers):
        expected, got = "full_attention", "sliding_attention"
        raise problem("layer_types", "be full in this layout", expected, got)
