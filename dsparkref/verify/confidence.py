"""From confidences to survival: how deep into the block a draft may still stand.

A confidence c_k is conditional: the chance that draft k is kept given that all
before it were. What a scheduler and an accepted length need is the product.
"""

from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.shapes import check_known, check_range, problem
from dsparkref.verify.inputs import widen
from dsparkref.verify.rejection import leading_run


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


def threshold_lengths(
    confidence: Float[Tensor, "R K"], threshold: float, on: str = "conditional"
) -> Int[Tensor, " R"]:
    """Return how many drafts lead each block whose value is >= the threshold.

    The value is the confidence c_k itself ("conditional") or the product of all up
    to k ("survival"): two different rules.

    Args:
        confidence: [R, K] in [0, 1], conditional.
        threshold: in [0, 1]. A confidence of exactly 1 passes a threshold of 1.
        on: "conditional" or "survival".

    Returns:
        [R] of 0..K.

    Raises:
        ValueError: numbers outside [0, 1], or another rule.

    >>> import torch
    >>> confidence = torch.tensor([[0.9, 0.8, 0.5], [0.9, 0.5, 0.9]])
    >>> threshold_lengths(confidence, 0.75)
    tensor([2, 1])
    >>> threshold_lengths(confidence, 0.75, on="survival")
    tensor([1, 1])

    Differs: DeepSpec's evaluator has the conditional rule only.
    """
    check_range("threshold", threshold, 0.0, 1.0)
    check_known("on", on, ("conditional", "survival"))
    values = survival(confidence)  # checks the range for both rules
    if on == "conditional":
        values = confidence
    return leading_run(values >= threshold)  # [R]
