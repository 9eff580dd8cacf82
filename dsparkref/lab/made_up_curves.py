"""SPS curves that nobody measured: shapes to think with, called made up everywhere.

The time of the smallest step is 1, so that Theta is tokens per time of that step.
"""

import torch

from dsparkref.verify.scheduler import StepsPerSecond


def smooth_curve(first: int, last: int) -> StepsPerSecond:
    """Return a made-up SPS(B) whose step time is convex: each token costs more."""
    seconds = {b: 1 + 0.01 * (b - first) ** 1.6 for b in range(first, last + 1)}
    return StepsPerSecond({b: 1 / s for b, s in seconds.items()})


def staircase(
    first: int, last: int, *, tread: int = 4, rise: float = 0.4
) -> StepsPerSecond:
    """Return a made-up SPS(B) that pays by the tile: ``tread`` tokens at one price."""
    seconds = {b: 1 + rise * ((b - 1) // tread) for b in range(first, last + 1)}
    return StepsPerSecond({b: 1 / s for b, s in seconds.items()})


def compute_bound(first: int, last: int, *, knee: int = 64) -> StepsPerSecond:
    """Return a made-up SPS(B): free up to ``knee`` tokens, then in proportion.

    What a large model on one accelerator looks like from afar: small steps only wait
    for the weights, large ones for the arithmetic.

    >>> sps = compute_bound(1, 128)
    >>> sps(1), sps(64), sps(128)
    (1.0, 1.0, 0.5)
    """
    return StepsPerSecond({b: min(1.0, knee / b) for b in range(first, last + 1)})


def random_curve(first: int, last: int, *, convex: bool, seed: int) -> StepsPerSecond:
    """Return a made-up SPS(B): the time of each further token is drawn by chance.

    ``convex`` sorts these times, so that no token is cheaper than the one before.
    """
    generator = torch.Generator().manual_seed(seed)
    extra = torch.rand(last - first, generator=generator, dtype=torch.float64) ** 3
    extra = extra.sort().values if convex else extra
    seconds = torch.cat([torch.ones(1).double(), 1 + extra.cumsum(0)]).tolist()
    return StepsPerSecond({first + i: 1 / s for i, s in enumerate(seconds)})
