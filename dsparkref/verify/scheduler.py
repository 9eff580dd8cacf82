"""Algorithm 1: which drafts of which requests are worth a place in the next step.

A step that hands B tokens to the target takes longer than one that hands it fewer;
how much longer is measured, ``StepsPerSecond``. A draft that is likely to stand is
worth the time, one that is not costs everybody. So the drafts of all requests are
ranked by their survival, and the best ones go in until the expected throughput

    Theta = (expected tokens of the step) * SPS(B)

stops rising. The ranking never puts draft j before draft j-1 of the same request,
since survival never rises along a block: what is chosen are prefixes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.shapes import check_flag, check_range, check_shape, problem
from dsparkref.verify.inputs import widen
from dsparkref.verify.rejection import leading_run


@dataclass(frozen=True)
class StepsPerSecond:
    """A measured table: steps per second over the tokens of a step, SPS(B).

    Linear between the measured points. The last one is a capacity: a scheduler never
    goes past it, and asking beyond the table raises, as nothing is known there.

    >>> sps = StepsPerSecond({1: 100.0, 9: 60.0})
    >>> sps(1), sps(5), sps.capacity
    (100.0, 80.0, 9)
    >>> sps(10)
    Traceback (most recent call last):
    ValueError: batch_tokens must be measured: expected 1 to 9, got 10.

    Raises:
        TypeError, ValueError: an empty table, token counts that are no integers >= 1,
            rates that are no finite numbers > 0.
    """

    # tokens of a step, anchors included -> steps per second
    points: Mapping[int, float]

    def __post_init__(self) -> None:
        if not isinstance(self.points, Mapping) or not self.points:
            expected, got = "{batch_tokens: steps per second}", repr(self.points)
            rule = "be a table with at least one point"
            raise problem("points", rule, expected, got, error=TypeError)
        for tokens, rate in self.points.items():
            check_range("batch_tokens", tokens, 1, integer=True)
            check_range("steps per second", rate, 0.0, open_low=True)
        ordered = {int(tokens): float(self.points[tokens]) for tokens in self.points}
        object.__setattr__(self, "points", dict(sorted(ordered.items())))

    @property
    def capacity(self) -> int:
        """The most tokens of a step that were measured."""
        return max(self.points)

    def __call__(self, batch_tokens: int) -> float:
        """Return the steps per second at a step of ``batch_tokens`` tokens."""
        check_range("batch_tokens", batch_tokens, 0, integer=True)
        return self.rates(torch.tensor([int(batch_tokens)])).item()

    def rates(self, batch_tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the steps per second at each of n sizes, [n] float64."""
        outside = (batch_tokens < min(self.points)) | (batch_tokens > self.capacity)
        if outside.any():
            expected = f"{min(self.points)} to {self.capacity}"
            got = int(batch_tokens[outside][0])
            raise problem("batch_tokens", "be measured", expected, got)
        sizes = torch.tensor(list(self.points), dtype=torch.float64)
        rates = torch.tensor(list(self.points.values()), dtype=torch.float64)
        right = torch.searchsorted(sizes, batch_tokens.double()).clamp(min=1)
        right = right.clamp(max=len(sizes) - 1)
        left = (right - 1).clamp(min=0)
        width = (sizes[right] - sizes[left]).clamp(min=1)  # one point: no width
        part = (batch_tokens - sizes[left]) / width
        return rates[left] + part * (rates[right] - rates[left])


def schedule_prefixes(
    survival: Float[Tensor, "R K"],
    steps_per_second: StepsPerSecond,
    *,
    early_stop: bool = True,
) -> Int[Tensor, " R"]:
    """Return how many drafts of each request to verify (DSpark, Algorithm 1).

    Start with no drafts: B = R tokens, R of them emitted. Take in the drafts by
    falling survival a_{r,j}, each one token more for the step and a_{r,j} more
    expected, and stop at the first that does not raise Theta.

    **Why** the stop: when it falls, it depends on drafts that are already in, never on
    the draft it shuts out. The search over all lengths (``early_stop=False``) has
    looked at later confidences, which depend on this very draft: used on the step it
    looked at it is *not lossless* (appendix A; ``LaggedPrefixScheduler`` repairs it).
    The two agree where 1/SPS is convex; on a staircase the stop halts at the first dip.

    Args:
        survival: [R, K] in [0, 1], a_{r,j}, never rising along a block.
        steps_per_second: SPS(B); its capacity is never passed.
        early_stop: False searches over all lengths of the ranking.

    Returns:
        verify_len [R], 0..K, int64. Drafts of survival 0 are never taken in.
        Equal survivals go to the lower position, then to the lower request.

    Raises:
        TypeError, ValueError: values that are no survivals, more requests than the
            capacity.

    >>> sps = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})  # appendix A
    >>> a = torch.tensor([[0.8, 0.72]])  # 1 * 1, then 1.8 * .5, then 2.52 * .45
    >>> schedule_prefixes(a, sps), schedule_prefixes(a, sps, early_stop=False)
    (tensor([0]), tensor([2]))

    Differs: engines that do without the stop look two steps back instead.
    """
    check_flag("early_stop", early_stop)
    if check_shape("survival", survival, "R K")["R"] == 0:
        return torch.zeros(0, dtype=torch.int64, device=survival.device)
    throughput = throughput_curve(survival, steps_per_second)
    rising = leading_run(throughput.diff() > 0)
    best = throughput.argmax()  # the first of equals, as "Theta > best" has it
    requests = rank_drafts(survival)[1]
    return _lengths(requests[: rising if early_stop else best], survival)


def throughput_curve(
    survival: Float[Tensor, "R K"], steps_per_second: StepsPerSecond
) -> Float[Tensor, " sizes"]:
    """Return Theta with the best 0, 1, 2, ... drafts taken in: tokens per second.

    Theta = tau SPS(B): tau begins at R, a token of the target's own for each request,
    and grows by a draft's survival; B begins at R and grows by 1. The curve ends where
    the table does, or with the last draft that may stand.

    Arguments and errors as in ``schedule_prefixes``.

    >>> sps = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})  # appendix A
    >>> throughput_curve(torch.tensor([[0.8, 0.72]]), sps)
    tensor([1.0000, 0.9000, 1.1340], dtype=torch.float64)
    """
    size = check_shape("survival", survival, "R K")["R"]
    gains = rank_drafts(survival)[0][: free_places(size, steps_per_second)]
    batch_tokens = size + torch.arange(len(gains) + 1)
    expected_tokens = torch.cat([gains.new_tensor([size]), gains]).cumsum(0)
    return expected_tokens * steps_per_second.rates(batch_tokens)


def fill_budget(survival: Float[Tensor, "R K"], budget: int) -> Int[Tensor, " R"]:
    """Return the verify lengths when ``budget`` drafts in all are to be verified.

    The best-ranked ones go in, ties as in ``schedule_prefixes``.

    Args:
        survival: [R, K] in [0, 1], never rising along a block.
        budget: drafts, >= 0; those of survival 0 stay out even where there is room.

    >>> fill_budget(torch.tensor([[0.9, 0.81, 0.2], [0.5, 0.1, 0.05]]), 3)
    tensor([2, 1])
    """
    check_range("budget", budget, 0, integer=True)
    return _lengths(rank_drafts(survival)[1][:budget], survival)


def rank_drafts(
    survival: Float[Tensor, "R K"],
) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    """Return all drafts that may stand, best first: survival [n], its request [n].

    The order is by (-a, j, r). At equal a the lower position must come first: where a
    confidence is 1, two drafts of one request tie, and only together are they a prefix.

    >>> chances, requests = rank_drafts(torch.tensor([[0.5, 0.0], [0.5, 0.5]]))
    >>> requests.tolist()
    [0, 1, 1]
    """
    check_shape("survival", survival, "R K")
    chances = widen(survival, "survival").detach().cpu().double()
    outside = ~((chances >= 0) & (chances <= 1))  # NaN is outside too
    if outside.any():
        got = chances[outside][0].item()
        raise problem("survival", "be a probability", "numbers in [0, 1]", got)
    if (chances.diff(dim=1) > 0).any():
        hint = "Pass survival(confidence), not the confidence itself."
        rule, expected = "be a running product", "values that never rise along a block"
        raise problem("survival", rule, expected, "a value above the one before", hint)
    by_position = chances.T.flatten()  # j * R + r: a stable sort keeps (j, r)
    ranked, order = by_position.sort(descending=True, stable=True)
    possible = int((ranked > 0).sum())
    return ranked[:possible], order[:possible] % max(len(survival), 1)


def check_table(value: object) -> None:
    """Check that a value is a measured table, not the bare dict it is made from."""
    if not isinstance(value, StepsPerSecond):
        rule, expected, got = "be a measured table", "a StepsPerSecond", type(value)
        name = "steps_per_second"
        raise problem(name, rule, expected, got.__name__, error=TypeError)


def free_places(num_requests: int, steps_per_second: StepsPerSecond) -> int:
    """Return how many drafts fit beside one token of each request.

    >>> free_places(2, StepsPerSecond({1: 100.0, 9: 60.0}))
    7
    """
    check_table(steps_per_second)
    room = steps_per_second.capacity - num_requests
    if room < 0:
        expected = f"at most {steps_per_second.capacity}, the last measured point"
        raise problem("requests", "fit into a step", expected, num_requests)
    return room


def _lengths(requests: Tensor, survival: Tensor) -> Int[Tensor, " R"]:
    """Count the drafts taken in for each request: its prefix's length."""
    return torch.bincount(requests, minlength=len(survival)).to(survival.device)
