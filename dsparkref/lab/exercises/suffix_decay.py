"""Exercises of notebook 01: survival, the denominator, decoding against text.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

from typing import Any

import torch
from torch import Tensor

from dsparkref.analysis import toy
from dsparkref.analysis.metrics import conditional_acceptance, prefix_survival
from dsparkref.lab.checks import Exercise
from dsparkref.verify.confidence import survival

# -- warm-up: from conditional acceptance to survival ---------------------------------


def _one_number(confidence: Tensor) -> Tensor:
    return confidence.prod()


def _without_its_own(confidence: Tensor) -> Tensor:
    before = torch.cat([torch.ones(1, dtype=confidence.dtype), confidence[:-1]])
    return before.cumprod(dim=0)


def _powers_of_the_first(confidence: Tensor) -> Tensor:
    return confidence[0] ** torch.arange(1, len(confidence) + 1)


def _powers_of_each(confidence: Tensor) -> Tensor:
    return confidence ** torch.arange(1, len(confidence) + 1)


SURVIVAL = Exercise(
    name="survival_of",
    reference=survival,
    cases=[
        (torch.tensor([0.9, 0.8, 0.5]),),
        (torch.tensor([0.5, 1.0, 0.0, 1.0]),),
        (torch.tensor([0.25]),),
    ],
    mistakes={
        "This is one number. Survival has one for each position.": _one_number,
        "This is the conditional acceptance unchanged. Draft 3 survives only where "
        "drafts 1 and 2 do.": lambda confidence: confidence,
        "Shifted by one: yours is the chance that all drafts *before* k stand. "
        "Draft k itself must stand too.": _without_its_own,
        "The first factor is used at every position, as if acceptance did not "
        "change along the block.": _powers_of_the_first,
        "Each factor is raised to a power of its own. Position 3 needs the factors "
        "of positions 1 and 2, not its own three times.": _powers_of_each,
        "A sum, not a product: probabilities of things that must all happen are "
        "multiplied.": lambda confidence: confidence.cumsum(dim=0),
        "A mean, not a product: how good the drafts were on average does not say "
        "how many runs are unbroken.": lambda confidence: (
            confidence.cumsum(dim=0) / torch.arange(1, len(confidence) + 1)
        ),
    },
)

# -- core: the denominator ------------------------------------------------------------


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return part.sum(dim=0).double() / whole.sum(dim=0)


def _over_all_cycles(accepted: Tensor, verified: Tensor, block_size: int) -> Tensor:
    k = torch.arange(block_size)
    kept = accepted[:, None] > k
    return _share(kept, torch.ones_like(kept))


def _unasked_is_refused(accepted: Tensor, verified: Tensor, block_size: int) -> Tensor:
    k = torch.arange(block_size)
    return _share(accepted[:, None] > k, accepted[:, None] >= k)


def _asked_is_enough(accepted: Tensor, verified: Tensor, block_size: int) -> Tensor:
    """Asked about draft k as `verified >= k`, and whatever became of those before."""
    k = torch.arange(block_size)
    return _share(accepted[:, None] > k, verified[:, None] >= k)


def _kept_at_least_k(accepted: Tensor, verified: Tensor, block_size: int) -> Tensor:
    k = torch.arange(block_size)
    reached = (accepted[:, None] >= k) & (verified[:, None] > k)
    return _share((accepted[:, None] >= k) & reached, reached)


def _positions_from_one(accepted: Tensor, verified: Tensor, block_size: int) -> Tensor:
    k = torch.arange(1, block_size + 1)
    reached = (accepted[:, None] >= k) & (verified[:, None] > k)
    return _share(reached & (accepted[:, None] > k), reached)


def _ratio_of_survivals(accepted: Tensor, verified: Tensor, block_size: int) -> Tensor:
    kept = prefix_survival(accepted, verified, block_size)
    return kept / torch.cat([torch.ones(1, dtype=kept.dtype), kept[:-1]])


def _zero_where_unknown(accepted: Tensor, verified: Tensor, block_size: int) -> Tensor:
    return conditional_acceptance(accepted, verified, block_size).nan_to_num(0.0)


CONDITIONAL = Exercise(
    name="conditional_of",
    reference=conditional_acceptance,
    cases=[
        (torch.tensor([2, 0, 1]), torch.tensor([3, 3, 1]), 3),
        (torch.tensor([4, 1, 0, 2, 2]), torch.tensor([4, 4, 4, 4, 2]), 4),
        (torch.tensor([1, 0]), torch.tensor([2, 2]), 4),
    ],
    mistakes={
        "The denominator holds all cycles. A cycle that stopped before draft k says "
        "nothing about draft k.": _over_all_cycles,
        "The denominator holds every cycle that was asked about k, also those that "
        "had already lost an earlier draft: this is prefix survival.": prefix_survival,
        "A cycle that was never asked about draft k counts as one that refused it: "
        "look at `verified` as well. Asked about draft k (counted from 0) means more "
        "than k verified; `verified >= k` lets one more in.": _unasked_is_refused,
        "Off by one, and too many cycles: asked about draft k (counted from 0) means "
        "`verified > k`, and those that lost an earlier draft stay out.": (
            _asked_is_enough
        ),
        "Off by one: keeping draft k (counted from 0) takes at least k + 1 accepted "
        "drafts.": _kept_at_least_k,
        "Off by one: positions count from 0 here, so the first draft is k = 0.": (
            _positions_from_one
        ),
        "A ratio of two survivals that were counted over different cycles. Count one "
        "set of cycles for each k: those that kept all before it and were asked.": (
            _ratio_of_survivals
        ),
        "0 of 0 cycles is not 0: where no cycle came, nothing is known (NaN).": (
            _zero_where_unknown
        ),
    },
)

# -- stretch: acceptance in decoding, exactly -----------------------------------------


def _along_the_text(target: toy.Laws, draft: toy.Laws) -> Tensor:
    """The mean of 1 - TV over prefixes that the target wrote."""
    rates, prefix = [], torch.ones((), dtype=torch.float64)
    for wanted, drafted in zip(target, draft, strict=False):
        overlap = torch.minimum(wanted, drafted).sum(dim=-1)
        rates.append((prefix * overlap).sum())
        prefix = prefix[..., None] * wanted
    return torch.stack(rates)


def _along_the_drafts(target: toy.Laws, draft: toy.Laws) -> Tensor:
    """The mean of 1 - TV over prefixes that the drafter wrote."""
    rates, prefix = [], torch.ones((), dtype=torch.float64)
    for wanted, drafted in zip(target, draft, strict=False):
        overlap = torch.minimum(wanted, drafted).sum(dim=-1)
        rates.append((prefix * overlap).sum())
        prefix = prefix[..., None] * drafted
    return torch.stack(rates)


def _whole_prefix_at_once(target: toy.Laws, draft: toy.Laws) -> Tensor:
    """The overlap of the two joint laws, which no left-to-right verifier reaches."""
    shares = [torch.ones((), dtype=torch.float64)]
    p = q = torch.ones((), dtype=torch.float64)
    for wanted, drafted in zip(target, draft, strict=False):
        p, q = p[..., None] * wanted, q[..., None] * drafted
        shares.append(torch.minimum(p, q).sum())
    return torch.stack(shares[1:]) / torch.stack(shares[:-1])


def _all_prefixes_alike(target: toy.Laws, draft: toy.Laws) -> Tensor:
    overlaps = [
        torch.minimum(p, q).sum(dim=-1) for p, q in zip(target, draft, strict=False)
    ]
    return torch.stack([overlap.mean() for overlap in overlaps])


def _marginals(target: toy.Laws, draft: toy.Laws) -> Tensor:
    """The overlap of the laws of token k whatever came before."""
    rates = []
    p = q = torch.ones((), dtype=torch.float64)
    for wanted, drafted in zip(target, draft, strict=False):
        p, q = p[..., None] * wanted, q[..., None] * drafted
        rows = [joint.reshape(-1, wanted.shape[-1]).sum(dim=0) for joint in (p, q)]
        rates.append(torch.minimum(*rows).sum())
    return torch.stack(rates)


def _laws(*tables: list[Any]) -> toy.Laws:
    return [torch.tensor(table, dtype=torch.float64) for table in tables]


def _stretch_cases() -> list[tuple[toy.Laws, toy.Laws]]:
    target = _laws([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
    cases = [(target, _laws([0.7, 0.3], [[0.6, 0.4]]))]  # small enough for a message
    worlds = [toy.two_mode_world(0.7)]
    worlds += [toy.MarkovWorld.random(3, order, generator=2) for order in (1, 2)]
    for world in worlds:
        laws = world.block_laws([0] * world.order, 4)
        cases += [(laws, toy.best_drafter(laws, memory)) for memory in (0, 1)]
    return cases


EXACT = Exercise(
    name="decoded_acceptance",
    reference=toy.exact_conditional,
    cases=_stretch_cases(),
    mistakes={
        "This is survival. Divide by the chance that the drafts before stood.": (
            toy.exact_survival
        ),
        "Prefixes are weighted as the target writes them, which is the acceptance on "
        "given text. In decoding, draft k is reached through *accepted* drafts: "
        "weight a prefix by the product of min(p, q).": _along_the_text,
        "Prefixes are weighted as the drafter writes them, accepted or not. Draft k "
        "is reached only where all before it stood.": _along_the_drafts,
        "Every prefix counts the same here. Weight it by the chance that decoding gets "
        "there.": _all_prefixes_alike,
        "The laws are averaged over prefixes before they are compared. The best "
        "parallel drafter has the right averages and is still refused: compare prefix "
        "by prefix.": _marginals,
        "min(p, q) is taken of whole prefixes. The verifier decides token by token: "
        "multiply the minima, do not take the minimum of the products.": (
            _whole_prefix_at_once
        ),
    },
)

EXERCISES = {exercise.name: exercise for exercise in (SURVIVAL, CONDITIONAL, EXACT)}
