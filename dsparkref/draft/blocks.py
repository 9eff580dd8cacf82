"""Training blocks: what each of N blocks in a sequence sees, reads and must say.

A block starts at an anchor a. Its slots stand at positions a, a+1, ...; draft k
(0-based; the papers' k+1) reads token a+k as the one before it and must say token
a+k+1. Many blocks of one sequence are trained in one forward pass; a mask keeps each
block to itself and to the context strictly before its own anchor.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dsparkref.draft.spec import DrafterSpec
from dsparkref.shapes import check_range, check_shape, problem
from dsparkref.verify.inputs import check_tensor

Mask = Bool[Tensor, "B S"] | Int[Tensor, "B S"] | Float[Tensor, "B S"]


def block_positions(
    anchors: Int[Tensor, "B N"], length: int
) -> Int[Tensor, "B N length"]:
    """Return anchor, anchor+1, ... for every block.

    >>> block_positions(torch.tensor([[10]]), 4).tolist()
    [[[10, 11, 12, 13]]]
    """
    return anchors[..., None] + torch.arange(length, device=anchors.device)


def check_anchors(anchors: Int[Tensor, "B N"], **sizes: int) -> dict[str, int]:
    """Check that every anchor stands in its sequence of S tokens; return the sizes.

    >>> check_anchors(torch.tensor([[-1]]), B=1, S=5)
    Traceback (most recent call last):
    ValueError: anchors must stand in the sequence: expected 0..4, got -1.
    """
    known = check_shape("anchors", anchors, "B N", **sizes)
    check_tensor("anchors", anchors)
    if anchors.dtype not in (torch.int64, torch.int32):
        kind = anchors.dtype
        raise problem("anchors", "be positions", "integers", kind, error=TypeError)
    outside = (anchors < 0) | (anchors >= sizes["S"])
    if outside.any():
        expected, got = f"0..{sizes['S'] - 1}", int(anchors[outside][0])
        raise problem("anchors", "stand in the sequence", expected, got)
    return known


def block_tokens(
    anchor_tokens: Int[Tensor, "*B"], num_slots: int, mask_token_id: int
) -> Int[Tensor, "*B Q"]:
    """Return the block's input: the anchor, then mask tokens.

    >>> block_tokens(torch.tensor([10]), 4, mask_token_id=99).tolist()
    [[10, 99, 99, 99]]
    """
    shape = (*anchor_tokens.shape, num_slots)
    tokens = anchor_tokens.new_full(shape, mask_token_id)
    tokens[..., 0] = anchor_tokens
    return tokens


def gather_rows(
    rows: Shaped[Tensor, "B S *F"], positions: Int[Tensor, "B N K"]
) -> Shaped[Tensor, "B N K *F"]:
    """Return ``rows`` at each position; beyond the end the last row stands in.

    >>> gather_rows(torch.tensor([[5, 6, 7]]), torch.tensor([[[1, 2, 3]]])).tolist()
    [[[6, 7, 7]]]
    """
    batch = torch.arange(len(rows), device=rows.device)[:, None, None]
    return rows[batch, positions.clamp(max=rows.shape[1] - 1)]


def training_mask(
    anchors: Int[Tensor, "B N"],
    num_slots: int,
    length: int,
    *,
    causal: bool = False,
    window: int = 0,
    window_rule: str = "slot",
) -> Bool[Tensor, "B 1 P T"]:
    """Return who sees whom, True: visible; P = N*Q queries, T = S + N*Q keys.

    A query of block n sees context positions strictly before anchor n, and every
    slot of its own block, before and behind it alike (trap: some texts call DFlash's
    block causal; in the papers and their codes it is bidirectional).

    Differs: some later checkpoints have draft layers with ``causal`` blocks, or with a
    ``window`` of W > 0 positions. Codes count it in three ways (``window_rule``):
    context from W before the anchor on, for all slots ("anchor"); context less than W
    before each slot ("slot"); the same for slots of the block ("slot, block too").

    >>> mask = training_mask(torch.tensor([[1, 2]]), num_slots=2, length=3)
    >>> for row in mask[0, 0].int().tolist(): print(row)
    [1, 0, 0, 1, 1, 0, 0]
    [1, 0, 0, 1, 1, 0, 0]
    [1, 1, 0, 0, 0, 1, 1]
    [1, 1, 0, 0, 0, 1, 1]
    >>> anchor = torch.tensor([[3]])
    >>> mask = training_mask(anchor, 2, 3, causal=True, window=3)
    >>> for row in mask[0, 0].int().tolist(): print(row)
    [0, 1, 1, 1, 0]
    [0, 0, 1, 1, 1]
    """
    batch, blocks = anchors.shape
    query_anchor = anchors.repeat_interleave(num_slots, dim=1)[..., None]  # [B, P, 1]
    context = torch.arange(length, device=anchors.device)
    sees_context = context < query_anchor  # [B, P, S]
    slot = torch.arange(num_slots, device=anchors.device).repeat(blocks)  # [P]
    block = torch.arange(blocks, device=anchors.device).repeat_interleave(num_slots)
    sees_block = block[:, None] == block  # [P, P]
    ahead = slot - slot[:, None]  # of the query, in slots
    if causal:
        sees_block = sees_block & (ahead <= 0)
    if window and window_rule == "anchor":
        sees_context = sees_context & (context >= query_anchor - window)
    elif window:
        position = query_anchor + slot[:, None]
        sees_context = sees_context & (context > position - window)
    if window and window_rule == "slot, block too":
        sees_block = sees_block & (ahead.abs() < window)
    sees_block = sees_block.expand(batch, -1, -1)  # [B, P, P]
    return torch.cat([sees_context, sees_block], dim=-1)[:, None]


def layer_masks(
    spec: DrafterSpec, anchors: Int[Tensor, "B N"], length: int
) -> list[Bool[Tensor, "B 1 P T"]]:
    """Return ``training_mask`` for each draft layer; equal layers share one."""
    made: dict[tuple[bool, bool], Tensor] = {}
    kinds = [
        (layer in spec.causal_layers, layer in spec.window_layers)
        for layer in range(spec.num_layers)
    ]
    for causal, windowed in set(kinds):
        made[causal, windowed] = training_mask(
            anchors,
            spec.num_slots,
            length,
            causal=causal,
            window=spec.window if windowed else 0,
            window_rule=spec.window_rule,
        )
    return [made[kind] for kind in kinds]


def supervised_positions(
    loss_mask: Mask,
    anchors: Int[Tensor, "B N"],
    block_size: int,
    keep: Bool[Tensor, "B N"] | None = None,
) -> Bool[Tensor, "B N K"]:
    """Return which drafts carry loss.

    Draft k of anchor a counts while the anchor a and the labels a+1 .. a+k+1 all
    carry loss and lie inside the sequence: supervision stops at the first gap, for a
    draft behind an unsupervised one would be trained on a prefix that never counts.
    ``keep`` False drops a block whole (padding where a sequence has few anchors).

    Differs: Domino and ModelOpt mask per position, without the stop.

    >>> mask = torch.tensor([[0, 1, 1, 1, 0, 1]])
    >>> supervised_positions(mask, torch.tensor([[0, 1, 2]]), 3).int().tolist()
    [[[0, 0, 0], [1, 1, 0], [1, 0, 0]]]
    """
    sizes = check_shape("loss_mask", loss_mask, "B S")
    check_tensor("loss_mask", loss_mask)
    if not ((loss_mask == 0) | (loss_mask == 1)).all():
        raise problem("loss_mask", "be a mask", "0 or 1 at each token", "other values")
    sizes = check_anchors(anchors, **sizes)
    check_range("block_size", block_size, 1, integer=True)
    positions = block_positions(anchors, block_size + 1)  # [B, N, K+1]
    inside = positions < loss_mask.shape[1]
    carries = gather_rows(loss_mask != 0, positions) & inside
    unbroken = carries.int().cumprod(dim=-1).bool()
    supervised = unbroken[..., 1:]  # [B, N, K]
    if keep is not None:
        check_shape("keep", keep, "B N", **sizes)
        check_tensor("keep", keep)
        supervised = supervised & (keep != 0)[..., None]
    return supervised


def aligned_target_logits(
    target_logits: Float[Tensor, "B S V"], anchors: Int[Tensor, "B N"], block_size: int
) -> Float[Tensor, "B N K V"]:
    """Return the target's logits for the same token that each draft is to say.

    The target's row a+k is its law of token a+k+1, the label of draft k (0-based).

    >>> logits = torch.arange(6.0).view(1, 6, 1)
    >>> aligned_target_logits(logits, torch.tensor([[2]]), 3).flatten().tolist()
    [2.0, 3.0, 4.0]
    """
    sizes = check_shape("target_logits", target_logits, "B S V")
    check_anchors(anchors, **sizes)
    check_range("block_size", block_size, 1, integer=True)
    return gather_rows(target_logits, block_positions(anchors, block_size))
