"""What the verifiers refuse: laws, ids, uniforms and verify lengths that cannot be."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.shapes import (
    PROBABILITY_TOLERANCE,
    check_probs,
    check_range,
    check_sequence,
    check_shape,
    dtype_name,
    problem,
)

# Each value of a bfloat16 law is off by half of its last of eight bits, at most.
BFLOAT16_TOLERANCE = 2**-8


def widen(
    tensor: Float[Tensor, "*shape"], name: str = "input"
) -> Float[Tensor, "*shape"]:
    """Raise half precision to float32; leave float32 and float64 as they are.

    >>> widen(torch.tensor([0.5], dtype=torch.bfloat16)).dtype
    torch.float32
    """
    check_tensor(name, tensor)
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def widen_laws(name: str, probs: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
    """Check laws and return them float32 or wider.

    A bfloat16 law sums to 1 as far as eight bits can say.

    >>> widen_laws("p_draft", torch.tensor([0.6, 0.3, 0.1]).bfloat16()).sum()
    tensor(1.0024)
    """
    wide = widen(probs, name)
    coarse = probs.dtype == torch.bfloat16
    check_probs(name, wide, BFLOAT16_TOLERANCE if coarse else PROBABILITY_TOLERANCE)
    return wide


def check_tensor(name: str, value: object) -> None:
    """Check that a value is a dense tensor of real numbers, with values in it.

    >>> check_tensor("tokens", [3, 4])
    Traceback (most recent call last):
    TypeError: tokens must be a tensor: expected a tensor, got list.
    """
    if not isinstance(value, Tensor):
        got = type(value).__name__
        raise problem(name, "be a tensor", "a tensor", got, error=TypeError)
    if value.is_complex() or value.is_meta or value.layout != torch.strided:
        got = f"{dtype_name(value.dtype)}, {value.layout}, on {value.device}"
        rule, expected = "hold real numbers", "a dense tensor with values"
        raise problem(name, rule, expected, got, error=TypeError)


def numbers(name: str, given: Tensor | Sequence[float]) -> tuple[float, ...]:
    """Return the numbers of a list or of a tensor [n].

    >>> numbers("temperatures", [1, "hot"])
    Traceback (most recent call last):
    TypeError: temperatures must be in range: expected a number >= -inf, got 'hot'.
    """
    if isinstance(given, Tensor):
        check_shape(name, given, "n")
        check_tensor(name, given)
        given = given.tolist()
    check_sequence(name, given)
    for value in given:
        check_range(name, value, -math.inf)
    return tuple(map(float, given))


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Check that a tensor is where the others of its call are.

    >>> check_device("p_draft", torch.ones(2, device="meta"), torch.device("cpu"))
    Traceback (most recent call last):
    ValueError: p_draft must be on one device with p_target: expected cpu, got meta.
    """
    if tensor.device != device:
        rule = "be on one device with p_target"
        raise problem(name, rule, device, tensor.device)


def check_uniforms(name: str, uniforms: Tensor, shape: Sequence[int]) -> None:
    """Check one number in [0, 1) for each row.

    >>> check_uniforms("uniforms", torch.tensor([0.5, 1.0]), (2,))
    Traceback (most recent call last):
    ValueError: uniforms must lie in [0, 1): expected numbers >= 0 and < 1, got 1.0.
    """
    check_tensor(name, uniforms)
    if list(uniforms.shape) != list(shape):
        rule = "have one number for each row"
        raise problem(name, rule, list(shape), list(uniforms.shape))
    outside = ~((uniforms >= 0) & (uniforms < 1))  # NaN is outside too
    if outside.any():
        got = uniforms[outside][0].item()
        raise problem(name, "lie in [0, 1)", "numbers >= 0 and < 1", got)


def check_draft_ids(tokens: Tensor, laws: Sequence[int]) -> None:
    """Check one id in [0, V) for each law of a table of shape ``laws``, [..., V].

    >>> check_draft_ids(torch.tensor([3, 5]), (2, 5))
    Traceback (most recent call last):
    ValueError: tokens must lie in the vocabulary: expected 0..4, got 5.
    """
    check_tensor("tokens", tokens)
    *rows, vocab = laws
    if list(tokens.shape) != rows:
        raise problem("tokens", "have one id for each law", rows, list(tokens.shape))
    check_token_ids("tokens", tokens, vocab)


def check_token_ids(name: str, tokens: Tensor, vocab: int) -> None:
    """Check that a tensor of any shape holds ids in [0, V).

    >>> check_token_ids("anchor", torch.tensor([2.0]), 5)
    Traceback (most recent call last):
    TypeError: anchor must be ids: expected integers, got torch.float32.
    """
    check_tensor(name, tokens)
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise problem(name, "be ids", "integers", tokens.dtype, error=TypeError)
    outside = (tokens < 0) | (tokens >= vocab)
    if outside.any():
        got = tokens[outside][0].item()
        raise problem(name, "lie in the vocabulary", f"0..{vocab - 1}", got)


def check_laws(p_target: Tensor, p_draft: Tensor) -> tuple[Tensor, Tensor]:
    """Check two tables of laws over one vocabulary; return them float32 or wider.

    >>> check_laws(torch.ones(6) / 6, torch.ones(5) / 5)
    Traceback (most recent call last):
    ValueError: p_draft must cover the target's vocabulary: expected V = 6, got V = 5. \
A reduced draft vocabulary is scattered into it, 0 elsewhere.
    """
    p_target = widen_laws("p_target", p_target)
    return p_target, check_draft_laws(p_draft, p_target)


def check_draft_laws(p_draft: Tensor, p_target: Tensor) -> Tensor:
    """Check laws of drafts against the target's, row by row; return them widened."""
    if isinstance(p_draft, Tensor):
        check_device("p_draft", p_draft, p_target.device)
    check_tensor("p_draft", p_draft)
    shape, got = list(p_target.shape), list(p_draft.shape)
    if got and got[-1] != shape[-1]:
        rule = "cover the target's vocabulary"
        hint = "A reduced draft vocabulary is scattered into it, 0 elsewhere."
        raise problem("p_draft", rule, f"V = {shape[-1]}", f"V = {got[-1]}", hint)
    if got != shape:
        raise problem("p_draft", "have the shape of p_target", shape, got)
    return widen_laws("p_draft", p_draft)


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
    check_tensor("p_target", p_target)
    check_device("tokens", tokens, p_target.device)
    check_device("uniforms", uniforms, p_target.device)
    check_draft_ids(tokens, p_target[:, :-1].shape)
    p_target = widen_laws("p_target", p_target)
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
