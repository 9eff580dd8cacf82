"""The target model behind three verbs: prefill, verify, commit.

Everything that depends on the version of transformers sits in this file: the name of
the cache argument, and how tokens are taken back out of a cache.
"""

import inspect
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, GenerationConfig

from dsparkref.draft.backbone import KeysValues
from dsparkref.draft.context import flush_right
from dsparkref.shapes import check_offers, check_range, problem

# What ``encode`` puts around a text. A drafter trained on another style accepts less,
# so no number stands without it.
PROMPT_STYLE = "chat template, thinking off"


@dataclass(frozen=True)
class TargetOutput:
    """What one forward pass of the target returns."""

    # [B, n, V], the row of a token is the law of the token after it
    logits: Tensor
    # [B, n, L*D], the tapped layers side by side
    hidden: Tensor


class Target:
    """A Hugging Face causal language model, as the loop sees it.

    ``tokenizer`` may be None; then only ``encode`` and ``decode`` raise.
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        check_offers("model", model, "config", "forward", "get_output_embeddings")
        encodes = getattr(model.config, "is_encoder_decoder", False)
        if encodes or not hasattr(model.get_output_embeddings(), "weight"):
            rule, expected = "be a causal language model", "a decoder with an LM head"
            raise problem("model", rule, expected, type(model).__name__)
        self.model = model.eval()
        self.tokenizer = tokenizer

    @cached_property
    def vocab_size(self) -> int:
        """Rows of the LM head; may be more than the tokenizer has words."""
        return self.lm_head.shape[0]

    @property
    def hidden_size(self) -> int:
        """Width D of the hidden states."""
        return self.model.config.hidden_size

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return self.model.config.num_hidden_layers

    @property
    def max_length(self) -> int | None:
        """Tokens a context may have, prompt and reply together; None: no limit.

        LongRoPE turns all positions by other angles once one of them lies past the
        length it was first trained on, and what a cache holds by then is turned the
        old way. What is drafted, or who shares the batch, would decide: the context
        ends there.
        """
        limits = [getattr(self.model.config, "max_position_embeddings", None)]
        rotary = getattr(self.model.config, "rope_parameters", None) or {}
        for kind in (rotary, *rotary.values()):  # one for all layers, or one a kind
            if isinstance(kind, dict) and kind.get("rope_type") == "longrope":
                limits.append(kind.get("original_max_position_embeddings"))
        return min((limit for limit in limits if limit is not None), default=None)

    @cached_property
    def stop_token_ids(self) -> list[int]:
        """The ids that end a reply, from the generation config; -1 is none."""
        found = getattr(self.model.generation_config, "eos_token_id", None)
        if found is None:
            found = self.model.config.eos_token_id
        if isinstance(found, Tensor):
            found = found.tolist()
        ids = found if isinstance(found, Sequence) else [found]
        return [int(token) for token in ids if token is not None and token >= 0]

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        return self.model.get_input_embeddings().weight.device

    def clock(self) -> float:
        """Return seconds, after the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return self.model.get_input_embeddings().weight.dtype

    @property
    def embedding(self) -> Float[Tensor, "V D"]:
        """The token embeddings; frozen here."""
        return self.model.get_input_embeddings().weight.detach()

    @property
    def lm_head(self) -> Float[Tensor, "V D"]:
        """The output projection; frozen here."""
        return self.model.get_output_embeddings().weight.detach()

    def encode(self, text: str | list[dict[str, str]]) -> list[int]:
        """Return the ids of a prompt.

        A str is one user message; a list of messages is a chat. Both go through the
        chat template with the generation prompt, thinking off.
        """
        if isinstance(text, str):
            text = [{"role": "user", "content": text}]
        return self._with_tokenizer().apply_chat_template(
            text,
            add_generation_prompt=True,
            enable_thinking=False,
            return_dict=False,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens left out."""
        return self._with_tokenizer().decode(list(ids), skip_special_tokens=True)

    @contextmanager
    def plain_generation(self) -> Iterator[None]:
        """Let the model's own ``generate`` see its stop tokens and nothing else.

        A generation config may bring penalties, cuts and beams along. Whoever asks
        ``generate`` for the model's law means the law without them.
        """
        given = self.model.generation_config
        self.model.generation_config = GenerationConfig(
            eos_token_id=given.eos_token_id, pad_token_id=given.pad_token_id
        )
        try:
            yield
        finally:
            self.model.generation_config = given

    def check_layer_ids(self, layer_ids: Sequence[int]) -> None:
        """Refuse ids that name no usable layer.

        Id i is ``hidden_states[i+1]`` and -1 the embedding output. The last layer is
        refused, for its entry in ``hidden_states`` is taken after the final norm.
        """
        for layer_id in layer_ids:
            if not -1 <= layer_id <= self.num_layers - 2:
                expected = f"-1 to {self.num_layers - 2} for {self.num_layers} layers"
                hint = "The last layer is refused: its entry is after the final norm."
                rule = "name usable layers"
                raise problem("target_layer_ids", rule, expected, layer_id, hint)

    def forward(
        self,
        input_ids: Int[Tensor, "B S"],
        layer_ids: Sequence[int] = (),
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        last_logits: int = 0,
    ) -> TargetOutput:
        """Run the model once; ``last_logits`` n > 0 returns the last n rows alone."""
        keywords: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            keywords[self._cache_keyword] = cache
        output = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            output_hidden_states=True,
            logits_to_keep=last_logits,
            **keywords,
        )
        states = output.hidden_states
        tapped = [states[layer_id + 1] for layer_id in layer_ids]
        hidden = torch.cat(tapped, dim=-1) if tapped else states[0][..., :0]
        return TargetOutput(output.logits, hidden)  # [B, S, V], [B, S, L*D]

    def read(
        self, input_ids: Int[Tensor, "B S"], *args: Any, **keywords: Any
    ) -> TargetOutput:
        """Do what ``forward`` does, for decoding: the model's pass leaves no gradient.

        Inference mode costs less per operation than ``no_grad``. The copies are
        ordinary tensors again, on which a drafter may be trained.
        """
        with torch.inference_mode():
            output = self.forward(input_ids, *args, **keywords)
        return TargetOutput(output.logits.clone(), output.hidden.clone())

    def prefill(
        self, prompt_ids: Int[Tensor, "1 T"], layer_ids: Sequence[int] = ()
    ) -> tuple["Session", TargetOutput]:
        """Read a prompt; return its session and the output (logits: last row)."""
        self.check_layer_ids(layer_ids)
        session = Session(self, layer_ids)
        output = session.verify(prompt_ids, last_logits=1)
        session.commit(prompt_ids.shape[1])
        return session, output

    @cached_property
    def _cache_keyword(self) -> str:
        """Transformers renamed the argument from past_key_values to cache."""
        accepted = inspect.signature(self.model.forward).parameters
        return "cache" if "cache" in accepted else "past_key_values"

    def _with_tokenizer(self) -> Any:
        if self.tokenizer is None:
            hint = "Load the target from a folder that has one."
            rule = "have a tokenizer to encode or decode"
            raise problem("target", rule, "a tokenizer", "none", hint)
        return self.tokenizer


class Session:
    """One request's key-value cache: ``verify`` adds rows, ``commit`` keeps some.

    The cache belongs to the session and dies with it, so that no request can see
    another's.
    """

    def __init__(self, target: Target, layer_ids: Sequence[int]) -> None:
        self._target = target
        self.layer_ids = tuple(layer_ids)
        # Without a config the cache keeps every token, also for sliding-window
        # layers: those would otherwise forget what a rollback needs.
        self._cache = DynamicCache()
        self.length = 0  # committed tokens
        self._pending = 0  # rows added by verify, not yet committed

    def verify(
        self, tokens: Int[Tensor, "1 n"], *, last_logits: int = 0
    ) -> TargetOutput:
        """Run the target over ``tokens``, which follow the committed ones."""
        self.check_committed()
        output = self._target.read(
            tokens, self.layer_ids, cache=self._cache, last_logits=last_logits
        )
        self._pending = tokens.shape[1]
        return output

    def commit(self, num_kept: int) -> None:
        """Keep the first ``num_kept`` of the verified tokens, forget the others."""
        check_range("num_kept", num_kept, 0, self._pending, integer=True)
        self.length += num_kept
        self.roll_back()

    def roll_back(self) -> None:
        """Forget all that is not committed, also what a broken-off pass left behind."""
        for layer in self._cache.layers:
            surplus = layer.get_seq_length() - self.length
            if surplus:  # crop(0) emptied the cache in older versions
                layer.crop(-surplus)
        self._pending = 0

    def check_committed(self) -> None:
        """Refuse to verify on top of tokens that may yet be taken back."""
        if self._pending:
            rule = "commit before it verifies again"
            raise problem("session", rule, "0 pending tokens", self._pending)

    def keys_values(self) -> list[KeysValues]:
        """Return what each layer holds, keys and values [1, H, length, d]."""
        return [(layer.keys, layer.values) for layer in self._cache.layers]

    def append(self, keys_values: Sequence[KeysValues]) -> None:
        """Take in the rows that another pass computed for this session's tokens."""
        for index, (keys, values) in enumerate(keys_values):
            self._cache.update(keys, values, index)
        self._pending = keys_values[0][0].shape[2]


class SessionBatch:
    """Sessions of several requests that share one forward pass.

    Each keeps its own cache, as long as its own committed tokens; only for the pass
    are they put side by side. Committed tokens stand flush right, so that padding
    comes before a request's first token and the distance of two slots is the distance
    of their tokens (a sliding window counts slots). New tokens follow, padded on the
    right, where causality hides the padding.
    """

    def __init__(self, target: Target, sessions: Sequence[Session]) -> None:
        self._target, self._sessions = target, sessions

    def verify(self, tokens: Int[Tensor, "R n"], counts: Sequence[int]) -> TargetOutput:
        """Run the target once; row r brings ``counts[r]`` tokens, 1..n, then padding.

        What is returned for padding means nothing, and does not depend on ``tokens``.
        """
        if len(self._sessions) == 1:
            return self._sessions[0].verify(tokens)
        for session in self._sessions:
            session.check_committed()
        held = tokens.new_tensor([session.length for session in self._sessions])
        longest = int(held.max())
        brought = tokens.new_tensor(list(counts))
        step = torch.arange(tokens.shape[1], device=tokens.device)
        before = torch.arange(longest, device=tokens.device)
        # Padding among the new tokens stays visible: causality hides it from the
        # tokens before it, and a query that sees nothing at all would be NaN.
        visible = before >= longest - held[:, None]  # [R, longest]
        visible = pad(visible, (0, len(step)), value=True)  # [R, longest + n]
        cache = self._side_by_side()
        output = self._target.read(
            tokens.masked_fill(step >= brought[:, None], 0),
            self._sessions[0].layer_ids,
            attention_mask=visible.long(),
            # padding stands at its row's last position: inside the context, too
            position_ids=held[:, None] + step.minimum(brought[:, None] - 1),
            cache=cache,
        )
        for row, (session, count) in enumerate(
            zip(self._sessions, counts, strict=True)
        ):
            new = row, slice(None), slice(longest, longest + count)
            session.append(
                [
                    (layer.keys[new][None], layer.values[new][None])
                    for layer in cache.layers
                ]
            )
        return output

    def commit(self, num_kept: Sequence[int]) -> None:
        """Keep the first tokens of each row, forget the others."""
        for session, kept in zip(self._sessions, num_kept, strict=True):
            session.commit(kept)

    def _side_by_side(self) -> DynamicCache:
        """Return a cache of all sessions, [R, H, longest, d] a layer."""
        cache = DynamicCache()
        by_layer = zip(*(s.keys_values() for s in self._sessions), strict=True)
        for index, rows in enumerate(by_layer):
            keys, values = zip(*rows, strict=True)
            cache.update(flush_right(keys), flush_right(values), index)
        return cache
