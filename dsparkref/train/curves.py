"""Which loss, which curriculum: the same small run many times, one thing changed.

Every variant trains on the same replies with the same steps and seeds, and is watched
on held-out replies while it learns. Several seeds give intervals; without them, a
difference of one run says little.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from dsparkref.checkpoints.files import write_json
from dsparkref.checkpoints.fresh import new_drafter
from dsparkref.decode.target import Target
from dsparkref.draft.blocks import aligned_target_logits, supervised_positions
from dsparkref.draft.drafter import Drafter
from dsparkref.shapes import check_known, check_range, problem
from dsparkref.train.corpus import DOMAINS, evaluation_examples
from dsparkref.train.data import (
    collate,
    sample_anchors,
    seeded,
    special_token_id,
    tokenize_exchanges,
)
from dsparkref.train.loss import l1_distance
from dsparkref.train.teacher import RecordedTeacher
from dsparkref.train.tiny import MAX_LENGTH, TARGET_LAYER_IDS, make_replies
from dsparkref.train.train_drafter import (
    Recipe,
    teacher_forced_length,
    train_drafter,
)
from dsparkref.train.trainer import TrainConfig


@dataclass(frozen=True)
class Variant:
    """A head and how it is trained."""

    head: str
    recipe: Recipe = field(default_factory=Recipe)


# name -> what is trained; the weights are those of (CE, TV, confidence)
VARIANTS = {
    "CE": Variant("markov", Recipe(weights=(1.0, 0.0, 1.0))),
    "TV": Variant("markov", Recipe(weights=(0.0, 0.9, 1.0))),
    "0.1 CE + 0.9 TV": Variant("markov"),
    "domino": Variant("domino"),
    "domino, base first": Variant("domino", Recipe(base_curriculum=1.0)),
}


@dataclass(frozen=True, kw_only=True)
class Study:
    """How long, and how often."""

    train: TrainConfig
    # runs of each variant
    seeds: tuple[int, ...]
    # replies to train on, as a scale of ``train.tiny`` makes them
    scale: str
    # held-out replies per domain
    held_out: int

    def __post_init__(self) -> None:
        if not self.seeds:
            raise problem("seeds", "hold numbers", "at least one", "none")
        check_range("held_out", self.held_out, 1, integer=True)


STUDIES = {
    "full": Study(
        train=TrainConfig(
            steps=400, batch_size=16, learning_rate=3e-3, precision="bf16"
        ),
        seeds=(0, 1, 2),
        scale="full",
        held_out=24,
    ),
    "smoke": Study(
        train=TrainConfig(steps=4, batch_size=4, learning_rate=3e-3),
        seeds=(0, 1),
        scale="smoke",
        held_out=2,
    ),
}


class HeldOut:
    """Replies that no drafter learns from, and what the target says about them.

    Every block starts at an anchor drawn once; all drafters are asked the same.
    ``layer_ids`` are those that the drafters tap.
    """

    @torch.no_grad()
    def __init__(
        self,
        target: Target,
        layer_ids: Sequence[int],
        per_domain: int,
        block_size: int,
        num_anchors: int = 8,
    ) -> None:
        examples = [
            example
            for domain in DOMAINS
            for example in evaluation_examples(domain, per_domain)
        ]
        samples, _ = tokenize_exchanges(
            target.tokenizer, [asdict(x) for x in examples], max_length=MAX_LENGTH
        )
        pad = special_token_id(target.tokenizer, "pad_token")
        batch = collate(list(samples), pad)
        batch = batch.to(target.device)
        self.input_ids = batch.input_ids
        self.anchors, keep = sample_anchors(
            batch.loss_mask, num_anchors, generator=seeded(2026)
        )
        seen = target.forward(
            batch.input_ids, layer_ids, attention_mask=batch.attention_mask
        )
        self.hidden = seen.hidden
        self.logits = aligned_target_logits(seen.logits, self.anchors, block_size)
        self.supervised = supervised_positions(
            batch.loss_mask, self.anchors, block_size, keep
        )

    @torch.no_grad()
    def __call__(self, drafter: Drafter) -> dict[str, Any]:
        """Return overlap 1 - TV per position, of draft and base logits, and tau."""
        output = drafter.training_forward(self.input_ids, self.hidden, self.anchors)
        drafts, base = output.draft_logits.float(), output.base_logits.float()
        return {
            "overlap": self._mean_overlap(drafts),
            "base": self._mean_overlap(base),
            "length": teacher_forced_length(drafts, self.logits, self.supervised),
        }

    def _mean_overlap(self, logits: torch.Tensor) -> list[float]:
        rate = 1 - l1_distance(logits, self.logits) / 2  # [B, N, K]
        total = (rate * self.supervised).sum(dim=(0, 1))  # [K]
        return (total / self.supervised.sum(dim=(0, 1))).tolist()


def record_curves(
    target: Target, work: Path, *, study: str = "full", seed: int = 0
) -> dict[str, Any]:
    """Train every variant with every seed; return the curves.

    Runs that ``work`` holds already are not made again. The result is a dict with
    ``steps``, ``seeds`` and ``variants``: name -> head, recipe, and for each seed the
    held-out rows {step, overlap [K], base [K], length}.
    """
    check_known("study", study, tuple(STUDIES))
    settings = STUDIES[study]
    work.mkdir(parents=True, exist_ok=True)
    replies = make_replies(
        target, work / "replies.jsonl", scale=settings.scale, seed=seed
    )
    samples, _ = tokenize_exchanges(target.tokenizer, replies, max_length=MAX_LENGTH)
    needed = settings.train.steps * settings.train.batch_size
    samples = samples.select(range(min(needed, len(samples))))
    found: dict[str, Any] = {}
    for name, variant, run_seed, path in _runs(settings, work):
        if not path.exists():
            config = TrainConfig(**(asdict(settings.train) | {"seed": run_seed}))
            write_json(path, _run(target, variant, samples, config, settings, work))
        entry = found.setdefault(name, asdict(variant) | {"runs": []})
        entry["runs"].append(json.loads(path.read_text(encoding="utf-8")))
    shutil.rmtree(work / "teacher", ignore_errors=True)  # gigabytes
    return {
        "steps": settings.train.steps,
        "seeds": list(settings.seeds),
        "variants": found,
    }


def _runs(settings: Study, work: Path) -> Iterator[tuple[str, Variant, int, Path]]:
    for name, variant in VARIANTS.items():
        for seed in settings.seeds:
            words = "-".join(name.replace(",", "").replace("+ ", "").split())
            yield name, variant, seed, work / f"{words}-{seed}.json"


def _run(
    target: Target,
    variant: Variant,
    samples: Dataset,
    config: TrainConfig,
    settings: Study,
    work: Path,
) -> list[dict[str, Any]]:
    """Train one drafter from new weights; return its held-out rows."""
    teacher = RecordedTeacher.record(
        target, TARGET_LAYER_IDS, samples, work / "teacher"
    )
    drafter = new_drafter(
        target,
        head=variant.head,
        target_layer_ids=TARGET_LAYER_IDS,
        generator=seeded(config.seed, 2),
    )
    history = train_drafter(
        target,
        drafter,
        samples,
        config,
        variant.recipe,
        teacher=teacher,
        watch=HeldOut(target, TARGET_LAYER_IDS, settings.held_out, drafter.block_size),
    )
    kept = ("step", "overlap", "base", "length")
    return [{name: row[name] for name in kept} for row in history]
