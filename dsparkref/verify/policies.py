"""Policies: how many drafts of each request are worth handing to the target.

A policy keeps the output's law as long as whether draft k is verified depends on
nothing that draft k itself decides. `FixedLength` depends on nothing at all;
`ConfidenceThreshold` on c_k and those before it, and a confidence head reads the
tokens before x_k, never x_k; `PrefixScheduler` on these and on other requests;
`LaggedPrefixScheduler` also on earlier steps, whose drafts are past.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.shapes import check_known, check_range, check_shape, problem
from dsparkref.verify.confidence import survival, threshold_lengths
from dsparkref.verify.scheduler import (
    StepsPerSecond,
    check_table,
    fill_budget,
    free_places,
    schedule_prefixes,
)

# SPS(B); or a function that gives the SPS(B) of a number of requests, since how long
# B tokens take depends on how many rows they stand in
SpeedTable: TypeAlias = StepsPerSecond | Callable[[int], StepsPerSecond]
# of lag: what is remembered stays small
MOST_STEPS = 1000


@runtime_checkable
class Policy(Protocol):
    """What decoding asks once a cycle, for all requests of the step together.

    A policy of your own inherits from this class, or has both methods.
    """

    def start(self) -> "Policy":
        """Return a policy without history, for one run of decoding.

        One without memory returns itself; one with memory a fresh copy, so that a
        run never sees the requests of the run before.
        """
        return self

    def verify_lengths(
        self,
        confidence: Float[Tensor, "R K"] | None,
        *,
        block_size: int,
        num_requests: int = 1,
    ) -> Int[Tensor, " R"]:
        """Return the verify length of each request, 0..K (int64).

        Called once per step; between steps requests may come and go.

        Args:
            confidence: [R, K] in [0, 1], conditional; None without a confidence head.
            block_size: K.
            num_requests: R; only read where no confidence tells it.
        """
        ...


@dataclass(frozen=True)
class FixedLength(Policy):
    """Verify the first k drafts, always.

    >>> FixedLength(2).verify_lengths(None, block_size=7, num_requests=3)
    tensor([2, 2, 2])
    >>> FixedLength(9).verify_lengths(None, block_size=7)
    Traceback (most recent call last):
    ValueError: k must be in range: expected an integer >= 0 and <= 7, got 9.
    """

    # drafts, 0..K; 0 verifies nothing: one target token per cycle
    k: int

    def __post_init__(self) -> None:
        check_range("k", self.k, 0, integer=True)

    def verify_lengths(
        self,
        confidence: Float[Tensor, "R K"] | None,
        *,
        block_size: int,
        num_requests: int = 1,
    ) -> Int[Tensor, " R"]:
        """Return k for each request, whatever the confidence."""
        check_range("block_size", block_size, 0, integer=True)  # 0: it drafts nothing
        check_range("k", self.k, 0, block_size, integer=True)
        if confidence is None:
            check_range("num_requests", num_requests, 0, integer=True)
        else:
            sizes = check_shape("confidence", confidence, "R K", K=block_size)
            num_requests = sizes["R"]
        return torch.full((num_requests,), self.k)  # [R]


@dataclass(frozen=True)
class ConfidenceThreshold(Policy):
    """Verify the leading run of drafts whose value is >= the threshold.

    The value is the confidence c_k or the survival: see ``threshold_lengths``.

    >>> confidence = torch.tensor([[0.9, 0.8, 0.5], [0.9, 0.5, 0.9]])
    >>> ConfidenceThreshold(0.75).verify_lengths(confidence, block_size=3)
    tensor([2, 1])
    >>> by_survival = ConfidenceThreshold(0.75, on="survival")
    >>> by_survival.verify_lengths(confidence, block_size=3)
    tensor([1, 1])
    """

    # in [0, 1]
    threshold: float
    # "conditional" or "survival"
    on: str = "conditional"

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0.0, 1.0)
        check_known("on", self.on, ("conditional", "survival"))

    def verify_lengths(
        self,
        confidence: Float[Tensor, "R K"] | None,
        *,
        block_size: int,
        num_requests: int = 1,
    ) -> Int[Tensor, " R"]:
        """Return the length of each request's leading run.

        Raises:
            ValueError: the drafter has no confidence head.
        """
        confidence = _given(confidence, block_size, self)
        return threshold_lengths(confidence, self.threshold, self.on)  # [R]


@dataclass(frozen=True)
class PrefixScheduler(Policy):
    """Algorithm 1 with its early stop, over all requests of the step.

    >>> policy = PrefixScheduler(StepsPerSecond({1: 100.0, 5: 80.0}))
    >>> policy.verify_lengths(torch.tensor([[0.9, 0.8, 0.5, 0.1]]), block_size=4)
    tensor([3])

    One request: 1, 1.9, 2.62, 2.98 and 3.016 tokens expected at 100, 95, 90, 85 and 80
    steps per second are 100, 180.5, 235.8, 253.3 and 241.3 tokens per second.
    """

    # SPS(B), measured
    steps_per_second: SpeedTable

    def __post_init__(self) -> None:
        check_speed(self.steps_per_second)

    def verify_lengths(
        self,
        confidence: Float[Tensor, "R K"] | None,
        *,
        block_size: int,
        num_requests: int = 1,
    ) -> Int[Tensor, " R"]:
        """Return the lengths of Algorithm 1.

        Raises:
            ValueError: no confidence head, more requests than the table has tokens.
        """
        chances = survival(_given(confidence, block_size, self))
        sps = speed_at(self.steps_per_second, len(chances))
        return schedule_prefixes(chances, sps)


@dataclass
class LaggedPrefixScheduler(Policy):
    """As many drafts as the best search wanted ``lag`` steps ago (DSpark, section 5.2).

    How many drafts are verified in all comes from the survivals of ``lag`` steps
    before, by the search without a stop, which no staircase can halt. Who gets in is
    ranked by the survivals of now. **Why** it is lossless: the search has looked ahead,
    but at drafts of a step that is over. Before there is a history it is Algorithm 1
    with the stop.

    >>> sps = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})
    >>> policy = LaggedPrefixScheduler(sps).start()
    >>> confidence = torch.tensor([[0.8, 0.9]])  # the search wants 2, the stop 0
    >>> for step in range(4):
    ...     print(policy.verify_lengths(confidence, block_size=2).item(), end=" ")
    0 0 2 2
    """

    # SPS(B), measured
    steps_per_second: SpeedTable
    # steps, >= 1; two where the next step is prepared while this one runs
    lag: int = 2

    def __post_init__(self) -> None:
        check_speed(self.steps_per_second)
        check_range("lag", self.lag, 1, MOST_STEPS, integer=True)
        self._wanted: deque[int] = deque(maxlen=self.lag)  # drafts, oldest first

    def start(self) -> "LaggedPrefixScheduler":
        """Return one without history."""
        return LaggedPrefixScheduler(self.steps_per_second, self.lag)

    def verify_lengths(
        self,
        confidence: Float[Tensor, "R K"] | None,
        *,
        block_size: int,
        num_requests: int = 1,
    ) -> Int[Tensor, " R"]:
        """Return the lengths, and remember what the search wants now.

        Raises:
            ValueError: no confidence head, more requests than the table has tokens.
        """
        chances = survival(_given(confidence, block_size, self))
        sps = speed_at(self.steps_per_second, len(chances))
        wanted = int(schedule_prefixes(chances, sps, early_stop=False).sum())
        if len(self._wanted) == self.lag:  # requests may have come since: clip
            budget = min(self._wanted[0], free_places(len(chances), sps))
            lengths = fill_budget(chances, budget)
        else:
            lengths = schedule_prefixes(chances, sps)
        self._wanted.append(wanted)
        return lengths


def check_speed(value: object) -> None:
    """Check that a value is a table, or a function that gives one."""
    if not callable(value):
        check_table(value)


def speed_at(speed: SpeedTable, num_requests: int) -> StepsPerSecond:
    """Return SPS(B) for a step of ``num_requests`` requests.

    >>> alone, many = StepsPerSecond({1: 100.0}), StepsPerSecond({8: 40.0})
    >>> speed_at(lambda requests: alone if requests == 1 else many, 1) is alone
    True
    """
    found = speed if isinstance(speed, StepsPerSecond) else speed(num_requests)
    check_table(found)
    return found


def _given(confidence: Tensor | None, block_size: int, policy: Policy) -> Tensor:
    """Return the confidence [R, K], or say that the drafter has no head for it."""
    check_range("block_size", block_size, 1, integer=True)
    if confidence is None:
        hint = "Use FixedLength, or a drafter whose checkpoint has the head."
        rule = f"come with a confidence head for {type(policy).__name__}"
        raise problem("drafter", rule, "confidence [R, K]", None, hint)
    check_shape("confidence", confidence, "R K", K=block_size)
    return confidence
