"""The figures of notebook 05: two rules, strongest pushes, rank, gates."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.analysis import toy
from dsparkref.analysis.markov_table import Push
from dsparkref.decode.target import Target
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    OTHER_COLOUR,
    curve_figure,
    drawing,
    look,
    set_title,
)
from dsparkref.lab.pictures import Picture
from dsparkref.lab.terminal import token_text
from dsparkref.lab.world_figures import OVERLAP_LABEL, pairs_picture
from dsparkref.records import Proposal

GATE_BINS = 10
OPEN = 0.9


def pushed_pairs_picture(
    entry: tuple[toy.MarkovWorld, toy.Laws, toy.Laws, float],
) -> Picture:
    """Draw the joint law of two tokens, the drafter's under one push."""
    world, target, draft, push = entry
    return pairs_picture(world, target, draft, f"drafter with push {push:g}")


def rules_picture(shares: Mapping[str, Mapping[str, float]]) -> Picture:
    """Draw how often the second draft is kept, per head and per country."""
    means = {name: sum(row.values()) / len(row) for name, row in shares.items()}
    said = ", ".join(f"{name} {100 * mean:.0f} %" for name, mean in means.items())
    finding = f"Second drafts kept: {said}"
    countries = list(next(iter(shares.values())))
    looks = {"no head": "dflash", "vanilla": "markov", "gated": "gated"}
    with drawing((11, 4.6)) as figure:
        axes = figure.add_subplot()
        for number, (name, row) in enumerate(shares.items()):
            places = [number - 0.2, number + 0.2]
            colour, _ = look(looks[name])
            bars = axes.bar(places, row.values(), 0.36, color=colour)
            labels = [f"{c}\n{100 * row[c]:.0f} %" for c in countries]
            axes.bar_label(bars, labels, padding=3)
        axes.set_xticks(range(len(shares)), list(shares))
        axes.set_ylim(0, 1.25)
        axes.set_yticks([0, 0.5, 1])
        axes.set_ylabel("chance that draft 2 stands")
        set_title(figure, finding)
    rows = {name: list(row.values()) for name, row in shares.items()}
    return Picture(figure, f"{finding}\n{text_table(rows, countries, head='head')}")


def push_table(target: Target, anchor: Int[Tensor, " 1"], draft: Proposal) -> str:
    """Return as text what each draft would have been without its push.

    ``draft`` is greedy: its tokens are the favourites with the head.
    """
    tokens = draft.tokens[0]
    before = torch.cat([anchor, tokens[:-1]])
    both = draft.base_logits, draft.draft_logits
    base, pushed = (x[0].float().softmax(dim=-1) for x in both if x is not None)
    lines = [f"{'token before':14}{'base alone':>14}    p  {'with the head':>14}    p"]
    for k, token in enumerate(tokens.tolist()):
        own = int(base[k].argmax())
        names = [repr(token_text(target, x)) for x in (int(before[k]), own, token)]
        shares = f"{base[k, own]:.2f}", f"{pushed[k, token]:.2f}"
        lines.append(
            f"{names[0]:14}{names[1]:>14}  {shares[0]}  {names[2]:>14}  {shares[1]}"
        )
    return "\n".join(lines)


def between_words(target: Target, pushes: Sequence[Push]) -> list[Push]:
    """Return, for each pushed word, the word that pushes it most; strongest first."""
    strongest: dict[int, Push] = {}
    for push in sorted(pushes, key=lambda push: push.logits):
        pair = [token_text(target, token) for token in (push.before, push.token)]
        if all(text.strip().isalpha() for text in pair):
            strongest[push.token] = push
    return sorted(strongest.values(), key=lambda push: -push.logits)


def pushes_picture(target: Target, pushes: Sequence[Push]) -> Picture:
    """Draw single pushes as bars, named by their two tokens."""
    texts = [[token_text(target, x) for x in (p.before, p.token)] for p in pushes]
    names = [f"{before.strip()} → {token.strip()}" for before, token in texts]
    finding = f"The strongest push is {names[0]}, by {pushes[0].logits:.0f} logits"
    with drawing((11, 0.9 + 0.42 * len(pushes))) as figure:
        axes = figure.add_subplot()
        heights = [push.logits for push in pushes]
        bars = axes.barh(range(len(pushes)), heights, color=DRAFTER_COLOURS["markov"])
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], padding=4)
        axes.set_yticks(range(len(pushes)), names)
        axes.invert_yaxis()
        axes.set_xlabel("logits above the mean of the row")
        set_title(figure, finding)
    rows = {name: [height] for name, height in zip(names, heights, strict=True)}
    table = text_table(rows, ["logits"], head="before → pushed", digits=1)
    return Picture(figure, f"{finding}\n{table}")


def pushed_after(target: Target, pushes: Sequence[Push]) -> str:
    """Return the pushes of each token as one line of text."""
    lines: dict[str, list[str]] = {}
    for push in pushes:
        name = repr(token_text(target, push.before))
        said = f"{token_text(target, push.token)!r} {push.logits:.0f}"
        lines.setdefault(name, []).append(said)
    return "\n".join(f"{name:10} {', '.join(said)}" for name, said in lines.items())


def rank_curves_picture(entry: tuple[int, Mapping[str, Sequence[float]]]) -> Picture:
    """Draw the overlap along the block at one rank, beside the whole drafters."""
    rank, curves = entry
    first, last = (100 * curves[f"rank {rank}"][k] for k in (0, -1))
    finding = f"Rank {rank}: {first:.0f} % of first drafts kept, {last:.0f} % of last"
    figure = curve_figure(curves, finding, ylabel=OVERLAP_LABEL, floor=0.3)
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def rank_picture(lengths: Mapping[int, float], whole: Mapping[str, float]) -> Picture:
    """Draw tokens per cycle over the rank, and whole drafters as level lines."""
    ranks, finding = list(lengths), rank_finding(lengths)
    with drawing((11, 5.6)) as figure:
        axes = figure.add_subplot()
        colour, marker = look("markov")
        places = range(len(ranks))
        axes.plot(places, lengths.values(), color=colour, marker=marker, linewidth=2.4)
        above = {"ha": "center", "textcoords": "offset points", "weight": "bold"}
        for place, length in enumerate(lengths.values()):
            text = f"{length:.1f}"
            axes.annotate(text, (place, length), (0, 10), color=colour, **above)
        for name, length in whole.items():
            axes.axhline(length, color=look(name)[0], linestyle="--", linewidth=2)
            text = f"{name}, trained without a head: {length:.1f}"
            axes.text(-0.3, length + 0.06, text, va="bottom", color=look(name)[0])
        axes.set_xticks(places, list(map(str, ranks)))
        axes.set_xlabel("rank that is left")
        axes.set_ylabel("tokens per cycle")
        axes.set_ylim(1, 1.15 * max([*lengths.values(), *whole.values()]))
        set_title(figure, finding)
    rows = {"cut head": list(lengths.values())}
    lines = [text_table(rows, ranks, head="rank", digits=1)]
    lines += [f"{name} (no head): {length:.1f}" for name, length in whole.items()]
    return Picture(figure, "\n".join([finding, *lines]))


def rank_finding(lengths: Mapping[int, float]) -> str:
    """Say what the rank is worth.

    >>> rank_finding({0: 2.0, 4: 3.5, 8: 4.0})
    'From 2.0 to 4.0 tokens per cycle: rank 4 of 8 is worth 75 % of it'
    >>> rank_finding({0: 1.0, 8: 1.0})
    '1.0 tokens per cycle at rank 0, 1.0 at rank 8'
    """
    ranks = list(lengths)
    least, most = lengths[ranks[0]], lengths[ranks[-1]]
    if most <= least:
        return (
            f"{least:.1f} tokens per cycle at rank {ranks[0]}, "
            f"{most:.1f} at rank {ranks[-1]}"
        )
    gains = {
        rank: (length - least) / (most - least) for rank, length in lengths.items()
    }
    half = next(rank for rank in ranks if gains[rank] >= 0.5)
    return (
        f"From {least:.1f} to {most:.1f} tokens per cycle: "
        f"rank {half} of {ranks[-1]} is worth {100 * gains[half]:.0f} % of it"
    )


def gate_picture(gates: Float[Tensor, "n r"]) -> Picture:
    """Draw how far open the gates stand, as shares of all of them."""
    shares = torch.histc(gates.float().cpu(), GATE_BINS, 0.0, 1.0) / gates.numel()
    wide = float((gates > OPEN).float().mean())
    finding = f"{100 * wide:.0f} % of the gates are more than {100 * OPEN:.0f} % open"
    edges = [f"{k / GATE_BINS:.1f}-{(k + 1) / GATE_BINS:.1f}" for k in range(GATE_BINS)]
    with drawing((11, 4.4)) as figure:
        axes = figure.add_subplot()
        bars = axes.bar(edges, shares.tolist(), 0.9, color=DRAFTER_COLOURS["gated"])
        labels = [f"{100 * share:.0f} %" for share in shares.tolist()]
        axes.bar_label(bars, labels, padding=3, color=OTHER_COLOUR)
        axes.set_ylim(0, 1.12 * float(shares.max()))
        axes.set_xlabel("how far open (0: shut, 1: open)")
        axes.set_ylabel("share of the gates")
        axes.tick_params(axis="x", labelsize=12)
        set_title(figure, finding)
    rows = {edge: [share] for edge, share in zip(edges, shares.tolist(), strict=True)}
    return Picture(figure, f"{finding}\n{text_table(rows, ['share'], head='open')}")
