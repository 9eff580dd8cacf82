"""The figures of notebook 12: one exhibit beside the healthy pair, and a new head.

Each returns a ``Picture``: the figure, titled with what it shows, and all its numbers
as text. The titles are computed from the numbers, so that they cannot say otherwise.
"""

from collections.abc import Mapping, Sequence

from dsparkref.lab.course import text_table
from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    OTHER_COLOUR,
    Axes,
    curve_figure,
    drawing,
    set_title,
)
from dsparkref.lab.museum import HEALTHY, Symptoms
from dsparkref.lab.pictures import Picture

SICK_COLOUR = DRAFTER_COLOURS["dflash"]
COLUMNS = ["tokens a cycle", "first kept", "none kept", "in place", "one late", "nats"]


def exhibit_picture(entry: tuple[str, Symptoms, Symptoms]) -> Picture:
    """Draw acceptance along the block, and how many drafts cycles keep."""
    name, sick, well = entry
    finding = (
        f"Exhibit {name}: {sick.accepted_length:.1f} tokens a cycle, "
        f"the healthy pair {well.accepted_length:.1f}"
    )
    with drawing((12, 5.2)) as figure:
        left, right = figure.subplots(1, 2)
        for label, seen, colour, marker in (
            (HEALTHY, well, OTHER_COLOUR, "s"),
            (f"exhibit {name}", sick, SICK_COLOUR, "o"),
        ):
            places = range(1, len(seen.conditional) + 1)
            style = {"color": colour, "marker": marker, "lw": 2.5, "ms": 8}
            left.plot(places, seen.conditional, label=label, **style)
        left.set_ylim(-0.03, 1.05)
        left.set_xlabel("position in the block")
        left.set_ylabel("kept, given all before")
        _bars(right, sick.kept, well.kept)
        left.legend(frameon=False, loc="lower left")
        set_title(figure, finding)
    rows = {HEALTHY: well.conditional, f"exhibit {name}": sick.conditional}
    shares = {HEALTHY: well.kept, f"exhibit {name}": sick.kept}
    counts = text_table(shares, range(len(sick.kept)), head="drafts kept")
    return Picture(figure, f"{finding}\n{text_table(rows)}\n{counts}")


def symptoms_table(seen: Mapping[str, Symptoms]) -> str:
    """Return one row per exhibit."""
    rows = {
        name: [
            one.accepted_length,
            one.conditional[0],
            one.kept[0],
            one.in_place,
            one.one_late,
            one.surprise,
        ]
        for name, one in seen.items()
    }
    return text_table(rows, COLUMNS, head="exhibit")


def own_head_picture(curves: Mapping[str, Sequence[float]], note: str) -> Picture:
    """Draw the overlap before and after a head of the reader's own."""
    before, after = (100 * curves[name][-1] for name in ("no head", "your head"))
    finding = (
        f"The last draft overlaps {before:.0f} % without a head, "
        f"{after:.0f} % with yours"
    )
    label = "overlap with the target's law\n(1 - TV, mean over blocks)"
    figure = curve_figure(curves, finding, ylabel=label, note=note)
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def _bars(axes: Axes, sick: Sequence[float], well: Sequence[float]) -> None:
    places = range(len(sick))
    axes.bar([p - 0.2 for p in places], well, 0.38, color=OTHER_COLOUR, alpha=0.6)
    axes.bar([p + 0.2 for p in places], sick, 0.38, color=SICK_COLOUR)
    axes.set_xticks(places)
    axes.set_ylim(0, 1)
    axes.set_xlabel("drafts kept in a cycle")
    axes.set_ylabel("share of cycles")
