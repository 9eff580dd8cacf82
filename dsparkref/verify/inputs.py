"""What the verifiers refuse: laws, ids, uniforms and verify lengths that cannot be."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.shapes import check_probs, check_range, check_shape, problem


def widen(
    tensor: Float[Tensor, "*shape"], name: str = "input"
) -> Float[Tensor, "*shape"]:
    """Raise half precision to float32; leave float32 and float64 as they are.

    >>> widen(torch.tensor([0.5], dtype=torch.bfloat16)).dtype
    torch.float32
    """
    check_tensor(name, tensor)
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_tensor(name: str, value: object) -> None:
    """Check that a value is a tensor.

    >>> check_tensor("tokens", [3, 4])
    Traceback (most recent call last):
    TypeError: tokens must be a tensor: expected a tensor, got list.
    """
    if not isinstance(value, Tensor):
        got = type(value).__name__
        raise problem(name, "be a tensor", "a tensor", got, error=TypeError)


def check_uniforms(name: str, uniforms: Tensor, shape: Sequence[int]) -> None:
    """Check one number in [0, 1) for each row.

    >>> check_uniforms("uniforms", torch.tensor([0.5, 1.0]), (2,))
    Traceback (most recent call last):
    ValueError: uniforms must lie in [0, 1): expected numbers >= 0 and < 1, got 1.0.
    """
    if list(uniforms.shape) != list(shape):
        rule = "have one number for each row"
        raise problem(name, rule, list(shape), list(uniforms.shape))
    outside = ~((uniforms >= 0) & (uniforms < 1))  # NaN is outside too
    if outside.any():
        got = uniforms[outside][0].item()
        raise problem(name, "lie in [0, 1)", "numbers >= 0 and < 1", got)


def check_ids(tokens: Tensor, laws: Sequence[int]) -> None:
    """Check one id in [0, V) for each law of a table of shape ``laws``, [..., V].

    >>> check_ids(torch.tensor([4, 5]), (2, 5))
    Traceback (most recent call last):
    ValueError: tokens must lie in the vocabulary: expected 0..4, got 5.
    """
    check_tensor("tokens", tokens)
    *rows, vocab = laws
    if list(tokens.shape) != rows:
        raise problem("tokens", "have one id for each law", rows, list(tokens.shape))
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise problem("tokens", "be ids", "integers", tokens.dtype, error=TypeError)
    outside = (tokens < 0) | (tokens >= vocab)
    if outside.any():
        got = tokens[outside][0].item()
        raise problem("tokens", "lie in the vocabulary", f"0..{vocab - 1}", got)


def check_laws(p_target: Tensor, p_draft: Tensor) -> tuple[Tensor, Tensor]:
    """Check two tables of laws over one vocabulary; return them float32 or wider.

    >>> check_laws(torch.ones(6) / 6, torch.ones(5) / 5)
    Traceback (most recent call last):
    ValueError: p_draft must cover the target's vocabulary: expected V = 6, got V = 5. \
A reduced draft vocabulary is scattered into it, 0 elsewhere.
    """
    p_target = widen(p_target, "p_target")
    check_probs("p_target", p_target)
    return p_target, check_draft_laws(p_draft, p_target.shape)


def check_draft_laws(p_draft: Tensor, shape: Sequence[int]) -> Tensor:
    """Check laws of drafts against the shape of the target's; return them widened."""
    p_draft = widen(p_draft, "p_draft")
    if p_draft.shape[-1] != shape[-1]:
        rule = "cover the target's vocabulary"
        hint = "A reduced draft vocabulary is scattered into it, 0 elsewhere."
        expected, got = f"V = {shape[-1]}", f"V = {p_draft.shape[-1]}"
        raise problem("p_draft", rule, expected, got, hint)
    if p_draft.shape != shape:
        rule = "have the shape of p_target"
        raise problem("p_draft", rule, list(shape), list(p_draft.shape))
    check_probs("p_draft", p_draft)
    return p_draft


def check_block(
    tokens: Tensor,
    p_target: Tensor,
    uniforms: Tensor,
    verify_len: int | Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Check what every verifier reads; return the verify lengths [B] and p_target.

    p_target comes back float32 or wider.

    Rows past verify_len are checked too: pad a batch with laws, not with zeros.
    """
    sizes = check_shape("tokens", tokens, "B K")
    sizes = check_shape("p_target", p_target, "B K+1 V", **sizes)
    check_shape("uniforms", uniforms, "B K+1", **sizes)
    check_ids(tokens, p_target[:, :-1].shape)
    p_target = widen(p_target, "p_target")
    check_probs("p_target", p_target)
    check_uniforms("uniforms", uniforms, uniforms.shape)
    length = check_lengths(verify_len, *tokens.shape, device=tokens.device)
    return length, p_target


def check_lengths(
    verify_len: int | Tensor | None,
    rows: int,
    block_size: int,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return one verify length in 0..K for each row, [B]; None is the whole block.

    >>> check_lengths(2, rows=3, block_size=7)
    tensor([2, 2, 2])
    >>> check_lengths(torch.tensor([0, 8]), rows=2, block_size=7)
    Traceback (most recent call last):
    ValueError: verify_len must lie within the block: expected 0..7, got 8.
    """
    if not isinstance(verify_len, Tensor):
        length = block_size if verify_len is None else verify_len
        check_range("verify_len", length, 0, block_size, integer=True)
        return torch.full((rows,), length, device=device)  # [B]
    check_shape("verify_len", verify_len, "B", B=rows)
    if verify_len.dtype != torch.long:
        kind = verify_len.dtype
        raise problem("verify_len", "hold counts", "int64", kind, error=TypeError)
    outside = (verify_len < 0) | (verify_len > block_size)
    if outside.any():
        expected, got = f"0..{block_size}", verify_len[outside][0].item()
        raise problem("verify_len", "lie within the block", expected, got)
    return verify_len.to(device)
