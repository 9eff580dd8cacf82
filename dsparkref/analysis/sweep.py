"""What a confidence threshold buys: verified, kept and wasted drafts per cycle.

Two rates of acceptance are in use for this, and they tell different stories. Kept
drafts over verified drafts is how good the verified drafts were. The paper's Figure 5
counts the token the target adds as well: (kept + 1) / (verified + 1), which tends to 1
as a threshold prunes everything. Both are named here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dsparkref.analysis import metrics
from dsparkref.analysis.calibration_records import CalibrationRecords
from dsparkref.analysis.evaluate import evaluate_drafter
from dsparkref.analysis.report import Report, with_all
from dsparkref.decode.request import Prompt
from dsparkref.decode.target import Target
from dsparkref.records import CycleTrace
from dsparkref.shapes import problem
from dsparkref.verify.inputs import check_lengths
from dsparkref.verify.policies import ConfidenceThreshold


def threshold_sweep(
    target: Target,
    drafter: Any,
    prompts: Mapping[str, Sequence[Prompt]],
    thresholds: Sequence[float],
    *,
    on: str = "conditional",
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda step: None,
) -> list[Report]:
    """Decode every domain at every threshold; return one row for each pair.

    Args:
        target, drafter: a pair; the drafter has a confidence head.
        prompts: domain -> prompts as ids.
        thresholds: in [0, 1]; 0 verifies everything.
        on: "conditional" or "survival", as in ``ConfidenceThreshold``.
        progress: called with a few words before each step.

    Returns:
        Rows with ``threshold``, ``domain`` ("all" for their sum) and what
        ``pruning_rates`` says, domains within thresholds.
    """
    if not prompts:
        raise problem("prompts", "name domains", "at least one", "none")
    rows = []
    for threshold in thresholds:
        policy = ConfidenceThreshold(threshold, on=on)
        by_domain = {}
        for domain, found in prompts.items():
            progress(f"threshold {threshold:g} on {domain}")
            by_domain[domain] = evaluate_drafter(
                target,
                drafter,
                found,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                generator=seed,
                policy=policy,
            )
        for domain, evaluation in with_all(by_domain).items():
            row = {"threshold": float(threshold), "domain": domain}
            rows.append(row | pruning_rates(evaluation.cycles))
    return rows


def pruning_rates(cycles: Sequence[CycleTrace]) -> Report:
    """Return what the cycles verified and kept, per cycle and as rates.

    ``verified`` = ``accepted`` + ``rejected`` drafts per cycle; rejected is all that
    was verified in vain, also behind the first rejection. Drafts behind the end of
    the reply count as neither (``metrics.observations``). ``acceptance`` is kept over
    verified; ``acceptance_with_bonus`` counts the target's own token in both. None
    where nothing was verified, or no cycle ran.

    >>> def cycle(num_accepted, verify_len):
    ...     emitted = [7] * (num_accepted + 1)
    ...     return CycleTrace(
    ...         0, 9, 1, [7] * 4, None, verify_len, num_accepted, 7, emitted, 0.0, 0.0
    ...     )
    >>> found = pruning_rates([cycle(2, 3), cycle(0, 1)])
    >>> found["verified"], found["accepted"], found["rejected"]
    (2.0, 1.0, 1.0)
    >>> found["acceptance"], round(found["acceptance_with_bonus"], 3)  # 2/4, 4/6
    (0.5, 0.667)
    """
    accepted, verified = (int(total.sum()) for total in metrics.observations(cycles))
    bonus = sum(cycle.next_token is not None for cycle in cycles)
    tokens = sum(len(cycle.emitted) for cycle in cycles)
    return _rates(len(cycles), accepted, verified, bonus, tokens)


def replayed_rates(
    records: CalibrationRecords, verify_len: Int[Tensor, " n"]
) -> Report:
    """Return what ``pruning_rates`` would say, had each cycle verified so much.

    A cycle whose verifier kept n of all its drafts keeps min(n, l) of the first l: no
    decoding is needed to try a policy on records. What a replay cannot know is that a
    shorter cycle lets the next one begin earlier, on another block. A stop token
    drafted in the last place is not known as one.

    Args:
        records: n cycles, verified to the end.
        verify_len: [n], 0..K, such as a policy's ``verify_lengths``.

    >>> records = CalibrationRecords(
    ...     logits=torch.zeros(2, 3),
    ...     accepted=torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
    ...     counted=torch.ones(2, 3, dtype=torch.bool),
    ...     prompt=torch.tensor([0, 1]),
    ... )
    >>> found = replayed_rates(records, torch.tensor([1, 2]))
    >>> found["verified"], found["accepted"], found["accepted_length"]
    (1.5, 1.0, 2.0)
    """
    block_size = records.logits.shape[1]
    length = check_lengths(verify_len, len(records), block_size)
    counted = records.counted.sum(dim=1)
    verified = torch.minimum(length, counted)
    accepted = torch.minimum(records.accepted.sum(dim=1).long(), verified)
    ended = (accepted == counted) & (counted < block_size)  # by a stop: no bonus
    kept, bonus = int(accepted.sum()), int((~ended).sum())
    return _rates(len(records), kept, int(verified.sum()), bonus, kept + bonus)


def _rates(
    cycles: int, accepted: int, verified: int, bonus: int, tokens: int
) -> Report:
    def ratio(part: float, whole: float) -> float | None:
        return part / whole if whole else None

    return {
        "cycles": cycles,
        "verified": ratio(verified, cycles),
        "accepted": ratio(accepted, cycles),
        "rejected": ratio(verified - accepted, cycles),
        "acceptance": ratio(accepted, verified),
        "acceptance_with_bonus": ratio(accepted + bonus, verified + bonus),
        "accepted_length": ratio(tokens, cycles),
    }
