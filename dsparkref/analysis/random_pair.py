"""A pair of a released size whose weights are random.

How long a pass takes depends on shapes and dtype, not on values, so that T_draft,
T_verify and SPS(B) of a released pair can be measured where none of its files are.
What depends on values, acceptance first of all, can not.
"""

from dataclasses import dataclass
from typing import Any

import torch

from dsparkref.checkpoints.fresh import new_drafter
from dsparkref.checkpoints.io import Pair
from dsparkref.checkpoints.targets import auto_dtype, resolve_device
from dsparkref.decode.target import Target
from dsparkref.shapes import check_known


@dataclass(frozen=True)
class Size:
    """Everything about a pair that decides how long its passes take."""

    # of the target, in the words of its config
    target: dict[str, Any]
    # of the drafter, in the words of ``new_drafter``; the same for every head
    drafter: dict[str, Any]
    # requests, R, and committed tokens of each, of a step worth measuring
    rows: tuple[int, ...]
    context: int


SIZES = {
    # Qwen/Qwen3-4B and deepseek-ai/dspark_qwen3_4b_block7 (with Domino's widths)
    "qwen3-4b": Size(
        target={
            "vocab_size": 151_936,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40_960,
        },
        drafter={
            "block_size": 7,
            "num_layers": 5,
            "target_layer_ids": (1, 9, 17, 25, 33),
            "mask_token_id": 151_669,
            "rank": 256,
            "gru_size": 1024,
            "inner_size": 256,
        },
        rows=(1, 2, 4, 8, 16, 32, 64, 128),
        context=512,
    ),
    # the same in small: seconds on any processor, to see whether the script runs
    "smoke": Size(
        target={
            "vocab_size": 128,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 256,
        },
        drafter={
            "block_size": 3,
            "num_layers": 1,
            "target_layer_ids": (1, 3),
            "mask_token_id": 127,
            "rank": 8,
            "gru_size": 8,
            "inner_size": 8,
        },
        rows=(1, 2),
        context=16,
    ),
}


def random_pair(
    size: str,
    head: str = "markov",
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | None = None,
) -> Pair:
    """Return a target and a drafter of a named size, made where they will run.

    Args:
        size: a key of ``SIZES``.
        head: one of the five head names.
        device: as of ``load_target``; "meta": shapes and no numbers, to count.
        dtype: None takes what ``load_target`` takes on that device.
    """
    from transformers import AutoModelForCausalLM, Qwen3Config

    check_known("random", size, tuple(SIZES))
    shapes_alone = torch.device("meta")
    where = shapes_alone if device == "meta" else resolve_device(device)
    found = SIZES[size]
    config = Qwen3Config(
        **found.target,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
        tie_word_embeddings=True,
    )
    kind = auto_dtype(where) if dtype is None else dtype
    with where:  # what is drawn here is never on the CPU first
        model = AutoModelForCausalLM.from_config(config, dtype=kind)
        target = Target(model)
        return Pair(target, new_drafter(target, head=head, **found.drafter))
