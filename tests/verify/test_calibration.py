"""Measures against slow twins and scikit-learn; the fit where the truth is known."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score

from dsparkref.verify.calibration import (
    apply_sts,
    auroc,
    brier_score,
    expected_calibration_error,
    fit_sts,
    reliability_bins,
)
from dsparkref.verify.confidence import survival

edges = st.sampled_from([0.0, 0.05, 0.15, 0.25, 0.5, 0.95, 1.0])
scores = st.one_of(edges, st.floats(0, 1))


@st.composite
def records(draw, soft: bool):
    """Predictions with many ties, and what came of them."""
    predicted = draw(st.lists(scores, min_size=1, max_size=30))
    outcome = scores if soft else st.sampled_from([0.0, 1.0])
    size = len(predicted)
    observed = draw(st.lists(outcome, min_size=size, max_size=size))
    return torch.tensor(predicted, dtype=torch.float64), torch.tensor(observed).double()


def slow_ece(predicted: list[float], observed: list[float], bins: int) -> float:
    """Bin by bin, as the definition reads; the last bin is closed."""
    total = 0.0
    for i in range(bins):
        low, high = i / bins, (i + 1) / bins
        inside = [
            (p, o)
            for p, o in zip(predicted, observed, strict=True)
            if low <= p < high or (p == 1 and i == bins - 1)
        ]
        if inside:
            gap = sum(p for p, _ in inside) - sum(o for _, o in inside)
            total += abs(gap / len(inside)) * len(inside) / len(predicted)
    return total


# --- the measures -----------------------------------------------------------------


@settings(deadline=None)
@given(records(soft=True), st.sampled_from([1, 10, 20]))
def test_ece_is_the_slow_one(found, bins):
    predicted, observed = found
    got = expected_calibration_error(predicted, observed, bins)
    want = slow_ece(predicted.tolist(), observed.tolist(), bins)
    assert got == pytest.approx(want, abs=1e-12)
    diagram = reliability_bins(predicted, observed, bins)
    gaps = (diagram.predicted - diagram.observed).abs().nan_to_num() * diagram.count
    assert gaps.sum().item() / len(predicted) == pytest.approx(want, abs=1e-12)
    assert diagram.count.sum() == len(predicted)
    assert (diagram.count == 0).equal(diagram.predicted.isnan())


@settings(deadline=None)
@given(records(soft=False))
def test_brier_and_auroc_are_scikit_learns(found):
    predicted, observed = found
    labels, numbers = observed.int().tolist(), predicted.tolist()
    want = brier_score_loss(labels, numbers, labels=[0, 1])
    assert brier_score(predicted, observed) == pytest.approx(want, abs=1e-12)
    kept = [p for p, o in zip(numbers, labels, strict=True) if o]
    rejected = [p for p, o in zip(numbers, labels, strict=True) if not o]
    got = auroc(predicted, observed)
    if not kept or not rejected:
        assert math.isnan(got)
        return
    pairs = [(a > b) + (a == b) / 2 for a in kept for b in rejected]
    assert got == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert got == pytest.approx(roc_auc_score(labels, numbers), abs=1e-12)


def test_values_by_hand():
    predicted = torch.tensor([0.95, 0.95, 0.15, 0.15])
    observed = torch.tensor([True, False, False, False])  # |1.9 - 1| + |.3 - 0|, of 4
    assert expected_calibration_error(predicted, observed) == pytest.approx(0.3)
    assert expected_calibration_error(predicted, predicted) == 0
    # one bin sees the means alone: .55 against .25
    assert expected_calibration_error(predicted, observed, bins=1) == pytest.approx(0.3)
    assert auroc(torch.tensor([0.5, 0.5]), torch.tensor([1, 0])) == 0.5
    assert auroc(torch.tensor([0.2, 0.8]), torch.tensor([1, 0])) == 0.0


def test_a_bin_holds_its_lower_edge():
    """.29 is 29 / 100, though .29 * 100 rounds to less than 29."""
    predicted = torch.tensor([0.29], dtype=torch.float64)
    diagram = reliability_bins(predicted, torch.tensor([1]), bins=100)
    assert diagram.count[29] == 1


@pytest.mark.parametrize("measure", [expected_calibration_error, brier_score, auroc])
@pytest.mark.usefixtures("no_shape_checks")
def test_measures_refuse(measure):
    good, labels = torch.tensor([0.5, 0.5]), torch.tensor([0, 1])
    for bad in torch.tensor([0.5, 1.5]), torch.tensor([0.5, math.nan]):
        with pytest.raises(ValueError, match=r"predicted must lie in \[0, 1\]"):
            measure(bad, labels)
    with pytest.raises(ValueError, match=r"observed must lie in \[0, 1\]"):
        measure(good, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="observed must have shape"):
        measure(good, torch.tensor([0]))
    with pytest.raises(ValueError, match="records must not be empty"):
        measure(torch.zeros(0), torch.zeros(0))


def test_auroc_takes_no_soft_labels_and_ece_no_empty_bins():
    with pytest.raises(ValueError, match="observed must be 0 or 1"):
        auroc(torch.tensor([0.5]), torch.tensor([0.5]))
    with pytest.raises(ValueError, match=r"bins .*>= 1, got 0"):
        expected_calibration_error(torch.tensor([0.5]), torch.tensor([1]), 0)


# --- sequential temperature scaling -------------------------------------------------

DOUBLED, RIGHT = 2.0, 1.0


def true_logits(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1 + 1.5 * torch.randn(count, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "scales",
    [[DOUBLED] * 3, [RIGHT] * 3, [DOUBLED, RIGHT, DOUBLED], [RIGHT, DOUBLED, RIGHT]],
    ids=str,
)
def test_the_fit_finds_the_truth_of_soft_labels(scales):
    logits = true_logits(20_000)
    found = fit_sts(logits * torch.tensor(scales), logits.sigmoid())
    assert (found - torch.tensor(scales)).abs().max() < 0.1


def test_the_fit_finds_the_truth_of_300_000_outcomes():
    """E6: labels drawn from sigmoid(z), the head says 2z, z and 2z."""
    logits, scales = true_logits(300_000), torch.tensor([DOUBLED, RIGHT, DOUBLED])
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(logits.shape, generator=generator) < logits.sigmoid()
    said, accepted = logits * scales, drawn.long().cumprod(dim=1)
    found = fit_sts(said, accepted)
    assert (found - scales).abs().max() < 0.1
    before, after = said.sigmoid(), apply_sts(said, found)
    for k in range(3):
        errors = [
            expected_calibration_error(c[:, : k + 1].prod(1), accepted[:, k])
            for c in (before, after)
        ]
        assert errors[1] < errors[0] / 5


def test_what_is_calibrated_needs_no_temperature():
    logits = true_logits(20_000)
    found = fit_sts(3 * logits, logits.sigmoid())
    again = fit_sts(3 * logits / found, logits.sigmoid())
    assert (again - 1).abs().max() < 0.02


def test_each_temperature_is_the_best_for_the_product_so_far():
    """The definition, position by position, against other temperatures."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(500, 4, generator=generator, dtype=torch.float64)
    accepted = (torch.rand(500, 4, generator=generator) < 0.7).long().cumprod(1)
    found = fit_sts(logits, accepted)

    def error(k: int, temperature: float) -> float:
        tried = found[: k + 1].clone()
        tried[k] = temperature
        product = survival(apply_sts(logits[:, : k + 1], tried))[:, k]
        return expected_calibration_error(product, accepted[:, k])

    for k in range(4):
        best = error(k, found[k].item())
        others = [error(k, 2 ** (power / 4)) for power in range(-16, 17)]
        assert best <= min(others) + 1e-12
        assert max(others) > best + 0.005  # the choice mattered


def test_conditional_labels_and_kept_prefixes_are_one():
    logits = true_logits(400)
    drawn = torch.rand(400, 3, generator=torch.Generator().manual_seed(2)) < 0.6
    assert fit_sts(logits, drawn).equal(fit_sts(logits, drawn.long().cumprod(1)))


def test_what_is_not_counted_is_not_read():
    logits, labels = true_logits(400), true_logits(400).sigmoid()
    counted = torch.ones(400, 3, dtype=torch.bool)
    counted[:100, 1:] = False
    spoilt_logits, spoilt = logits.clone(), labels.clone()
    spoilt_logits[:100, 1:], spoilt[:100, 1:] = 50.0, 0.0
    found = fit_sts(2 * spoilt_logits, spoilt, counted=counted)
    assert found.equal(fit_sts(2 * logits, labels, counted=counted))
    assert not found.equal(fit_sts(2 * spoilt_logits, spoilt))


def test_where_nothing_tells_temperatures_apart_it_is_one():
    assert fit_sts(torch.zeros(5, 2), torch.ones(5, 2)).tolist() == [1.0, 1.0]


def test_a_temperature_keeps_the_order_at_one_position_only():
    """Trap 8: two requests change places once their products are formed."""
    logits = torch.tensor([[3.0, 0.5], [1.2, 1.6]])
    cooled = apply_sts(logits, [0.5, 10.0])
    for k in range(2):
        assert (logits[0, k] > logits[1, k]) == (cooled[0, k] > cooled[1, k])
    before, after = survival(logits.sigmoid())[:, 1], survival(cooled)[:, 1]
    assert before[0] < before[1] and after[0] > after[1]


def test_apply_is_the_sigmoid_in_float32_or_wider():
    logits = torch.tensor([[[1.0, -2.0]]], dtype=torch.bfloat16)
    found = apply_sts(logits, torch.tensor([1.0, 2.0]))
    assert found.dtype == torch.float32 and found.shape == logits.shape
    torch.testing.assert_close(found, torch.tensor([[[1.0, -1.0]]]).sigmoid())
    assert apply_sts(logits.double(), [1.0, 2.0]).dtype == torch.float64


@pytest.mark.usefixtures("no_shape_checks")
def test_fits_that_cannot_be():
    logits, accepted = torch.zeros(4, 2), torch.ones(4, 2)
    nan = torch.full((4, 2), math.nan)
    gap = torch.tensor([[False, True]]).expand(4, 2)
    for arguments, words in (
        ((logits[0], accepted), "logits must have shape"),
        ((logits, accepted[:, :1]), "accepted must have shape"),
        ((nan, accepted), "logits must be numbers"),
        ((logits, nan), r"accepted must lie in \[0, 1\]"),
        ((logits[:0], accepted[:0]), "accepted must hold records at position 0"),
    ):
        with pytest.raises(ValueError, match=words):
            fit_sts(*arguments)
    with pytest.raises(ValueError, match="counted must be leading runs"):
        fit_sts(logits, accepted, counted=gap)
    first = torch.tensor([[True, False]]).expand(4, 2)
    with pytest.raises(ValueError, match="accepted must hold records at position 1"):
        fit_sts(logits, accepted, counted=first)
    for bad in [1.0], [1.0, 0.0], [1.0, -1.0], [1.0, math.inf]:
        with pytest.raises(ValueError, match="temperatures must be"):
            apply_sts(logits, bad)
