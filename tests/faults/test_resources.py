"""A long life in one process: memory and the work per token stay what they were.

Nothing here is timed. Work is counted in passes and in the tokens they read; memory is
what Python and PyTorch hold and what the process has, after a warm-up.
"""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import ScriptedDrafter, random_ids, tiny_drafter, tiny_target
from transformers import DynamicCache

from dsparkref import (
    BatchDecoder,
    LaggedPrefixScheduler,
    StepsPerSecond,
    generate,
)

pytestmark = pytest.mark.usefixtures("no_shape_checks")
STATM = Path("/proc/self/statm")
MIB = 2**20


def monotonous_target(**options):
    """A target that says 0 for ever, whatever it has read."""
    target = tiny_target(num_hidden_layers=1, **options)
    with torch.no_grad():
        target.model.get_output_embeddings().weight.zero_()
    return target


def agreeing_drafter(target, head, block_size):
    """A drafter that says the same: its head adds nothing to the target's zeros."""
    drafter = tiny_drafter(
        target, head, block_size=block_size, target_layer_ids=(-1,), num_layers=1
    )
    with torch.no_grad():
        for name, weight in drafter.head.named_parameters():
            if "bias_proj" in name:
                weight.zero_()
    return drafter


class Watch:
    """What is held, look by look."""

    def __init__(self) -> None:
        self.tensors: list[int] = []  # bytes
        self.blocks: list[int] = []  # of Python's own memory
        self.pages: list[int] = []  # bytes of the process, where somebody says

    def look(self) -> None:
        gc.collect()
        found = {}
        for item in gc.get_objects():
            if type(item) not in (torch.Tensor, torch.nn.Parameter):
                continue
            if item.layout == torch.strided:  # a sparse one has no storage of its own
                storage = item.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        self.tensors.append(sum(found.values()))
        self.blocks.append(sys.getallocatedblocks())
        if STATM.exists():
            pages = int(STATM.read_text().split()[1])
            self.pages.append(pages * os.sysconf("SC_PAGE_SIZE"))

    def check_flat(self) -> None:
        assert self.tensors[-1] == self.tensors[0]
        assert self.blocks[-1] - self.blocks[0] < 2000, self.blocks
        if self.pages:
            assert self.pages[-1] - self.pages[0] < 20 * MIB, self.pages


def work_of(target):
    """Return a list of the tokens that each pass reads; it grows as they come."""
    read = []

    def note(_, args):
        read.append(args[0].numel())

    target.model.register_forward_pre_hook(note)
    return read


@pytest.mark.slow
def test_20_000_tokens_leave_nothing_behind():
    """100 replies of 200 tokens; every fifth has half its drafts rejected."""
    target = monotonous_target()
    drafters = [agreeing_drafter(target, head, 15) for head in ("dflash", "rnn")]
    drafters += [*drafters, ScriptedDrafter([0] * 300, 3, block_size=7)]
    watch, read, work = Watch(), work_of(target), []
    for number in range(100):
        read.clear()
        drafter = drafters[number % 5]
        if number % 5 == 4:
            drafter.calls.clear()
        reply = generate(target, drafter, [0] * 12, max_new_tokens=200)
        assert reply.tokens == [0] * 200
        work.append((number % 5, len(read), sum(read)))
        del reply
        if number % 10 == 9:
            watch.look()
    assert len(set(work)) == 5  # the same request costs the same, first and last
    assert {passes for _, passes, _ in work} == {1 + 13, 1 + 50}
    watch.check_flat()


@pytest.mark.slow
def test_2_000_short_requests_come_and_go():
    """Through one decoder, at most 16 at a time; a scheduler with a memory on top."""
    target = monotonous_target()
    drafter = agreeing_drafter(target, "rnn", 4)
    policy = LaggedPrefixScheduler(StepsPerSecond({1: 100.0, 40: 60.0, 90: 20.0}))
    decoder = BatchDecoder(target, drafter, policy=policy, temperature=1.0)
    watch, added, served = Watch(), 0, 0
    for goal in range(200, 2001, 200):
        while served < goal:
            while added < goal and len(decoder.running + decoder.waiting) < 16:
                prompt = random_ids(3 + added % 9, seed=added).tolist()
                count = 4 + added % 5
                decoder.add(prompt, max_new_tokens=count, generator=added)
                added += 1
            decoder.step()
            done = decoder.finished()
            assert all(len(done[n].tokens) == 4 + n % 5 for n in done)
            served += len(done)
            del done
        assert (decoder.committed_tokens, decoder.running) == (0, [])
        watch.look()
    assert added == served == 2000
    watch.check_flat()


@pytest.mark.parametrize(("right", "per_cycle"), [(0, 1), (4, 5), ((0, 4, 2), 3)])
def test_the_work_of_a_cycle_does_not_grow_with_the_reply(right, per_cycle):
    """A pass reads the anchor and its drafts, at the end as at the beginning."""
    target = monotonous_target()
    read = work_of(target)
    drafter = ScriptedDrafter([0] * 260, right)
    reply = generate(target, drafter, [0], max_new_tokens=181)
    assert reply.tokens == [0] * 181
    assert read == [1, *[5] * (180 // per_cycle)]


def test_a_generation_is_freed_with_its_last_name():
    """No cycle of references keeps caches alive until a collector comes by."""

    def caches() -> int:
        return sum(type(item) is DynamicCache for item in gc.get_objects())

    target = monotonous_target()
    drafter = agreeing_drafter(target, "markov", 4)
    gc.collect()
    gc.disable()
    try:
        before = caches()
        generate(target, drafter, [1, 2, 3], max_new_tokens=20)
        assert caches() == before
    finally:
        gc.enable()
