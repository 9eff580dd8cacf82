"""What decoding has shown: acceptance by position, tokens per cycle, speed-up.

Two counts per cycle carry it all: how many drafts were *observed*, that is judged by
the verifier, and how many of these were accepted. Two of the questions one can ask
of them sound alike and have different denominators:

* conditional acceptance: of the cycles that came to draft k, how many kept it?
* prefix survival: of the cycles that handed draft k to the verifier, how many kept
  it and all before it?

Position k is 0-based here; it is the paper's k+1.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.records import CycleTrace
from dsparkref.shapes import (
    LARGEST,
    check_range,
    check_sequence,
    check_shape,
    problem,
)
from dsparkref.verify.inputs import check_tensor

Counts = Int[Tensor, " n"] | Sequence[int]


def observations(
    cycles: Sequence[CycleTrace],
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Return (num_accepted, verify_len) of decoded cycles, as the metrics want them.

    Where a stop token or the cap ended the reply inside a block (``next_token`` is
    None) the drafts behind the cut were judged in vain: nothing is known of them,
    neither that they stood nor that they fell. Such a cycle counts as verified up to
    the cut. ``conditional_acceptance(*observations(cycles), block_size)`` is the idiom.

    >>> def cycle(num_accepted, next_token):
    ...     kept = [7] * num_accepted + [token for token in [next_token] if token]
    ...     return CycleTrace(
    ...         0, 9, 1, [7, 7, 7], None, 3, num_accepted, next_token, kept, 0.0, 0.0
    ...     )
    >>> observations([cycle(2, 5), cycle(2, None)])  # a rejection; a cut
    (tensor([2, 2]), tensor([3, 2]))
    """
    accepted = [cycle.num_accepted for cycle in cycles]
    observed = [
        cycle.num_accepted if cycle.next_token is None else cycle.verify_len
        for cycle in cycles
    ]
    return torch.tensor(accepted, dtype=torch.long), torch.tensor(
        observed, dtype=torch.long
    )


def conditional_acceptance(
    num_accepted: Counts, verify_len: Counts, block_size: int
) -> Float[Tensor, " K"]:
    """Return the share of draft k kept, among cycles that kept all before it.

    The empirical c_k of the confidence head: P(draft k kept | drafts 0..k-1 kept).
    Position k is 0-based; it is the paper's k+1.

    Args:
        num_accepted: [n], drafts kept per cycle, 0..verify_len.
        verify_len: [n], drafts the verifier judged per cycle, 0..K.
        block_size: K.

    Returns:
        [K] in [0, 1], float64; NaN where no cycle came so far.

    Raises:
        ValueError: counts that contradict each other.

    The denominator at k holds the cycles with num_accepted >= k *and* verify_len > k.
    Without the second half a cycle that was never asked about draft k would count as
    one that refused it, and a cautious policy would look like a bad drafter.

    >>> # three cycles keep 2, 0 and 1 drafts; the last was asked about one alone
    >>> conditional_acceptance([2, 0, 1], [3, 3, 1], 3)  # 2/3, 1/1, 0/1
    tensor([0.6667, 1.0000, 0.0000], dtype=torch.float64)

    Differs: DeepSpec's training log calls the teacher-forced mean of 1 - TV by the
    name ``accept_rate@k``.
    """
    accepted, verified, k = _counts(num_accepted, verify_len, block_size)
    reached = (accepted >= k) & (verified > k)  # [n, K]
    return _share(reached & (accepted > k), reached)


def prefix_survival(
    num_accepted: Counts, verify_len: Counts, block_size: int
) -> Float[Tensor, " K"]:
    """Return the share of cycles that kept drafts 0..k, among those verified to k.

    Where every cycle is verified to the end this is the product of the conditional
    acceptances, and its sum plus one is the accepted length. Where it is not, the
    cycles still counted at k are a selection: a policy verified them further because
    they looked good, or a cut took away the ones that stood longest. Then
    ``conditional_acceptance(...).cumprod(0)`` is the honest curve (Kaplan and Meier
    1958), as long as no cut looks at the draft that it hides.

    Arguments, returns and errors as in ``conditional_acceptance``.

    >>> prefix_survival([2, 0, 1], [3, 3, 1], 3)  # 2/3, 1/2, 0/2
    tensor([0.6667, 0.5000, 0.0000], dtype=torch.float64)

    Differs: DeepSpec's evaluator calls this ``accept_rate@k``.
    """
    accepted, verified, k = _counts(num_accepted, verify_len, block_size)
    asked = (verified > k).expand(-1, block_size)  # [n, K]
    return _share(asked & (accepted > k), asked)


def accepted_length(cycles: Sequence[CycleTrace]) -> float | None:
    """Return the tokens per cycle, replacement or bonus included: tau of Eq. 1.

    None without cycles. ``accepted_drafts`` is the other count, without that token;
    texts that say "acceptance length" mean either.
    """
    return _mean([len(cycle.emitted) for cycle in cycles])


def accepted_drafts(cycles: Sequence[CycleTrace]) -> float | None:
    """Return the drafts kept per cycle, the target's own token not counted."""
    return _mean([cycle.num_accepted for cycle in cycles])


def draft_yield(cycles: Sequence[CycleTrace]) -> float | None:
    """Return kept drafts over verified drafts; None where none was ever verified.

    Drafts behind the end of the reply count as neither (``observations``).
    """
    kept, verified = (int(total.sum()) for total in observations(cycles))
    return kept / verified if verified else None


def speedup(
    draft_seconds: float,
    verify_seconds: float,
    accepted_length: float,
    token_seconds: float,
) -> float:
    """Return the speed-up over autoregressive decoding that Eq. 1 gives.

    L = (T_draft + T_verify) / tau is the time per token; the result is the
    autoregressive time per token over L. Below 1, speculation loses.

    Args:
        draft_seconds: T_draft, mean per cycle, >= 0.
        verify_seconds: T_verify, mean per cycle, > 0; commit and rollback included.
        accepted_length: tau, tokens per cycle, bonus included.
        token_seconds: autoregressive decoding, mean per token, > 0.

    >>> speedup(2.0, 4.0, 3.0, 3.0)  # in ms: 2 per token against 3
    1.5
    """
    check_range("draft_seconds", draft_seconds, 0.0)
    check_range("verify_seconds", verify_seconds, 0.0, open_low=True)
    check_range("accepted_length", accepted_length, 0.0, open_low=True)
    check_range("token_seconds", token_seconds, 0.0, open_low=True)
    return token_seconds * accepted_length / (draft_seconds + verify_seconds)


def speedup_curve(
    survival: Float[Tensor, " K"],
    draft_seconds: float | Float[Tensor, " K"],
    verify_seconds: Float[Tensor, " passes"],
) -> Float[Tensor, " K"]:
    """Return the speed-up of cycles that verify n = 1..K drafts: Eq. 1 for each n.

    A cycle yields tau_n = 1 + S_1 + ... + S_n tokens in T_draft + T_verify(n + 1)
    seconds; without a drafter a token takes T_verify(1).

    Args:
        survival: [K] in [0, 1], S_n is the chance that drafts 1..n all stand.
        draft_seconds: T_draft, >= 0, one for all n or one for each.
        verify_seconds: [K+1], > 0; entry n is a target pass over n + 1 tokens, the
            anchor included, and so entry 0 is a one-token pass.

    Raises:
        TypeError, ValueError: unlike lengths, numbers out of range.

    >>> verify = torch.tensor([2.0, 2.0, 2.5])  # in ms
    >>> speedup_curve(torch.tensor([0.5, 0.25]), 1.0, verify)  # 1.5 for 3, 1.75 for 3.5
    tensor([1., 1.])
    """
    size = check_shape("survival", survival, "K")["K"]
    check_shape("verify_seconds", verify_seconds, "K+1", K=size)
    drafting = torch.as_tensor(draft_seconds, dtype=verify_seconds.dtype).expand(size)
    for name, values in (("survival", survival), ("draft_seconds", drafting)):
        if not (values >= 0).all():  # NaN is not
            raise problem(name, "be in range", "numbers >= 0", values.tolist())
    if not (verify_seconds > 0).all():
        got = verify_seconds.tolist()
        raise problem("verify_seconds", "be in range", "numbers > 0", got)
    lengths = 1 + survival.cumsum(dim=0)  # [K]
    return verify_seconds[0] * lengths / (drafting + verify_seconds[1:])


def bootstrap_interval(
    statistic: Callable[[Int[Tensor, " n"]], float],
    num_prompts: int,
    *,
    generator: torch.Generator | None = None,
    level: float = 0.95,
    resamples: int = 1000,
) -> tuple[float, float]:
    """Return the interval a statistic falls in when the prompts are drawn anew.

    Cycles of one reply are alike, so that the prompt is the unit to resample.

    Args:
        statistic: takes indices [n] into the prompts, with repeats.
        num_prompts: n, >= 1.
        generator: the source of the resamples.
        level: share of resamples inside, in (0, 1).
        resamples: how many, >= 1.

    >>> lengths = torch.tensor([5.0, 5.0, 5.0])
    >>> bootstrap_interval(lambda rows: lengths[rows].mean().item(), 3)
    (5.0, 5.0)
    """
    check_range("num_prompts", num_prompts, 1, integer=True)
    check_range("resamples", resamples, 1, integer=True)
    check_range("level", level, 0.0, 1.0, open_low=True)
    shape = (resamples, num_prompts)
    draws = torch.randint(num_prompts, shape, generator=generator)
    values = torch.tensor([statistic(rows) for rows in draws], dtype=torch.float64)
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values.quantile(edges).tolist()
    return low, high


def _counts(
    num_accepted: Counts, verify_len: Counts, block_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Check the counts; return them as columns [n, 1], and the positions [K]."""
    check_range("block_size", block_size, 1, integer=True)
    accepted = _column("num_accepted", num_accepted)
    verified = _column("verify_len", verify_len)
    sizes = check_shape("num_accepted", accepted, "n")
    check_shape("verify_len", verified, "n", **sizes)
    wrong = (verified < 0) | (verified > block_size)
    if wrong.any():
        found = int(verified[wrong][0])
        raise problem("verify_len", "fit the block", f"0 to {block_size}", found)
    wrong = (accepted < 0) | (accepted > verified)
    if wrong.any():
        where = int(wrong.nonzero()[0])
        expected = f"0 to {int(verified[where])}"
        got = f"{int(accepted[where])} in cycle {where}"
        raise problem("num_accepted", "be within verify_len", expected, got)
    positions = torch.arange(block_size, device=accepted.device)
    return accepted[:, None], verified[:, None], positions


def _column(name: str, counts: Counts) -> Tensor:
    """Return counts as a tensor of integers."""
    if not isinstance(counts, Tensor):
        check_sequence(name, counts)
        for count in counts:
            check_range(name, count, -LARGEST, integer=True)
        counts = torch.tensor([int(count) for count in counts], dtype=torch.long)
    check_tensor(name, counts)
    if counts.dtype not in (torch.int64, torch.int32):
        kind = counts.dtype
        raise problem(name, "hold counts", "integers", kind, error=TypeError)
    return counts


def _share(part: Tensor, whole: Tensor) -> Float[Tensor, " K"]:
    """Return the column sums' ratio; 0 / 0 is NaN, which is what is known then."""
    return part.sum(dim=0).double() / whole.sum(dim=0)  # [K]


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None
