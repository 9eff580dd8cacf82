"""Exercises of notebook 09: throughput, ranking, a budget, Algorithm 1.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

import torch
from torch import Tensor

from dsparkref.lab.checks import Exercise
from dsparkref.verify.rejection import leading_run
from dsparkref.verify.scheduler import (
    StepsPerSecond,
    fill_budget,
    rank_drafts,
    schedule_prefixes,
    throughput_curve,
)

TWO = torch.tensor([[0.9, 0.81, 0.2], [0.5, 0.1, 0.05]])
ONE = torch.tensor([[0.8, 0.72]])
TIES = torch.tensor([[1.0, 1.0, 0.5], [1.0, 0.5, 0.0]])
APPENDIX_A = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})
SMOOTH = StepsPerSecond({1: 10.0, 2: 9.5, 4: 8.0, 8: 4.0, 12: 2.0})

# -- warm-up: Theta over the ranking ---------------------------------------------------


def _theta(gains: Tensor, start: float, sizes: Tensor, sps: StepsPerSecond) -> Tensor:
    tokens = torch.cat([gains.new_tensor([start]), gains]).cumsum(0)
    return tokens * torch.tensor([sps(b) for b in sizes.tolist()], dtype=torch.float64)


def _sizes(survival: Tensor, first: int) -> Tensor:
    return first + torch.arange(survival.numel() + 1)


def _sorted(survival: Tensor) -> Tensor:
    return survival.double().flatten().sort(descending=True).values


def _no_token_of_its_own(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return _theta(_sorted(survival), 0.0, _sizes(survival, len(survival)), sps)


def _drafts_alone(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    """Both begin at 0, and the first entry is that of one draft."""
    gains = _sorted(survival)
    rates = [sps(b) for b in range(1, len(gains) + 1)]
    return gains.cumsum(0) * torch.tensor(rates, dtype=torch.float64)


def _anchors_are_free(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    """It raises: 0 tokens are not in the table."""
    sizes = _sizes(survival, 0)
    return _theta(_sorted(survival), float(len(survival)), sizes, sps)


def _one_anchor(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return _theta(_sorted(survival), 1.0, _sizes(survival, 1), sps)


def _row_by_row(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    gains, size = survival.double().flatten(), len(survival)
    return _theta(gains, float(size), _sizes(survival, size), sps)


def _multiplied_again(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return throughput_curve(survival.cumprod(dim=1), sps)


def _one_speed(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    size = len(survival)
    sizes = torch.full((survival.numel() + 1,), size)
    return _theta(_sorted(survival), float(size), sizes, sps)


def _without_the_start(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return throughput_curve(survival, sps)[1:]


def _without_the_end(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return throughput_curve(survival, sps)[:-1]


THROUGHPUTS = Exercise(
    name="throughputs",
    reference=throughput_curve,
    cases=[(ONE, APPENDIX_A), (TWO, SMOOTH)],
    mistakes={
        "The first entry is missing: no draft taken in is a choice, too.": (
            _without_the_start
        ),
        "The last entry is missing: with n drafts there are n + 1 sizes, from none to "
        "all.": _without_the_end,
        "tau and B count the drafts alone, from the first one on. The R anchors are "
        "in B, R tokens of the target's own in tau, and no draft is a choice, too.": (
            _drafts_alone
        ),
        "tau begins at 0 here. Every request gets one token of the target's own, "
        "whatever becomes of its drafts.": _no_token_of_its_own,
        "A step of 0 tokens? The anchors are computed as well, one token for each "
        "request: B begins at R.": _anchors_are_free,
        "That fits one request. With R of them, B and tau both begin at R.": (
            _one_anchor
        ),
        "The drafts go in request by request. The best of all comes first, whosever it "
        "is.": _row_by_row,
        "The survivals are multiplied up once more. They are products already.": (
            _multiplied_again
        ),
        "One speed for all sizes. A step with more tokens is slower: look SPS up at "
        "each B.": _one_speed,
    },
)

# -- core: the ranking and its ties ----------------------------------------------------


def _in_order(survival: Tensor, order: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return survivals and requests of (request, position) pairs."""
    return (
        torch.stack([survival[r, j] for r, j in order]),
        torch.tensor([r for r, _ in order]),
    )


def _pairs(survival: Tensor) -> list[tuple[int, int]]:
    rows, block = survival.shape
    return [(r, j) for r in range(rows) for j in range(block) if survival[r, j] > 0]


def _ties_to_the_request(survival: Tensor) -> tuple[Tensor, Tensor]:
    order = sorted(_pairs(survival), key=lambda p: -survival[p].item())
    return _in_order(survival, order)


def _turned_round(survival: Tensor) -> tuple[Tensor, Tensor]:
    """Sort upwards, then reverse: the ties are reversed as well."""
    order = sorted(_pairs(survival), key=lambda p: (survival[p].item(), p[1], p[0]))
    return _in_order(survival, order[::-1])


def _worst_first(survival: Tensor) -> tuple[Tensor, Tensor]:
    order = sorted(_pairs(survival), key=lambda p: (survival[p].item(), p[1], p[0]))
    return _in_order(survival, order)


def _zeros_stay(survival: Tensor) -> tuple[Tensor, Tensor]:
    rows, block = survival.shape
    pairs = [(r, j) for j in range(block) for r in range(rows)]
    return _in_order(survival, sorted(pairs, key=lambda p: -survival[p].item()))


def _positions(survival: Tensor) -> tuple[Tensor, Tensor]:
    order = sorted(_pairs(survival), key=lambda p: (-survival[p].item(), p[1], p[0]))
    chances, _ = _in_order(survival, order)
    return chances, torch.tensor([j for _, j in order])


def _flat_sort(survival: Tensor) -> tuple[Tensor, Tensor]:
    """Row after row, sorted: ties to the request, zeros left in."""
    rows, block = survival.shape
    pairs = [(r, j) for r in range(rows) for j in range(block)]
    return _in_order(survival, sorted(pairs, key=lambda p: -survival[p].item()))


def _sort_by_position(survival: Tensor) -> tuple[Tensor, Tensor]:
    chances, order = survival.T.flatten().sort(descending=True)
    return chances[chances > 0], order[chances > 0] % len(survival)


def _sort_by_request(survival: Tensor) -> tuple[Tensor, Tensor]:
    chances, order = survival.flatten().sort(descending=True)
    return chances[chances > 0], order[chances > 0] // survival.shape[1]


def _sort_with_zeros(survival: Tensor) -> tuple[Tensor, Tensor]:
    chances, order = survival.flatten().sort(descending=True)
    return chances, order // survival.shape[1]


def _flat_places(survival: Tensor) -> tuple[Tensor, Tensor]:
    chances, order = survival.flatten().sort(descending=True)
    return chances, order


def _places_by_position(survival: Tensor) -> tuple[Tensor, Tensor]:
    """All but the last step: place % R is the request, place // R the position."""
    chances, order = survival.T.flatten().sort(descending=True, stable=True)
    return chances[chances > 0], order[chances > 0]


# up to 16 numbers, torch's sort leaves ties in order though nobody asked
MANY_TIES = torch.full((4, 6), 0.5)
RANKING_CASES = [(TIES,), (TWO,), (torch.tensor([[0.5, 0.0], [0.5, 0.5]]),)]
RANKING_CASES += [(MANY_TIES,)]
UNSTABLE = {
    "Right by chance on a small table: torch.sort and argsort leave ties in any order "
    "unless they are told `stable=True`.": _sort_by_position,
    "Two things about ties: the lower *position* comes before the lower request, and "
    "torch.sort keeps an order of ties only with `stable=True`.": _sort_by_request,
    "Nearly. Drafts of survival 0 stay out; at equal survival the lower position comes "
    "first; and torch.sort keeps ties in order only with `stable=True`.": (
        _sort_with_zeros
    ),
}
# Some machines' sort is stable unasked. There the first is right, the others have
# their hints below.
if _sort_by_position(MANY_TIES)[1].tolist() == rank_drafts(MANY_TIES)[1].tolist():
    UNSTABLE = {}

RANKING = Exercise(
    name="ranking",
    reference=rank_drafts,
    cases=RANKING_CASES,
    mistakes={
        **UNSTABLE,
        "Drafts of survival 0 are in the ranking. They can never stand: leave them "
        "out.": _zeros_stay,
        "Nearly. Drafts of survival 0 stay out, and at equal survival the lower "
        "position comes first, whosever it is.": _flat_sort,
        "At equal survival the lower *request* comes first in yours. The lower "
        "position must, and only then the request.": _ties_to_the_request,
        "Sorted upwards and turned round: that turns the ties round as well, so that a "
        "later draft comes before an earlier one of the same request.": _turned_round,
        "The worst draft is first.": _worst_first,
        "These are the drafts' positions. The answer names their requests.": _positions,
        "These are places in the flattened table. The answer names requests, drafts of "
        "survival 0 stay out, and at equal survival the lower position comes first.": (
            _flat_places
        ),
        "The order is right. But these are places in the flattened table, and the "
        "answer names requests: which request is at each place?": _places_by_position,
    },
)

# -- core: a budget --------------------------------------------------------------------


def _capped(lengths: Tensor, survival: Tensor) -> Tensor:
    return torch.minimum(lengths, (survival > 0).sum(dim=1))


def _alike_for_all(survival: Tensor, budget: int) -> Tensor:
    each = torch.full((len(survival),), budget // len(survival))
    return _capped(each, survival)


def _first_come(survival: Tensor, budget: int) -> Tensor:
    lengths = []
    for row in survival:
        lengths.append(min(budget, int((row > 0).sum())))
        budget -= lengths[-1]
    return torch.tensor(lengths)


def _in_turn(survival: Tensor, budget: int) -> Tensor:
    lengths = torch.zeros(len(survival), dtype=torch.long)
    for j in range(survival.shape[1]):
        for r in range(len(survival)):
            if budget and survival[r, j] > 0:
                lengths[r], budget = j + 1, budget - 1
    return lengths


def _anchors_count(survival: Tensor, budget: int) -> Tensor:
    return fill_budget(survival, max(0, budget - len(survival)))


def _ties_by_row(survival: Tensor, budget: int) -> Tensor:
    taken = sorted(_pairs(survival), key=lambda p: -survival[p].item())[:budget]
    return torch.tensor(
        [sum(r == row for r, _ in taken) for row in range(len(survival))]
    )


def _as_good_as_the_last(survival: Tensor, budget: int) -> Tensor:
    last = survival.flatten().sort(descending=True).values[budget - 1]
    return (survival >= last).sum(dim=1)


def _zeros_fill_up(survival: Tensor, budget: int) -> Tensor:
    _, requests = _zeros_stay(survival)
    return requests[:budget].bincount(minlength=len(survival))


SHARE_OUT = Exercise(
    name="share_out",
    reference=fill_budget,
    cases=[
        (TWO, 3),
        (TWO, 2),
        (TWO, 0),
        (TIES, 4),
        (torch.full((3, 2), 0.5), 1),
        (torch.tensor([[0.9, 0.0], [0.9, 0.8]]), 4),
    ],
    mistakes={
        "Everyone gets the same. The best-ranked drafts go in, whosever they are.": (
            _alike_for_all
        ),
        "First come, first served. The best of all requests go in first.": _first_come,
        "In turn, one draft each. Then a bad first draft goes before a good second "
        "one; the survival decides.": _in_turn,
        "Room was left, and a draft of survival 0 was let in. It can never stand: it "
        "stays out, whatever the budget.": _zeros_fill_up,
        "The budget counts drafts alone; the anchors have their places already.": (
            _anchors_count
        ),
        "At equal survival yours goes through the table row by row: one request gets "
        "all its drafts before the next gets any. The lower position comes first.": (
            _ties_by_row
        ),
        "Every draft as good as the last one goes in: at a tie that is more than the "
        "budget.": _as_good_as_the_last,
    },
)

# -- stretch: Algorithm 1 --------------------------------------------------------------


def _lengths(survival: Tensor, taken: Tensor | int) -> Tensor:
    return fill_budget(survival, int(taken))


def _search(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return schedule_prefixes(survival, sps, early_stop=False)


def _one_too_many(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    curve = throughput_curve(survival, sps)
    run = int(leading_run(curve.diff() > 0)) + 1
    return _lengths(survival, min(run, len(curve) - 1))


def _plateau_goes_on(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    curve = throughput_curve(survival, sps)
    return _lengths(survival, leading_run(curve.diff() >= 0))


def _first_is_free(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    """tau begins at 0."""
    curve = throughput_curve(survival, sps)
    sizes = len(survival) + torch.arange(len(curve))
    curve = curve - len(survival) * sps.rates(sizes)
    return _lengths(survival, leading_run(curve.diff() > 0))


def _one_by_one(survival: Tensor, sps: StepsPerSecond, go_on: bool) -> Tensor:
    """The loop as it is first written; ``go_on``: without its break."""
    lengths = torch.zeros(len(survival), dtype=torch.long)
    curve, requests = throughput_curve(survival, sps), rank_drafts(survival)[1]
    best = curve[0] if go_on else curve.new_zeros(())
    for theta, request in zip(curve[1:], requests, strict=False):
        if theta > best:
            best = theta
            lengths[request] += 1
        elif not go_on:
            break
    return lengths


def _goes_on(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return _one_by_one(survival, sps, go_on=True)


def _nothing_to_beat(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return _one_by_one(survival, sps, go_on=False)


def _each_alone(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    return torch.cat([schedule_prefixes(row[None], sps) for row in survival])


def _past_the_table(survival: Tensor, sps: StepsPerSecond) -> Tensor:
    gains = rank_drafts(survival)[0].tolist()
    batch, tokens = len(survival), float(len(survival))
    for taken, gain in enumerate(gains):
        if (tokens + gain) * sps(batch + 1) <= tokens * sps(batch):
            return _lengths(survival, taken)
        batch, tokens = batch + 1, tokens + gain
    return _lengths(survival, len(gains))


SCHEDULE = Exercise(
    name="schedule",
    reference=schedule_prefixes,
    cases=[
        (ONE, APPENDIX_A),
        (TWO, SMOOTH),
        (torch.tensor([[0.5, 0.5]]), StepsPerSecond({1: 1.5, 2: 1.0, 3: 1.0})),
        (TWO, StepsPerSecond({1: 1.0, 4: 1.0})),
        (TIES, StepsPerSecond({1: 9.0, 3: 8.0, 5: 6.0, 7: 2.0})),
        (ONE, StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.2})),
    ],
    mistakes={
        "That is the highest point of the whole curve. Algorithm 1 stops at the first "
        "draft that does not raise Theta.": _search,
        "One too many: the draft that does not raise Theta stays out.": _one_too_many,
        "On a plateau yours goes on. Theta must *rise*.": _plateau_goes_on,
        "tau begins at R, not at 0: every request gets a token of the target's own, "
        "also when nothing is verified.": _first_is_free,
        "The first draft goes in whatever it costs. It has a Theta to beat: that of no "
        "draft at all, R SPS(R).": _nothing_to_beat,
        "Yours goes on behind a draft that does not raise Theta, and takes later ones "
        "without it. Stop there.": _goes_on,
        "Each request is scheduled as if it were alone. They share one step, and one "
        "B.": _each_alone,
        "Past the end of the table nothing is known: its last point is a capacity.": (
            _past_the_table
        ),
    },
)

EXERCISES = {found.name: found for found in (THROUGHPUTS, RANKING, SHARE_OUT, SCHEDULE)}
