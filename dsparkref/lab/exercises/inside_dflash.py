"""Exercises of notebook 04: a block's input, what it may see, what the context gives.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

from typing import Any

import torch
from torch import Tensor

from dsparkref.draft.backbone import Backbone, KeysValues, rotary, rotate
from dsparkref.draft.blocks import block_tokens, training_mask
from dsparkref.draft.spec import DrafterSpec
from dsparkref.lab.checks import Exercise

# -- warm-up: a block's input ---------------------------------------------------------


def _one_too_many(anchor: Tensor, num_slots: int, mask_token_id: int) -> Tensor:
    return block_tokens(anchor, num_slots + 1, mask_token_id)


def _masks_alone(anchor: Tensor, num_slots: int, mask_token_id: int) -> Tensor:
    return torch.full((len(anchor), num_slots), mask_token_id)


def _anchor_everywhere(anchor: Tensor, num_slots: int, mask_token_id: int) -> Tensor:
    return anchor[:, None].expand(-1, num_slots)


def _anchor_last(anchor: Tensor, num_slots: int, mask_token_id: int) -> Tensor:
    return block_tokens(anchor, num_slots, mask_token_id).flip(-1)


def _one_block(anchor: Tensor, num_slots: int, mask_token_id: int) -> Tensor:
    return block_tokens(anchor[0], num_slots, mask_token_id)


def _one_row(anchor: Tensor, num_slots: int, mask_token_id: int) -> Tensor:
    return torch.cat([anchor, torch.full((num_slots - 1,), mask_token_id)])


def _counting_on(anchor: Tensor, num_slots: int, mask_token_id: int) -> Tensor:
    return anchor[:, None] + torch.arange(num_slots)


BLOCK_INPUT = Exercise(
    name="block_input",
    reference=block_tokens,
    cases=[
        (torch.tensor([10]), 4, 99),
        (torch.tensor([7, 8]), 3, 1),
        (torch.tensor([5]), 1, 9),
    ],
    mistakes={
        "One slot too many: the anchor takes a slot of its own, it does not come on "
        "top of the mask tokens.": _one_too_many,
        "The anchor is missing. It is the one token of the block that is known.": (
            _masks_alone
        ),
        "The anchor fills every slot. Only the first is known, the others are to be "
        "drafted.": _anchor_everywhere,
        "The anchor stands last, as if the block were read from the right. It is "
        "the *first* token of the block.": _anchor_last,
        "A row for each anchor is wanted, [B, Q]; yours holds one block.": _one_block,
        "All anchors stand in one row. Each begins a block of its own: [B, Q].": (
            _one_row
        ),
        "These are the anchor's id, plus 1, plus 2: ids are names, not places. What "
        "fills an unknown slot is the mask token.": _counting_on,
    },
)

# -- core: what the slots may see -----------------------------------------------------


def _mask(
    anchors: Tensor,
    num_slots: int,
    length: int,
    sees_context: Any,
    sees_block: Any,
) -> Tensor:
    """Build a mask from two rules over (anchor, slot, key) and (block, slot) pairs."""
    blocks = anchors.shape[1]
    anchor = anchors.repeat_interleave(num_slots, dim=1)[..., None]  # [B, P, 1]
    slot = torch.arange(num_slots).repeat(blocks)  # [P]
    block = torch.arange(blocks).repeat_interleave(num_slots)
    context = sees_context(torch.arange(length), anchor, slot[:, None])
    own = sees_block(block[:, None] == block, slot[:, None] >= slot)
    return torch.cat([context, own.expand(len(anchors), -1, -1)], dim=-1)[:, None]


def _same_block(same: Tensor, backwards: Tensor) -> Tensor:
    return same


def _before_anchor(key: Tensor, anchor: Tensor, slot: Tensor) -> Tensor:
    return key < anchor


def _anchor_twice(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    return _mask(anchors, num_slots, length, lambda j, a, s: j <= a, _same_block)


def _up_to_the_slot(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    return _mask(anchors, num_slots, length, lambda j, a, s: j < a + s, _same_block)


def _all_context(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    return _mask(
        anchors, num_slots, length, lambda j, a, s: j < a + length, _same_block
    )


def _causal_block(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    return training_mask(anchors, num_slots, length, causal=True)


def _blocks_see_each_other(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    def any_block(same: Tensor, backwards: Tensor) -> Tensor:
        return torch.ones_like(same)

    return _mask(anchors, num_slots, length, _before_anchor, any_block)


def _one_long_sequence(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    size = length + anchors.shape[1] * num_slots
    causal = torch.ones(size, size).tril().bool()[length:]
    return causal.expand(len(anchors), 1, -1, -1)


def _true_is_hidden(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    return ~training_mask(anchors, num_slots, length)


def _block_first(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    mask = training_mask(anchors, num_slots, length)
    return torch.cat([mask[..., length:], mask[..., :length]], dim=-1)


def _no_offset(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    mask = training_mask(anchors, num_slots, length)
    text, own = mask[..., :length], mask[..., length:]
    written = torch.zeros_like(mask)
    written[..., :length] = text
    written[..., : own.shape[-1]] |= own
    return written


def _no_head_axis(anchors: Tensor, num_slots: int, length: int) -> Tensor:
    return training_mask(anchors, num_slots, length)[:, 0]


BLOCK_MASK = Exercise(
    name="block_mask",
    reference=training_mask,
    cases=[
        (torch.tensor([[2]]), 2, 4),
        (torch.tensor([[1, 3]]), 3, 6),
        (torch.tensor([[0, 2], [4, 1]]), 2, 5),
    ],
    mistakes={
        "The anchor is seen twice: its slot stands in the block, and your context "
        "ends *after* it. The target has not even read it yet.": _anchor_twice,
        "A slot sees the context up to its own place: in training that is the answer "
        "it is asked for. Every slot of a block sees what stands before the "
        "*anchor*.": _up_to_the_slot,
        "Every block sees the whole text, its own labels included.": _all_context,
        "Inside the block yours is causal. DFlash's slots see one another both ways.": (
            _causal_block
        ),
        "Blocks see each other. Each is an attempt of its own; in decoding there is "
        "only one.": _blocks_see_each_other,
        "One causal mask over everything, as in a language model. Here a block sees "
        "its context, itself in both directions, and no other block.": (
            _one_long_sequence
        ),
        "True and false are swapped: in scaled_dot_product_attention True means "
        "*may look*.": _true_is_hidden,
        "The columns are in the wrong order: keys are the context first, then the "
        "slots.": _block_first,
        "The slots' columns stand behind those of the text: they begin at `length`.": (
            _no_offset
        ),
        "The axis for the attention heads is missing: [B, 1, P, S+P].": _no_head_axis,
    },
)

# -- stretch: what the context gives each layer ---------------------------------------


def _given(
    backbone: Any,
    target_hidden: Tensor,
    start: int,
    *,
    normed: bool = True,
    input_norm: bool = False,
    layer_by_layer: bool = False,
    first_layer: bool = False,
) -> list[KeysValues]:
    """Compute the context's keys and values, with one mistake or none."""
    context = backbone.context_proj(target_hidden)
    context = backbone.context_norm(context) if normed else context
    positions = start + torch.arange(context.shape[1])[None]
    cos, sin = rotary(positions, backbone.spec.head_dim, backbone.spec.rope_theta)
    found: list[KeysValues] = []
    for layer in backbone.layers:
        rows = layer.input_norm(context) if input_norm else context
        attention = (backbone.layers[0] if first_layer else layer).attention
        keys, values = attention.keys_values(rows, cos, sin)
        found.append((keys, values))
        if layer_by_layer:
            context = layer(context, (keys[:, :, :0], values[:, :, :0]), cos, sin, None)
    return found


def _through_the_input_norm(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _given(backbone, hidden, start, input_norm=True)


def _without_its_norm(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _given(backbone, hidden, start, normed=False)


def _from_zero(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _given(backbone, hidden, 0)


def _updated(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _given(backbone, hidden, start, layer_by_layer=True)


def _one_layer_for_all(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _given(backbone, hidden, start, first_layer=True)


def _no_batch_axis(backbone: Any, hidden: Tensor, start: int) -> Any:
    context = backbone.context_norm(backbone.context_proj(hidden))
    positions = start + torch.arange(context.shape[1])
    turn = rotary(positions, backbone.spec.head_dim, backbone.spec.rope_theta)
    return [layer.attention.keys_values(context, *turn) for layer in backbone.layers]


def _by_hand(backbone: Any, hidden: Tensor, start: int, order: str) -> Any:
    context = backbone.context_norm(backbone.context_proj(hidden))
    positions = start + torch.arange(context.shape[1])[None]
    turn = rotary(positions, backbone.spec.head_dim, backbone.spec.rope_theta)
    found = []
    for layer in backbone.layers:
        own = layer.attention
        keys, values = own.heads(own.k_proj(context)), own.heads(own.v_proj(context))
        keys = keys if order == "no norm" else own.k_norm(keys)
        values = rotate(values, *turn) if order == "values too" else values
        found.append((keys if order == "no turn" else rotate(keys, *turn), values))
    return found


def _no_key_norm(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _by_hand(backbone, hidden, start, "no norm")


def _no_rotation(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _by_hand(backbone, hidden, start, "no turn")


def _values_rotated(backbone: Any, hidden: Tensor, start: int) -> Any:
    return _by_hand(backbone, hidden, start, "values too")


def _small_backbone() -> Backbone:
    """Return a random backbone of two layers whose norms are not all ones."""
    spec = DrafterSpec(
        head="dflash", block_size=3, target_layer_ids=(0, 2), mask_token_id=9,
        vocab_size=10, hidden_size=8, intermediate_size=12, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=4, rope_theta=100.0,
    )  # fmt: skip
    with torch.device("meta"):
        backbone = Backbone(spec)
    backbone = backbone.to_empty(device="cpu").requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in backbone.parameters():
        parameter.normal_(generator=generator)
    return backbone


def _context_cases() -> list[tuple[Backbone, Tensor, int]]:
    backbone, generator = _small_backbone(), torch.Generator().manual_seed(1)
    sizes = [(1, 0), (3, 0), (2, 5)]  # rows, position of the first
    return [
        (backbone, torch.randn(1, rows, 16, generator=generator), start)
        for rows, start in sizes
    ]


CONTEXT = Exercise(
    name="context_keys_values",
    reference=Backbone.context,
    cases=_context_cases(),
    mistakes={
        "The context went through the layer's input norm. Only the block does; the "
        "context comes from Eq. 2 as it is.": _through_the_input_norm,
        "Eq. 2 has an RMSNorm after W_c: the backbone's context_norm.": (
            _without_its_norm
        ),
        "Every call begins at position 0. With a cache, row 0 stands at position "
        "`start`.": _from_zero,
        "Your context changes from layer to layer, as in an ordinary transformer. "
        "Here it is computed once, and every layer reads the same.": _updated,
        "cos and sin lack the batch axis: positions are [1, T], not [T].": (
            _no_batch_axis
        ),
        "All layers have layer 0's keys and values. The context is shared, the "
        "projections are not.": _one_layer_for_all,
        "Keys go through k_norm, head by head, before they are rotated.": _no_key_norm,
        "Keys are rotated by their position; yours have none.": _no_rotation,
        "Values are rotated too. Only queries and keys are: position decides who is "
        "looked at, not what is read there.": _values_rotated,
    },
)

EXERCISES = {exercise.name: exercise for exercise in (BLOCK_INPUT, BLOCK_MASK, CONTEXT)}
