"""Policies under load: the table of rows, what it says, and what must come out."""

from functools import cache

import pytest
import torch

from dsparkref.analysis.clock import CURVES, made_up_clock, table_clock
from dsparkref.analysis.load import Autoregressive, Recorded, simulate_load
from dsparkref.analysis.profile import load_measured
from dsparkref.analysis.serving import (
    ALGORITHM_1,
    AUTOREGRESSIVE,
    LAGGED,
    THRESHOLD,
    against_best_fixed,
    best_fixed,
    findings,
    row_of,
    serving_policies,
    serving_rows,
)

# Thousands of steps: annotations are checked elsewhere.
pytestmark = pytest.mark.usefixtures("no_shape_checks")

K = 7
LOADS = (1, 32)


def honest_record(count=900):
    """Cycles of three kinds whose confidences are true: acceptance is drawn by them."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.arange(3).repeat_interleave(count // 3)
    level = torch.tensor([0.97, 0.9, 0.8])[kind][:, None]  # easy, middling, hard
    spread = torch.rand(count, K, generator=generator) - 0.5
    confidence = (level + 0.3 * (1 - level) * spread).clamp(0, 1)
    stands = torch.rand(count, K, generator=generator) < confidence
    return Recorded(confidence, stands.long().cumprod(1).sum(1), K, kind)


def rows_by(clock, fixed=(1, 3, 7), **options):
    record = honest_record()

    def serve(policy, places):
        return simulate_load(
            record,
            clock,
            policy,
            rate=float("inf"),
            concurrency=places,
            num_requests=max(6, 10 * places),
            tokens=40,
        )

    return serving_rows(
        serve, serving_policies(clock.steps_per_second, fixed), LOADS, **options
    )


@cache
def rows_of(name):
    if name == "measured":
        return rows_by(table_clock(load_measured()))
    return rows_by(made_up_clock(name, CURVES[name], block_size=K))


def test_a_row_for_each_policy_and_load():
    said = []
    clock = made_up_clock("a line", lambda tokens: 0.01, block_size=K)
    rows = rows_by(clock, fixed=[3, 7], progress=said.append)
    names = [AUTOREGRESSIVE, "fixed 3", "fixed 7", THRESHOLD, ALGORITHM_1, LAGGED]
    found = [(row["policy"], row["concurrency"]) for row in rows]
    assert found == [(name, places) for places in LOADS for name in names]
    assert said[0] == "autoregressive, 1 at once" and len(said) == len(rows)
    for row in rows:
        assert row["budget"] == 1 + row["verify_len"]
    assert row_of(rows, "fixed 3", 32)["budget"] == 4
    assert row_of(rows, AUTOREGRESSIVE, 32)["budget"] == 1
    with pytest.raises(ValueError, match=r"rows must hold the policy: .* fixed 5 at 1"):
        row_of(rows, "fixed 5", 1)


def test_the_best_fixed_length_is_the_one_of_most_throughput():
    rows = [
        {"policy": "fixed 2", "concurrency": 1, "throughput": 50.0},
        {"policy": "fixed 7", "concurrency": 1, "throughput": 80.0},
        {"policy": "fixed 7", "concurrency": 4, "throughput": 90.0},
        {"policy": "fixed 2", "concurrency": 4, "throughput": 120.0},
        {"policy": LAGGED, "concurrency": 1, "throughput": 100.0},
        {"policy": LAGGED, "concurrency": 4, "throughput": 90.0},
    ]
    assert [best_fixed(rows, n)["policy"] for n in (1, 4)] == ["fixed 7", "fixed 2"]
    light, heavy = against_best_fixed(rows)
    assert (light["best"], light[LAGGED]) == ("fixed 7", 0.25)
    assert (heavy["best"], heavy[LAGGED]) == ("fixed 2", -0.25)
    with pytest.raises(ValueError, match="rows must hold fixed lengths"):
        best_fixed(rows[-2:], 1)


@pytest.mark.parametrize("name", ["measured", *CURVES])
def test_the_lagged_scheduler_is_within_two_per_cent_of_the_best(name):
    """At every load, although the best fixed length is known only afterwards."""
    for row in against_best_fixed(rows_of(name)):
        assert row[LAGGED] > -0.02


@pytest.mark.parametrize("name", ["measured", *CURVES])
def test_a_light_load_gets_long_prefixes_and_a_heavy_one_shorter(name):
    budgets = [row_of(rows_of(name), LAGGED, places)["budget"] for places in LOADS]
    assert budgets[0] > 7.5
    assert budgets[-1] < budgets[0]


def test_early_stop_loses_on_a_staircase():
    """32 requests and 32 drafts fill the first tile; the next draft opens the second
    and is shut out, while the search sees that this tile, too, is worth filling."""
    stopped = row_of(rows_of("staircase"), ALGORITHM_1, 32)
    lagged = row_of(rows_of("staircase"), LAGGED, 32)
    assert stopped["budget"] < 2.5 < 3.5 < lagged["budget"]
    assert stopped["throughput"] < 0.95 * lagged["throughput"]
    line = next(x for x in findings(rows_of("staircase")) if "early stop" in x)
    assert "(32 at once)" in line and "-" in line


def test_early_stop_loses_nothing_where_a_step_costs_a_convex_time():
    for places in LOADS:
        stopped, lagged = (
            row_of(rows_of("roofline"), name, places)["throughput"]
            for name in (ALGORITHM_1, LAGGED)
        )
        assert stopped > 0.99 * lagged


def test_the_findings_are_counted_from_the_rows():
    rows = rows_of("measured")
    worst = min(row[LAGGED] for row in against_best_fixed(rows))
    first, _, last = findings(rows)
    assert f"at worst {100 * worst:+.1f} %" in first
    assert f"{row_of(rows, LAGGED, 32)['budget']:.1f} at 32" in last


def test_without_a_drafter_nothing_is_verified():
    policy = Autoregressive()
    assert policy.start() is policy
    lengths = policy.verify_lengths(None, block_size=K, num_requests=3)
    assert lengths.tolist() == [0, 0, 0]
