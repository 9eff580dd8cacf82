"""Batches under policies that share a budget: what is counted, saved and emitted."""

from collections import deque

import pytest
import torch
from tiny_models import greedy_reply, random_ids, tiny_drafter, tiny_target

from dsparkref import (
    BatchDecoder,
    LaggedPrefixScheduler,
    PrefixScheduler,
    StepsPerSecond,
    generate_batch,
    schedule_prefixes,
    survival,
)
from dsparkref.verify.scheduler import fill_budget

# Dozens of cycles: annotations are checked elsewhere.
pytestmark = pytest.mark.usefixtures("no_shape_checks")

TARGET = tiny_target()
DRAFTER = tiny_drafter(TARGET)
PROMPTS = [random_ids(length, seed=length).tolist() for length in (7, 1, 12, 3)]
CAPS = (6, 12, 9, 12)
# dear enough that some drafts stay out, with a dip for the early stop
SPS = StepsPerSecond({1: 10.0, 4: 9.5, 6: 7.0, 9: 6.9, 12: 4.0, 20: 2.5})
SCHEDULERS = [PrefixScheduler(SPS), LaggedPrefixScheduler(SPS)]
by_scheduler = pytest.mark.parametrize(
    "policy", SCHEDULERS, ids=lambda policy: type(policy).__name__
)


class Seen:
    """What the target is handed: rows, columns and the tokens that are no padding."""

    def __init__(self, target):
        self.shapes, self.brought = [], []
        self._hook = target.model.register_forward_pre_hook(self._note)

    def _note(self, _, args):
        self.shapes.append(tuple(args[0].shape))
        self.brought.append(args[0].count_nonzero(dim=1).tolist())


def run(policy, target=TARGET, **options):
    """Decode all prompts; return the decoder, its replies and the traces by step."""
    decoder = BatchDecoder(target, DRAFTER, policy=policy, **options)
    numbers = [
        decoder.add(prompt, max_new_tokens=cap, generator=seed)
        for seed, (prompt, cap) in enumerate(zip(PROMPTS, CAPS, strict=True))
    ]
    steps = list(iter(decoder.step, {}))
    done = decoder.finished()
    return decoder, [done[number] for number in numbers], steps


def chances(step):
    return survival(torch.tensor([trace.confidence for trace in step.values()]))


@by_scheduler
def test_greedy_replies_are_the_targets_own(policy):
    _, replies, steps = run(policy)
    for reply, prompt, cap in zip(replies, PROMPTS, CAPS, strict=True):
        assert reply.tokens == greedy_reply(TARGET, prompt, cap)
    lengths = {trace.verify_len for step in steps for trace in step.values()}
    assert len(lengths) > 2  # rows of unlike lengths, some cut


def test_the_lengths_are_those_of_algorithm_1():
    _, _, steps = run(PrefixScheduler(SPS))
    for step in steps:
        wanted = schedule_prefixes(chances(step), SPS)
        assert [trace.verify_len for trace in step.values()] == wanted.tolist()


def test_the_lagged_lengths_spend_the_budget_of_two_steps_before():
    _, _, steps = run(LaggedPrefixScheduler(SPS))
    wanted, differs = deque(maxlen=2), 0
    for step in steps:
        stopped = schedule_prefixes(chances(step), SPS)
        lengths = stopped
        if len(wanted) == 2:
            budget = min(wanted[0], SPS.capacity - len(step))
            lengths = fill_budget(chances(step), budget)
        assert [trace.verify_len for trace in step.values()] == lengths.tolist()
        differs += lengths.tolist() != stopped.tolist()
        best = schedule_prefixes(chances(step), SPS, early_stop=False)
        wanted.append(int(best.sum()))
    assert differs


@by_scheduler
def test_what_is_cut_never_enters_the_targets_pass(policy):
    """Counted at the model itself: anchors and chosen drafts, padded to the longest."""
    target = tiny_target()
    seen = Seen(target)
    decoder, _, steps = run(policy, target)
    passes = seen.shapes[len(PROMPTS) :]  # the prefills came first
    brought = seen.brought[len(PROMPTS) :]
    handed = saved = 0
    for step, shape, counts in zip(steps, passes, brought, strict=True):
        lengths = [1 + trace.verify_len for trace in step.values()]
        assert shape == (len(step), max(lengths))
        assert all(c <= n for c, n in zip(counts, lengths, strict=True))  # id 0 exists
        assert sum(lengths) <= SPS.capacity
        handed, saved = handed + sum(lengths), saved + 5 * len(step) - sum(lengths)
    assert decoder.verified_tokens == handed
    assert decoder.padded_tokens == sum(rows * columns for rows, columns in passes)
    assert saved > 0


@by_scheduler
def test_a_sampled_batch_comes_out_again(policy):
    """One policy object serves several batches; none sees the one before."""
    options = {"max_new_tokens": 7, "temperature": 1.0, "generators": [3, 1, 4, 1]}
    first, second = (
        generate_batch(TARGET, DRAFTER, PROMPTS, policy=policy, **options)
        for _ in range(2)
    )
    assert [reply.tokens for reply in first] == [reply.tokens for reply in second]
