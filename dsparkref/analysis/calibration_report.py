"""Four readings of a confidence side by side, on prompts that none was fitted to.

Two things can be calibrated. The *conditional* confidence of draft k is judged on the
cycles that came to it; the *survival*, the product up to k, on all. A threshold reads
the one, Algorithm 1 the other.

An ECE is never below 0 and noise only raises it, so that resampled ones lie above the
value itself. What to read is the interval of the *change* against the raw scores, on
the same resamples: the verdicts come from it.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dsparkref.analysis.calibrate import CALIBRATORS, fitted_temperatures
from dsparkref.analysis.calibration_records import CalibrationRecords, split_records
from dsparkref.analysis.metrics import bootstrap_interval
from dsparkref.analysis.report import Report
from dsparkref.shapes import check_range, problem
from dsparkref.verify.calibration import (
    auroc,
    brier_score,
    expected_calibration_error,
    reliability_bins,
)

VIEWS = ("conditional", "survival")
RESAMPLES = 200


def calibration_report(
    records: CalibrationRecords, *, bins: int = 20, seed: int = 0
) -> Report:
    """Fit on one half of the prompts, measure on the other, say where it helps.

    Args:
        records: of at least two prompts.
        bins: of equal width, for the ECE shown and the reliability diagram.
        seed: of the bootstrap over held-out prompts.

    Returns:
        A record for JSON. ``views[view][method]`` has one entry per position with
        ``records``, ``ece``, ``brier``, ``auroc`` (each value, low, high; None where
        nothing is known), ``bins`` (the reliability diagram) and, but for "raw",
        ``ece_change`` against raw with its 95 % interval and a ``verdict`` in words.
    """
    check_range("bins", bins, 1, integer=True)
    fit, held_out = split_records(records)
    if not len(fit) or not len(held_out):
        rule = "come from prompts of even and of odd number"
        raise problem("records", rule, "two prompts or more", "one half is empty")
    report: Report = {
        "bins": bins,
        "fit_records": len(fit),
        "held_out_records": len(held_out),
        "temperatures": fitted_temperatures(fit).tolist(),
        "views": {view: {} for view in VIEWS},
    }
    scores = {name: find(fit, held_out) for name, find in CALIBRATORS.items()}
    for view in VIEWS:
        judged = held_out.reached if view == "conditional" else held_out.counted
        for name, found in scores.items():
            report["views"][view][name] = [
                _position(
                    held_out, judged[:, k], _seen(found, view, k),
                    None if name == "raw" else _seen(scores["raw"], view, k),
                    k, bins, seed,
                )
                for k in range(found.shape[1])
            ]  # fmt: skip
    return report


def verdict(low: float, high: float) -> str:
    """Say what an interval of a change in error means; lower is better.

    >>> verdict(-0.05, -0.01), verdict(-0.01, 0.02), verdict(0.01, 0.02)
    ('helps', 'no clear difference', 'hurts')
    """
    if high < 0:
        return "helps"
    return "hurts" if low > 0 else "no clear difference"


def prompt_interval(
    measure: Callable[[Int[Tensor, " rows"]], float],
    prompt: Int[Tensor, " m"],
    *,
    seed: int = 0,
) -> Report:
    """Return a measure of records, and its 95 % interval over their prompts.

    Cycles of one prompt are alike: whole prompts are drawn anew, not cycles.

    Args:
        measure: takes the numbers of the records to look at, with repeats.
        prompt: [m], the prompt of each record.
        seed: of the resamples; equal seeds draw the same prompts.

    Returns:
        ``value``, ``low`` and ``high``; None where the measure is not a number.

    >>> kept = torch.tensor([1.0, 1.0, 0.0])
    >>> prompt_interval(lambda rows: kept[rows].mean().item(), torch.tensor([0, 0, 1]))
    {'value': 0.666..., 'low': 0.0, 'high': 1.0}
    """
    rows_of = [(prompt == number).nonzero()[:, 0] for number in prompt.unique()]

    def of_prompts(prompts: Int[Tensor, " p"]) -> float:
        return measure(torch.cat([rows_of[p] for p in prompts.tolist()]))

    generator = torch.Generator().manual_seed(seed)
    options: Any = {"generator": generator, "resamples": RESAMPLES}
    low, high = bootstrap_interval(of_prompts, len(rows_of), **options)
    value = measure(torch.arange(len(prompt)))
    return {"value": _known(value), "low": _known(low), "high": _known(high)}


def noise_floor(
    predicted: Float[Tensor, " m"], *, bins: int = 20, draws: int = 50, seed: int = 0
) -> float:
    """Return the mean ECE that these predictions would have if they were all right.

    Outcomes are drawn from the predictions themselves. Even then the bins do not come
    out even, so that an ECE near this floor is no error at all. Cycles of one reply
    are alike, which is not drawn here: the floor of decoding lies higher.

    >>> sure = torch.ones(10)
    >>> noise_floor(sure)
    0.0
    >>> noise_floor(torch.full((10,), 0.5)) > noise_floor(torch.full((1000,), 0.5)) > 0
    True
    """
    check_range("draws", draws, 1, integer=True)
    generator = torch.Generator().manual_seed(seed)
    chances = predicted.double()
    errors = [
        expected_calibration_error(
            chances, torch.bernoulli(chances, generator=generator), bins
        )
        for _ in range(draws)
    ]
    return sum(errors) / draws


def _seen(scores: Float[Tensor, "m K"], view: str, k: int) -> Float[Tensor, " m"]:
    """Return the numbers of one position, conditional or multiplied up."""
    return scores[:, k] if view == "conditional" else scores[:, : k + 1].prod(dim=1)


def _position(
    records: CalibrationRecords,
    judged: Bool[Tensor, " m"],
    predicted: Float[Tensor, " m"],
    raw: Float[Tensor, " m"] | None,
    k: int,
    bins: int,
    seed: int,
) -> Report:
    """Return the measures of one position; those of ``raw`` to compare with."""
    count = int(judged.sum())
    if not count:
        names = ("ece", "brier", "auroc", "bins", "ece_change", "verdict")
        return {"records": 0} | dict.fromkeys(names)
    observed = records.accepted[judged, k]
    shown = predicted[judged]

    def interval(measure: Callable[[Tensor], float]) -> Report:
        return prompt_interval(measure, records.prompt[judged], seed=seed)

    def ece(rows: Tensor, scores: Tensor = shown) -> float:
        return expected_calibration_error(scores[rows], observed[rows], bins)

    found = {
        "records": count,
        "ece": interval(ece),
        "brier": interval(lambda rows: brier_score(shown[rows], observed[rows])),
        "auroc": interval(lambda rows: auroc(shown[rows], observed[rows])),
        "bins": _diagram(shown, observed, bins),
    }
    if raw is not None:
        before = raw[judged]
        change = interval(lambda rows: ece(rows) - ece(rows, before))
        found |= {
            "ece_change": change,
            "verdict": verdict(change["low"], change["high"]),
        }
    return found


def _diagram(predicted: Tensor, observed: Tensor, bins: int) -> list[Report]:
    """Return the bins that hold something."""
    found = reliability_bins(predicted, observed, bins)
    return [
        {
            "from": found.edges[i].item(),
            "to": found.edges[i + 1].item(),
            "count": int(found.count[i]),
            "predicted": found.predicted[i].item(),
            "observed": found.observed[i].item(),
        }
        for i in found.count.nonzero()[:, 0].tolist()
    ]


def _known(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if value == value else None
