"""The project's figures: one palette, one colour per drafter everywhere.

The colours are Okabe and Ito's, which readers with any kind of colour vision can
tell apart; a marker of its own per drafter says the same without colour. Figures are
made without pyplot, so that nothing is shown or kept behind the caller's back.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from dsparkref.shapes import problem

# matplotlib is an extra, imported when a figure is drawn: here its types are names.
Axes: TypeAlias = Any
Figure: TypeAlias = Any

DRAFTER_COLOURS = {
    "dflash": "#D55E00",
    "markov": "#0072B2",
    "gated": "#56B4E9",
    "rnn": "#009E73",
    "domino": "#CC79A7",
    "autoregressive": "#555555",
}
DRAFTER_MARKERS = dict(zip(DRAFTER_COLOURS, "osD^v.", strict=True))
# The best drafters of the exact worlds look like the trained ones of their shape.
LOOKS_LIKE = {
    "parallel": "dflash",
    "one token back": "markov",
    "two tokens back": "rnn",
    "every draft": "autoregressive",
    "no head": "dflash",
}
OTHER_COLOUR = "#555555"
# Ways to count or to feed one drafter: only the right one has its colour.
COUNTS = {
    "right": (DRAFTER_COLOURS["dflash"], "o"),
    "unasked = refused": (OTHER_COLOUR, "X"),
    "survival": ("#999999", "P"),
    "one layer early": (OTHER_COLOUR, "X"),
    "reversed": ("#999999", "P"),
}

Curves = Mapping[str, Sequence[float]]

STYLE = {
    "font.size": 15,
    "axes.titlesize": 19,
    "axes.labelsize": 16,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
}
CONDITIONAL_LABEL = "accepted, given all before it\n(share of cycles)"
# how a figure can be written
FIGURES = (".png", ".svg", ".pdf")
# Least distance between two labels at the right edge, in parts of the axis' height.
LABEL_GAP = 0.062


def suffix_decay_figure(curves: Curves, *, note: str = "") -> Figure:
    """Draw conditional acceptance over the position in the block, per drafter.

    Args:
        curves: drafter -> [K] conditional acceptance in [0, 1]; NaN is left out.
        note: small print below the title, such as how many cycles were counted.

    Raises:
        ValueError: no curves, or unlike block sizes.
        ModuleNotFoundError: matplotlib is not installed.
    """
    finding = suffix_decay_finding(curves)
    return curve_figure(curves, finding, note=note, ylabel=CONDITIONAL_LABEL)


def curve_figure(
    curves: Curves, finding: str, *, ylabel: str, note: str = "", floor: float = 1.0
) -> Figure:
    """Draw shares over the position in the block, one curve per name.

    Args:
        curves: name -> [K] shares in [0, 1]; NaN is left out.
        finding: the title, a sentence that says what is to be seen.
        ylabel: what is shared out among what.
        note: small print below the title.
        floor: the axis begins no higher than here.

    Raises:
        ValueError: no curves, or unlike block sizes.
        ModuleNotFoundError: matplotlib is not installed.
    """
    sizes = {len(curve) for curve in curves.values()}
    if len(sizes) != 1:
        got = f"sizes {sorted(sizes)}"
        raise problem("curves", "have one block size", "one K for all", got)
    size = sizes.pop()
    with drawing((11, 6.2)) as figure:
        axes = figure.add_subplot()
        for name, curve in curves.items():
            _draw_curve(axes, name, curve)
        _set_axes(axes, curves, size, floor)
        axes.set_ylabel(ylabel)
        set_title(figure, finding)
        axes.set_title(note, loc="left", fontsize=12.5, color=OTHER_COLOUR, pad=12)
        _label_ends(axes, curves)
    return figure


@contextmanager
def drawing(inches: tuple[float, float]) -> Iterator[Figure]:
    """Yield an empty figure in the project's style."""
    import matplotlib
    from matplotlib import figure as figures
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)  # inches
        yield figures.Figure(figsize=inches, dpi=150, layout=layout)


def set_title(figure: Figure, finding: str) -> None:
    """Write the finding over a figure."""
    figure.suptitle(finding, x=0.02, ha="left", fontsize=18, weight="bold")


def suffix_decay_finding(curves: Curves) -> str:
    """Say in one sentence what the curves show, whatever it is.

    >>> suffix_decay_finding({"dflash": [0.9, 0.6], "rnn": [0.9, 0.8]})
    'dflash falls from 90 % to 60 % along the block; rnn ends at 80 %'
    >>> suffix_decay_finding({"dflash": [0.5, 0.5]})
    'dflash stays at 50 % along the block'
    """
    ends = {name: found for name, c in curves.items() if (found := _ends(c))}
    if not ends:
        return "No drafter was seen at both ends of the block"
    name = "dflash" if "dflash" in ends else next(iter(ends))
    first, last = (f"{100 * value:.0f} %" for value in ends[name])
    moves = "falls" if ends[name][1] < ends[name][0] else "rises"
    said = f"{moves} from {first} to {last}" if first != last else f"stays at {first}"
    others = {other: pair[1] for other, pair in ends.items() if other != name}
    finding = f"{name} {said} along the block"
    if not others:
        return finding
    best = max(others, key=lambda other: others[other])
    return f"{finding}; {best} ends at {100 * others[best]:.0f} %"


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure beside its place, then rename it there."""
    fresh = path.with_name(f".{path.stem}.writing{path.suffix}")
    try:
        figure.savefig(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _set_axes(axes: Axes, curves: Curves, size: int, floor: float) -> None:
    lowest = min((y for c in curves.values() for y in c if y == y), default=0.0)
    lowest = min(lowest, floor)
    axes.set_ylim(max(0.0, math.floor(10 * lowest - 0.2) / 10), 1.01)
    axes.set_xlim(0.85, size + 0.15)
    axes.set_xticks(range(1, size + 1))
    axes.set_xlabel("position of the draft in the block (1 = right after the anchor)")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_curve(axes: Axes, name: str, curve: Sequence[float]) -> None:
    colour, marker = look(name)
    axes.plot(
        range(1, len(curve) + 1),
        curve,
        color=colour,
        marker=marker,
        markersize=9,
        linewidth=3 if colour == DRAFTER_COLOURS["dflash"] else 2.2,
        label=name,
    )


def look(name: str) -> tuple[str, str]:
    """Return a curve's colour and marker: dflash-k15 has dflash's.

    >>> look("markov-k15") == look("one token back") == ("#0072B2", "s")
    True
    """
    if name in COUNTS:
        return COUNTS[name]
    drafter = LOOKS_LIKE.get(name, name.split("-")[0])
    colour = DRAFTER_COLOURS.get(drafter, OTHER_COLOUR)
    return colour, DRAFTER_MARKERS.get(drafter, "o")


def _label_ends(axes: Axes, curves: Curves) -> None:
    """Write each name at its curve's right end, moved apart where they would touch."""
    low, high = axes.get_ylim()
    size = max(len(curve) for curve in curves.values())
    known = {
        name: [k + 1 for k in range(len(curve)) if curve[k] == curve[k]]
        for name, curve in curves.items()
    }
    lasts = {name: places[-1] for name, places in known.items() if places}
    ends = [curves[name][last - 1] for name, last in lasts.items()]
    heights = spread(ends, LABEL_GAP * float(high - low))
    for name, end, height in zip(lasts, ends, heights, strict=True):
        colour = look(name)[0]
        axes.annotate(
            f"{name} {100 * end:.0f} %",
            xy=(lasts[name], end),
            xytext=(size + 0.32, height),
            color=colour,
            weight="bold",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "shrinkA": 2, "shrinkB": 7},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights apart until neighbours are ``gap`` apart, as little as needed.

    Those that touch form a group that stays centred where its members were.

    >>> [round(height, 2) for height in spread([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    groups: list[list[int]] = []
    for index in order:
        groups.append([index])
        while len(groups) > 1 and _touch(groups[-2], groups[-1], heights, gap):
            groups[-2:] = [groups[-2] + groups[-1]]
    placed = list(heights)
    for group in groups:
        bottom = _bottom(group, heights, gap)
        for rank, index in enumerate(group):
            placed[index] = bottom + rank * gap
    return placed


def _bottom(group: list[int], heights: Sequence[float], gap: float) -> float:
    centre = sum(heights[index] for index in group) / len(group)
    return centre - gap * (len(group) - 1) / 2


def _touch(
    lower: list[int], upper: list[int], heights: Sequence[float], gap: float
) -> bool:
    top = _bottom(lower, heights, gap) + gap * (len(lower) - 1)
    return _bottom(upper, heights, gap) - top < gap


def _ends(curve: Sequence[float]) -> tuple[float, float] | None:
    """Return the first and the last value; None where one was never observed."""
    first, last = curve[0], curve[-1]
    return None if math.isnan(first + last) else (first, last)
