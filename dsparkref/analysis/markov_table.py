"""The table inside a Markov head: how it pushes, and what is left at a lower rank.

W_1 [V, r] and W_2 [V, r] make a table of V x V pushes, B[x, v] = W_2[v] . W_1[x]
(Eq. 5, DSpark). It is never written out while drafting, and not here either: at
V = 151,936 it would hold 23 billion numbers.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.draft.drafter import Drafter
from dsparkref.draft.heads import MarkovHead
from dsparkref.shapes import check_range, check_shape, problem

# Rows of the table that are looked at together.
ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Push:
    """One entry of the table: how far ``before`` pushes ``token``."""

    # ids
    before: int
    token: int
    # logits above the mean of the row, which softmax does not see
    logits: float


def push_directions(
    prev_embed: Float[Tensor, "V r"], bias_proj: Float[Tensor, "Vd r"]
) -> Float[Tensor, "Vd n"]:
    """Return the directions in which the table pushes, the strongest first.

    They are the singular vectors of W_2 W_1^T on the side of the pushed tokens, of
    length 1, at most r of them. With W_1 = Q R the product is (W_2 R^T) Q^T, and since
    Q changes no length the small matrix W_2 R^T has the same ones.

    >>> directions = push_directions(torch.eye(2), torch.tensor([[1.0, 0], [0, 3]]))
    >>> directions.abs().tolist()  # the second token is pushed most
    [[0.0, 1.0], [1.0, 0.0]]
    """
    rank = check_shape("prev_embed", prev_embed, "V r")["r"]
    check_shape("bias_proj", bias_proj, "Vd r", r=rank)
    triangle = torch.linalg.qr(prev_embed).R  # [min(V, r), r]
    return torch.linalg.svd(bias_proj @ triangle.T, full_matrices=False).U


def truncated_table(
    prev_embed: Float[Tensor, "V r"], bias_proj: Float[Tensor, "Vd r"], rank: int
) -> Float[Tensor, "V Vd"]:
    """Return the table of pushes, cut to ``rank``: of all such tables the nearest.

    Args:
        prev_embed, bias_proj: W_1 and W_2, a row per token.
        rank: 0 (nothing is left) to r (nothing is cut).

    Returns:
        [V, Vd]: row x holds the pushes after token x. "Nearest" sums the squares
        of all differences (Eckart and Young).

    >>> table = truncated_table(torch.eye(2), torch.tensor([[1.0, 0], [0, 3]]), 1)
    >>> table.tolist()  # of the entries 1 and 3, the larger one
    [[0.0, 0.0], [0.0, 3.0]]
    """
    check_range("rank", rank, 0, prev_embed.shape[-1], integer=True)
    kept = push_directions(prev_embed, bias_proj)[:, :rank]  # [Vd, rank]
    return prev_embed @ (kept @ (kept.T @ bias_proj)).T


def with_rank(drafter: Drafter, rank: int) -> Drafter:
    """Return a copy of a drafter whose head pushes in ``rank`` directions only.

    W_2 is projected onto the strongest directions of the table, all else stays: for
    the vanilla head this is ``truncated_table``, a gate or a state goes on as before.

    Args:
        drafter: with a head that has the Markov tables (markov, gated, rnn).
        rank: 0 to the head's own.

    >>> from dsparkref import load_pair
    >>> with_rank(load_pair("tiny").drafter, 0).head.bias_proj.weight.abs().max().item()
    0.0
    """
    markov = markov_head(drafter)
    check_range("rank", rank, 0, drafter.spec.rank, integer=True)
    # all but the head is shared with the drafter itself
    shared = (*drafter.tables(), drafter.backbone, drafter.confidence)
    cut = copy.deepcopy(drafter, {id(part): part for part in shared})
    prev_embed, bias_proj = markov.prev_embed.weight, markov.bias_proj.weight
    with torch.no_grad():
        directions = push_directions(prev_embed.float(), bias_proj.float())
        kept = directions[:, :rank].to(bias_proj.dtype)  # [Vd, rank]
        markov_head(cut).bias_proj.weight.copy_(kept @ (kept.T @ bias_proj))
    return cut


@torch.no_grad()
def strongest_pushes(
    head: MarkovHead, before: Sequence[int], count: int = 1
) -> list[Push]:
    """Return the ``count`` strongest pushes of each token of ``before``, in order.

    A push is counted from the mean over all tokens. What a gate or a state makes of
    it is left out.

    >>> head = MarkovHead(vocab_size=2, rank=1)
    >>> _ = head.prev_embed.weight.data.copy_(torch.tensor([[1.0], [-2.0]]))
    >>> _ = head.bias_proj.weight.data.copy_(torch.tensor([[1.0], [0.0]]))
    >>> strongest_pushes(head, [1])
    [Push(before=1, token=1, logits=1.0)]
    """
    vocab_size = len(head.prev_embed.weight)
    for token in before:
        check_range("before", token, 0, vocab_size - 1, integer=True)
    check_range("count", count, 1, head.bias_proj.out_features, integer=True)
    ids = torch.tensor(before, dtype=torch.long, device=head.prev_embed.weight.device)
    found: list[Push] = []
    for some in ids.split(ROWS_AT_ONCE):
        rows = head.bias_proj(head.prev_embed(some)).float()  # [n, Vd]
        best = (rows - rows.mean(dim=-1, keepdim=True)).topk(count)
        for token, values, pushed in zip(
            some.tolist(), best.values.tolist(), best.indices.tolist(), strict=True
        ):
            found += map(Push, [token] * count, pushed, values)
    return found


def markov_head(drafter: Drafter) -> MarkovHead:
    """Return a drafter's head, which must have the tables W_1 and W_2."""
    if not isinstance(drafter.head, MarkovHead):
        expected, hint = "markov, gated or rnn", "Choose another with load_pair."
        rule = "have a head with Markov tables"
        raise problem("drafter", rule, expected, drafter.head_type, hint)
    return drafter.head
