"""The figures and tables of notebook 06: what heads see, carry, keep and cost."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.analysis.memory import MemoryAcceptance
from dsparkref.decode.target import Target
from dsparkref.draft.describe import head_cost
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.heads import build_head
from dsparkref.draft.spec import DrafterSpec
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import Axes, curve_figure, drawing, look
from dsparkref.lab.figures import set_title as write_title
from dsparkref.lab.pictures import Picture
from dsparkref.lab.world_figures import EXACT_LABEL

# Of a step's seconds the median of so many is taken.
TIMED_STEPS = 200

Table = Mapping[str, Mapping[str, float]]


def memory_curves_picture(curves: Mapping[str, Sequence[float]]) -> Picture:
    """Draw exact conditional acceptance in the world of the shared word."""
    name = "one token back"
    worst = min(range(len(curves[name])), key=lambda k: curves[name][k])
    finding = (
        f"With one token of memory {100 * curves[name][worst]:.0f} % "
        f"of drafts {worst + 1} are kept"
    )
    figure = curve_figure(curves, finding, ylabel=EXACT_LABEL)
    return Picture(figure, f"{finding}\n{text_table(curves)}")


def worlds_heat_map(entry: tuple[str, Table]) -> Picture:
    """Draw heads against worlds: what they see against what decides."""
    counted, table = entry
    heads, worlds = list(table), list(next(iter(table.values())))
    one, all_of_them = heads[1], heads[-1]
    last = worlds[-1]
    low, high = table[one][last], table[all_of_them][last]
    finding = (
        f"Where two tokens decide: {low:.2f} with one token back, {high:.2f} with all"
    )
    grid = torch.tensor([[table[head][world] for world in worlds] for head in heads])
    with drawing((11, 4.8)) as figure:
        axes = figure.add_subplot()
        span = float(grid.min()), float(grid.max())
        image = axes.imshow(
            grid, cmap="Blues", vmin=span[0] - 0.3 * (span[1] - span[0])
        )
        axes.set_xticks(range(len(worlds)), worlds)
        axes.set_yticks(range(len(heads)), heads)
        axes.set_xlabel("how many tokens back the language looks")
        axes.set_ylabel("the head sees")
        _write_numbers(axes, grid)
        axes.set_aspect("auto")
        figure.colorbar(image, ax=axes, label=counted)
        write_title(figure, finding)
    rows = {head: list(table[head].values()) for head in heads}
    text = text_table(rows, worlds, head=counted)
    return Picture(figure, f"{finding}\n{text}")


def state_picture(
    tokens: Sequence[str], after: Sequence[Float[Tensor, " r"]], meanings: Sequence[str]
) -> Picture:
    """Draw a carried state after each token that the head has read."""
    states = torch.stack(list(after)).detach()  # [n, r]
    held = int(states[-1].argmax())
    finding = f"After {' '.join(tokens)!r} the state holds {meanings[held]!r}"
    with drawing((11, 3.6)) as figure:
        axes = figure.add_subplot()
        axes.imshow(states.T, cmap="Greens", vmin=0.0, vmax=1.4, aspect="auto")
        axes.set_xticks(range(len(tokens)), tokens)
        axes.set_yticks(range(len(meanings)), meanings)
        axes.set_xlabel("token read")
        axes.set_ylabel("number of the state")
        _write_numbers(axes, states.T)
        write_title(figure, finding)
    rows = {name: states[:, i].tolist() for i, name in enumerate(meanings)}
    return Picture(figure, f"{finding}\n{text_table(rows, tokens, head='state')}")


def by_block_size(
    drafters: Mapping[str, Drafter],
) -> dict[int, list[tuple[str, str]]]:
    """Group drafters: block size -> (short name, name); markov-k15 is markov at 15."""
    groups: dict[int, list[tuple[str, str]]] = {}
    for name, one in drafters.items():
        short = name.removesuffix(f"-k{one.block_size}")
        groups.setdefault(one.block_size, []).append((short, name))
    return groups


def place_table(found: Mapping[str, MemoryAcceptance]) -> str:
    """Return overlap where the token two back decides, and elsewhere, as text."""
    rows = {name: [one.at_places, one.elsewhere] for name, one in found.items()}
    return text_table(rows, ["at the places", "elsewhere"], head="drafter")


def places_picture(entry: tuple[int, Mapping[str, MemoryAcceptance]]) -> Picture:
    """Draw overlap where the token two back decides, and elsewhere, per drafter."""
    block, found = entry
    shares = {name: one.at_places for name, one in found.items()}
    least, most = (
        min(shares, key=shares.__getitem__),
        max(shares, key=shares.__getitem__),
    )
    finding = (
        f"K = {block}, where the token two back decides: "
        f"{least} {100 * shares[least]:.0f} %, {most} {100 * shares[most]:.0f} %"
    )
    with drawing((11, 5.0)) as figure:
        axes = figure.add_subplot()
        for number, (name, one) in enumerate(found.items()):
            colour, _ = look(name)
            for place, share, alpha, words in (
                (number - 0.2, one.at_places, 1.0, "at the\nplaces"),
                (number + 0.2, one.elsewhere, 0.35, "else-\nwhere"),
            ):
                bar = axes.bar(place, share, 0.36, color=colour, alpha=alpha)
                axes.bar_label(bar, [f"{100 * share:.0f} %"], padding=3)
                axes.text(place, -0.03, words, ha="center", va="top", fontsize=12)
        axes.set_xticks(range(len(found)), list(found))
        axes.tick_params(axis="x", length=0, pad=38)
        axes.set_ylim(0, 1.12)
        axes.set_ylabel("overlap with the target's law")
        write_title(figure, finding)
    return Picture(figure, f"{finding}\n{place_table(found)}")


def named_places(found: Mapping[str, MemoryAcceptance], count: int) -> str:
    """Return the first kinds of place as text: two words, the next, who keeps it."""
    rates: dict[str, dict[str, list[float]]] = {}
    for name, one in found.items():
        for place in one.places:
            kind = rates.setdefault(f"{place.before} → {place.token}", {})
            kind.setdefault(name, []).append(place.accept_rate)
    kinds = sorted(rates, key=lambda kind: -len(next(iter(rates[kind].values()))))
    rows = {
        kind: [statistics.mean(values) for values in rates[kind].values()]
        for kind in kinds[:count]
    }
    return text_table(rows, list(found), head="place")


def lengths_picture(lengths: Table) -> Picture:
    """Draw tokens per cycle: a group for each block size, a bar for each drafter."""
    parts = []
    for block, row in lengths.items():
        best = max(row, key=row.__getitem__)
        parts.append(f"{block}: {best} {row[best]:.1f}")
    finding = f"Most tokens per cycle at {', at '.join(parts)}"
    names = max((list(row) for row in lengths.values()), key=len)
    with drawing((11, 5.0)) as figure:
        axes, place, middles = figure.add_subplot(), 0.0, []
        for row in lengths.values():
            for name, length in row.items():
                bar = axes.bar(place, length, 0.86, color=look(name)[0])
                axes.bar_label(bar, [f"{length:.1f}"], padding=3)
                inside = {"rotation": 90, "color": "white", "weight": "bold"}
                axes.text(place, 0.1, name, ha="center", va="bottom", **inside)
                place += 1
            middles.append(place - (len(row) + 1) / 2)
            place += 1
        axes.set_xticks(middles, list(lengths))
        axes.tick_params(axis="x", length=0)
        axes.set_ylim(0, 1.12 * max(max(row.values()) for row in lengths.values()))
        axes.set_ylabel("tokens per cycle")
        write_title(figure, finding)
    columns = [
        [row.get(name, float("nan")) for row in lengths.values()] for name in names
    ]
    rows = dict(zip(names, columns, strict=True))
    table = text_table(rows, list(lengths), head="drafter", digits=1)
    return Picture(figure, f"{finding}\n{table}")


def at_qwen3_4b_sizes(spec: DrafterSpec) -> DrafterSpec:
    """Return a drafter's spec with the sizes of the heads released for Qwen3-4B."""
    sizes: dict[str, Any] = {"vocab_size": 151_936, "hidden_size": 2560}
    if spec.head == "domino":
        sizes |= {"gru_size": 1024, "inner_size": 256}
    elif spec.head != "dflash":
        sizes |= {"rank": 256}
    return replace(spec, **sizes)


def cost_table(specs: Mapping[str, DrafterSpec]) -> str:
    """Return what one step of each head costs and carries, counted exactly.

    Multiply-adds in matrix products, those of them that make V pushes out of a few
    numbers, numbers stored, numbers carried from one step to the next.
    """
    lines = ["head    multiply-adds  for V pushes  parameters  state"]
    for name, spec in specs.items():
        total, state = head_cost(spec)
        width = spec.inner_size if spec.head == "domino" else spec.rank
        out = width * spec.num_draftable
        with torch.device("meta"):
            head = build_head(spec, None)
        stored = sum(parameter.numel() for parameter in head.parameters())
        lines.append(f"{name:7}{total:>14,}  {out:>12,}{stored:>12,}{state:>7,}")
    return "\n".join(lines)


@torch.no_grad()
def step_microseconds(target: Target, drafter: Drafter) -> float:
    """Return the median time of a step of a drafter's head, in microseconds."""
    head, device = drafter.head, drafter.device
    hidden = torch.zeros(
        1, drafter.spec.hidden_size, device=device, dtype=drafter.dtype
    )
    token, state, times = torch.zeros(1).long().to(device), head.init_state(1), []
    for _ in range(TIMED_STEPS):
        start = target.clock()
        _, state = head.step(state, token, hidden)
        times.append(target.clock() - start)
    return 1e6 * statistics.median(times)


def base_picture(shares: Table) -> Picture:
    """Draw the overlap of base logits alone beside that of the whole drafter."""
    alone = {n: row["base alone"] for n, row in shares.items() if n != "dflash"}
    ends = sorted(alone, key=alone.__getitem__)[:: max(len(alone) - 1, 1)]
    said = ", ".join(f"{name} {100 * alone[name]:.0f} %" for name in ends)
    finding = f"Without the head, so much is kept: {said or 'there is none'}"
    with drawing((11, 4.8)) as figure:
        axes = figure.add_subplot()
        for number, (name, row) in enumerate(shares.items()):
            colour, _ = look(name)
            for (kind, share), shift, alpha in zip(
                row.items(), (-0.2, 0.2), (0.35, 1.0), strict=True
            ):
                bar = axes.bar(number + shift, share, 0.36, color=colour, alpha=alpha)
                axes.bar_label(bar, [f"{100 * share:.0f} %"], padding=3)
                axes.text(number + shift, 0.02, kind, rotation=90, ha="center",
                          va="bottom", color="black", fontsize=13)  # fmt: skip
        axes.set_xticks(range(len(shares)), list(shares))
        axes.set_ylim(0, 1.1)
        axes.set_ylabel("overlap, mean over the block")
        write_title(figure, finding)
    rows = {name: list(row.values()) for name, row in shares.items()}
    columns = list(next(iter(shares.values())))
    return Picture(figure, f"{finding}\n{text_table(rows, columns, head='drafter')}")


def _write_numbers(axes: Axes, grid: Tensor) -> None:
    middle = float(grid.min() + 0.7 * (grid.max() - grid.min()))
    for i, row in enumerate(grid.tolist()):
        for j, value in enumerate(row):
            colour = "white" if value > middle else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour)
