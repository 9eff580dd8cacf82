"""Many users, one engine: what a policy does to throughput and to each user's speed.

A simulation with a clock of its own. Requests arrive at random times, wait for a free
place, and are decoded together; a step takes as long as the engine needs for the
tokens in it (Eq. 1 with a load: T depends on B). What drafts would have been accepted
is not invented but replayed: cycles recorded from untruncated decoding, each with its
confidences and the length of its accepted run. A request that verifies l drafts of a
cycle whose run is n gets min(n, l) + 1 tokens.

Every policy meets the same arrivals and, request by request, the same cycles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import truediv
from statistics import fmean, quantiles

import torch
from jaxtyping import Int
from torch import Tensor

from dsparkref.records import CycleTrace
from dsparkref.shapes import check_range, problem
from dsparkref.verify.inputs import check_lengths
from dsparkref.verify.policies import Policy


@dataclass(frozen=True)
class Recorded:
    """Cycles of untruncated decoding, to be replayed."""

    # [n, K] in [0, 1], or None: recorded from a drafter without a confidence head
    confidence: Tensor | None
    # [n], drafts accepted when all K were verified, 0..K
    num_accepted: Tensor
    # K, drafts per cycle
    block_size: int
    # [n], the kind of request a cycle is from, 0, 1, ...; None: all are of one kind
    kind: Tensor | None = None


def record_cycles(*kinds: Sequence[CycleTrace]) -> Recorded:
    """Keep what a simulation replays of each cycle.

    Each argument holds the cycles of one kind of request, such as those of one domain:
    a simulated request meets cycles of one kind alone. Cycles that a stop token or the
    cap cut short say nothing about the drafts behind the cut and are left out;
    truncated ones are refused.

    Raises:
        ValueError: a cycle that did not verify its whole block; a kind without a whole
            cycle.
    """
    whole = [[t for t in traces if t.next_token is not None] for traces in kinds]
    if not all(whole) or not whole:
        raise problem("traces", "hold cycles", "at least one that was not cut", "none")
    for trace in (trace for traces in kinds for trace in traces):
        if trace.verify_len < len(trace.drafts):
            hint = "Record with policy=None."
            expected = f"verify_len {len(trace.drafts)}"
            rule = "be untruncated"
            raise problem("traces", rule, expected, trace.verify_len, hint)
    flat = [trace for traces in whole for trace in traces]
    known = [trace.confidence for trace in flat if trace.confidence is not None]
    counts = torch.tensor([len(traces) for traces in whole])
    return Recorded(
        confidence=torch.tensor(known) if len(known) == len(flat) else None,
        num_accepted=torch.tensor([trace.num_accepted for trace in flat]),
        block_size=len(flat[0].drafts),
        kind=torch.arange(len(whole)).repeat_interleave(counts),
    )


@dataclass(frozen=True)
class Autoregressive(Policy):
    """The engine without a drafter: one token per request and step.

    Not ``FixedLength(0)``, whose drafter works in vain.
    """

    def verify_lengths(
        self,
        confidence: Tensor | None,
        *,
        block_size: int,
        num_requests: int = 1,
    ) -> Tensor:
        """Return 0 for each request."""
        return torch.zeros(num_requests, dtype=torch.long)


@dataclass(frozen=True)
class LoadResult:
    """What one policy made of one load."""

    # tokens per second, all requests together, from first arrival to last finish
    throughput: float
    # tokens per second that a request got while it had a place, mean over requests
    user_speed: float
    # seconds from arrival to finish, mean over requests
    latency: float
    # seconds, 95 of 100 requests are faster
    latency_p95: float
    # tokens per request and step, bonus included
    accepted_length: float
    # drafts verified per request and step
    verify_len: float
    # requests per step
    batch_requests: float
    # tokens per step: anchors and verified drafts, Algorithm 1's B
    batch_tokens: float
    # steps
    steps: int


# verify lengths of a step, whether drafts were made -> seconds, such as a StepClock
StepSeconds = Callable[[Sequence[int], bool], float]


@dataclass
class User:
    """One request of a load."""

    # seconds
    arrived: float
    # numbers of the recorded cycles it will meet, in order
    script: list[int] = field(default_factory=list)
    # seconds
    admitted: float = 0.0
    # seconds
    finished: float = 0.0
    # steps so far
    cycles: int = 0
    # tokens so far, those of its cycles
    tokens: int = 0
    # 1 where the first token came from reading the prompt; a replay reads none
    from_prefill: int = 0


def simulate_load(
    recorded: Recorded,
    step_seconds: StepSeconds,
    policy: Policy,
    *,
    rate: float,
    concurrency: int,
    num_requests: int = 100,
    tokens: int = 64,
    seed: int = 0,
) -> LoadResult:
    """Serve ``num_requests`` requests and report speed, latency and batch sizes.

    Args:
        recorded: cycles to replay; requests are of its kinds in turn.
        step_seconds: the seconds of a step, such as a ``StepClock``; one that refuses
            a step ends the simulation.
        policy: ``Autoregressive()`` is the engine without a drafter.
        rate: arrivals per second, exponential gaps; inf: all are there at once.
        concurrency: places; who finds none waits, first come, first served.
        tokens: tokens of each reply.
        seed: of arrivals and of the order in which cycles are replayed.

    >>> recorded = Recorded(None, torch.tensor([2]), block_size=4)  # always 2 of 4
    >>> from dsparkref.verify.policies import FixedLength
    >>> load = {"rate": float("inf"), "concurrency": 1, "num_requests": 1, "tokens": 6}
    >>> def step_seconds(lengths, drafted):
    ...     return 0.1 * (len(lengths) + sum(lengths))
    >>> for k in 0, 2, 4:  # 6 steps of 1 token; 2 of 3; 2 of 3, two drafts in vain
    ...     result = simulate_load(recorded, step_seconds, FixedLength(k), **load)
    ...     print(result.steps, round(result.throughput, 2))
    6 10.0
    2 10.0
    2 6.0
    """
    check_load(rate, concurrency, num_requests, tokens)
    users = _arrivals(recorded, rate, num_requests, tokens, seed)
    drafted = not isinstance(policy, Autoregressive)
    policy, clock = policy.start(), users[0].arrived
    waiting, running, steps = list(users), list[User](), list[list[int]]()
    while waiting or running:
        if not running:
            clock = max(clock, waiting[0].arrived)
        while waiting and len(running) < concurrency and waiting[0].arrived <= clock:
            running.append(waiting.pop(0))
            running[-1].admitted = clock
        lengths, gains = _step(recorded, policy, running)
        steps.append(lengths)
        clock += step_seconds(lengths, drafted)
        for user, gain in zip(running, gains, strict=True):
            user.tokens = min(user.tokens + gain, tokens)
            user.cycles += 1
            user.finished = clock
        running = [user for user in running if user.tokens < tokens]
    return load_result(users, steps)


def check_load(rate: float, concurrency: int, num_requests: int, tokens: int) -> None:
    """Check the numbers of a load, simulated or real."""
    check_range("rate", rate if rate != float("inf") else 1.0, 0.0, open_low=True)
    check_range("concurrency", concurrency, 1, integer=True)
    check_range("num_requests", num_requests, 1, integer=True)
    check_range("tokens", tokens, 1, integer=True)


def arrival_times(rate: float, num_requests: int, seed: int) -> list[float]:
    """Return when requests arrive, in seconds: gaps are exponential, all 0 at inf."""
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(num_requests, generator=generator, dtype=torch.float64)
    return (-torch.log1p(-uniforms) / rate).cumsum(0).tolist()


def _arrivals(
    recorded: Recorded, rate: float, num_requests: int, tokens: int, seed: int
) -> list[User]:
    """Draw arrival times and the cycles each request will meet."""
    kind = recorded.kind
    if kind is None:
        kind = torch.zeros(len(recorded.num_accepted), dtype=torch.long)
    pools = [torch.where(kind == one)[0] for one in range(int(kind.max()) + 1)]
    generator = torch.Generator().manual_seed(seed + 1)
    users = []
    for number, arrived in enumerate(arrival_times(rate, num_requests, seed)):
        pool = pools[number % len(pools)]
        drawn = torch.randint(len(pool), (tokens,), generator=generator)
        # a cycle gives a token or more: no reply takes more than ``tokens`` of them
        users.append(User(arrived, pool[drawn].tolist()))
    return users


def _step(
    recorded: Recorded, policy: Policy, running: Sequence[User]
) -> tuple[list[int], list[int]]:
    """Return each running request's verify length and the tokens its cycle gives."""
    numbers = torch.tensor([user.script[user.cycles] for user in running])
    confidence = None if recorded.confidence is None else recorded.confidence[numbers]
    size = recorded.block_size
    chosen = policy.verify_lengths(
        confidence, block_size=size, num_requests=len(running)
    )
    lengths = check_lengths(chosen, len(running), size)
    gains = replayed_tokens(recorded.num_accepted[numbers], lengths)
    return lengths.tolist(), gains.tolist()


def replayed_tokens(
    num_accepted: Int[Tensor, " R"], verify_len: Int[Tensor, " R"]
) -> Int[Tensor, " R"]:
    """Return the tokens that recorded cycles give when less of them is verified.

    Args:
        num_accepted: [R], drafts that stood when all were verified.
        verify_len: [R], drafts verified now.

    >>> replayed_tokens(torch.tensor([5, 5, 0]), torch.tensor([2, 7, 7]))
    tensor([3, 6, 1])
    """
    return 1 + torch.minimum(num_accepted, verify_len)


def user_speed(
    tokens: Sequence[int],
    arrived: Sequence[float],
    admitted: Sequence[float],
    finished: Sequence[float],
) -> float:
    """Return the tokens per second of a request while it is served, mean over requests.

    Waiting for a place does not count: that is latency.

    Args:
        tokens: of each reply.
        arrived, admitted, finished: seconds.

    >>> user_speed([10, 10], [0.0, 0.0], [0.0, 2.0], [2.0, 12.0])  # 5 and 1
    3.0
    """
    served = (end - start for start, end in zip(admitted, finished, strict=True))
    return fmean(map(truediv, tokens, served))


def load_result(users: Sequence[User], steps: Sequence[Sequence[int]]) -> LoadResult:
    """Average over requests, and over steps given by their verify lengths."""
    latencies = [user.finished - user.arrived for user in users]
    replies = [user.from_prefill + user.tokens for user in users]
    total = max(user.finished for user in users) - users[0].arrived
    cycles = sum(user.cycles for user in users)
    slowest = quantiles(latencies, n=20)[-1] if len(users) > 1 else latencies[0]
    return LoadResult(
        throughput=sum(replies) / total,
        user_speed=user_speed(
            replies,
            [user.arrived for user in users],
            [user.admitted for user in users],
            [user.finished for user in users],
        ),
        latency=fmean(latencies),
        latency_p95=slowest,
        accepted_length=sum(user.tokens for user in users) / cycles,
        verify_len=sum(map(sum, steps)) / cycles,
        batch_requests=fmean(map(len, steps)),
        batch_tokens=fmean(len(lengths) + sum(lengths) for lengths in steps),
        steps=len(steps),
    )
