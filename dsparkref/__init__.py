"""dsparkref: block-parallel speculative decoding, to read and to run."""

from importlib import import_module
from typing import Any

from dsparkref.checkpoints.io import (
    Pair,
    load_drafter,
    load_pair,
    load_target,
    new_drafter,
    save_drafter,
)
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
from dsparkref.verify.confidence import expected_accepted_length, survival
from dsparkref.verify.rejection import (
    accept_probability,
    accept_rate,
    residual_distribution,
    token_match_block,
    verify_block,
)
from dsparkref.verify.sampling import probabilities
from dsparkref.verify.scheduler import ConfidenceThreshold, FixedLength

__version__ = "0.1.0"
