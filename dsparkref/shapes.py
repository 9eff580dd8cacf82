"""Dimension letters, and the checks that speak with one voice about bad input.

The letters stand in every shape of this project::

    B  batch                     K  drafts per cycle (the anchor not counted)
    T  context tokens            V  vocabulary
    D  hidden width              L  tapped target layers
    R  requests                  N  anchors (training blocks per sequence)
    S  training tokens           Q  slots of a block (K, or K+1 where slot 0 is dropped)

Every error reads ``<name> must <rule>: expected <E>, got <G>. <hint>``.
"""

import math
import re
import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

# A law of float32 or wider may sum to so much more or less than 1.
PROBABILITY_TOLERANCE = 1e-3
# of an integer; torch counts in 64 bits
LARGEST = 2**63 - 1


def problem(
    name: str,
    rule: str,
    expected: object,
    got: object,
    hint: str = "",
    error: type[Exception] = ValueError,
) -> Exception:
    """Return the exception that says what was expected and what came.

    >>> print(problem("top_k", "be at least 1", "an integer >= 1", 0))
    top_k must be at least 1: expected an integer >= 1, got 0.
    """
    message = f"{name} must {rule}: expected {expected}, got {got}."
    return error(f"{message} {hint}".rstrip())


def check_shape(name: str, tensor: Any, letters: str, **sizes: int) -> dict[str, int]:
    """Check a tensor against dimension letters; return the sizes known so far.

    ``letters`` is what stands in the docstrings, such as ``"B K+1 V"``. A letter
    that has no size yet takes the size found, so that checks chain:

    >>> sizes = check_shape("tokens", torch.zeros(2, 3), "B K")
    >>> sizes = check_shape("p_draft", torch.zeros(2, 3, 5), "B K V", **sizes)
    >>> sizes
    {'B': 2, 'K': 3, 'V': 5}
    >>> sizes = check_shape("p_target", torch.zeros(2, 3, 5), "B K+1 V", **sizes)
    Traceback (most recent call last):
    ValueError: p_target must have shape [B, K+1, V]: expected [2, 4, 5], got [2, 3, 5].

    Raises TypeError where ``tensor`` is no tensor, ValueError where the shape differs.
    """
    wanted = letters.split()
    rule = f"have shape [{', '.join(wanted)}]"
    if not isinstance(tensor, Tensor):
        raise problem(name, rule, "a tensor", type(tensor).__name__, error=TypeError)
    got = list(tensor.shape)
    known = dict(sizes)
    if len(got) == len(wanted):
        for letter, size in zip(wanted, got, strict=True):
            if letter.isalpha():
                known.setdefault(letter, size)
    expected = [_size_of(letter, known) for letter in wanted]
    if got != expected:
        shown = f"[{', '.join(str(size) for size in expected)}]"
        raise problem(name, rule, shown, got)
    return known


def _size_of(letter: str, known: dict[str, int]) -> int | str:
    """Return the size of ``"7"``, ``"K"`` or ``"K+1"``; the letter where unknown."""
    if letter.isdigit():
        return int(letter)
    base, _, plus = letter.partition("+")
    return known[base] + int(plus or 0) if base in known else letter


def check_range(
    name: str,
    value: Any,
    low: float,
    high: float = math.inf,
    *,
    integer: bool = False,
    open_low: bool = False,
) -> None:
    """Check ``low <= value <= high`` (``low < value`` with ``open_low``).

    >>> check_range("temperature", -1.0, 0.0)
    Traceback (most recent call last):
    ValueError: temperature must be in range: expected a number >= 0.0, got -1.0.
    >>> check_range("max_new_tokens", 2.5, 0, integer=True)
    Traceback (most recent call last):
    TypeError: max_new_tokens must be in range: expected an integer >= 0, got 2.5.
    """
    kind = "an integer" if integer else "a number"
    expected = f"{kind} {'>' if open_low else '>='} {low}"
    if high != math.inf:
        expected += f" and <= {high}"
    if isinstance(value, bool) or not isinstance(value, Integral if integer else Real):
        raise problem(name, "be in range", expected, repr(value), error=TypeError)
    number: Any = value  # compared as it is: a large integer has no float
    if integer and high == math.inf and number > LARGEST:
        raise problem(name, "be in range", f"{expected} and <= {LARGEST}", repr(value))
    above = low < number if open_low else low <= number
    if not above or not number <= min(high, sys.float_info.max):  # nor NaN nor inf
        raise problem(name, "be in range", expected, repr(value))


def check_probs(
    name: str, probs: Tensor, tolerance: float = PROBABILITY_TOLERANCE
) -> None:
    """Check that the last dimension of ``probs`` holds probabilities.

    >>> check_probs("p_target", torch.tensor([0.5, 0.6]))
    Traceback (most recent call last):
    ValueError: p_target must sum to 1: expected 1.0, got 1.1000 at position 0.
    """
    _check_vocabulary(name, probs)
    total, lowest = probs.sum(dim=-1), probs.amin(dim=-1)
    near_1 = (total - 1).abs() <= tolerance
    if (near_1 & (lowest >= 0)).all():  # NaN and inf are far from 1
        return
    where = ~(torch.isfinite(probs) & (probs >= 0)).all(dim=-1)
    if where.any():
        got = _first(where, "other values")
        raise problem(name, "hold probabilities", "finite values >= 0", got)
    value = total.reshape(-1)[(~near_1).reshape(-1).nonzero()[0]].item()
    raise problem(name, "sum to 1", 1.0, _first(~near_1, f"{value:.4f}"))


def check_logits(name: str, logits: Tensor) -> None:
    """Check that logits hold no NaN and no +inf, and no row is all -inf.

    -inf is allowed: it is probability 0 (a token outside a reduced vocabulary).

    >>> check_logits("target logits", torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]))
    Traceback (most recent call last):
    ValueError: target logits must be finite or -inf: expected numbers, got NaN or \
+inf at position 1. The model itself returned it.
    """
    _check_vocabulary(name, logits)
    highest = logits.amax(dim=-1)  # NaN wins any comparison in amax
    where = ~torch.isfinite(highest)
    if where.any():
        value = highest.reshape(-1)[where.reshape(-1).nonzero()[0]].item()
        found = "only -inf" if value == -math.inf else "NaN or +inf"
        hint = "The model itself returned it."
        got = _first(where, found)
        raise problem(name, "be finite or -inf", "numbers", got, hint)


def _check_vocabulary(name: str, rows: Tensor) -> None:
    if rows.dim() == 0 or rows.shape[-1] == 0:
        rule, expected = "cover a vocabulary", "shape [..., V] with V >= 1"
        raise problem(name, rule, expected, list(rows.shape))


def _first(where: Tensor, what: str) -> str:
    """Say where the first bad row stands; the last index is the block position."""
    index = where.reshape(-1).nonzero()[0].item() if where.dim() < 2 else None
    place = index if index is not None else where.nonzero()[0].tolist()[-1]
    return f"{what} at position {place}"


def check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    """Check that a name is one of those known.

    >>> check_known("verifier", "typical", ("rejection", "token_match"))
    Traceback (most recent call last):
    ValueError: verifier must be a known name: expected one of rejection, \
token_match, got 'typical'.
    """
    if value not in known:
        expected = f"one of {', '.join(known)}"
        raise problem(name, "be a known name", expected, repr(value))


def check_flag(name: str, value: object) -> None:
    """Check that a value is True or False, not something that is merely true.

    >>> check_flag("early_stop", "no")
    Traceback (most recent call last):
    TypeError: early_stop must be a flag: expected True or False, got 'no'.
    """
    if not isinstance(value, bool):
        expected, got = "True or False", repr(value)
        raise problem(name, "be a flag", expected, got, error=TypeError)


def check_sequence(name: str, value: object) -> None:
    """Check that a value is a list, or something like it; a text is none.

    >>> check_sequence("prompts", "hello")
    Traceback (most recent call last):
    TypeError: prompts must be a list: expected a list, got str.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        got = type(value).__name__
        raise problem(name, "be a list", "a list", got, error=TypeError)


def check_offers(name: str, value: Any, *members: str) -> None:
    """Check that an object of the caller's has what will be asked of it.

    >>> check_offers("policy", 3, "verify_lengths")
    Traceback (most recent call last):
    TypeError: policy must be a policy: expected verify_lengths, got int without \
verify_lengths.
    """
    lacking = [member for member in members if not hasattr(value, member)]
    if lacking:
        got = f"{type(value).__name__} without {', '.join(lacking)}"
        rule, expected = f"be a {name}", " and ".join(members)
        raise problem(name, rule, expected, got, error=TypeError)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the short name of a dtype.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return re.sub(r"^torch\.", "", str(dtype))
