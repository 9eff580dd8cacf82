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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from tqdm.auto import tqdm

from dsparkref.checkpoints.files import (
    as_path,
    replaced_folder,
    restore_folder,
    write_json,
)
from dsparkref.shapes import check_known, check_range, problem
from dsparkref.train.fingerprint import fingerprint_weights

# A run that dies loses at most this much work.
CHECKPOINT_SECONDS = 45.0
LOG_EVERY = 25


@dataclass(frozen=True)
class Mean:
    """A mean over what this process saw of a step, and the weight behind it."""

    value: float
    weight: float


# gives what a step shows, by name; asked only when it is shown. What is no ``Mean`` is
# the same in all processes.
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
    identity: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Train ``module`` in place; return the history, a row each 25 steps.

    step_loss: from (wrapped module, step, accelerator) to this process's loss and
    what to show. folder: where checkpoints go, at most 45 seconds apart; a run that
    finds one there goes on from it, or refuses if it belongs to another run: one of
    another config, of other start weights, or of another ``identity`` (what is
    trained, and on what).
    """
    module.float()  # bfloat16 weights would lose small steps
    run = asdict(config) | dict(identity or {})
    if folder is not None:
        run["start_weights"] = fingerprint_weights(module)
    device = next(module.parameters()).device.type
    accelerator = Accelerator(
        cpu=device == "cpu",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    if accelerator.device.type != device:  # Accelerate remembers its first one
        rule, hint = "be one for all training of a process", "Start a new process."
        raise problem("device", rule, accelerator.device.type, device, hint)
    check_range("batch_size", config.batch_size, accelerator.num_processes)
    wrapped, optimizer = accelerator.prepare(module, make_optimizer(module, config))
    checkpoint = Checkpoint(accelerator, folder, run)
    step, history = checkpoint.load()
    # No bar where the output is no terminal, nor in any process but the first. (tqdm
    # reads its own variable only where `disable` is not given.)
    quiet = bool(os.environ.get("TQDM_DISABLE")) or not accelerator.is_main_process
    hidden = True if quiet else None
    with (
        training_mode(module),
        tqdm(total=config.steps, initial=step, desc=title, disable=hidden) as bar,
    ):
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
                shown = over_processes(metrics(), accelerator)
                history.append({"step": step} | shown)
                numbers = {k: x for k, x in shown.items() if isinstance(x, float)}
                bar.set_postfix({name: f"{x:.3f}" for name, x in numbers.items()})
            checkpoint.save_if_due(step, history)
    return history


@contextmanager
def training_mode(module: nn.Module) -> Iterator[None]:
    """Train a module inside; it is ready for use afterwards, whatever interrupts."""
    module.train()
    try:
        yield
    finally:
        module.eval()


def make_optimizer(module: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return AdamW over what is trained; borrowed and frozen weights are left out."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        trained,
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
    )


def process_share(weight: Tensor, accelerator: Accelerator) -> Tensor | float:
    """Return this process's part of a total weight, times the number of processes.

    Gradients are averaged over processes; with this factor the average is that of
    one process that saw the whole batch.
    """
    if accelerator.num_processes == 1:
        return 1.0
    mean = accelerator.reduce(weight.clone(), reduction="mean")
    return weight / mean.clamp_min(torch.finfo(mean.dtype).tiny)


def over_processes(
    shown: Mapping[str, Any], accelerator: Accelerator
) -> dict[str, Any]:
    """Return what one process that saw the whole batch would show."""
    means = {name: x for name, x in shown.items() if isinstance(x, Mean)}
    values = {name: mean.value for name, mean in means.items()}
    if accelerator.num_processes > 1:
        pairs = [(mean.value * mean.weight, mean.weight) for mean in means.values()]
        sums = torch.tensor(pairs, device=accelerator.device)
        found = accelerator.reduce(sums, reduction="sum").tolist()
        for name, (total, weight) in zip(means, found, strict=True):
            values[name] = total / weight if weight else 0.0
    return {**shown, **values}


class Checkpoint:
    """The state of an unfinished run: complete, or as it was before."""

    def __init__(
        self, accelerator: Accelerator, folder: Path | None, run: Mapping[str, Any]
    ) -> None:
        self.accelerator = accelerator
        self.folder = None if folder is None else as_path(folder) / "checkpoint"
        self.run = json.loads(json.dumps(run))
        self.saved_at = time.monotonic()

    def load(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the step to go on from, and the history up to it."""
        if self.folder is None:
            return 0, []
        restore_folder(self.folder)
        if not (self.folder / "progress.json").exists():
            return 0, []
        name, hint = f"checkpoint {self.folder}", "Delete it to begin again."
        try:
            text = (self.folder / "progress.json").read_text(encoding="utf-8")
            progress = json.loads(text)
            run, step, history = (progress[key] for key in ("run", "step", "history"))
        except (ValueError, TypeError, KeyError) as error:
            expected = "what an unfinished run leaves"
            raise problem(name, "be readable", expected, error, hint) from None
        if run != self.run:
            keys = run.keys() | self.run.keys() if isinstance(run, dict) else ["run"]
            others = [key for key in sorted(keys) if run.get(key) != self.run.get(key)]
            expected, got = "the same settings", f"another {', '.join(others)}"
            if others == ["start_weights"]:
                hint = f"Make the model anew from its seed to go on. {hint}"
            raise problem(name, "belong to this run", expected, got, hint)
        self.accelerator.load_state(str(self.folder))
        return step, history

    def save_if_due(self, step: int, history: list[dict[str, Any]]) -> None:
        """Write a checkpoint where the last one is old enough."""
        if self.folder is None or not self._is_due():
            return
        if self.accelerator.is_main_process:
            with replaced_folder(self.folder) as fresh:
                self.accelerator.save_state(str(fresh), safe_serialization=False)
                progress = {"step": step, "run": self.run, "history": history}
                write_json(fresh / "progress.json", progress)
        self.accelerator.wait_for_everyone()
        self.saved_at = time.monotonic()

    def _is_due(self) -> bool:
        """Ask all processes: if one went to wait alone, the others would train on."""
        due = time.monotonic() - self.saved_at >= CHECKPOINT_SECONDS
        if self.accelerator.num_processes == 1:
            return due
        votes = torch.tensor(float(due), device=self.accelerator.device)
        return self.accelerator.reduce(votes, reduction="sum").item() > 0


def processes(device: torch.device) -> PartialState:
    """Return what is known of the processes of this run: one, unless launched as many.

    ``with processes(device).main_process_first():`` lets the first one make a file, and
    the others find it.
    """
    return PartialState(cpu=device.type == "cpu")


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
