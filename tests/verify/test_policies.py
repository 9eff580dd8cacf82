"""Fixed lengths and thresholds; that they keep the law is in test_losslessness.py."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkref.verify.policies import ConfidenceThreshold, FixedLength


@pytest.mark.parametrize("k", [0, 3, 7])
def test_fixed_length(k):
    lengths = FixedLength(k).verify_lengths(None, block_size=7, num_requests=4)
    assert lengths.tolist() == [k] * 4 and lengths.dtype == torch.long
    confidence = torch.zeros(1, 7)
    assert FixedLength(k).verify_lengths(confidence, block_size=7).tolist() == [k]


def test_fixed_length_beyond_the_block_names_both():
    with pytest.raises(ValueError, match=r"^k .*<= 7, got 9"):
        FixedLength(9).verify_lengths(None, block_size=7)


def test_fixed_length_counts_the_rows_it_sees():
    lengths = FixedLength(2).verify_lengths(torch.zeros(3, 7), block_size=7)
    assert lengths.tolist() == [2, 2, 2]


@pytest.mark.parametrize("bad", [-1, 1.5, True])
@pytest.mark.usefixtures("no_shape_checks")
def test_fixed_length_refuses(bad):
    with pytest.raises((ValueError, TypeError), match="k"):
        FixedLength(bad)


def test_the_two_thresholds_are_two_rules():
    confidence = torch.tensor([[0.9, 0.8, 0.5], [0.4, 1.0, 1.0], [0.7, 0.7, 0.7]])

    def lengths(threshold, on):
        policy = ConfidenceThreshold(threshold, on=on)
        return policy.verify_lengths(confidence, block_size=3).tolist()

    assert lengths(0.6, "conditional") == [2, 0, 3]
    assert lengths(0.6, "survival") == [2, 0, 1]
    assert lengths(0.45, "conditional") == [3, 0, 3]
    assert lengths(0.45, "survival") == [2, 0, 2]
    assert lengths(0.0, "survival") == [3, 3, 3]


def test_the_value_may_equal_the_threshold():
    confidence = torch.tensor([30.0, 4.6]).sigmoid().expand(1, 2)  # exactly 1, .99
    for on in "conditional", "survival":
        policy = ConfidenceThreshold(1.0, on=on)
        assert policy.verify_lengths(confidence, block_size=2).tolist() == [1]
    level = torch.tensor([[0.9, 0.9]])
    assert ConfidenceThreshold(0.9).verify_lengths(level, block_size=2).item() == 2


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8),
    st.floats(0, 1, width=32),
    st.floats(0, 1, width=32),
)
def test_a_higher_threshold_never_verifies_more(confidence, one, other):
    low, high = sorted((one, other))
    block, row = len(confidence), torch.tensor([confidence])
    found = {}
    for on in "conditional", "survival":
        for level in low, high:
            policy = ConfidenceThreshold(level, on=on)
            found[on, level] = policy.verify_lengths(row, block_size=block).item()
        assert found[on, high] <= found[on, low]
    # a product is never above its factors
    assert found["survival", low] <= found["conditional", low]


def test_a_threshold_needs_a_confidence_head():
    with pytest.raises(ValueError, match=r"drafter .*confidence head"):
        ConfidenceThreshold(0.5).verify_lengths(None, block_size=7)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_thresholds_out_of_range(bad):
    with pytest.raises(ValueError, match="threshold"):
        ConfidenceThreshold(bad)


@pytest.mark.usefixtures("no_shape_checks")
def test_unknown_rule_and_wrong_inputs():
    with pytest.raises(ValueError, match=r"on .*conditional, survival"):
        ConfidenceThreshold(0.5, on="joint")
    for confidence in torch.zeros(1, 6), torch.full((1, 7), 3.0):
        with pytest.raises((ValueError, TypeError), match="confidence"):
            ConfidenceThreshold(0.5).verify_lengths(confidence, block_size=7)


@pytest.mark.parametrize("policy", [FixedLength(3), ConfidenceThreshold(0.5)])
def test_policies_are_frozen_and_have_no_history(policy):
    assert policy.start() is policy
    field = dataclasses.fields(policy)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, field, 0)
