"""Laws by adding up, not by sampling: of a block, of a whole run.

`analysis/exact.py` integrates over a verifier's uniforms; `every_run` walks through
all the ways in which a run's choices can go. No number here is drawn, so that 1e-12
is a fair demand.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dsparkref.analysis.exact import Verifier, emitted_law, joint_law
from dsparkref.records import Verdict

TOLERANCE = 1e-12

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


def block_law(
    verifier: Verifier,
    block: Block,
    verify_len: Callable[[Sequence[int]], int] | None = None,
    faulty: bool = False,
) -> tuple[Tensor, Tensor]:
    """The exact law of K + 1 emitted tokens, and of num_accepted."""
    return emitted_law(
        watched(verifier),
        block.target,
        block.draft,
        told=block.told,
        verify_len=verify_len,
        faulty=faulty,
    )


def watched(verifier: Verifier) -> Verifier:
    """The same verifier; it fails where it emits a token that has no probability.

    An exact law cannot show this: where a number must be exactly 0 the volume is 0.
    """

    def verdicts(tokens, p_draft, p_target, uniforms, **options) -> Verdict:
        verdict = verifier(tokens, p_draft, p_target, uniforms, **options)
        kept = verdict.num_accepted[:, None]  # [cells, 1]
        place = torch.arange(p_target.shape[1])
        emitted = torch.nn.functional.pad(tokens, (0, 1))
        emitted = torch.where(place == kept, verdict.next_token[:, None], emitted)
        chances = p_target.gather(2, emitted[..., None])[..., 0]
        assert (chances[place <= kept] > 0).all(), "emitted a token of probability 0"
        return verdict

    return verdicts


def check_lossless(verifier: Verifier, block: Block, **options: Any) -> None:
    """Fail unless the emitted tokens have the target's law."""
    law, accepted = block_law(verifier, block, **options)
    assert abs(accepted.sum().item() - 1) < TOLERANCE, "outcomes do not sum to 1"
    off = (law - joint_law(block.target)).abs().max().item()
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
