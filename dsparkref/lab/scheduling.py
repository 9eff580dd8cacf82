"""What notebook 09 compares: the stop, the search, brute force, and being late.

``LookAhead`` is here to be looked at: no other part of the package decodes with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.analysis.profile import Profile
from dsparkref.lab.made_up_curves import compute_bound, random_curve
from dsparkref.shapes import problem
from dsparkref.verify.confidence import survival
from dsparkref.verify.policies import (
    FixedLength,
    LaggedPrefixScheduler,
    Policy,
    PrefixScheduler,
)
from dsparkref.verify.scheduler import StepsPerSecond, schedule_prefixes


def expected_throughput(
    chances: Float[Tensor, "R K"],
    verify_len: Int[Tensor, " R"],
    steps_per_second: StepsPerSecond,
) -> float:
    """Return Theta of any verify lengths: (R + sum of a) SPS(B).

    >>> sps = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})
    >>> a = torch.tensor([[0.8, 0.72]])
    >>> round(expected_throughput(a, torch.tensor([2]), sps), 3)
    1.134
    """
    positions = torch.arange(chances.shape[1])
    inside = positions < verify_len[:, None]
    tokens = len(chances) + (chances.double() * inside).sum().item()
    return tokens * steps_per_second(len(chances) + int(verify_len.sum()))


def brute_force(
    chances: Float[Tensor, "R K"], steps_per_second: StepsPerSecond
) -> float:
    """Return the best Theta over every length of every request: (K + 1)^R of them."""
    size, block = chances.shape
    lengths = [
        torch.tensor(found)
        for found in product(range(block + 1), repeat=size)
        if size + sum(found) <= steps_per_second.capacity
    ]
    return max(expected_throughput(chances, n, steps_per_second) for n in lengths)


def duels(
    convex: bool, count: int = 100, shape: tuple[int, int] = (2, 4)
) -> dict[str, list[float]]:
    """Return Theta over brute force's, for the stop and for the search, [count] each.

    Random survivals on random curves; request by request the confidences are drawn
    from 0.3 to 1.
    """
    generator = torch.Generator().manual_seed(int(convex))
    found: dict[str, list[float]] = {"the stop": [], "the search": []}
    size, block = shape
    for seed in range(count):
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        chances = survival(0.3 + 0.7 * drawn)
        sps = random_curve(size, size * (block + 1), convex=convex, seed=seed)
        best = brute_force(chances, sps)
        for name, early_stop in (("the stop", True), ("the search", False)):
            lengths = schedule_prefixes(chances, sps, early_stop=early_stop)
            found[name].append(expected_throughput(chances, lengths, sps) / best)
    return found


def wanted_by_crowd(
    chances: Float[Tensor, "n K"],
    users: Sequence[int],
    profile: Profile,
    *,
    crowds: int = 40,
) -> dict[str, list[float]]:
    """Return the drafts per user that are taken in, by number of users.

    With the stop and by the search on the measured table, and with the stop on a
    made-up curve that is free up to 64 tokens.

    Args:
        chances: survivals of single cycles; crowds are drawn from them.
        users: numbers of users, each of them measured.
        profile: a measured table.
        crowds: per number of users; the mean over them is returned.
    """
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {}
    for size in users:
        measured = profile.steps_per_second(size)
        bound = compute_bound(size, size * (chances.shape[1] + 1))
        draws = torch.randint(len(chances), (crowds, size), generator=generator)
        for name, sps, early_stop in (
            ("the stop, measured", measured, True),
            ("the search, measured", measured, False),
            ("the stop, made up: compute-bound", bound, True),
        ):
            lengths = [
                schedule_prefixes(chances[rows], sps, early_stop=early_stop)
                for rows in draws
            ]
            mean = torch.stack(lengths).double().mean().item()
            found.setdefault(name, []).append(mean)
    return found


@dataclass(frozen=True)
class LookAhead(Policy):
    """The search over all lengths, used on the very step that it looks at.

    **Not lossless** under rejection sampling (appendix A). It is here to be looked at.
    """

    # SPS(B)
    steps_per_second: StepsPerSecond

    def verify_lengths(
        self,
        confidence: Float[Tensor, "R K"] | None,
        *,
        block_size: int,
        num_requests: int = 1,
    ) -> Int[Tensor, " R"]:
        """Return the lengths with the highest Theta."""
        if confidence is None:
            rule = "come with a confidence head for LookAhead"
            raise problem("drafter", rule, "confidence [R, K]", None)
        chances = survival(confidence)
        return schedule_prefixes(chances, self.steps_per_second, early_stop=False)


def lengths_after(
    policy: Policy,
    confidence_of: Callable[[Sequence[int]], Float[Tensor, "1 K"]],
    history: Sequence[Sequence[int]] = (),
) -> Callable[[Sequence[int]], int]:
    """Return drafts -> their verify length, after steps whose drafts were ``history``.

    Every call starts the policy anew: what is asked about one block must not be
    remembered when another is asked about.
    """

    def verify_len(path: Sequence[int]) -> int:
        fresh = policy.start()
        lengths = [
            fresh.verify_lengths(confidence_of(drafts), block_size=len(drafts))
            for drafts in (*history, path)
        ]
        return int(lengths[-1])

    return verify_len


def after_every_past(
    policy: Policy,
    confidence_of: Callable[[Sequence[int]], Float[Tensor, "1 K"]],
    *,
    steps: int = 2,
    block_size: int = 2,
    vocab: int = 2,
) -> list[Callable[[Sequence[int]], int]]:
    """Return ``lengths_after`` for every past that some steps can have."""
    blocks = list(product(range(vocab), repeat=block_size))
    pasts = product(blocks, repeat=steps)
    return [lengths_after(policy, confidence_of, past) for past in pasts]


def rivals(steps_per_second: StepsPerSecond, block_size: int) -> dict[str, Policy]:
    """Return the policies to compare on one curve; the last one is not lossless."""
    return {
        "no drafts": FixedLength(0),
        "all drafts": FixedLength(block_size),
        "the stop": PrefixScheduler(steps_per_second),
        "two steps late": LaggedPrefixScheduler(steps_per_second),
        "the search": LookAhead(steps_per_second),
    }


def mean_throughput(
    confidences: Float[Tensor, "steps R K"], policy: Policy, sps: StepsPerSecond
) -> float:
    """Return the mean Theta of a policy over steps in a row."""
    policy, block_size = policy.start(), confidences.shape[-1]
    thetas = [
        expected_throughput(
            survival(step), policy.verify_lengths(step, block_size=block_size), sps
        )
        for step in confidences
    ]
    return sum(thetas) / len(thetas)
