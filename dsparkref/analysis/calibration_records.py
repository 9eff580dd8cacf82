"""Calibration records: what the confidence head said, and what became of the drafts.

A record is one cycle: the confidence logits of its K drafts and how many of them the
verifier kept. It must have been free to keep all of them. A policy that verifies deep
positions only where they look good leaves records that say nothing about the others,
and such cycles are refused.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dsparkref.decode.loop import decode_cycles
from dsparkref.decode.request import Prompt
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.records import CycleTrace
from dsparkref.shapes import check_range, problem
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
    """Return the records of decoded cycles, one list of cycles for each reply.

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
        raise problem("recorded replies", rule, "at least one cycle", "none")
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
    replies: int = 1,
    generator: torch.Generator | int | None = None,
) -> CalibrationRecords:
    """Decode prompts, every cycle verified to its end, and return the records.

    The drafter's own temperatures are put aside: its raw logits are recorded. More
    ``replies`` to each prompt are more records, though not more prompts.
    """
    check_range("replies", replies, 1, integer=True)
    raw, generator = drafter.with_temperatures(None), as_generator(generator)
    decoded = (
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
        for _ in range(replies)
    )
    found = calibration_records(decoded, target.stop_token_ids)
    return replace(found, prompt=found.prompt // replies)


def split_records(
    records: CalibrationRecords,
) -> tuple[CalibrationRecords, CalibrationRecords]:
    """Return a fit and a held-out half: prompts of even and of odd number.

    By prompt, not by cycle: cycles of one reply are alike, and a split between them
    would hold nothing out.
    """
    even = records.prompt % 2 == 0
    return records.where(even), records.where(~even)


def write_records(
    records: CalibrationRecords, path: Path, settings: Mapping[str, Any]
) -> None:
    """Write records and how they were made, as safetensors."""
    columns = {
        "logits": records.logits.float(),
        "num_accepted": records.accepted.sum(dim=1).to(torch.int16),
        "num_counted": records.counted.sum(dim=1).to(torch.int16),
        "prompt": records.prompt.to(torch.int32),
    }
    fresh = path.with_name(f".{path.name}.writing")
    save_file(columns, fresh, metadata={"settings": json.dumps(dict(settings))})
    fresh.replace(path)


def read_records(path: Path) -> tuple[CalibrationRecords, dict[str, Any]]:
    """Read what ``write_records`` wrote: the records, and how they were made.

    Raises:
        FileNotFoundError, ValueError: no such file; something else in it.
    """
    if not path.is_file():
        expected = "a file made by `dsparkref calibrate --records`"
        raise problem("records", "be there", expected, path, "", FileNotFoundError)
    try:
        with safe_open(path, framework="pt") as file:
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            settings = json.loads(file.metadata()["settings"])
        logits = columns["logits"].double()
        before = torch.arange(logits.shape[1])
        accepted = before < columns["num_accepted"][:, None]
        counted = before < columns["num_counted"][:, None]
        prompt = columns["prompt"].long()
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        rule, expected = "be recorded cycles", "what `dsparkref calibrate` writes"
        raise problem("records", rule, expected, f"{path.name} ({error})") from None
    return CalibrationRecords(logits, accepted.double(), counted, prompt), settings


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
