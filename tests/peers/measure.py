"""One comparison: what a peer computed, and what is loaded here from what it saved."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tiny_models import random_ids
from torch import Tensor, nn

from dsparkref import Target, load_drafter

# Contexts of these lengths; the anchor follows.
ANCHORS = [3, 7, 12]
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Case:
    """A drafter that a peer built, saved and ran."""

    name: str
    # what the peer wrote
    folder: Path
    target: Target
    # hidden, base_logits, draft_logits, confidence_logits: [N, K, ...] where there
    numbers: dict[str, Tensor]
    # drafts per cycle, K
    block_size: int


def tokens_of_text() -> Tensor:
    """Return one text of 20 tokens, [1, 20]."""
    return random_ids(1, 20, seed=3)


def shaken_module(module: nn.Module) -> None:
    """Draw every parameter anew: norms around 1, the rest wide, nothing small."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.rand(parameter.shape, generator=generator)
            drawn = 0.5 + drawn if "norm" in name else 1.4 * drawn - 0.7
            parameter.copy_(drawn)


def difference(case: Case) -> float:
    """Return the largest difference over all anchors and numbers."""
    drafter = load_drafter(case.folder, case.target)
    assert drafter.block_size == case.block_size, drafter.block_size
    text, worst = tokens_of_text(), 0.0
    with torch.no_grad():
        features = case.target.forward(text, drafter.spec.target_layer_ids).hidden
        for row, anchor in enumerate(ANCHORS):
            prev = text[:, anchor : anchor + case.block_size]
            output = drafter.teacher_forced(features[:, :anchor], prev)
            for name, values in case.numbers.items():
                got = getattr(output, name).flatten()
                worst = max(worst, apart(got, values[row].flatten()))
    return worst


def apart(got: Tensor, want: Tensor) -> float:
    """Return the largest difference; infinite entries must stand at one place."""
    if got.shape != want.shape or not got.isinf().equal(want.isinf()):
        return torch.inf
    finite = want.isfinite()
    return float((got[finite] - want[finite]).abs().max())
