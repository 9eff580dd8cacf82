"""Acceptance by position: exact populations, a slow twin, and the denominators."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsparkref.analysis.metrics import (
    accepted_drafts,
    accepted_length,
    bootstrap_interval,
    conditional_acceptance,
    draft_yield,
    observations,
    prefix_survival,
    speedup,
    speedup_curve,
)
from dsparkref.records import CycleTrace

CONFIDENCE = [0.9, 0.8, 0.5]
# Of 1000 cycles so many keep 0, 1, 2, 3 drafts, if c is CONFIDENCE.
POPULATION = {0: 100, 1: 180, 2: 360, 3: 360}


def cycle(num_accepted, *, judged=3, size=3, room=99):
    """A cycle whose verifier keeps so many drafts, with room for so many tokens."""
    tokens = [*range(10, 10 + num_accepted), 99][:room]
    cut = len(tokens) <= num_accepted
    return CycleTrace(
        index=0,
        context_len=5,
        anchor=1,
        drafts=list(range(10, 10 + size)),
        confidence=None,
        verify_len=judged,
        num_accepted=min(num_accepted, len(tokens)),
        next_token=None if cut else 99,
        emitted=tokens,
        draft_seconds=0.001,
        verify_seconds=0.002,
    )


def population(**options):
    return [
        cycle(n, **options) for n, count in POPULATION.items() for _ in range(count)
    ]


def close(values, expected):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-12, equal_nan=True)


# --- the two shares ---------------------------------------------------------------


def test_a_population_gives_its_own_law_back():
    cycles = population()
    conditional = conditional_acceptance(*observations(cycles), 3)
    survival = prefix_survival(*observations(cycles), 3)
    close(conditional, CONFIDENCE)
    close(survival, [0.9, 0.72, 0.36])
    assert (survival.diff() <= 0).all()
    assert accepted_length(cycles) == pytest.approx(2.98)
    assert accepted_length(cycles) == pytest.approx(1 + survival.sum().item())


def test_the_bonus_is_in_one_count_and_not_in_the_other():
    cycles = [cycle(3), cycle(0)]
    assert accepted_drafts(cycles) == 1.5
    assert accepted_length(cycles) == 2.5
    assert draft_yield(cycles) == 0.5
    assert draft_yield([cycle(3, room=2)]) == 1.0  # the reply ended after two of three


@pytest.mark.parametrize("size", [7, 15])
def test_a_drafter_that_is_always_right_is_right_at_every_position(size):
    cycles = [cycle(size, judged=size, size=size)] * 4
    for metric in (conditional_acceptance, prefix_survival):
        close(metric(*observations(cycles), size), [1.0] * size)
    assert accepted_length(cycles) == size + 1


def test_verifying_less_does_not_make_a_drafter_worse():
    """Each outcome under each verify length, equally often: c_k stays what it is."""
    cycles = [
        cycle(min(n, judged), judged=judged)
        for (n, count), judged in product(POPULATION.items(), (0, 1, 2, 3))
        for _ in range(count)
    ]
    accepted, verified = observations(cycles)
    close(conditional_acceptance(accepted, verified, 3), CONFIDENCE)
    # the trap: counting a draft that nobody looked at as one that fell
    reached = accepted[:, None] >= torch.arange(3)
    kept = accepted[:, None] > torch.arange(3)
    careless = (kept & reached).sum(0) / reached.sum(0)
    assert (careless < torch.tensor(CONFIDENCE) - 0.1).all()


def test_a_cut_says_nothing_of_the_drafts_behind_it():
    """Each outcome under each room that is left: the conditional shares do not move."""
    cycles = [
        cycle(n, room=room)
        for (n, count), room in product(POPULATION.items(), (1, 2, 3, 4))
        for _ in range(count)
    ]
    accepted, observed = observations(cycles)
    assert (observed < 3).any()
    conditional = conditional_acceptance(accepted, observed, 3)
    close(conditional, CONFIDENCE)
    # as the docstring warns, the plain share loses those that stood longest
    survival = prefix_survival(accepted, observed, 3)
    assert (survival[1:] < conditional.cumprod(0)[1:] - 0.02).all()
    # and a drafter that is never wrong must not be blamed for the end of a reply
    perfect = [cycle(3, room=room) for room in (1, 2, 3, 4)]
    close(conditional_acceptance(*observations(perfect), 3), [1.0] * 3)


def test_what_was_never_reached_is_not_a_number():
    close(conditional_acceptance([0, 0], [3, 3], 3), [0.0, math.nan, math.nan])
    close(prefix_survival([0, 0], [3, 3], 3), [0.0, 0.0, 0.0])
    for metric in (conditional_acceptance, prefix_survival):
        close(metric([0, 0], [0, 0], 3), [math.nan] * 3)
        close(metric(*observations([]), 2), [math.nan] * 2)


def slow_shares(pairs, size):
    conditional, survival = [], []
    for k in range(size):
        reached = [n > k for n, v in pairs if v > k and n >= k]
        asked = [n > k for n, v in pairs if v > k]
        conditional.append(sum(reached) / len(reached) if reached else math.nan)
        survival.append(sum(asked) / len(asked) if asked else math.nan)
    return conditional, survival


@given(
    st.lists(
        st.integers(0, 4).flatmap(lambda v: st.tuples(st.integers(0, v), st.just(v))),
        max_size=30,
    )
)
def test_shares_equal_their_slow_twin(pairs):
    accepted = [n for n, _ in pairs]
    verified = [v for _, v in pairs]
    conditional, survival = slow_shares(pairs, 4)
    counts = torch.tensor(accepted).long(), torch.tensor(verified).long()
    close(conditional_acceptance(*counts, 4), conditional)
    close(prefix_survival(*counts, 4), survival)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_where_all_is_verified_survival_is_the_product(accepted):
    verified = [5] * len(accepted)
    product_of = conditional_acceptance(accepted, verified, 5).nan_to_num().cumprod(0)
    torch.testing.assert_close(prefix_survival(accepted, verified, 5), product_of)


# --- the rest -----------------------------------------------------------------------


def test_without_cycles_there_is_no_length():
    assert accepted_length([]) is accepted_drafts([]) is draft_yield([]) is None


def test_without_verified_drafts_there_is_no_yield():
    cycles = [cycle(0, judged=0)] * 3
    assert draft_yield(cycles) is None
    assert (accepted_length(cycles), accepted_drafts(cycles)) == (1.0, 0.0)


def test_speedup_is_a_ratio_of_times_per_token():
    assert speedup(0.002, 0.004, 3.0, 0.0034) == pytest.approx(1.7)
    assert speedup(2.0, 4.0, 3.0, 3.4) == pytest.approx(1.7)  # the unit drops out
    assert speedup(8.0, 34.0, 1.0, 34.0) == pytest.approx(34 / 42)  # a loss stays one


@pytest.mark.parametrize("draft", [2.0, [1.0, 2.0, 3.0]])
def test_the_curve_is_eq_1_for_each_length(draft):
    survival, verify = torch.tensor([0.9, 0.72, 0.36]), torch.tensor([4.0, 4.5, 5, 9])
    each = [draft] * 3 if isinstance(draft, float) else draft
    drafting = draft if isinstance(draft, float) else torch.tensor(draft)
    lengths = [1.9, 2.62, 2.98]
    expected = [speedup(each[n], verify[n + 1].item(), lengths[n], 4) for n in range(3)]
    found = speedup_curve(survival, drafting, verify)
    assert found.tolist() == pytest.approx(expected)


def test_the_interval_holds_the_middle_of_the_resamples():
    values = torch.arange(10).double()

    def mean(rows):
        return values[rows].mean().item()

    def interval(seed, **options):
        generator = torch.Generator().manual_seed(seed)
        return bootstrap_interval(mean, 10, generator=generator, **options)

    low, high = interval(0, resamples=4000)
    spread = 1.96 * values.std(correction=0).item() / math.sqrt(10)
    assert low == pytest.approx(4.5 - spread, abs=0.15)
    assert high == pytest.approx(4.5 + spread, abs=0.15)
    assert interval(0) == interval(0) != interval(1)
    narrow = interval(0, level=0.5)
    assert interval(0)[0] < narrow[0] < narrow[1] < interval(0)[1]


VOICE = r"must .*: expected .*, got .*\."


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: conditional_acceptance([2], [1], 3), "num_accepted"),
        (lambda: conditional_acceptance([-1], [1], 3), "num_accepted"),
        (lambda: conditional_acceptance([1], [4], 3), "verify_len"),
        (lambda: conditional_acceptance([1], [-2], 3), "verify_len"),
        (lambda: prefix_survival([1, 1], [3], 3), "verify_len"),
        (lambda: prefix_survival([], [], 0), "block_size"),
        (lambda: prefix_survival([], [], 2.0), "block_size"),
        (lambda: speedup(-1.0, 1.0, 1.0, 1.0), "draft_seconds"),
        (lambda: speedup(0.0, 0.0, 1.0, 1.0), "verify_seconds"),
        (lambda: speedup(1.0, 1.0, 0.0, 1.0), "accepted_length"),
        (lambda: speedup(1.0, 1.0, 1.0, math.nan), "token_seconds"),
        (lambda: speedup_curve(torch.ones(2), 1.0, torch.ones(2)), "verify_seconds"),
        (lambda: speedup_curve(torch.ones(1), 1.0, torch.zeros(2)), "verify_seconds"),
        (lambda: speedup_curve(torch.ones(1), -1.0, torch.ones(2)), "draft_seconds"),
        (lambda: speedup_curve(-torch.ones(1), 1.0, torch.ones(2)), "survival"),
        (lambda: bootstrap_interval(lambda rows: 0.0, 0), "num_prompts"),
        (lambda: bootstrap_interval(lambda rows: 0.0, 2, level=2.0), "level"),
    ],
)
def test_bad_input_is_named(call, named, no_shape_checks):
    with pytest.raises((ValueError, TypeError), match=f"^{named} {VOICE}"):
        call()
