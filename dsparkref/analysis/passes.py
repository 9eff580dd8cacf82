"""K passes over one token against one pass over K tokens, on this machine.

It is what speculation lives on, twice: the target judges a block in one pass, and a
parallel drafter fills it in one.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache

from dsparkref.analysis.profile import Step, random_ids, time_step
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.shapes import check_range


def compare_passes(
    target: Target, drafter: Drafter, *, context: int = 64, repeats: int = 9
) -> dict[str, tuple[float, float]]:
    """Return, per network, the seconds of K one-token passes and of one K-token pass.

    K is the drafter's block size. The draft backbone's one-token passes do not see
    each other, as a drafter that goes one by one would have it: that one costs more.

    Args:
        target, drafter: a pair.
        context: committed tokens before the pass, >= 1.
        repeats: timed runs, after two that are not counted. The fastest is returned:
            whatever else the machine does can only add to it.
    """
    check_range("context", context, 1, integer=True)
    check_range("repeats", repeats, 1, integer=True)
    makers: dict[str, Callable[[int], Step]] = {
        "target": lambda n: _target_passes(target, drafter.block_size, n, context),
        "draft backbone": lambda n: _backbone_passes(drafter, n, context),
    }
    return {
        name: (
            time_step(make(1), target, repeats, min),
            time_step(make(drafter.block_size), target, repeats, min),
        )
        for name, make in makers.items()
    }


@torch.no_grad()
def _target_passes(target: Target, tokens: int, at_once: int, context: int) -> Step:
    cache = DynamicCache()
    ids = random_ids(target, 1, context + tokens)
    target.forward(ids[:, :context], cache=cache, last_logits=1)
    parts = ids[:, context:].split(at_once, dim=1)

    def prepare() -> Callable[[], object]:
        own = copy.deepcopy(cache)
        return lambda: [target.forward(part, cache=own) for part in parts]

    return prepare


@torch.no_grad()
def _backbone_passes(drafter: Drafter, at_once: int, context: int) -> Step:
    kind: dict[str, Any] = {"device": drafter.device, "dtype": drafter.dtype}
    features = torch.zeros(1, context, drafter.spec.feature_size, **kind)
    held = drafter.backbone.context(features)
    size = drafter.block_size
    block = torch.zeros(1, size, drafter.spec.hidden_size, **kind)
    positions = context + torch.arange(size, device=drafter.device)[None]
    parts = [
        (block[:, i : i + at_once], positions[:, i : i + at_once])
        for i in range(0, size, at_once)
    ]
    return lambda: (
        lambda: [drafter.backbone(part, held, places) for part, places in parts]
    )
