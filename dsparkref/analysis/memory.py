"""Acceptance at the places where the token two back decides.

In "slow and steady", "and" is shared by many phrases: whoever sees only the token
before cannot say "steady". A head with one token of memory (markov, gated) therefore
fails there, one with a state (rnn, domino) need not.

Everything here is teacher-forced on held-out text: the drafter is given the tokens
before, and what is measured is 1 - TV between its law and the target's, the exact
chance that its draft would be kept (Eq. 8). Position k is 0-based.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dsparkref.analysis.evaluate import EvalPrompt
from dsparkref.decode.request import as_row
from dsparkref.decode.target import Target
from dsparkref.draft.blocks import (
    aligned_target_logits,
    block_positions,
    supervised_positions,
)
from dsparkref.shapes import check_range, problem
from dsparkref.verify.rejection import accept_rate
from dsparkref.verify.sampling import probabilities

# Draft k (0-based) follows draft k-2, which only from here on lies in the block: at
# k < 2 the token two back is the anchor or earlier, and the backbone has seen it.
FIRST_DEPTH = 2


@dataclass(frozen=True)
class Place:
    """One place in one text."""

    # number of the text, 0-based
    text: int
    # number of the token in its reply, 0-based
    position: int
    # the two tokens before it, as text
    before: str
    # the token itself
    token: str
    # mean 1 - TV over all blocks that reach it at depth FIRST_DEPTH or more
    accept_rate: float


@dataclass(frozen=True)
class MemoryAcceptance:
    """A drafter's mean acceptance at the named places and at all others."""

    places: tuple[Place, ...]
    # mean 1 - TV over all (block, draft) pairs at the places
    at_places: float
    # the same over all other pairs of these texts, at the same depths
    elsewhere: float


@torch.no_grad()
def block_acceptance(
    target: Target,
    drafter: Any,
    prompt: Sequence[int],
    reply: Sequence[int],
    *,
    every: int = 1,
) -> tuple[Float[Tensor, "N K"], Int[Tensor, "N K"], Bool[Tensor, "N K"]]:
    """Return 1 - TV of every draft of every block whose anchor lies in the reply.

    Block n starts at token n of the reply, as in decoding, where the first anchor is
    the first new token; with ``every`` m, at token n * m. Temperature is 1.

    Returns:
        accept_rate [N, K]; the number of the token in the reply that the draft stands
        for [N, K]; and whether there is such a token [N, K].
    """
    ids = as_row([*prompt, *reply], target.device)  # [1, S]
    start = len(prompt)
    anchors = torch.arange(start, ids.shape[1] - 1, every, device=ids.device)[None]
    output = target.forward(ids, drafter.spec.target_layer_ids)
    block = drafter.training_forward(ids, output.hidden, anchors)
    size = drafter.block_size
    p_target = probabilities(aligned_target_logits(output.logits, anchors, size))
    rates = accept_rate(p_target, probabilities(block.draft_logits))[0]  # [N, K]
    inside = supervised_positions(torch.ones_like(ids), anchors, size)[0]  # [N, K]
    labels = block_positions(anchors, size + 1)[0, :, 1:] - start  # [N, K]
    return rates, labels, inside


def at_memory_positions(
    target: Target,
    drafter: Any,
    examples: Sequence[EvalPrompt],
    positions: Sequence[Sequence[int]],
) -> MemoryAcceptance:
    """Compare acceptance where the token two back decides with all other places.

    Args:
        target, drafter: a pair; the block size is at least 3.
        examples: held-out prompts and replies.
        positions: for each example the numbers of such tokens in its reply (the
            corpus's ``memory_positions``).

    Raises:
        ValueError: unlike lengths, no place at all, too short a block.
    """
    check_range("block_size", drafter.block_size, FIRST_DEPTH + 1, integer=True)
    if len(positions) != len(examples):
        raise problem("positions", "be one per text", len(examples), len(positions))
    places: list[Place] = []
    here, there = [], []
    for number, (example, found) in enumerate(zip(examples, positions, strict=True)):
        rates, labels, inside = block_acceptance(
            target, drafter, example.prompt, example.reply
        )
        deep = torch.arange(rates.shape[1], device=rates.device) >= FIRST_DEPTH
        counted = inside & deep
        chosen = counted & torch.isin(labels, labels.new_tensor(list(found)))
        here.append(rates[chosen])
        there.append(rates[counted & ~chosen])
        for position in found:
            at_place = rates[counted & (labels == position)]
            if len(at_place):  # else it is too early in the reply for any block
                rate = at_place.mean().item()
                before, token = _around(target, example.reply, position)
                places.append(Place(number, position, before, token, rate))
    if not places:
        raise problem("positions", "name places", "at least one in a block", "none")
    means = [torch.cat(rates).mean().item() for rates in (here, there)]
    return MemoryAcceptance(tuple(places), *means)


def _around(target: Target, reply: Sequence[int], position: int) -> tuple[str, str]:
    """Return the two tokens before a place and the token there, as text."""
    before = target.decode(reply[max(position - 2, 0) : position])
    return before.strip(), target.decode(reply[position : position + 1]).strip()
