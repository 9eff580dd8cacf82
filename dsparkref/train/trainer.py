"""The training loop, on Accelerate: one process here, many GPUs elsewhere, same code.

``Run`` is the loop, which knows nothing of drafters: a step function returns a loss,
the run does the rest (gradients, learning rate, checkpoints, progress). Every step is
a function of (seed, step), so a run that was interrupted and one that was not end with
the same weights.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from tqdm.auto import tqdm

from dsparkref.checkpoints.files import replaced_folder, write_json
from dsparkref.shapes import check_known, check_range, problem

# A run that dies loses at most this much work.
CHECKPOINT_SECONDS = 45.0
LOG_EVERY = 25

# gives the values that a step shows, by name; asked only when they are shown
Metrics = Callable[[], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, how fast and in which precision to train."""

    # optimizer steps
    steps: int
    # sequences per step, over all processes
    batch_size: int
    # highest learning rate; it falls linearly to 0
    learning_rate: float
    # share of the steps in which the rate rises from 0
    warmup: float = 0.04
    # largest gradient norm
    clip: float = 1.0
    weight_decay: float = 0.0
    # "no" (float32) or "bf16" (autocast; the weights stay float32)
    precision: str = "no"
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("steps", self.steps, 1, integer=True)
        check_range("batch_size", self.batch_size, 1, integer=True)
        check_range("learning_rate", self.learning_rate, 0.0, open_low=True)
        check_range("warmup", self.warmup, 0.0, 1.0)
        check_range("clip", self.clip, 0.0, open_low=True)
        check_range("weight_decay", self.weight_decay, 0.0)
        check_known("precision", self.precision, ("no", "bf16"))
        check_range("seed", self.seed, 0, integer=True)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, then linear to 0.

        >>> config = TrainConfig(steps=100, batch_size=1, learning_rate=1.0)
        >>> [round(config.rate(step), 3) for step in (0, 3, 4, 52, 99)]
        [0.25, 1.0, 1.0, 0.5, 0.01]
        """
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        return self.learning_rate * (self.steps - step) / (self.steps - rising)


def run_training(
    module: nn.Module,
    step_loss: Callable[[nn.Module, int, Accelerator], tuple[Tensor, Metrics]],
    config: TrainConfig,
    *,
    folder: Path | None = None,
    title: str = "train",
) -> list[dict[str, Any]]:
    """Train ``module`` in place; return the history, a row each 25 steps.

    step_loss: from (wrapped module, step, accelerator) to this process's loss and
    what to show. folder: where checkpoints go, at most 45 seconds apart; a run that
    finds one there goes on from it, or refuses if it was made with another config.
    """
    module.train().float()  # bfloat16 weights would lose small steps
    device = next(module.parameters()).device.type
    accelerator = Accelerator(
        cpu=device == "cpu",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    wrapped, optimizer = accelerator.prepare(module, make_optimizer(module, config))
    checkpoint = Checkpoint(accelerator, folder, config)
    step, history = checkpoint.load()
    # No bar where the output is no terminal, nor in any process but the first. (tqdm
    # reads its own variable only where `disable` is not given.)
    quiet = bool(os.environ.get("TQDM_DISABLE")) or not accelerator.is_main_process
    hidden = True if quiet else None
    with tqdm(total=config.steps, initial=step, desc=title, disable=hidden) as bar:
        while step < config.steps:
            for group in optimizer.param_groups:
                group["lr"] = config.rate(step)
            half = config.precision == "bf16"
            with torch.autocast(device, torch.bfloat16, enabled=half):
                loss, metrics = step_loss(wrapped, step, accelerator)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(wrapped.parameters(), config.clip)
            if norm is not None and not torch.isfinite(norm):
                raise _not_finite(module, step)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            bar.update()
            if step % LOG_EVERY == 0 or step == config.steps:
                shown = metrics()
                history.append({"step": step} | shown)
                numbers = {k: x for k, x in shown.items() if isinstance(x, float)}
                bar.set_postfix({name: f"{x:.3f}" for name, x in numbers.items()})
            checkpoint.save_if_due(step, history)
    module.eval()
    return history


def make_optimizer(module: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return AdamW over what is trained; borrowed and frozen weights are left out."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        trained,
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
    )


class Checkpoint:
    """The state of an unfinished run: complete, or as it was before."""

    def __init__(
        self, accelerator: Accelerator, folder: Path | None, config: TrainConfig
    ) -> None:
        self.accelerator = accelerator
        self.folder = None if folder is None else Path(folder) / "checkpoint"
        self.config = asdict(config)
        self.saved_at = time.monotonic()

    def load(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the step to go on from, and the history up to it."""
        if self.folder is None or not (self.folder / "progress.json").exists():
            return 0, []
        path = self.folder / "progress.json"
        progress = json.loads(path.read_text(encoding="utf-8"))
        if progress["config"] != self.config:
            hint = "Delete it to begin again."
            rule, expected = "belong to this run", f"config {self.config}"
            name = f"checkpoint {self.folder}"
            raise problem(name, rule, expected, progress["config"], hint)
        self.accelerator.load_state(str(self.folder))
        return progress["step"], progress["history"]

    def save_if_due(self, step: int, history: list[dict[str, Any]]) -> None:
        """Write a checkpoint where the last one is old enough."""
        if self.folder is None or time.monotonic() - self.saved_at < CHECKPOINT_SECONDS:
            return
        if self.accelerator.is_main_process:
            with replaced_folder(self.folder) as fresh:
                self.accelerator.save_state(str(fresh), safe_serialization=False)
                progress = {"step": step, "config": self.config, "history": history}
                write_json(fresh / "progress.json", progress)
        self.accelerator.wait_for_everyone()
        self.saved_at = time.monotonic()


def clear_checkpoint(folder: Path) -> None:
    """Remove a finished run's checkpoint."""
    shutil.rmtree(Path(folder), ignore_errors=True)


def _not_finite(module: nn.Module, step: int) -> Exception:
    """Name the first parameter whose gradient is not finite."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            hint = "The last checkpoint is intact; try a lower learning rate."
            got = f"NaN or inf at step {step}"
            return problem(f"gradient of {name}", "be finite", "numbers", got, hint)
    return problem("gradient norm", "be finite", "a number", f"overflow at step {step}")
