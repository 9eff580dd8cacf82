"""What ``python -m dsparkref evaluate --lossless SOURCE`` does: load, check, print."""

from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from dsparkref.analysis.lossless import LosslessReport, check_lossless
from dsparkref.analysis.rounding import Rounding
from dsparkref.checkpoints import files
from dsparkref.checkpoints.io import PAIRS, Pair, load_drafter, load_pair
from dsparkref.decode.target import Target
from dsparkref.lab.options import check_file, check_sampling, write_numbers
from dsparkref.lab.prompts import evaluation_prompts, ids_of
from dsparkref.lab.sources import drafter_source, open_target
from dsparkref.shapes import dtype_name
from dsparkref.train.corpus import DOMAINS

ANSWER_MEANS = {
    "pass": "nothing here can be told from the target decoding alone.",
    "tie": "greedy replies part only where two logits lie within rounding.",
    "fail": "what comes out is not what the target alone would say.",
    "inconclusive": "no draft was kept, so that next to nothing was put to the test.",
}


def run_lossless(
    console: Console,
    source: str,
    *,
    target_source: str = "tiny",
    prompts_per_domain: int = 8,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
    json_file: Path | None = None,
) -> LosslessReport:
    """Check a pair, or a drafter of ``target_source``, and print what was found."""
    check_file("json", json_file)
    check_sampling(temperature, seed)
    pair = find_pair(source, target_source)
    prompts = check_prompts(pair.target, prompts_per_domain)
    with console.status("") as status:
        report = check_lossless(
            pair.target,
            pair.drafter,
            prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            generator=seed,
            progress=status.update,
        )
    place = f"{pair.target.device}, {dtype_name(pair.target.dtype)}"
    console.print(f"{len(prompts)} prompts, greedy and sampled ({place})")
    for found in report.findings:
        console.print(f"{found.name}: {found.answer}; {found.detail}")
    console.print(rounding_line(report.rounding))
    console.print(f"{report.answer}: {ANSWER_MEANS[report.answer]}")
    write_numbers(console, json_file, {"answer": report.answer, **asdict(report)})
    return report


def find_pair(source: str, target_source: str = "tiny") -> Pair:
    """Load a pair by its name, or a drafter together with its target."""
    if source in PAIRS or "," in source:
        return load_pair(source)
    target = open_target(target_source)
    folder = files.find_folder(drafter_source(source, "lossless"), "lossless")
    return Pair(target, load_drafter(folder, target))


def check_prompts(target: Target, per_domain: int) -> list[list[int]]:
    """Return evaluation prompts; random ids where the target has no tokenizer."""
    if target.tokenizer is None:
        stream, shape = (
            torch.Generator().manual_seed(0),
            (len(DOMAINS) * per_domain, 24),
        )
        return torch.randint(target.vocab_size, shape, generator=stream).tolist()
    return ids_of(evaluation_prompts(target, per_domain))


def rounding_line(found: Rounding) -> str:
    """Return in one line how far block and one-token passes round apart.

    >>> rounding_line(Rounding(100, 2, 0.125, 1.0, 0.25))
    'rounding: at 2 of 100 tokens a block pass and a one-token pass put another token \
first, at most 0.125 apart (1 ulp of the logit); any two logits differ by up to 0.25'
    """
    gap = ""
    if found.flips:
        ulps = f"{found.gap_ulps:.2g} ulp of the logit"
        gap = f", at most {found.gap:.3g} apart ({ulps})"
    return (
        f"rounding: at {found.flips} of {found.positions} tokens a block pass and a "
        f"one-token pass put another token first{gap}; any two logits differ by up to "
        f"{found.difference:.2g}"
    )
