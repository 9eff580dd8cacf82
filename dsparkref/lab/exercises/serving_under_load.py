"""Exercises of notebook 11: replayed tokens, speed, the best length, when it pays.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dsparkref.analysis.load import replayed_tokens, user_speed
from dsparkref.analysis.serving import best_fixed, break_even_survival
from dsparkref.lab.checks import Exercise

# -- warm-up: what a recorded cycle gives when less of it is verified -----------------


def _all_or_nothing(num_accepted: Tensor, verify_len: Tensor) -> Tensor:
    return 1 + num_accepted * (num_accepted <= verify_len)


REPLAYED = Exercise(
    name="tokens_of",
    reference=replayed_tokens,
    cases=[
        (torch.tensor([5, 5, 0]), torch.tensor([2, 7, 7])),
        (torch.tensor([3]), torch.tensor([0])),
        (torch.tensor([1, 4, 7, 2]), torch.tensor([1, 3, 7, 5])),
    ],
    mistakes={
        "The target's own token is missing: a step always gives one more token than "
        "drafts that stand.": torch.minimum,
        "More tokens than were verified: a draft that nobody looked at cannot be "
        "kept.": lambda num_accepted, verify_len: 1 + num_accepted,
        "Every verified draft counts here, also those that fell.": (
            lambda num_accepted, verify_len: 1 + verify_len
        ),
        "A run that is cut short still gives its first drafts, not nothing.": (
            _all_or_nothing
        ),
    },
)

# -- core: the speed that a user sees -------------------------------------------------

Numbers = Sequence[float]


def _with_waiting(
    tokens: Numbers, arrived: Numbers, admitted: Numbers, finished: Numbers
) -> float:
    return fmean(n / (c - a) for n, a, c in zip(tokens, arrived, finished, strict=True))


def _of_all_together(
    tokens: Numbers, arrived: Numbers, admitted: Numbers, finished: Numbers
) -> float:
    served = sum(c - b for b, c in zip(admitted, finished, strict=True))
    return sum(tokens) / served


def _throughput(
    tokens: Numbers, arrived: Numbers, admitted: Numbers, finished: Numbers
) -> float:
    return sum(tokens) / (max(finished) - min(arrived))


def _seconds_a_token(
    tokens: Numbers, arrived: Numbers, admitted: Numbers, finished: Numbers
) -> float:
    served = [c - b for b, c in zip(admitted, finished, strict=True)]
    return fmean(seconds / n for seconds, n in zip(served, tokens, strict=True))


SPEED = Exercise(
    name="speed_of_users",
    reference=user_speed,
    cases=[
        ([10, 10], [0.0, 0.0], [0.0, 2.0], [2.0, 12.0]),
        ([30, 5, 12], [0.0, 1.0, 1.5], [0.5, 1.0, 4.0], [6.5, 3.0, 7.0]),
        ([8], [3.0], [5.0], [9.0]),
    ],
    mistakes={
        "Waiting for a place is in it. That is latency; here the time begins when a "
        "request is admitted.": _with_waiting,
        "All tokens over all seconds: long requests count more than short ones. Each "
        "user sees a speed of their own; take the mean of those.": _of_all_together,
        "This is the throughput of the engine: requests that are served at the same "
        "time share those seconds.": _throughput,
        "Upside down: these are seconds per token.": _seconds_a_token,
    },
)

# -- core: the best fixed length of a load --------------------------------------------


def _rows(*found: tuple[str, int, float]) -> list[dict[str, Any]]:
    keys = "policy", "concurrency", "throughput"
    return [dict(zip(keys, row, strict=True)) for row in found]


ROWS = _rows(
    ("autoregressive", 1, 90.0),
    ("fixed 1", 1, 150.0),
    ("fixed 7", 1, 300.0),
    ("lagged", 1, 310.0),
    ("autoregressive", 64, 980.0),
    ("fixed 1", 64, 950.0),
    ("fixed 7", 64, 700.0),
    ("lagged", 64, 990.0),
)


def _best(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return max(rows, key=lambda row: row["throughput"])


def _fixed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["policy"].startswith("fixed")]


BEST = Exercise(
    name="best_length",
    reference=best_fixed,
    cases=[(ROWS, 1), (ROWS, 64), (list(reversed(ROWS)), 64)],
    mistakes={
        "The best of all policies. Compare the fixed lengths alone: the schedulers are "
        "measured against them.": lambda rows, concurrency: _best(
            [row for row in rows if row["concurrency"] == concurrency]
        ),
        "The best at any load. Another load has another best length: look at the rows "
        "of this one.": lambda rows, concurrency: _best(_fixed(rows)),
        "The longest, not the best: under load a long block can lose.": (
            lambda rows, concurrency: max(
                (r for r in _fixed(rows) if r["concurrency"] == concurrency),
                key=lambda row: row["policy"],
            )
        ),
        "The lowest throughput: `max`, not `min`.": lambda rows, concurrency: min(
            (row for row in _fixed(rows) if row["concurrency"] == concurrency),
            key=lambda row: row["throughput"],
        ),
    },
)

# -- stretch: when does one more draft pay? -------------------------------------------

BREAK_EVEN = Exercise(
    name="break_even",
    reference=break_even_survival,
    cases=[
        (100.0, 0.05, 0.0001),
        (2.5, 0.01, 0.0005),
        (350.0, 0.045, 0.00005),
    ],
    mistakes={
        "The share by which the step gets longer. It has to be paid in tokens: what "
        "would all requests have got in that time?": (
            lambda expected_tokens, seconds, more_seconds: more_seconds / seconds
        ),
        "The throughput alone. Times which seconds?": (
            lambda expected_tokens, seconds, more_seconds: expected_tokens / seconds
        ),
        "The old throughput is the one to beat: T, not T + dT, stands below.": (
            lambda expected_tokens, seconds, more_seconds: (
                expected_tokens * more_seconds / (seconds + more_seconds)
            )
        ),
        "One request's share: the whole batch waits for this draft, so its survival "
        "must pay for all of them.": (
            lambda expected_tokens, seconds, more_seconds: (
                more_seconds / seconds / expected_tokens
            )
        ),
    },
)

EXERCISES = {
    exercise.name: exercise for exercise in (REPLAYED, SPEED, BEST, BREAK_EVEN)
}
