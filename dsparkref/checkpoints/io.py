"""Load and save targets and drafters."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dsparkref.checkpoints.files import (
    Source,
    find_folder,
    read_config,
    read_tensors,
    replaced_folder,
    resolve_dtype,
    weight_files,
    write_json,
)
from dsparkref.checkpoints.formats import LAYOUTS, read_spec, recognise, write_config
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.spec import HEADS, DrafterSpec
from dsparkref.shapes import check_known, check_range, dtype_name, problem
from dsparkref.verify.sampling import as_generator

QWEN3_4B_DRAFTERS = {
    "dflash": "deepseek-ai/dflash_qwen3_4b_block7",
    "markov": "deepseek-ai/dspark_qwen3_4b_block7",
    "dflash-b16": "z-lab/Qwen3-4B-DFlash-b16",
    "domino": "Huang2020/Qwen3-4B-Domino-b16",
}


@dataclass(frozen=True)
class Pair:
    """A target and a drafter made for it."""

    target: Target
    drafter: Drafter


def load_target(
    source: Source = "tiny",
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | str = "auto",
) -> Target:
    """Load a target: ``"tiny"``, a folder, or a Hub id.

    device "auto": cuda where there is one, else cpu. dtype "auto": float32 on a CPU,
    bfloat16 where the GPU has it, else float16, whatever the file holds.
    """
    from transformers import AutoModelForCausalLM

    where = _resolve_device(device)
    kind = _auto_dtype(where) if dtype == "auto" else resolve_dtype(dtype)
    folder = find_folder(source)
    read_config(folder)
    weight_files(folder)
    with quiet_transformers():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=kind,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except Exception as error:  # the library raises many kinds
            hint = str(error).splitlines()[0]
            expected = "a causal language model in safetensors"
            raise problem("target", "load", expected, folder, hint) from error
        tokenizer = _load_tokenizer(folder)
    if report["missing_keys"]:  # the library fills them with random numbers
        got = f"missing: {', '.join(sorted(report['missing_keys']))}"
        raise problem("weights", "match the config by name", "every tensor", got)
    return Target(model.to(where), tokenizer)


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
    dtype None: the target's. Every tensor of the file is used or refused by name.
    """
    folder = find_folder(source)
    config, tensors = read_config(folder), read_tensors(folder)
    layout = recognise(config, tensors) if layout is None else layout
    check_known("layout", layout, tuple(LAYOUTS))
    if config.get("tie_word_embeddings") and "embed_tokens.weight" in tensors:
        tensors.setdefault("lm_head.weight", tensors["embed_tokens.weight"])
    spec = read_spec(config, set(tensors), layout)
    check_fit(spec, target, config.get("num_target_layers"))
    kind = target.dtype if dtype is None else resolve_dtype(dtype)
    where = target.device if device is None else _resolve_device(device)
    drafter = Drafter(spec, target.embedding, target.lm_head)
    drafter = drafter.to(device=where, dtype=kind)  # before the values: float64 stays
    _fill(drafter, tensors, layout)
    return drafter.eval()


def new_drafter(
    target: Target,
    *,
    head: str = "markov",
    block_size: int = 7,
    num_layers: int = 2,
    target_layer_ids: Sequence[int] | None = None,
    rank: int = 64,
    gru_size: int = 96,
    inner_size: int = 64,
    pure_draft_prefix_len: int = 0,
    confidence: bool = True,
    mask_token_id: int | None = None,
    generator: torch.Generator | int | None = None,
) -> Drafter:
    """Return a drafter with random weights, shaped after the target.

    Taps default to three layers, evenly from the 2nd to the 3rd-last. The mask token
    defaults to the tokenizer's. Weights are normal with standard deviation
    1 / sqrt(inputs) in the backbone and 0.02 elsewhere.
    """
    check_known("head", head, HEADS)
    generator = as_generator(generator)
    config, markov = target.model.config, head in ("markov", "gated", "rnn")
    domino = head == "domino"
    if target_layer_ids is None:
        target_layer_ids = _default_taps(target.num_layers)
    if mask_token_id is None:
        mask_token_id = _mask_token_id(target)
    heads = config.num_attention_heads
    spec = DrafterSpec(
        head=head,
        block_size=block_size,
        target_layer_ids=tuple(target_layer_ids),
        mask_token_id=mask_token_id,
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or target.hidden_size // heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        rank=rank if markov else 0,
        gru_size=gru_size if domino else 0,
        inner_size=inner_size if domino else 0,
        pure_draft_prefix_len=pure_draft_prefix_len if domino else 0,
        confidence=confidence,
        confidence_input="hidden" if head == "dflash" else "hidden+head",
    )
    check_fit(spec, target)
    drafter = Drafter(spec, target.embedding, target.lm_head)
    _randomise(drafter, generator)
    return drafter.to(device=target.device, dtype=target.dtype)


def load_pair(name: str | None = None, head: str = "markov") -> Pair:
    """Load a target and its drafter by one name.

    ``"tiny"``, ``"qwen3-4b"`` or ``"TARGET,DRAFTER"`` (folders or Hub ids); None
    takes the environment variable DSPARKREF_PAIR, and ``"tiny"`` without it.
    """
    name = name or os.environ.get("DSPARKREF_PAIR") or "tiny"
    if name == "tiny":
        target = load_target("tiny")
        return Pair(target, load_drafter(f"tiny/{head}", target))
    if name == "qwen3-4b":
        check_known("head", head, tuple(QWEN3_4B_DRAFTERS))
        target = load_target("Qwen/Qwen3-4B")
        return Pair(target, load_drafter(QWEN3_4B_DRAFTERS[head], target))
    parts = [part.strip() for part in name.split(",")]
    if len(parts) != 2 or not all(parts):
        expected = "'tiny', 'qwen3-4b' or 'TARGET,DRAFTER'"
        raise problem("pair", "name a target and a drafter", expected, repr(name))
    target = load_target(parts[0])
    return Pair(target, load_drafter(parts[1], target))


def save_drafter(
    drafter: Drafter, folder: Source, *, layout: str = "dsparkref"
) -> None:
    """Write a drafter's config and weights; the folder is complete or unchanged."""
    check_known("layout", layout, ("dsparkref",))
    _check_replaceable(Path(folder))
    names = LAYOUTS[layout]
    tensors = {
        names.tensor_name(name): tensor.detach().cpu().contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    config = write_config(drafter.spec) | {"dtype": dtype_name(drafter.dtype)}
    with replaced_folder(Path(folder)) as fresh:
        save_file(tensors, fresh / "model.safetensors")
        write_json(fresh / "config.json", config)


def check_fit(
    spec: DrafterSpec, target: Target, num_target_layers: int | None = None
) -> None:
    """Refuse a drafter that was made for another target."""
    facts = [
        ("hidden_size", target.hidden_size, spec.hidden_size),
        ("vocab_size", target.vocab_size, spec.vocab_size),
        ("num_target_layers", target.num_layers, num_target_layers),
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


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace what is no checkpoint: what else is in it would be lost."""
    other = folder.is_dir() and any(folder.iterdir())
    if folder.is_file() or (other and not (folder / "config.json").is_file()):
        expected, got = "a new, empty or checkpoint folder", folder
        raise problem("folder", "be free to replace", expected, got)


def _fill(drafter: Drafter, tensors: dict[str, Tensor], layout: str) -> None:
    """Copy a file's tensors into the drafter; every name and shape must match."""
    table = LAYOUTS[layout]
    own = dict(drafter.named_parameters())
    wanted = {table.tensor_name(name): parameter for name, parameter in own.items()}
    missing, unexpected = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or unexpected:
        got = (
            f"missing: {', '.join(sorted(missing)) or 'none'}; "
            f"unexpected: {', '.join(sorted(unexpected)) or 'none'}"
        )
        expected = f"the {len(wanted)} tensors of layout {layout!r}"
        raise problem("weights", "match the config by name", expected, got)
    for name, parameter in wanted.items():
        if parameter.shape != tensors[name].shape:
            shape, found = list(parameter.shape), list(tensors[name].shape)
            raise problem(name, "match the config by shape", shape, found)
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(tensors[name])


def _default_taps(num_layers: int) -> tuple[int, ...]:
    check_range("target layers", num_layers, 4, integer=True)
    taps = torch.linspace(1, num_layers - 3, 3).round().int().tolist()
    return tuple(sorted(set(taps)))


def _mask_token_id(target: Target) -> int:
    found = getattr(target.tokenizer, "mask_token_id", None)
    if found is None:
        hint = "Choose an unused id below the embedding's rows."
        expected = "a tokenizer with a mask token, or mask_token_id="
        raise problem("mask_token_id", "be given", expected, "neither", hint)
    return found


@torch.no_grad()
def _randomise(drafter: Drafter, generator: torch.Generator | None) -> None:
    """Draw matrices, clear biases, leave norms at one.

    At 0.02 everywhere a backbone a few hundred wide passes next to nothing on, and
    the first thousand steps go into waking it up.
    """
    for name, parameter in drafter.named_parameters():
        if parameter.dim() > 1:
            in_backbone = name.startswith("backbone.")
            std = parameter.shape[-1] ** -0.5 if in_backbone else 0.02
            parameter.normal_(std=std, generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()


def _resolve_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        expected = "'auto', 'cpu', 'cuda' or 'mps'"
        raise problem("device", "be known", expected, repr(device)) from None
    backend = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(where.type)
    if backend is not None and not backend.is_available():
        expected = "a device of this machine"
        raise problem("device", "be there", expected, repr(str(device)))
    return where


def _auto_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.bfloat16
    return torch.float16


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").exists():
        return None
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


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
