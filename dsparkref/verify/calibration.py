"""Is a confidence of .8 right eight times in ten? How to measure it, and one repair.

*Calibration* asks whether the numbers mean what they say (ECE, reliability bins);
*discrimination*, whether good drafts get higher ones than bad drafts (AUROC); the
Brier score asks both. Sequential Temperature Scaling repairs the first and leaves the
second alone: at one position a temperature keeps the order of the confidences.

Everything takes plain tensors. What was observed is 0 or 1, or a probability where
that is known (a soft label). Position k is 0-based; it is the paper's k+1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dsparkref.shapes import check_range, check_shape, problem
from dsparkref.verify.inputs import check_tensor, numbers, widen

# Temperatures tried: powers of two in steps of an eighth, from 1/16 to 16; then the
# neighbourhood of the best one in steps of a 128th, which is about half a per cent.
COARSE = torch.arange(-32, 33, dtype=torch.float64) / 8
FINE = torch.arange(-16, 17, dtype=torch.float64) / 128


@dataclass(frozen=True)
class ReliabilityBins:
    """What was predicted and what came, bin by bin: the reliability diagram."""

    # [bins + 1], from 0 to 1; a bin holds its lower edge, the last one also its upper
    edges: Tensor
    # [bins], records
    count: Tensor
    # [bins], mean prediction; NaN in an empty bin
    predicted: Tensor
    # [bins], mean of what was observed; NaN in an empty bin
    observed: Tensor


def reliability_bins(
    predicted: Float[Tensor, " n"], observed: Shaped[Tensor, " n"], bins: int = 20
) -> ReliabilityBins:
    """Sort records into bins of equal width by their prediction.

    Bin i is [i / bins, (i + 1) / bins); the last one holds 1 too.

    >>> found = reliability_bins(
    ...     torch.tensor([0.25, 0.25, 1.0]), torch.tensor([1, 0, 1]), bins=2
    ... )
    >>> found.count.tolist(), found.predicted.tolist(), found.observed.tolist()
    ([2, 1], [0.25, 1.0], [0.5, 1.0])
    """
    predicted, observed = _records(predicted, observed)
    edges = _edges(bins)
    index = bin_index(predicted, bins)
    count = torch.bincount(index, minlength=bins)
    means = [
        torch.bincount(index, weights=values, minlength=bins) / count
        for values in (predicted, observed)
    ]
    return ReliabilityBins(edges, count, *means)


def expected_calibration_error(
    predicted: Float[Tensor, " n"], observed: Shaped[Tensor, " n"], bins: int = 20
) -> float:
    """Return sum_b n_b/n |mean predicted - mean observed| (Naeini et al. 2015).

    Args:
        predicted: [n] in [0, 1].
        observed: [n], 0 or 1, or a probability.
        bins: of equal width, as in ``reliability_bins``.

    Returns:
        0 (calibrated, bin by bin) to 1.

    Raises:
        TypeError, ValueError: no records, unlike lengths, numbers outside [0, 1].

    >>> predicted = torch.tensor([0.75, 0.75, 0.25, 0.25])
    >>> observed = torch.tensor([1, 0, 0, 0])  # 1/2 |.75 - .5| + 1/2 |.25 - 0|
    >>> expected_calibration_error(predicted, observed)
    0.25

    Differs: some codes take bins closed above, and 10 or 15 of them; the number
    depends on both, so it never stands without its bins.
    """
    return _ece(*_records(predicted, observed), bins)


def brier_score(
    predicted: Float[Tensor, " n"], observed: Shaped[Tensor, " n"]
) -> float:
    """Return the mean squared error of the predictions (Brier 1950); lower is better.

    >>> brier_score(torch.tensor([0.5, 1.0]), torch.tensor([0, 1]))  # (.25 + 0) / 2
    0.125
    """
    predicted, observed = _records(predicted, observed)
    return (predicted - observed).square().mean().item()


def auroc(predicted: Float[Tensor, " n"], observed: Shaped[Tensor, " n"]) -> float:
    """Return the chance that a kept draft was given more than a rejected one.

    The area under the ROC curve; a tie counts half. 0.5 is guessing; NaN where all
    records are of one kind. ``observed`` must be 0 or 1 here.

    >>> predicted = torch.tensor([0.9, 0.4, 0.4, 0.1])
    >>> auroc(predicted, torch.tensor([1, 1, 0, 0]))  # (1 + 1 + 1/2 + 1) / 4
    0.875
    """
    predicted, observed = _records(predicted, observed)
    if not ((observed == 0) | (observed == 1)).all():
        raise problem("observed", "be 0 or 1 for AUROC", "0 or 1", "a soft label")
    kept, rejected = predicted[observed == 1], predicted[observed == 0].sort().values
    if not len(kept) or not len(rejected):
        return math.nan
    below = torch.searchsorted(rejected, kept) + torch.searchsorted(
        rejected, kept, right=True
    )
    return (below.double().mean() / (2 * len(rejected))).item()


def fit_sts(
    logits: Float[Tensor, "n K"],
    accepted: Shaped[Tensor, "n K"],
    *,
    counted: Bool[Tensor, "n K"] | None = None,
    bins: int = 20,
) -> Float[Tensor, " K"]:
    """Fit one temperature per position (DSpark, Sequential Temperature Scaling).

    From the first position to the last: take the temperature of this position's logit
    that gives the product of all confidences so far the least ECE, the earlier
    temperatures fixed. What is calibrated is what the scheduler reads, the survival.

    Args:
        logits: [n, K], confidence logits, before the sigmoid.
        accepted: [n, K], whether draft k was kept, 0 or 1, given that those before it
            were; or the probability of it. What stands behind a 0 is not read. Records
            must come from cycles verified to the end: under truncation the deep
            positions are seen only where they looked good.
        counted: [n, K], the drafts that count, a leading run of each row; None: all.
        bins: of the ECE.

    Returns:
        temperatures [K] > 0, float64. Among equals the one nearest to 1.

    Raises:
        TypeError, ValueError: unlike shapes, NaN, a position with no record.

    >>> logits = torch.linspace(-4, 4, 100, dtype=torch.float64)[:, None]
    >>> fit_sts(2 * logits, logits.sigmoid())  # twice too sure of itself
    tensor([2.], dtype=torch.float64)
    """
    logits, observed, counted = _blocks(logits, accepted, counted)
    standing = torch.ones(len(logits), dtype=torch.float64)
    temperatures: list[float] = []
    for k in range(logits.shape[1]):
        rows = counted[:, k]
        if not rows.any():
            rule = f"hold records at position {k}"
            raise problem("accepted", rule, "at least one", "none")
        records = logits[rows, k], standing[rows], observed[rows, k]
        temperatures.append(_best_temperature(*records, bins))
        standing = standing * torch.sigmoid(logits[:, k] / temperatures[-1])
    return torch.tensor(temperatures, dtype=torch.float64)


def apply_sts(
    logits: Float[Tensor, "*rows K"],
    temperatures: Float[Tensor, " K"] | Sequence[float],
) -> Float[Tensor, "*rows K"]:
    """Return the calibrated confidence: sigmoid(logit_k / temperature_k).

    Args:
        logits: [..., K], before the sigmoid.
        temperatures: [K] > 0, as ``fit_sts`` gives them.

    Returns:
        [..., K] in [0, 1], conditional, float32 or wider; ``survival`` takes it.

    >>> apply_sts(torch.tensor([[2.0, 0.0]]), [2.0, 1.0])  # 1 / (1 + e^-1), 1 / 2
    tensor([[0.7311, 0.5000]])
    """
    logits = widen(logits, "logits")
    values = numbers("temperatures", temperatures)
    scale = torch.tensor(values, dtype=logits.dtype, device=logits.device)
    if scale.shape != logits.shape[-1:]:
        expected, got = list(logits.shape[-1:]), list(scale.shape)
        raise problem("temperatures", "be one per position", expected, got)
    if not ((scale > 0) & torch.isfinite(scale)).all():
        raise problem("temperatures", "be positive", "finite numbers > 0", scale)
    return torch.sigmoid(logits / scale)


def bin_index(predicted: Float[Tensor, " n"], bins: int) -> Int[Tensor, " n"]:
    """Return the number of each prediction's bin, 0..bins-1.

    >>> bin_index(torch.tensor([0.0, 0.49, 0.5, 1.0]), 2)
    tensor([0, 0, 1, 1])
    """
    inner = _edges(bins)[1:-1]
    return torch.bucketize(predicted.double().contiguous(), inner, right=True)


def _ece(predicted: Tensor, observed: Tensor, bins: int) -> float:
    """Add up the gaps: n_b times a difference of means is a difference of sums."""
    index = bin_index(predicted, bins)
    gaps = torch.bincount(index, weights=predicted - observed, minlength=bins)
    return gaps.abs().sum().item() / len(predicted)


def _best_temperature(
    logits: Tensor, standing: Tensor, observed: Tensor, bins: int
) -> float:
    """Search the coarse grid, then around its best point."""

    def best(powers: Tensor) -> float:
        near_one_first = powers[powers.abs().argsort(stable=True)]
        errors = [
            _ece(standing * torch.sigmoid(logits / 2.0**power), observed, bins)
            for power in near_one_first.tolist()
        ]
        return near_one_first[errors.index(min(errors))].item()

    return 2.0 ** best(best(COARSE) + FINE)


def _edges(bins: int) -> Float[Tensor, " edges"]:
    check_range("bins", bins, 1, integer=True)
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def _records(predicted: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Check predictions and what came of them; return both as float64 on the CPU."""
    check_shape("predicted", predicted, "n")
    check_shape("observed", observed, "n", n=len(predicted))
    if not len(predicted):
        raise problem("records", "not be empty", "at least one", "none")
    return _shares("predicted", predicted), _shares("observed", observed)


def _blocks(
    logits: Tensor, accepted: Tensor, counted: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Check blocks of records; return logits, survival as observed, and what counts."""
    sizes = check_shape("logits", logits, "n K")
    check_tensor("logits", logits)
    check_shape("accepted", accepted, "n K", **sizes)
    if torch.isnan(logits).any():
        raise problem("logits", "be numbers", "no NaN", "NaN")
    observed = _shares("accepted", accepted).cumprod(dim=1)
    if counted is None:
        counted = torch.ones_like(observed, dtype=torch.bool)
    check_shape("counted", counted, "n K", **sizes)
    check_tensor("counted", counted)
    if counted.dtype != torch.bool:
        kind = counted.dtype
        raise problem("counted", "hold flags", "bool", kind, error=TypeError)
    if (counted[:, 1:] & ~counted[:, :-1]).any():
        rule, expected = "be leading runs", "no gap in a row"
        raise problem("counted", rule, expected, "a draft counted behind one left out")
    return logits.detach().cpu().double(), observed, counted.cpu()


def _shares(name: str, values: Tensor) -> Tensor:
    """Return values in [0, 1] as float64 on the CPU."""
    check_tensor(name, values)
    shares = values.detach().cpu().double()
    outside = ~((shares >= 0) & (shares <= 1))  # NaN is outside too
    if outside.any():
        got = shares[outside][0].item()
        raise problem(name, "lie in [0, 1]", "probabilities, or 0 and 1", got)
    return shares
