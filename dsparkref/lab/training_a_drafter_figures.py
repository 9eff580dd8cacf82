"""The figures of notebook 07: what a block must say, pulls, curves over the steps."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dsparkref.checkpoints import files
from dsparkref.decode.target import Target
from dsparkref.draft.blocks import supervised_positions
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    OTHER_COLOUR,
    Axes,
    curve_figure,
    drawing,
    set_title,
    spread,
)
from dsparkref.lab.pictures import Picture
from dsparkref.lab.terminal import token_text
from dsparkref.train.data import Batch
from dsparkref.train.loss import position_weights

# Orange and blue stand for drafters; losses of one drafter are shades and dashes.
LOOKS = {
    "CE": ("#E69F00", "--", "o"),
    "TV": ("#000000", ":", "s"),
    "0.1 CE + 0.9 TV": (DRAFTER_COLOURS["markov"], "-", "D"),
    "domino": ("#7F7F7F", "--", "^"),
    "domino, base first": (DRAFTER_COLOURS["domino"], "-", "v"),
}
MEASURES = {
    "tokens per cycle": lambda row: row["length"],
    "overlap, first draft": lambda row: row["overlap"][0],
    "overlap, last draft": lambda row: row["overlap"][-1],
}
GROUPS = {
    "losses": ("CE", "TV", "0.1 CE + 0.9 TV"),
    "curricula": ("domino", "domino, base first"),
}

Variants = Mapping[str, Mapping[str, Any]]


def block_table(
    target: Target, text: Batch, *, from_end: int, block_size: int, loss_decay: float
) -> str:
    """Return one training block of a text: what is read, what must be said, weights.

    ``text`` is a batch of one; the anchor stands ``from_end`` tokens before its end.
    """
    anchor = text.input_ids.shape[1] - from_end
    anchors = torch.tensor([[anchor]])
    supervised = supervised_positions(text.loss_mask, anchors, block_size)
    weights = position_weights(supervised, loss_decay)[0, 0].tolist()
    lines = ["draft  reads        must say     weight"]
    for k, weight in enumerate(weights):
        place = anchor + k
        ids = text.input_ids[0, place : place + 2].tolist()
        words = [repr(token_text(target, token)) for token in ids] + ["-", "-"]
        said = f"{weight:6.2f}" if weight else "none: the reply is over"
        lines.append(f"{k + 1:>5}  {words[0]:<11}  {words[1]:<11}  {said}")
    return "\n".join(lines)


def pull_picture(pulls: Mapping[float, Sequence[float]]) -> Picture:
    """Draw how hard each loss pulls the right token up, by how likely it is."""
    chances = list(pulls)
    ratio = pulls[chances[0]][0] / pulls[chances[0]][1]
    finding = (
        f"At a chance of {chances[0]:g}, cross entropy pulls {ratio:.0f} times harder"
    )
    columns = {"CE": (0, "cross entropy"), "TV": (1, "total variation (L1)")}
    with drawing((11, 5.6)) as figure:
        axes = figure.add_subplot()
        for name, (column, label) in columns.items():
            colour, dash, marker = LOOKS[name]
            heights = [pulls[chance][column] for chance in chances]
            axes.plot(chances, heights, dash, marker=marker, color=colour, lw=2.5)
            axes.annotate(label, (chances[0], heights[0] + 0.05), color=colour)
        axes.set_xscale("log")
        axes.set_ylim(-0.03, 1.15)
        axes.set_xlabel("chance that the drafter gives to the right token")
        axes.set_ylabel("pull on its logit")
        set_title(figure, finding)
    rows = {
        name: [pulls[chance][column] for chance in chances]
        for name, (column, _) in columns.items()
    }
    table = text_table(rows, [f"{c:g}" for c in chances], head="chance", digits=3)
    return Picture(figure, f"{finding}\n{table}")


def read_curves(path: Path | None = None) -> Variants:
    """Return what ``train curves`` recorded: variant -> head, recipe, runs."""
    path = path or files.data_folder() / "recorded" / "training_curves.json"
    return json.loads(path.read_text(encoding="utf-8"))["variants"]


def ends(
    variants: Variants, measure: str = "tokens per cycle"
) -> dict[str, list[float]]:
    """Return each variant's last value, one for each seed."""
    value = MEASURES[measure]
    return {
        name: [value(run[-1]) for run in entry["runs"]]
        for name, entry in variants.items()
    }


def steps_picture(entry: tuple[Variants, str, str]) -> Picture:
    """Draw a measure over the steps: the mean of the seeds, and all between them."""
    variants, group, measure = entry
    last = {n: v for n, v in ends(variants, measure).items() if n in GROUPS[group]}
    means = {name: sum(values) / len(values) for name, values in last.items()}
    best = max(means, key=means.__getitem__)
    finding = f"{best} ends highest: {measure} {means[best]:.2f}"
    with drawing((11, 6.0)) as figure:
        axes = figure.add_subplot()
        for name in last:
            _draw_runs(axes, name, variants[name]["runs"], measure)
        heights = spread([means[name] for name in last], 0.06 * _height(axes))
        for name, height in zip(last, heights, strict=True):
            right = axes.get_xlim()[1]
            axes.text(right, height, f" {name}", color=LOOKS[name][0], va="center")
        axes.set_xlabel("training steps")
        axes.set_ylabel(f"{measure}, held-out text")
        note = "line: mean of the seeds; band: from the lowest to the highest"
        axes.set_title(note, loc="left", fontsize=12.5, color=OTHER_COLOUR)
        set_title(figure, finding)
    seeds = [f"seed {n}" for n in range(len(next(iter(last.values()))))]
    return Picture(figure, f"{finding}\n{text_table(last, seeds, head='at the end')}")


def base_picture(variants: Variants) -> Picture:
    """Draw the overlap of base and corrected logits along the block, last step."""
    curves = {}
    for name in GROUPS["curricula"]:
        for field, words in (("overlap", "with head"), ("base", "base alone")):
            rows = [run[-1][field] for run in variants[name]["runs"]]
            curves[f"{name}: {words}"] = torch.tensor(rows).mean(dim=0).tolist()
    plain, first = (curves[f"{n}: base alone"][-1] for n in GROUPS["curricula"])
    finding = (
        "The base logits alone, last draft: "
        f"{100 * plain:.0f} %, with the curriculum {100 * first:.0f} %"
    )
    with drawing((11, 6.0)) as figure:
        axes = figure.add_subplot()
        for name, curve in curves.items():
            colour, _, marker = LOOKS[name.partition(":")[0]]
            dash = "-" if name.endswith("head") else ":"
            positions = range(1, len(curve) + 1)
            axes.plot(positions, curve, dash, marker=marker, color=colour, lw=2.5)
        labels = spread([curve[-1] for curve in curves.values()], 0.06 * _height(axes))
        for (name, curve), height in zip(curves.items(), labels, strict=True):
            colour = LOOKS[name.partition(":")[0]][0]
            axes.text(len(curve) + 0.15, height, name, color=colour, va="center")
        axes.set_xlabel(
            "position of the draft in the block (1 = right after the anchor)"
        )
        axes.set_ylabel("overlap with the target's law")
        set_title(figure, finding)
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def forcing_picture(curves: Mapping[str, Sequence[float]]) -> Picture:
    """Draw acceptance on given text against acceptance in decoding."""
    (first, text), (second, decoded) = curves.items()
    finding = (
        f"The last draft: kept {100 * text[-1]:.0f} % of the time {first}, "
        f"{100 * decoded[-1]:.0f} % {second}"
    )
    figure = curve_figure(curves, finding, ylabel="chance to keep a draft")
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def _draw_runs(
    axes: Axes, name: str, runs: Sequence[Sequence[Mapping[str, Any]]], measure: str
) -> None:
    colour, dash, marker = LOOKS[name]
    steps = [row["step"] for row in runs[0]]
    table = torch.tensor([[MEASURES[measure](row) for row in run] for run in runs])
    low, high = table.amin(dim=0), table.amax(dim=0)
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)
    mean = table.mean(dim=0)
    axes.plot(steps, mean, dash, marker=marker, markevery=2, color=colour, lw=2.5)


def _height(axes: Axes) -> float:
    low, high = axes.get_ylim()
    return high - low
