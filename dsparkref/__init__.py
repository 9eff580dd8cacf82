"""dsparkref: block-parallel speculative decoding, to read and to run."""

from importlib import import_module
from typing import Any

from dsparkref.analysis.metrics import (
    conditional_acceptance,
    prefix_survival,
    speedup,
)
from dsparkref.analysis.toy import MarkovWorld
from dsparkref.checkpoints.inspect import describe
from dsparkref.checkpoints.io import (
    Pair,
    load_drafter,
    load_pair,
    load_target,
    new_drafter,
    save_drafter,
)
from dsparkref.decode.batch import BatchDecoder, generate_batch
from dsparkref.decode.loop import autoregressive, decode_cycles, generate
from dsparkref.decode.target import Target
from dsparkref.draft.blocks import aligned_target_logits, supervised_positions
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.spec import DrafterSpec
from dsparkref.records import (
    BlockOutput,
    CycleTrace,
    Generation,
    LossTerms,
    Proposal,
    TrainingOutput,
    Verdict,
)
from dsparkref.train.loss import block_loss
from dsparkref.verify.calibration import (
    apply_sts,
    auroc,
    brier_score,
    expected_calibration_error,
    fit_sts,
)
from dsparkref.verify.confidence import expected_accepted_length, survival
from dsparkref.verify.policies import (
    ConfidenceThreshold,
    FixedLength,
    LaggedPrefixScheduler,
    PrefixScheduler,
)
from dsparkref.verify.rejection import (
    accept_probability,
    accept_rate,
    residual_distribution,
    token_match_block,
    verify_block,
)
from dsparkref.verify.sampling import probabilities
from dsparkref.verify.scheduler import StepsPerSecond, schedule_prefixes

__version__ = "0.1.0"

# These need the extra [train]; they are imported when first used.
_LAZY = {
    "train_drafter": "dsparkref.train.train_drafter",
    "train_target": "dsparkref.train.train_target",
}

__all__ = [
    # the pair
    "Target", "Drafter", "DrafterSpec", "Pair",
    "load_target", "load_drafter", "load_pair", "new_drafter", "save_drafter",
    "describe",
    # decoding
    "generate", "decode_cycles", "autoregressive", "generate_batch", "BatchDecoder",
    "Generation", "CycleTrace", "Proposal", "Verdict", "BlockOutput",
    # verifying
    "probabilities", "accept_probability", "accept_rate", "residual_distribution",
    "verify_block", "token_match_block",
    "survival", "expected_accepted_length",
    "expected_calibration_error", "brier_score", "auroc", "fit_sts", "apply_sts",
    # how many drafts to verify
    "FixedLength", "ConfidenceThreshold", "PrefixScheduler", "LaggedPrefixScheduler",
    "StepsPerSecond", "schedule_prefixes",
    # training
    "TrainingOutput", "LossTerms", "supervised_positions", "aligned_target_logits",
    "block_loss", "train_drafter", "train_target",
    # measuring
    "conditional_acceptance", "prefix_survival", "speedup", "MarkovWorld",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dsparkref' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        hint = 'pip install "dsparkref[train]"'
        raise ImportError(f"{name} needs {error.name}: {hint}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
