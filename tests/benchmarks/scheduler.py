"""How long scheduling takes: 1,024 requests of 15 drafts, on one core.

    python tests/benchmarks/scheduler.py

A benchmark, not a test. It counts the core's own time, which others on the machine do
not change much, and exits with 1 where a median is 10 ms or more.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from dsparkref import (
    LaggedPrefixScheduler,
    PrefixScheduler,
    StepsPerSecond,
    schedule_prefixes,
    survival,
)

REQUESTS, BLOCK_SIZE, REPEATS, LIMIT_MS = 1024, 15, 200, 10.0


def main() -> int:
    """Time each scheduler; return 0 if all keep the limit."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    confidence = 0.4 + 0.6 * torch.rand(REQUESTS, BLOCK_SIZE, generator=generator)
    chances = survival(confidence)
    sizes = range(REQUESTS, REQUESTS * (BLOCK_SIZE + 1) + 1, 64)
    table = StepsPerSecond({size: 1 / (0.01 + 1e-6 * size) for size in sizes})
    lagged = LaggedPrefixScheduler(table).start()

    def with_policy(policy: PrefixScheduler | LaggedPrefixScheduler) -> Callable:
        return lambda: policy.verify_lengths(confidence, block_size=BLOCK_SIZE)

    runs = {
        "schedule_prefixes": lambda: schedule_prefixes(chances, table),
        "without the stop": lambda: schedule_prefixes(chances, table, early_stop=False),
        "PrefixScheduler": with_policy(PrefixScheduler(table)),
        "LaggedPrefixScheduler": with_policy(lagged),
    }
    print(f"{REQUESTS} requests, K = {BLOCK_SIZE}, 1 thread, median of {REPEATS}")
    medians = []
    for name, run in runs.items():
        medians.append(median_ms(run))
        print(f"{name:<24}{medians[-1]:8.2f} ms")
    return int(max(medians) >= LIMIT_MS)


def median_ms(run: Callable) -> float:
    """Return the median milliseconds of a call; ten go before to warm up."""
    seconds = []
    for _ in range(10 + REPEATS):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return 1000 * statistics.median(seconds[10:])


if __name__ == "__main__":
    sys.exit(main())
