"""The figures of notebook 01: overlap, the two modes, decay in exact worlds, counting.

Each returns a ``Picture``: the figure, titled with what it shows, and all its numbers
as text. The titles are computed from the numbers, so that they cannot say otherwise.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dsparkref.analysis import toy
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    OTHER_COLOUR,
    Axes,
    curve_figure,
    drawing,
    set_title,
    suffix_decay_finding,
)
from dsparkref.lab.pictures import Picture

TARGET_COLOUR = DRAFTER_COLOURS["autoregressive"]
DRAFT_COLOUR = DRAFTER_COLOURS["dflash"]
PARALLEL = "parallel drafter"
OVERLAP_LABEL = "overlap with the target's law\n(1 - TV, mean over blocks)"
EXACT_LABEL = "chance that a draft stands,\ngiven all before it"


def overlap_picture(p_target: Tensor, p_draft: Tensor, words: Sequence[str]) -> Picture:
    """Draw two laws as bars; what they share is the chance to keep a draft."""
    shared = torch.minimum(p_target, p_draft)
    finding = f"The two laws share {100 * shared.sum():.0f} %: so many drafts are kept"
    laws = {"target": p_target, "draft": p_draft, "shared (min)": shared}
    with drawing((11, 4.6)) as figure:
        axes = figure.add_subplot()
        places = torch.arange(len(words), dtype=torch.float64)
        for shift, name, colour in (
            (-0.21, "target", TARGET_COLOUR),
            (0.21, "draft", DRAFT_COLOUR),
        ):
            axes.bar(places + shift, laws[name], 0.38, color=colour, alpha=0.35)
            axes.bar(places + shift, shared, 0.38, color=colour, hatch="//", label=name)
        _label_bars(axes, places - 0.21, p_target)
        _label_bars(axes, places + 0.21, p_draft)
        axes.set_xticks(places, words)
        axes.set_ylim(0, 1.12 * float(torch.maximum(p_target, p_draft).max()))
        axes.set_xlabel("next token")
        axes.set_ylabel("probability")
        axes.legend(frameon=False, ncols=2, title="hatched: shared")
        set_title(figure, finding)
    rows = {name: law.tolist() for name, law in laws.items()}
    return Picture(figure, f"{finding}\n{text_table(rows, words, head='token')}")


def pairs_picture(
    world: toy.MarkovWorld,
    target: toy.Laws,
    draft: toy.Laws,
    name: str = PARALLEL,
) -> Picture:
    """Draw the joint law of the first two tokens, target's and drafter's."""
    joints = {"target": _joint(target), name: _joint(draft)}
    live = joints["target"] + joints[name]
    rows = [i for i in range(world.vocab_size) if live[i].sum() > 0]
    columns = [j for j in range(world.vocab_size) if live[:, j].sum() > 0]
    waste = float(joints[name][joints["target"] == 0].sum())
    finding = f"{100 * waste:.0f} % of the drafted pairs never occur in the language"
    lines = [finding]
    with drawing((11, 4.8)) as figure:
        for number, (whose, joint) in enumerate(joints.items()):
            axes = figure.add_subplot(1, 2, number + 1)
            colours = {"target": "Greys", PARALLEL: "Oranges"}.get(whose, "Blues")
            table = joint[rows][:, columns]
            axes.imshow(table, cmap=colours, vmin=0, vmax=1)
            axes.set_xticks(range(len(columns)), [world.words[j] for j in columns])
            axes.set_yticks(range(len(rows)), [world.words[i] for i in rows])
            axes.set_xlabel("second draft" if number else "second token")
            axes.set_ylabel("first draft" if number else "first token")
            axes.set_title(whose, fontsize=16)
            for i, line in enumerate(table.tolist()):
                for j, value in enumerate(line):
                    shade = "white" if value > 0.6 else "black"
                    text = f"{value:.2f}"
                    axes.text(j, i, text, ha="center", va="center", color=shade)
        set_title(figure, finding)
    pairs = [(i, j) for i in rows for j in columns]
    names = [world.spell(pair) for pair in pairs]
    shares = {n: [float(x[pair]) for pair in pairs] for n, x in joints.items()}
    lines.append(text_table(shares, names, head="pair"))
    return Picture(figure, "\n".join(lines))


def two_mode_picture(entry: tuple[float, Mapping[str, Sequence[float]]]) -> Picture:
    """Draw the two-mode world at one share of "of", per drafter."""
    share, curves = entry
    finding = (
        f"'of' comes {100 * share:.0f} % of the time: "
        f"{100 * curves['parallel'][1]:.0f} % of the second drafts are kept"
    )
    figure = curve_figure(curves, finding, ylabel=EXACT_LABEL, floor=0.42)
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def worlds_picture(curves: Mapping[str, Sequence[float]], note: str) -> Picture:
    """Draw conditional acceptance of the best drafters, by what they remember."""
    first, last = (100 * curves["parallel"][k] for k in (0, -1))
    finding = (
        f"The best parallel drafter there is falls from {first:.0f} % to {last:.0f} %"
    )
    figure = curve_figure(curves, finding, ylabel=EXACT_LABEL, note=note)
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def counting_picture(counts: Mapping[str, Sequence[float]], note: str) -> Picture:
    """Draw the same cycles counted in different ways."""
    ends = [100 * curve[-1] for curve in counts.values()]
    finding = (
        f"The same drafts: {' or '.join(f'{end:.0f} %' for end in ends)} at the end"
    )
    figure = curve_figure(counts, finding, ylabel="share of cycles", note=note)
    return Picture(figure, f"{finding}\n{text_table(counts)}")


def trained_picture(curves: Mapping[str, Sequence[float]], note: str) -> Picture:
    """Draw the overlap of trained drafters with their target, on given text."""
    finding = suffix_decay_finding(curves)
    figure = curve_figure(curves, finding, ylabel=OVERLAP_LABEL, note=note)
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def _joint(laws: toy.Laws) -> Tensor:
    """Return the law of the first two tokens, [V, V]."""
    return laws[0][:, None] * laws[1]


def _label_bars(axes: Axes, places: Tensor, heights: Tensor) -> None:
    for place, height in zip(places.tolist(), heights.tolist(), strict=True):
        text, top = f"{height:.2f}", height + 0.008
        axes.text(place, top, text, ha="center", va="bottom", color=OTHER_COLOUR)
