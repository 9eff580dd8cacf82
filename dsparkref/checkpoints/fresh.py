"""A drafter with random weights, shaped after its target."""

from collections.abc import Sequence
from typing import Any

import torch

from dsparkref.checkpoints.load import check_fit
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.spec import HEADS, DrafterSpec
from dsparkref.shapes import (
    check_known,
    check_offers,
    check_range,
    check_sequence,
    problem,
)
from dsparkref.verify.sampling import as_generator


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
    defaults to the tokenizer's. A width that the target's family has no word for is
    the usual one: 4 D inside the MLP, as many key as query heads. Weights are normal
    with standard deviation 1 / sqrt(inputs) in the backbone and 0.02 elsewhere.
    """
    check_offers("target", target, "model", "check_layer_ids")
    check_known("head", head, HEADS)
    generator = as_generator(generator)
    config, markov = target.model.config, head in ("markov", "gated", "rnn")
    domino = head == "domino"
    if target_layer_ids is None:
        target_layer_ids = _default_taps(target.num_layers)
    if mask_token_id is None:
        mask_token_id = _mask_token_id(target)
    heads = config.num_attention_heads
    rotary = getattr(config, "rope_parameters", None) or {}
    spec = DrafterSpec(
        head=head,
        block_size=block_size,
        target_layer_ids=_as_tuple(target_layer_ids),
        num_target_layers=target.num_layers,
        mask_token_id=mask_token_id,
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=_of(config, "intermediate_size", 4 * target.hidden_size),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=_of(config, "num_key_value_heads", heads),
        head_dim=_of(config, "head_dim", target.hidden_size // heads),
        rms_norm_eps=_of(config, "rms_norm_eps", 1e-6),
        rope_theta=rotary.get("rope_theta", 1e4),
        max_position_embeddings=_of(config, "max_position_embeddings", 32768),
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


def _of(config: Any, name: str, default: Any) -> Any:
    """Return what a target's config says; families differ in what they say."""
    found = getattr(config, name, None)
    return default if found is None else found


def _as_tuple(layer_ids: Sequence[int]) -> tuple[int, ...]:
    check_sequence("target_layer_ids", layer_ids)
    return tuple(layer_ids)


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
