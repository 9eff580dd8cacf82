"""The speed table: what is counted, not how fast it is."""

import pytest
import torch
from tiny_models import tiny_drafter, tiny_target

from dsparkref.analysis.speed import (
    HUGGING_FACE,
    ONE_TOKEN,
    CycleTime,
    Stopwatch,
    Timing,
    measure_speed,
)


class Clock:
    """Each look is a second later."""

    now = 0

    def __call__(self):
        self.now += 1
        return self.now


class Worker:
    def work(self):
        return 7


def test_a_stopwatch_adds_up_calls_and_leaves_no_trace():
    worker, watch = Worker(), Stopwatch(Clock())
    with watch.watching(worker, "work"):
        assert [worker.work() for _ in range(3)] == [7, 7, 7]
    worker.work()
    assert watch.seconds == 3
    assert vars(worker) == {}


def test_a_stopwatch_counts_and_clears_away_after_an_error():
    class Broken(Worker):
        def work(self):
            raise KeyError

    worker, watch = Broken(), Stopwatch(Clock())
    with pytest.raises(KeyError), watch.watching(worker, "work"):
        worker.work()
    assert (watch.seconds, vars(worker)) == (1, {})


def test_ratios_are_medians_over_rounds_not_of_medians():
    ours = Timing(speeds=[10.0, 20.0, 30.0])
    theirs = Timing(speeds=[10.0, 5.0, 30.0])
    assert ours.over(theirs) == 1.0
    assert ours.tokens_per_second == 20.0


def test_overhead_is_the_rest_over_draft_and_verify():
    times = CycleTime(draft=2.0, head=1.0, verify=3.0, rest=1.0)
    assert times.overhead == pytest.approx(0.2)


@pytest.fixture(scope="module")
def timings():
    target = tiny_target()
    drafters = {head: tiny_drafter(target, head) for head in ("dflash", "domino")}
    return measure_speed(
        target, drafters, [[1, 2, 3], [4, 5]], rounds=2, max_new_tokens=12
    )


def test_every_method_gives_hugging_faces_tokens(timings):
    assert list(timings) == [HUGGING_FACE, ONE_TOKEN, "dflash", "domino"]
    assert all(timing.equal == 2 for timing in timings.values())
    assert all(len(timing.speeds) == 2 for timing in timings.values())


def test_the_parts_of_a_cycle_are_its_own(timings):
    assert timings[HUGGING_FACE].cycle_times == timings[ONE_TOKEN].cycle_times == []
    for times in timings["domino"].cycle_times:
        assert 0 < times.head < times.draft
        assert min(times.verify, times.rest) > 0


@pytest.mark.parametrize("head", ["dflash", "markov", "gated", "rnn", "domino"])
@pytest.mark.parametrize("block_size", [1, 3, 7])
def test_a_block_takes_one_head_step_per_draft(head, block_size, monkeypatch):
    """Linear in K: nothing is computed again for earlier positions."""
    target = tiny_target()
    drafter = tiny_drafter(target, head, block_size=block_size)
    step, widths = drafter.head.step, []

    def counted(state, previous, hidden):
        widths.append((len(previous), len(hidden)))
        return step(state, previous, hidden)

    monkeypatch.setattr(drafter.head, "step", counted)
    prompt = torch.tensor([[1, 2, 3]])
    _, output = target.prefill(prompt, drafter.spec.target_layer_ids)
    drafter.propose(output.hidden, output.logits[:, -1].argmax(-1))
    assert widths == [(1, 1)] * block_size


def test_bad_input_is_named(no_shape_checks):
    target = tiny_target()
    with pytest.raises(ValueError, match="prompts must not be empty"):
        measure_speed(target, {}, [])
    with pytest.raises(ValueError, match="rounds must be in range"):
        measure_speed(target, {}, [[1]], rounds=0)
