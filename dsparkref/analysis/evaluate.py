"""Drafter x prompts -> numbers, from real decoding; and how good the target is.

An ``Evaluation`` keeps the replies themselves. Everything else about it (accepted
length, acceptance by position, tokens per second) is computed from these, so that
the sum of two evaluations, say of math and of code, is the evaluation of both.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.analysis import metrics
from dsparkref.decode.loop import autoregressive, generate
from dsparkref.decode.request import Prompt, as_row
from dsparkref.decode.target import Target
from dsparkref.records import CycleTrace, Generation
from dsparkref.shapes import check_range, problem
from dsparkref.verify.policies import Policy
from dsparkref.verify.sampling import as_generator

# (check, domain, reply) -> whether the reply is right
Checker = Callable[[dict[str, Any], str, str], bool]


@dataclass(frozen=True)
class EvalPrompt:
    """One line of an evaluation set, as ids."""

    # the user's message, as text
    message: str
    # the message as ids, the chat template around it
    prompt: list[int]
    # one good reply, the stop token at its end
    reply: list[int]
    # the reply as text
    text: str
    # what it takes to check an answer
    check: dict[str, Any]


@dataclass(frozen=True)
class TargetQuality:
    """How good the target is on one domain."""

    # share of the whole greedy replies that are right, in [0, 1]; None: none is whole
    accuracy: float | None
    # greedy replies cut off by the cap: their ends were not seen, nor are they judged
    cut: int
    # exp(nats per token) of held-out replies, >= 1
    perplexity: float


@dataclass(frozen=True)
class Evaluation:
    """The replies to some prompts, and the time they took.

    ``a + b`` is the evaluation of both prompt sets.
    """

    # drafts per cycle K; 0 for autoregressive decoding
    block_size: int
    # one per prompt, in order
    replies: tuple[Generation, ...]
    # wall-clock time of each reply, prefill included
    seconds: tuple[float, ...]

    def __add__(self, other: "Evaluation") -> "Evaluation":
        if other.block_size != self.block_size:
            rule = "have one block size to be added"
            raise problem("evaluations", rule, self.block_size, other.block_size)
        return Evaluation(
            self.block_size,
            self.replies + other.replies,
            self.seconds + other.seconds,
        )

    @property
    def cycles(self) -> list[CycleTrace]:
        """The cycles of all replies, in order."""
        return [cycle for reply in self.replies for cycle in reply.cycles]

    @property
    def num_tokens(self) -> int:
        """New tokens, the first one of each reply (from the prefill) included."""
        return sum(len(reply.tokens) for reply in self.replies)

    @property
    def accepted_length(self) -> float | None:
        """Tokens per cycle, bonus included; None for autoregressive decoding."""
        return metrics.accepted_length(self.cycles)

    @property
    def accepted_drafts(self) -> float | None:
        """Drafts kept per cycle, bonus not included."""
        return metrics.accepted_drafts(self.cycles)

    @property
    def conditional(self) -> Float[Tensor, " K"]:
        """Share of draft k kept among the cycles that came to it; k is 0-based."""
        counts = metrics.observations(self.cycles)
        return metrics.conditional_acceptance(*counts, self.block_size)

    @property
    def survival(self) -> Float[Tensor, " K"]:
        """Chance that drafts 0..k all stand, the product of the conditional ones.

        Not ``prefix_survival``: a reply that ends inside a block leaves its
        denominators just because it stood so long.
        """
        return self.conditional.cumprod(0)

    @property
    def tokens_per_second(self) -> float:
        """New tokens over wall-clock time, prefill included."""
        return self.num_tokens / sum(self.seconds)

    @cached_property
    def lengths(self) -> Int[Tensor, "n 2"]:
        """Tokens added by cycles, and cycles, of each reply."""
        cycles = [reply.cycles for reply in self.replies]
        emitted = [sum(len(cycle.emitted) for cycle in found) for found in cycles]
        return torch.tensor([emitted, list(map(len, cycles))]).T  # [n, 2]

    def mean_length(self, prompts: Int[Tensor, " m"]) -> float:
        """Return the accepted length over some of the replies, by index."""
        emitted, count = self.lengths[prompts].sum(dim=0).tolist()
        return emitted / count if count else math.nan

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values, ready for JSON."""
        cycles = self.cycles
        numbers = {
            "prompts": len(self.replies),
            "tokens": self.num_tokens,
            "cycles": len(cycles),
            "seconds": sum(self.seconds),
            "tokens_per_second": self.tokens_per_second,
        }
        if not cycles:
            return numbers
        return numbers | {
            "accepted_length": self.accepted_length,
            "accepted_drafts_per_cycle": self.accepted_drafts,
            "accepted_over_verified": metrics.draft_yield(cycles),
            "conditional_acceptance": _numbers(self.conditional),
            "prefix_survival": _numbers(self.survival),
            "draft_seconds": sum(cycle.draft_seconds for cycle in cycles),
            "verify_seconds": sum(cycle.verify_seconds for cycle in cycles),
        }


def read_prompts(path: Path, target: Target, count: int) -> list[EvalPrompt]:
    """Return the first ``count`` lines of an evaluation file, encoded.

    A line is a JSON object with ``prompt``, ``reply`` and ``check``.

    Raises:
        FileNotFoundError, ValueError: no such file, fewer lines than asked for, a line
            that is none.
    """
    if not path.is_file():
        expected = f"a file {path.name} in {path.parent}"
        name = "evaluation prompts"
        raise problem(name, "be there", expected, "none", "", FileNotFoundError)
    check_range("count", count, 1, integer=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) < count:
        rule, expected = "be in the file", f"at most {len(lines)} of {path.name}"
        raise problem("prompts", rule, expected, count)
    return [_read_prompt(path, n, line, target) for n, line in enumerate(lines[:count])]


def _read_prompt(path: Path, number: int, line: str, target: Target) -> EvalPrompt:
    try:
        row = json.loads(line)
        message, text, check = row["prompt"], row["reply"], row["check"]
    except (ValueError, KeyError, TypeError) as error:
        expected = "a JSON object with prompt, reply and check on each line"
        got = f"{path.name}, line {number + 1} ({error!r})"
        raise problem("evaluation prompts", "be readable", expected, got) from None
    prompt = target.encode(message)
    reply = target.tokenizer.encode(text, add_special_tokens=False)
    stop = target.stop_token_ids[:1]
    return EvalPrompt(message, prompt, reply + stop, text, check)


def evaluate_drafter(
    target: Target,
    drafter: Any | None,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    generator: torch.Generator | int | None = None,
    policy: Policy | None = None,
) -> Evaluation:
    """Decode every prompt, one after the other, and keep the replies.

    Args:
        target: as for ``generate``.
        drafter: as for ``generate``; None decodes autoregressively, which is what a
            speed-up is measured against.
        prompts: each a list of ids, at least one.
        max_new_tokens: cap per prompt.
        temperature: >= 0.
        generator: one random stream for all prompts; a seed, a generator or None.
        policy: None verifies all K drafts.

    Raises:
        TypeError, ValueError: what decoding refuses; no prompts.
    """
    if not prompts:
        raise problem("prompts", "not be empty", "at least one prompt", "none")
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "generator": as_generator(generator),
    }
    replies, seconds = [], []
    for prompt in prompts:
        start = time.perf_counter()
        if drafter is None:
            reply = autoregressive(target, prompt, **options)
        else:
            reply = generate(target, drafter, prompt, policy=policy, **options)
        replies.append(reply)
        seconds.append(time.perf_counter() - start)
    block_size = 0 if drafter is None else drafter.block_size
    return Evaluation(block_size, tuple(replies), tuple(seconds))


def evaluate_target(
    target: Target,
    domain: str,
    examples: Sequence[EvalPrompt],
    answer_is_right: Checker,
    *,
    max_new_tokens: int,
) -> TargetQuality:
    """Return how often greedy replies are right, and how well held-out ones fit.

    ``answer_is_right(check, domain, reply)`` decides; the corpus has one. A reply that
    ``max_new_tokens`` cuts off is counted, and not judged.
    """
    decoded = evaluate_drafter(
        target,
        None,
        [example.prompt for example in examples],
        max_new_tokens=max_new_tokens,
        temperature=0.0,
    )
    right = [
        answer_is_right(example.check, domain, target.decode(reply.tokens))
        for example, reply in zip(examples, decoded.replies, strict=True)
        if reply.finish_reason == "stop"
    ]
    accuracy = sum(right) / len(right) if right else None
    cut = len(examples) - len(right)
    return TargetQuality(accuracy, cut, perplexity(target, examples))


@torch.no_grad()
def perplexity(target: Target, examples: Sequence[EvalPrompt]) -> float:
    """Return exp of the mean negative log-likelihood of the replies' tokens.

    The mean is over tokens, in nats; the stop token at the end of a reply counts.
    """
    total, count = 0.0, 0
    for example in examples:
        reply = example.reply
        ids = as_row([*example.prompt, *reply], target.device)
        logits = target.forward(ids, last_logits=len(reply) + 1).logits[0, :-1]
        law = logits.float().log_softmax(dim=-1)  # [n, V]
        total -= law.gather(-1, ids[0, -len(reply) :, None]).sum().item()
        count += len(reply)
    return math.exp(total / count)


def _numbers(values: Tensor) -> list[float | None]:
    """Return a list in which NaN, which JSON does not know, is None."""
    return [None if math.isnan(value) else value for value in values.tolist()]
