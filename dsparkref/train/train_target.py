"""Train a small Qwen3 from scratch: the target of the tiny pair."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from dsparkref.checkpoints.files import replaced_folder
from dsparkref.checkpoints.io import quiet_transformers
from dsparkref.decode.target import Target
from dsparkref.train.data import Batch, BatchOrder, collate, special_token_id
from dsparkref.train.fingerprint import fingerprint_samples
from dsparkref.train.trainer import (
    Mean,
    Metrics,
    TrainConfig,
    process_share,
    run_training,
)


def new_target(tokenizer: Any, *, seed: int = 0, **sizes: int) -> Target:
    """Return a Qwen3 with random weights; ``sizes`` override the tiny pair's.

    192 wide, 6 layers, 6 heads of 32 with 3 key-value heads, tied embeddings: about
    2.8 million parameters at a vocabulary of 1,024.
    """
    sizes = {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "max_position_embeddings": 512,
        **sizes,
    }
    stop = tokenizer.eos_token_id
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=stop,
        pad_token_id=tokenizer.pad_token_id,
        # at transformers' 0.02 so narrow a model takes twice the steps
        initializer_range=sizes["hidden_size"] ** -0.5,
        **sizes,
    )
    with torch.random.fork_rng():  # the model's initialisation reads the global stream
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=stop, pad_token_id=tokenizer.pad_token_id
    )
    return Target(model, tokenizer)


def train_target(
    target: Target,
    samples: Dataset,
    config: TrainConfig,
    *,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Train the target in place on tokenised exchanges; return the history.

    The loss is the next-token cross entropy of all real tokens, the prompt's too:
    the prompts are of the same language, and every token teaches.
    """
    order = BatchOrder.of(samples, config.batch_size, config.seed)
    pad = special_token_id(target.tokenizer, "pad_token")

    def step_loss(
        model: nn.Module, step: int, accelerator: Accelerator
    ) -> tuple[Tensor, Metrics]:
        with accelerator.split_between_processes(order.batch(step)) as rows:
            batch = collate([samples[row] for row in rows], pad).to(target.device)
        output = model(batch.input_ids, attention_mask=batch.attention_mask)
        loss = next_token_loss(output.logits, batch)
        count = batch.attention_mask[:, 1:].sum().float()
        shown = partial(_shown, loss, count)
        return loss * process_share(count, accelerator), shown

    identity: dict[str, Any] = {}
    if folder is not None:
        identity = {
            "model": json.loads(target.model.config.to_json_string()),
            "samples": fingerprint_samples(samples),
        }
    with eager_attention(target.model):
        return run_training(
            target.model,
            step_loss,
            config,
            folder=folder,
            title="target",
            identity=identity,
        )


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """On a CPU the backward pass of fused attention is slow in bfloat16."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _shown(loss: Tensor, count: Tensor) -> dict[str, Mean]:
    return {"loss": Mean(loss.item(), count.item())}


def next_token_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross entropy of token s+1 under row s, padding left out.

    Sequences of one token have nothing to predict: alone in a batch they cost 0.
    """
    labels = batch.input_ids[:, 1:]
    each = cross_entropy(
        logits[:, :-1].float().flatten(0, 1), labels.flatten(), reduction="none"
    ).view_as(labels)
    real = batch.attention_mask[:, 1:]
    return (each * real).sum() / real.sum().clamp_min(1)


def save_target(target: Target, folder: Path, dtype: torch.dtype) -> None:
    """Write model and tokenizer; the folder is complete or unchanged."""
    trained = target.model.dtype
    with replaced_folder(folder) as fresh, quiet_transformers():
        target.model.to(dtype)
        target.model.save_pretrained(fresh)
        target.tokenizer.save_pretrained(fresh)
    target.model.to(trained)
