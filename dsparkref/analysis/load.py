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
from dataclasses import dataclass
from statistics import fmean, quantiles

import torch
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


def record_cycles(traces: Sequence[CycleTrace]) -> Recorded:
    """Keep what a simulation replays of each cycle.

    Cycles that a stop token or the cap cut short say nothing about the drafts behind
    the cut and are left out; truncated ones are refused.

    Raises:
        ValueError: a cycle that did not verify its whole block; no whole cycle.
    """
    whole = [trace for trace in traces if trace.next_token is not None]
    if not whole:
        raise problem("traces", "hold cycles", "at least one that was not cut", "none")
    for trace in traces:
        if trace.verify_len < len(trace.drafts):
            hint = "Record with policy=None."
            expected = f"verify_len {len(trace.drafts)}"
            rule = "be untruncated"
            raise problem("traces", rule, expected, trace.verify_len, hint)
    known = [trace.confidence for trace in whole if trace.confidence is not None]
    return Recorded(
        confidence=torch.tensor(known) if len(known) == len(whole) else None,
        num_accepted=torch.tensor([trace.num_accepted for trace in whole]),
        block_size=len(whole[0].drafts),
    )


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


@dataclass
class User:
    """One request on the simulated clock."""

    # seconds
    arrived: float
    # tokens still to come
    left: int
    # numbers of the recorded cycles it will meet, in order
    script: list[int]
    # seconds
    admitted: float = 0.0
    # seconds
    finished: float = 0.0
    # steps so far
    cycles: int = 0


def simulate_load(
    recorded: Recorded,
    steps_per_second: Callable[[int], float],
    policy: Policy,
    *,
    rate: float,
    concurrency: int,
    num_requests: int = 100,
    tokens: int = 64,
    draft_seconds: float = 0.0,
    seed: int = 0,
) -> LoadResult:
    """Serve ``num_requests`` requests and report speed, latency and batch sizes.

    Args:
        recorded: cycles to replay.
        steps_per_second: from tokens in the batch to steps per second, such as a
            measured ``StepsPerSecond``; one that refuses a batch ends the simulation.
        policy: ``FixedLength(0)`` is the engine without speculation.
        rate: arrivals per second, exponential gaps; inf: all are there at once.
        concurrency: places; who finds none waits, first come, first served.
        tokens: tokens of each reply.
        draft_seconds: what drafting adds to each step in which a draft is verified.
        seed: of arrivals and of the order in which cycles are replayed.

    >>> recorded = Recorded(None, torch.tensor([2]), block_size=4)  # always 2 of 4
    >>> from dsparkref.verify.policies import FixedLength
    >>> load = {"rate": float("inf"), "concurrency": 1, "num_requests": 1, "tokens": 6}
    >>> for k in 0, 2, 4:  # 6 steps of 1 token; 2 of 3; 2 of 3, two drafts in vain
    ...     result = simulate_load(recorded, lambda b: 10 / b, FixedLength(k), **load)
    ...     print(result.steps, round(result.throughput, 2))
    6 10.0
    2 10.0
    2 6.0
    """
    check_range("rate", rate if rate != float("inf") else 1.0, 0.0, open_low=True)
    for name, value in (
        ("concurrency", concurrency),
        ("num_requests", num_requests),
        ("tokens", tokens),
    ):
        check_range(name, value, 1, integer=True)
    check_range("draft_seconds", draft_seconds, 0.0)
    users = _arrivals(recorded, rate, num_requests, tokens, seed)
    policy, clock = policy.start(), users[0].arrived
    waiting, running, batches = list(users), list[User](), list[tuple[int, int]]()
    while waiting or running:
        if not running:
            clock = max(clock, waiting[0].arrived)
        while waiting and len(running) < concurrency and waiting[0].arrived <= clock:
            running.append(waiting.pop(0))
            running[-1].admitted = clock
        lengths, gains = _step(recorded, policy, running)
        batch = len(running) + sum(lengths)
        batches.append((len(running), batch))
        clock += 1 / steps_per_second(batch) + draft_seconds * any(lengths)
        for user, gain in zip(running, gains, strict=True):
            user.left -= min(gain, user.left)
            user.cycles += 1
            user.finished = clock
        running = [user for user in running if user.left]
    return _result(users, tokens, batches)


def _arrivals(
    recorded: Recorded, rate: float, num_requests: int, tokens: int, seed: int
) -> list[User]:
    """Draw arrival times and the cycles each request will meet."""
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(num_requests, generator=generator, dtype=torch.float64)
    times = (-torch.log1p(-uniforms) / rate).cumsum(0).tolist()
    shape = num_requests, tokens  # a cycle gives a token or more
    scripts = torch.randint(len(recorded.num_accepted), shape, generator=generator)
    return [
        User(arrived, tokens, script)
        for arrived, script in zip(times, scripts.tolist(), strict=True)
    ]


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
    gains = 1 + torch.minimum(recorded.num_accepted[numbers], lengths)
    return lengths.tolist(), gains.tolist()


def _result(
    users: Sequence[User], tokens: int, batches: Sequence[tuple[int, int]]
) -> LoadResult:
    """Average over requests and steps."""
    latencies = [user.finished - user.arrived for user in users]
    served = [user.finished - user.admitted for user in users]
    total = max(user.finished for user in users) - users[0].arrived
    cycles = sum(user.cycles for user in users)
    verified = sum(batch - requests for requests, batch in batches)
    slowest = quantiles(latencies, n=20)[-1] if len(users) > 1 else latencies[0]
    return LoadResult(
        throughput=len(users) * tokens / total,
        user_speed=fmean(tokens / seconds for seconds in served),
        latency=fmean(latencies),
        latency_p95=slowest,
        accepted_length=len(users) * tokens / cycles,
        verify_len=verified / cycles,
        batch_requests=fmean(requests for requests, _ in batches),
        batch_tokens=fmean(batch for _, batch in batches),
        steps=len(batches),
    )
