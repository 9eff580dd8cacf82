"""One drafter in the words of each of the six published layouts, as small folders.

``save_drafter`` writes three of them. The other three are read only, so that the same
weights are renamed here, which shows how little there is between the layouts.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from dsparkref.checkpoints.files import read_config, write_json
from dsparkref.checkpoints.inspect import inspect_source
from dsparkref.checkpoints.io import Pair, new_drafter, save_drafter
from dsparkref.checkpoints.weights import read_tensors
from dsparkref.draft.drafter import Drafter

Config = dict[str, Any]
# layouts that hold DSpark's heads, and so can hold one and the same drafter
DSPARK = ("deepspec", "specforge", "modelopt", "speculators")
MARKOV_KEYS = ("markov_rank", "markov_head_type", "confidence_head_with_markov")
TABLES = ("embed_tokens.weight", "lm_head.weight")


def write_six(pair: Pair, folder: Path) -> dict[str, Path]:
    """Write a folder per layout: layout -> place.

    The four of ``DSPARK`` hold the pair's own drafter (a random one where that is no
    DSpark); z-lab's holds its backbone alone, Domino's a head of random weights.
    """
    own = pair.drafter
    if own.head_type not in ("markov", "gated", "rnn"):
        own = new_drafter(pair.target, head="markov", generator=0)
    places = {name: folder / name for name in (*DSPARK, "z-lab", "domino")}
    save_drafter(own, places["deepspec"], layout="deepspec")
    for name, rewrite in REWRITES.items():
        _rewritten(places["deepspec"], places[name], rewrite)
    save_drafter(_plain(pair, own), places["z-lab"], layout="z-lab")
    size = own.block_size
    domino = new_drafter(
        pair.target, head="domino", block_size=size, confidence=False, generator=0
    )
    save_drafter(domino, places["domino"], layout="domino")
    return places


def facts_table(places: dict[str, Path], labels: tuple[str, ...]) -> str:
    """Return what ``describe`` says about each folder, under a few of its labels."""
    lines = []
    for name, place in places.items():
        facts = inspect_source(place)
        words = [f"   {label}: {facts[label]}" for label in labels]
        lines += [name, *words]
    return "\n".join(lines)


def spellings(places: dict[str, Path]) -> str:
    """Return where each layout keeps its keys, and how it spells the head's tensors."""
    lines = []
    for name, place in places.items():
        config, tensors = read_config(place), read_tensors(place)
        objects = [key for key, value in config.items() if isinstance(value, dict)]
        nested = [key for key in objects if not key.startswith("rope")]
        common = ("layers.", "fc.", "norm.", "hidden_norm.", *TABLES)
        parts = (
            key.rpartition(".")[0] for key in tensors if not key.startswith(common)
        )
        head = sorted(set(parts))
        lines += [
            f"{name}: {config['architectures'][0]}",
            f"   keys inside: {', '.join(nested) or 'none, all at the top'}",
            f"   head: {', '.join(head) or 'none'}",
        ]
    return "\n".join(lines)


def _plain(pair: Pair, own: Drafter) -> Drafter:
    """Return the backbone alone, as z-lab's DFlash; only its file is looked at."""
    spec = replace(
        own.spec,
        head="dflash",
        rank=0,
        confidence=False,
        confidence_input="hidden",
        confidence_temperatures=None,
        anchor_predicts=False,
        owns_embedding=False,
        owns_lm_head=False,
    )
    plain = Drafter(spec, pair.target.embedding, pair.target.lm_head)
    plain.backbone.load_state_dict(own.backbone.state_dict())
    return plain.to(device=own.device, dtype=own.dtype)


def _rewritten(
    source: Path, folder: Path, rewrite: Callable[[Config, str], tuple[Config, str]]
) -> None:
    config, tensors = read_config(source), read_tensors(source)
    renamed: dict[str, Tensor] = {}
    written: Config = {}
    for name, value in tensors.items():
        written, spelt = rewrite(config, name)
        if name not in TABLES:  # the target's, in these three
            renamed[spelt] = value
    folder.mkdir(parents=True)
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", written)


def _shared(config: Config, *moved: str) -> Config:
    """Return the keys of a Qwen3 config, without those that a layout keeps inside."""
    inside = {*MARKOV_KEYS, "enable_confidence_head", *moved}
    return {key: value for key, value in config.items() if key not in inside}


def _inner(config: Config) -> Config:
    keys = ("mask_token_id", "target_layer_ids")
    return {key: config[key] for key in (*keys, *MARKOV_KEYS) if key in config}


def _specforge(config: Config, name: str) -> tuple[Config, str]:
    inner = _inner(config) | {"projector_type": "dspark"}
    inner["enable_confidence_head"] = config["enable_confidence_head"]
    outer = _shared(config, "mask_token_id", "target_layer_ids")
    return outer | {
        "architectures": ["DSparkDraftModel"],
        "dflash_config": inner,
    }, name


def _modelopt(config: Config, name: str) -> tuple[Config, str]:
    inner = _inner(config) | {"projector_type": "dspark", "shift_label": True}
    inner["use_confidence_head"] = config["enable_confidence_head"]
    outer = _shared(config, "mask_token_id", "target_layer_ids", "rope_parameters")
    outer["rope_theta"] = config["rope_parameters"]["rope_theta"]  # spelt flat
    short = name.removeprefix("markov_head.")
    short = short.replace("confidence_head.proj", "confidence_proj")
    return outer | {
        "architectures": ["DFlashDraftModel"],
        "dflash_config": inner | {"causal": False},
    }, short


def _speculators(config: Config, name: str) -> tuple[Config, str]:
    layer = _shared(config, "mask_token_id", "target_layer_ids", "block_size")
    keys = (*MARKOV_KEYS, "enable_confidence_head", "mask_token_id", "block_size")
    outer = {key: config[key] for key in keys if key in config}
    return outer | {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "sample_from_anchor": True,
        "draft_vocab_size": config["vocab_size"],
        # these count the embedding as 0
        "aux_hidden_state_layer_ids": [i + 1 for i in config["target_layer_ids"]],
        "transformer_layer_config": layer,
    }, name


REWRITES = {
    "specforge": _specforge,
    "modelopt": _modelopt,
    "speculators": _speculators,
}
