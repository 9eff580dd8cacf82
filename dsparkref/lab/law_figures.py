"""The figures of notebook 02: laws beside the law that should be, and what is kept.

Each returns a ``Picture``: the figure, titled with what it shows, and all its numbers
as text. The titles are computed from the numbers, so that they cannot say otherwise.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dsparkref.lab.course import text_table
from dsparkref.lab.figures import Axes, drawing, look, set_title
from dsparkref.lab.pictures import Picture
from dsparkref.verify.rejection import accept_rate, residual_distribution
from dsparkref.verify.sampling import probabilities

TARGET_COLOUR = look("autoregressive")[0]
DRAFT_COLOUR = look("dflash")[0]
# what is neither the target's nor a drafter's law
WRONG_COLOUR = "#E69F00"
REPLACED_COLOUR = "#F0E442"
# The error bars of counted shares: four standard errors.
ERRORS = 4
# Characters of a token below its bar; some tokens are nothing but a row of blanks.
LONGEST = 14
# Two bars a token: where they stand, how wide they are, and what fits inside one.
LEFT, RIGHT, WIDTH, INNER = -0.21, 0.21, 0.38, 0.32


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the total variation distance of two laws: 1 minus their overlap."""
    return 0.5 * float((found - wanted).abs().sum())


def pieces_picture(p_target: Tensor, p_draft: Tensor, words: Sequence[str]) -> Picture:
    """Draw how kept drafts and replacements add up to the target's law."""
    kept = torch.minimum(p_target, p_draft)
    replaced = (1 - kept.sum()) * residual_distribution(p_target, p_draft)
    finding = (
        f"{100 * kept.sum():.0f} % kept drafts and {100 * replaced.sum():.0f} % "
        "replacements add up to the target's law"
    )
    with drawing((11, 4.6)) as figure:
        axes = figure.add_subplot()
        frame = {"color": "white", "edgecolor": TARGET_COLOUR, "linewidth": 3}
        filled = {"color": REPLACED_COLOUR, "width": INNER, "bottom": kept.tolist()}
        hatched = {"color": DRAFT_COLOUR, "width": INNER, "hatch": "//"}
        _bars(axes, LEFT, p_draft, color=DRAFT_COLOUR, label="drafted")
        _bars(axes, RIGHT, p_target, label="target's law", **frame)
        _bars(axes, RIGHT, kept, label="kept", **hatched)
        _bars(axes, RIGHT, replaced, label="replaced", **filled)
        _finish(axes, words, float(torch.maximum(p_target, p_draft).max()))
        set_title(figure, finding)
    rows = {"drafted": p_draft, "kept": kept, "replaced": replaced}
    rows |= {"emitted": kept + replaced, "target": p_target}
    table = {name: row.tolist() for name, row in rows.items()}
    return Picture(figure, f"{finding}\n{text_table(table, words, head='token')}")


def sampled_picture(
    p_target: Tensor,
    p_draft: Tensor,
    counts: Tensor,
    words: Sequence[str],
    tokens: Tensor | None = None,
    drafter: str = "dflash",
) -> Picture:
    """Draw both laws as bars, and what came out as dots with four standard errors.

    ``tokens`` are the ids shown, by ``words``; None: all.
    """
    total, off = int(counts.sum()), 100 * distance(p_draft, p_target)
    shown = torch.arange(len(words)) if tokens is None else tokens.cpu()
    p, q, shares = (x.cpu()[shown] for x in (p_target, p_draft, counts / total))
    error = ERRORS * (p * (1 - p) / total).sqrt()
    inside = bool(((shares - p).abs() <= error + 1e-6).all())
    finding = (
        f"The drafter is {off:.0f} % off; {total:,} emitted tokens follow the target"
        if inside
        else f"The drafter is {off:.0f} % off, and {total:,} emitted tokens are off too"
    )
    with drawing((11, 4.6)) as figure:
        axes = figure.add_subplot()
        _bars(axes, LEFT, q, color=look(drafter)[0], label="drafter")
        _bars(axes, RIGHT, p, color=TARGET_COLOUR, label="target")
        axes.errorbar(
            [place + RIGHT for place in range(len(words))],
            shares.tolist(),
            yerr=error.tolist(),
            fmt="o",
            color="black",
            markerfacecolor="white",
            markersize=9,
            capsize=6,
            clip_on=False,
            label=f"emitted, ± {ERRORS} standard errors",
        )
        labels = [
            word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in words
        ]
        _finish(axes, labels, float(torch.stack([p, q, shares + error]).max()))
        set_title(figure, finding)
    laws = {"drafter": q, "target": p, "emitted": shares}
    rows = {name: law.tolist() for name, law in laws.items()}
    return Picture(figure, f"{finding}\n{text_table(rows, words, head='token')}")


def laws_picture(
    laws: Mapping[str, tuple[Tensor, Tensor]], words: Sequence[str], columns: int = 3
) -> Picture:
    """Draw one panel per verifier: (the target's law, the law that it emits)."""
    off = {name: distance(found, wanted) for name, (wanted, found) in laws.items()}
    bent = [100 * value for value in off.values() if value > 1e-9]
    finding = f"{len(bent)} of {len(off)} bend the law"
    if bent:
        finding += f": by {min(bent):.0f} to {max(bent):.0f} % of what is written"
    rows = -(-len(laws) // columns)
    top = max(float(torch.maximum(*pair).max()) for pair in laws.values())
    with drawing((12, 0.6 + 3.1 * rows)) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
        for axes, (name, (wanted, found)) in zip(panels, laws.items(), strict=False):
            _bars(axes, LEFT, wanted, color=TARGET_COLOUR)
            _bars(axes, RIGHT, found, color=WRONG_COLOUR)
            axes.set_xticks(range(len(words)), words, fontsize=12)
            axes.set_ylim(0, 1.08 * top)
            title = "\n".join(textwrap.wrap(name, 90 // columns))
            axes.set_title(title, fontsize=14, loc="left")
        for axes in panels[len(laws) :]:
            axes.axis("off")
        names = {"target's law": TARGET_COLOUR, "emitted": WRONG_COLOUR}
        handles = [panels[0].bar(0, 0, color=colour) for colour in names.values()]
        figure.legend(
            handles, names, loc="outside lower center", ncols=2, frameon=False
        )
        set_title(figure, finding)
    table: dict[str, list[float]] = {}
    last = None
    for name, (wanted, found) in laws.items():
        if last is None or not torch.equal(last, wanted):
            title = f"target, for {name}" if table else "target"
            table[title], last = [*wanted.tolist(), 0.0], wanted
        table[name] = [*found.tolist(), off[name]]
    text = text_table(table, [*words, "off by"], head="verifier")
    return Picture(figure, f"{finding}\n{text}")


def keeping_chances(p_target: Tensor, p_draft: Tensor) -> dict[str, float]:
    """Return the chance that a draft stands, by the way it is drafted and judged."""
    best = int(p_draft.argmax())
    return {
        "sampled draft, rejection": float(accept_rate(p_target, p_draft)),
        "sampled draft, token match": float((p_target * p_draft).sum()),
        "greedy draft, either": float(p_target[best]),
    }


def keeping_picture(temperatures: tuple[float, float]) -> Picture:
    """Draw what is kept where target and drafter differ in temperature alone."""
    weather = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    p_target, p_draft = (probabilities(weather.log(), t) for t in temperatures)
    chances = keeping_chances(p_target, p_draft)
    sampled, _, greedy = (round(100 * chance) for chance in chances.values())
    winner = "greedy" if greedy > sampled else "sampled"
    finding = f"Best: {winner} drafts; rejection keeps {sampled} %, greedy {greedy} %"
    if greedy == sampled:
        finding = f"A sampled and a greedy draft stand equally often: {greedy} %"
    with drawing((11, 3.6)) as figure:
        axes = figure.add_subplot()
        colours = [DRAFT_COLOUR, REPLACED_COLOUR, TARGET_COLOUR]
        names, values = list(chances), list(chances.values())
        axes.barh(names, values, color=colours, height=0.6)
        for place, value in enumerate(values):
            axes.text(value + 0.01, place, f"{100 * value:.0f} %", va="center")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.1)
        axes.set_xlabel("chance that the draft stands")
        set_title(figure, finding)
    rows = {name: [value] for name, value in chances.items()}
    return Picture(figure, f"{finding}\n{text_table(rows, ['kept'], head='draft')}")


def _bars(axes: Axes, shift: float, heights: Tensor, **style: Any) -> None:
    """Draw a bar for each token, beside its name."""
    places = [place + shift for place in range(len(heights))]
    axes.bar(places, heights.tolist(), **({"width": WIDTH} | style))


def _finish(axes: Axes, words: Sequence[str], highest: float) -> None:
    """Name the tokens, leave room for the legend."""
    axes.set_xticks(range(len(words)), words)
    axes.set_ylim(0, 1.35 * highest)
    axes.set_ylabel("probability")
    axes.legend(frameon=False, ncols=4, loc="upper center")
