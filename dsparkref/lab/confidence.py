"""What notebook 08 looks at: a cycle's confidences, and what a policy does to many."""

import math
from collections.abc import Mapping, Sequence
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.analysis.calibration_records import (
    CalibrationRecords,
    gather_records,
    read_records,
)
from dsparkref.analysis.report import Report
from dsparkref.analysis.sweep import replayed_rates
from dsparkref.checkpoints import files
from dsparkref.checkpoints.io import Pair
from dsparkref.decode.target import Target
from dsparkref.lab.course import evaluation_examples, is_tiny
from dsparkref.lab.terminal import token_text
from dsparkref.records import CycleTrace
from dsparkref.shapes import problem
from dsparkref.train.corpus import DOMAINS
from dsparkref.verify.confidence import survival
from dsparkref.verify.policies import ConfidenceThreshold

# Gathered on the spot where the pair is not the one that was recorded.
PROMPTS_PER_DOMAIN = 6
NEW_TOKENS = 48


def confidence_records(pair: Pair) -> tuple[CalibrationRecords, Int[Tensor, " n"]]:
    """Return records of untruncated decoding, and the domain of each (0, 1, 2).

    The tiny pair's were recorded by ``dsparkref calibrate --records``. For another
    pair a few prompts are decoded now.
    """
    if is_tiny():
        path = files.data_folder() / "recorded" / "confidence.safetensors"
        records, settings = read_records(path)
        return records, records.prompt // settings["prompts_per_domain"]
    examples = evaluation_examples(pair, PROMPTS_PER_DOMAIN)  # domains in turn
    prompts = [example.prompt for example in examples]
    options = {"max_new_tokens": NEW_TOKENS, "generator": 0}
    records = gather_records(pair.target, pair.drafter, prompts, **options)
    return records, records.prompt % len(DOMAINS)


def cycle_lines(target: Target, cycle: CycleTrace) -> str:
    """Return one cycle as text: what the head said of each draft, and its fate.

    Raises:
        ValueError: the drafter has no confidence head.
    """
    if cycle.confidence is None:
        hint = "Take a pair whose drafter has one: this notebook is about it."
        rule = "have a confidence head"
        raise problem("drafter", rule, "a confidence for each draft", None, hint)
    said = torch.tensor(cycle.confidence, dtype=torch.float64)
    standing = survival(said)
    lines = [
        f"anchor: {token_text(target, cycle.anchor)!r}",
        "draft         confidence  survival  verdict",
    ]
    for k, token in enumerate(cycle.drafts):
        kept = cycle.num_accepted
        fate = "kept" if k < kept else "rejected" if k == kept else "not reached"
        word = repr(token_text(target, token))
        lines.append(f"{word:<12}  {said[k]:10.2f}  {standing[k]:8.2f}  {fate}")
    return "\n".join(lines)


def said_and_came(records: CalibrationRecords) -> Mapping[str, list[float]]:
    """Return mean confidence and mean acceptance, by position, where it was reached."""
    reached = records.reached

    def mean(values: Float[Tensor, "n K"]) -> list[float]:
        return ((values * reached).sum(dim=0) / reached.sum(dim=0)).tolist()

    said, came = mean(torch.sigmoid(records.logits)), mean(records.accepted)
    gap = [a - b for a, b in zip(said, came, strict=True)]
    return {"the head says": said, "came true": came, "too sure by": gap}


def order_changes(
    before: Float[Tensor, "n K"], after: Float[Tensor, "n K"]
) -> dict[str, list[float]]:
    """Return the share of pairs that two scores order differently, by position.

    Once for the confidence at one position, once for the product up to it. Every
    fifth record is paired with every other: neighbours are of one reply.
    """
    columns = {"one position": (before, after)}
    columns["the product"] = survival(before), survival(after)
    return {
        name: [flipped_pairs(old[::5, k], new[::5, k]) for k in range(before.shape[1])]
        for name, (old, new) in columns.items()
    }


def flipped_pairs(before: Float[Tensor, " n"], after: Float[Tensor, " n"]) -> float:
    """Return the share of pairs that two scores order differently; ties are no order.

    >>> flipped_pairs(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.3, 0.2]))
    0.333...
    """
    orders = [(scores[:, None] - scores).sign() for scores in (before, after)]
    pairs = len(before) * (len(before) - 1)
    return int((orders[0] * orders[1] < 0).sum()) / pairs if pairs else math.nan


def threshold_table(
    records: CalibrationRecords,
    scores: Float[Tensor, "n K"],
    domain: Int[Tensor, " n"],
    levels: Sequence[float],
) -> dict[tuple[str, str], tuple[str, Sequence[float], list[Report]]]:
    """Return (rule, domain) -> its name, the thresholds, and what each would do.

    Replayed, not decoded: see ``replayed_rates``.
    """
    parts = {"all": domain >= 0}
    parts |= {name: domain == number for number, name in enumerate(DOMAINS)}
    table = {}
    for rule, (part, rows) in product(("conditional", "survival"), parts.items()):
        inside, said = records.where(rows), scores[rows]
        found = []
        for level in levels:
            policy = ConfidenceThreshold(level, on=rule)
            length = policy.verify_lengths(said, block_size=said.shape[1])
            found.append(replayed_rates(inside, length))
        table[rule, part] = f"{rule}, {part}", levels, found
    return table


def thinned(
    records: CalibrationRecords, verify_len: Int[Tensor, " n"]
) -> tuple[dict[str, list[float]], list[float]]:
    """Return conditional acceptance as a policy's log and as all records have it.

    "unasked = refused" is the log once more, what it never verified counted as
    rejected. The second result is the share of each position's cycles that it holds.
    """
    positions = torch.arange(records.logits.shape[1])
    seen = records.reached & (positions < verify_len[:, None])
    kept, reached = records.accepted, records.reached.sum(dim=0)
    came = {
        "the policy's log": (kept * seen).sum(dim=0) / seen.sum(dim=0),
        "all records": (kept * records.reached).sum(dim=0) / reached,
        "unasked = refused": (kept * seen).sum(dim=0) / reached,
    }
    shares = {name: share.tolist() for name, share in came.items()}
    return shares, (seen.sum(dim=0) / reached).tolist()
