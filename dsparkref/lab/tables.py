"""Evaluations as tables that can be read without colour and in 80 columns.

Shares are printed as ``.91``; ``n/a`` stands where nothing was observed. Positions
count from 1 as in the paper (code position k is 0-based).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dsparkref.analysis.report import ALL, Report, chat_shortfall, decay

# How many named places the terminal shows; the JSON file has all of them.
PLACES_SHOWN = 12
# What is told draft by draft.
BY_POSITION = {
    "conditional_acceptance": "conditional acceptance: share of draft k kept, given "
    "all before it",
    "prefix_survival": "prefix survival: share of cycles in which drafts 1..k all "
    "stand",
}


def make_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> Group:
    """Return a table under its title: first column to the left, numbers right."""
    left = 1 if len(columns) < 12 else 0  # sixteen columns still fit into 80
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, left))
    rows = list(rows)
    for number, column in enumerate(columns):
        if number:
            table.add_column(column, justify="right")
        else:  # a name cut short names nothing
            longest = max(map(len, [column, *(row[0] for row in rows)]))
            table.add_column(column, min_width=longest)
    for row in rows:
        table.add_row(*row)
    # a title of the table's own would wrap at the table's width
    return Group(Text(title, style="bold"), table)


def share(value: float | None) -> str:
    """Return a share in [0, 1] in three characters.

    >>> share(0.914), share(0.999), share(None)
    ('.91', '1.0', 'n/a')
    """
    return number(value).removeprefix("0").replace("1.00", "1.0")


def number(value: float | None, digits: int = 2) -> str:
    """Return a number, or n/a where there is none (None or NaN)."""
    missing = value is None or math.isnan(value)
    return "n/a" if missing else f"{value:.{digits}f}"


def percent(value: float | None, *, signed: bool = False) -> str:
    """Return a fraction as per cent.

    >>> percent(0.187, signed=True), percent(0.25)
    ('+18.7 %', '25.0 %')
    """
    if value is None or math.isnan(value):
        return "n/a"
    return f"{100 * value:{'+' if signed else ''}.1f} %"


def position_table(title: str, rows: Mapping[str, Sequence[float | None]]) -> Group:
    """Return shares over the position in the block, one row per name."""
    size = max(len(values) for values in rows.values())
    columns = ["draft", *(str(k + 1) for k in range(size))]
    lines = [
        [name, *map(share, values), *[""] * (size - len(values))]
        for name, values in rows.items()
    ]
    return make_table(title, columns, lines)


def report_tables(report: Report) -> Iterator[Group]:
    """Yield all tables of an evaluation report."""
    yield _target_table(report)
    yield _length_table(report)
    if report["gains"]:
        yield _gain_table(report["gains"])
    drafted = {
        name: found
        for name, found in report["decoding"].items()
        if "conditional_acceptance" in found[ALL]
    }
    if drafted:
        yield _decline_table(drafted)
        for key, title in BY_POSITION.items():
            shares = {name: found[ALL][key] for name, found in drafted.items()}
            yield position_table(title, shares)
    if report["memory"]:
        yield _memory_table(report["memory"])
        yield _places_table(report["memory"])
    if report["goals"]:
        yield _goals_table(report["goals"])


def _target_table(report: Report) -> Group:
    rows = [
        [
            domain,
            percent(found["accuracy"]),
            str(found["cut"]),
            number(found["perplexity"]),
        ]
        for domain, found in report["target"].items()
    ]
    columns = ["domain", "greedy replies right", "cut, not judged"]
    columns += ["held-out perplexity"]
    title = f"target; prompts: {report['settings']['prompt_style']}"
    return make_table(title, columns, rows)


def _length_table(report: Report) -> Group:
    domains = list(next(iter(report["decoding"].values())))
    rows = []
    for name, found in report["decoding"].items():
        lengths = [number(found[d].get("accepted_length")) for d in domains]
        drafts = number(found[ALL].get("accepted_drafts_per_cycle"))
        speed = number(found[ALL]["tokens_per_second"], 0)
        rows.append([name, *lengths, drafts, speed])
    columns = ["tokens per cycle", *domains, "drafts (all)", "tokens/s"]
    title = "accepted length: tokens per cycle, bonus included; drafts kept without it"
    return make_table(title, columns, rows)


def _gain_table(gains: Report) -> Group:
    domains = [d for d in (ALL, "chat") if d in next(iter(gains.values()))]
    rows = [
        [name, *(_interval(gain[domain]) for domain in domains)]
        for name, gain in gains.items()
    ]
    columns = ["drafter", *(f"{domain} [95 %]" for domain in domains)]
    title = "gain in accepted length over the dflash of the same block size"
    return make_table(title, columns, rows)


def _decline_table(drafted: Report) -> Group:
    rows = [
        [name, percent(chat_shortfall(found)), share(decay(found[ALL]))]
        for name, found in drafted.items()
    ]
    title = "chat below the nearer of math and code; last acceptance over the first"
    columns = ["drafter", "chat short by", "last/first"]
    return make_table(title, columns, rows)


def _interval(gain: Mapping[str, float]) -> str:
    low, high = 100 * gain["low"], 100 * gain["high"]
    return f"{percent(gain['gain'], signed=True)} [{low:+.0f} {high:+.0f}]"


def _memory_table(memory: Report) -> Group:
    rows = [
        [name, share(found["at_places"]), share(found["elsewhere"])]
        for name, found in memory["drafters"].items()
    ]
    columns = ["drafter", f"at {len(memory['each'])} such places", "at all others"]
    title = "1 - TV where the token two back decides (teacher-forced, from draft 3 on)"
    return make_table(title, columns, rows)


def _places_table(memory: Report) -> Group:
    names = [name for name in memory["drafters"] if not name.endswith("-k15")]
    shown = memory["places"][:PLACES_SHOWN]
    rows = [
        [
            f"{place['before']} -> {place['token']}",
            str(place["count"]),
            *(share(place["accept_rate"].get(name)) for name in names),
        ]
        for place in shown
    ]
    title = f"the places: {len(shown)} of {len(memory['places'])} kinds"
    return make_table(title, ["two before -> token", "count", *names], rows)


def _goals_table(goals: Sequence[Mapping[str, Any]]) -> Group:
    rows = [
        [
            goal["claim"],
            number(goal["value"], 3),
            f"{goal['kind']} {number(goal['bound'])}",
            "yes" if goal["met"] else "NO",
        ]
        for goal in goals
    ]
    return make_table("goals", ["claim", "measured", "wanted", "met"], rows)
