"""The demo: every drafter on the tiny pair, in under a minute.

Speed is measured in rounds. In each round autoregressive decoding and all drafters
answer the same prompts one after the other, and the speed-up is the median over the
rounds: a machine that is busy for a second spoils one round, not the result.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from dsparkref.analysis.evaluate import (
    EvalPrompt,
    Evaluation,
    evaluate_drafter,
)
from dsparkref.checkpoints.io import load_drafter, load_target
from dsparkref.decode.loop import decode_cycles
from dsparkref.decode.target import Target
from dsparkref.draft.spec import HEADS
from dsparkref.lab.figures import FIGURES, suffix_decay_figure
from dsparkref.lab.options import check_file, check_sampling, write_figure
from dsparkref.lab.prompts import evaluation_prompts
from dsparkref.lab.speed import SPEED_NOTE
from dsparkref.lab.tables import make_table, number, position_table
from dsparkref.lab.terminal import show_cycles
from dsparkref.train.corpus import DOMAINS

BASELINE = "autoregressive"
MAX_NEW_TOKENS = 96
# No further round begins when so much time has gone by since the start.
TIME_LIMIT = 40.0


@dataclass
class Results:
    """The evaluations of one method, one per round, by domain."""

    rounds: list[dict[str, Evaluation]]

    def total(self, domain: str | None = None) -> Evaluation:
        """Return all rounds together, of one domain or of all."""
        parts = [
            evaluation
            for by_domain in self.rounds
            for name, evaluation in by_domain.items()
            if domain in (None, name)
        ]
        return sum(parts[1:], start=parts[0])

    def speeds(self) -> list[float]:
        """Return tokens per second, one number per round."""
        return [Results([found]).total().tokens_per_second for found in self.rounds]

    def speedup(self, baseline: "Results") -> float:
        """Return the median over rounds of speed over the baseline's speed."""
        pairs = zip(self.speeds(), baseline.speeds(), strict=True)
        return median(ours / theirs for ours, theirs in pairs)


def run_demo(
    console: Console,
    *,
    out: Path,
    rounds: int = 3,
    prompts_per_domain: int = 3,
    temperature: float = 1.0,
    seed: int = 0,
) -> None:
    """Decode, show one prompt cycle by cycle, print the tables, draw the figure."""
    check_file("out", out, FIGURES)
    check_sampling(temperature, seed)
    start = time.perf_counter()
    target = load_target("tiny")
    drafters = {head: load_drafter(f"tiny/{head}", target) for head in HEADS}
    prompts = evaluation_prompts(target, rounds * prompts_per_domain)
    show_one(console, target, drafters["markov"], prompts["chat"][0], temperature, seed)

    results: dict[str, Results] = {name: Results([]) for name in (BASELINE, *drafters)}
    _warm_up(target, drafters, prompts["math"][0])
    for turn in range(rounds):
        if turn and time.perf_counter() - start > TIME_LIMIT:
            console.print(f"(this machine is slow: {turn} of {rounds} rounds)")
            break
        chosen = slice(turn * prompts_per_domain, (turn + 1) * prompts_per_domain)
        part = {domain: found[chosen] for domain, found in prompts.items()}
        for name, found in results.items():
            drafter = drafters.get(name)
            found.rounds.append(
                one_round(target, drafter, part, temperature, seed + turn)
            )
    show_results(console, results)
    console.print(Text(SPEED_NOTE, style="italic"))
    draw(console, results, out, temperature)
    console.print(f"{time.perf_counter() - start:.0f} s in all")


def show_one(
    console: Console,
    target: Target,
    drafter: Any,
    prompt: EvalPrompt,
    temperature: float,
    seed: int,
) -> None:
    """Decode one prompt and print each cycle."""
    cycles = list(
        decode_cycles(
            target,
            drafter,
            prompt.prompt,
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=temperature,
            generator=seed,
        )
    )
    head = getattr(drafter, "head_type", "drafter")
    title = f"one prompt with the {head} drafter, temperature {temperature:g}"
    console.print(Text(title, style="bold"))
    console.print(Text(f"prompt: {prompt.message}"))
    show_cycles(console, target, cycles)
    ids = [cycles[0].anchor, *(t for c in cycles for t in c.emitted)] if cycles else []
    console.print(Text(f"reply: {target.decode(ids)}"), "")


def one_round(
    target: Target,
    drafter: Any,
    prompts: Mapping[str, Sequence[EvalPrompt]],
    temperature: float,
    seed: int,
) -> dict[str, Evaluation]:
    """Decode each domain's prompts; ``drafter`` None is autoregressive decoding."""
    return {
        domain: evaluate_drafter(
            target,
            drafter,
            [example.prompt for example in examples],
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=temperature,
            generator=seed,
        )
        for domain, examples in prompts.items()
    }


def show_results(console: Console, results: Mapping[str, Results]) -> None:
    """Print one table per drafter, and one that puts them side by side."""
    baseline = results[BASELINE]
    summary = []
    for name, found in results.items():
        total, speed = found.total(), median(found.speeds())
        times = found.speedup(baseline)
        lengths = [number(found.total(d).accepted_length) for d in DOMAINS]
        lengths.append(number(total.accepted_length))
        summary.append([name, *lengths, f"{speed:.0f}", f"{times:.2f}x"])
        if name == BASELINE:
            continue
        title = (
            f"{name}: {number(total.accepted_length)} tokens per cycle with the bonus ("
            f"{number(total.accepted_drafts)} drafts), {speed:.0f} tokens/s, "
            f"{times:.2f}x autoregressive"
        )
        rows = {
            "conditional acceptance": total.conditional.tolist(),
            "prefix survival": total.survival.tolist(),
        }
        console.print(position_table(title, rows))
    columns = ["accepted length", *DOMAINS, "all", "tokens/s", "speed-up"]
    title = (
        f"side by side: {len(baseline.total().replies)} prompts; "
        f"speed: median of {len(baseline.rounds)} rounds, warm-up excluded"
    )
    console.print(make_table(title, columns, summary))


def draw(
    console: Console, results: Mapping[str, Results], out: Path, temperature: float
) -> None:
    """Write the suffix-decay figure, or say why there is none."""
    totals = {name: found.total() for name, found in results.items()}
    del totals[BASELINE]
    curves = {name: found.conditional.tolist() for name, found in totals.items()}
    prompts = len(next(iter(totals.values())).replies)
    cycles = min(len(found.cycles) for found in totals.values())
    note = (
        f"tiny pair, {prompts} prompts of math, code and chat, temperature "
        f"{temperature:g}, at least {cycles} cycles per drafter"
    )
    try:
        figure = suffix_decay_figure(curves, note=note)
    except ModuleNotFoundError:
        console.print("No figure: matplotlib is missing (pip install matplotlib).")
        return
    write_figure(console, out, figure)


def _warm_up(target: Target, drafters: Mapping[str, Any], prompt: EvalPrompt) -> None:
    """Run each method once, unmeasured: first calls pay for memory and caches."""
    one = {"math": [prompt]}
    for drafter in (None, *drafters.values()):
        one_round(target, drafter, one, 1.0, seed=0)
