"""A drafter: spec, backbone, head and confidence, behind three calls.

``propose`` drafts a block while decoding, ``teacher_forced`` computes the same block
for given previous tokens, ``training_forward`` does that for many blocks at once.
All three run the backbone once and then walk the head through the block.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from dsparkref.draft.backbone import Backbone, ContextCache, KeysValues
from dsparkref.draft.blocks import (
    block_positions,
    block_tokens,
    gather_rows,
    training_mask,
)
from dsparkref.draft.describe import describe_drafter
from dsparkref.draft.heads import ConfidenceHead, build_head
from dsparkref.draft.spec import DrafterSpec
from dsparkref.records import BlockOutput, Proposal, TrainingOutput
from dsparkref.shapes import check_logits, check_shape, problem
from dsparkref.verify.calibration import apply_sts
from dsparkref.verify.inputs import widen
from dsparkref.verify.sampling import (
    as_generator,
    check_settings,
    draw_uniforms,
    invert_cdf,
    make_law,
)


@dataclass
class Borrowed:
    """The target's embedding and LM head: used, never moved, saved or trained."""

    # [V, D] each
    embedding: Tensor
    lm_head: Tensor


class Drafter(nn.Module):
    """A block drafter for one target.

    ``embedding`` and ``lm_head`` [V, D] are the target's. They are borrowed, unless
    the spec says that the drafter owns its copy: then the module holds parameters
    of its own, ready for a checkpoint's values.
    """

    def __init__(self, spec: DrafterSpec, embedding: Tensor, lm_head: Tensor) -> None:
        super().__init__()
        self.spec = spec
        sizes = {"V": spec.vocab_size, "D": spec.hidden_size}
        check_shape("embedding", embedding, "V D", **sizes)
        check_shape("lm_head", lm_head, "V D", **sizes)
        self._borrowed = Borrowed(embedding, lm_head)
        shape = (spec.vocab_size, spec.hidden_size)
        if spec.owns_embedding:
            self.own_embedding = nn.Parameter(torch.empty(shape), requires_grad=False)
        if spec.owns_lm_head:
            self.own_lm_head = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.backbone = Backbone(spec)
        self.head = build_head(spec, self.embed)
        self.confidence = (
            ConfidenceHead(spec.hidden_size, spec.confidence_size)
            if spec.confidence
            else None
        )

    @property
    def block_size(self) -> int:
        """Drafts per cycle, K."""
        return self.spec.block_size

    @property
    def head_type(self) -> str:
        """One of dflash, markov, gated, rnn, domino."""
        return self.spec.head

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the drafter's own weights."""
        return self.backbone.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """The device of the drafter's own weights."""
        return self.backbone.norm.weight.device

    def describe(self) -> str:
        """Return what this drafter is, in a few lines of words."""
        total = sum(parameter.numel() for parameter in self.parameters())
        in_head = sum(parameter.numel() for parameter in self.head.parameters())
        return describe_drafter(self.spec, total, in_head)

    def with_temperatures(self, temperatures: Sequence[float] | None) -> "Drafter":
        """Return this drafter with other confidence temperatures; weights are shared.

        temperatures: K numbers > 0, as ``fit_sts`` gives them; None: all 1.
        """
        values = None if temperatures is None else tuple(map(float, temperatures))
        other = copy.copy(self)
        other.spec = replace(self.spec, confidence_temperatures=values)
        return other

    def new_cache(self) -> ContextCache:
        """Return an empty context cache for one request."""
        return ContextCache(self.spec.num_layers)

    def embed(self, tokens: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        """Return token embeddings in the drafter's dtype."""
        owned = self.spec.owns_embedding
        table = self.own_embedding if owned else self._borrowed.embedding
        return nn.functional.embedding(tokens, table).to(self.dtype)

    def unembed(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the base logits U of hidden states."""
        owned = self.spec.owns_lm_head
        table = self.own_lm_head if owned else self._borrowed.lm_head
        return linear(hidden.to(table.dtype), table)

    @torch.no_grad()
    def propose(
        self,
        target_hidden: Float[Tensor, "1 T LD"],
        anchor: Int[Tensor, "1"],
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | int | None = None,
        cache: ContextCache | None = None,
    ) -> Proposal:
        """Draft one block of K tokens after the anchor (Eq. 4).

        Without ``cache``, ``target_hidden`` holds the features of all T context
        tokens; with one, only of those committed since the last call. The anchor
        stands right after the context. Each token is drawn from its row of
        ``p_draft``: the very tensor that the verifier divides by.

        Differs: z-lab's code drafts greedily at every temperature.
        """
        self._check_features(target_hidden)
        check_shape("anchor", anchor, "B", B=1)
        check_settings(temperature, top_k, top_p)
        generator = as_generator(generator)
        hidden, base_logits = self._draft_block(target_hidden, anchor, cache)
        shape = base_logits.shape[:2]
        uniforms = draw_uniforms(shape, generator=generator, device=hidden.device)
        state, previous = self.head.init_state(1), anchor
        tokens, p_draft, draft_logits, confidence = [], [], [], []
        for k in range(self.block_size):
            bias, state = self.head.step(state, previous, hidden[:, k])
            logits = base_logits[:, k] + bias  # [1, V]
            probs = make_law(widen(logits), temperature, top_k, top_p)
            confidence.append(self._confidence_logit(hidden[:, k], state, previous))
            previous = invert_cdf(probs, uniforms[:, k])  # [1]
            tokens.append(previous)
            p_draft.append(probs)
            draft_logits.append(logits)
        corrected = torch.stack(draft_logits, dim=1)  # [1, K, V]
        check_logits("draft logits", corrected)  # at once: a NaN shows all the same
        return Proposal(
            tokens=torch.stack(tokens, dim=1),
            p_draft=torch.stack(p_draft, dim=1),
            draft_logits=corrected,
            base_logits=base_logits,
            hidden=hidden,
            confidence=self._calibrated(_stack(confidence)),
        )

    def teacher_forced(
        self,
        target_hidden: Float[Tensor, "B T LD"],
        prev_tokens: Int[Tensor, "B K"],
    ) -> BlockOutput:
        """Compute the block for given previous tokens; ``prev_tokens[:, 0]`` anchors.

        The context is positions 0..T-1, the anchor stands at position T.
        """
        sizes = self._check_features(target_hidden)
        check_shape("prev_tokens", prev_tokens, "B K", B=sizes["B"], K=self.block_size)
        hidden, base_logits = self._draft_block(target_hidden, prev_tokens[:, 0], None)
        draft_logits, confidence = self._correct(hidden, base_logits, prev_tokens)
        return BlockOutput(hidden, base_logits, draft_logits, confidence)

    def training_forward(
        self,
        input_ids: Int[Tensor, "B S"],
        target_hidden: Float[Tensor, "B S LD"],
        anchors: Int[Tensor, "B N"],
    ) -> TrainingOutput:
        """Compute N teacher-forced blocks per sequence in one pass.

        A block may run past the end of its sequence; its labels there mean nothing
        and ``supervised_positions`` leaves them out. The confidence logits carry no
        gradient to backbone or head. Differs: DeepSpec lets it through.
        """
        sizes = self._check_features(target_hidden)
        length = target_hidden.shape[1]
        check_shape("input_ids", input_ids, "B S", B=sizes["B"], S=length)
        batch, blocks = check_shape("anchors", anchors, "B N", B=sizes["B"]).values()
        slots = self.spec.num_slots
        positions = block_positions(anchors, slots).flatten(1)  # [B, N*Q]
        tokens = block_tokens(
            input_ids.gather(1, anchors), slots, self.spec.mask_token_id
        ).flatten(1)  # [B, N*Q]
        context = self.backbone.context(target_hidden.to(self.dtype))
        mask = training_mask(anchors, slots, length)
        hidden = self.backbone(self.embed(tokens), context, positions, mask)
        hidden = self._drafting_slots(hidden.view(batch * blocks, slots, -1))
        base_logits = self.unembed(hidden)  # [B*N, K, V]

        window = block_positions(anchors, self.block_size + 1)
        window_tokens = gather_rows(input_ids, window)  # [B, N, K+1]
        prev_tokens = window_tokens[..., :-1].flatten(0, 1)  # [B*N, K]
        draft_logits, confidence = self._correct(hidden, base_logits, prev_tokens)
        grid = (batch, blocks)
        return TrainingOutput(
            base_logits=base_logits.unflatten(0, grid),  # [B, N, K, V]
            draft_logits=draft_logits.unflatten(0, grid),
            confidence_logits=None
            if confidence is None
            else confidence.unflatten(0, grid),
            labels=window_tokens[..., 1:],
        )

    def _draft_block(
        self, target_hidden: Tensor, anchor: Tensor, cache: ContextCache | None
    ) -> tuple[Tensor, Tensor]:
        """Run the backbone once: h [B, K, D] and U [B, K, V]."""
        start = 0 if cache is None else cache.length
        rows = target_hidden.to(self.dtype)
        context: list[KeysValues] = self.backbone.context(rows, start)
        if cache is not None:
            cache.extend(context)
            context = cache.keys_values()
        slots = self.spec.num_slots
        first = start + target_hidden.shape[1]  # the anchor's position
        positions = torch.arange(first, first + slots, device=rows.device)[None]
        tokens = block_tokens(anchor, slots, self.spec.mask_token_id)  # [B, Q]
        hidden = self.backbone(self.embed(tokens), context, positions)
        hidden = self._drafting_slots(hidden)
        return hidden, self.unembed(hidden)

    def _drafting_slots(self, hidden: Float[Tensor, "B Q D"]) -> Tensor:
        """Drop slot 0 where the anchor's own slot predicts nothing."""
        return hidden if self.spec.anchor_predicts else hidden[:, 1:]

    def _correct(
        self, hidden: Tensor, base_logits: Tensor, prev_tokens: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Walk the head over given tokens: U + B [B, K, V], confidence [B, K]."""
        state = self.head.init_state(len(hidden))
        draft_logits, confidence = [], []
        for k in range(self.block_size):
            previous = prev_tokens[:, k]
            bias, state = self.head.step(state, previous, hidden[:, k])
            draft_logits.append(base_logits[:, k] + bias)
            confidence.append(self._confidence_logit(hidden[:, k], state, previous))
        return torch.stack(draft_logits, dim=1), _stack(confidence)

    def _confidence_logit(
        self, hidden: Tensor, state: Any, previous: Tensor
    ) -> Tensor | None:
        """Return the logit of c_k [B]; no gradient goes back through its input."""
        if self.confidence is None:
            return None
        features = self.head.features(state, previous)
        return self.confidence(hidden.detach(), features.detach())

    def _calibrated(self, logits: Tensor | None) -> Tensor | None:
        """Return c = sigmoid(logit / temperature), in float32 or wider."""
        if logits is None:
            return None
        temperatures = self.spec.confidence_temperatures
        if temperatures is None:
            return torch.sigmoid(widen(logits))
        return apply_sts(logits, temperatures)

    def _check_features(self, target_hidden: Tensor) -> dict[str, int]:
        """Check the target features' width and device; return B and T."""
        sizes = check_shape("target_hidden", target_hidden, "B T LD")
        width, expected = sizes.pop("LD"), self.spec.feature_size
        if width != expected:
            layers = f"{len(self.spec.target_layer_ids)} layers"
            hint = f"It taps {layers} of width {self.spec.hidden_size}."
            rule = "have the drafter's feature width"
            raise problem("target_hidden", rule, expected, width, hint)
        if target_hidden.device != self.device:
            rule = "be on the drafter's device"
            raise problem("target_hidden", rule, self.device, target_hidden.device)
        return sizes


def _stack(columns: list[Tensor | None]) -> Tensor | None:
    """Stack K columns [B] to [B, K]; None where there is no confidence head."""
    given = [column for column in columns if column is not None]
    return torch.stack(given, dim=1) if given else None
