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
from torch.nn.utils.rnn import pad_sequence

from dsparkref.draft.backbone import Backbone, ContextCache
from dsparkref.draft.blocks import (
    block_positions,
    block_tokens,
    check_anchors,
    gather_rows,
    layer_masks,
)
from dsparkref.draft.context import ContextBatch
from dsparkref.draft.describe import describe_spec
from dsparkref.draft.heads import ConfidenceHead, build_head
from dsparkref.draft.spec import DrafterSpec
from dsparkref.draft.vocabulary import DraftVocabulary
from dsparkref.records import BlockOutput, Proposal, TrainingOutput
from dsparkref.shapes import (
    check_logits,
    check_offers,
    check_range,
    check_sequence,
    check_shape,
    problem,
)
from dsparkref.verify.calibration import apply_sts
from dsparkref.verify.inputs import check_token_ids, numbers, widen
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
        if spec.owns_embedding:
            self.own_embedding = _frozen(spec.vocab_size, spec.hidden_size)
        if spec.owns_lm_head:
            self.own_lm_head = _frozen(spec.num_draftable, spec.hidden_size)
        self.vocabulary = (
            DraftVocabulary(spec.vocab_size, spec.draft_vocab_size)
            if spec.draft_vocab_size
            else None
        )
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

    def facts(self) -> dict[str, str]:
        """Return what this drafter is: label -> words, in a fixed order."""
        total = sum(parameter.numel() for parameter in self.parameters())
        in_head = sum(parameter.numel() for parameter in self.head.parameters())
        return describe_spec(self.spec, total, in_head)

    def describe(self) -> str:
        """Return what this drafter is, in a few lines of words."""
        return "\n".join(f"{label}: {words}" for label, words in self.facts().items())

    def with_temperatures(self, temperatures: Sequence[float] | None) -> "Drafter":
        """Return this drafter with other confidence temperatures; weights are shared.

        temperatures: K numbers > 0, as ``fit_sts`` gives them; None: all 1.
        """
        values = None
        if temperatures is not None:
            values = numbers("confidence_temperatures", temperatures)
        other = copy.copy(self)
        other.spec = replace(self.spec, confidence_temperatures=values)
        return other

    def new_cache(self) -> ContextCache:
        """Return an empty context cache for one request."""
        return ContextCache(self.spec.num_layers)

    def tables(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, "Vd D"]]:
        """Return the embedding and the LM head in use: its own, or the target's."""
        spec, borrowed = self.spec, self._borrowed
        return (
            self.own_embedding if spec.owns_embedding else borrowed.embedding,
            self.own_lm_head if spec.owns_lm_head else borrowed.lm_head,
        )

    def embed(self, tokens: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        """Return token embeddings in the drafter's dtype."""
        return nn.functional.embedding(tokens, self.tables()[0]).to(self.dtype)

    def unembed(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B Vd"]:
        """Return the base logits U of hidden states, over what can be drafted."""
        table = self.tables()[1]
        return linear(hidden.to(table.dtype), table)

    def spread(self, logits: Float[Tensor, "*B Vd"]) -> Float[Tensor, "*B V"]:
        """Return logits over the target's vocabulary: -inf for what is not drafted."""
        return logits if self.vocabulary is None else self.vocabulary.spread(logits)

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
        check_shape("anchor", anchor, "B", B=1)
        return self.propose_batch(
            [target_hidden],
            anchor,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generators=[generator],
            caches=None if cache is None else [cache],
        )

    @torch.no_grad()
    def propose_batch(
        self,
        target_hidden: Sequence[Float[Tensor, "1 _ LD"]],
        anchors: Int[Tensor, " R"],
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generators: Sequence[torch.Generator | int | None] | None = None,
        caches: Sequence[ContextCache] | None = None,
    ) -> Proposal:
        """Draft one block for each of R requests in one pass; all fields are [R, ...].

        Per request as ``propose`` has it: features, anchor, generator, cache. A
        request draws the same numbers from its generator as it would alone.
        """
        check_settings(temperature, top_k, top_p)
        check_sequence("target_hidden", target_hidden)
        for rows in target_hidden:
            self._check_features(rows, B=1)
        requests = len(target_hidden)
        check_range("requests", requests, 1, integer=True)
        check_shape("anchors", anchors, "R", R=requests)
        check_token_ids("anchors", anchors, self.spec.vocab_size)
        if caches is None:
            caches = [self.new_cache() for _ in range(requests)]
        generators = [None] * requests if generators is None else generators
        for name, given in (("caches", caches), ("generators", generators)):
            check_sequence(name, given)
            if len(given) != requests:
                raise problem(name, "be one per request", requests, len(given))
        for cache in caches:
            check_offers("cache", cache, "extend", "keys_values", "length")
        streams = [as_generator(generator) for generator in generators]
        counts = [rows.shape[1] for rows in target_hidden]
        features = pad_sequence([rows[0] for rows in target_hidden], batch_first=True)
        context = ContextBatch(caches, counts)
        hidden, base_logits, state = self._draft_block(features, anchors, context)
        shape = 1, self.block_size
        uniforms = torch.cat(
            [draw_uniforms(shape, generator=g, device=hidden.device) for g in streams]
        )  # [R, K]
        return self._draw(
            hidden, base_logits, state, anchors, uniforms, temperature, top_k, top_p
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
        check_token_ids("prev_tokens", prev_tokens, self.spec.vocab_size)
        anchor = prev_tokens[:, 0]
        hidden, base_logits, state = self._draft_block(target_hidden, anchor, None)
        draft_logits, confidence = self._correct(
            hidden, base_logits, prev_tokens, state
        )
        return BlockOutput(hidden, self.spread(base_logits), draft_logits, confidence)

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
        check_token_ids("input_ids", input_ids, self.spec.vocab_size)
        check_anchors(anchors, B=sizes["B"], S=length)
        batch, blocks = anchors.shape
        check_range("sequences", batch, 1, integer=True)
        check_range("anchors per sequence", blocks, 1, integer=True)
        slots = self.spec.num_slots
        positions = block_positions(anchors, slots).flatten(1)  # [B, N*Q]
        tokens = block_tokens(
            input_ids.gather(1, anchors), slots, self.spec.mask_token_id
        ).flatten(1)  # [B, N*Q]
        context = self.backbone.context(target_hidden.to(self.dtype))
        masks = layer_masks(self.spec, anchors, length)
        hidden = self.backbone(self.embed(tokens), context, positions, masks)
        hidden = hidden.view(batch * blocks, slots, -1)  # [B*N, Q, D]
        window = block_positions(anchors, self.block_size + 1)
        window_tokens = gather_rows(input_ids, window)  # [B, N, K+1]
        prev_tokens = window_tokens[..., :-1].flatten(0, 1)  # [B*N, K]
        hidden, state = self._drafting_slots(hidden, prev_tokens[:, 0])
        base_logits = self.unembed(hidden)  # [B*N, K, V]
        draft_logits, confidence = self._correct(
            hidden, base_logits, prev_tokens, state
        )
        grid = (batch, blocks)
        return TrainingOutput(
            base_logits=self.spread(base_logits).unflatten(0, grid),  # [B, N, K, V]
            draft_logits=draft_logits.unflatten(0, grid),
            confidence_logits=None
            if confidence is None
            else confidence.unflatten(0, grid),
            labels=window_tokens[..., 1:],
        )

    def _draft_block(
        self, target_hidden: Tensor, anchor: Tensor, cache: ContextBatch | None
    ) -> tuple[Tensor, Tensor, Any]:
        """Run the backbone once: h [B, K, D], U [B, K, V] and the head's state."""
        rows, slots, visible = target_hidden.to(self.dtype), self.spec.num_slots, None
        if cache is None:
            context = self.backbone.context(rows)
            lengths = torch.full((1, 1), rows.shape[1], device=rows.device)
        else:
            start = cache.lengths(rows.device)  # [B, 1]
            cache.extend(self.backbone.context(rows, start))
            context = cache.keys_values()
            lengths = cache.lengths(rows.device)
            visible = cache.mask(slots, rows.device)
        positions = block_positions(lengths, slots)[:, 0]  # the anchor's is the length
        tokens = block_tokens(anchor, slots, self.spec.mask_token_id)  # [B, Q]
        masks = self._decoding_masks(context[0][0].shape[2], visible)
        hidden = self.backbone(self.embed(tokens), context, positions, masks)
        hidden, state = self._drafting_slots(hidden, anchor)
        return hidden, self.unembed(hidden), state

    def _decoding_masks(
        self, longest: int, visible: Tensor | None
    ) -> list[Tensor] | None:
        """Return one mask per layer; None where every slot sees everything.

        Contexts stand flush right, so that the anchor is ``longest`` keys in for all
        rows: causal layers and windows are counted from there, padding is hidden.
        """
        if not (self.spec.causal_layers or self.spec.window_layers):
            return None if visible is None else [visible] * self.spec.num_layers
        anchor = torch.full((1, 1), longest, device=self.device)
        masks = layer_masks(self.spec, anchor, longest)
        return masks if visible is None else [mask & visible for mask in masks]

    def _draw(
        self,
        hidden: Float[Tensor, "B K D"],
        base_logits: Float[Tensor, "B K V_d"],
        state: Any,
        anchors: Int[Tensor, " B"],
        uniforms: Float[Tensor, "B K"],
        temperature: float,
        top_k: int | None,
        top_p: float | None,
    ) -> Proposal:
        """Walk the head through the block, each step fed with what was just drawn."""
        previous = anchors
        tokens, p_draft, draft_logits, features = [], [], [], []
        for h_k, base_k, u_k in zip(
            hidden.unbind(1), base_logits.unbind(1), uniforms.unbind(1), strict=True
        ):
            bias, state = self.head.step(state, previous, h_k)
            features.append(self.head.features(state, previous))
            logits = self.spread(base_k + bias)  # [B, V]
            probs = make_law(widen(logits), temperature, top_k, top_p)
            previous = invert_cdf(probs, u_k)  # [B]
            tokens.append(previous)
            p_draft.append(probs)
            draft_logits.append(logits)
        corrected = torch.stack(draft_logits, dim=1)  # [B, K, V]
        check_logits("draft logits", corrected)  # at once: a NaN shows all the same
        return Proposal(
            tokens=torch.stack(tokens, dim=1),
            p_draft=torch.stack(p_draft, dim=1),
            draft_logits=corrected,
            base_logits=self.spread(base_logits),
            hidden=hidden,
            confidence=self._calibrated(self._confidence_logits(hidden, features)),
        )

    def _drafting_slots(
        self, hidden: Float[Tensor, "B Q D"], anchor: Int[Tensor, " B"]
    ) -> tuple[Tensor, Any]:
        """Drop slot 0 where the anchor's own slot predicts nothing; start the head."""
        state = self.head.init_state(len(hidden))
        if self.spec.anchor_predicts:
            return hidden, state
        if self.head.walks_slot_0:
            _, state = self.head.step(state, anchor, hidden[:, 0])
        return hidden[:, 1:], state

    def _correct(
        self, hidden: Tensor, base_logits: Tensor, prev_tokens: Tensor, state: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Walk the head over given tokens: U + B [B, K, V], confidence [B, K]."""
        draft_logits, features = [], []
        for k in range(self.block_size):
            previous = prev_tokens[:, k]
            bias, state = self.head.step(state, previous, hidden[:, k])
            features.append(self.head.features(state, previous))
            draft_logits.append(base_logits[:, k] + bias)
        corrected = self.spread(torch.stack(draft_logits, dim=1))  # [B, K, V]
        return corrected, self._confidence_logits(hidden, features)

    def _confidence_logits(
        self, hidden: Tensor, features: list[Tensor]
    ) -> Tensor | None:
        """Return the logits of c [B, K]; no gradient goes back through their input.

        ``features``: what the head had to say at each of the K steps, [B, C].
        """
        if self.confidence is None:
            return None
        from_head = torch.stack(features, dim=1)  # [B, K, C]
        return self.confidence(hidden.detach(), from_head.detach())

    def _calibrated(self, logits: Tensor | None) -> Tensor | None:
        """Return c = sigmoid(logit / temperature), in float32 or wider."""
        if logits is None:
            return None
        temperatures = self.spec.confidence_temperatures
        if temperatures is None:
            return torch.sigmoid(widen(logits))
        return apply_sts(logits, temperatures)

    def _check_features(self, target_hidden: Tensor, **sizes: int) -> dict[str, int]:
        """Check the target features' width and device; return B and T."""
        sizes = check_shape("target_hidden", target_hidden, "B T LD", **sizes)
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


def _frozen(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)
