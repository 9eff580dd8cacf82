"""Calibration records from real decoding, and four ways to read a confidence.

A record is one cycle: the confidence logits of its K drafts and how many of them the
verifier kept. It must have been free to keep all of them. A policy that verifies deep
positions only where they look good leaves records that say nothing about the others,
and such cycles are refused.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dsparkref.decode.loop import decode_cycles
from dsparkref.decode.request import Prompt
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.records import CycleTrace
from dsparkref.shapes import problem
from dsparkref.verify.calibration import apply_sts, fit_sts
from dsparkref.verify.sampling import as_generator

# A float32 confidence that was rounded to 1 was within this of it.
ROUNDING = 2.0**-24


@dataclass(frozen=True)
class CalibrationRecords:
    """What the confidence head said and what became of it, cycle by cycle."""

    # [n, K], float64, before the sigmoid, temperature 1
    logits: Tensor
    # [n, K], 0 or 1: draft k and all before it were kept
    accepted: Tensor
    # [n, K], False behind a drafted stop token: no reply ever gets there
    counted: Tensor
    # [n], number of the prompt
    prompt: Tensor

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def reached(self) -> Bool[Tensor, "n K"]:
        """Where a conditional confidence has an outcome: all before k were kept."""
        before = torch.ones_like(self.accepted)
        before[:, 1:] = self.accepted[:, :-1]
        return (before == 1) & self.counted

    def where(self, chosen: Bool[Tensor, " n"]) -> "CalibrationRecords":
        """Return some of the records."""
        return CalibrationRecords(*(column[chosen] for column in vars(self).values()))


def calibration_records(
    replies: Iterable[Iterable[CycleTrace]], stop_token_ids: Sequence[int] = ()
) -> CalibrationRecords:
    """Return the records of decoded cycles, one list of cycles for each prompt.

    The cycles must come from ``decode_cycles(..., keep_tensors=True)`` without a
    policy, by a drafter without temperatures. What the verifier decided counts, also
    where the cap then cut the reply. Drafts behind a drafted stop token do not count,
    whether it was kept or not: to leave them out only where it was kept would be a
    selection by outcome.

    Raises:
        ValueError: a cycle that was truncated, or that tells no confidence or no
            verdict; no cycle at all.
    """
    logits, accepted, counted, prompt = [], [], [], []
    for number, cycles in enumerate(replies):
        for cycle in cycles:
            confidence, num_accepted = _outcome(cycle)
            stop = next(
                (k for k, token in enumerate(cycle.drafts) if token in stop_token_ids),
                len(cycle.drafts),
            )
            position = torch.arange(len(cycle.drafts))
            logits.append(confidence.logit(eps=ROUNDING))
            accepted.append((position < num_accepted).double())
            counted.append(position <= stop)
            prompt.append(number)
    if not logits:
        rule = "hold cycles to calibrate on"
        raise problem("replies", rule, "at least one cycle", "none")
    return CalibrationRecords(
        torch.stack(logits),
        torch.stack(accepted),
        torch.stack(counted),
        torch.tensor(prompt),
    )


def gather_records(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    generator: torch.Generator | int | None = None,
) -> CalibrationRecords:
    """Decode prompts, every cycle verified to its end, and return the records.

    The drafter's own temperatures are put aside: its raw logits are recorded.
    """
    raw, generator = drafter.with_temperatures(None), as_generator(generator)
    replies = (
        decode_cycles(
            target,
            raw,
            prompt,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            generator=generator,
            keep_tensors=True,
        )
        for prompt in prompts
    )
    return calibration_records(replies, target.stop_token_ids)


def split_records(
    records: CalibrationRecords,
) -> tuple[CalibrationRecords, CalibrationRecords]:
    """Return a fit and a held-out half: prompts of even and of odd number.

    By prompt, not by cycle: cycles of one reply are alike, and a split between them
    would hold nothing out.
    """
    even = records.prompt % 2 == 0
    return records.where(even), records.where(~even)


def fitted_temperatures(records: CalibrationRecords) -> Float[Tensor, " K"]:
    """Return the temperatures that ``fit_sts`` finds in records."""
    return fit_sts(records.logits, records.accepted, counted=records.counted)


Calibrator = Callable[[CalibrationRecords, CalibrationRecords], Float[Tensor, "m K"]]


def raw_scores(
    fit: CalibrationRecords, held_out: CalibrationRecords
) -> Float[Tensor, "m K"]:
    """Return the confidence as the head says it."""
    return torch.sigmoid(held_out.logits)


def sts_scores(
    fit: CalibrationRecords, held_out: CalibrationRecords
) -> Float[Tensor, "m K"]:
    """Return it after Sequential Temperature Scaling: K parameters."""
    return apply_sts(held_out.logits, fitted_temperatures(fit))


def constant_scores(
    fit: CalibrationRecords, held_out: CalibrationRecords
) -> Float[Tensor, "m K"]:
    """Return each position's mean acceptance, whatever the head says: K parameters.

    Well calibrated and blind: what a head has to beat.
    """
    return _by_position(
        fit, held_out, lambda logits, kept, wanted: kept.mean().expand(len(wanted))
    )


def isotonic_scores(
    fit: CalibrationRecords, held_out: CalibrationRecords
) -> Float[Tensor, "m K"]:
    """Return the rising step function that fits best, per position (scikit-learn).

    Raises:
        ImportError: scikit-learn, of the extra [train], is not installed.
    """
    try:
        from sklearn.isotonic import IsotonicRegression
    except ModuleNotFoundError as error:
        hint = 'pip install "dsparkref[train]"'
        raise ImportError(f"isotonic_scores needs scikit-learn: {hint}") from error

    def fitted(logits: Tensor, kept: Tensor, wanted: Tensor) -> Tensor:
        model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        model.fit(logits.numpy(), kept.numpy())
        return torch.from_numpy(model.predict(wanted.numpy()))

    return _by_position(fit, held_out, fitted)


CALIBRATORS: dict[str, Calibrator] = {
    "raw": raw_scores,
    "sts": sts_scores,
    "constant": constant_scores,
    "isotonic": isotonic_scores,
}


def _by_position(
    fit: CalibrationRecords,
    held_out: CalibrationRecords,
    fitted: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Float[Tensor, "m K"]:
    """Fit each position where it was reached; one that never was keeps its score."""
    scores = raw_scores(fit, held_out)
    for k in range(scores.shape[1]):
        rows = fit.reached[:, k]
        if rows.any():
            records = fit.logits[rows, k], fit.accepted[rows, k]
            scores[:, k] = fitted(*records, held_out.logits[:, k])
    return scores


def _outcome(cycle: CycleTrace) -> tuple[Float[Tensor, " K"], int]:
    """Return a cycle's confidence and how many drafts its verifier kept."""
    size = len(cycle.drafts)
    if cycle.verify_len < size:
        hint = "Gather records with policy=None."
        rule, expected = "be verified to the end", f"{size} drafts verified"
        got = f"{cycle.verify_len} in cycle {cycle.index}"
        raise problem("cycles", rule, expected, got, hint)
    if cycle.confidence is None:
        rule, expected = "come from a drafter with a confidence head", "K numbers"
        raise problem("cycles", rule, expected, None)
    if cycle.verdict is None:
        hint = "Decode with keep_tensors=True."
        raise problem("cycles", "hold their verdict", "a Verdict", None, hint)
    confidence = torch.tensor(cycle.confidence, dtype=torch.float64)
    return confidence, int(cycle.verdict.num_accepted)
