"""Exercises of notebook 08: temperatures, calibration error, thresholds, ranking.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

import math

import torch
from torch import Tensor

from dsparkref.lab.checks import Exercise
from dsparkref.verify.calibration import (
    apply_sts,
    auroc,
    bin_index,
    expected_calibration_error,
)
from dsparkref.verify.confidence import survival, threshold_lengths
from dsparkref.verify.rejection import leading_run

# -- warm-up: from logits to calibrated confidences -----------------------------------


def _divided_probability(logits: Tensor, temperatures: Tensor) -> Tensor:
    return torch.sigmoid(logits) / temperatures


def _softmax(logits: Tensor, temperatures: Tensor) -> Tensor:
    return torch.softmax(logits / temperatures, dim=-1)


def _one_for_all(logits: Tensor, temperatures: Tensor) -> Tensor:
    return torch.sigmoid(logits / temperatures.mean())


def _power(logits: Tensor, temperatures: Tensor) -> Tensor:
    return torch.sigmoid(logits) ** (1 / temperatures)


CALIBRATED = Exercise(
    name="calibrated",
    reference=apply_sts,
    cases=[
        (torch.tensor([[2.0, 0.0, -3.0]]), torch.tensor([2.0, 1.0, 0.5])),
        (torch.tensor([[1.0, -1.0], [4.0, 0.5]]), torch.tensor([0.8, 3.0])),
        (torch.tensor([1.5]), torch.tensor([1.5])),
    ],
    mistakes={
        "The sigmoid is missing: these are logits still, not chances.": (
            lambda logits, temperatures: logits / temperatures
        ),
        "The temperatures are not used: this is the raw confidence.": (
            lambda logits, temperatures: torch.sigmoid(logits)
        ),
        "Multiplied, not divided: a temperature above 1 must bring a confidence "
        "nearer to 1/2.": lambda logits, temperatures: torch.sigmoid(
            logits * temperatures
        ),
        "The temperature divides the probability. It belongs to the logit, before the "
        "sigmoid; yours can even pass 1.": _divided_probability,
        "A power of the probability is something else: at T = 2 a confidence of 1/2 "
        "must stay 1/2. Divide the logit.": _power,
        "The sign in the exponent is turned round: yours is the chance of a "
        "rejection.": lambda logits, temperatures: torch.sigmoid(
            -logits / temperatures
        ),
        "A softmax makes the positions of one block share a total of 1. Each position "
        "is a yes or no of its own.": _softmax,
        "One temperature for all positions. Each has its own.": _one_for_all,
    },
)

# -- core: the calibration error -------------------------------------------------------


def _gaps(
    predicted: Tensor, observed: Tensor, bins: int
) -> tuple[list[Tensor], list[float]]:
    """Return |mean predicted - mean observed| of each bin in use, and its weight."""
    index = bin_index(predicted, bins)
    inside = [index == number for number in index.unique().tolist()]
    gaps = [(predicted[i].mean() - observed[i].double().mean()).abs() for i in inside]
    return gaps, [i.double().mean().item() for i in inside]


def _record_by_record(predicted: Tensor, observed: Tensor, bins: int) -> Tensor:
    return (predicted - observed).abs().mean()


def _one_big_bin(predicted: Tensor, observed: Tensor, bins: int) -> Tensor:
    return (predicted.mean() - observed.double().mean()).abs()


def _bins_alike(predicted: Tensor, observed: Tensor, bins: int) -> Tensor:
    gaps, _ = _gaps(predicted, observed, bins)
    return torch.stack(gaps).mean()


def _worst_bin(predicted: Tensor, observed: Tensor, bins: int) -> Tensor:
    gaps, _ = _gaps(predicted, observed, bins)
    return torch.stack(gaps).max()


def _empty_bins_count(predicted: Tensor, observed: Tensor, bins: int) -> float:
    gaps, weights = _gaps(predicted, observed, bins)
    pairs = zip(gaps, weights, strict=True)
    total = sum(float(gap) * weight for gap, weight in pairs)
    return total if len(gaps) == bins else math.nan


def _one_is_lost(predicted: Tensor, observed: Tensor, bins: int) -> float:
    below = predicted < 1
    found = expected_calibration_error(predicted[below], observed[below], bins)
    return found * below.double().mean().item()


def _without_weights(predicted: Tensor, observed: Tensor, bins: int) -> Tensor:
    gaps, _ = _gaps(predicted, observed, bins)
    return torch.stack(gaps).sum()


def _counts_as_weights(predicted: Tensor, observed: Tensor, bins: int) -> float:
    return len(predicted) * expected_calibration_error(predicted, observed, bins)


def _with_a_sign(predicted: Tensor, observed: Tensor, bins: int) -> Tensor:
    return predicted.mean() - observed.double().mean()


def _closed_above(predicted: Tensor, observed: Tensor, bins: int) -> float:
    index = (predicted.double() * bins).ceil().clamp(min=1) - 1
    found = 0.0
    for number in index.unique().tolist():
        inside = index == number
        gap = predicted[inside].mean() - observed[inside].double().mean()
        found += inside.double().mean().item() * gap.abs().item()
    return found


def _middle_of_the_bin(predicted: Tensor, observed: Tensor, bins: int) -> float:
    middle = (bin_index(predicted, bins) + 0.5) / bins
    return expected_calibration_error(middle, observed, bins)


ERROR = Exercise(
    name="calibration_error",
    reference=expected_calibration_error,
    cases=[
        (torch.tensor([0.7, 0.9, 0.2, 0.1]), torch.tensor([1, 0, 0, 0]), 2),
        (torch.tensor([0.1, 0.3, 0.6, 0.6, 0.9]), torch.tensor([0, 1, 1, 1, 1]), 4),
        (torch.tensor([1.0, 1.0, 0.55]), torch.tensor([0, 1, 1]), 2),
        (torch.tensor([0.05, 0.95, 0.85]), torch.tensor([1, 1, 0]), 10),
        (torch.tensor([0.5, 0.25, 0.75]), torch.tensor([0, 1, 1]), 2),
    ],
    mistakes={
        "Each record is compared by itself, and an outcome is never .7. Compare means, "
        "bin by bin.": _record_by_record,
        "A bin too sure and a bin too modest cancel: either all records are in one "
        "bin, or the absolute value was taken after the sum. Take it bin by bin.": (
            _one_big_bin
        ),
        "Every bin counts the same. Weigh a bin by its share of the records.": (
            _bins_alike
        ),
        "The gaps are added up as they are. Weigh a bin by its share of the records.": (
            _without_weights
        ),
        "n_b is a count. Divide by n.": _counts_as_weights,
        "Gaps of opposite sign cancel. Take their absolute value, bin by bin.": (
            _with_a_sign
        ),
        "A prediction on the edge of two bins belongs to the upper one alone; yours is "
        "in the lower, or in both.": _closed_above,
        "This is the worst bin. The ECE is a weighted mean over the bins.": _worst_bin,
        "A bin without records has no mean (0 / 0). It has no weight either: leave it "
        "out.": _empty_bins_count,
        "A prediction of exactly 1 falls out of your last bin.": _one_is_lost,
        "The middle of a bin stands for its predictions. Take their mean.": (
            _middle_of_the_bin
        ),
    },
)

# -- core: a threshold, and what it lets through ---------------------------------------


def _values(confidence: Tensor, on: str) -> Tensor:
    return survival(confidence) if on == "survival" else confidence


def _none_fails_is_0(confidence: Tensor, threshold: float, on: str) -> Tensor:
    """The index of the first that fails; 0 where there is none."""
    return (_values(confidence, on) < threshold).int().argmax(dim=-1)


def _all_that_pass(confidence: Tensor, threshold: float, on: str) -> Tensor:
    return (_values(confidence, on) >= threshold).sum(dim=-1)


def _up_to_the_last(confidence: Tensor, threshold: float, on: str) -> Tensor:
    places = torch.arange(1, confidence.shape[-1] + 1)
    return ((_values(confidence, on) >= threshold) * places).max(dim=-1).values


def _one_more(confidence: Tensor, threshold: float, on: str) -> Tensor:
    lengths = threshold_lengths(confidence, threshold, on)
    return (lengths + 1).clamp(max=confidence.shape[-1])


def _strictly_above(confidence: Tensor, threshold: float, on: str) -> Tensor:
    return leading_run(_values(confidence, on) > threshold)


def _conditional_alone(confidence: Tensor, threshold: float, on: str) -> Tensor:
    return threshold_lengths(confidence, threshold, "conditional")


def _survival_alone(confidence: Tensor, threshold: float, on: str) -> Tensor:
    return threshold_lengths(confidence, threshold, "survival")


def _rules_swapped(confidence: Tensor, threshold: float, on: str) -> Tensor:
    other = "conditional" if on == "survival" else "survival"
    return threshold_lengths(confidence, threshold, other)


def _longest_run(confidence: Tensor, threshold: float, on: str) -> Tensor:
    passes = _values(confidence, on) >= threshold
    best = run = torch.zeros(len(passes), dtype=torch.long)
    for k in range(passes.shape[-1]):
        run = (run + 1) * passes[:, k]
        best = torch.maximum(best, run)
    return best


def _mask(confidence: Tensor, threshold: float, on: str) -> Tensor:
    return (_values(confidence, on) >= threshold).long().cumprod(dim=-1)


CONFIDENT = torch.tensor([[0.75, 0.5, 0.25, 0.75], [0.25, 1.0, 1.0, 1.0]])
FALLING = torch.tensor([[0.75, 0.75, 0.75], [1.0, 0.5, 1.0]])

LENGTH = Exercise(
    name="verify_lengths",
    reference=threshold_lengths,
    cases=[
        (CONFIDENT, 0.5, "conditional"),
        (FALLING, 0.5, "survival"),
        (FALLING, 0.7, "conditional"),
        (CONFIDENT, 0.0, "survival"),
    ],
    mistakes={
        "All drafts that pass are counted. Behind the first that fails nothing can be "
        "verified: the target reads a prefix.": _all_that_pass,
        "Where every draft passes you answer 0. There is no first failure to find "
        "then.": _none_fails_is_0,
        "This is the place of the last draft that passes, whatever failed before.": (
            _up_to_the_last
        ),
        "One too many: the first draft that fails is not verified.": _one_more,
        "The longest run in the block, wherever it is. Only one that begins at the "
        "first draft counts.": _longest_run,
        "A value that equals the threshold passes.": _strictly_above,
        'Both rules look at c_k in yours. "survival" asks the product of all up to '
        "k.": _conditional_alone,
        'Both rules look at the product in yours. "conditional" asks c_k alone.': (
            _survival_alone
        ),
        "The two rules are swapped: the product is the survival.": _rules_swapped,
        "This says draft by draft which are verified. Wanted is one number for each "
        "request.": _mask,
    },
)

# -- stretch: ranking, whatever the scale ----------------------------------------------


def _pairs(predicted: Tensor, observed: Tensor) -> Tensor:
    """Return kept minus rejected scores, for every pair."""
    return predicted[observed == 1][:, None] - predicted[observed == 0]


def _ties_lose(predicted: Tensor, observed: Tensor) -> Tensor:
    return (_pairs(predicted, observed) > 0).double().mean()


def _ties_win(predicted: Tensor, observed: Tensor) -> Tensor:
    return (_pairs(predicted, observed) >= 0).double().mean()


def _over_all_pairs(predicted: Tensor, observed: Tensor) -> Tensor:
    wins = torch.heaviside(_pairs(predicted, observed), torch.tensor(0.5))
    return wins.sum() / len(predicted) ** 2


def _accuracy(predicted: Tensor, observed: Tensor) -> Tensor:
    return ((predicted >= 0.5) == (observed == 1)).double().mean()


def _rejected_first(predicted: Tensor, observed: Tensor) -> float:
    return 1 - auroc(predicted, observed)


RANKING = Exercise(
    name="ranking",
    reference=auroc,
    cases=[
        (torch.tensor([0.9, 0.4, 0.4, 0.1]), torch.tensor([1, 1, 0, 0])),
        (torch.tensor([0.99, 0.98, 0.97, 0.96]), torch.tensor([1, 1, 0, 1])),
        (torch.tensor([0.2, 0.3, 0.1]), torch.tensor([0, 0, 1])),
    ],
    mistakes={
        "A tie is counted as lost. It is neither won nor lost: half.": _ties_lose,
        "A tie is counted as won. It is neither won nor lost: half.": _ties_win,
        "The other way round: yours is the chance that the *rejected* draft was given "
        "more.": _rejected_first,
        "That depends on where 0.5 lies. Ranking asks only which of two is higher.": (
            _accuracy
        ),
        "Divided by all pairs. Only pairs of a kept and a rejected draft can be won.": (
            _over_all_pairs
        ),
        "A difference of means changes when the scale does. Count pairs in the right "
        "order.": lambda predicted, observed: _pairs(predicted, observed).mean(),
    },
)

EXERCISES = {found.name: found for found in (CALIBRATED, ERROR, LENGTH, RANKING)}
