"""The exercises of notebook 03: tokens per cycle, Eq. 1, and Eq. 1 for every length.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

import torch
from torch import Tensor

from dsparkref.analysis.metrics import speedup, speedup_curve
from dsparkref.lab.checks import Exercise
from dsparkref.verify.confidence import expected_accepted_length

# -- warm-up: tokens per cycle --------------------------------------------------------


def _one_chance_for_all(confidence: Tensor) -> Tensor:
    powers = confidence[0] ** torch.arange(1, len(confidence) + 1)
    return 1 + powers.sum()


TOKENS = Exercise(
    name="tokens_per_cycle",
    reference=expected_accepted_length,
    cases=[
        (torch.tensor([0.9, 0.8, 0.5]),),
        (torch.tensor([0.5, 1.0, 0.0, 1.0]),),
        (torch.tensor([0.25]),),
    ],
    mistakes={
        "The replacement or bonus is missing: a cycle always adds one token of the "
        "target's own.": lambda c: c.cumprod(dim=0).sum(),
        "The chances are added as if each draft stood for itself. Draft 3 counts only "
        "where drafts 1 and 2 stand.": lambda c: 1 + c.sum(),
        "All or nothing: a block whose first drafts stand yields those.": (
            lambda c: 1 + len(c) * c.prod()
        ),
        "The first acceptance is used at every position.": _one_chance_for_all,
        "This is the chance that the last draft stands, plus one.": (
            lambda c: 1 + c.prod()
        ),
        "1 / (1 - a) holds for an endless block with one acceptance. This block ends, "
        "and each draft has its own.": lambda c: 1 / (1 - c.mean()),
        "One number for each position. Wanted is the whole cycle.": (
            lambda c: c.cumprod(dim=0)
        ),
    },
)

# -- core: Eq. 1 ----------------------------------------------------------------------


def _without_drafting(
    draft_seconds: float, verify_seconds: float, tau: float, token_seconds: float
) -> float:
    return token_seconds * tau / verify_seconds


def _upside_down(
    draft_seconds: float, verify_seconds: float, tau: float, token_seconds: float
) -> float:
    return (draft_seconds + verify_seconds) / (tau * token_seconds)


def _bonus_twice(
    draft_seconds: float, verify_seconds: float, tau: float, token_seconds: float
) -> float:
    return token_seconds * (tau + 1) / (draft_seconds + verify_seconds)


def _without_bonus(
    draft_seconds: float, verify_seconds: float, tau: float, token_seconds: float
) -> float:
    return token_seconds * (tau - 1) / (draft_seconds + verify_seconds)


def _seconds_per_token(
    draft_seconds: float, verify_seconds: float, tau: float, token_seconds: float
) -> float:
    return (draft_seconds + verify_seconds) / tau


def _faster_by(
    draft_seconds: float, verify_seconds: float, tau: float, token_seconds: float
) -> float:
    return token_seconds * tau / (draft_seconds + verify_seconds) - 1


def _per_pass(
    draft_seconds: float, verify_seconds: float, tau: float, token_seconds: float
) -> float:
    return token_seconds / (draft_seconds + verify_seconds)


SPEEDUP = Exercise(
    name="times_faster",
    reference=speedup,
    cases=[
        (2.0, 4.0, 3.0, 3.0),
        (8.0, 34.0, 1.35, 34.0),
        (0.004, 0.0055, 5.0, 0.0045),
    ],
    mistakes={
        "Drafting takes time, too.": _without_drafting,
        "Upside down: faster must be more than 1.": _upside_down,
        "accepted_length counts the bonus already.": _bonus_twice,
        "accepted_length counts the bonus, and it is a token like any other.": (
            _without_bonus
        ),
        "That is by how much it is faster. Three times as fast is faster by two; the "
        "three is wanted.": _faster_by,
        "These are the seconds of one token, L. Compare them with token_seconds.": (
            _seconds_per_token
        ),
        "A cycle is compared with a single token. It yields accepted_length of "
        "them.": _per_pass,
    },
)

# -- stretch: Eq. 1 for every length ---------------------------------------------------


def _one_token_less(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    return verify[0] * (1 + survival.cumsum(dim=0)) / (draft + verify[:-1])


def _whole_block(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    return verify[0] * (1 + survival.cumsum(dim=0)) / (draft + verify[-1])


def _drafts_one_by_one(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    drafting = draft * torch.arange(1, len(survival) + 1)
    return verify[0] * (1 + survival.cumsum(dim=0)) / (drafting + verify[1:])


def _no_bonus(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    return verify[0] * survival.cumsum(dim=0) / (draft + verify[1:])


def _conditional(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    """Takes survival for conditional acceptance."""
    lengths = 1 + survival.cumprod(dim=0).cumsum(dim=0)
    return verify[0] * lengths / (draft + verify[1:])


def _last_draft_only(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    return verify[0] * (1 + survival) / (draft + verify[1:])


def _bonus_for_each(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    return verify[0] * (1 + survival).cumsum(dim=0) / (draft + verify[1:])


def _free_drafts(survival: Tensor, draft: float, verify: Tensor) -> Tensor:
    return verify[0] * (1 + survival.cumsum(dim=0)) / verify[1:]


CURVE = Exercise(
    name="speedups",
    reference=speedup_curve,
    cases=[
        (torch.tensor([0.5, 0.25]), 1.0, torch.tensor([2.0, 2.0, 2.5])),
        (torch.tensor([0.9, 0.72, 0.36]), 4.1, torch.tensor([4.4, 5.0, 5.5, 5.5])),
        (torch.tensor([0.8, 0.64]), 20.9, torch.tensor([9.6, 15.7, 18.8])),
    ],
    mistakes={
        "Off by one: to verify n drafts the target reads n + 1 tokens, the anchor "
        "too.": _one_token_less,
        "Every length pays for the whole block here. Verifying fewer drafts takes a "
        "narrower pass.": _whole_block,
        "Drafting is paid once per draft. A parallel drafter fills all slots in one "
        "pass.": _drafts_one_by_one,
        "The replacement or bonus is missing.": _no_bonus,
        "The target's own token is counted once for each draft. A cycle has "
        "one.": _bonus_for_each,
        "Drafting takes time, too.": _free_drafts,
        "Survival is multiplied up once more: it is a running product already.": (
            _conditional
        ),
        "Only the last draft is counted. Add up all those before it.": (
            _last_draft_only
        ),
    },
)

EXERCISES = {exercise.name: exercise for exercise in (TOKENS, SPEEDUP, CURVE)}
