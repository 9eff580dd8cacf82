"""How far survivals are from what came, with intervals over prompts.

A bin's mean and an ECE's part are sums over records, so that a resample of prompts
only weighs sums by prompt: 200 resamples are one matrix product.
"""

from collections.abc import Mapping
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.analysis.calibration_records import CalibrationRecords
from dsparkref.analysis.calibration_report import RESAMPLES, noise_floor
from dsparkref.verify.calibration import bin_index, expected_calibration_error
from dsparkref.verify.confidence import survival


def survival_errors(
    records: CalibrationRecords, scores: Float[Tensor, "n K"]
) -> dict[str, list[float]]:
    """Return the ECE of the survival at each position, and its noise floor."""
    standing = survival(scores)
    found: dict[str, list[float]] = {"ece": [], "floor": []}
    for k in range(scores.shape[1]):
        rows = records.counted[:, k]
        predicted, observed = standing[rows, k], records.accepted[rows, k]
        found["ece"].append(expected_calibration_error(predicted, observed))
        found["floor"].append(noise_floor(predicted))
    return found


def error_changes(
    records: CalibrationRecords,
    before: Float[Tensor, "n K"],
    after: Float[Tensor, "n K"],
) -> Mapping[str, list[float]]:
    """Return by how much the survival's ECE changes, position by position.

    ``change``, and ``low`` and ``high``: 95 % over resampled prompts, both scores on
    the same resamples.
    """
    found: dict[str, list[float]] = {"change": [], "low": [], "high": []}
    old, new = survival(before), survival(after)
    for k in range(old.shape[1]):
        rows = records.counted[:, k]
        kept, prompt = records.accepted[rows, k], records.prompt[rows]
        there, here = (_resampled_ece(x[rows, k], kept, prompt) for x in (old, new))
        change = here - there  # the first one is not resampled
        low, high = _ends(change[1:])
        for name, value in zip(found, (change[0], low, high), strict=True):
            found[name].append(float(value))
    return found


def reliability_table(
    records: CalibrationRecords, scores: Mapping[str, Float[Tensor, "n K"]]
) -> dict[tuple[int, str], tuple[str, int, Mapping[str, list[float]]]]:
    """Return (draft, score) -> score, draft, reliability; drafts count from 1."""
    positions = range(1, records.logits.shape[1] + 1)
    return {
        (k, name): (name, k, reliability(records, scores[name], k - 1))
        for k, name in product(positions, scores)
    }


def reliability(
    records: CalibrationRecords, scores: Float[Tensor, "n K"], k: int, bins: int = 10
) -> Mapping[str, list[float]]:
    """Return the survival's reliability at position k, bin by bin, with intervals.

    ``predicted``, ``observed``, ``low``, ``high`` and ``count`` of each bin that holds
    something; 95 % over resampled prompts.
    """
    rows = records.counted[:, k]
    said, kept = survival(scores)[rows, k], records.accepted[rows, k]
    weights, place = _resamples(records.prompt[rows])
    count, predicted, observed = (
        weights @ _in_bins(values, said, place, bins)
        for values in (torch.ones_like(said), said, kept)
    )
    low, high = _ends(observed / count)  # of each bin
    found = {"predicted": predicted[0] / count[0], "observed": observed[0] / count[0]}
    found |= {"low": low, "high": high, "count": count[0]}
    return {name: values[count[0] > 0].tolist() for name, values in found.items()}


def _resampled_ece(
    predicted: Float[Tensor, " m"],
    observed: Float[Tensor, " m"],
    prompt: Int[Tensor, " m"],
    bins: int = 20,
) -> Float[Tensor, " resamples"]:
    """Return the ECE of the records, then of each resample."""
    weights, place = _resamples(prompt)
    gaps = weights @ _in_bins(predicted - observed, predicted, place, bins)
    total = weights @ torch.bincount(place).double()
    return gaps.abs().sum(dim=1) / total


def _resamples(
    prompt: Int[Tensor, " m"],
) -> tuple[Float[Tensor, "resamples prompts"], Int[Tensor, " m"]]:
    """Return how often each prompt is drawn, first once each, and records' prompts."""
    numbers, place = prompt.unique(return_inverse=True)
    count, generator = len(numbers), torch.Generator().manual_seed(0)
    draws = torch.randint(count, (RESAMPLES, count), generator=generator)
    weights = torch.ones(RESAMPLES + 1, count, dtype=torch.float64)
    weights[1:] = torch.nn.functional.one_hot(draws, count).sum(dim=1)
    return weights, place


def _in_bins(
    values: Float[Tensor, " m"],
    predicted: Float[Tensor, " m"],
    place: Int[Tensor, " m"],
    bins: int,
) -> Float[Tensor, "prompts bins"]:
    """Add values up by prompt and by the bin of what was predicted."""
    index, prompts = place * bins + bin_index(predicted, bins), int(place.max()) + 1
    return torch.bincount(index, values, prompts * bins).view(prompts, bins)


def _ends(
    resampled: Float[Tensor, "resamples *bins"],
) -> tuple[Float[Tensor, "*bins"], Float[Tensor, "*bins"]]:
    """Return where 95 % of the resamples lie; those without records do not count."""
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.nanquantile(resampled, ends, dim=0)
    return low, high
