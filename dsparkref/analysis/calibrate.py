"""Four ways to read a confidence: as it is, after STS, and two that STS has to beat.

Each is fitted to some records and gives scores for others, which it has not seen.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.analysis.calibration_records import CalibrationRecords
from dsparkref.verify.calibration import apply_sts, fit_sts


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
