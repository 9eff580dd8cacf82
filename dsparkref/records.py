"""What one part hands to the next: frozen records, the shape above each field."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor


@dataclass(frozen=True)
class BlockOutput:
    """What a drafter computes when the block's previous tokens are given to it."""

    # [B, K, D], after the backbone's final norm
    hidden: Tensor
    # [B, K, V], U_k: the parallel draft, before any head
    base_logits: Tensor
    # [B, K, V], U_k + B_k: corrected by the head
    draft_logits: Tensor
    # [B, K], before the sigmoid; None where the drafter has no confidence head
    confidence_logits: Tensor | None


@dataclass(frozen=True)
class TrainingOutput:
    """What a drafter computes for N training blocks per sequence."""

    # [B, N, K, V]
    base_logits: Tensor
    # [B, N, K, V]
    draft_logits: Tensor
    # [B, N, K]; None where the drafter has no confidence head
    confidence_logits: Tensor | None
    # [B, N, K], ids; meaningful where supervised
    labels: Tensor


@dataclass(frozen=True)
class LossTerms:
    """The training loss and its parts, scalars; ``total`` is the weighted sum."""

    # scalar, the one to call backward() on
    total: Tensor
    # scalar, cross entropy (with Domino's base term mixed in)
    ce: Tensor
    # scalar, ||p_d - p_t||_1, which is twice the total variation distance
    tv: Tensor
    # scalar, binary cross entropy of the confidence; 0 without a confidence head
    confidence: Tensor


@dataclass(frozen=True)
class Proposal:
    """One drafted block for each of B requests, as a drafter hands it to the verifier.

    ``propose`` drafts for one request: there B is 1.
    """

    # [B, K], ids
    tokens: Tensor
    # [B, K, V], the law each token was drawn from, float32 or wider
    p_draft: Tensor
    # [B, K, V], corrected, before temperature
    draft_logits: Tensor | None = None
    # [B, K, V], before the head
    base_logits: Tensor | None = None
    # [B, K, D]
    hidden: Tensor | None = None
    # [B, K] in [0, 1], conditional on all earlier drafts accepted
    confidence: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """What a verifier decides for each row of a batch."""

    # [B], 0..verify_len
    num_accepted: Tensor
    # [B], ids: the replacement after a rejection, or the bonus token
    next_token: Tensor


@dataclass(frozen=True)
class CycleTrace:
    """One cycle of draft, verify, commit."""

    # 0-based count of cycles
    index: int
    # tokens committed before the anchor (prompt included)
    context_len: int
    # id of the token the block starts from
    anchor: int
    # K ids
    drafts: list[int]
    # K numbers in [0, 1], or None without a confidence head
    confidence: list[float] | None
    # drafts handed to the target, 0..K
    verify_len: int
    # drafts among `emitted`
    num_accepted: int
    # id of the replacement or bonus; None where a stop token or the cap cut it off
    next_token: int | None
    # the ids this cycle added and kept
    emitted: list[int]
    # seconds; in a batch those of the whole step, the same for all its requests
    draft_seconds: float
    # seconds; likewise
    verify_seconds: float
    # the tables below are kept only with keep_tensors=True
    proposal: Proposal | None = None
    # [K, V]
    p_draft: Tensor | None = None
    # [verify_len + 1, V]
    p_target: Tensor | None = None
    # [verify_len + 1], in [0, 1)
    uniforms: Tensor | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Generation:
    """The outcome of one request."""

    # new ids only, the stop token included
    tokens: list[int]
    # "stop" or "length"
    finish_reason: str
    # empty for autoregressive decoding
    cycles: Sequence[CycleTrace]

    @property
    def accepted_length(self) -> float | None:
        """Tokens per cycle, bonus included (the paper's tau); None without cycles."""
        if not self.cycles:
            return None
        return fmean(len(cycle.emitted) for cycle in self.cycles)
