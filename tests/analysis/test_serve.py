"""The load on a real engine: a small pair, on a clock that the test turns."""

import pytest
import torch
from tiny_models import greedy_reply, random_ids, tiny_drafter, tiny_target

from dsparkref import BatchDecoder, ConfidenceThreshold, FixedLength, Target
from dsparkref.analysis.load import Autoregressive, arrival_times
from dsparkref.analysis.serve import serve_load

# Hundreds of cycles: annotations are checked elsewhere.
pytestmark = pytest.mark.usefixtures("no_shape_checks")

INF = float("inf")
PROMPTS = [random_ids(length, seed=length).tolist() for length in (7, 1, 12, 3)]


class Watch:
    """Every pass of the target takes a second; whoever sleeps is woken in time."""

    def __init__(self, target, monkeypatch):
        self.now, self.slept, self.rows = 0.0, [], []
        target.model.register_forward_pre_hook(self._tick, with_kwargs=True)
        monkeypatch.setattr(Target, "clock", lambda _: self.now)

    def _tick(self, _, args, keywords):
        self.now += 1.0
        self.rows.append(len(args[0] if args else keywords["input_ids"]))

    def sleep(self, seconds):
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def pair():
    target = tiny_target()
    return target, tiny_drafter(target)


def serve(pair, policy, watch, **options):
    options = {"rate": INF, "concurrency": 2, "max_new_tokens": 5} | options
    options |= {"temperature": 0.0, "sleep": watch.sleep}
    return serve_load(*pair, PROMPTS, policy, **options)


def test_without_a_drafter_each_step_gives_a_token(pair, monkeypatch):
    """Four replies of 5 tokens, two at a time: 2 x (2 prefills + 4 steps)."""
    watch = Watch(pair[0], monkeypatch)
    monkeypatch.setattr(type(pair[1]), "propose", None)  # it is left out
    got = serve(pair, Autoregressive(), watch)
    assert watch.rows == ([1, 1] + [2] * 4) * 2
    assert (got.steps, got.batch_requests, got.batch_tokens) == (8, 2, 2)
    assert (got.verify_len, got.accepted_length) == (0, 1)
    assert got.throughput == 4 * 5 / 12
    assert got.user_speed == 5 / 6
    assert got.latency == (6 + 12) / 2


@pytest.mark.parametrize(
    "policy", [FixedLength(0), FixedLength(4), ConfidenceThreshold(0.5)], ids=str
)
def test_every_request_gets_its_own_reply(pair, monkeypatch, policy):
    watch, replies, finished = Watch(pair[0], monkeypatch), [], BatchDecoder.finished

    def noted(self):
        done = finished(self)
        replies.extend(done.values())
        return done

    monkeypatch.setattr(BatchDecoder, "finished", noted)
    got = serve(pair, policy, watch)
    wanted = [greedy_reply(pair[0], prompt, 5) for prompt in PROMPTS]
    assert sorted(reply.tokens for reply in replies) == sorted(wanted)
    cycles = [cycle for reply in replies for cycle in reply.cycles]
    assert got.verify_len == sum(c.verify_len for c in cycles) / len(cycles)
    emitted = sum(len(cycle.emitted) for cycle in cycles)
    assert got.accepted_length == emitted / len(cycles)
    assert emitted + 4 == 20


def test_never_more_at_once_than_there_are_places(pair, monkeypatch):
    watch = Watch(pair[0], monkeypatch)
    serve(pair, FixedLength(4), watch, concurrency=3)
    assert max(watch.rows) == 3
    watch = Watch(pair[0], monkeypatch)
    serve(pair, FixedLength(4), watch, concurrency=1)
    assert max(watch.rows) == 1


def test_an_idle_engine_sleeps_until_the_next_arrival(pair, monkeypatch):
    watch = Watch(pair[0], monkeypatch)
    got = serve(pair, FixedLength(4), watch, rate=0.001)
    times = arrival_times(0.001, 4, seed=0)
    assert watch.slept[0] == times[0]
    assert len(watch.slept) == 4
    assert got.batch_requests == 1
    assert got.latency < 7  # none of them waited


def test_the_same_seed_serves_the_same_replies(pair, monkeypatch):
    def run(seed):
        watch = Watch(pair[0], monkeypatch)
        options = {"rate": 0.2, "concurrency": 3, "max_new_tokens": 5}
        return serve_load(
            *pair,
            PROMPTS,
            ConfidenceThreshold(0.4),
            seed=seed,
            sleep=watch.sleep,
            **options,
        )

    assert run(1) == run(1) != run(2)


def test_a_reply_of_one_token_is_served_too(pair, monkeypatch):
    watch = Watch(pair[0], monkeypatch)
    stop = greedy_reply(pair[0], PROMPTS[0], 1)
    monkeypatch.setattr(Target, "stop_token_ids", stop)
    got = serve(pair, FixedLength(4), watch)
    assert got.throughput > 0 and torch.isfinite(torch.tensor(got.latency))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0.0}, "rate must be in range"),
        ({"concurrency": 0}, "concurrency must be in range"),
        ({"max_new_tokens": 0}, "tokens must be in range"),
    ],
    ids=str,
)
def test_bad_loads_are_refused(pair, monkeypatch, options, words):
    watch = Watch(pair[0], monkeypatch)
    with pytest.raises(ValueError, match=words):
        serve(pair, FixedLength(4), watch, **options)
    with pytest.raises(ValueError, match="prompts must not be empty"):
        serve_load(*pair, [], FixedLength(4), rate=INF, concurrency=1)
    assert watch.rows == []
