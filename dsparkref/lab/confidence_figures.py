"""The figures of notebook 08: reliability, its error, broken order, thresholds, traps.

Each returns a ``Picture`` whose title is computed from its numbers.
"""

from collections.abc import Mapping, Sequence

from dsparkref.analysis.report import Report
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    OTHER_COLOUR,
    drawing,
    set_title,
    spread,
)
from dsparkref.lab.pictures import Picture

# How a score looks; one drafter, so that its own colour is the raw one's.
SCORE_COLOURS = {
    "raw": DRAFTER_COLOURS["markov"],
    "after STS": "#E69F00",
    "twice too sure": DRAFTER_COLOURS["dflash"],
    "twice, after STS": "#E69F00",
    "constant": "#777777",
}
KEPT_COLOUR = DRAFTER_COLOURS["rnn"]
VAIN_COLOUR = "#BBBBBB"


def reliability_picture(entry: tuple[str, int, Mapping[str, list[float]]]) -> Picture:
    """Draw what was said against what came, bin by bin; (score, position, bins)."""
    name, position, found = entry
    said, came = (_weighted(found, key) for key in ("predicted", "observed"))
    side = "too sure" if said > came else "too modest"
    off = abs(100 * (said - came))
    finding = (
        f"{name}, draft {position}: says {100 * said:.0f} %, "
        f"{100 * came:.0f} % stand: {side} by {off:.1f}"
    )
    colour = SCORE_COLOURS[name]
    with drawing((11, 6.2)) as figure:
        top, bottom = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [4, 1]}
        )
        right = {"color": OTHER_COLOUR, "linestyle": "--", "label": "exactly right"}
        top.plot([0, 1], [0, 1], linewidth=1.2, **right)
        top.legend(frameon=False, loc="upper left")
        spans = _spans(found["observed"], found["low"], found["high"])
        style = {"fmt": "o", "color": colour, "markersize": 9, "capsize": 4}
        top.errorbar(found["predicted"], found["observed"], yerr=spans, **style)
        top.set_ylim(-0.02, 1.02)
        top.set_ylabel("share that stood")
        places = [(int(10 * x) + 0.5) / 10 for x in found["predicted"]]
        bottom.bar(places, found["count"], 0.09, color=colour, alpha=0.45)
        bottom.set_ylabel("cycles")
        bottom.set_xlim(0, 1)
        bottom.set_xlabel("survival that the head gives, in bins of 0.1")
        set_title(figure, finding)
    columns = [f"{x:.2f}" for x in found["predicted"]]
    rows = {"stood": found["observed"], "low": found["low"], "high": found["high"]}
    table = text_table(rows, columns, head="said")
    counts = text_table({"cycles": found["count"]}, columns, head="said", digits=0)
    return Picture(figure, f"{finding}\n{table}\n{counts}")


def error_picture(
    errors: Mapping[str, Mapping[str, Sequence[float]]],
    changes: Mapping[str, Sequence[float]],
) -> Picture:
    """Draw the ECE before and after, its floor, and the change with its interval."""
    values, lows, highs = changes.values()
    better, worse = sum(high < 0 for high in highs), sum(low > 0 for low in lows)
    finding = (
        f"STS: clearly better at {better} of {len(values)} positions, "
        f"clearly worse at {worse}"
    )
    positions = list(range(1, len(values) + 1))
    with drawing((11, 5.6)) as figure:
        left, right = figure.subplots(1, 2)
        highest = max(max(found["ece"]) for found in errors.values())
        floor = errors["raw"]["floor"]
        left.fill_between(positions, floor, color="#E5E5E5")
        for name, found in errors.items():
            colour = SCORE_COLOURS[name]
            left.plot(positions, found["ece"], "o-", color=colour, linewidth=2.4)
        ends = {name: found["ece"][-1] for name, found in errors.items()}
        ends["raw's floor"] = floor[-1]
        heights = spread(list(ends.values()), 0.08 * highest)
        for name, height in zip(ends, heights, strict=True):
            style = {"color": SCORE_COLOURS.get(name, OTHER_COLOUR), "va": "center"}
            left.text(positions[-1] + 0.15, height, name, weight="bold", **style)
        left.set_ylim(0, 1.06 * highest)
        left.set_xlim(0.8, positions[-1] + 2.4)
        left.set_ylabel("ECE of the survival, held out")
        right.axhline(0, color=OTHER_COLOUR, linewidth=1.2)
        spans = _spans(values, lows, highs)
        right.errorbar(positions, values, yerr=spans, fmt="o", color="black", capsize=4)
        right.set_ylabel("change by STS, 95 % over prompts")
        for axes in (left, right):
            axes.set_xticks(positions)
            axes.set_xlabel("position of the draft")
        set_title(figure, finding)
    rows: dict[str, Sequence[float]] = {n: f["ece"] for n, f in errors.items()}
    rows |= {"floor": floor, **changes}
    return Picture(figure, f"{finding}\n{text_table(rows, digits=3)}")


def flips_picture(flips: Mapping[str, Sequence[float]]) -> Picture:
    """Draw the share of pairs of requests that a calibration orders anew."""
    names = list(flips)
    last = 100 * flips[names[1]][-1]
    finding = (
        f"One position keeps its order; the product turns {last:.1f} % of pairs round"
    )
    colours = (DRAFTER_COLOURS["markov"], "#E69F00")
    with drawing((11, 4.8)) as figure:
        axes = figure.add_subplot()
        positions = list(range(1, len(flips[names[0]]) + 1))
        for shift, name, colour in zip((-0.2, 0.2), names, colours, strict=True):
            places = [position + shift for position in positions]
            shares = [100 * share for share in flips[name]]
            axes.bar(places, shares, 0.38, color=colour, label=name)
            for place, share in zip(places, shares, strict=True):
                text = f"{share:.1f}"
                axes.text(place, share, text, ha="center", va="bottom", fontsize=12)
        axes.set_xticks(positions)
        axes.set_xlabel("position of the draft in the block")
        axes.set_ylabel("pairs in another order, %")
        axes.legend(frameon=False, loc="upper left")
        set_title(figure, finding)
    return Picture(figure, f"{finding}\n{text_table(flips, digits=3)}")


def sweep_picture(entry: tuple[str, Sequence[float], Sequence[Report]]) -> Picture:
    """Draw both rates and the drafts verified, over the threshold."""
    name, levels, rows = entry
    known = [row for row in rows if row["acceptance"] is not None]
    first, last = (100 * row["acceptance"] for row in (known[0], known[-1]))
    bonus = [100 * rows[i]["acceptance_with_bonus"] for i in (0, -1)]
    finding = (
        f"{name}: {first:.0f} to {last:.0f} % kept; "
        f"with the bonus {bonus[0]:.0f} to {bonus[1]:.0f} %"
    )
    with drawing((11, 5.6)) as figure:
        left, right = figure.subplots(1, 2)
        rates = [row["acceptance"] for row in rows]
        shown = [float("nan") if rate is None else rate for rate in rates]
        counted = [row["acceptance_with_bonus"] for row in rows]
        places = list(range(len(levels)))
        left.plot(places, shown, "o-", color=KEPT_COLOUR, linewidth=2.4)
        left.plot(places, counted, "s--", color=OTHER_COLOUR, linewidth=2)
        left.set_ylabel("share of what was verified")
        left.set_ylim(None, 1.02)
        left.legend(["kept / verified", "with the bonus"], frameon=False)
        kept = [row["accepted"] for row in rows]
        vain = [row["rejected"] for row in rows]
        right.bar(places, kept, 0.7, color=KEPT_COLOUR, label="kept")
        right.bar(places, vain, 0.7, kept, color=VAIN_COLOUR, label="in vain")
        right.set_ylabel("drafts verified per cycle")
        right.legend(frameon=False)
        for axes in (left, right):
            axes.set_xticks(places, [f"{level:g}" for level in levels], fontsize=13)
            axes.set_xlabel("threshold")
        set_title(figure, finding)
    tokens = [row["accepted_length"] for row in rows]
    numbers = {"kept/verified": shown, "with bonus": counted, "kept": kept}
    numbers |= {"in vain": vain, "tokens/cycle": tokens}
    columns = [f"{level:g}" for level in levels]
    return Picture(
        figure, f"{finding}\n{text_table(numbers, columns, head='threshold')}"
    )


def thinned_picture(
    came: Mapping[str, Sequence[float]], seen: Sequence[float], threshold: float
) -> Picture:
    """Draw what a policy's own records say against what all records say."""
    thin, full = came["the policy's log"], came["all records"]
    finding = (
        f"At the last draft the policy sees {100 * seen[-1]:.0f} % of the cycles: "
        f"{100 * thin[-1]:.0f} % kept, not {100 * full[-1]:.0f} %"
    )
    positions = list(range(1, len(full) + 1))
    with drawing((11, 5.2)) as figure:
        left, right = figure.subplots(1, 2)
        colours = (KEPT_COLOUR, DRAFTER_COLOURS["markov"], OTHER_COLOUR)
        for (name, line), colour, look in zip(
            came.items(), colours, ("^--", "o-", "X:"), strict=True
        ):
            left.plot(positions, line, look, color=colour, linewidth=2.2, label=name)
        left.legend(frameon=False, loc="lower left")
        left.set_ylabel("kept, given all before it")
        left.set_ylim(0, 1.03)
        right.bar(positions, [100 * x for x in seen], 0.7, color=OTHER_COLOUR)
        right.set_ylim(0, 100)
        right.set_ylabel(f"cycles still seen at {threshold:g}, %")
        for axes in (left, right):
            axes.set_xticks(positions)
            axes.set_xlabel("position of the draft")
        set_title(figure, finding)
    rows = {**came, "share seen": seen}
    return Picture(figure, f"{finding}\n{text_table(rows)}")


def _weighted(found: Mapping[str, list[float]], key: str) -> float:
    pairs = zip(found["count"], found[key], strict=True)
    return sum(count * value for count, value in pairs) / sum(found["count"])


def _spans(
    values: Sequence[float], lows: Sequence[float], highs: Sequence[float]
) -> list[list[float]]:
    """Return the arms of error bars; a resampled interval may miss its value."""
    below = [max(0.0, v - low) for v, low in zip(values, lows, strict=True)]
    above = [max(0.0, high - v) for v, high in zip(values, highs, strict=True)]
    return [below, above]
