"""How far a pass over a block and passes over single tokens round apart.

In exact arithmetic the target's logits after a text do not depend on how many tokens
were read at once. In floating point sums of another order end in other last bits, and
where the two best logits lie that close, the greedy choice may flip: a tie, no bug.
How close is close is a matter of the dtype, and is measured here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.decode.request import as_row
from dsparkref.decode.target import Target
from dsparkref.shapes import check_range

# In float32 two logits this close are a tie, whatever their size.
TIE = 1e-4


@dataclass(frozen=True)
class Rounding:
    """A block pass beside one-token passes, over some texts.

    ``a + b`` is that of both.
    """

    # tokens compared
    positions: int = 0
    # of them, those where the best token is another one
    flips: int = 0
    # the widest gap of the two tokens of a flip, in logits of the one-token pass
    gap: float = 0.0
    # the same in ulps of the best logit
    gap_ulps: float = 0.0
    # the largest difference of any two logits
    difference: float = 0.0

    def __add__(self, other: "Rounding") -> "Rounding":
        return Rounding(
            self.positions + other.positions,
            self.flips + other.flips,
            max(self.gap, other.gap),
            max(self.gap_ulps, other.gap_ulps),
            max(self.difference, other.difference),
        )


def ulp(value: float, dtype: torch.dtype) -> float:
    """Return how far apart the numbers of a dtype lie around a value.

    >>> ulp(20.0, torch.bfloat16), ulp(1.0, torch.float16)
    (0.125, 0.0009765625)
    """
    info = torch.finfo(dtype)
    return info.eps * 2.0 ** math.floor(math.log2(max(abs(value), info.tiny)))


def tie_width(value: float, dtype: torch.dtype, difference: float = 0.0) -> float:
    """Return the gap up to which the best logit and another are a tie.

    1e-4 in float32 or wider. In half precision two ulps of the best logit, or twice
    what the same logit was seen to differ between two passes, where that is more: an
    ulp of a small logit is less than the rounding of the sum it came from.

    >>> tie_width(20.0, torch.bfloat16), tie_width(20.0, torch.float32)
    (0.25, 0.0001)
    """
    if torch.finfo(dtype).bits >= 32:
        return TIE
    return max(2 * ulp(value, dtype), 2 * difference)


@torch.no_grad()
def compare_passes(
    target: Target, prompt: Sequence[int], reply: Sequence[int], size: int
) -> Rounding:
    """Read a reply in blocks of ``size`` tokens and token by token; compare.

    Args:
        target: any.
        prompt, reply: ids; the reply follows the prompt.
        size: tokens per block, >= 1.
    """
    check_range("size", size, 1, integer=True)
    step = read_in_blocks(target, prompt, reply, 1)
    block = read_in_blocks(target, prompt, reply, size)
    best, other = step.argmax(-1), block.argmax(-1)  # [n]
    found = Rounding(len(reply), difference=(step - block).abs().max().item())
    for row in (best != other).nonzero()[:, 0].tolist():
        top, second = step[row, best[row]].item(), step[row, other[row]].item()
        gap = top - second
        found += Rounding(0, 1, gap, gap / ulp(top, target.dtype))
    return found


def read_in_blocks(
    target: Target, prompt: Sequence[int], reply: Sequence[int], size: int
) -> Float[Tensor, "n V"]:
    """Return the logits after each token of the reply, read ``size`` at a time."""
    session, _ = target.prefill(as_row(prompt, target.device))
    logits = []
    for start in range(0, len(reply), size):
        block = as_row(reply[start : start + size], target.device)
        logits.append(session.verify(block).logits[0].float())
        session.commit(block.shape[1])
    return torch.cat(logits)  # [n, V]
