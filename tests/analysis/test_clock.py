"""The clock of a replay: what a step costs, and that a made-up one says so."""

import copy

import pytest
import torch

from dsparkref import LaggedPrefixScheduler, PrefixScheduler
from dsparkref.analysis.clock import CURVES, made_up_clock, table_clock
from dsparkref.analysis.profile import Point, Profile, load_measured
from dsparkref.verify.scheduler import StepsPerSecond

POINTS = [Point(1, 1, 1.0, 1.0), Point(1, 3, 1.0, 2.0)]
POINTS += [Point(3, 1, 2.0, 3.0), Point(3, 3, 2.0, 8.0)]
FACTS = {"device": "cpu", "threads": 1, "dtype": "float32", "model": "tiny"}
FACTS |= {"date": "2026-01-31", "context": 64, "repeats": 3}


def table(*points):
    return Profile(**FACTS, points=points)


def test_a_step_costs_what_the_table_says():
    clock = table_clock(table(*POINTS))
    assert clock([2], drafted=True) == pytest.approx(1.0 + 2.0)
    assert clock([2, 2, 2], drafted=True) == pytest.approx(2.0 + 8.0)
    assert clock([0, 0, 0], drafted=True) == pytest.approx(2.0 + 3.0)
    assert clock([0, 0, 0], drafted=False) == 3.0  # no draft pass
    # rates are linear: 3 + 3 of 9 tokens, half way from 1/5 to 1/10 steps a second
    assert clock([2, 1, 0], drafted=True) == pytest.approx(1 / 0.15)
    assert clock([0, 0], drafted=False) == 2.0  # between one and three requests


def test_the_clock_is_what_a_scheduler_plans_with():
    clock = table_clock(load_measured())
    for requests in (1, 5, 64):
        sps = clock.steps_per_second(requests)
        assert sps.capacity == 8 * requests
        spread = [number % 8 for number in range(requests)]
        assert clock(spread, True) == 1 / sps(requests + sum(spread))


def test_padding_counts_every_row_as_long_as_the_longest():
    packed, padded = (
        table_clock(table(*POINTS), padded=flag) for flag in (False, True)
    )
    assert padded([2, 0, 0], True) == packed([2, 2, 2], True) > packed([2, 0, 0], True)
    assert "padded" in str(padded) and "padded" not in str(packed)


def test_what_a_clock_does_not_know_is_refused():
    clock = table_clock(table(*POINTS))
    with pytest.raises(ValueError, match=r"rows must be measured: .* to 3, got 4"):
        clock([0] * 4, drafted=False)
    with pytest.raises(ValueError, match=r"batch_tokens must be measured: .*, got 4"):
        clock([3], drafted=True)
    with pytest.raises(ValueError, match="table must know a step without drafts"):
        table_clock(table(Point(1, 2, 1.0, 1.0)))


@pytest.mark.parametrize("curve", CURVES)
def test_a_made_up_clock_says_so_and_a_measured_one_what_it_is(curve):
    clock = made_up_clock(curve, CURVES[curve], block_size=7)
    assert str(clock) == f"MADE UP, not measured: {curve}"
    seconds = [clock([0] * n, drafted=False) for n in (1, 64, 65, 128, 129)]
    assert seconds == sorted(seconds) and seconds[-1] > seconds[0]
    measured = str(table_clock(load_measured()))
    assert "MADE UP" not in measured
    for words in ("tiny, markov, K = 7", "x86_64", "float32", "2026-11-30"):
        assert words in measured


def test_schedulers_read_the_table_at_the_requests_of_the_step():
    """One request: a second draft is free. Two: no draft is worth its time."""
    by_requests = {
        1: StepsPerSecond({1: 10.0, 3: 9.9}),
        2: StepsPerSecond({2: 10.0, 3: 5.0, 6: 1.0}),
    }.__getitem__
    confidence = torch.full((2, 2), 0.8)
    for policy in (PrefixScheduler(by_requests), LaggedPrefixScheduler(by_requests)):
        policy = policy.start()
        for rows, wanted in ((1, [2]), (1, [2]), (2, [0, 0]), (2, [0, 0])):
            got = policy.verify_lengths(confidence[:rows], block_size=2)
            if isinstance(policy, PrefixScheduler):
                assert got.tolist() == wanted
    # two steps after two single requests the lagged one still spends their budget
    policy = LaggedPrefixScheduler(by_requests, lag=1).start()
    policy.verify_lengths(confidence[:1], block_size=2)
    assert policy.verify_lengths(confidence, block_size=2).tolist() == [1, 1]
    assert policy.verify_lengths(confidence, block_size=2).tolist() == [0, 0]


def test_what_gives_no_table_is_refused(no_shape_checks):
    for wrong in ({1: 2.0}, None, 7):
        for kind in (PrefixScheduler, LaggedPrefixScheduler):
            with pytest.raises(TypeError, match="steps_per_second must be a measured"):
                kind(wrong)
    policy = PrefixScheduler(lambda requests: {1: 2.0})
    with pytest.raises(TypeError, match="steps_per_second must be a measured table"):
        policy.verify_lengths(torch.full((1, 2), 0.8), block_size=2)


def test_a_policy_does_not_take_its_table_along_when_it_is_copied():
    """A batch copies its policy before every step."""
    clock = table_clock(load_measured())
    policy = LaggedPrefixScheduler(clock.steps_per_second)
    assert copy.deepcopy(policy).steps_per_second is policy.steps_per_second
