"""Go through decoded replies again: every token, every law, every verdict.

Greedy text has one right answer, so each token is held against an uncached pass of the
target over the text before it. Sampled text has none, but whatever a cycle decided can
be decided again from the numbers it used, and whether tokens look drawn from the laws
that were told is a matter of counting.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.analysis.rounding import Rounding, compare_passes, tie_width
from dsparkref.decode.loop import autoregressive
from dsparkref.decode.request import as_row
from dsparkref.decode.target import Target
from dsparkref.records import CycleTrace
from dsparkref.shapes import problem
from dsparkref.verify.rejection import token_match_block, verify_block
from dsparkref.verify.sampling import probabilities

RULES = {"rejection": verify_block, "token_match": token_match_block}


def _nothing() -> Tensor:
    return torch.zeros(2, dtype=torch.float64)


@dataclass
class Evidence:
    """What is gathered, reply by reply."""

    cycles: int = 0
    # drafts handed to the target, and those of them that stand in a reply
    verified: int = 0
    accepted: int = 0
    # greedy replies that are the one-token loop's
    equal: int = 0
    # those that part from it within rounding, and what is wrong with others
    parted: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    # half the L1 distance of a law in the loop to an uncached pass's, the largest
    law_distance: float = 0.0
    # cycles whose verdict was looked at, and what is wrong with some
    verdicts: int = 0
    wrong_verdicts: list[str] = field(default_factory=list)
    # sums of `deviation`
    drafts: Tensor = field(default_factory=_nothing)
    replies: Tensor = field(default_factory=_nothing)
    rounding: Rounding = field(default_factory=Rounding)

    def take(self, cycles: Sequence[CycleTrace]) -> list[int]:
        """Count what was drafted; return the reply, its first token included."""
        self.cycles += len(cycles)
        self.verified += sum(cycle.verify_len for cycle in cycles)
        self.accepted += sum(cycle.num_accepted for cycle in cycles)
        first = [cycles[0].anchor] if cycles else []
        return first + [token for cycle in cycles for token in cycle.emitted]


@torch.no_grad()
def replay_greedy(
    seen: Evidence,
    target: Target,
    prompt: Sequence[int],
    cycles: Sequence[CycleTrace],
    *,
    max_new_tokens: int,
    name: str,
) -> None:
    """Hold a greedy reply against uncached logits, and against the one-token loop."""
    reply = seen.take(cycles)
    expected = autoregressive(target, prompt, max_new_tokens=max_new_tokens).tokens
    if not cycles:  # over after its first token: so it must be for the one-token loop
        reply = expected[:1]
    rounding = compare_passes(
        target, prompt, reply, 1 + (cycles[0].verify_len if cycles else 0)
    )
    seen.rounding += rounding
    logits = uncached_logits(target, prompt, reply)
    gaps = logits.amax(-1) - logits.gather(-1, torch.tensor(reply)[:, None])[:, 0]
    for place, gap in enumerate(gaps.tolist()):
        best = int(logits[place].argmax())
        top = logits[place, best].item()
        width = tie_width(top, target.dtype, rounding.difference)
        if gap > width:
            where = f"{name}, token {place}: {reply[place]} lies {gap:.3g} below {best}"
            seen.wrong.append(f"{where}, and a tie ends at {width:.3g}")
            return
    together = min(len(reply), len(expected))
    if reply == expected:
        seen.equal += 1
    elif reply[:together] == expected[:together]:
        seen.wrong.append(f"{name}: {len(reply)} tokens, {len(expected)} expected")
    else:
        place = next(i for i in range(together) if reply[i] != expected[i])
        said = f"{reply[place]} for {expected[place]}, {gaps[place].item():.3g} below"
        seen.parted.append(f"{name}, token {place}: {said}")


@torch.no_grad()
def replay_sampled(
    seen: Evidence,
    target: Target,
    prompt: Sequence[int],
    cycles: Sequence[CycleTrace],
    *,
    temperature: float,
    verifier: str,
) -> None:
    """Look at the laws, the verdicts and the draws of a sampled reply."""
    reply = seen.take(cycles)
    if not cycles:
        return
    laws = probabilities(uncached_logits(target, prompt, reply), temperature)
    seen.replies += deviation(laws, torch.tensor(reply))
    place = 1  # of the cycle's first token in the reply
    for cycle in cycles:
        p_draft, p_target = _kept(cycle.p_draft), _kept(cycle.p_target)
        own = laws[place : place + len(cycle.emitted)]  # [n, V]
        apart = (own - p_target[: len(own)].cpu()).abs().sum(-1) / 2  # [n]
        seen.law_distance = max(seen.law_distance, *apart.tolist(), 0.0)
        place += len(own)
        seen.drafts += deviation(p_draft, torch.tensor(cycle.drafts))
        expected = verdict_again(cycle, verifier)
        seen.verdicts += 1
        if cycle.next_token is None:  # cut off by a stop token or the cap
            expected = expected[: len(cycle.emitted)]
        if cycle.emitted != expected:
            where = f"after {cycle.context_len + 1} tokens"
            seen.wrong_verdicts.append(f"{where}: {cycle.emitted} for {expected}")


def verdict_again(cycle: CycleTrace, verifier: str) -> list[int]:
    """Return the ids that a cycle's own numbers lead to."""
    again = RULES[verifier](
        torch.tensor([cycle.drafts[: cycle.verify_len]], dtype=torch.long),
        _kept(cycle.p_draft).cpu()[None, : cycle.verify_len],
        _kept(cycle.p_target).cpu()[None],
        _kept(cycle.uniforms).cpu()[None],
    )
    return [*cycle.drafts[: int(again.num_accepted)], int(again.next_token)]


def deviation(
    laws: Float[Tensor, "n V"], drawn: Int[Tensor, " n"]
) -> Float[Tensor, "2"]:
    """Return how far log p of what was drawn lies from its mean, and the variance.

    Summed over n draws. Where tokens come from their laws, the first over the root of
    the second is about standard normal; an argmax told as a sample lies far above.

    >>> law = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    >>> [round(x, 4) for x in deviation(law, torch.tensor([0, 0])).tolist()]
    [0.2197, 0.4345]
    """
    laws = laws.detach().cpu().double()
    logs = laws.log()
    own = logs.gather(-1, drawn[:, None])[:, 0]
    first = torch.where(laws > 0, laws * logs, 0.0).sum(-1)
    second = torch.where(laws > 0, laws * logs.square(), 0.0).sum(-1)
    spread = (second - first.square()).clamp(min=0)
    return torch.stack([(own - first).sum(), spread.sum()])


def standard_score(sums: Float[Tensor, "2"]) -> float | None:
    """Return a sum of deviations in standard deviations; None: there was no choice."""
    total, variance = sums.tolist()
    if variance < 1e-9:
        return None if abs(total) < 1e-6 else math.copysign(math.inf, total)
    return total / math.sqrt(variance)


def uncached_logits(
    target: Target, prompt: Sequence[int], reply: Sequence[int]
) -> Float[Tensor, "n V"]:
    """Return the logits before each token of a reply, from one pass without a cache."""
    ids = as_row([*prompt, *reply], target.device)
    logits = target.forward(ids, last_logits=len(reply) + 1).logits
    return logits[0, :-1].float().cpu()


def _kept(table: Tensor | None) -> Tensor:
    """Return a table of a trace, which must have been kept."""
    if table is None:
        rule, expected = "keep what a cycle used", "traces with their tables"
        raise problem("decode", rule, expected, "none")
    return table
