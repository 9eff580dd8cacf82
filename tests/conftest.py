"""What every test shares: an offline machine, sensible threads, shape checks.

Shape checks (jaxtyping with beartype) are switched on by an option in pyproject.toml,
before this file is read. This file switches them off where a test or a doctest shows
what *our own* errors say: with the checks on, a wrong shape or type never gets as far
as our ValueError.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from doctest import DocTest

import jaxtyping
import pytest

# In the environment, so that subprocesses of tests have them too; before torch and
# huggingface_hub are imported, as both read them then.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
threads = max(1, (os.cpu_count() or 1) // workers)
# The least of the two: a worker finds here what the process that began it had set for
# itself alone. Threads that wait sleep, so that workers do not starve each other.
threads = min(threads, int(os.environ.get("OMP_NUM_THREADS") or threads))
os.environ["OMP_NUM_THREADS"] = str(threads)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402

# Again in words: the environment says nothing to a torch that was imported before.
torch.set_num_threads(threads)


# These need the codes that others wrote: `make peers`, in an environment of its own.
collect_ignore = ["peers"]


@contextmanager
def checks_off() -> Iterator[None]:
    """Call annotated functions as they are, as outside pytest."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Switch shape checks off for one test, so that bad input meets our own errors."""
    with checks_off():
        yield


class DoctestsOfErrors:
    """A docstring that shows an error runs without shape checks; the others with."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        test = getattr(item, "dtest", None)
        shows_error = isinstance(test, DocTest) and any(
            example.exc_msg for example in test.examples
        )
        if not shows_error:
            return (yield)
        with checks_off():
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    # As a plugin, since a hook of this file alone would see no file outside tests/.
    config.pluginmanager.register(DoctestsOfErrors())
