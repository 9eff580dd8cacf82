"""What ``python -m dsparkref evaluate --speed`` does: load, time, print."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from dsparkref.analysis.speed import (
    HUGGING_FACE,
    ONE_TOKEN,
    Timing,
    measure_speed,
    peak_memory,
)
from dsparkref.lab.options import check_file, write_numbers
from dsparkref.lab.prompts import evaluation_prompts, ids_of
from dsparkref.lab.sources import open_drafters, open_target
from dsparkref.lab.tables import make_table, number, percent
from dsparkref.shapes import dtype_name

SPEED_NOTE = (
    "A speed-up on so small a model is real but of its own kind: each forward pass is "
    "bound by overhead, not by reading weights as on a GPU with a large model."
)


def run_speed(
    console: Console,
    *,
    target_source: str = "tiny",
    drafter_names: Sequence[str] | None = None,
    prompts_per_domain: int = 8,
    rounds: int = 5,
    max_new_tokens: int = 128,
    json_file: Path | None = None,
) -> dict[str, Timing]:
    """Time every drafter beside Hugging Face and the one-token loop, greedily."""
    check_file("json", json_file)
    target = open_target(target_source)
    drafters, _ = open_drafters(target, drafter_names)
    prompts = ids_of(evaluation_prompts(target, prompts_per_domain))
    with console.status("") as status:
        timings = measure_speed(
            target,
            drafters,
            prompts,
            rounds=rounds,
            max_new_tokens=max_new_tokens,
            progress=status.update,
        )
    where = f"{target.device}, {dtype_name(target.dtype)}"
    threads = f"{torch.get_num_threads()} threads"
    title = f"{len(prompts)} prompts, greedy, median of {rounds} rounds ({where}, "
    show_speed(console, timings, f"{title}{threads})", len(prompts))
    rows = {name: asdict(timing) for name, timing in timings.items()}
    write_numbers(console, json_file, rows)
    return timings


def show_speed(
    console: Console, timings: Mapping[str, Timing], title: str, num_prompts: int
) -> None:
    """Print how fast, then where a cycle's time goes."""
    slow, plain = timings[HUGGING_FACE], timings[ONE_TOKEN]
    rows = [
        [
            name,
            f"{timing.tokens_per_second:.0f}",
            times(timing.over(slow)),
            times(timing.over(plain)),
            number(timing.accepted_length),
            f"{timing.equal}/{num_prompts}",
        ]
        for name, timing in timings.items()
    ]
    title += "; per cycle: tokens; same: replies equal to HF's"
    columns = ["", "tokens/s", "over HF", "over 1-token", "per cycle", "same"]
    console.print(make_table(title, columns, rows))
    cycles = {name: timing for name, timing in timings.items() if timing.cycle_times}
    columns = ["ms per cycle", "draft", "its head", "per draft", "verify", "rest", "+"]
    rows = [
        [
            name,
            *(f"{1e3 * timing.part(part):.2f}" for part in ("draft", "head")),
            f"{1e3 * timing.part('head') / timing.block_size:.3f}",
            *(f"{1e3 * timing.part(part):.2f}" for part in ("verify", "rest")),
            percent(timing.part("overhead")),
        ]
        for name, timing in cycles.items()
    ]
    title = "where a cycle's time goes; +: the rest over draft and verify"
    console.print(make_table(title, columns, rows))
    memory = peak_memory()
    if memory is not None:
        console.print(f"most memory held: {memory / 2**20:.0f} MiB")
    console.print(Text(SPEED_NOTE, style="italic"))


def times(ratio: float) -> str:
    """Return a speed ratio in words that hide nothing.

    >>> times(2.5), times(0.8)
    ('2.50x', '0.80x slower')
    """
    return f"{ratio:.2f}x" + (" slower" if ratio < 1 else "")
