"""Heads at work in exact worlds: a real head's law of a block, every prefix walked.

The worlds of ``toy`` hold the best drafters *of a shape*. Here a head with weights of
its own (set by hand, or trained) is put on base logits that are given, and all its
drafts are enumerated; ``toy.exact_conditional`` then says how often each is kept.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.analysis.toy import Laws, MarkovWorld
from dsparkref.draft.heads import Head
from dsparkref.shapes import check_probs, check_range, check_shape


@torch.no_grad()
def head_laws(
    head: Head,
    base: Float[Tensor, "K V"],
    anchor: int,
    hidden: Float[Tensor, "K D"],
) -> Laws:
    """Return softmax(U_k + B_k) for every prefix (Eq. 4), one table for each draft.

    Args:
        head: any head; its weights are used in their own dtype.
        base: the laws of the slots without the head; U_k is the log of row k.
        anchor: id of x_0.
        hidden: h_k, what the head may know of the context.

    Returns:
        K tables in float64; table k is [V] * k + [V] as in ``toy``.

    Raises:
        ValueError: rows that are no laws, unlike sizes, an anchor that is no id.

    >>> from dsparkref.draft.heads import MarkovHead
    >>> head = MarkovHead(vocab_size=2, rank=1)  # repeats the token before
    >>> for table in head.prev_embed.weight, head.bias_proj.weight:
    ...     _ = table.data.copy_(torch.tensor([[20.0], [-20.0]]))
    >>> laws = head_laws(head, torch.full((2, 2), 0.5), 0, torch.zeros(2, 4))
    >>> laws[1].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    block, vocab_size = check_shape("base", base, "K V").values()
    check_probs("base", base)
    check_shape("hidden", hidden, "K D", K=block)
    check_range("anchor", anchor, 0, vocab_size - 1, integer=True)
    state, previous, tables = head.init_state(1), torch.tensor([anchor]), []
    for k in range(block):
        paths = vocab_size**k
        bias, state = head.step(state, previous, hidden[k].expand(paths, -1))
        logits = base[k].double().log() + bias  # [paths, V]
        tables.append(logits.softmax(dim=-1).view([vocab_size] * (k + 1)))
        previous = torch.arange(vocab_size).repeat(paths)  # each path goes on V ways
        state = _repeated(state, vocab_size)
    return tables


def _repeated(state: Any, times: int) -> Any:
    """Give each of ``times`` continuations a copy of its path's state."""
    if isinstance(state, tuple):
        return tuple(_repeated(part, times) for part in state)
    return state.repeat_interleave(times, 0) if isinstance(state, Tensor) else state


def two_rules_world() -> MarkovWorld:
    """Return a world in which the token before means one thing here, another there.

    Order 2: a country, "keep" or "pass", a side. In Britain one keeps left and passes
    on the right, in France the other way round; "keep" alone tells no side.
    """
    words = ("Britain", "France", "keep", "pass", "left", "right")
    transition = torch.zeros(6, 6, 6, dtype=torch.float64)
    transition[:, 0:2, 2:4] = 0.5  # what to do is open
    transition[:, 2:4, 4:6] = 0.5  # a history without a country never happens
    transition[:, 4:6, 0:2] = 0.5
    for country, sides in ((0, (4, 5)), (1, (5, 4))):
        for verb, side in zip((2, 3), sides, strict=True):
            transition[country, verb] = torch.eye(6, dtype=torch.float64)[side]
    return MarkovWorld(transition, words)
