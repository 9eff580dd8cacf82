"""The drafter's loss (Eq. 9-12): cross entropy, total variation, confidence.

Everything is a mean over supervised positions with weights w_k = exp(-k / loss_decay),
k the 0-based position in the block: an early rejection throws away all that follows,
so early positions count more. Nothing here knows about processes or devices.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from dsparkref.records import LossTerms, TrainingOutput
from dsparkref.shapes import check_range, check_shape, problem
from dsparkref.verify.inputs import check_tensor, check_token_ids

# a label without cross entropy
IGNORED = -100


def position_weights(
    supervised: Bool[Tensor, "B N K"],
    loss_decay: float,
    *,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B N K"]:
    """Return w_k = exp(-k / loss_decay) where supervised, 0 elsewhere.

    >>> position_weights(torch.tensor([[[True, True, False]]]), 4.0)
    tensor([[[1.0000, 0.7788, 0.0000]]])
    """
    check_range("loss_decay", loss_decay, 0.0, open_low=True)
    k = torch.arange(supervised.shape[-1], device=supervised.device, dtype=dtype)
    return torch.exp(-k / float(loss_decay)) * supervised  # [B, N, K]


def block_loss(
    output: TrainingOutput,
    target_logits: Float[Tensor, "B N K V"] | None,
    supervised: Bool[Tensor, "B N K"],
    *,
    weights: tuple[float, float, float] = (0.1, 0.9, 1.0),
    loss_decay: float = 4.0,
    base_weight: float = 0.0,
) -> LossTerms:
    """Return the loss of a batch of training blocks.

    total = w_ce ((1 - b) CE(draft) + b CE(base)) + w_tv TV + w_conf BCE, where

    - CE is the cross entropy of the label (Eq. 9),
    - TV is ||p_d - p_t||_1 (Eq. 10), which is twice the total variation distance,
    - BCE is that of the confidence against c* = 1 - ||p_d - p_t||_1 / 2 (Eq. 8, 11),
    - b = ``base_weight`` in [0, 1] is Domino's base-anchored term.

    ``weights`` are (w_ce, w_tv, w_conf). Without a confidence head BCE counts 0;
    ``target_logits`` may be None when w_tv = w_conf = 0. A batch with nothing
    supervised has loss 0 and zero gradients. Unsupervised slots do not matter.

    A label that a reduced vocabulary cannot draft (logit -inf) has no cross entropy:
    it adds 0 to the sum. The sum of the weights stays that of all supervised
    positions, one for all terms, so that no other position counts more for it.

    Differs: the paper sums over positions; the released code, like this one, divides
    by the sum of the weights.
    """
    sizes = _check_output(output, supervised)
    check_range("base_weight", base_weight, 0.0, 1.0)
    w_ce, w_tv, w_confidence = check_weights(weights)
    if target_logits is not None:
        check_shape("target_logits", target_logits, "B N K V", **sizes)
    elif w_tv > 0 or (w_confidence > 0 and output.confidence_logits is not None):
        hint = "Or set the weights of TV and confidence to 0."
        rule = "be given for these weights"
        raise problem("target_logits", rule, "a tensor", "None", hint)

    draft_logits = _widened(output.draft_logits)
    positions = position_weights(supervised, loss_decay, dtype=draft_logits.dtype)
    ce = _cross_entropy(draft_logits, output.labels, positions)
    if base_weight > 0:
        base_logits = _widened(output.base_logits)
        base_ce = _cross_entropy(base_logits, output.labels, positions)
        ce = (1 - base_weight) * ce + base_weight * base_ce
    tv = confidence = torch.zeros_like(ce)
    if target_logits is not None:
        distance = l1_distance(draft_logits, _widened(target_logits))  # [B, N, K]
        tv = _weighted_mean(distance, positions)
        if output.confidence_logits is not None:
            label = 1 - distance.detach() / 2  # c*, Eq. 8
            logits = _widened(output.confidence_logits)
            bce = binary_cross_entropy_with_logits(logits, label, reduction="none")
            confidence = _weighted_mean(bce, positions)
    total = w_ce * ce + w_tv * tv + w_confidence * confidence
    return LossTerms(total, ce, tv, confidence)


def check_weights(weights: object) -> tuple[float, float, float]:
    """Return the three weights of the loss, each >= 0.

    >>> check_weights((0.1, 0.9))
    Traceback (most recent call last):
    TypeError: weights must be three: expected (w_ce, w_tv, w_conf), got (0.1, 0.9).
    """
    if not isinstance(weights, Sequence) or len(weights) != 3:
        expected, got = "(w_ce, w_tv, w_conf)", repr(weights)
        raise problem("weights", "be three", expected, got, error=TypeError)
    for name, weight in zip(("w_ce", "w_tv", "w_conf"), weights, strict=True):
        check_range(f"weights ({name})", weight, 0.0)
    return weights[0], weights[1], weights[2]


def _check_output(output: TrainingOutput, supervised: Tensor) -> dict[str, int]:
    """Check that all parts are of the same blocks; return B, N, K and V."""
    if not isinstance(output, TrainingOutput):
        rule, got = "come from training_forward", type(output).__name__
        raise problem("output", rule, "a TrainingOutput", got, error=TypeError)
    sizes = check_shape("supervised", supervised, "B N K")
    check_tensor("supervised", supervised)
    check_shape("output.labels", output.labels, "B N K", **sizes)
    if output.confidence_logits is not None:
        name = "output.confidence_logits"
        check_shape(name, output.confidence_logits, "B N K", **sizes)
    sizes = check_shape("output.draft_logits", output.draft_logits, "B N K V", **sizes)
    check_shape("output.base_logits", output.base_logits, "B N K V", **sizes)
    check_token_ids("output.labels", output.labels, sizes["V"])
    return sizes


def l1_distance(
    draft_logits: Float[Tensor, "*B V"], target_logits: Float[Tensor, "*B V"]
) -> Float[Tensor, "*B"]:
    """Return ||softmax(draft) - softmax(target)||_1, in [0, 2].

    >>> draft, target = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    >>> round(l1_distance(draft, target).item(), 4)
    0.8
    """
    p_draft, p_target = draft_logits.softmax(dim=-1), target_logits.softmax(dim=-1)
    return (p_draft - p_target).abs().sum(dim=-1)


def _cross_entropy(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
    """Return the mean cross entropy of supervised labels that can be drafted."""
    at_label = logits.detach().gather(-1, labels[..., None])[..., 0]  # [B, N, K]
    counted = (positions > 0) & (at_label != -torch.inf)
    labels = labels.masked_fill(~counted, IGNORED)
    each = cross_entropy(
        logits.flatten(0, 2), labels.flatten(), reduction="none", ignore_index=IGNORED
    )
    return _weighted_mean(each.view_as(positions), positions)


def _weighted_mean(values: Tensor, positions: Tensor) -> Tensor:
    """Return sum(w v) / sum(w); 0 where nothing is supervised."""
    total = positions.sum()
    values = values.masked_fill(positions == 0, 0.0)
    return (values * positions).sum() / total.clamp_min(torch.finfo(total.dtype).tiny)


def _widened(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
