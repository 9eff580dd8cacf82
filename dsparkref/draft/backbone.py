"""DFlash: a small transformer that drafts a whole block in one forward pass.

It does not read the context's tokens. It reads what the target already computed for
them: the hidden states of a few tapped layers, projected once (Eq. 2) and injected
into every draft layer as extra keys and values (Eq. 3). Queries come from the block
alone: the anchor's embedding, then mask tokens. Inside the block attention runs both
ways; towards the context it is causal by construction, for a block sees only what
stands strictly before its anchor.

Written out on torch alone; nothing here depends on transformers.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from dsparkref.draft.spec import DrafterSpec

KeysValues = tuple[Tensor, Tensor]


def rotary(
    positions: Int[Tensor, "*P"], head_dim: int, theta: float
) -> tuple[Float[Tensor, "*P d"], Float[Tensor, "*P d"]]:
    """Return cosine and sine of the rotary angles, position / theta^(2i/d).

    >>> cos, sin = rotary(torch.tensor([0, 1]), head_dim=2, theta=10.0)
    >>> [[round(c, 4) for c in row] for row in cos.tolist()]
    [[1.0, 1.0], [0.5403, 0.5403]]
    """
    exponent = torch.arange(0, head_dim, 2, device=positions.device) / head_dim
    frequency = theta**-exponent
    angles = positions[..., None].float() * frequency  # [*P, d/2]
    angles = torch.cat([angles, angles], dim=-1)  # [*P, d]
    return angles.cos(), angles.sin()


def rotate(
    x: Float[Tensor, "B H P d"], cos: Float[Tensor, "#B P d"], sin: Tensor
) -> Float[Tensor, "B H P d"]:
    """Turn each pair (x_i, x_{i + d/2}) by its angle."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cos[:, None].to(x.dtype) + turned * sin[:, None].to(x.dtype)


class RMSNorm(nn.RMSNorm):
    """Torch's RMSNorm; under autocast its weight follows the input's dtype."""

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Divide by the root mean square of the last dimension, times the weight."""
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class ContextCache:
    """Keys and values of the committed context, one pair per draft layer.

    Only committed tokens ever enter, so nothing is rolled back. Room is doubled when
    it runs out, which keeps the cost of an append constant on average.
    """

    def __init__(self, num_layers: int) -> None:
        self.length = 0  # committed tokens whose features are held
        self._buffers: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def extend(self, keys_values: list[KeysValues]) -> None:
        """Append new rows, [B, H, T_new, d] each, at the end of every layer."""
        end = self.length + keys_values[0][0].shape[2]
        for buffers, new_rows in zip(self._buffers, keys_values, strict=True):
            if not buffers or buffers[0].shape[2] < end:
                held = buffers or [rows[:, :, :0] for rows in new_rows]
                buffers[:] = [self._grown(rows, end) for rows in held]
            for buffer, new in zip(buffers, new_rows, strict=True):
                buffer[:, :, self.length : end] = new
        self.length = end

    def keys_values(self) -> list[KeysValues]:
        """Return views of what is held, [B, H, length, d] each."""
        held = slice(0, self.length)
        return [(k[:, :, held], v[:, :, held]) for k, v in self._buffers]

    def _grown(self, held: Tensor, end: int) -> Tensor:
        batch, heads, _, width = held.shape
        buffer = held.new_empty(batch, heads, 2 * end, width)
        buffer[:, :, : self.length] = held[:, :, : self.length]
        return buffer


class DraftAttention(nn.Module):
    """Attention of the block to [context ; block]; one k and v projection for both."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.grouped = spec.num_heads != spec.num_kv_heads
        width, bias = spec.hidden_size, spec.attention_bias
        self.q_proj = nn.Linear(width, spec.num_heads * spec.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, spec.num_kv_heads * spec.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, spec.num_kv_heads * spec.head_dim, bias=bias)
        self.o_proj = nn.Linear(spec.num_heads * spec.head_dim, width, bias=bias)
        self.q_norm = RMSNorm(spec.head_dim, eps=spec.rms_norm_eps)
        self.k_norm = RMSNorm(spec.head_dim, eps=spec.rms_norm_eps)

    def heads(self, projected: Float[Tensor, "B P HD"]) -> Float[Tensor, "B H P d"]:
        """Split the last dimension into heads."""
        count = projected.shape[-1] // self.head_dim
        split = projected.unflatten(-1, (count, self.head_dim))  # [B, P, H, d]
        return split.transpose(1, 2)  # [B, H, P, d]

    def keys_values(
        self, x: Float[Tensor, "B P D"], cos: Tensor, sin: Tensor
    ) -> KeysValues:
        """Return keys and values, of the context or of the block."""
        keys = rotate(self.k_norm(self.heads(self.k_proj(x))), cos, sin)
        return keys, self.heads(self.v_proj(x))

    def forward(
        self,
        block: Float[Tensor, "B P D"],
        context: KeysValues,
        cos: Tensor,
        sin: Tensor,
        mask: Bool[Tensor, "#B 1 P keys"] | None,
    ) -> Float[Tensor, "B P D"]:
        """Attend from the block to the context and to the block itself."""
        queries = rotate(self.q_norm(self.heads(self.q_proj(block))), cos, sin)
        keys, values = self.keys_values(block, cos, sin)
        keys = torch.cat([context[0], keys], dim=2)  # [B, H, T + P, d]
        values = torch.cat([context[1], values], dim=2)
        out = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=self.grouped
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))  # [B, P, D]


class MLP(nn.Module):
    """SwiGLU: W_down (silu(W_gate x) * W_up x)."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        width, inner = spec.hidden_size, spec.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Float[Tensor, "B P D"]) -> Float[Tensor, "B P D"]:
        """Apply the layer position by position."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """One pre-norm transformer layer with the context injected as keys and values."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.input_norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.attention = DraftAttention(spec)
        self.mlp_norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.mlp = MLP(spec)

    def forward(
        self,
        block: Float[Tensor, "B P D"],
        context: KeysValues,
        cos: Tensor,
        sin: Tensor,
        mask: Bool[Tensor, "#B 1 P keys"] | None,
    ) -> Float[Tensor, "B P D"]:
        """Update the block; the context's keys and values are only read."""
        # The block goes through the input norm; the context did not (Eq. 3).
        attended = self.attention(self.input_norm(block), context, cos, sin, mask)
        block = block + attended
        return block + self.mlp(self.mlp_norm(block))


class Backbone(nn.Module):
    """The parallel drafter of DFlash, from target features to hidden states h_k."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.spec = spec
        self.context_proj = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
        self.context_norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(spec) for _ in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)

    def context(
        self,
        target_hidden: Float[Tensor, "B T LD"],
        start: int | Int[Tensor, "B 1"] = 0,
    ) -> list[KeysValues]:
        """Return each layer's keys and values of the context tokens.

        Eq. 2: H_ctx = RMSNorm(W_c [H^(l1) ; ... ; H^(lm)]), shared by all layers and
        computed once per committed token. ``start`` is the position of row 0, one
        for all or one for each.
        """
        context = self.context_norm(self.context_proj(target_hidden))  # [B, T, D]
        positions = start + torch.arange(context.shape[1], device=context.device)[None]
        cos, sin = rotary(positions, self.spec.head_dim, self.spec.rope_theta)
        layers = cast("list[DraftLayer]", self.layers)
        return [layer.attention.keys_values(context, cos, sin) for layer in layers]

    def forward(
        self,
        block: Float[Tensor, "B P D"],
        context: list[KeysValues],
        positions: Int[Tensor, "#B P"],
        masks: Sequence[Bool[Tensor, "#B 1 P keys"] | None] | None = None,
    ) -> Float[Tensor, "B P D"]:
        """Return the hidden states of the block's slots, after the final norm.

        ``block`` holds the embeddings of the anchor and the mask tokens,
        ``positions`` their absolute positions. ``masks`` (one per layer, True:
        visible) are for training, where many blocks share one context, and for layers
        with causal blocks or windows; None: all see all.
        """
        cos, sin = rotary(positions, self.spec.head_dim, self.spec.rope_theta)
        masks = masks or [None] * len(self.layers)
        for layer, known, mask in zip(self.layers, context, masks, strict=True):
            block = layer(block, known, cos, sin, mask)
        return self.norm(block)
