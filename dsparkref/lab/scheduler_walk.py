"""Algorithm 1 step by step: which draft is next, B, tau, Theta, and why it ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.lab.figures import OTHER_COLOUR, Axes, drawing, set_title
from dsparkref.lab.pictures import Picture
from dsparkref.verify.scheduler import StepsPerSecond, rank_drafts, throughput_curve

TAKEN, STOPPED, CUT_OFF, WAITING = "#009E73", "#D55E00", "#BBBBBB", "#EEEEEE"
# Confidences of two requests, made by hand: one sure of itself, one not.
TWO_REQUESTS = torch.tensor(
    [[0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7], [0.9, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3]]
)


@dataclass(frozen=True)
class Step:
    """One draft of the ranking, as Algorithm 1 meets it."""

    # the draft asked about: request and position, both from 1; None at the start
    draft: tuple[int, int] | None
    # its survival; NaN at the start
    survival: float
    # tokens of the step with it, B
    batch_tokens: int
    # tokens expected from the step, tau
    expected_tokens: float
    # tau SPS(B)
    throughput: float
    # what the algorithm says: "start", "taken", "stop" or "not visited"
    said: str


def schedule_steps(
    chances: Float[Tensor, "R K"], steps_per_second: StepsPerSecond
) -> list[Step]:
    """Return the steps of Algorithm 1 in order, and those that the stop cuts off.

    >>> sps = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})  # appendix A
    >>> steps = schedule_steps(torch.tensor([[0.8, 0.72]]), sps)
    >>> [(step.draft, round(step.throughput, 3), step.said) for step in steps]
    [(None, 1.0, 'start'), ((1, 1), 0.9, 'stop'), ((1, 2), 1.134, 'not visited')]
    """
    gains, requests = rank_drafts(chances)
    curve = throughput_curve(chances, steps_per_second).tolist()
    size, tokens = len(chances), float(len(chances))
    steps = [Step(None, float("nan"), size, tokens, curve[0], "start")]
    taken = [0] * size
    for i, theta in enumerate(curve[1:]):
        request, gain = int(requests[i]), gains[i].item()
        taken[request] += 1
        tokens += gain
        before = steps[-1]
        said = "taken" if theta > before.throughput else "stop"
        if before.said in ("stop", "not visited"):
            said = "not visited"
        draft = request + 1, taken[request]
        steps.append(Step(draft, gain, size + i + 1, tokens, theta, said))
    return steps


def why_it_ends(steps: Sequence[Step], steps_per_second: StepsPerSecond) -> str:
    """Say what ends Algorithm 1."""
    if any(step.said == "stop" for step in steps):
        return "a draft does not raise Theta"
    if steps[-1].batch_tokens == steps_per_second.capacity:
        return "the table ends"
    return "no draft is left that may stand"


# curve, all steps, the number of the one shown, what ends the algorithm
Walk = tuple[str, Sequence[Step], int, str]


def walks(
    chances: Float[Tensor, "R K"], curves: Mapping[str, StepsPerSecond]
) -> dict[tuple[str, int], Walk]:
    """Return (curve, number of the draft) -> what ``walk_picture`` draws."""
    table: dict[tuple[str, int], Walk] = {}
    for name, sps in curves.items():
        steps = schedule_steps(chances, sps)
        for number in range(len(steps)):
            table[name, number] = name, steps, number, why_it_ends(steps, sps)
    return table


def walk_picture(entry: Walk) -> Picture:
    """Draw Algorithm 1 at one draft of the ranking: Theta so far, and what it says.

    The curve behind it, in grey, is what the search would see.
    """
    name, steps, number, ending = entry
    step = steps[number]
    finding = f"No. {number}: {_said(steps, number)}"
    with drawing((11, 6.4)) as figure:
        top, bottom = figure.subplots(2, 1, gridspec_kw={"height_ratios": [3, 1.3]})
        thetas = [found.throughput for found in steps]
        sizes = [found.batch_tokens for found in steps]
        top.plot(sizes, thetas, color="#CCCCCC", linewidth=2)
        top.plot(
            sizes[: number + 1], thetas[: number + 1], color="black", linewidth=2.4
        )
        for found in steps[: number + 1]:
            top.plot(found.batch_tokens, found.throughput, "o", color=_shade(found))
        top.plot(
            step.batch_tokens, step.throughput, "o", markersize=13, color=_shade(step)
        )
        top.set_xticks(sizes)
        top.set_ylim(0, 1.08 * max(thetas))
        top.set_xlabel("B, tokens of the step")
        top.set_ylabel("Theta = tau SPS(B)")
        top.set_title(name, loc="left", fontsize=12.5, color=OTHER_COLOUR)
        _draw_drafts(bottom, steps, number)
        set_title(figure, finding)
    lines = ["  no.  draft      a   B    tau   Theta  said"]
    for place, found in enumerate(steps[: number + 1]):
        draft = "-" if found.draft is None else "{},{}".format(*found.draft)
        chance = "-" if math.isnan(found.survival) else f"{found.survival:.2f}"
        lines.append(
            f"{place:5}  {draft:>5}  {chance:>5}  {found.batch_tokens:2}  "
            f"{found.expected_tokens:5.2f}  {found.throughput:6.2f}  {found.said}"
        )
    lines.append(f"it ends because {ending} ({name})")
    return Picture(figure, "\n".join([finding, *lines]))


def _said(steps: Sequence[Step], number: int) -> str:
    step = steps[number]
    if step.draft is None:
        return f"no drafts yet, Theta {step.throughput:.2f}"
    request, position = step.draft
    before = steps[number - 1].throughput
    moves = f"Theta {before:.2f} to {step.throughput:.2f}"
    return f"request {request}, draft {position}: {moves}: {step.said}"


def _shade(step: Step) -> str:
    return {"stop": STOPPED, "not visited": CUT_OFF}.get(step.said, TAKEN)


def _draw_drafts(axes: Axes, steps: Sequence[Step], number: int) -> None:
    """Draw every draft as a box with its survival, coloured by what became of it."""
    for place, step in enumerate(steps[1:], start=1):
        assert step.draft is not None
        request, position = step.draft
        colour = _shade(step) if place <= number else WAITING
        edge = {"edgecolor": "black", "linewidth": 2.4} if place == number else {}
        axes.barh(-request, 0.92, 0.8, position - 0.46, color=colour, **edge)
        shade = "white" if place <= number and step.said != "not visited" else "black"
        style = {"ha": "center", "va": "center", "color": shade, "fontsize": 13}
        axes.text(position, -request, f"{step.survival:.2f}", **style)
    requests = sorted({step.draft[0] for step in steps if step.draft})
    axes.set_yticks([-r for r in requests], [f"request {r}" for r in requests])
    axes.set_xticks(range(1, max(s.draft[1] for s in steps if s.draft) + 1))
    axes.set_xlabel("draft (its survival in the box)")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
