"""The published layouts: one row each, to and from ``DrafterSpec``.

A layout says how a checkpoint spells two things, its config and its tensor names.
Which layout a folder is in is recognised from both together; a wrong guess would load
cleanly and accept almost nothing, so where they leave it open, loading stops.
"""

from collections.abc import Iterable

from dsparkref.checkpoints.formats.deepspec import DEEPSPEC
from dsparkref.checkpoints.formats.dflash import (
    DOMINO_LAYOUT,
    MODELOPT,
    SPECFORGE,
    ZLAB,
)
from dsparkref.checkpoints.formats.layout import Layout
from dsparkref.checkpoints.formats.own import OWN
from dsparkref.checkpoints.formats.reading import Config, Keys, Tensors
from dsparkref.checkpoints.formats.speculators import SPECULATORS
from dsparkref.draft.spec import DrafterSpec
from dsparkref.shapes import check_known, problem

_ROWS = (OWN, DEEPSPEC, ZLAB, DOMINO_LAYOUT, SPECFORGE, MODELOPT, SPECULATORS)
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _ROWS}
SAVED = tuple(name for name, layout in LAYOUTS.items() if layout.write)

# keys that move the slots; without any of them, plain DFlash is z-lab's
SLOT_KEYS = ("projector_type", "shift_label", "sample_from_anchor")


def find_layout(name: str) -> Layout:
    """Return a layout by its name."""
    check_known("layout", name, tuple(LAYOUTS))
    return LAYOUTS[name]


def recognise(config: Config, names: Iterable[str] = ()) -> str:
    """Return the layout of a config and the tensor names beside it, or stop.

    >>> recognise({"architectures": ["DFlashDraftModel"], "dflash_config": {}})
    'z-lab'
    >>> inner = {"projector_type": "dspark"}
    >>> config = {"architectures": ["DFlashDraftModel"], "dflash_config": inner}
    >>> recognise(config, ["markov_w1.weight"])
    'modelopt'
    >>> recognise(config, ["markov_head.markov_w1.weight"])
    Traceback (most recent call last):
    ValueError: checkpoint must be in a known layout: expected one layout for config \
and tensor names, got modelopt by its config, specforge by its tensor names. Pass \
layout= one of dsparkref, deepspec, z-lab, domino, specforge, modelopt, speculators \
if you know that it fits.
    """
    by_config, by_names = _by_config(config), _by_names(names)
    expected = "one layout for config and tensor names"
    if by_config is None:
        got = _what_it_says(config)
    elif by_names and by_config not in by_names:
        got = f"{by_config} by its config, {by_names[-1]} by its tensor names"
    else:
        return by_config
    hint = f"Pass layout= one of {', '.join(LAYOUTS)} if you know that it fits."
    raise problem("checkpoint", "be in a known layout", expected, got, hint)


def _by_config(config: Config) -> str | None:
    architectures = _architectures(config)
    inner = config.get("dflash_config")
    keys = Keys(config, inner if isinstance(inner, dict) else {})
    projector = keys.get("projector_type")
    dflash = "DFlashDraftModel" in architectures
    if config.get("layout") == "dsparkref":
        return "dsparkref"
    if keys.has("speculators_model_type"):
        return "speculators"
    if "Qwen3DSparkModel" in architectures:
        return "deepspec"
    if projector == "domino" or "DominoDraftModel" in architectures:
        # ModelOpt alone writes ``causal``, always
        return "modelopt" if dflash and keys.has("causal") else "domino"
    if projector == "dspark" and dflash:
        return "modelopt"
    if "DSparkDraftModel" in architectures and projector in ("dspark", None):
        return "specforge" if isinstance(inner, dict) else None
    plain = not any(keys.has(key) for key in SLOT_KEYS)
    return "z-lab" if dflash and plain else None


def _by_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return which layouts spell the head like this; none where there is no head."""
    plain = [name.removeprefix("logit_head.") for name in names]
    starts = {name.partition(".")[0] for name in plain}
    if "markov_head" in starts:
        return ("deepspec", "speculators", "specforge")
    if starts & {"markov_w1", "confidence_proj"}:
        return ("modelopt",)
    if "prefix_gru" in starts:
        return ("modelopt", "domino")
    return ("dsparkref",) if "backbone" in starts else ()


def _architectures(config: Config) -> list[str]:
    found = config.get("architectures")
    return [str(name) for name in found] if isinstance(found, list) else []


def _what_it_says(config: Config) -> str:
    got = f"architectures {', '.join(_architectures(config)) or 'none'}"
    inner = config.get("dflash_config")
    keys = Keys(config, inner if isinstance(inner, dict) else {})
    said = [f"{key} {keys.get(key)!r}" for key in SLOT_KEYS if keys.has(key)]
    return f"{got} with {', '.join(said)}" if said else got


def read_spec(config: Config, tensors: Tensors, layout: str) -> DrafterSpec:
    """Return the spec that a config and the tensors beside it describe."""
    return find_layout(layout).read(config, tensors)
