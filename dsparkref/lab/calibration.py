"""What ``python -m dsparkref calibrate`` does: gather, fit, compare, sweep, save."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group

from dsparkref.analysis.calibrate import CALIBRATORS
from dsparkref.analysis.calibration_records import gather_records, write_records
from dsparkref.analysis.calibration_report import VIEWS, calibration_report
from dsparkref.analysis.report import Report
from dsparkref.analysis.sweep import threshold_sweep
from dsparkref.checkpoints.io import save_drafter
from dsparkref.checkpoints.save import check_replaceable
from dsparkref.lab.options import (
    check_file,
    check_folder,
    check_sampling,
    write_numbers,
)
from dsparkref.lab.prompts import evaluation_prompts, ids_of
from dsparkref.lab.sources import open_pair
from dsparkref.lab.tables import make_table, number, share
from dsparkref.shapes import check_known, check_range, problem


def run_calibration(
    console: Console,
    *,
    pair: str | None = None,
    head: str | None = None,
    num_prompts: int = 100,
    replies: int = 1,
    thresholds: Sequence[str] = (),
    on: str = "conditional",
    bins: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 128,
    save_folder: Path | None = None,
    records_file: Path | None = None,
    json_file: Path | None = None,
) -> Report:
    """Calibrate one drafter on the evaluation prompts; return all numbers."""
    check_file("json", json_file)
    check_file("records", records_file)
    check_folder("save", save_folder)
    if save_folder is not None:  # refused now, not after the work
        check_replaceable(save_folder)
    check_sampling(temperature, seed)
    levels = [_threshold(text) for text in thresholds]
    check_known("on", on, ("conditional", "survival"))
    for level in levels:
        check_range("thresholds", level, 0.0, 1.0)
    loaded = open_pair(pair, head)
    target, drafter = loaded.target, loaded.drafter
    prompts = evaluation_prompts(target, num_prompts)
    options: Any = {"max_new_tokens": max_new_tokens, "temperature": temperature}
    settings = {
        "drafter": drafter.head_type,
        "block_size": drafter.block_size,
        "prompts_per_domain": num_prompts,
        "replies": replies,
        "seed": seed,
        **options,
    }
    with console.status("decoding") as status:  # silent where there is no terminal
        records = gather_records(
            target, drafter, ids_of(prompts), replies=replies, generator=seed, **options
        )
        if records_file is not None:
            write_records(records, records_file, settings)
        status.update("fitting")
        report: Report = {
            "settings": settings,
            "calibration": calibration_report(records, bins=bins, seed=seed),
        }
        fitted = drafter.with_temperatures(report["calibration"]["temperatures"])
        sweep = threshold_sweep(
            target,
            fitted,
            {name: [row.prompt for row in rows] for name, rows in prompts.items()},
            levels,
            on=on,
            seed=seed,
            progress=status.update,
            **options,
        )
        report["sweep"] = {"on": on, "rows": sweep}
    for table in calibration_tables(report):
        console.print(table)
    if save_folder is not None:
        save_drafter(fitted, save_folder)
        console.print(f"calibrated drafter: {save_folder}", soft_wrap=True)
    if records_file is not None:
        console.print(f"records: {records_file}", soft_wrap=True)
    write_numbers(console, json_file, report)
    return report


def calibration_tables(report: Report) -> Iterator[Group]:
    """Yield the tables of a calibration report."""
    found = report["calibration"]
    scales = enumerate(found["temperatures"], start=1)
    title = "temperatures of the confidence logits, fitted from the first draft on"
    rows = [[str(position), number(scale)] for position, scale in scales]
    yield make_table(title, ["draft", "temperature"], rows)
    for view in VIEWS:
        for measure in ("ece", "brier", "auroc"):
            yield _measure_table(view, measure, found)
        yield _change_table(view, found["views"][view])
    if report["sweep"]["rows"]:
        yield _sweep_table(report["sweep"])


def _measure_table(view: str, measure: str, found: Report) -> Group:
    """Return one measure of all methods side by side, a row for each position."""
    what = {
        "ece": f"ECE ({found['bins']} equal-width bins), lower is better",
        "brier": "Brier score, lower is better",
        "auroc": "AUROC, higher is better, .500 is guessing",
    }[measure]
    methods = found["views"][view]
    rows = [
        [
            str(k + 1),
            *(_with_interval(places[k][measure]) for places in methods.values()),
        ]
        for k in range(len(found["temperatures"]))
    ]
    title = f"{view}: {what}; {found['held_out_records']} held-out cycles"
    return make_table(title, ["draft", *methods], rows)


def _with_interval(found: Mapping[str, float | None] | None) -> str:
    """Return a value and its 95 % interval over prompts, such as .072 [.05 .09]."""
    if found is None or found["value"] is None:
        return "n/a"
    value = number(found["value"], 3).removeprefix("0")
    low, high = (number(found[key]).removeprefix("0") for key in ("low", "high"))
    return f"{value} [{low} {high}]"


def _change_table(view: str, methods: Mapping[str, Sequence[Report]]) -> Group:
    """Say position by position whether a method helps; the intervals are 95 %."""
    rows = []
    for name in CALIBRATORS:
        for k, place in enumerate(methods[name] if name != "raw" else ()):
            if place["verdict"] is None:
                continue
            change = place["ece_change"]
            cells = [number(change[key], 3) for key in ("value", "low", "high")]
            rows.append([name, str(k + 1), *cells, place["verdict"]])
    title = f"{view}: change of ECE against raw, 95 % interval over held-out prompts"
    columns = ["method", "draft", "change", "low", "high", "so it"]
    return make_table(title, columns, rows)


def _sweep_table(sweep: Report) -> Group:
    rows = [
        [
            f"{row['threshold']:g} {row['domain']}",
            *(number(row[key]) for key in ("verified", "accepted", "rejected")),
            share(row["acceptance"]),
            share(row["acceptance_with_bonus"]),
            number(row["accepted_length"]),
        ]
        for row in sweep["rows"]
    ]
    columns = ["threshold", "verified", "kept", "in vain", "kept/verified"]
    columns += ["with bonus", "tokens/cycle"]
    title = f"threshold on the {sweep['on']} confidence, calibrated; drafts per cycle"
    return make_table(title, columns, rows)


def _threshold(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        expected = "numbers with commas between them"
        raise problem("thresholds", "be numbers", expected, repr(text)) from None
