"""Exercises of notebook 07: position weights, the curriculum, what carries loss.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

import torch
from torch import Tensor

from dsparkref.draft.blocks import supervised_positions
from dsparkref.lab.checks import Exercise
from dsparkref.train.loss import l1_distance, position_weights
from dsparkref.train.train_drafter import Recipe

# -- warm-up: early positions count more ----------------------------------------------


def _k(supervised: Tensor) -> Tensor:
    return torch.arange(supervised.shape[-1], dtype=torch.float32)


WEIGHTS = Exercise(
    name="weights_of",
    reference=position_weights,
    cases=[
        (torch.tensor([[[True, True, True, False]]]), 4.0),
        (torch.tensor([[[True, True], [False, False]]]), 2.0),
        (torch.ones(1, 1, 7, dtype=torch.bool), 7.0),
    ],
    mistakes={
        "All positions of a block have a weight here, supervised or not. What carries "
        "no loss weighs 0.": lambda supervised, gamma: torch.exp(
            -_k(supervised) / gamma
        ).expand(supervised.shape),
        "The paper's k counts from 1 and has exp(-(k-1)/gamma); code counts from 0. "
        "The first position weighs 1.": lambda supervised, gamma: (
            torch.exp(-(_k(supervised) + 1) / gamma) * supervised
        ),
        "These weights grow along the block. A late draft is reached less often and "
        "counts less.": lambda supervised, gamma: (
            torch.exp(_k(supervised) / gamma) * supervised
        ),
        "Times gamma instead of over gamma: a large gamma should make the weights "
        "nearly equal.": lambda supervised, gamma: (
            torch.exp(-_k(supervised) * gamma) * supervised
        ),
        "A power of the base 2. The weight falls by a factor e over gamma positions.": (
            lambda supervised, gamma: 0.5 ** (_k(supervised) / gamma) * supervised
        ),
        "The weights of each block are made to sum to 1. The loss divides once, by the "
        "sum over the whole batch; else a short block would count as much as a long "
        "one.": lambda supervised, gamma: (
            (torch.exp(-_k(supervised) / gamma) * supervised)
            / (torch.exp(-_k(supervised) / gamma) * supervised).sum(-1, keepdim=True)
        ),
    },
)

# -- core: the second loss ------------------------------------------------------------


def _p(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1)


DISTANCE = Exercise(
    name="distance",
    reference=l1_distance,
    cases=[
        (torch.tensor([2.0, 0.0, -1.0, 1.0]), torch.tensor([0.0, 1.0, 1.5, -1.0])),
        (
            torch.tensor([[0.0, 3.0], [1.0, 1.0]]),
            torch.tensor([[3.0, 0.0], [1.0, 0.0]]),
        ),
    ],
    mistakes={
        "The logits are compared as they are. Two rows of logits that differ by a "
        "constant are one law: turn them into probabilities first.": lambda d, t: (
            (d - t).abs().sum(dim=-1)
        ),
        "This is the total variation distance, half of the norm. The loss has the full "
        "norm ||p_d - p_t||_1, between 0 and 2.": lambda d, t: (
            (_p(d) - _p(t)).abs().sum(dim=-1) / 2
        ),
        "The mean over the vocabulary, not the sum: with 150,000 tokens nothing would "
        "be left of it.": lambda d, t: (_p(d) - _p(t)).abs().mean(dim=-1),
        "Squares, not absolute values: that is another distance, and 1 minus its half "
        "is not the acceptance.": lambda d, t: ((_p(d) - _p(t)) ** 2).sum(dim=-1),
        "Without the absolute value the differences of two laws cancel to 0.": (
            lambda d, t: (_p(d) - _p(t)).sum(dim=-1)
        ),
        "The largest difference of all tokens. It misses what many small ones add up "
        "to.": lambda d, t: (_p(d) - _p(t)).abs().amax(dim=-1),
        "One number for all positions together. Keep one for each: the loss weighs "
        "them.": lambda d, t: (_p(d) - _p(t)).abs().sum(),
    },
)

# -- core: base first -----------------------------------------------------------------


def _recipe_cases() -> list[tuple[Recipe, int, int]]:
    half, whole, none = (Recipe(base_curriculum=share) for share in (0.5, 1.0, 0.0))
    steps = [(half, s, 100) for s in (0, 25, 50, 80)] + [(whole, 25, 100)]
    return [*steps, (none, 0, 100)]


def _span(recipe: Recipe, steps: int) -> float:
    return recipe.base_curriculum * steps


CURRICULUM = Exercise(
    name="base_weight",
    reference=Recipe.base_weight,
    cases=_recipe_cases(),
    mistakes={
        "Without a curriculum (a share of 0) there is no base term at all.": (
            lambda recipe, step, steps: max(
                0.0, 1.0 - step / (_span(recipe, steps) or 1)
            )
        ),
        "It falls below 0 once the curriculum is over.": lambda recipe, step, steps: (
            1.0 - step / _span(recipe, steps) if _span(recipe, steps) else 0.0
        ),
        "It rises. The base comes first: the weight begins at 1 and ends at 0.": (
            lambda recipe, step, steps: (
                min(1.0, step / _span(recipe, steps)) if _span(recipe, steps) else 0.0
            )
        ),
        "It falls over the whole training, whatever the recipe says of its share.": (
            lambda recipe, step, steps: 1.0 - step / steps
        ),
        "Switched off at once when the curriculum ends. It should fall in a straight "
        "line until then.": lambda recipe, step, steps: (
            1.0 if step < _span(recipe, steps) else 0.0
        ),
    },
)

# -- stretch: what carries loss -------------------------------------------------------


def _labels(loss_mask: Tensor, anchors: Tensor, size: int, ahead: int) -> Tensor:
    """Whether token a + k + ahead carries loss, outside the text: no."""
    places = anchors[..., None] + torch.arange(size) + ahead  # [B, N, K]
    inside = places < loss_mask.shape[1]
    rows = torch.arange(len(loss_mask))[:, None, None].expand_as(places)
    return (loss_mask[rows, places.clamp_max(loss_mask.shape[1] - 1)] != 0) & inside


def _with_holes(loss_mask: Tensor, anchors: Tensor, size: int) -> Tensor:
    return _labels(loss_mask, anchors, size, 1)


def _without_the_anchor(loss_mask: Tensor, anchors: Tensor, size: int) -> Tensor:
    return _labels(loss_mask, anchors, size, 1).cumprod(dim=-1).bool()


def _one_early(loss_mask: Tensor, anchors: Tensor, size: int) -> Tensor:
    return _labels(loss_mask, anchors, size, 0).cumprod(dim=-1).bool()


def _last_token_repeats(loss_mask: Tensor, anchors: Tensor, size: int) -> Tensor:
    longer = torch.cat([loss_mask, loss_mask[:, -1:].expand(-1, size + 1)], dim=1)
    return supervised_positions(longer, anchors, size)


def _whole_blocks(loss_mask: Tensor, anchors: Tensor, size: int) -> Tensor:
    right = supervised_positions(loss_mask, anchors, size)
    return right.all(dim=-1, keepdim=True).expand_as(right)


SUPERVISED = Exercise(
    name="carries_loss",
    reference=supervised_positions,
    cases=[
        (torch.tensor([[0, 1, 1, 1, 0, 1]]), torch.tensor([[0, 1, 2]]), 3),
        (torch.tensor([[0, 1, 1, 1, 1, 1]]), torch.tensor([[1, 3, 4]]), 3),
        (torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1]]), torch.tensor([[0, 2], [1, 2]]), 2),
    ],
    mistakes={
        "A draft behind a gap counts here. All before it must carry loss too: no cycle "
        "gets past a draft that was never trained.": _with_holes,
        "The anchor must carry loss as well: no block of decoding starts inside the "
        "prompt.": _without_the_anchor,
        "Shifted by one: draft k is judged by the token after the one it reads.": (
            _one_early
        ),
        "Past the end of the text the last token is taken again. There is no label "
        "there.": _last_token_repeats,
        "A block that hangs over the end is dropped whole. Its first drafts have "
        "labels and can be learnt from.": _whole_blocks,
    },
)

EXERCISES = {
    exercise.name: exercise for exercise in (WEIGHTS, DISTANCE, CURRICULUM, SUPERVISED)
}
