"""The measured table: what was timed, how it becomes SPS(B), and its file."""

import json
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_drafter, tiny_target

from dsparkref.analysis import profile as profiling
from dsparkref.analysis.profile import (
    Point,
    Profile,
    load_measured,
    profile_pair,
    read_profile,
    write_profile,
)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def profile(*points: Point) -> Profile:
    facts = {"device": "cpu", "threads": 1, "dtype": "float32", "model": "tiny"}
    facts |= {"date": "2026-01-31", "context": 64, "repeats": 3}
    return Profile(**facts, points=points)


def test_a_profile_has_every_point_and_what_it_was_measured_with(target):
    found = profile_pair(
        target, tiny_drafter(target), tokens=[3, 1], context=9, repeats=1, model="tiny"
    )
    assert [(p.rows, p.tokens) for p in found.points] == [(1, 1), (1, 3)]
    assert all(p.draft_seconds > 0 and p.verify_seconds > 0 for p in found.points)
    assert (found.dtype, found.model, found.context) == ("float32", "tiny", 9)
    assert found.device and len(found.date) == 10
    sps = found.steps_per_second(1)
    assert sps.capacity == 3 and sps(1) > 0


def test_what_is_timed_is_the_step_alone(target, monkeypatch):
    """Each pass starts from the same context and brings R rows of n tokens."""
    steps, forward = [], type(target).forward

    def recorded(self, input_ids, layer_ids=(), **options):
        cache = options.get("cache")
        held = cache.get_seq_length() if cache is not None else 0
        steps.append((*input_ids.shape, held))
        return forward(self, input_ids, layer_ids, **options)

    drafts = []

    class ManyAtOnce:
        spec = SimpleNamespace(target_layer_ids=(0, 2))

        def new_cache(self):
            return []

        def propose(self, hidden, anchor, *, cache):
            cache.append(hidden.shape[1])

        def propose_batch(self, hidden, anchors, *, caches):
            held = [cache[0] for cache in caches]
            drafts.append(([rows.shape[1] for rows in hidden], len(anchors), held))

    monkeypatch.setattr(type(target), "forward", recorded)
    profile_pair(target, ManyAtOnce(), rows=[3], tokens=[2], context=7, repeats=2)
    assert drafts == [([profiling.NEW_ROWS] * 3, 3, [7] * 3)] * 4
    assert steps[1:] == [(1, 7, 0)] + [(3, 2, 7)] * 4


def test_steps_per_second_leave_no_cost_out():
    measured = profile(
        Point(1, 1, 0.25, 0.25), Point(1, 3, 0.25, 0.75), Point(4, 2, 0.5, 1.5)
    )
    alone = measured.steps_per_second(1)
    assert (alone(1), alone(2), alone(3), alone.capacity) == (2.0, 1.5, 1.0, 3)
    assert measured.steps_per_second(4)(8) == 0.5
    with pytest.raises(ValueError, match=r"rows must be measured: .*1 to 4, got 5"):
        measured.steps_per_second(5)


def test_between_two_numbers_of_requests_seconds_run_on_a_line():
    """Only tokens that both have: 2 rows of 1 lie a third of the way from 1 to 4."""
    measured = profile(
        Point(1, 1, 0.25, 0.25), Point(1, 3, 0.25, 0.75), Point(4, 1, 0.55, 1.75)
    )
    (point,) = measured.at(2)
    assert (point.rows, point.tokens) == (2, 1)
    assert point.draft_seconds == pytest.approx(0.35)
    assert point.verify_seconds == pytest.approx(0.75)
    assert measured.steps_per_second(2)(2) == pytest.approx(1 / 1.1)
    assert measured.at(1) == list(measured.points[:2])


def test_the_file_gives_the_profile_back(tmp_path):
    measured = profile(Point(1, 1, 0.25, 0.25), Point(4, 2, 0.5, 1.5))
    path = tmp_path / "cpu.json"
    write_profile(measured, path)
    assert read_profile(path) == measured
    fields = json.loads(path.read_text())
    assert {"device", "dtype", "model", "date", "points"} <= set(fields)
    path.write_text(json.dumps({"points": [{"rows": 1}]}))
    with pytest.raises(ValueError, match="profile must be a measured table"):
        read_profile(path)
    with pytest.raises(FileNotFoundError, match="profile must be there"):
        read_profile(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": []}, "tokens must hold numbers"),
        ({"tokens": [0]}, r"tokens .*>= 1, got 0"),
        ({"rows": [0]}, r"rows .*>= 1, got 0"),
        ({"context": 0}, r"context .*>= 1"),
        ({"context": 99999}, r"context .*>= 1 and <= \d+, got 99999"),
        ({"repeats": 0}, r"repeats .*>= 1"),
    ],
    ids=str,
)
def test_profiles_that_cannot_be(target, options, words):
    with pytest.raises(ValueError, match=words):
        profile_pair(target, tiny_drafter(target), **options)


def test_many_requests_need_a_drafter_for_many(target):
    alone = SimpleNamespace(spec=None, propose=None)
    with pytest.raises(ValueError, match="drafter must draft for several requests"):
        profile_pair(target, alone, rows=[2])


def test_the_numbers_do_not_depend_on_the_global_stream(target):
    torch.manual_seed(1)
    first = profiling.random_ids(target, 2, 5)
    assert first.equal(profiling.random_ids(target, 2, 5))


def test_the_shipped_table_says_what_it_is_and_has_the_cliff():
    """From 64 rows of one token to 64 of two costs about two of the later steps."""
    shipped = load_measured()
    assert (shipped.model, shipped.dtype) == ("tiny, markov, K = 7", "float32")
    assert {p.tokens for p in shipped.points} == set(range(1, 9))
    seconds = [p.verify_seconds for p in shipped.points if p.rows == 64]
    cliff, later = seconds[1] - seconds[0], (seconds[7] - seconds[1]) / 6
    assert 1.5 < cliff / later < 3
    alone = [p.verify_seconds for p in shipped.points if p.rows == 1]
    assert alone[7] < 1.5 * alone[0]
    assert seconds[7] > 3 * seconds[0]
    with pytest.raises(ValueError, match=r"device must be a known name: .*cpu-x86_64"):
        load_measured("abacus")
