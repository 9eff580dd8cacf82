"""How long a step takes: the clock of a replay, measured or made up.

A table knows R rows of n tokens each. A step of R requests whose rows are of unlike
lengths takes as long as one with the same number of tokens spread evenly: that is an
engine that packs rows behind each other. ``padded`` is the other kind, this package's
own ``BatchDecoder`` among them: every row is filled up to the longest one.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsparkref.analysis.profile import Profile
from dsparkref.shapes import problem
from dsparkref.verify.scheduler import StepsPerSecond


@dataclass(frozen=True)
class StepClock:
    """The seconds of a step.

    >>> clock = made_up_clock("a line", lambda tokens: 0.01 * tokens, block_size=4)
    >>> round(clock([2, 0, 1], drafted=True), 3)  # 6 tokens; drafting: 1 ms
    0.061
    >>> clock([0, 0, 0], drafted=False)
    0.03
    >>> clock.steps_per_second(3).capacity  # three rows of five tokens
    15
    >>> str(clock)
    'MADE UP, not measured: a line'
    """

    # what it is; whatever is printed or drawn by this clock says so
    label: str
    # R -> SPS(B) of a step with R requests, the draft pass included
    steps_per_second: Callable[[int], StepsPerSecond]
    # R -> seconds of a step without a drafter, R rows of one token
    undrafted: Callable[[int], float]
    # whether each row counts as long as the longest
    padded: bool = False

    def __str__(self) -> str:
        """Return the label."""
        return self.label + (", rows padded to the longest" if self.padded else "")

    def __call__(self, verify_len: Sequence[int], drafted: bool) -> float:
        """Return the seconds of a step that verifies so many drafts of each request.

        Args:
            verify_len: one number for each request, 0..K.
            drafted: False where the engine has no drafter.

        Raises:
            ValueError: more requests or tokens than the clock knows.
        """
        rows = len(verify_len)
        if not drafted:
            return self.undrafted(rows)
        drafts = rows * max(verify_len) if self.padded else sum(verify_len)
        return 1 / self.steps_per_second(rows)(rows + drafts)


def table_clock(profile: Profile, *, padded: bool = False) -> StepClock:
    """Return the clock of a measured table.

    Raises:
        ValueError: a table without rows of one token.
    """
    if min(point.tokens for point in profile.points) > 1:
        rule, expected = "know a step without drafts", "rows of 1 token"
        raise problem("table", rule, expected, "none")

    @functools.cache  # asked once a step
    def undrafted(rows: int) -> float:
        return profile.at(rows)[0].verify_seconds

    return StepClock(
        str(profile), functools.cache(profile.steps_per_second), undrafted, padded
    )


def made_up_clock(
    name: str,
    verify_seconds: Callable[[int], float],
    *,
    block_size: int,
    draft_seconds: float = 0.001,
    padded: bool = False,
) -> StepClock:
    """Return a clock that nobody measured, for lessons; its label says so.

    Args:
        name: what the curve is.
        verify_seconds: from the tokens of a step to the seconds of its target pass.
        block_size: K; the clock knows up to K + 1 tokens a request.
        draft_seconds: of a draft pass, whatever the number of requests.
    """

    @functools.cache
    def steps_per_second(rows: int) -> StepsPerSecond:
        sizes = range(rows, rows * (block_size + 1) + 1)
        return StepsPerSecond(
            {size: 1 / (draft_seconds + verify_seconds(size)) for size in sizes}
        )

    label = f"MADE UP, not measured: {name}"
    return StepClock(label, steps_per_second, verify_seconds, padded)


# Made-up curves by name: tokens of a step -> seconds of its target pass.
CURVES: dict[str, Callable[[int], float]] = {
    # a kernel that works on tiles of 64 tokens
    "staircase": lambda tokens: 0.002 + 0.004 * math.ceil(tokens / 64),
    # bound by memory up to 128 tokens, by arithmetic beyond
    "roofline": lambda tokens: 0.008 * max(1.0, tokens / 128),
}
