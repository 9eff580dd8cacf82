"""What ``python -m dsparkref serve-sim`` does: serve, compare, print, draw."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, Group

from dsparkref.analysis.clock import CURVES, StepClock, made_up_clock, table_clock
from dsparkref.analysis.load import (
    LoadResult,
    Recorded,
    check_load,
    record_cycles,
    simulate_load,
)
from dsparkref.analysis.profile import (
    device_name,
    load_measured,
    measured_devices,
    read_profile,
)
from dsparkref.analysis.report import Report
from dsparkref.analysis.serve import serve_load
from dsparkref.analysis.serving import (
    ALGORITHM_1,
    AUTOREGRESSIVE,
    LAGGED,
    SURVIVAL_THRESHOLD,
    THRESHOLD,
    against_best_fixed,
    best_fixed,
    findings,
    row_of,
    serving_policies,
    serving_rows,
)
from dsparkref.checkpoints.io import Pair
from dsparkref.decode.loop import decode_cycles
from dsparkref.lab.figures import FIGURES
from dsparkref.lab.options import (
    check_file,
    check_sampling,
    write_figure,
    write_numbers,
)
from dsparkref.lab.prompts import evaluation_prompts, in_turn
from dsparkref.lab.serving_figures import serving_figure
from dsparkref.lab.sources import open_pair
from dsparkref.lab.tables import make_table, number, percent
from dsparkref.shapes import check_known, check_range, dtype_name, problem
from dsparkref.verify.policies import Policy

CLOCKS = ("replay", "real")
SHOWN = (AUTOREGRESSIVE, THRESHOLD, ALGORITHM_1, LAGGED)
COLUMNS = ["at once", "best fixed", "autoregr.", *SHOWN[1:]]
# A light load needs fewer requests than a heavy one to be steady.
REQUESTS_PER_PLACE, FEWEST_REQUESTS = 12, 36


@dataclass(frozen=True)
class Load:
    """What is served, whichever clock it runs by."""

    # arrivals per second; inf: all at once
    rate: float = float("inf")
    # evaluation prompts per domain
    prompts: int = 30
    # requests in all; None: as many as make it steady
    requests: int | None = None
    # tokens of each reply; on the real clock its cap
    tokens: int = 64
    # of sampling
    temperature: float = 1.0
    # of arrivals, of sampling and of the replay
    seed: int = 0

    def count(self, concurrency: int) -> int:
        """Return how many requests are served at a concurrency.

        >>> Load().count(1), Load().count(64), Load(requests=5).count(64)
        (36, 768, 5)
        """
        steady = max(FEWEST_REQUESTS, REQUESTS_PER_PLACE * concurrency)
        return steady if self.requests is None else self.requests


def run_serve_sim(
    console: Console,
    load: Load,
    *,
    clock: str = "replay",
    table: str = "cpu-x86_64",
    pair: str | None = None,
    head: str | None = None,
    concurrency: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    fixed: Sequence[int] | None = None,
    threshold: float = SURVIVAL_THRESHOLD,
    padded: bool = False,
    figure_file: Path | None = None,
    json_file: Path | None = None,
) -> Report:
    """Serve a load with every policy and return all numbers.

    ``table`` times a replay; on the real clock only the schedulers plan with it.
    """
    check_file("json", json_file)
    check_file("figure", figure_file, FIGURES)
    check_known("clock", clock, CLOCKS)
    check_sampling(load.temperature, load.seed)
    check_range("threshold", threshold, 0.0, 1.0)
    for places in concurrency:
        check_load(load.rate, places, load.count(places), load.tokens)
    name = pair or os.environ.get("DSPARKREF_PAIR") or "tiny"
    loaded = open_pair(pair, head)
    size = loaded.drafter.block_size
    steps = step_clock(table, size, padded=padded)
    if fixed is None:
        fixed = range(1, size + 1) if clock == "replay" else (size // 2, size)
    for length in fixed:
        check_range("fixed", length, 1, size, integer=True)
    policies = serving_policies(steps.steps_per_second, fixed, threshold=threshold)
    with console.status("") as status:  # silent where the output is no terminal
        prepare = replayed if clock == "replay" else served
        serve = prepare(loaded, load, steps, status.update)
        rows = serving_rows(serve, policies, concurrency, status.update)
    what = f"{name}, {loaded.drafter.head_type}, K = {size}"
    timed = str(steps) if clock == "replay" else real_clock(loaded, str(steps))
    report: Report = {
        "settings": {"clock": clock, "pair": what, "threshold": threshold}
        | asdict(load)
        | {"rate": str(load.rate)},  # JSON has no inf
        "timed_by": timed,
        "rows": rows,
        "against_best_fixed": against_best_fixed(rows),
        "findings": findings(rows),
    }
    for line in serving_text(report):
        console.print(line, soft_wrap=True)
    write_numbers(console, json_file, report)
    if figure_file is not None:
        figure = serving_figure(rows, clock_note(report))
        write_figure(console, figure_file, figure)
    return report


Serve = Callable[[Policy, int], LoadResult]


def replayed(
    pair: Pair, load: Load, clock: StepClock, progress: Callable[[str], None]
) -> Serve:
    """Return the load on the replay's clock: the pair decodes once, untruncated."""
    recorded = record_domains(
        pair,
        load.prompts,
        temperature=load.temperature,
        seed=load.seed,
        progress=progress,
    )

    def serve(policy: Policy, places: int) -> LoadResult:
        return simulate_load(
            recorded,
            clock,
            policy,
            rate=load.rate,
            concurrency=places,
            num_requests=load.count(places),
            tokens=load.tokens,
            seed=load.seed,
        )

    return serve


def served(
    pair: Pair, load: Load, clock: StepClock, progress: Callable[[str], None]
) -> Serve:
    """Return the load on the real clock; ``clock`` is for the schedulers alone."""
    examples = in_turn(evaluation_prompts(pair.target, load.prompts))

    def serve(policy: Policy, places: int) -> LoadResult:
        return serve_load(
            pair.target,
            pair.drafter,
            [examples[i % len(examples)].prompt for i in range(load.count(places))],
            policy,
            rate=load.rate,
            concurrency=places,
            max_new_tokens=load.tokens,
            temperature=load.temperature,
            seed=load.seed,
        )

    return serve


def record_domains(
    pair: Pair,
    num_prompts: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 128,
    progress: Callable[[str], None] = lambda step: None,
) -> Recorded:
    """Decode evaluation prompts untruncated; each domain is a kind of request."""
    kinds = []
    for domain, examples in evaluation_prompts(pair.target, num_prompts).items():
        progress(f"recording {domain}")
        kinds.append(
            [
                trace
                for number, example in enumerate(examples)
                for trace in decode_cycles(
                    pair.target,
                    pair.drafter,
                    example.prompt,
                    max_new_tokens=max_new_tokens,
                    temperature=temperature,
                    generator=seed + number,
                )
            ]
        )
    return record_cycles(*kinds)


def step_clock(table: str, block_size: int, *, padded: bool = False) -> StepClock:
    """Return the clock of a table: a name of data/measured, a file, a made-up curve."""
    if table in CURVES:
        return made_up_clock(table, CURVES[table], block_size=block_size, padded=padded)
    path = Path(table)
    if path.suffix != ".json":
        check_known("table", table, (*CURVES, *measured_devices()))
    profile = read_profile(path) if path.suffix == ".json" else load_measured(table)
    widest = max(point.tokens for point in profile.points)
    if widest < block_size + 1:
        hint = "Profile the pair that is served, with all its tokens."
        rule, expected = "know whole blocks", f"rows of {block_size + 1} tokens"
        raise problem("table", rule, expected, f"up to {widest}", hint)
    return table_clock(profile, padded=padded)


def real_clock(pair: Pair, planned: str) -> str:
    """Say what a real run was timed on, and what its schedulers planned with."""
    where, kind = device_name(pair.target.device), dtype_name(pair.target.dtype)
    return f"this machine, {where}, {kind}; schedulers plan with {planned}"


def clock_note(report: Report) -> str:
    """Say what was served and by which clock; it goes with every table and figure."""
    return f"requests of {report['settings']['pair']}; clock: {report['timed_by']}"


def serving_text(report: Report) -> Iterator[Group | str]:
    """Yield the tables of a report and what they show; each says by which clock."""
    rows, by = report["rows"], clock_note(report)
    for key, what, digits in (
        ("throughput", "throughput, tokens/s", 0),
        ("user_speed", "speed of one user, tokens/s", 0),
        ("budget", "tokens verified per request and step, anchor included", 2),
    ):
        yield make_table(f"{what}\n{by}", COLUMNS, _lines(rows, key, digits))
    lines = [
        [
            str(row["concurrency"]),
            row["best"],
            *(percent(row[name], signed=True) for name in SHOWN),
        ]
        for row in report["against_best_fixed"]
    ]
    title = f"throughput against the best fixed length\n{by}"
    yield make_table(title, COLUMNS, lines)
    yield from (f"- {finding}" for finding in report["findings"])


def _lines(rows: Sequence[Report], key: str, digits: int) -> list[list[str]]:
    lines = []
    for places in sorted({row["concurrency"] for row in rows}):
        best = best_fixed(rows, places)
        length = best["policy"].split()[-1]
        shown = [row_of(rows, name, places)[key] for name in SHOWN]
        cells = [f"{number(best[key], digits)} ({length})"]
        lines.append([str(places), *cells, *(number(value, digits) for value in shown)])
    return lines
