"""The evaluation of a target and its drafters, as one plain record for JSON.

It holds what the tiny pair has to show: a competent target, acceptance that falls
along the block without a head and is repaired by one, the more so on chat, and heads
with memory ahead where the token two back decides. ``goals`` states these as numbers.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch

from dsparkref.analysis.evaluate import (
    Checker,
    EvalPrompt,
    Evaluation,
    evaluate_drafter,
    evaluate_target,
)
from dsparkref.analysis.memory import at_memory_positions
from dsparkref.analysis.metrics import bootstrap_interval
from dsparkref.decode.target import PROMPT_STYLE, Target

Report = dict[str, Any]
Prompts = Mapping[str, Sequence[EvalPrompt]]
ALL = "all"
COMPARISONS = {"at least": operator.ge, "at most": operator.le, "above": operator.gt}


def evaluation_report(
    target: Target,
    drafters: Mapping[str, Any],
    prompts: Prompts,
    *,
    answer_is_right: Checker,
    memory_positions: Callable[[str, Any], list[int]],
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    seed: int = 0,
    shipped: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> Report:
    """Decode all prompts with all drafters and return every number of it.

    Args:
        target: the target of all ``drafters``, which are given by name.
        prompts: domain -> its evaluation prompts.
        answer_is_right, memory_positions: the corpus's own.
        shipped: whether this is the tiny pair, of which ``goals`` are claimed.
        progress: called with a few words before each step.
    """
    report: Report = {
        "settings": {
            "prompts_per_domain": {name: len(found) for name, found in prompts.items()},
            "prompt_style": PROMPT_STYLE,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "seed": seed,
            "shipped_pair": shipped,
        },
        "target": {},
        "decoding": {},
    }
    for domain, found in prompts.items():
        progress(f"target on {domain}, greedy")
        quality = evaluate_target(
            target, domain, found, answer_is_right, max_new_tokens=max_new_tokens
        )
        report["target"][domain] = asdict(quality)

    evaluations = {}
    for name, drafter in {"autoregressive": None, **drafters}.items():
        by_domain = {}
        for domain, found in prompts.items():
            progress(f"{name} on {domain}")
            by_domain[domain] = evaluate_drafter(
                target,
                drafter,
                [example.prompt for example in found],
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                generator=seed,
            )
        evaluations[name] = with_all(by_domain)
        report["decoding"][name] = {
            domain: evaluation.summary()
            for domain, evaluation in evaluations[name].items()
        }
    report["gains"] = gains(drafters, evaluations, seed=seed)
    progress("places that need memory")
    report["memory"] = memory_report(target, drafters, prompts, memory_positions)
    report["goals"] = goals(report) if shipped else []
    return report


def with_all(by_domain: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """Return the evaluations by domain and, under "all", their sum."""
    first, *others = by_domain.values()
    return {**by_domain, ALL: sum(others, start=first)}


def gains(
    drafters: Mapping[str, Any],
    evaluations: Mapping[str, Mapping[str, Evaluation]],
    *,
    seed: int = 0,
) -> Report:
    """Return how much longer each drafter's accepted length is than dflash's.

    The dflash of the same block size is the reference. ``gain`` is a fraction (0.2:
    20 % longer), ``low`` and ``high`` its 95 % bootstrap interval over prompts.
    """
    found: Report = {}
    references = {
        drafter.block_size: name
        for name, drafter in drafters.items()
        if drafter.head_type == "dflash"
    }
    for name, drafter in drafters.items():
        reference = references.get(drafter.block_size)
        if reference is None or reference == name:
            continue
        found[name] = {"over": reference}
        for domain, ours in evaluations[name].items():
            theirs = evaluations[reference][domain]
            if ours.cycles and theirs.cycles:
                found[name][domain] = _gain(ours, theirs, seed)
    return found


def _gain(ours: Evaluation, theirs: Evaluation, seed: int) -> dict[str, float]:
    def gain(prompts: torch.Tensor) -> float:
        return ours.mean_length(prompts) / theirs.mean_length(prompts) - 1

    count = len(ours.replies)
    generator = torch.Generator().manual_seed(seed)
    low, high = bootstrap_interval(gain, count, generator=generator, resamples=400)
    return {"gain": gain(torch.arange(count)), "low": low, "high": high}


def memory_report(
    target: Target,
    drafters: Mapping[str, Any],
    prompts: Prompts,
    memory_positions: Callable[[str, Any], list[int]],
) -> Report:
    """Return acceptance where the token two back decides, and name those places.

    ``places`` groups them by what they say, the commonest first, with each drafter's
    mean 1 - TV; ``each`` lists every one. Empty where the texts have none.
    """
    examples = [example for found in prompts.values() for example in found]
    positions = [
        memory_positions(example.text, target.tokenizer) for example in examples
    ]
    if not any(positions):
        return {}
    totals: Report = {}
    groups: Any = defaultdict(lambda: defaultdict(list))
    each: dict[tuple[int, int], Report] = {}
    for name, drafter in drafters.items():
        found = at_memory_positions(target, drafter, examples, positions)
        totals[name] = {"at_places": found.at_places, "elsewhere": found.elsewhere}
        for place in found.places:
            groups[place.before, place.token][name].append(place.accept_rate)
            row = each.setdefault((place.text, place.position), asdict(place))
            row.setdefault("accept_rates", {})[name] = row.pop(
                "accept_rate", place.accept_rate
            )
    counts = {key: max(map(len, rates.values())) for key, rates in groups.items()}
    places = [
        {
            "before": before,
            "token": token,
            "count": counts[before, token],
            "accept_rate": {
                name: fmean(rates) for name, rates in groups[before, token].items()
            },
        }
        for before, token in sorted(counts, key=lambda key: (-counts[key], key))
    ]
    return {"drafters": totals, "places": places, "each": list(each.values())}


def chat_shortfall(by_domain: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return how far the accepted length on chat is below the nearer of the others.

    None where one of the three domains has no accepted length.

    >>> chat_shortfall({
    ...     "math": {"accepted_length": 6.0}, "code": {"accepted_length": 4.0},
    ...     "chat": {"accepted_length": 3.0},
    ... })
    0.25
    """
    math, code, chat = (
        by_domain.get(name, {}).get("accepted_length")
        for name in ("math", "code", "chat")
    )
    if math is None or code is None or chat is None:
        return None
    return 1 - chat / min(math, code)


def decay(summary: Mapping[str, Any]) -> float | None:
    """Return the last conditional acceptance over the first; None where unknown."""
    first, *_, last = summary["conditional_acceptance"]
    return last / first if first and last is not None else None


def goals(report: Report) -> list[Report]:
    """Return what the tiny pair promises: claim, value, bound, whether it is met.

    Only claims whose numbers are in the report appear.
    """
    rows: list[Report] = []

    def claim(
        text: str, value: float | None, bound: float, kind: str = "at least"
    ) -> None:
        if value is not None:
            met = bool(COMPARISONS[kind](value, bound))
            row = {"claim": text, "value": value, "kind": kind, "bound": bound}
            rows.append(row | {"met": met})

    for domain, quality in report["target"].items():
        claim(f"target: greedy {domain} replies right", quality["accuracy"], 0.95)
    for name, found in report["decoding"].items():
        claim(f"{name}: chat below math and code", chat_shortfall(found), 0.25)
        if name == "dflash" and "conditional_acceptance" in found[ALL]:
            claim("dflash: last over first draft", decay(found[ALL]), 0.85, "at most")
    _claim_gains(report["gains"], claim)
    places = report["memory"].get("drafters", {})
    for name in ("rnn", "domino"):
        if {name, "markov"} <= places.keys():
            reference = places["markov"]["at_places"]
            value = places[name]["at_places"] - reference
            claim(f"{name} over markov where memory decides", value, 0.0, "above")
    return rows


def _claim_gains(found: Report, claim: Callable[..., None]) -> None:
    gain = {
        name: {domain: row["gain"] for domain, row in rows.items() if domain != "over"}
        for name, rows in found.items()
    }
    for name, by_domain in gain.items():
        if not name.endswith("-k15"):
            claim(f"{name}: gain over dflash, all", by_domain.get(ALL), 0.14)
            claim(f"{name}: gain over dflash, chat", by_domain.get("chat"), 0.30)
        elif bound := gain.get(name.removesuffix("-k15"), {}).get(ALL):
            text = f"{name}: gain larger than at K = 7"
            claim(text, by_domain.get(ALL), bound, "above")
