"""Policies under growing load, side by side: what Figures 7 and 8 of DSpark plot.

Figure 7 sets throughput against the speed each user sees, Figure 8 throughput and the
verification budget against concurrency. Both come from one table of rows, a row for
each policy and each concurrency, whichever clock the load ran by.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from dsparkref.analysis.load import Autoregressive, LoadResult
from dsparkref.analysis.report import Report
from dsparkref.shapes import problem
from dsparkref.verify.policies import (
    ConfidenceThreshold,
    FixedLength,
    LaggedPrefixScheduler,
    Policy,
    PrefixScheduler,
    SpeedTable,
)

AUTOREGRESSIVE, THRESHOLD = "autoregressive", "threshold"
ALGORITHM_1, LAGGED = "Algorithm 1", "lagged"
FIXED = "fixed"
# of the survival: a draft as likely to stand as to fall is still verified
SURVIVAL_THRESHOLD = 0.5


def serving_policies(
    steps_per_second: SpeedTable,
    fixed: Sequence[int],
    *,
    threshold: float = SURVIVAL_THRESHOLD,
) -> dict[str, Policy]:
    """Return the policies that are compared, by name.

    Args:
        steps_per_second: what the two schedulers plan with.
        fixed: the lengths of "fixed 1", "fixed 2", ...
        threshold: of the survival.

    >>> from dsparkref.verify.scheduler import StepsPerSecond
    >>> list(serving_policies(StepsPerSecond({1: 2.0}), [3, 7]))
    ['autoregressive', 'fixed 3', 'fixed 7', 'threshold', 'Algorithm 1', 'lagged']
    """
    return {
        AUTOREGRESSIVE: Autoregressive(),
        **{f"{FIXED} {k}": FixedLength(k) for k in fixed},
        THRESHOLD: ConfidenceThreshold(threshold, on="survival"),
        ALGORITHM_1: PrefixScheduler(steps_per_second),
        LAGGED: LaggedPrefixScheduler(steps_per_second),
    }


def serving_rows(
    serve: Callable[[Policy, int], LoadResult],
    policies: dict[str, Policy],
    concurrency: Sequence[int],
    progress: Callable[[str], None] = lambda step: None,
) -> list[Report]:
    """Serve the load with every policy at every concurrency.

    Args:
        serve: from a policy and a concurrency to what came of it.
        progress: called with a few words before each run.

    Returns:
        Rows with ``policy``, ``concurrency``, ``budget`` (tokens verified per request
        and step, anchor included) and the fields of ``LoadResult``.
    """
    rows = []
    for places in concurrency:
        for name, policy in policies.items():
            progress(f"{name}, {places} at once")
            result = asdict(serve(policy, places))
            budget = 1 + result["verify_len"]
            rows.append(
                {"policy": name, "concurrency": places, "budget": budget, **result}
            )
    return rows


def row_of(rows: Sequence[Report], policy: str, concurrency: int) -> Report:
    """Return the row of a policy at a concurrency."""
    for row in rows:
        if (row["policy"], row["concurrency"]) == (policy, concurrency):
            return row
    expected = f"one of {sorted({row['policy'] for row in rows})}"
    got = f"{policy} at {concurrency}"
    raise problem("rows", "hold the policy", expected, got)


def best_fixed(rows: Sequence[Report], concurrency: int) -> Report:
    """Return the row of the fixed length of most throughput at a concurrency."""
    found = [
        row
        for row in rows
        if row["concurrency"] == concurrency and row["policy"].startswith(FIXED)
    ]
    if not found:
        raise problem("rows", "hold fixed lengths", "at least one", "none")
    return max(found, key=lambda row: row["throughput"])


def against_best_fixed(rows: Sequence[Report]) -> list[Report]:
    """Say at each concurrency how the others do against the best fixed length.

    The best fixed length is known only afterwards, and another one at each load.

    Returns:
        Rows with ``concurrency``, ``best`` (its name) and, by policy, the throughput
        over that of the best, minus 1.

    >>> table = [("fixed 1", 90.0), ("fixed 2", 100.0), ("lagged", 99.0)]
    >>> rows = [{"policy": p, "concurrency": 4, "throughput": t} for p, t in table]
    >>> [{**row, "lagged": round(row["lagged"], 4)} for row in against_best_fixed(rows)]
    [{'concurrency': 4, 'best': 'fixed 2', 'lagged': -0.01}]
    """
    found = []
    for places in sorted({row["concurrency"] for row in rows}):
        best = best_fixed(rows, places)
        others = {
            row["policy"]: row["throughput"] / best["throughput"] - 1
            for row in rows
            if row["concurrency"] == places and not row["policy"].startswith(FIXED)
        }
        found.append({"concurrency": places, "best": best["policy"], **others})
    return found


def break_even_survival(
    expected_tokens: float, seconds: float, more_seconds: float
) -> float:
    """Return the survival from which one more draft raises the throughput.

    (tau + a) / (T + dT) = tau / T, so a = tau dT / T: the tokens that the extra time
    would have given anyway.

    Args:
        expected_tokens: tau, of the step as it is, all requests together.
        seconds: T, of the step as it is, drafting included.
        more_seconds: dT, what one more token adds.

    >>> round(break_even_survival(100.0, seconds=0.05, more_seconds=0.0001), 4)
    0.2
    """
    return expected_tokens * more_seconds / seconds


def findings(rows: Sequence[Report]) -> list[str]:
    """Return what the rows show about the two schedulers, in sentences."""
    compared = against_best_fixed(rows)
    worst = min(compared, key=lambda row: row[LAGGED])
    halted = min(compared, key=lambda row: row[ALGORITHM_1] - row[LAGGED])
    first, last = compared[0]["concurrency"], compared[-1]["concurrency"]
    budgets = [row_of(rows, LAGGED, places)["budget"] for places in (first, last)]
    gap = (1 + halted[ALGORITHM_1]) / (1 + halted[LAGGED]) - 1
    return [
        f"lagged against the best fixed length: at worst {100 * worst[LAGGED]:+.1f} % "
        f"({worst['best']}, {worst['concurrency']} at once)",
        f"early stop (Algorithm 1) against lagged: at worst {100 * gap:+.1f} % "
        f"({halted['concurrency']} at once)",
        f"lagged verifies {budgets[0]:.1f} tokens a request at {first} at once and "
        f"{budgets[1]:.1f} at {last}",
    ]
