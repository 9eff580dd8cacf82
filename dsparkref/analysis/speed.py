"""Tokens per second, side by side in one run, and what a cycle's time is made of.

Every method decodes the same prompts greedily to their natural end, in rounds: in each
round one after the other, so that a machine that is busy for a second spoils a round
and not the comparison. What is reported is the median over the rounds.

A cycle's time is drafting, the target's forward pass, and the rest: laws, verdict,
rollback, bookkeeping. Head unrolling is the sequential part of drafting.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from dsparkref.analysis import metrics
from dsparkref.decode.loop import autoregressive, generate
from dsparkref.decode.request import as_row
from dsparkref.decode.target import Target
from dsparkref.records import Generation
from dsparkref.shapes import check_range, problem

HUGGING_FACE = "Hugging Face generate"
ONE_TOKEN = "one-token loop"


@dataclass
class Stopwatch:
    """Adds up the time spent in one method of one object."""

    # what tells the time, in seconds
    clock: Callable[[], float] = time.perf_counter
    seconds: float = 0.0

    @contextmanager
    def watching(self, owner: Any, name: str) -> Iterator[None]:
        """Time every call of ``owner.name`` inside the block."""
        method: Callable = getattr(owner, name)

        def timed(*args, **keywords):  # type: ignore[no-untyped-def]
            start = self.clock()
            try:
                return method(*args, **keywords)
            finally:
                self.seconds += self.clock() - start

        setattr(owner, name, timed)
        try:
            yield
        finally:
            delattr(owner, name)


@dataclass(frozen=True)
class CycleTime:
    """Where the time of a cycle goes, in seconds, mean over the cycles of a round."""

    # proposing a block, head included
    draft: float
    # of that: the head's K steps
    head: float
    # the target's forward pass over anchor and drafts
    verify: float
    # all else: laws, verdict, rollback, bookkeeping
    rest: float

    @property
    def overhead(self) -> float:
        """What the loop adds, over drafting and verifying."""
        return self.rest / (self.draft + self.verify)


@dataclass
class Timing:
    """One method's rounds."""

    # drafts per cycle; 0 where there are no cycles
    block_size: int = 0
    # tokens per second, one number per round
    speeds: list[float] = field(default_factory=list)
    # one entry per round; empty where there are no cycles
    cycle_times: list[CycleTime] = field(default_factory=list)
    # tokens per cycle, bonus included
    accepted_length: float | None = None
    # prompts whose tokens are those of Hugging Face ``generate``
    equal: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Median over the rounds."""
        return median(self.speeds)

    def over(self, other: "Timing") -> float:
        """Return the median over rounds of this speed over another's; < 1: slower."""
        pairs = zip(self.speeds, other.speeds, strict=True)
        return median(ours / theirs for ours, theirs in pairs)

    def part(self, name: str) -> float:
        """Return the median over rounds of one part of the cycle, in seconds."""
        return median(getattr(times, name) for times in self.cycle_times)


def measure_speed(
    target: Target,
    drafters: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    *,
    rounds: int = 5,
    max_new_tokens: int = 128,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Timing]:
    """Time Hugging Face ``generate``, the one-token loop and every drafter.

    Args:
        target: the pair's target.
        drafters: name -> drafter.
        prompts: each a list of ids, at least one.
        rounds: >= 1; one more, unmeasured, goes first: first calls pay for memory.
        max_new_tokens: cap per prompt, >= 2.
        progress: told what is being measured.

    Returns:
        name -> Timing, Hugging Face and the one-token loop first.
    """
    check_range("rounds", rounds, 1, integer=True)
    check_range("max_new_tokens", max_new_tokens, 2, integer=True)
    if not prompts:
        raise problem("prompts", "not be empty", "at least one prompt", "none")
    methods = {HUGGING_FACE: None, ONE_TOKEN: None, **drafters}
    timings = {
        name: Timing(block_size=0 if drafter is None else drafter.block_size)
        for name, drafter in methods.items()
    }
    for turn in range(rounds + 1):
        expected: list[list[int]] = []
        for name, drafter in methods.items():
            progress(f"round {turn} of {rounds}: {name}")
            if name == HUGGING_FACE:
                speed, expected = _time_hugging_face(target, prompts, max_new_tokens)
                replies, times = expected, None
            else:
                speed, found, times = _time_loop(
                    target, drafter, prompts, max_new_tokens
                )
                replies = [reply.tokens for reply in found]
                timings[name].accepted_length = _mean_length(found)
            if turn:
                timings[name].speeds.append(speed)
                timings[name].cycle_times += [] if times is None else [times]
            pairs = zip(replies, expected, strict=True)
            timings[name].equal = sum(ours == theirs for ours, theirs in pairs)
    return timings


def peak_memory() -> int | None:
    """Return the most memory this process has held, in bytes; None where unknown.

    On a GPU it is what torch had allocated there.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _time_hugging_face(
    target: Target, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[float, list[list[int]]]:
    """Return tokens per second and the tokens of Hugging Face ``generate``."""
    replies = []
    with target.plain_generation():  # once, and not in the time
        start = target.clock()
        for prompt in prompts:
            row = as_row(prompt, target.device)
            out = target.model.generate(
                row,
                attention_mask=torch.ones_like(row),
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
            replies.append(out[0, len(prompt) :].tolist())
        seconds = target.clock() - start
    return sum(map(len, replies)) / seconds, replies


def _time_loop(
    target: Target,
    drafter: Any | None,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> tuple[float, list[Generation], CycleTime | None]:
    """Return tokens per second, replies, and the parts of a cycle if there are any."""
    clock = target.clock
    prefill, forward, head = Stopwatch(clock), Stopwatch(clock), Stopwatch(clock)
    cap: dict[str, Any] = {"max_new_tokens": max_new_tokens}
    replies = []
    with ExitStack() as watches:
        watches.enter_context(prefill.watching(target, "prefill"))
        watches.enter_context(forward.watching(target, "forward"))
        own_head = getattr(drafter, "head", None)  # a scripted drafter has none
        if own_head is not None:
            watches.enter_context(head.watching(own_head, "step"))
        start = clock()
        for prompt in prompts:
            if drafter is None:
                replies.append(autoregressive(target, prompt, **cap))
            else:
                replies.append(generate(target, drafter, prompt, **cap))
        seconds = clock() - start
    speed = sum(len(reply.tokens) for reply in replies) / seconds
    cycles = [cycle for reply in replies for cycle in reply.cycles]
    if not cycles:
        return speed, replies, None
    draft = sum(cycle.draft_seconds for cycle in cycles)
    verify = forward.seconds - prefill.seconds
    parts = (draft, head.seconds, verify, seconds - forward.seconds - draft)
    return speed, replies, CycleTime(*(part / len(cycles) for part in parts))


def _mean_length(replies: Sequence[Generation]) -> float | None:
    return metrics.accepted_length([c for reply in replies for c in reply.cycles])
