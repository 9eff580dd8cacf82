"""Survival is a product, never rises, and its sum is a mean count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkref.verify.confidence import (
    expected_accepted_length,
    survival,
    threshold_lengths,
)

confidences = st.lists(st.floats(0, 1), max_size=16)


def test_conditional_confidences_multiply():
    confidence = torch.tensor([[0.9, 0.8, 0.5]], dtype=torch.float64)
    expected = torch.tensor([[0.9, 0.72, 0.36]], dtype=torch.float64)
    torch.testing.assert_close(survival(confidence), expected)
    assert expected_accepted_length(confidence).item() == pytest.approx(2.98)


@settings(deadline=None)
@given(confidences)
def test_survival_never_rises_and_stays_a_probability(confidence):
    found = survival(torch.tensor(confidence))
    assert ((found >= 0) & (found <= 1)).all()
    assert (found.diff() <= 0).all()


@settings(deadline=None)
@given(confidences)
def test_expected_length_is_the_mean_of_the_count(confidence):
    """Against the law of the count: n accepted, then a rejection or the end."""
    mean, alive = 0.0, 1.0
    for n, c in enumerate(confidence):
        mean += (n + 1) * alive * (1 - c)
        alive *= c
    mean += (len(confidence) + 1) * alive
    found = expected_accepted_length(torch.tensor(confidence, dtype=torch.float64))
    assert found.item() == pytest.approx(mean, abs=1e-9)


def test_products_in_float32_or_wider():
    half = torch.full((2, 15), 0.99, dtype=torch.bfloat16)
    assert torch.equal(survival(half), survival(half.float()))
    assert survival(half).dtype == torch.float32
    assert expected_accepted_length(half.double()).dtype == torch.float64


def test_no_drafts_is_the_bonus_alone():
    assert expected_accepted_length(torch.zeros(3, 0)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), float("inf")])
def test_logits_are_refused(bad):
    for function in survival, expected_accepted_length:
        with pytest.raises(ValueError, match=r"confidence .*sigmoid"):
            function(torch.tensor([0.5, bad]))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=32), max_size=8), st.floats(0, 1, width=32))
def test_a_threshold_stops_at_the_first_value_below_it(confidence, threshold):
    """Against a walk along the block, with float32's own products."""
    row = torch.tensor([confidence])
    for on, values in {"conditional": row, "survival": survival(row)}.items():
        below = [value < threshold for value in values[0].tolist()]
        expected = below.index(True) if any(below) else len(below)
        assert threshold_lengths(row, threshold, on).tolist() == [expected]


@pytest.mark.usefixtures("no_shape_checks")
def test_thresholds_and_rules_are_checked():
    row = torch.tensor([[0.5]])
    with pytest.raises(ValueError, match="threshold"):
        threshold_lengths(row, 1.1)
    with pytest.raises(ValueError, match=r"on .*conditional, survival"):
        threshold_lengths(row, 0.5, on="joint")
    with pytest.raises(ValueError, match=r"confidence .*sigmoid"):
        threshold_lengths(3 * row, 0.5)
