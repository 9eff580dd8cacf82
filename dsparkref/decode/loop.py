"""The decoding loop for one request: prefill, then cycle after cycle.

What happens in a cycle stands in `cycle.py`; many requests at once in `batch.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dsparkref.decode.cycle import Decoding, Sampler
from dsparkref.decode.request import Prompt, Request, as_row, make_request
from dsparkref.decode.target import Target
from dsparkref.records import CycleTrace, Generation
from dsparkref.shapes import check_flag
from dsparkref.verify.policies import Policy
from dsparkref.verify.sampling import as_generator


def generate(
    target: Target,
    drafter: Any,
    prompt_ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token_ids: Sequence[int] | None = None,
    policy: Policy | None = None,
    verifier: str = "rejection",
    generator: torch.Generator | int | None = None,
) -> Generation:
    """Decode one prompt speculatively; the output law is the target's alone.

    prompt_ids: list[int] or LongTensor [T] or [1, T]. max_new_tokens: >= 0; a reply
    ends, for its length, also where the target's context is full.
    temperature, top_k, top_p: shape the target's law, and the drafter's alike.
    stop_token_ids: None takes the target's own, [] never stops; a stop token is the
    last one returned. policy: None verifies all K drafts. verifier: "rejection" or
    "token_match". generator: a torch.Generator, an int seed, or None.
    """
    request = make_request(target, prompt_ids, max_new_tokens, stop_token_ids)
    sampler = Sampler(temperature, top_k, top_p)
    decoding = Decoding(target, drafter, sampler, policy, verifier)
    cycles = list(_cycles(decoding, request, as_generator(generator)))
    return Generation(request.tokens, request.finish_reason or "length", cycles)


def decode_cycles(
    target: Target,
    drafter: Any,
    prompt_ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token_ids: Sequence[int] | None = None,
    policy: Policy | None = None,
    verifier: str = "rejection",
    generator: torch.Generator | int | None = None,
    keep_tensors: bool = False,
) -> Iterator[CycleTrace]:
    """Decode as ``generate`` does and yield each cycle as it is done.

    The first token comes from the prefill: it is the first cycle's ``anchor``. With
    ``keep_tensors`` a trace also holds the [K, V] tables, which are large.
    """
    check_flag("keep_tensors", keep_tensors)
    request = make_request(target, prompt_ids, max_new_tokens, stop_token_ids)
    sampler = Sampler(temperature, top_k, top_p)
    decoding = Decoding(target, drafter, sampler, policy, verifier)
    return _cycles(decoding, request, as_generator(generator), keep_tensors)


def _cycles(
    decoding: Decoding,
    request: Request,
    generator: torch.Generator | None,
    keep_tensors: bool = False,
) -> Iterator[CycleTrace]:
    """Prefill, then yield cycles until a stop token or the cap."""
    if request.finish_reason is not None:
        return
    row = decoding.start(request, generator)
    while request.finish_reason is None:
        try:
            traces = decoding.cycle([row], keep_tensors)
        except BaseException:  # Ctrl-C, too
            row.session.roll_back()
            raise
        yield from traces


def autoregressive(
    target: Target,
    prompt_ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token_ids: Sequence[int] | None = None,
    generator: torch.Generator | int | None = None,
) -> Generation:
    """Decode one token per forward pass: what speculation is measured against."""
    request = make_request(target, prompt_ids, max_new_tokens, stop_token_ids)
    sampler, generator = Sampler(temperature, top_k, top_p), as_generator(generator)
    if request.finish_reason is None:
        session, output = target.prefill(as_row(request.prompt, target.device))
    while request.finish_reason is None:
        token = sampler.draw(output.logits[:, -1], generator)  # [1]
        request.keep([int(token)])
        if request.finish_reason is None:
            output = session.verify(token[:, None])
            session.commit(1)
    return Generation(request.tokens, request.finish_reason or "length", [])
