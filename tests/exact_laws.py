"""Laws by adding up, not by sampling: of a verdict, of a block, of a whole run.

A verifier is piecewise constant in its uniforms. `verdict_law` cuts [0, 1) at every
number where it can jump, asks the verifier itself inside each cell and weighs the
answer by the cell's volume. `every_run` walks through all the ways in which a run's
choices can go. No number here is drawn, so that 1e-12 is a fair demand.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dsparkref.records import Verdict
from dsparkref.verify.rejection import residual_distribution

TOLERANCE = 1e-12
Verifier = Callable[..., Verdict]

# what a caller may ask of `generate` and of `probabilities`
CUTS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "top_k": {"temperature": 1.0, "top_k": 2},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "all": {"temperature": 1.7, "top_k": 3, "top_p": 0.9},
    "greedy": {"temperature": 0.0},
}


def warped(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """The law of logits, made by transformers and not by the code under test."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    rows = logits.reshape(-1, logits.shape[-1])
    rows = TemperatureLogitsWarper(temperature)(None, rows)
    if top_k is not None:
        rows = TopKLogitsWarper(top_k)(None, rows)
    if top_p is not None:
        rows = TopPLogitsWarper(top_p)(None, rows)
    return rows.softmax(-1).view_as(logits)


# --- one verdict ---------------------------------------------------------------


def verdict_law(
    verifier: Verifier,
    path: Sequence[int],
    told: Tensor,
    p_target: Tensor,
    *,
    verify_len: int | None = None,
    faulty: bool = False,
) -> Tensor:
    """The chance of each (num_accepted, next_token), [K + 1, V].

    ``told`` [K, V] is the law the verifier is told the drafts come from. ``faulty``
    as in `jumps`. A token of probability 0 fails even in a cell of volume 0.
    """
    block, vocab = told.shape
    found = []
    for fraction in 0.25, 0.75:
        jump = jumps(path, told, p_target, faulty)
        points, widths = zip(*(cells(j, fraction) for j in jump), strict=True)
        uniforms = grid(points)  # [cells, K + 1]
        count = len(uniforms)
        verdict = verifier(
            torch.tensor(path, dtype=torch.long).expand(count, block),
            told.expand(count, block, vocab),
            p_target.expand(count, block + 1, vocab),
            uniforms,
            **({} if verify_len is None else {"verify_len": verify_len}),
        )
        found.append(verdict.num_accepted * vocab + verdict.next_token)
    if not torch.equal(*found):
        raise RuntimeError("the integrator misses a jump of this verifier")
    law = torch.zeros((block + 1) * vocab, dtype=torch.float64)
    law = law.index_add(0, found[0], grid(widths).prod(1)).view(block + 1, vocab)
    for outcome in found[0].unique().tolist():
        kept, token = divmod(outcome, vocab)
        emitted = torch.tensor([*path[:kept], token])[:, None]
        chances = p_target[: kept + 1].gather(1, emitted)
        assert (chances > 0).all(), f"emitted {emitted[:, 0].tolist()}: probability 0"
    return law


def jumps(
    path: Sequence[int], told: Tensor, p_target: Tensor, faulty: bool
) -> list[Tensor]:
    """For each uniform, the numbers where the verifier can change its mind.

    ``faulty`` adds the jumps of wrong verifiers: to the last uniform the laws they may
    draw from, to the others the coins of all positions and of the rows after.
    """
    block = len(path)
    index = torch.tensor(path, dtype=torch.long)[:, None]
    rows = p_target[:block]
    coins = (rows / told).gather(1, index)  # [K, 1]
    laws = [p_target, residual_distribution(rows, told)]
    if faulty:
        other = rows.scatter(1, index, 0.0)
        laws += [told, (rows - told).clamp(min=0), other / other.sum(1, keepdim=True)]
        after = (p_target[1:] / told).gather(1, index)
        coins = torch.cat([coins, after]).T.expand(block, -1)  # [K, 2K]
    own = p_target.cumsum(1)  # where the target's own sample changes
    firsts = [torch.cat([coins[k], own[k]]) for k in range(block)]
    return [*firsts, torch.cat(laws).cumsum(1).flatten()]


def cells(jump: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """A point in each cell and the cell's width; first the point 0, of width 0."""
    inside = jump[(jump > 1e-13) & (jump < 1 - 1e-13)].sort().values  # NaN drops out
    apart = torch.ones_like(inside, dtype=torch.bool)
    apart[1:] = inside.diff() > 1e-13
    edges = torch.cat([torch.zeros(1), inside[apart], torch.ones(1)])
    width = edges.diff()
    points = edges[:-1] + fraction * width
    return torch.cat([torch.zeros(1), points]), torch.cat([torch.zeros(1), width])


def grid(columns: Sequence[Tensor]) -> Tensor:
    """Every combination, one per row."""
    return torch.stack(torch.meshgrid(*columns, indexing="ij"), -1).flatten(0, -2)


# --- one block -----------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Conditional laws of a tiny vocabulary: table k is [V] * k + [V]."""

    # K + 1 tables
    target: list[Tensor]
    # K tables, the law the drafts are drawn from
    draft: list[Tensor]
    # K tables, what the verifier is told; an honest drafter tells its own law
    told: list[Tensor]


def along(tables: list[Tensor], path: Sequence[int], vocab: int) -> Tensor:
    """The laws along one path of drafts, [number of tables, V]."""
    laws = [table[tuple(path[:k])] for k, table in enumerate(tables)]
    return torch.stack(laws) if laws else torch.zeros(0, vocab, dtype=torch.float64)


def joint(tables: list[Tensor]) -> Tensor:
    """The law of a whole block, [V] * number of tables."""
    law = tables[0]
    for table in tables[1:]:
        law = law[..., None] * table
    return law


def emitted_law(
    verifier: Verifier,
    block: Block,
    verify_len: Callable[[Sequence[int]], int] | None = None,
    faulty: bool = False,
) -> tuple[Tensor, Tensor]:
    """The exact law of K + 1 emitted tokens, and of num_accepted.

    What a cycle emits is continued by the target to K + 1 tokens: what comes out
    must be the target's own law of them.
    """
    size, vocab = len(block.draft), len(block.target[0])
    shapes = [[vocab] * (n + 1) for n in range(size + 1)]
    mass = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    chances = joint(block.draft) if size else torch.ones((), dtype=torch.float64)
    for path in product(range(vocab), repeat=size):
        if chances[path] == 0:
            continue
        law = verdict_law(
            verifier,
            path,
            along(block.told, path, vocab),
            along(block.target, path, vocab),
            verify_len=None if verify_len is None else verify_len(path),
            faulty=faulty,
        )
        for n in range(size + 1):
            mass[n][path[:n]] += chances[path] * law[n]
    accepted = torch.stack([m.sum() for m in mass])
    for n in range(size):
        mass[n + 1] += mass[n][..., None] * block.target[n + 1]
    return mass[size], accepted


def check_lossless(verifier: Verifier, block: Block, **options: Any) -> None:
    """Fail unless the emitted tokens have the target's law."""
    law, accepted = emitted_law(verifier, block, **options)
    assert abs(accepted.sum().item() - 1) < TOLERANCE, "outcomes do not sum to 1"
    off = (law - joint(block.target)).abs().max().item()
    assert off < TOLERANCE, f"the emitted law is off by {off:.2e}"


# --- one run -------------------------------------------------------------------


class Choices:
    """The choices of one run: the first ones as scripted, then the first possible."""

    def __init__(self, script: Sequence[int]) -> None:
        self.taken, self.depth, self.chance = list(script), 0, 1.0
        self.siblings: list[tuple[int, ...]] = []

    def choose(self, law: Tensor) -> int:
        """Pick an outcome of ``law`` [V]; note down the others for later runs."""
        if self.depth == len(self.taken):
            first, *others = law.nonzero()[:, 0].tolist()
            self.siblings += [(*self.taken, other) for other in others]
            self.taken.append(first)
        choice = self.taken[self.depth]
        self.depth += 1
        self.chance *= law[choice].item()
        return choice


def every_run(run: Callable[[Choices], Any]) -> Iterator[tuple[Any, float]]:
    """Run once for each way the choices can go; yield what came out, and its chance."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        choices = Choices(scripts.pop())
        yield run(choices), choices.chance
        scripts += choices.siblings


def output_law(
    next_law: Callable[[list[int]], Tensor],
    prompt: list[int],
    max_new_tokens: int,
    stops: Sequence[int] = (),
) -> dict[tuple[int, ...], float]:
    """The law of a reply: one token after the other, up to a stop or the cap."""

    def run(choices: Choices) -> tuple[int, ...]:
        reply: list[int] = []
        while len(reply) < max_new_tokens and not {*reply[-1:]} & {*stops}:
            reply.append(choices.choose(next_law([*prompt, *reply])))
        return tuple(reply)

    return added_up(every_run(run))


def added_up(runs: Iterator[tuple[Any, float]]) -> dict[Any, float]:
    """Add the chances of equal outcomes."""
    law: dict[Any, float] = {}
    for outcome, chance in runs:
        law[outcome] = law.get(outcome, 0.0) + chance
    return law


def check_same_law(found: dict[Any, float], wanted: dict[Any, float]) -> None:
    """Fail unless two laws of replies are one."""
    assert abs(sum(found.values()) - 1) < TOLERANCE, "outcomes do not sum to 1"
    replies = found.keys() | wanted.keys()
    off = max(abs(found.get(x, 0.0) - wanted.get(x, 0.0)) for x in replies)
    assert off < TOLERANCE, f"the emitted law is off by {off:.2e}"
