"""The target model behind three verbs: prefill, verify, commit.

Everything that depends on the version of transformers sits in this file: the name of
the cache argument, and how tokens are taken back out of a cache.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from dsparkref.shapes import check_range, problem


@dataclass(frozen=True)
class TargetOutput:
    """What one forward pass of the target returns."""

    # [1, n, V], the row of a token is the law of the token after it
    logits: Tensor
    # [1, n, L*D], the tapped layers side by side
    hidden: Tensor


class Target:
    """A Hugging Face causal language model, as the loop sees it.

    ``tokenizer`` may be None; then only ``encode`` and ``decode`` raise.
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
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

    @cached_property
    def stop_token_ids(self) -> list[int]:
        """The ids that end a reply, from the generation config; may be empty."""
        found = getattr(self.model.generation_config, "eos_token_id", None)
        if found is None:
            found = self.model.config.eos_token_id
        if found is None:
            return []
        return list(found) if isinstance(found, Sequence) else [int(found)]

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return self.embedding.dtype

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
            output_hidden_states=True,
            logits_to_keep=last_logits,
            **keywords,
        )
        states = output.hidden_states
        tapped = [states[layer_id + 1] for layer_id in layer_ids]
        hidden = torch.cat(tapped, dim=-1) if tapped else states[0][..., :0]
        return TargetOutput(output.logits, hidden)  # [B, S, V], [B, S, L*D]

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
        self._layer_ids = tuple(layer_ids)
        # Without a config the cache keeps every token, also for sliding-window
        # layers: those would otherwise forget what a rollback needs.
        self._cache = DynamicCache()
        self.length = 0  # committed tokens
        self._pending = 0  # rows added by verify, not yet committed

    @torch.no_grad()
    def verify(
        self, tokens: Int[Tensor, "1 n"], *, last_logits: int = 0
    ) -> TargetOutput:
        """Run the target over ``tokens``, which follow the committed ones."""
        if self._pending:
            rule = "commit before it verifies again"
            raise problem("session", rule, "0 pending tokens", self._pending)
        output = self._target.forward(
            tokens, self._layer_ids, cache=self._cache, last_logits=last_logits
        )
        self._pending = tokens.shape[1]
        return output

    def commit(self, num_kept: int) -> None:
        """Keep the first ``num_kept`` of the verified tokens, forget the others."""
        check_range("num_kept", num_kept, 0, self._pending, integer=True)
        surplus = self._pending - num_kept
        if surplus:  # crop(0) emptied the cache in older versions
            self._cache.crop(-surplus)
        self.length += num_kept
        self._pending = 0
