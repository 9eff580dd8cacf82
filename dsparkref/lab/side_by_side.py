"""All drafters of one target on the three domains, and the pair that needs a GPU.

The same functions serve the tiny pair and Qwen3-4B with its released drafters. The
latter are used where a GPU and whole copies of the weights are on this machine, and
never fetched for a notebook's sake.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dsparkref.analysis.evaluate import EvalPrompt, Evaluation, evaluate_drafter
from dsparkref.analysis.metrics import bootstrap_interval
from dsparkref.analysis.report import gains, with_all
from dsparkref.checkpoints.hub import held_copy
from dsparkref.checkpoints.io import QWEN3_4B, QWEN3_4B_DRAFTERS
from dsparkref.checkpoints.targets import load_target
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.lab.course import drafters_here
from dsparkref.train.corpus import DOMAINS


@dataclass(frozen=True)
class Gain:
    """How much longer a drafter's cycles are than another's, over all domains."""

    # the name of the other: a dflash of the same block size
    over: str
    # fraction of tokens per cycle, and its 95 % interval over prompts
    gain: float
    low: float
    high: float


# drafter -> domain, or "all" -> its decoding
Decoded = dict[str, dict[str, Evaluation]]
RESAMPLES = 400


def decode_domains(
    target: Target,
    drafters: Mapping[str, Drafter],
    examples: Sequence[EvalPrompt],
    *,
    max_new_tokens: int = 48,
) -> Decoded:
    """Decode the prompts with every drafter at temperature 1, domain by domain.

    ``examples`` are of math, code and chat in turn, as ``evaluation_examples`` gives
    them. Every drafter begins with the same seed.
    """
    found: Decoded = {}
    for name, drafter in drafters.items():
        by_domain = {}
        for number, domain in enumerate(DOMAINS):
            prompts = [example.prompt for example in examples[number :: len(DOMAINS)]]
            by_domain[domain] = evaluate_drafter(
                target, drafter, prompts, max_new_tokens=max_new_tokens, generator=0
            )
        found[name] = with_all(by_domain)
    return found


def length_interval(evaluation: Evaluation) -> tuple[float, float]:
    """Return the 95 % interval of tokens per cycle, prompts drawn anew."""
    count = len(evaluation.replies)
    generator = torch.Generator().manual_seed(0)
    return bootstrap_interval(
        evaluation.mean_length, count, generator=generator, resamples=RESAMPLES
    )


def lengths(decoded: Decoded, domain: str) -> dict[str, float]:
    """Return each drafter's tokens per cycle on one domain; NaN without cycles."""
    return {
        name: found[domain].accepted_length or math.nan
        for name, found in decoded.items()
    }


def gains_over_dflash(
    drafters: Mapping[str, Drafter], decoded: Decoded
) -> dict[str, Gain]:
    """Return what each head adds to dflash's tokens per cycle.

    Empty where no dflash of the same block size is among the drafters.
    """
    return {
        name: Gain(over=found["over"], **found["all"])
        for name, found in gains(drafters, decoded).items()
    }


def qwen3_4b_here() -> tuple[Target, dict[str, Drafter]] | None:
    """Load Qwen3-4B and its released drafters where nothing has to be fetched.

    Where the GPU or the weights are not here, one line says so and None comes back.
    """
    missing = _missing()
    if missing:
        print(f"Skipped: {missing}.")
        return None
    target = load_target(QWEN3_4B)
    return target, drafters_here(target, QWEN3_4B_DRAFTERS)


def _missing() -> str:
    """Say in a few words what Qwen3-4B lacks here; nothing: an empty text."""
    if not torch.cuda.is_available():
        return "there is no GPU here"
    if held_copy(QWEN3_4B) is None:
        return f"{QWEN3_4B} is not on this machine"
    if not any(held_copy(source) for source in QWEN3_4B_DRAFTERS.values()):
        return f"none of {QWEN3_4B}'s released drafters is on this machine"
    return ""
