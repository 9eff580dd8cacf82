"""Train a drafter on its target's own replies."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from datasets import Dataset
from torch import Tensor, nn

from dsparkref.decode.target import Target
from dsparkref.draft.blocks import aligned_target_logits, supervised_positions
from dsparkref.draft.drafter import Drafter
from dsparkref.shapes import check_range
from dsparkref.train.data import (
    Batch,
    BatchOrder,
    collate,
    sample_anchors,
    seeded,
    special_token_id,
)
from dsparkref.train.fingerprint import fingerprint_samples, fingerprint_weights
from dsparkref.train.loss import (
    LossTerms,
    block_loss,
    check_weights,
    l1_distance,
    position_weights,
)
from dsparkref.train.teacher import LiveTeacher, Teacher
from dsparkref.train.trainer import (
    Mean,
    Metrics,
    TrainConfig,
    process_share,
    run_training,
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the drafter's loss is made of."""

    # training blocks per sequence
    num_anchors: int = 8
    # weights of cross entropy, total variation, confidence
    weights: tuple[float, float, float] = (0.1, 0.9, 1.0)
    # gamma of w_k = exp(-k / gamma), in positions
    loss_decay: float = 4.0
    # share of the steps over which Domino's base weight falls from 1 to 0; 0: no base
    base_curriculum: float = 0.0

    def __post_init__(self) -> None:
        check_range("num_anchors", self.num_anchors, 1, integer=True)
        check_weights(self.weights)
        check_range("loss_decay", self.loss_decay, 0.0, open_low=True)
        check_range("base_curriculum", self.base_curriculum, 0.0, 1.0)

    def base_weight(self, step: int, steps: int) -> float:
        """Return Domino's lambda: linear from 1 to 0, counted in optimizer steps.

        >>> [Recipe(base_curriculum=0.5).base_weight(s, 100) for s in (0, 25, 50, 80)]
        [1.0, 0.5, 0.0, 0.0]
        """
        span = self.base_curriculum * steps
        return max(0.0, 1.0 - step / span) if span else 0.0


# looks at the drafter in training; names and values
Watch = Callable[[Drafter], dict[str, Any]]


class TrainingForward(nn.Module):
    """``training_forward`` as a module's forward, which is what Accelerate wraps."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(self, input_ids: Tensor, target_hidden: Tensor, anchors: Tensor) -> Any:
        """Run the drafter on its training blocks."""
        return self.drafter.training_forward(input_ids, target_hidden, anchors)


def train_drafter(
    target: Target,
    drafter: Drafter,
    samples: Dataset,
    config: TrainConfig,
    recipe: Recipe | None = None,
    *,
    folder: Path | None = None,
    teacher: Teacher | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """Train the drafter in place on replies of ``target``, as ids; return the history.

    The target runs frozen beside it: its tapped features are the drafter's context,
    its logits the law to match. ``teacher`` may stand in for it with what it recorded
    about the same samples. A batch without an eligible anchor has loss 0. ``watch``
    is asked with each row of the history; what it says joins the row.
    """
    teacher = teacher or LiveTeacher(target, drafter.spec.target_layer_ids)
    recipe = recipe or Recipe()
    step_loss = DrafterStep(target, drafter, samples, config, recipe, teacher, watch)
    module = TrainingForward(drafter)
    identity: dict[str, Any] = {}
    if folder is not None:  # digests take a moment, and only a checkpoint needs them
        identity = {
            "drafter": asdict(drafter.spec),
            "recipe": asdict(recipe),
            "target": fingerprint_weights(target.model),
            "samples": fingerprint_samples(samples),
        }
    return run_training(
        module,
        step_loss,
        config,
        folder=folder,
        title=drafter.head_type,
        identity=identity,
    )


class DrafterStep:
    """One step: sequences and anchors, the target's view of them, blocks, loss."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        samples: Dataset,
        config: TrainConfig,
        recipe: Recipe,
        teacher: Teacher,
        watch: Watch | None = None,
    ) -> None:
        self.target, self.drafter, self.samples = target, drafter, samples
        self.config, self.recipe, self.teacher = config, recipe, teacher
        self.watch = watch
        self.pad = special_token_id(target.tokenizer, "pad_token")
        self.order = BatchOrder.of(samples, config.batch_size, config.seed)

    def __call__(
        self, model: nn.Module, step: int, accelerator: Accelerator
    ) -> tuple[Tensor, Metrics]:
        """Return this process's loss, and what to show."""
        rows, batch, anchors, keep = self.draw(step, accelerator)
        seen = self.teacher.view(rows, batch)
        output = model(batch.input_ids, seen.hidden, anchors)
        size = self.drafter.block_size
        supervised = supervised_positions(batch.loss_mask, anchors, size, keep)
        aligned = aligned_target_logits(seen.logits, anchors, size)
        terms = block_loss(
            output,
            aligned,
            supervised,
            weights=self.recipe.weights,
            loss_decay=self.recipe.loss_decay,
            base_weight=self.recipe.base_weight(step, self.config.steps),
        )
        positions = position_weights(supervised, self.recipe.loss_decay).sum()
        drafted = output.draft_logits.detach()
        shown = partial(_shown, terms, drafted, aligned, supervised, positions)
        share = process_share(positions, accelerator)
        return terms.total * share, partial(self._metrics, shown)

    def _metrics(self, shown: Metrics) -> dict[str, Any]:
        """Return what to show of a step, and what was seen beside it."""
        return shown() | (self.watch(self.drafter) if self.watch else {})

    def draw(
        self, step: int, accelerator: Accelerator
    ) -> tuple[list[int], Batch, Tensor, Tensor]:
        """Return this process's share of a step: samples, anchors, which to keep.

        Anchors are drawn for the whole step and then shared out with its sequences,
        so that the number of processes changes nothing.
        """
        rows = self.order.batch(step)
        samples = [self.samples[row] for row in rows]
        batch = collate(samples, self.pad)
        anchors, keep = sample_anchors(
            batch.loss_mask,
            self.recipe.num_anchors,
            generator=seeded(self.config.seed, step, 1),
        )
        with accelerator.split_between_processes(list(range(len(rows)))) as mine:
            tensors = [
                tensor[mine] for tensor in (*vars(batch).values(), anchors, keep)
            ]
        *parts, anchors, keep = [tensor.to(self.target.device) for tensor in tensors]
        return [rows[i] for i in mine], Batch(*parts), anchors, keep


def _shown(
    terms: LossTerms,
    draft: Tensor,
    target: Tensor,
    supervised: Tensor,
    positions: Tensor,
) -> dict[str, Mean]:
    """Return what the progress bar and the history show of a step.

    ``skipped`` is the share of sequences in which no block could begin.
    """
    blocks = supervised[..., 0]  # [B, N]
    weight = positions.item()
    shown = {name: Mean(value.item(), weight) for name, value in vars(terms).items()}
    shown = {"loss": shown.pop("total")} | shown
    length = teacher_forced_length(draft, target, supervised)
    skipped = (~blocks.any(dim=1)).float().mean().item()
    return shown | {
        "accepted_length": Mean(length, blocks.sum().item()),
        "skipped": Mean(skipped, len(blocks)),
    }


def teacher_forced_length(draft: Tensor, target: Tensor, supervised: Tensor) -> float:
    """Return the mean expected tokens per cycle, teacher-forced, bonus included.

    A block cut short by the end of its reply counts up to there.
    """
    rate = 1 - l1_distance(draft.float(), target.float()) / 2  # [B, N, K]
    survival = rate.cumprod(dim=-1) * supervised
    blocks = supervised[..., 0].sum().clamp_min(1)
    return (1 + survival.sum() / blocks).item()
