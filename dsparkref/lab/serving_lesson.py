"""What notebook 11 serves: recorded cycles as requests, and every policy under load."""

from collections.abc import Sequence

import torch

from dsparkref.analysis.clock import CURVES, StepClock, made_up_clock, table_clock
from dsparkref.analysis.load import LoadResult, Recorded, simulate_load
from dsparkref.analysis.profile import Profile, load_measured
from dsparkref.analysis.report import Report
from dsparkref.analysis.serving import serving_policies, serving_rows
from dsparkref.checkpoints.io import Pair
from dsparkref.lab.confidence import confidence_records
from dsparkref.verify.policies import Policy

# Small enough for a lesson, and steady: the last ones to leave do not weigh much.
REQUESTS_PER_PLACE, FEWEST_REQUESTS, TOKENS = 6, 12, 40


def recorded_load(pair: Pair) -> Recorded:
    """Return cycles to replay, by domain; those with a drafted stop token are left out.

    The tiny pair's were recorded before, so that every machine replays the same ones.
    """
    records, domain = confidence_records(pair)
    whole = records.counted.all(dim=1)
    return Recorded(
        confidence=torch.sigmoid(records.logits[whole]),
        num_accepted=records.accepted[whole].sum(dim=1).long(),
        block_size=records.logits.shape[1],
        kind=domain[whole].long(),
    )


def clocks(block_size: int) -> dict[str, StepClock]:
    """Return the measured clock, and two made-up ones."""
    made_up = {
        name: made_up_clock(name, curve, block_size=block_size)
        for name, curve in CURVES.items()
    }
    return {"measured": table_clock(load_measured()), **made_up}


def served(
    recorded: Recorded, clock: StepClock, policy: Policy, places: int
) -> LoadResult:
    """Serve a load that always fills its places."""
    return simulate_load(
        recorded,
        clock,
        policy,
        rate=float("inf"),
        concurrency=places,
        num_requests=max(FEWEST_REQUESTS, REQUESTS_PER_PLACE * places),
        tokens=TOKENS,
    )


def compared(
    recorded: Recorded, clock: StepClock, loads: Sequence[int]
) -> list[Report]:
    """Serve every load with every policy, each fixed length among them."""
    lengths = range(1, recorded.block_size + 1)
    policies = serving_policies(clock.steps_per_second, lengths)
    return serving_rows(
        lambda policy, places: served(recorded, clock, policy, places), policies, loads
    )


def step_shares(profile: Profile, loads: Sequence[int]) -> dict[str, list[float]]:
    """Return what a step that verifies all drafts is spent on, load by load."""
    shares: dict[str, list[float]] = {
        "draft pass": [],
        "target, one token": [],
        "target, the drafts": [],
    }
    for users in loads:
        one, *_, full = profile.at(users)
        step = full.draft_seconds + full.verify_seconds
        drafts = full.verify_seconds - one.verify_seconds
        parts = (full.draft_seconds, one.verify_seconds, drafts)
        for name, seconds in zip(shares, parts, strict=True):
            shares[name].append(seconds / step)
    return shares
