"""What a drafter sees, measured: attention in a cycle, reach, what each slot predicts.

Nothing here reads the mask that the code builds. The numbers come from running the
drafter, so that they can be held against what the code says about itself.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dsparkref.analysis.evaluate import EvalPrompt
from dsparkref.decode.request import as_row
from dsparkref.decode.target import Target
from dsparkref.draft.backbone import DraftAttention, KeysValues, rotate
from dsparkref.draft.blocks import (
    block_positions,
    block_tokens,
    gather_rows,
    layer_masks,
)
from dsparkref.draft.drafter import Drafter
from dsparkref.verify.rejection import accept_rate
from dsparkref.verify.sampling import probabilities

# Sums of a few hundred terms, in another order, stay within this many.
ROUNDING_STEPS = 64


@dataclass(frozen=True)
class Attention:
    """The tensors of one draft layer's attention."""

    # [1, Q, D], the block's rows after the layer's input norm
    block: Tensor
    # [1, Hq, Q, d], rotated
    queries: Tensor
    # [1, Hkv, T+Q, d], rotated: context, then block
    keys: Tensor
    # [1, Hkv, T+Q, d]
    values: Tensor
    # [1, Hq, Q, T+Q], each row sums to 1
    weights: Tensor


def with_spec(drafter: Drafter, **changes: Any) -> Drafter:
    """Return this drafter told otherwise about itself; the weights are shared.

    It loads and runs: nothing in the weights says which layers they were trained on,
    or which slot predicts what.
    """
    other = copy.copy(drafter)
    other.spec = replace(drafter.spec, **changes)
    return other


def agree(expected: Tensor, got: Tensor) -> bool:
    """Whether two ways to compute one thing differ by rounding alone.

    The gap is measured against the largest entry, in steps of the dtype.

    >>> agree(torch.tensor([1000.0, 1.0]), torch.tensor([1000.0, 1.0001]))
    True
    >>> agree(torch.tensor([1000.0, 1.0]), torch.tensor([1000.0, 1.1]))
    False
    """
    gap = (expected - got).abs().max() / expected.abs().max()
    return bool(gap <= ROUNDING_STEPS * torch.finfo(got.dtype).eps)


def cycle_attention(
    drafter: Drafter, target_hidden: Float[Tensor, "1 T LD"], anchor: Int[Tensor, " 1"]
) -> list[Attention]:
    """Draft one block, and return what each draft layer's attention computed."""
    found: list[Attention] = []
    layers: Any = drafter.backbone.layers
    hooks = [
        layer.attention.register_forward_hook(
            lambda module, given, _: found.append(_attention(module, *given))
        )
        for layer in layers
    ]
    try:
        drafter.propose(target_hidden, anchor)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _attention(
    module: DraftAttention,
    block: Tensor,
    context: KeysValues,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor | None,
) -> Attention:
    """Compute the weights that scaled_dot_product_attention keeps to itself."""
    queries = rotate(module.q_norm(module.heads(module.q_proj(block))), cos, sin)
    keys, values = (
        torch.cat([known, own], dim=2)
        for known, own in zip(context, module.keys_values(block, cos, sin), strict=True)
    )
    shared = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    scores = queries @ shared.transpose(2, 3) / module.head_dim**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return Attention(block, queries, keys, values, scores.float().softmax(dim=-1))


def reach(
    drafter: Drafter,
    input_ids: Int[Tensor, "1 S"],
    target_hidden: Float[Tensor, "1 S LD"],
    anchors: Int[Tensor, "1 N"],
) -> Bool[Tensor, "P keys"]:
    """Return which inputs move which slots of N blocks of one text, by gradients.

    Rows are the P = N * Q slots, columns the S context rows and then the slots' own
    inputs. True: the slot's hidden state would change if that input did.
    """
    spec, length = drafter.spec, input_ids.shape[1]
    tokens = block_tokens(
        input_ids.gather(1, anchors), spec.num_slots, spec.mask_token_id
    ).flatten(1)  # [1, P]
    positions = block_positions(anchors, spec.num_slots).flatten(1)  # [1, P]
    features = target_hidden.detach().to(drafter.dtype).requires_grad_()
    block = drafter.embed(tokens).detach().requires_grad_()
    hidden = drafter.backbone(
        block,
        drafter.backbone.context(features),
        positions,
        layer_masks(spec, anchors, length),
    )
    rows = []
    for slot in hidden[0].sum(dim=-1):  # a scalar each
        moved = torch.autograd.grad(slot, [features, block], retain_graph=True)
        rows.append(torch.cat([(g[0] != 0).any(dim=-1) for g in moved]))  # [S + P]
    return torch.stack(rows)


@torch.no_grad()
def slot_alignment(
    target: Target, drafter: Any, examples: Sequence[EvalPrompt], *, every: int = 3
) -> Float[Tensor, "K J"]:
    """Return how well draft k's law matches the target's law of *each* token nearby.

    Row k is draft k (0-based), column j the token j places after the anchor (0: the
    anchor itself), up to K+1. Mean overlap over blocks of given text, temperature 1.
    """
    size = drafter.block_size
    total, count = torch.zeros(size, size + 2), 0
    for example in examples:
        ids = as_row([*example.prompt, *example.reply], target.device)
        last = ids.shape[1] - size - 1  # whole blocks, so that all columns exist
        first = len(example.prompt)
        if first >= last:
            continue
        anchors = torch.arange(first, last, every, device=ids.device)[None]  # [1, N]
        output = target.forward(ids, drafter.spec.target_layer_ids)
        block = drafter.training_forward(ids, output.hidden, anchors)
        p_draft = probabilities(block.base_logits)  # [1, N, K, V]
        before = gather_rows(output.logits, block_positions(anchors - 1, size + 2))
        for j, logits in enumerate(before.unbind(dim=2)):  # the law of token a + j
            p_target = probabilities(logits)[:, :, None].expand_as(p_draft)
            rates = accept_rate(p_target, p_draft)  # [1, N, K]
            total[:, j] += rates.sum(dim=(0, 1)).cpu()
        count += anchors.shape[1]
    return total / count
