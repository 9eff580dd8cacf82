"""What ``python -m dsparkref evaluate`` does: load, measure, print, write."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dsparkref.analysis.report import ALL, Report, evaluation_report
from dsparkref.lab.figures import FIGURES, suffix_decay_figure
from dsparkref.lab.options import (
    check_file,
    check_sampling,
    write_figure,
    write_numbers,
)
from dsparkref.lab.prompts import evaluation_prompts
from dsparkref.lab.sources import is_tiny, open_drafters, open_target
from dsparkref.lab.tables import report_tables
from dsparkref.shapes import problem
from dsparkref.train.corpus import answer_is_right, memory_positions


def run_evaluation(
    console: Console,
    *,
    target_source: str = "tiny",
    drafter_names: Sequence[str] | None = None,
    num_prompts: int = 100,
    temperature: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 128,
    json_file: Path | None = None,
    figure_file: Path | None = None,
) -> Report:
    """Evaluate a target with its drafters; None takes all that tiny has.

    What is claimed of the shipped tiny pair is held against no other.
    """
    check_file("json", json_file)
    check_file("figure", figure_file, FIGURES)
    check_sampling(temperature, seed)
    target = open_target(target_source)
    drafters, all_tiny = open_drafters(target, drafter_names)
    prompts = evaluation_prompts(target, num_prompts)
    with console.status("") as status:  # silent where the output is no terminal
        report = evaluation_report(
            target,
            drafters,
            prompts,
            answer_is_right=answer_is_right,
            memory_positions=memory_positions,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            shipped=all_tiny and is_tiny(target_source),
            progress=status.update,
        )
    for table in report_tables(report):
        console.print(table)
    write_numbers(console, json_file, report)
    if figure_file is not None:
        write_figure(console, figure_file, decay_figure(report))
    return report


def decay_figure(report: Report) -> Any:
    """Return the suffix-decay figure of the drafters with the shortest block."""
    curves = {
        name: found[ALL]["conditional_acceptance"]
        for name, found in report["decoding"].items()
        if "conditional_acceptance" in found[ALL]
    }
    if not curves:
        rule, expected = "show curves", "a drafter with cycles"
        raise problem("figure", rule, expected, "none", "Allow more new tokens.")
    size = min(map(len, curves.values()))
    shown = {
        name: [math.nan if share is None else share for share in curve]
        for name, curve in curves.items()
        if len(curve) == size
    }
    prompts = sum(report["settings"]["prompts_per_domain"].values())
    temperature = report["settings"]["temperature"]
    whose = "tiny pair, " if report["settings"]["shipped_pair"] else ""
    note = (
        f"{whose}{prompts} prompts of math, code and chat, real decoding at "
        f"temperature {temperature:g}"
    )
    return suffix_decay_figure(shown, note=note)
