"""The figures of notebook 03: passes, and the speed-up over the drafts verified.

Each returns a ``Picture``: the figure, titled with what it shows, and all its numbers
as text. The titles are computed from the numbers, so that they cannot say otherwise.
"""

from collections.abc import Mapping, Sequence

import torch

from dsparkref.lab.course import text_table
from dsparkref.lab.figures import OTHER_COLOUR, Axes, drawing, look, set_title
from dsparkref.lab.pictures import Picture

ONE_BY_ONE_COLOUR = "#E69F00"
ONE_PASS_COLOUR = look("parallel")[0]
LOSS_COLOUR = "#F2F2F2"

Curves = Mapping[str, Sequence[float]]


def passes_picture(passes: Mapping[str, tuple[float, float]], tokens: int) -> Picture:
    """Draw, for each network, passes over one token beside one pass over all, in ms."""
    worst = min(many / one for many, one in passes.values())
    finding = f"One pass over {tokens} tokens: {worst:.1f} times cheaper, or more"
    if worst < 1:
        finding = f"One pass over {tokens} tokens is not always cheaper"
    with drawing((11, 3.8)) as figure:
        axes = figure.add_subplot()
        places = torch.arange(len(passes), dtype=torch.float64)
        names = [f"{tokens} passes over one token", f"one pass over {tokens} tokens"]
        colours = [ONE_BY_ONE_COLOUR, ONE_PASS_COLOUR]
        for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
            values = [pair[number] for pair in passes.values()]
            heights = places + (number - 0.5) * 0.38
            axes.barh(heights, values, 0.36, color=colour, label=name)
            for height, value in zip(heights.tolist(), values, strict=True):
                axes.text(value, height, f" {value:.1f}", va="center")
        axes.set_yticks(places, list(passes))
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds")
        axes.legend(frameon=False, loc="lower right")
        set_title(figure, finding)
    rows = {name: list(pair) for name, pair in passes.items()}
    columns = ["one by one, ms", "at once, ms"]
    return Picture(
        figure, f"{finding}\n{text_table(rows, columns, head='network', digits=1)}"
    )


def best(curve: Sequence[float]) -> tuple[int, float]:
    """Return the number of drafts with the largest speed-up, from 1, and that one.

    >>> best([1.4, 1.9, 1.7])
    (2, 1.9)
    """
    number = max(range(len(curve)), key=lambda n: curve[n])
    return number + 1, curve[number]


def drafters_picture(curves: Curves) -> Picture:
    """Draw the speed-up of a parallel drafter and of one that drafts one by one."""
    parallel, one_by_one = (best(curve) for curve in curves.values())
    finding = (
        f"Parallel: {parallel[1]:.1f} times as fast at K = {parallel[0]}; "
        f"one by one: {one_by_one[1]:.1f} at K = {one_by_one[0]}"
    )
    return speedups_picture(curves, finding, "drafts per cycle, K")


def load_picture(entry: tuple[int, str, Sequence[float]]) -> Picture:
    """Draw the speed-up at one number of requests: (requests, acceptance, curve)."""
    rows, acceptance, curve = entry
    number, value = best(curve)
    users = "One request" if rows == 1 else f"{rows} requests"
    said = f"{value:.1f} times as fast at {number} drafts"
    if value < 1:
        said = f"every length loses, best {value:.2f}"
    finding = f"{users}, acceptance {acceptance}: {said}"
    return speedups_picture({"markov": curve}, finding, "drafts verified per cycle")


def speedups_picture(curves: Curves, finding: str, xlabel: str) -> Picture:
    """Draw the speed-up over the number of drafts; below 1 speculation loses."""
    size = max(len(curve) for curve in curves.values())
    top = 1.12 * max(1.1, *(max(curve) for curve in curves.values()))
    with drawing((11, 5.0)) as figure:
        axes = figure.add_subplot()
        axes.axhspan(0, 1, color=LOSS_COLOUR, zorder=0)
        axes.text(size + 0.1, 0.04 * top, "slower than without", ha="right")
        axes.axhline(1, color=OTHER_COLOUR, linewidth=1.5)
        for name, curve in curves.items():
            _draw(axes, name, curve)
        axes.set_ylim(0, top)
        axes.set_xlim(0.8, size + 0.2)
        axes.set_xticks(range(1, size + 1))
        axes.set_xlabel(xlabel)
        axes.set_ylabel("speed-up over one token\na pass (times as fast)")
        if len(curves) > 1:
            axes.legend(frameon=False, ncols=len(curves), loc="upper left")
        set_title(figure, finding)
    rows = {name: list(curve) for name, curve in curves.items()}
    return Picture(figure, f"{finding}\n{text_table(rows, head='drafts')}")


def _draw(axes: Axes, name: str, curve: Sequence[float]) -> None:
    """Draw one curve and ring its best point."""
    colour, marker = look(name)
    if name == "one by one":
        colour = ONE_BY_ONE_COLOUR
    numbers = range(1, len(curve) + 1)
    style = {"color": colour, "marker": marker, "markersize": 8, "linewidth": 2.5}
    axes.plot(numbers, curve, label=name, **style)
    number, value = best(curve)
    ring = {"markersize": 18, "markerfacecolor": "none", "markeredgewidth": 2}
    axes.plot([number], [value], "o", markeredgecolor=colour, **ring)
