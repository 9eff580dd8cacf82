"""The figures of notebook 10: one cycle in numbers, a reply cycle by cycle, all heads.

Each returns a ``Picture``: the figure, titled with what it shows, and its numbers as
text. The titles are computed from the numbers.
"""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from dsparkref.decode.target import Target
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    OTHER_COLOUR,
    Axes,
    drawing,
    look,
    set_title,
)
from dsparkref.lab.pictures import Picture
from dsparkref.lab.side_by_side import Decoded, Gain, length_interval
from dsparkref.lab.terminal import KINDS, cycle_line, cycle_pieces, token_text
from dsparkref.records import CycleTrace
from dsparkref.train.corpus import DOMAINS
from dsparkref.verify.sampling import probabilities

TARGET_COLOUR = DRAFTER_COLOURS["autoregressive"]
BASE_COLOUR, DRAFT_COLOUR = DRAFTER_COLOURS["dflash"], DRAFTER_COLOURS["markov"]
CONFIDENCE_COLOUR = "black"
# What became of a token: the colour of its box, as the terminal has it.
KIND_COLOURS = {
    "anchor": "#DDDDDD",
    "accepted": "#9ED9B8",
    "rejected": "#F2B08A",
    "unjudged": "#F4F4F4",
    "corrected": "#F7E08A",
    "bonus": "#A9D3F0",
}
SHOWN_CYCLES = 10
# Width of a box on the axis: so much for each character, and so much around it.
CHARACTER, MARGIN = 0.8, 1.3
# A line at least this wide; the font that fits it, in points times width.
LEAST_WIDTH, FONT_TIMES_WIDTH, LARGEST_FONT = 40.0, 1000.0, 16.0


def cycle_picture(entry: tuple[Target, CycleTrace]) -> Picture:
    """Draw one cycle: what backbone, head and target give to each drafted token.

    The trace was kept with its tensors; temperature 1.
    """
    target, trace = entry
    rows = _cycle_rows(trace)
    words = [repr(token_text(target, token)) for token in trace.drafts]
    finding = (
        f"Cycle {trace.index + 1}: {trace.num_accepted} of {trace.verify_len} drafts "
        f"kept, {len(trace.emitted)} tokens added"
    )
    with drawing((11.5, 5)) as figure:
        axes = figure.add_subplot()
        _draw_laws(axes, rows)
        if "confidence" in rows:
            places, values = range(len(words)), rows["confidence"]
            style = {"color": CONFIDENCE_COLOUR, "marker": "D", "s": 60, "zorder": 3}
            axes.scatter(places, values, label="confidence", **style)
        axes.set_xticks(range(len(words)), words, fontsize=13)
        _colour_ticks(axes, trace)
        axes.set_ylim(0, 1.05)
        axes.set_ylabel("chance of the draft")
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        set_title(figure, finding)
    table = text_table(rows, words, head="draft")
    last = "" if trace.next_token is None else token_text(target, trace.next_token)
    closing = f"anchor {token_text(target, trace.anchor)!r}; after the drafts {last!r}"
    return Picture(figure, f"{finding}\n{table}\n{closing}")


def first_replies(
    target: Target, decoded: Decoded
) -> dict[tuple[str, str], tuple[str, Target, Sequence[CycleTrace]]]:
    """Return each drafter's first reply in each domain, as ``reply_picture`` wants."""
    return {
        (name, domain): (f"{name} on {domain}", target, found.replies[0].cycles)
        for name, by_domain in decoded.items()
        for domain, found in by_domain.items()
        if domain in DOMAINS
    }


def reply_picture(entry: tuple[str, Target, Sequence[CycleTrace]]) -> Picture:
    """Draw the first cycles of a reply, a line each, tokens by what became of them."""
    name, target, cycles = entry
    shown = list(cycles)[:SHOWN_CYCLES]
    added = sum(len(cycle.emitted) for cycle in shown)
    finding = f"{name}: {added} tokens in {len(shown)} cycles"
    boxes = [_boxes(target, cycle) for cycle in shown]
    width = max([LEAST_WIDTH, *(line[-1][0] + _width(line[-1][1]) for line in boxes)])
    with drawing((12, 1.5 + 0.42 * SHOWN_CYCLES)) as figure:
        axes = figure.add_subplot()
        for row, line in enumerate(boxes):
            _draw_line(axes, row, line, min(LARGEST_FONT, FONT_TIMES_WIDTH / width))
        axes.set_xlim(-0.5, width)
        axes.set_ylim(SHOWN_CYCLES - 0.4, -0.6)
        axes.set_yticks(range(len(shown)), range(1, len(shown) + 1))
        axes.set_ylabel("cycle")
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        _kinds_legend(figure)
        set_title(figure, finding)
    lines = [str(cycle_line(target, cycle, colour=False)) for cycle in shown]
    marks = "  ".join(kind.mark + kind.label for kind in KINDS.values())
    return Picture(figure, "\n".join([finding, marks, *lines]))


def side_by_side_picture(
    decoded: Decoded, gains: Mapping[str, Gain], note: str
) -> Picture:
    """Draw tokens per cycle, per domain and drafter, with 95 % intervals."""
    finding = _gain_finding(decoded, gains)
    groups = list(next(iter(decoded.values())))
    rows = {
        name: [found[group].accepted_length or math.nan for group in groups]
        for name, found in decoded.items()
    }
    with drawing((11.5, 5.6)) as figure:
        axes = figure.add_subplot()
        width = 0.8 / len(rows)
        for number, (name, values) in enumerate(rows.items()):
            places = [g + (number + 0.5) * width - 0.4 for g in range(len(groups))]
            colour, _ = look(name)
            axes.bar(places, values, 0.92 * width, color=colour, label=name)
            _draw_intervals(axes, places, [decoded[name][g] for g in groups])
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel("tokens per cycle (bonus included)")
        axes.set_title(note, loc="left", fontsize=12.5, color=OTHER_COLOUR)
        figure.legend(loc="outside lower center", ncols=len(rows), frameon=False)
        set_title(figure, finding)
    lines = [finding, text_table(rows, groups, head="tokens per cycle", digits=1)]
    for name, found in gains.items():
        interval = f"{100 * found.low:+.0f} to {100 * found.high:+.0f}"
        said = f"{name}: {100 * found.gain:+.0f} % over {found.over}"
        lines.append(f"{said} (95 %: {interval})")
    return Picture(figure, "\n".join(lines))


def _cycle_rows(trace: CycleTrace) -> dict[str, list[float]]:
    """Return what each law gives to the drafted tokens; NaN where no law came."""
    proposal, count = trace.proposal, len(trace.drafts)
    assert proposal is not None and trace.p_target is not None
    tokens = proposal.tokens[0]
    rows = {"head's law": _of_drafts(proposal.p_draft[0], tokens)}
    if proposal.base_logits is not None:
        base = probabilities(proposal.base_logits[0])
        rows = {"backbone alone": _of_drafts(base, tokens), **rows}
    judged = _of_drafts(trace.p_target[: trace.verify_len], tokens[: trace.verify_len])
    rows["target"] = judged + [math.nan] * (count - trace.verify_len)
    if trace.confidence is not None:
        rows["confidence"] = trace.confidence
    return rows


def _of_drafts(laws: Tensor, tokens: Tensor) -> list[float]:
    return laws.gather(-1, tokens[:, None])[:, 0].tolist()


def _draw_laws(axes: Axes, rows: Mapping[str, Sequence[float]]) -> None:
    colours = {
        "backbone alone": BASE_COLOUR,
        "head's law": DRAFT_COLOUR,
        "target": TARGET_COLOUR,
    }
    for number, (name, colour) in enumerate(colours.items()):
        if name in rows:
            places = [k + 0.26 * (number - 1) for k in range(len(rows[name]))]
            axes.bar(places, rows[name], 0.24, color=colour, label=name)


def _colour_ticks(axes: Axes, trace: CycleTrace) -> None:
    """Underlay each drafted word with what became of it."""
    kinds = [kind for kind, _ in cycle_pieces(trace)[1 : 1 + len(trace.drafts)]]
    for label, kind in zip(axes.get_xticklabels(), kinds, strict=True):
        box = {"facecolor": KIND_COLOURS[kind], "edgecolor": "none", "pad": 3}
        label.set_bbox(box)
    axes.set_xlabel("draft (green: kept, orange: rejected, grey: not judged)")


def _boxes(target: Target, cycle: CycleTrace) -> list[tuple[float, str, str]]:
    """Return a cycle's tokens as (place, text, kind), from left to right."""
    place, boxes = 0.0, []
    for kind, token in cycle_pieces(cycle):
        text = token_text(target, token).strip(" ") or "_"
        boxes.append((place, text, kind))
        place += _width(text)
    return boxes


def _width(text: str) -> float:
    return CHARACTER * len(text) + MARGIN


def _draw_line(
    axes: Axes, row: int, boxes: Sequence[tuple[float, str, str]], size: float
) -> None:
    for place, text, kind in boxes:
        box = {"facecolor": KIND_COLOURS[kind], "edgecolor": "none", "pad": 2.2}
        style = {"va": "center", "fontsize": size, "family": "monospace"}
        axes.text(place, row, text, bbox=box, parse_math=False, **style)


def _kinds_legend(figure: Axes) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=KIND_COLOURS[name], label=kind.label)
        for name, kind in KINDS.items()
    ]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=6, frameon=False, fontsize=12
    )


def _draw_intervals(axes: Axes, places: Sequence[float], found: Sequence) -> None:
    for place, evaluation in zip(places, found, strict=True):
        low, high = length_interval(evaluation)
        axes.plot([place, place], [low, high], color="black", linewidth=1.4)


def _gain_finding(decoded: Decoded, gains: Mapping[str, Gain]) -> str:
    if not gains:
        name, found = next(iter(decoded.items()))
        return f"{name}: {found['all'].accepted_length:.1f} tokens per cycle"
    best = max(gains, key=lambda name: gains[name].gain)
    added = f"{100 * gains[best].gain:.0f} %"
    return f"{best} adds {added} to {gains[best].over}'s tokens per cycle"
