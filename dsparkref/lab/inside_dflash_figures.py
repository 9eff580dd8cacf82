"""The figures of notebook 04: attention in a cycle, masks, taps, slots, the cache.

Each returns a ``Picture``: the figure, titled with what it shows, and its numbers as
text. The titles are computed from the numbers.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dsparkref.draft.blocks import training_mask
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    OTHER_COLOUR,
    Axes,
    curve_figure,
    drawing,
    set_title,
)
from dsparkref.lab.pictures import Picture

CONTEXT_COLOUR = DRAFTER_COLOURS["autoregressive"]
BLOCK_COLOUR = DRAFTER_COLOURS["dflash"]
HIDDEN_COLOUR = "#E8E8E8"
WAYS = ("both ways", "only backwards")
OVERLAP_LABEL = "overlap with the target's law\n(1 - TV, mean over blocks)"
# Cells of a heat map get their number written in up to this many rows.
WRITTEN_ROWS = 8


def attention_picture(entry: tuple[str, Tensor, Sequence[str]]) -> Picture:
    """Draw where the slots of a block look: a layer's name, its weights, the words.

    The weights are [Q, T+Q], the words those of the context.
    """
    name, weights, words = entry
    slots, length = len(weights), len(words)
    shares = _attention_shares(weights, length)
    finding = (
        f"{name}: slot 0 looks ahead, with {shares['later slots'][0]:.0f} % "
        "of its attention"
    )
    with drawing((12, 5.2)) as figure:
        axes = figure.add_subplot()
        shown = axes.imshow(weights, cmap="Oranges", aspect="auto", vmin=0)
        axes.axvline(length - 0.5, color=OTHER_COLOUR, linewidth=2)
        labels = [*words, *_slot_names(slots)]
        axes.set_xticks(range(length + slots), labels, rotation=90, fontsize=11)
        axes.set_yticks(range(slots), _slot_names(slots), fontsize=13)
        axes.set_xlabel(
            "key: context tokens, then the block's slots (slot 0: the anchor)"
        )
        axes.set_ylabel("query")
        figure.colorbar(shown, label="weight, mean over heads", pad=0.01)
        set_title(figure, finding)
    table = text_table(shares, _slot_names(slots), head="% of attention on", digits=0)
    return Picture(figure, f"{finding}\n{table}")


def mask_picture(entry: tuple[Tensor, Sequence[int], int]) -> Picture:
    """Draw what the slots of several blocks see: the mask [P, S+P], anchors, S."""
    mask, anchors, length = entry
    rows, slots = len(mask), len(mask) // len(anchors)
    seen = [int(mask[block * slots, :length].sum()) for block in range(len(anchors))]
    whole = all(
        mask[start : start + slots, length + start : length + start + slots].all()
        for start in range(0, rows, slots)
    )
    way = WAYS[0] if whole else WAYS[1]
    counts = " and ".join(map(str, seen))
    finding = f"Blocks see {counts} context tokens; inside a block, {way}"
    with drawing((11, 1.6 + 9 * rows / mask.shape[1])) as figure:
        _draw_mask(figure.add_subplot(), mask, anchors, length)
        set_title(figure, finding)
    return Picture(figure, "\n".join([finding, *_mask_lines(mask, slots, length)]))


def moving_masks(places: Sequence[int]) -> dict[tuple[int, str], tuple]:
    """Return masks of two small blocks in ten tokens; the second anchor moves."""
    masks = {}
    for place in places:
        for way in WAYS:
            anchors = torch.tensor([[2, place]])
            mask = training_mask(anchors, 4, 10, causal=way == WAYS[1])
            masks[place, way] = mask[0, 0], [2, place], 10
    return masks


def taps_picture(curves: Mapping[str, Sequence[float]], note: str) -> Picture:
    """Draw one drafter fed with the right layers, and with wrong ones."""
    right, wrong = (100 * curves[n][-1] for n in ("right", "one layer early"))
    finding = f"One layer early: no error, and {wrong:.0f} % instead of {right:.0f} %"
    figure = curve_figure(curves, finding, ylabel=OVERLAP_LABEL, note=note)
    return Picture(figure, f"{finding} at the end\n{text_table(curves)}")


def alignment_picture(tables: Mapping[str, Tensor]) -> Picture:
    """Draw which token each draft fits, under two readings of the slots."""
    best = {name: _best_shift(table) for name, table in tables.items()}
    said = [f"{n}, draft k says token {_shifted(s)}" for n, (s, _) in best.items()]
    finding = "; ".join(said).capitalize()
    with drawing((12, 5.4)) as figure:
        for number, (name, table) in enumerate(tables.items()):
            axes = figure.add_subplot(1, 2, number + 1)
            axes.imshow(table, cmap="Oranges", vmin=0, vmax=1, aspect="auto")
            drafts, columns = table.shape
            axes.set_xticks(range(columns), ["x0", *range(1, columns)])
            axes.set_yticks(range(drafts), range(1, drafts + 1))
            axes.set_xlabel("token after the anchor x0")
            axes.set_ylabel("" if number else "draft")
            shift, overlap = best[name]
            where = f"{100 * overlap:.0f} % on token {_shifted(shift)}"
            axes.set_title(f"{name}: {where}", fontsize=15)
            _write_cells(axes, table)
        set_title(figure, finding)
    lines = [finding]
    for name, table in tables.items():
        rows = {f"draft {k + 1}": row.tolist() for k, row in enumerate(table)}
        lines.append(text_table(rows, ["x0", *range(1, table.shape[1])], head=name))
    return Picture(figure, "\n".join(lines))


def cache_picture(context_lens: Sequence[int]) -> Picture:
    """Draw the context rows projected per cycle, with and without a cache."""
    lengths = torch.tensor(context_lens)
    fresh = torch.cat([lengths[:1], lengths.diff()])
    finding = (
        f"{len(lengths)} cycles: {int(fresh.sum())} rows are projected with the cache, "
        f"{int(lengths.sum())} without"
    )
    with drawing((11, 4.8)) as figure:
        axes = figure.add_subplot()
        places = torch.arange(1, len(lengths) + 1)
        axes.bar(places, lengths, color=CONTEXT_COLOUR, alpha=0.4, label="without")
        axes.bar(places, fresh, color=BLOCK_COLOUR, label="with the cache")
        axes.set_xlabel("cycle")
        axes.set_ylabel("context rows projected")
        axes.set_xticks(places.tolist())
        axes.legend(frameon=False)
        set_title(figure, finding)
    rows = {"without": lengths.tolist(), "with": fresh.tolist()}
    return Picture(figure, f"{finding}\n{text_table(rows, head='cycle', digits=0)}")


def _attention_shares(weights: Tensor, length: int) -> dict[str, list[float]]:
    """Return what part of each slot's attention goes where, in percent."""
    block = 100 * weights[:, length:]
    return {
        "context": (100 * weights[:, :length]).sum(dim=-1).tolist(),
        "earlier slots": block.tril(-1).sum(dim=-1).tolist(),
        "itself": block.diagonal().tolist(),
        "later slots": block.triu(1).sum(dim=-1).tolist(),
    }


def _slot_names(slots: int) -> list[str]:
    return [f"slot {k}" for k in range(slots)]


def _draw_mask(axes: Axes, mask: Tensor, anchors: Sequence[int], length: int) -> None:
    from matplotlib.colors import ListedColormap

    slots = len(mask) // len(anchors)
    kind = mask.int()  # 0: hidden, 1: context, 2: block
    kind[:, length:] *= 2
    colours = ListedColormap([HIDDEN_COLOUR, CONTEXT_COLOUR, BLOCK_COLOUR])
    axes.pcolormesh(kind, cmap=colours, vmin=0, vmax=2, edgecolors="white", linewidth=1)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.axvline(length, color="black", linewidth=2)
    axes.set_xticks([a + 0.5 for a in anchors], [f"x{a}" for a in anchors])
    middles = [(block + 0.5) * slots for block in range(len(anchors))]
    axes.set_yticks(middles, [f"block at {a}" for a in anchors])
    axes.set_xlabel("key: context tokens (dark), then the slots of all blocks (orange)")


def _mask_lines(mask: Tensor, slots: int, length: int) -> list[str]:
    lines = []
    for number, row in enumerate(mask.int().tolist()):
        cells = "".join(".#"[value] for value in row)
        name = f"block {number // slots + 1} slot {number % slots}"
        lines.append(f"{name}  {cells[:length]} | {cells[length:]}")
    return lines


def _best_shift(table: Tensor) -> tuple[int, float]:
    """Return by how many tokens the drafts are off, and their overlap there."""
    drafts = torch.arange(len(table))
    means = {s: float(table[drafts, drafts + 1 + s].mean()) for s in (-1, 0, 1)}
    best = max(means, key=lambda shift: means[shift])
    return best, means[best]


def _shifted(shift: int) -> str:
    return {-1: "k - 1", 0: "k", 1: "k + 1"}[shift]


def _write_cells(axes: Axes, table: Tensor) -> None:
    if len(table) > WRITTEN_ROWS:
        return
    for row, values in enumerate(table.tolist()):
        for column, value in enumerate(values):
            shade, text = "white" if value > 0.6 else "black", f"{100 * value:.0f}"
            axes.text(
                column, row, text, ha="center", va="center", color=shade, fontsize=12
            )
