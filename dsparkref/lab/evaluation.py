"""What ``python -m dsparkref evaluate`` does: load, measure, print, write."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dsparkref.analysis.evaluate import read_prompts
from dsparkref.analysis.report import ALL, Report, evaluation_report
from dsparkref.checkpoints import files
from dsparkref.lab.figures import FIGURES, save_figure, suffix_decay_figure
from dsparkref.lab.sources import is_tiny, open_drafters, open_target
from dsparkref.lab.tables import report_tables
from dsparkref.shapes import check_range, problem
from dsparkref.train.corpus import DOMAINS, answer_is_right, memory_positions
from dsparkref.verify.sampling import check_settings


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
    folder = files.data_folder() / "eval"
    prompts = {
        domain: read_prompts(folder / f"{domain}.jsonl", target, num_prompts)
        for domain in DOMAINS
    }
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
    if json_file is not None:
        files.write_json(json_file, report)
        console.print(f"numbers: {json_file}", soft_wrap=True)
    if figure_file is not None:
        save_figure(decay_figure(report), figure_file)
        console.print(f"figure: {figure_file}", soft_wrap=True)
    return report


def check_sampling(
    temperature: float,
    seed: int,
    top_k: int | None = None,
    top_p: float | None = None,
) -> None:
    """Check what the decoding will ask for, before anything is loaded."""
    check_settings(temperature, top_k, top_p)
    check_range("seed", seed, 0, 2**64 - 1, integer=True)


def check_folder(name: str, path: Path | None) -> None:
    """Check that a file can be written later, before any work is done."""
    if path is not None and not path.absolute().parent.is_dir():
        expected, got = "an existing folder", path.parent
        raise problem(name, "lie in a folder", expected, got, "", FileNotFoundError)


def check_file(name: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Check the same of a file: that it is no folder, and of a kind we can write."""
    check_folder(name, path)
    if path is None:
        return
    if path.is_dir():
        rule, error = "be a file", IsADirectoryError
        raise problem(name, rule, "a file", f"folder {path}", "", error)
    if suffixes and path.suffix.lower() not in suffixes:
        expected, got = f"a name that ends in {' or '.join(suffixes)}", path.name
        raise problem(name, "be of a known kind", expected, got)


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
