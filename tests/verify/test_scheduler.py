"""Algorithm 1 against brute force, its ties, its capacity, and a plain slow twin."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkref.verify.confidence import survival
from dsparkref.verify.policies import LaggedPrefixScheduler, PrefixScheduler
from dsparkref.verify.scheduler import (
    StepsPerSecond,
    fill_budget,
    schedule_prefixes,
    throughput_curve,
)

APPENDIX_A = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})


def table(rates: list[float], first: int = 1) -> StepsPerSecond:
    return StepsPerSecond(dict(enumerate(rates, start=first)))


def throughput(chances, lengths, sps) -> float:
    """Theta of some lengths, added up by hand."""
    lengths = [int(length) for length in lengths]
    expected = sum(
        1 + sum(row[:length].tolist())
        for row, length in zip(chances.double(), lengths, strict=True)
    )
    return expected * sps(len(chances) + sum(lengths))


def brute_force(chances, sps) -> float:
    """The best throughput over every length of every request.

    A draft that cannot stand is no choice, not even where more tokens run faster.
    """
    size = len(chances)
    return max(
        throughput(chances, lengths, sps)
        for lengths in product(*(range(int((row > 0).sum()) + 1) for row in chances))
        if size + sum(lengths) <= sps.capacity
    )


def algorithm_1(chances, sps, early_stop=True) -> list[int]:
    """The paper's listing, one pair at a time."""
    rows = chances.double().tolist()
    pairs = [(-a, j, r) for r, row in enumerate(rows) for j, a in enumerate(row) if a]
    lengths, batch, tokens = [0] * len(rows), len(rows), float(len(rows))
    kept, best = list(lengths), tokens * sps(batch)
    for minus_a, j, r in sorted(pairs):
        if batch == sps.capacity:
            break
        lengths[r], batch, tokens = j + 1, batch + 1, tokens - minus_a
        if tokens * sps(batch) > best:
            best, kept = tokens * sps(batch), list(lengths)
        elif early_stop:
            break
    return kept


@st.composite
def problems(draw, convex: bool):
    """Survivals [R, K] with many ties and zeros, and a curve."""
    size, block = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    grid = st.sampled_from([0.0, 0.1, 0.5, 0.7, 0.9, 1.0])
    number = st.one_of(grid, st.floats(0, 1, width=32))
    flat = draw(st.lists(number, min_size=size * block, max_size=size * block))
    chances = survival(torch.tensor(flat, dtype=torch.float64).view(size, block))
    count = draw(st.integers(1, size * block + 2))
    steps = st.floats(0, 3, width=32)
    rises = draw(st.lists(steps, min_size=count, max_size=count))
    if convex:
        rises.sort()
        seconds = [1.0]
        for rise in rises:
            seconds.append(seconds[-1] + rise)
    else:  # anything, even faster with more tokens
        seconds = [1.0] + [0.3 + rise for rise in rises]
    return chances, table([1 / s for s in seconds], first=size)


def test_appendix_a_step_by_step():
    seen_a, seen_b = torch.tensor([[0.8, 0.72]]), torch.tensor([[0.8, 0.0]])
    assert throughput(seen_a, [0], APPENDIX_A) == 1.0
    assert throughput(seen_a, [1], APPENDIX_A) == pytest.approx(0.9)
    assert throughput(seen_a, [2], APPENDIX_A) == pytest.approx(1.134)
    for chances, by_search in (seen_a, 2), (seen_b, 0):
        assert schedule_prefixes(chances, APPENDIX_A).tolist() == [0]
        found = schedule_prefixes(chances, APPENDIX_A, early_stop=False)
        assert found.tolist() == [by_search]


@settings(deadline=None, max_examples=150)
@given(problems(convex=True))
def test_the_early_stop_is_optimal_where_step_time_is_convex(case):
    chances, sps = case
    found = schedule_prefixes(chances, sps)
    best = brute_force(chances, sps)
    assert throughput(chances, found, sps) == pytest.approx(best, rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(problems(convex=False))
def test_the_global_search_is_optimal_on_any_curve(case):
    chances, sps = case
    found = schedule_prefixes(chances, sps, early_stop=False)
    best = brute_force(chances, sps)
    assert throughput(chances, found, sps) == pytest.approx(best, rel=1e-9)
    stopped = throughput(chances, schedule_prefixes(chances, sps), sps)
    assert stopped <= best * (1 + 1e-9)


@settings(deadline=None)
@given(problems(convex=False), st.booleans())
def test_it_is_the_papers_listing(case, early_stop):
    chances, sps = case
    found = schedule_prefixes(chances, sps, early_stop=early_stop)
    assert found.tolist() == algorithm_1(chances, sps, early_stop)
    assert found.dtype == torch.long
    assert len(chances) + int(found.sum()) <= sps.capacity


@settings(deadline=None)
@given(problems(convex=False))
def test_the_curve_is_theta_of_every_budget(case):
    """Added up by hand at each size; it ends with the table or the last draft."""
    chances, sps = case
    curve = throughput_curve(chances, sps).tolist()
    possible = min(int((chances > 0).sum()), sps.capacity - len(chances))
    assert len(curve) == possible + 1
    for budget, theta in enumerate(curve):
        lengths = fill_budget(chances, budget)
        assert theta == pytest.approx(throughput(chances, lengths, sps), rel=1e-12)


def test_a_staircase_halts_the_stop_at_its_first_step():
    """Two tokens a row cost a jump, four no more than two: the search steps over it."""
    sps = table([1.0, 0.5, 0.5, 0.5])
    chances = survival(torch.tensor([[0.95, 0.95, 0.95]]))
    stopped = schedule_prefixes(chances, sps)
    searched = schedule_prefixes(chances, sps, early_stop=False)
    assert stopped.tolist() == [0] and searched.tolist() == [3]
    ratio = throughput(chances, searched, sps) / throughput(chances, stopped, sps)
    assert ratio > 1.8


def test_ties_go_to_the_lower_position_then_to_the_lower_request():
    sure = torch.ones(2, 2)
    for budget, lengths in enumerate(([0, 0], [1, 0], [1, 1], [2, 1], [2, 2])):
        assert fill_budget(sure, budget).tolist() == lengths
    # E8: a budget shared over requests
    chances = torch.tensor([[0.9, 0.81, 0.2], [0.5, 0.1, 0.05]])
    assert fill_budget(chances, 3).tolist() == [2, 1]
    assert fill_budget(torch.full((3, 2), 0.5), 1).tolist() == [1, 0, 0]
    # the same through a capacity: with a flat rate everything possible goes in
    flat = StepsPerSecond({2: 1.0, 5: 1.0})
    assert schedule_prefixes(chances, flat).tolist() == [2, 1]
    assert schedule_prefixes(chances, flat, early_stop=False).tolist() == [2, 1]


def test_many_requests_keep_their_order_under_ties():
    """A sort that is not stable would scatter equal survivals over 400 requests."""
    lengths = fill_budget(torch.full((400, 3), 0.5), 450)
    assert lengths.tolist() == [2] * 50 + [1] * 350


def test_a_plateau_is_a_stop():
    """ "If Theta > best": equal is not better, and the shorter length stays."""
    chances = torch.tensor([[0.5, 0.5]])
    sps = table([1.5, 1.0, 1.0])  # Theta: 1.5, 1.5, 2.0
    assert schedule_prefixes(chances, sps).tolist() == [0]
    assert schedule_prefixes(chances, sps, early_stop=False).tolist() == [2]


def test_drafts_that_cannot_stand_stay_out():
    free = StepsPerSecond({1: 1.0, 20: 1.0})
    chances = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert schedule_prefixes(chances, free).tolist() == [1, 0]
    assert fill_budget(chances, 5).tolist() == [1, 0]
    assert schedule_prefixes(torch.zeros(2, 0), free).tolist() == [0, 0]


@pytest.mark.parametrize("early_stop", [True, False])
def test_no_request_has_no_length(early_stop):
    lengths = schedule_prefixes(torch.zeros(0, 3), APPENDIX_A, early_stop=early_stop)
    assert lengths.tolist() == [] and lengths.dtype == torch.int64


def test_half_precision_is_widened():
    chances = torch.tensor([[0.9, 0.81]], dtype=torch.bfloat16)
    assert schedule_prefixes(chances, table([1.0, 0.9, 0.8])).tolist() == [2]


@pytest.mark.parametrize(("rollback", "length"), [(24, 0), (0, 1)])
def test_a_cost_left_out_changes_the_decision(rollback, length):
    """E11: target 34 ms, draft 8, rollback 24; 1.35 tokens expected with a draft."""
    sps = StepsPerSecond({1: 1000 / 34, 2: 1000 / (34 + 8 + rollback)})
    assert schedule_prefixes(torch.tensor([[0.35]]), sps).tolist() == [length]


# --- the table --------------------------------------------------------------------


def test_the_table_is_linear_between_points_and_exact_on_them():
    sps = StepsPerSecond({9: 60.0, 1: 100.0, 3: 90.0})  # any order
    found = [sps(batch) for batch in (1, 2, 3, 6, 9)]
    assert found == pytest.approx([100.0, 95.0, 90.0, 75.0, 60.0], rel=1e-15)
    assert sps.capacity == 9 and list(sps.points) == [1, 3, 9]
    assert sps == StepsPerSecond({1: 100.0, 3: 90.0, 9: 60.0})


@pytest.mark.parametrize("batch", [1, 10])
def test_nothing_is_known_outside_the_table(batch):
    with pytest.raises(ValueError, match=rf"batch_tokens .*2 to 9, got {batch}"):
        StepsPerSecond({2: 100.0, 9: 60.0})(batch)


@pytest.mark.parametrize(
    "points",
    [{}, {0: 1.0}, {1.5: 1.0}, {1: 0.0}, {1: -1.0}, {1: float("nan")}, {1: "9"}, [1.0]],
    ids=str,
)
@pytest.mark.usefixtures("no_shape_checks")
def test_tables_that_cannot_be(points):
    with pytest.raises((ValueError, TypeError), match=r" must .*: expected "):
        StepsPerSecond(points)


@pytest.mark.usefixtures("no_shape_checks")
def test_what_is_no_survival_is_refused():
    sps = StepsPerSecond({1: 1.0, 9: 1.0})
    cases = {
        r"survival .*shape": torch.zeros(3),
        r"survival .*probability": torch.tensor([[1.5, 0.1]]),
        r"survival .*running product.*confidence": torch.tensor([[0.5, 0.9]]),
    }
    nan = torch.tensor([[float("nan"), 0.1]])
    for words, bad in [*cases.items(), (r"survival .*probability", nan)]:
        with pytest.raises(ValueError, match=words):
            schedule_prefixes(bad, sps)
    with pytest.raises(ValueError, match=r"requests .*at most 2.*got 3"):
        schedule_prefixes(torch.zeros(3, 2), StepsPerSecond({1: 1.0, 2: 0.9}))
    with pytest.raises(TypeError, match="steps_per_second must be a measured table"):
        schedule_prefixes(torch.zeros(1, 2), {1: 1.0})
    with pytest.raises((ValueError, TypeError), match="budget"):
        fill_budget(torch.zeros(1, 2), -1)


# --- as policies ------------------------------------------------------------------


def test_the_policy_is_the_algorithm():
    sps = table([1.0, 0.95, 0.9, 0.5, 0.4, 0.3, 0.2])
    confidence = torch.tensor([[0.9, 0.9, 0.9], [0.6, 0.9, 0.9]])
    found = PrefixScheduler(sps).verify_lengths(confidence, block_size=3)
    assert found.equal(schedule_prefixes(survival(confidence), sps))
    assert PrefixScheduler(sps).start().steps_per_second is sps


def test_the_lag_takes_the_amount_from_then_and_the_ranking_from_now():
    sps = table([1.0] * 9)  # every draft that may stand goes in
    poor, rich = torch.tensor([[0.5, 0.0], [0.0, 0.0]]), torch.full((2, 2), 0.5)
    policy = LaggedPrefixScheduler(sps, lag=2).start()

    def lengths(confidence):
        return policy.verify_lengths(confidence, block_size=2).tolist()

    assert lengths(poor) == [1, 0]  # no history: Algorithm 1
    assert lengths(rich) == [2, 2]
    second = torch.tensor([[0.1, 0.1], [0.9, 0.9]])
    assert lengths(second) == [0, 1]  # one draft, as poor had, for the best of now
    assert lengths(second) == [2, 2]  # as rich had


def test_the_lag_keeps_to_the_capacity_when_requests_come():
    policy = LaggedPrefixScheduler(table([1.0] * 5), lag=1).start()
    assert policy.verify_lengths(torch.ones(1, 4), block_size=4).tolist() == [4]
    assert policy.verify_lengths(torch.ones(3, 4), block_size=4).tolist() == [1, 1, 0]


def test_start_forgets():
    sps = table([1.0] * 5)
    used = LaggedPrefixScheduler(sps, lag=1)
    used.verify_lengths(torch.zeros(1, 4), block_size=4)
    assert used.verify_lengths(torch.ones(1, 4), block_size=4).tolist() == [0]
    fresh = used.start()
    assert fresh.verify_lengths(torch.ones(1, 4), block_size=4).tolist() == [4]
    assert (fresh.steps_per_second, fresh.lag) == (sps, 1)


@pytest.mark.usefixtures("no_shape_checks")
def test_policies_refuse():
    with pytest.raises(ValueError, match=r"lag .*>= 1 .*got 0"):
        LaggedPrefixScheduler(APPENDIX_A, lag=0)
    for kind in PrefixScheduler, LaggedPrefixScheduler:
        with pytest.raises(TypeError, match="steps_per_second"):
            kind({1: 1.0})
        with pytest.raises(ValueError, match=rf"confidence head for {kind.__name__}"):
            kind(APPENDIX_A).verify_lengths(None, block_size=2)
        with pytest.raises(ValueError, match="confidence"):
            kind(APPENDIX_A).verify_lengths(torch.zeros(1, 3), block_size=2)
