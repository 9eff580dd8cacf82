"""Keep some drafts, draw one more token, and leave the target's law untouched.

Two verifiers with one signature. `verify_block` is rejection sampling: it divides by
the law the draft was drawn from. `token_match_block` looks only at the draft itself.
Both take their randomness as an argument: a learner sets the numbers by hand and a
test integrates over all of them.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dsparkref.records import Verdict
from dsparkref.shapes import check_shape
from dsparkref.verify.inputs import (
    check_block,
    check_device,
    check_draft_ids,
    check_draft_laws,
    check_laws,
)
from dsparkref.verify.sampling import invert_cdf


def accept_probability(
    p_target: Float[Tensor, "*rows V"],
    p_draft: Float[Tensor, "*rows V"],
    tokens: Int[Tensor, "*rows"],
) -> Float[Tensor, "*rows"]:
    """Return the chance to keep each draft: min(1, p_t(x) / p_d(x)).

    Leviathan et al. 2023; Chen et al. 2023.

    Args:
        p_target: [..., V], the target's law at the draft's position.
        p_draft: [..., V], the law the draft was drawn from.
        tokens: [...], the drafts, ids in [0, V).

    Returns:
        [...] in [0, 1]; 0 where p_d(x) = 0, since such a token cannot have been drawn.

    >>> p_target, p_draft = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.3, 0.6, 0.1])
    >>> [accept_probability(p_target, p_draft, x).item() for x in torch.arange(3)]
    [1.0, 0.5, 1.0]
    """
    p_target, p_draft = check_laws(p_target, p_draft)
    check_draft_ids(tokens, p_target.shape)
    check_device("tokens", tokens, p_target.device)
    return _accept_probability(p_target, p_draft, tokens)


def _accept_probability(p_target: Tensor, p_draft: Tensor, tokens: Tensor) -> Tensor:
    wanted = p_target.gather(-1, tokens[..., None].long())[..., 0]  # [...]
    drafted = p_draft.gather(-1, tokens[..., None].long())[..., 0]  # [...]
    return torch.where(drafted > 0, (wanted / drafted).clamp(max=1), 0.0)


def accept_rate(
    p_target: Float[Tensor, "*rows V"], p_draft: Float[Tensor, "*rows V"]
) -> Float[Tensor, "*rows"]:
    """Return the mean of `accept_probability` over the draft's law (Eq. 8).

    c* = sum_x min(p_t(x), p_d(x)) = 1 - 1/2 ||p_d - p_t||_1 = 1 - TV.

    >>> accept_rate(torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.3, 0.6, 0.1]))
    tensor(0.7000)
    """
    p_target, p_draft = check_laws(p_target, p_draft)
    return torch.minimum(p_target, p_draft).sum(dim=-1).clamp(max=1.0)  # [...]


def residual_distribution(
    p_target: Float[Tensor, "*rows V"], p_draft: Float[Tensor, "*rows V"]
) -> Float[Tensor, "*rows V"]:
    """Return the law of the replacement: norm(max(0, p_t - p_d)).

    It is the part of the target's law that accepted drafts leave uncovered. Where
    nothing is left (p_t = p_d up to rounding) no draft is rejected; a rounded coin
    may still ask, and gets p_t.

    Returns:
        [..., V], finite, each row sums to 1, 0 wherever p_t is 0.

    >>> residual_distribution(torch.tensor([0.3, 0.5, 0.2]), torch.tensor([1.0, 0, 0]))
    tensor([0.0000, 0.7143, 0.2857])
    """
    return _residual(*check_laws(p_target, p_draft))


def leading_run(kept: Bool[Tensor, "*rows K"]) -> Int[Tensor, "*rows"]:
    """Count what stands before the first False: what follows it no longer counts.

    >>> leading_run(torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]]) == 1)
    tensor([2, 0])
    """
    return kept.long().cumprod(dim=-1).sum(dim=-1)  # [...]


def verify_block(
    tokens: Int[Tensor, "B K"],
    p_draft: Float[Tensor, "B K V"],
    p_target: Float[Tensor, "B K+1 V"],
    uniforms: Float[Tensor, "B K+1"],
    *,
    verify_len: int | Int[Tensor, " B"] | None = None,
) -> Verdict:
    """Judge a block by rejection sampling; the output has exactly the target's law.

    Draft k is kept while u_k < min(1, p_t(x_k) / p_d(x_k)), and the first rejection
    ends the block. Position k is 0-based; it is the paper's k+1.

    Args:
        tokens: [B, K], drafts, ids in [0, V); K may be 0.
        p_draft: [B, K, V], row k is the law draft k was drawn from.
        p_target: [B, K+1, V], row k is the target's law after k drafts.
        uniforms: [B, K+1] in [0, 1). Number k judges draft k; the last one draws
            the token that follows, whichever row it comes from.
        verify_len: 0..K, one for all or [B]; drafts beyond it are not looked at.

    Returns:
        Verdict: num_accepted [B], the leading run, 0..verify_len; next_token [B],
        from the residual of the row that rejected, or from row verify_len of
        p_target (the bonus) where none did.

    Raises:
        TypeError, ValueError: shapes, ids, laws or numbers out of range.

    >>> p_target = torch.tensor([[[0.6, 0.3, 0.1], [0.0, 0.0, 1.0]]])
    >>> p_draft = torch.tensor([[[0.3, 0.6, 0.1]]])
    >>> for u in 0.4, 0.5:  # draft 1 stands with probability .3 / .6
    ...     uniforms = torch.tensor([[u, 0.9]])
    ...     verdict = verify_block(torch.tensor([[1]]), p_draft, p_target, uniforms)
    ...     print(verdict.num_accepted.item(), verdict.next_token.item())
    1 2
    0 0
    """
    length, p_target = check_block(tokens, p_target, uniforms, verify_len)
    check_shape("p_draft", p_draft, "B K V", B=tokens.shape[0], K=tokens.shape[1])
    p_draft = check_draft_laws(p_draft, p_target[:, :-1])
    # "<" and not "<=": a number of exactly 0 must not keep what has probability 0.
    accept = _accept_probability(p_target[:, :-1], p_draft, tokens)
    kept = uniforms[:, :-1] < accept
    num_accepted = leading_run(kept & _within(length, kept))  # [B]
    stop = torch.arange(len(tokens), device=tokens.device), num_accepted
    wanted = p_target[stop]  # [B, V]
    # After a bonus position nothing was drafted: against a draft law of zeros the
    # residual is p_t itself, so that replacement and bonus are one formula.
    drafted = F.pad(p_draft, (0, 0, 0, 1))[stop]  # [B, V]
    drafted = drafted.masked_fill((num_accepted == length)[:, None], 0.0)
    next_token = invert_cdf(_residual(wanted, drafted), uniforms[:, -1])
    return Verdict(num_accepted, next_token)


def token_match_block(
    tokens: Int[Tensor, "B K"],
    p_draft: Float[Tensor, "B K V"] | None,
    p_target: Float[Tensor, "B K+1 V"],
    uniforms: Float[Tensor, "B K+1"],
    *,
    verify_len: int | Int[Tensor, " B"] | None = None,
) -> Verdict:
    """Judge a block by the target's own samples: go on while they equal the drafts.

    Lossless whatever the draft, since every emitted token is the target's own. For
    one and the same *sampled* draft it keeps sum(p q), rejection sampling
    sum(min(p, q)), never less; for a greedy draft both keep p(argmax q). So a greedy
    draft with token match can beat a sampled draft with rejection, and the other way
    round: neither is a bug. Position k is 0-based; it is the paper's k+1.

    Args:
        tokens: [B, K], drafts, ids in [0, V).
        p_draft: not read; None will do.
        p_target: [B, K+1, V], row k is the target's law after k drafts.
        uniforms: [B, K+1] in [0, 1). Number k draws the target's sample at row k;
            the last one draws the bonus, from row verify_len.
        verify_len: 0..K, one for all or [B]; drafts beyond it are not looked at.

    Returns:
        Verdict: num_accepted [B], 0..verify_len; next_token [B], the target's
        sample at the row where the run ends.

    >>> p_target = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])  # u < .5 draws token 0
    >>> verdict = token_match_block(
    ...     torch.tensor([[1]]), None, p_target, torch.tensor([[0.7, 0.2]])
    ... )
    >>> verdict.num_accepted, verdict.next_token
    (tensor([1]), tensor([0]))
    """
    length, p_target = check_block(tokens, p_target, uniforms, verify_len)
    row = torch.arange(uniforms.shape[1], device=uniforms.device)
    bonus = row == length[:, None]  # [B, K+1]
    own = invert_cdf(p_target, torch.where(bonus, uniforms[:, -1:], uniforms))
    kept = own[:, :-1] == tokens
    num_accepted = leading_run(kept & _within(length, kept))  # [B]
    return Verdict(num_accepted, own.gather(1, num_accepted[:, None])[:, 0])


VERIFIERS = {"rejection": verify_block, "token_match": token_match_block}


def _within(length: Tensor, kept: Tensor) -> Tensor:
    """Mark the positions below each row's verify length, [B, K]."""
    return torch.arange(kept.shape[1], device=kept.device) < length[:, None]


def _residual(p_target: Tensor, p_draft: Tensor) -> Tensor:
    """norm(max(0, p_t - p_d)), unchecked, so that p_d may be zero."""
    left = (p_target - p_draft).clamp(min=0)
    mass = left.sum(dim=-1, keepdim=True)  # [..., 1]
    # Laws that differ by less than one rounding step differ by noise alone, and
    # normalising would blow the noise up to a law.
    noise = mass <= torch.finfo(mass.dtype).eps
    return torch.where(noise, p_target, left / mass)
