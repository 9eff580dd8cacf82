"""The exercises of notebook 02: the leading run, the replacement, a drafter that lies.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

import torch
from torch import Tensor

from dsparkref.analysis.exact import emitted_token_law
from dsparkref.lab.checks import Exercise
from dsparkref.verify.rejection import leading_run, residual_distribution

# -- warm-up: how many drafts stand ---------------------------------------------------


def _first_refused(kept: Tensor) -> Tensor:
    return (~kept).int().argmax(dim=-1)


def _with_the_refused_one(kept: Tensor) -> Tensor:
    return (leading_run(kept) + 1).clamp(max=kept.shape[-1])


def _all_or_none(kept: Tensor) -> Tensor:
    return kept.all(dim=-1).long() * kept.shape[-1]


def _table(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows) == 1


COUNT = Exercise(
    name="count_kept",
    reference=leading_run,
    cases=[
        (_table([[1, 1, 0, 1], [0, 1, 1, 1]]),),
        (_table([[1, 1, 1], [0, 0, 0], [1, 0, 1]]),),
        (_table([[1]]),),
    ],
    mistakes={
        "Drafts after the first rejection are counted too. They were built on a token "
        "that is not there.": lambda kept: kept.sum(dim=-1),
        "A block that stands entirely has no first rejection: look at what your search "
        "returns there.": _first_refused,
        "That is the number of *emitted* tokens, with the replacement or the bonus. "
        "Count the drafts alone.": lambda kept: leading_run(kept) + 1,
        "The rejected draft is counted among the kept ones.": _with_the_refused_one,
        "All or nothing: a block whose first drafts stand keeps those.": _all_or_none,
        "This is the whole run, draft by draft. Wanted is one number for each "
        "block.": lambda kept: kept.long().cumprod(dim=-1),
        "One number for all blocks together. Wanted is one for each block.": (
            lambda kept: leading_run(kept).sum()
        ),
    },
)

# -- core: the law of the replacement -------------------------------------------------


def _share_of(left: Tensor) -> Tensor:
    """Divide by the sum, as a first try does: 0 / 0 where nothing is left."""
    return left / left.sum()


def _p(*probs: float) -> Tensor:
    return torch.tensor(probs, dtype=torch.float64)


REPLACEMENT = Exercise(
    name="replacement_law",
    reference=residual_distribution,
    cases=[
        (_p(0.4, 0.3, 0.2, 0.1), _p(0.1, 0.2, 0.3, 0.4)),
        (_p(0.3, 0.5, 0.2), _p(1.0, 0.0, 0.0)),
        (_p(0.5, 0.25, 0.25), _p(0.5, 0.25, 0.25)),
    ],
    mistakes={
        "This is the target's law itself. The kept drafts have already supplied a part "
        "of it; a replacement only fills what is missing.": lambda p, q: p,
        "The missing mass is right, but it does not sum to 1 yet.": (
            lambda p, q: (p - q).clamp(min=0)
        ),
        "Some of these probabilities are negative: where the drafter proposes a token "
        "too often, nothing is missing.": lambda p, q: p - q,
        "The other way round: this is what the drafter has too much of.": (
            lambda p, q: _share_of((q - p).clamp(min=0))
        ),
        "The absolute difference also counts what the drafter has too much of.": (
            lambda p, q: _share_of((p - q).abs())
        ),
        "A softmax makes a law of logits. These are masses already: divide by their "
        "sum.": lambda p, q: (p - q).clamp(min=0).softmax(dim=-1),
        "Right, except where the two laws are equal: nothing is left, and 0 / 0 is no "
        "law. A rounded coin may still ask; give it p.": (
            lambda p, q: _share_of((p - q).clamp(min=0))
        ),
        "Where the two laws are equal you return zeros, which are no law. A rounded "
        "coin may still ask; give it p.": (
            lambda p, q: _share_of((p - q).clamp(min=0)).nan_to_num(0.0)
        ),
    },
)

# -- stretch: a drafter that tells another law than its own ---------------------------


def _keep(p: Tensor, q: Tensor) -> Tensor:
    return (p / q).clamp(max=1)


def _filled(kept: Tensor, replacement: Tensor) -> Tensor:
    return kept + (1 - kept.sum()) * replacement


def _drawn_as_told(p: Tensor, q: Tensor, told: Tensor) -> Tensor:
    """The kept drafts of an honest drafter; the true rejections of the liar."""
    lost = 1 - (q * _keep(p, told)).sum()
    return torch.minimum(p, told) + lost * residual_distribution(p, told)


def _lost_as_told(p: Tensor, q: Tensor, told: Tensor) -> Tensor:
    lost = 1 - torch.minimum(p, told).sum()
    return q * _keep(p, told) + lost * residual_distribution(p, told)


def _residual_of_the_true_law(p: Tensor, q: Tensor, told: Tensor) -> Tensor:
    return _filled(q * _keep(p, told), residual_distribution(p, q))


def _replaced_from_target(p: Tensor, q: Tensor, told: Tensor) -> Tensor:
    return _filled(q * _keep(p, told), p)


def _uncapped(p: Tensor, q: Tensor, told: Tensor) -> Tensor:
    return _filled(q * p / told, residual_distribution(p, told))


TOLD = Exercise(
    name="law_when_told",
    reference=emitted_token_law,
    cases=[
        (_p(0.3, 0.5, 0.2), _p(1.0, 0.0, 0.0), _p(0.4, 0.35, 0.25)),
        (_p(0.4, 0.3, 0.2, 0.1), _p(0.1, 0.2, 0.3, 0.4), _p(0.25, 0.25, 0.25, 0.25)),
        (_p(0.25, 0.25, 0.5), _p(0.5, 0.25, 0.25), _p(0.5, 0.25, 0.25)),
    ],
    mistakes={
        "This is the target's law, which an honest drafter leaves. Here drafts come "
        "from p_draft, while coin and residual know only what is told.": (
            lambda p, q, told: p
        ),
        "Only kept drafts come out of this. Add up all that is rejected: so much is "
        "drawn from the residual.": (lambda p, q, told: q * _keep(p, told)),
        "The kept drafts are weighted as if they came from `told`. They are drawn from "
        "p_draft.": _drawn_as_told,
        "The rejections are counted as if drafts came from `told`: your law does not "
        "sum to 1.": _lost_as_told,
        "The replacement knows p_draft here. The verifier has only been told "
        "`told`.": _residual_of_the_true_law,
        "The replacement comes from p_target itself, not from the residual.": (
            _replaced_from_target
        ),
        "The chance to keep a draft exceeds 1 where p_target lies above `told`.": (
            _uncapped
        ),
    },
)

EXERCISES = {exercise.name: exercise for exercise in (COUNT, REPLACEMENT, TOLD)}
