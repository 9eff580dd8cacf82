"""Is speculation lossless for a pair of one's own? Decode, and look closely.

The answer is the gravest of what was found: "fail"; "inconclusive", where no draft was
kept, so that next to nothing could go wrong; "tie", where greedy replies part at logits
that lie within rounding; or "pass".
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsparkref.analysis.replay import (
    Evidence,
    replay_greedy,
    replay_sampled,
    standard_score,
)
from dsparkref.analysis.rounding import Rounding
from dsparkref.decode.loop import decode_cycles
from dsparkref.decode.request import Prompt, check_prompt
from dsparkref.decode.target import Target
from dsparkref.records import CycleTrace
from dsparkref.shapes import check_range, problem
from dsparkref.verify.policies import Policy
from dsparkref.verify.sampling import as_generator

# gravest first
ANSWERS = ("fail", "inconclusive", "tie", "pass")
# Standard deviations: honest draws go past it once in two million checks.
SURPRISE = 5.0
# How far the same law may lie apart in two passes, as half the L1 distance.
LAW_DISTANCE, HALF_PRECISION_LAW_DISTANCE = 1e-3, 0.1


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    # what was looked at
    name: str
    # one of ANSWERS
    answer: str
    # what was seen, in words and numbers
    detail: str


@dataclass(frozen=True)
class LosslessReport:
    """All that was found."""

    findings: tuple[Finding, ...]
    # block passes beside one-token passes, over the greedy replies
    rounding: Rounding

    @property
    def answer(self) -> str:
        """The gravest answer of all findings."""
        return min((found.answer for found in self.findings), key=ANSWERS.index)


def check_lossless(
    target: Target,
    drafter: Any,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    policy: Policy | None = None,
    verifier: str = "rejection",
    generator: torch.Generator | int | None = 0,
    decode: Callable[..., Iterable[CycleTrace]] = decode_cycles,
    progress: Callable[[str], None] = lambda text: None,
) -> LosslessReport:
    """Decode every prompt greedily and by sampling, and go through all of it again.

    Args:
        target, drafter, policy, verifier: as for ``generate``.
        prompts: each a list of ids, at least one; a few dozen give a sharp answer.
        max_new_tokens: cap per reply, >= 2: the first token belongs to no cycle.
        temperature: of the sampled replies, > 0.
        generator: of the sampled replies.
        decode: the loop under test; it is given what ``decode_cycles`` takes.
        progress: told what is being checked.

    Returns:
        LosslessReport; its ``answer`` is one of ANSWERS.

    Raises:
        TypeError, ValueError: what decoding refuses; no prompts.

    Differs: released evaluators compare greedy text alone, or nothing.
    """
    if not prompts:
        raise problem("prompts", "not be empty", "at least one prompt", "none")
    check_range("max_new_tokens", max_new_tokens, 2, integer=True)
    check_range("temperature", temperature, 0.0, open_low=True)
    seen, stream = Evidence(), as_generator(generator)
    options = {"max_new_tokens": max_new_tokens, "policy": policy, "verifier": verifier}
    sampling = {"temperature": temperature, "generator": stream, "keep_tensors": True}
    for number, prompt in enumerate(prompts):
        progress(f"prompt {number + 1} of {len(prompts)}")
        name = f"prompts[{number}]"
        ids = check_prompt(prompt, target.vocab_size, name)
        cycles = list(decode(target, drafter, ids, temperature=0.0, **options))
        replay_greedy(
            seen, target, ids, cycles, max_new_tokens=max_new_tokens, name=name
        )
        cycles = list(decode(target, drafter, ids, **sampling, **options))
        replay_sampled(
            seen, target, ids, cycles, temperature=temperature, verifier=verifier
        )
    limit = LAW_DISTANCE
    if torch.finfo(target.dtype).bits < 32:
        # logits that are d off move a law by d / 2 at most, at temperature 1
        moved = seen.rounding.difference / temperature
        limit = max(HALF_PRECISION_LAW_DISTANCE, moved)
    return LosslessReport(_findings(seen, len(prompts), limit, verifier), seen.rounding)


def _findings(
    seen: Evidence, prompts: int, limit: float, verifier: str
) -> tuple[Finding, ...]:
    """Judge what was gathered."""
    drafted = f"{seen.verified} verified and {seen.accepted} kept"
    drafted += f" in {seen.cycles} cycles"
    drafting = Finding("drafts", "pass" if seen.accepted else "inconclusive", drafted)
    apart = (
        f"at most {seen.law_distance:.1e} from an uncached pass's (limit {limit:.1g})"
    )
    laws = "pass" if seen.law_distance <= limit else "fail"
    right = seen.verdicts - len(seen.wrong_verdicts)
    again = f"{right} of {seen.verdicts} come out again"
    found = [
        drafting,
        _greedy(seen, prompts),
        Finding("the target's laws", laws, apart),
        _unless(seen.wrong_verdicts, "verdicts", again),
    ]
    if verifier == "rejection":  # token match does not ask where drafts come from
        found.append(_draws("the drafts' laws", seen.drafts))
    return (*found, _draws("sampled replies", seen.replies))


def _greedy(seen: Evidence, prompts: int) -> Finding:
    """Judge the greedy replies."""
    name, detail = (
        "greedy replies",
        f"{seen.equal} of {prompts} are the one-token loop's",
    )
    if seen.parted and not seen.wrong:
        return Finding(name, "tie", f"{detail}; {seen.parted[0]}")
    return _unless(seen.wrong, name, detail)


def _unless(wrong: Sequence[str], name: str, detail: str) -> Finding:
    """Return a pass, or a fail that tells the first thing wrong."""
    if wrong:
        return Finding(name, "fail", f"{detail}; {wrong[0]}")
    return Finding(name, "pass", detail)


def _draws(name: str, sums: Tensor) -> Finding:
    """Judge whether tokens look drawn from the laws that were told."""
    score = standard_score(sums)
    if score is None:
        return Finding(name, "pass", "they left no choice")
    detail = f"draws lie {score:+.1f} standard deviations off (limit {SURPRISE:g})"
    return Finding(name, "pass" if abs(score) <= SURPRISE else "fail", detail)
