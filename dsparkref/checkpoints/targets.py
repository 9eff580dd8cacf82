"""Load a target: any causal language model whose cache can be rolled back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsparkref.checkpoints.files import (
    Source,
    find_folder,
    read_config,
    resolve_dtype,
)
from dsparkref.checkpoints.weights import read_headers
from dsparkref.decode.target import Target
from dsparkref.shapes import check_range, check_sequence, problem

# where configs name the kinds of their layers
LAYER_KEYS = ("layer_types", "layers_block_type", "block_types")
# where they say how many layers there are
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# families without attention, whose configs name no layers
RECURRENT = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma")


def load_target(
    source: Source = "tiny",
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | str = "auto",
) -> Target:
    """Load a target: ``"tiny"``, a folder, or a Hub id.

    Any causal language model of transformers with ordinary attention will do; layers
    whose state cannot be rolled back are refused by name.

    device "auto": cuda where there is one, else cpu. dtype "auto": float32 on a CPU,
    bfloat16 where the GPU has it, else float16, whatever the file holds.
    """
    from transformers import AutoModelForCausalLM

    where = resolve_device(device)
    kind = auto_dtype(where) if dtype == "auto" else resolve_dtype(dtype)
    folder = find_folder(source)
    config, headers = read_config(folder), read_headers(folder)
    check_rollback(config)
    check_depth(config, headers)
    with quiet_transformers():
        try:
            check_sizes(folder, headers)
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=kind,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except Exception as error:  # the library raises many kinds
            hint = (str(error) or repr(error)).splitlines()[0]
            expected = "a causal language model in safetensors"
            raise problem("target", "load", expected, folder, hint) from error
        tokenizer = _load_tokenizer(folder)
    if report["missing_keys"]:  # the library fills them with random numbers
        got = f"missing: {', '.join(sorted(report['missing_keys']))}"
        raise problem("weights", "match the config by name", "every tensor", got)
    return Target(model.to(where), tokenizer)


def check_depth(config: dict[str, Any], headers: Mapping[str, Tensor]) -> None:
    """Refuse more layers than the files hold tensors: they would be built one by one.

    >>> check_depth({"num_hidden_layers": 10**9}, {"embed_tokens.weight": None})
    Traceback (most recent call last):
    ValueError: num_hidden_layers must be in range: expected an integer >= 1 and \
<= 1, got 1000000000.
    """
    config = language_part(config)
    for name in DEPTH_KEYS:
        if config.get(name) is not None:
            check_range(name, config[name], 1, max(1, len(headers)), integer=True)


def language_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the language model: that of several senses nests it.

    >>> language_part({"text_config": {"num_hidden_layers": 2}, "vision_config": {}})
    {'num_hidden_layers': 2}
    """
    found = config.get("text_config") or config
    if not isinstance(found, dict):
        rule, expected = "be a JSON object", "the language model's config"
        raise problem("text_config", rule, expected, found)
    return found


def check_sizes(folder: Path, headers: Mapping[str, Tensor]) -> None:
    """Refuse a config whose tensors are not the file's, before any memory is taken."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        blank = AutoModelForCausalLM.from_config(config).state_dict()
    for name, wanted in blank.items():
        found = headers.get(name)  # renamed or packed tensors are the library's affair
        if found is None or not found.is_floating_point():
            continue
        if found.shape != wanted.shape:
            expected, got = list(wanted.shape), list(found.shape)
            raise problem(name, "match the config by shape", expected, got)


def check_rollback(config: dict[str, Any]) -> None:
    """Refuse layers from which rejected tokens cannot be taken back.

    A key-value cache forgets its last tokens by cutting them off. A recurrent state
    has them mixed in, and a sliding window has already dropped what they pushed out;
    a window as long as the model's context never drops anything.

    >>> check_rollback({"layer_types": ["full_attention", "linear_attention"]})
    Traceback (most recent call last):
    ValueError: target's layer_types must keep every token: expected full_attention, \
got linear_attention. Their state cannot be rolled back after a rejection.
    """
    config = language_part(config)
    kinds = set()
    for name in LAYER_KEYS:
        named = config.get(name) or []
        check_sequence(name, named)
        kinds |= set(map(str, named))
    window = config.get("sliding_window")
    if config.get("use_sliding_window") is False:
        window = None
    if window is not None and not kinds:  # all layers have it
        kinds = {"sliding_attention"}
    context = config.get("max_position_embeddings")
    if window is not None and context is not None and window >= context:
        kinds -= {"sliding_attention"}
    bad = sorted(kinds - {"full_attention", "attention"})
    if config.get("model_type") in RECURRENT:
        bad.append(f"model_type {config['model_type']}")
    if bad:
        hint = "Their state cannot be rolled back after a rejection."
        rule, got = "keep every token", ", ".join(bad)
        raise problem("target's layer_types", rule, "full_attention", got, hint)


def resolve_device(device: str | torch.device) -> torch.device:
    """Return a device of this machine from itself, its name, or "auto"."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError, ValueError):  # torch raises any of them
        where = None
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": _count_mps()}
    if where is None or where.type not in counts:
        expected = "'auto', 'cpu', 'cuda' or 'mps'"
        raise problem("device", "be known", expected, repr(device))
    if (where.index or 0) >= counts[where.type]:
        expected = "a device of this machine"
        raise problem("device", "be there", expected, repr(str(device)))
    return where


def _count_mps() -> int:
    return int(torch.backends.mps.is_available())


def auto_dtype(device: torch.device) -> torch.dtype:
    """Return what weights are loaded as on a device unless a dtype is asked for."""
    if device.type == "cpu":
        return torch.float32
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.bfloat16
    return torch.float16


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").exists():
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises many kinds
        hint = (str(error) or repr(error)).splitlines()[0]
        expected, got = "a tokenizer of transformers", folder
        raise problem("tokenizer", "load", expected, got, hint) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep the library's progress bars off, and leave its switch as it was."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
