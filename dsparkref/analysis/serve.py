"""The load on a real engine: requests arrive by the clock on the wall.

The same load as in ``simulate_load``, decoded by ``BatchDecoder`` on the pair itself.
Here a reply ends where the target ends it, and a step takes as long as it takes.
"""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dsparkref.analysis.load import (
    Autoregressive,
    LoadResult,
    User,
    arrival_times,
    check_load,
    load_result,
)
from dsparkref.decode.batch import BatchDecoder
from dsparkref.decode.request import Prompt
from dsparkref.decode.target import Target
from dsparkref.records import Proposal
from dsparkref.shapes import problem
from dsparkref.verify.policies import FixedLength, Policy


class NoDrafts:
    """A drafter of blocks of length 0: the target's own token, and nothing to judge."""

    block_size = 0

    def __init__(self, target: Target) -> None:
        self.spec = SimpleNamespace(target_layer_ids=(), vocab_size=target.vocab_size)

    def propose(self, target_hidden: Tensor, anchor: Tensor, **_: Any) -> Proposal:
        """Return a block without drafts."""
        table = torch.zeros(1, 0, self.spec.vocab_size, device=anchor.device)
        return Proposal(anchor.new_zeros(1, 0), p_draft=table, draft_logits=table)


def serve_load(
    target: Target,
    drafter: Any,
    prompts: Sequence[Prompt],
    policy: Policy,
    *,
    rate: float,
    concurrency: int,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
    sleep: Callable[[float], None] = time.sleep,
) -> LoadResult:
    """Serve each prompt once and report speed, latency and batch sizes.

    Args:
        target, drafter: a pair.
        prompts: as ids, in the order of their arrival.
        policy: ``Autoregressive()`` leaves the drafter out.
        rate, concurrency: as in ``simulate_load``.
        max_new_tokens: cap of each reply.
        seed: of arrivals; reply number i is drawn with seed + i.
        sleep: called with the seconds until the next arrival when nothing runs.
    """
    if not prompts:
        raise problem("prompts", "not be empty", "at least one prompt", "none")
    check_load(rate, concurrency, len(prompts), max_new_tokens)
    if isinstance(policy, Autoregressive):
        drafter, policy = NoDrafts(target), FixedLength(0)
    decoder = BatchDecoder(target, drafter, temperature=temperature, policy=policy)
    users = [User(arrived) for arrived in arrival_times(rate, len(prompts), seed)]
    began, served, steps = target.clock(), dict[int, User](), list[list[int]]()
    while len(served) < len(users) or decoder.running:
        now = target.clock() - began
        while len(served) < len(users) and users[len(served)].arrived <= now:
            if len(decoder.running) + len(decoder.waiting) == concurrency:
                break
            number = len(served)
            decoder.add(
                prompts[number], max_new_tokens=max_new_tokens, generator=seed + number
            )
            served[number] = users[number]
            users[number].admitted = now
        if not decoder.running and not decoder.waiting:
            sleep(users[len(served)].arrived - now)
            continue
        traces = decoder.step()
        steps.append([trace.verify_len for trace in traces.values()])
        now = target.clock() - began
        for number, trace in traces.items():
            served[number].cycles += 1
            served[number].tokens += len(trace.emitted)
        for number in decoder.finished():
            served[number].finished = now
            served[number].from_prefill = 1
    return load_result(users, [lengths for lengths in steps if lengths])
