"""From confidences to survival: how deep into the block a draft may still stand.

A confidence c_k is conditional: the chance that draft k is kept given that all
before it were. What a scheduler and an accepted length need is the product.
"""

from jaxtyping import Float
from torch import Tensor

from dsparkref.shapes import problem
from dsparkref.verify.inputs import widen


def survival(confidence: Float[Tensor, "*rows K"]) -> Float[Tensor, "*rows K"]:
    """Return the chance that draft k and all before it are kept: prod_{i<=k} c_i.

    The a_{r,j} of Algorithm 1. Position k is 0-based; it is the paper's k+1.

    Args:
        confidence: [..., K] in [0, 1], conditional.

    Returns:
        [..., K] in [0, 1], never rising along the block, float32 or wider.

    Raises:
        ValueError: a confidence outside [0, 1], such as a logit.

    >>> import torch
    >>> survival(torch.tensor([0.9, 0.8, 0.5]))
    tensor([0.9000, 0.7200, 0.3600])
    """
    confidence = widen(confidence, "confidence")
    outside = ~((confidence >= 0) & (confidence <= 1))  # NaN is outside too
    if outside.any():
        got = confidence[outside][0].item()
        hint = "A confidence logit needs a sigmoid first."
        raise problem("confidence", "be a probability", "numbers in [0, 1]", got, hint)
    return confidence.cumprod(dim=-1)


def expected_accepted_length(
    confidence: Float[Tensor, "*rows K"],
) -> Float[Tensor, "*rows"]:
    """Return the tokens a cycle is expected to add, bonus included: 1 + sum_k a_k.

    The mean of a count is the sum of its tail: E[n] = sum_k P(n > k). The first 1 is
    the replacement or bonus, which every cycle adds.

    >>> import torch
    >>> expected_accepted_length(torch.tensor([0.9, 0.8, 0.5]))  # 1 + .9 + .72 + .36
    tensor(2.9800)

    Differs: DeepSpec's evaluator counts no bonus in a cycle that a stop token ends.
    """
    return 1 + survival(confidence).sum(dim=-1)  # [...]
