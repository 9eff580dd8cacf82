"""Load figures: throughput against each user's speed, and the budget against the load.

What Figures 7 and 8 of DSpark plot, from the rows of ``analysis.serving``. The note
under a title says by which clock; a made-up one says that it is made up.
"""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from dsparkref.analysis.report import Report
from dsparkref.analysis.serving import (
    ALGORITHM_1,
    AUTOREGRESSIVE,
    FIXED,
    LAGGED,
    THRESHOLD,
    against_best_fixed,
    row_of,
)
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import OTHER_COLOUR, Axes, Figure, drawing, set_title
from dsparkref.lab.pictures import Picture

# Not the drafters' colours: all policies here share one drafter.
POLICY_LOOK: dict[str, dict[str, Any]] = {
    AUTOREGRESSIVE: {"color": "#555555", "marker": ".", "linestyle": ":"},
    THRESHOLD: {"color": "#E69F00", "marker": "P", "linestyle": "-."},
    ALGORITHM_1: {"color": "#882255", "marker": "v", "linestyle": "--"},
    LAGGED: {"color": "#332288", "marker": "o", "linestyle": "-"},
}
FIXED_LOOK: dict[str, Any] = {"color": "#AAAAAA", "linewidth": 1.3}
USERS_LABEL = "requests served at once"
NOTE_SIZE = 12.5


def serving_figure(rows: Sequence[Report], note: str) -> Figure:
    """Draw both figures side by side: three panels."""
    with drawing((17, 6.4)) as figure:
        panels = figure.subplots(1, 3)
        draw_trade_off(panels[0], rows)
        draw_throughput(panels[1], rows)
        draw_budget(panels[2], rows)
        _write_note(panels[0], note, letters=58)
        _legend(figure, panels[0])
        set_title(figure, load_finding(rows))
    return figure


def trade_off_picture(rows: Sequence[Report], note: str) -> Picture:
    """Draw throughput against each user's speed, a line of loads per policy."""
    finding = trade_off_finding(rows)
    with drawing((11, 6.2)) as figure:
        axes = figure.add_subplot()
        draw_trade_off(axes, rows)
        _write_note(axes, note)
        _legend(figure, axes)
        set_title(figure, finding)
    tables = [
        _numbers(rows, "throughput", "tokens/s in all"),
        _numbers(rows, "user_speed", "tokens/s, one user"),
    ]
    return Picture(figure, "\n".join([finding, note, *tables]))


def load_picture(rows: Sequence[Report], note: str) -> Picture:
    """Draw throughput and verification budget against the load."""
    finding = load_finding(rows)
    with drawing((13, 6.0)) as figure:
        left, right = figure.subplots(1, 2)
        draw_throughput(left, rows)
        draw_budget(right, rows)
        _write_note(left, note, letters=64)
        _legend(figure, left)
        set_title(figure, finding)
    against = {
        name: [100 * row[name] for row in against_best_fixed(rows)]
        for name in POLICY_LOOK
    }
    head = "% against best fixed"
    tables = [
        _numbers(rows, "budget", "tokens verified", 1),
        text_table(against, _loads(rows), head=head, digits=1),
    ]
    return Picture(figure, "\n".join([finding, note, *tables]))


def one_load_picture(entry: tuple[Sequence[Report], str]) -> Picture:
    """Draw the throughput of every policy at one load.

    ``entry`` holds the rows of that load, and the note.
    """
    rows, note = entry
    (places,) = _loads(rows)
    against = against_best_fixed(rows)[0]
    finding = (
        f"{places} at once: best fixed length {against['best'].split()[-1]}; "
        f"lagged {100 * against[LAGGED]:+.0f} %, early stop "
        f"{100 * against[ALGORITHM_1]:+.0f} %"
    )
    with drawing((11, 5.6)) as figure:
        axes = figure.add_subplot()
        names = [row["policy"] for row in rows]
        for place, row in enumerate(rows):
            look = POLICY_LOOK.get(row["policy"], FIXED_LOOK)
            axes.bar(place, row["throughput"], 0.7, color=look["color"])
            label = f"{row['budget']:.1f}"
            axes.text(place, row["throughput"], label, ha="center", va="bottom")
        shown = [name.replace(" ", "\n") for name in names]
        shown = [name.replace("autoreg", "autoreg-\n") for name in shown]
        axes.set_xticks(range(len(names)), shown, fontsize=12)
        axes.set_ylabel("throughput (tokens/s)")
        axes.set_xlabel("numbers: tokens verified per request and step")
        _write_note(axes, note)
        set_title(figure, finding)
    table = {row["policy"]: [row["throughput"], row["budget"]] for row in rows}
    columns = ["tokens/s", "verified"]
    text = text_table(table, columns, head="policy", digits=1)
    return Picture(figure, "\n".join([finding, note, text]))


def trade_off_finding(rows: Sequence[Report]) -> str:
    """Say what the scheduler gives each user and all of them, lightest and heaviest."""
    gains = []
    for places, what in zip(_ends(rows), ("user_speed", "throughput"), strict=True):
        ours, alone = (row_of(rows, name, places) for name in (LAGGED, AUTOREGRESSIVE))
        gains.append(f"{100 * (ours[what] / alone[what] - 1):+.0f} %")
    first, last = _ends(rows)
    return (
        f"Lagged over autoregressive: speed {gains[0]} at {first}, "
        f"throughput {gains[1]} at {last}"
    )


def load_finding(rows: Sequence[Report]) -> str:
    """Say how the budget moves with the load, and how the best fixed length does."""
    light, heavy = _ends(rows)
    first, last = (row_of(rows, LAGGED, places)["budget"] for places in (light, heavy))
    worst = 100 * min(row[LAGGED] for row in against_best_fixed(rows))
    said = f"at worst {-worst:.1f} % below" if worst < -0.05 else "never below"
    return (
        f"Budget {first:.1f} at {light}, {last:.1f} at {heavy} at once; "
        f"lagged {said} the best length"
    )


def draw_trade_off(axes: Axes, rows: Sequence[Report]) -> None:
    """Draw throughput over each user's speed; loads are marked on the lagged line."""
    _draw(axes, rows, "user_speed", "throughput")
    for places in _loads(rows):
        row = row_of(rows, LAGGED, places)
        axes.annotate(
            str(places),
            (row["user_speed"], row["throughput"]),
            xytext=(7, 7),
            textcoords="offset points",
            color=POLICY_LOOK[LAGGED]["color"],
            fontsize=13,
        )
    axes.set_xlabel("speed of one user (tokens/s)\nnumbers: requests served at once")
    axes.set_ylabel("throughput of all (tokens/s)")
    axes.set_xlim(left=0)


def draw_throughput(axes: Axes, rows: Sequence[Report]) -> None:
    """Draw throughput over the load."""
    _draw(axes, rows, "concurrency", "throughput")
    _load_axis(axes, rows)
    axes.set_ylabel("throughput of all (tokens/s)")


def draw_budget(axes: Axes, rows: Sequence[Report]) -> None:
    """Draw the tokens verified per request and step over the load."""
    chosen = [row for row in rows if not row["policy"].startswith(FIXED)]
    _draw(axes, chosen, "concurrency", "budget")
    _load_axis(axes, rows)
    axes.set_ylabel("tokens verified per request\nand step, anchor included")


def _draw(axes: Axes, rows: Sequence[Report], x: str, y: str) -> None:
    """Draw a line per policy, fixed lengths thin and behind."""
    for name in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == name]
        points = [row[x] for row in own], [row[y] for row in own]
        if name in POLICY_LOOK:
            wide = {"linewidth": 2.4, "markersize": 9, "zorder": 3}
            axes.plot(*points, label=name, **wide, **POLICY_LOOK[name])
            continue
        axes.plot(*points, **FIXED_LOOK, label="fixed lengths", zorder=1)
        end, shift = (points[0][-1], points[1][-1]), 4 if x == "concurrency" else -11
        number = name.removeprefix(FIXED).strip()
        axes.annotate(number, end, xytext=(shift, -4), textcoords="offset points",
                      color="#888888", fontsize=11)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)


def _load_axis(axes: Axes, rows: Sequence[Report]) -> None:
    loads = _loads(rows)
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [str(places) for places in loads])
    axes.minorticks_off()
    axes.set_xlabel(USERS_LABEL)


def _write_note(axes: Axes, note: str, letters: int = 110) -> None:
    """Write by which clock; ``letters`` to a line, as many as the panel is wide."""
    lines = fill(note, letters)
    axes.set_title(lines, loc="left", fontsize=NOTE_SIZE, color=OTHER_COLOUR, pad=16)


def _legend(figure: Figure, axes: Axes) -> None:
    """Name each line once, under the panels."""
    lines, names = axes.get_legend_handles_labels()
    once = dict(zip(names, lines, strict=True))
    figure.legend(
        once.values(), once.keys(), loc="outside lower center", ncols=len(once),
        frameon=False,
    )  # fmt: skip


def _numbers(rows: Sequence[Report], key: str, head: str, digits: int = 0) -> str:
    loads = _loads(rows)
    names = dict.fromkeys(row["policy"] for row in rows)
    table = {
        name: [row_of(rows, name, places)[key] for places in loads] for name in names
    }
    return text_table(table, loads, head=head, digits=digits)


def _loads(rows: Sequence[Report]) -> list[int]:
    return sorted({row["concurrency"] for row in rows})


def _ends(rows: Sequence[Report]) -> tuple[int, int]:
    loads = _loads(rows)
    return loads[0], loads[-1]
