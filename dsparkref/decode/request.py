"""One request: what was asked, what has been emitted, and when it is over."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dsparkref.decode.target import Target
from dsparkref.shapes import check_offers, check_range, problem
from dsparkref.verify.inputs import check_tensor

Prompt = Sequence[int] | Tensor


@dataclass
class Request:
    """A prompt and its growing reply; stop tokens and the cap live here only.

    >>> request = Request([5, 6], max_new_tokens=3, stop_token_ids=frozenset([9]))
    >>> request.keep([1, 9, 2]), request.finish_reason
    ([1, 9], 'stop')
    """

    prompt: list[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    # None while it runs, then "stop" or "length"
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens == 0:
            self.finish_reason = "length"

    def keep(self, new_tokens: Sequence[int]) -> list[int]:
        """Append tokens up to a stop token or the cap; return those kept."""
        kept: list[int] = []
        for token in new_tokens:
            if self.finish_reason is not None:
                break
            kept.append(token)
            if token in self.stop_token_ids:
                self.finish_reason = "stop"
            elif len(self.tokens) + len(kept) == self.max_new_tokens:
                self.finish_reason = "length"
        self.tokens.extend(kept)
        return kept


def make_request(
    target: Target,
    prompt_ids: Prompt,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] | None,
    name: str = "prompt_ids",
) -> Request:
    """Check what a caller asked for; ``stop_token_ids`` None: the target's own.

    A reply ends, for its length, where prompt and reply fill the target's context.
    ``name`` is what an error calls the prompt, such as "prompts[2]".
    """
    check_offers("target", target, "prefill", "vocab_size")
    check_range("max_new_tokens", max_new_tokens, 0, integer=True)
    prompt = check_prompt(prompt_ids, target.vocab_size, name)
    if target.max_length is not None:
        if len(prompt) >= target.max_length:
            rule = "leave room for a reply"
            expected = f"fewer tokens than the context of {target.max_length}"
            raise problem(name, rule, expected, len(prompt))
        max_new_tokens = min(max_new_tokens, target.max_length - len(prompt))
    stops = target.stop_token_ids if stop_token_ids is None else stop_token_ids
    stops = id_list("stop_token_ids", stops, target.vocab_size)
    return Request(prompt, max_new_tokens, frozenset(stops))


def check_prompt(
    prompt_ids: Prompt, vocab_size: int, name: str = "prompt_ids"
) -> list[int]:
    """Return the prompt as a list; accepts list[int] and LongTensor [T] or [1, T].

    >>> check_prompt(torch.tensor([[3, 4]]), vocab_size=5)
    [3, 4]
    >>> check_prompt([], vocab_size=5)
    Traceback (most recent call last):
    ValueError: prompt_ids must not be empty: expected at least one id, got none.
    """
    if isinstance(prompt_ids, Tensor):
        if prompt_ids.is_meta:
            raise problem(name, "hold values", "a device with data", "meta")
        single = prompt_ids.dim() == 2 and len(prompt_ids) == 1
        if prompt_ids.is_floating_point() or not (prompt_ids.dim() == 1 or single):
            got = f"{prompt_ids.dtype} of shape {list(prompt_ids.shape)}"
            expected = "integers of shape [T] or [1, T]"
            raise problem(name, "hold one prompt", expected, got)
        prompt_ids = prompt_ids.flatten()
    elif isinstance(prompt_ids, str) or not isinstance(prompt_ids, Sequence):
        got, hint = type(prompt_ids).__name__, "Use target.encode for text."
        raise problem(name, "hold ids", "integers", got, hint, TypeError)
    if not len(prompt_ids):
        raise problem(name, "not be empty", "at least one id", "none")
    return id_list(name, prompt_ids, vocab_size)


def id_list(name: str, ids: Any, vocab_size: int) -> list[int]:
    """Return ids as a list; every one is an integer inside the vocabulary.

    An iterator is refused: what has been looked at once would be gone.
    """
    if isinstance(ids, Tensor):
        check_tensor(name, ids)
        ids = ids.tolist()
    if isinstance(ids, str | bytes) or not isinstance(ids, Collection):
        got = type(ids).__name__
        raise problem(name, "hold ids", "a list of integers", got, error=TypeError)
    for token in ids:
        check_range(name, token, 0, vocab_size - 1, integer=True)
    return [int(token) for token in ids]


def as_row(ids: Sequence[int], device: torch.device) -> Tensor:
    """Return ids as a batch of one.

    >>> as_row([3, 4], torch.device("cpu")).shape
    torch.Size([1, 2])
    """
    return torch.tensor([list(ids)], dtype=torch.long, device=device)  # [1, n]
