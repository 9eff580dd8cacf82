"""T_draft, T_verify and SPS(B) of a pair, measured on this machine.

A step of R requests drafts one block for each and hands R rows of n tokens to the
target, B = R n tokens in all. How long that takes depends on how B is made up (one row
of 64 tokens is not 64 rows of one), so the table keeps rows and tokens apart, and a
``StepsPerSecond`` is asked for at a number of rows.
"""

import copy
import json
import math
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from dsparkref.checkpoints.files import data_folder, write_json
from dsparkref.decode.target import Target
from dsparkref.shapes import check_known, check_range, dtype_name, problem
from dsparkref.verify.scheduler import StepsPerSecond

# New features that a drafter takes in per cycle; a few, as in decoding.
NEW_ROWS = 4


@dataclass(frozen=True)
class Point:
    """One measured step: the median over its repeats."""

    # requests, R
    rows: int
    # tokens of each row, the anchor included, n
    tokens: int
    # seconds of one draft pass for the R requests
    draft_seconds: float
    # seconds of one target pass over R x n tokens, commit not included
    verify_seconds: float


@dataclass(frozen=True)
class Profile:
    """A measured table, and all that it was measured with."""

    # name of the processor or the GPU
    device: str
    # threads of torch; 0 on a GPU
    threads: int
    # of the target's weights
    dtype: str
    # target and drafter, as the caller names them
    model: str
    # day of the measurement, UTC, ISO 8601
    date: str
    # committed tokens before the step, in each row
    context: int
    # repeats that the median is taken over
    repeats: int
    points: tuple[Point, ...]
    # most bytes that were in use on the GPU; None: the device does not tell
    peak_bytes: int | None = None
    # how the tiny pair decoded there beside a CPU; empty where it was not run
    check: str = ""

    def __str__(self) -> str:
        """Say in a line what was measured, where and when."""
        where = f"{self.device}, {self.dtype}, {self.threads} threads"
        return f"{self.model} on {where}, measured {self.date}"

    def steps_per_second(self, rows: int) -> StepsPerSecond:
        """Return SPS(B) for ``rows`` requests: 1 / (T_draft + T_verify), B = rows n.

        Raises:
            ValueError: as ``at``.
        """
        return StepsPerSecond(
            {
                rows * point.tokens: 1 / (point.draft_seconds + point.verify_seconds)
                for point in self.at(rows)
            }
        )

    def at(self, rows: int) -> list[Point]:
        """Return the points of ``rows`` requests, by rising tokens.

        Between two measured numbers of requests, seconds run on a straight line.

        Raises:
            ValueError: fewer or more requests than were measured.
        """
        known = sorted({point.rows for point in self.points})
        if not known[0] <= rows <= known[-1]:
            raise problem("rows", "be measured", f"{known[0]} to {known[-1]}", rows)
        low, high = (
            max(n for n in known if n <= rows),
            min(n for n in known if n >= rows),
        )
        part = (rows - low) / max(high - low, 1)

        def between(below: float, above: float) -> float:
            return below + part * (above - below)

        lower, upper = self._by_tokens(low), self._by_tokens(high)
        return [
            Point(
                rows,
                tokens,
                between(lower[tokens].draft_seconds, upper[tokens].draft_seconds),
                between(lower[tokens].verify_seconds, upper[tokens].verify_seconds),
            )
            for tokens in sorted(lower.keys() & upper.keys())
        ]

    def _by_tokens(self, rows: int) -> dict[int, Point]:
        return {point.tokens: point for point in self.points if point.rows == rows}


def profile_pair(
    target: Target,
    drafter: Any,
    *,
    rows: Sequence[int] = (1,),
    tokens: Sequence[int] = (1, 2, 3, 4, 6, 8),
    context: int = 64,
    repeats: int = 9,
    model: str = "",
    progress: Callable[[str], None] = lambda step: None,
) -> Profile:
    """Measure draft and verify passes, and return the table.

    Args:
        target, drafter: a pair. More than one row needs ``drafter.propose_batch``.
        rows: numbers of requests, each >= 1.
        tokens: tokens per row, anchor included, each >= 1; the largest one bounds
            what a scheduler may ask for.
        context: committed tokens before the step, >= 1, that leave room for the step
            in the target's context.
        repeats: timed passes per point, after two that are not counted.
        model: a name for the record.
        progress: called with a few words before each point.
    """
    for name, values in (("rows", rows), ("tokens", tokens)):
        if not values:
            raise problem(name, "hold numbers", "at least one", "none")
        for value in values:
            check_range(name, value, 1, integer=True)
    longest = (target.max_length or math.inf) - max(NEW_ROWS, *tokens)
    check_range("context", context, 1, longest, integer=True)
    check_range("repeats", repeats, 1, integer=True)
    points = []
    if target.device.type == "cuda":  # what is in use now still counts
        torch.cuda.reset_peak_memory_stats(target.device)
    for count in sorted(set(rows)):
        progress(f"drafting for {count} requests")
        draft = time_step(_draft_pass(target, drafter, count, context), target, repeats)
        for number in sorted(set(tokens)):
            progress(f"verifying {count} x {number} tokens")
            step = _verify_pass(target, count, number, context)
            points.append(Point(count, number, draft, time_step(step, target, repeats)))
    return Profile(
        device=device_name(target.device),
        threads=0 if target.device.type == "cuda" else torch.get_num_threads(),
        dtype=dtype_name(target.dtype),
        model=model,
        date=datetime.now(UTC).date().isoformat(),
        context=context,
        repeats=repeats,
        points=tuple(points),
        peak_bytes=_peak_bytes(target.device),
    )


def _peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def device_name(device: torch.device) -> str:
    """Return what a reader knows the device by."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})"


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON."""
    write_json(path, asdict(profile))


def read_profile(path: Path) -> Profile:
    """Read a profile that ``write_profile`` wrote.

    Raises:
        FileNotFoundError, ValueError: no such file; something else in it.
    """
    if not path.is_file():
        expected, error = "a file made by `dsparkref profile`", FileNotFoundError
        raise problem("profile", "be there", expected, path, "", error)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        points = tuple(Point(**point) for point in fields.pop("points"))
        return Profile(**fields, points=points)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        rule, expected = "be a measured table", "what `dsparkref profile` writes"
        raise problem("profile", rule, expected, f"{path.name} ({error})") from None


def load_measured(device: str = "cpu-x86_64") -> Profile:
    """Return a table that ships in ``data/measured/``, by its device's name.

    >>> shipped = load_measured()
    >>> shipped.model, shipped.steps_per_second(rows=64).capacity
    ('tiny, markov, K = 7', 512)
    """
    check_known("device", device, measured_devices())
    return read_profile(data_folder() / "measured" / f"{device}.json")


def measured_devices() -> tuple[str, ...]:
    """Return the devices whose tables ship in ``data/measured/``."""
    folder = data_folder() / "measured"
    return tuple(path.stem for path in sorted(folder.glob("*.json")))


# Each timed step gets its own copy of what it would change; the copy is not timed.
Step = Callable[[], Callable[[], object]]


@torch.no_grad()
def _verify_pass(target: Target, rows: int, tokens: int, context: int) -> Step:
    """All rows hold the same context: it is read once, and its cache repeated."""
    cache = DynamicCache()
    ids = random_ids(target, rows, context + tokens)
    target.forward(ids[:1, :context], cache=cache, last_logits=1)
    cache.batch_repeat_interleave(rows)

    def prepare() -> Callable[[], object]:
        own = copy.deepcopy(cache)
        return lambda: target.forward(ids[:, context:], cache=own)

    return prepare


@torch.no_grad()
def _draft_pass(target: Target, drafter: Any, rows: int, context: int) -> Step:
    """One row is ``propose``; several share the passes of ``propose_batch``."""
    if rows > 1 and not hasattr(drafter, "propose_batch"):
        rule, got = "draft for several requests at once", type(drafter).__name__
        raise problem("drafter", rule, "a method propose_batch", got)
    ids = random_ids(target, 1, context + NEW_ROWS)
    hidden = target.forward(ids, drafter.spec.target_layer_ids).hidden
    held, new = hidden[:, :context], hidden[:, context:]
    anchor = ids[0, -1:]
    cache = drafter.new_cache()
    drafter.propose(held, anchor, cache=cache)

    def prepare() -> Callable[[], object]:
        own = [copy.deepcopy(cache) for _ in range(rows)]
        if rows == 1:
            return lambda: drafter.propose(new, anchor, cache=own[0])
        many = anchor.expand(rows)
        return lambda: drafter.propose_batch([new] * rows, many, caches=own)

    return prepare


@torch.no_grad()
def time_step(
    step: Step,
    target: Target,
    repeats: int,
    statistic: Callable[[list[float]], float] = statistics.median,
) -> float:
    """Return the seconds of a step; two passes go before the repeats to warm up."""
    seconds = []
    for _ in range(2 + repeats):
        run = step()
        start = target.clock()
        run()
        seconds.append(target.clock() - start)
    return statistic(seconds[2:])


def random_ids(target: Target, rows: int, length: int) -> torch.Tensor:
    """Return random ids; their values do not matter for the time."""
    generator = torch.Generator().manual_seed(0)
    shape = (rows, length)
    ids = torch.randint(target.vocab_size, shape, generator=generator)
    return ids.to(target.device)
