"""What notebook 09 shows is what the package's scheduler does."""

import itertools

import pytest
import torch

from dsparkref import FixedLength, LaggedPrefixScheduler, StepsPerSecond, survival
from dsparkref.analysis.profile import Point, Profile
from dsparkref.lab import made_up_curves as curves
from dsparkref.lab import scheduler_walk as walk
from dsparkref.lab import scheduling
from dsparkref.lab import scheduling_figures as figures
from dsparkref.verify.scheduler import schedule_prefixes

APPENDIX_A = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})
TWO = survival(walk.TWO_REQUESTS)
CURVES = {
    "smooth": curves.smooth_curve(2, 16),
    "stairs": curves.staircase(2, 16),
    "short": StepsPerSecond({2: 1.0, 6: 1.0}),
    "free": StepsPerSecond({2: 1.0, 20: 1.0}),
}


# --- step by step -----------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
def test_the_steps_are_the_schedulers(name):
    sps = CURVES[name]
    steps = walk.schedule_steps(TWO, sps)
    taken = [step.draft for step in steps if step.said == "taken"]
    lengths = [max((j for r, j in taken if r == row), default=0) for row in (1, 2)]
    assert lengths == schedule_prefixes(TWO, sps).tolist()
    best = max(steps, key=lambda step: step.throughput)
    searched = schedule_prefixes(TWO, sps, early_stop=False)
    assert best.batch_tokens == 2 + int(searched.sum())
    for step in steps:
        assert step.throughput == pytest.approx(
            step.expected_tokens * sps(step.batch_tokens)
        )
    # a draft comes after the one before it
    drafts = [step.draft for step in steps[1:]]
    assert all(
        drafts.index((r, j)) > drafts.index((r, j - 1)) for r, j in drafts if j > 1
    )


def test_what_is_said_is_a_start_takes_one_stop_and_the_rest():
    said = [step.said for step in walk.schedule_steps(TWO, CURVES["stairs"])]
    runs = [(word, len([*group])) for word, group in itertools.groupby(said)]
    assert runs == [("start", 1), ("taken", 2), ("stop", 1), ("not visited", 11)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stairs", "not raise Theta"),
        ("short", "table ends"),
        ("free", "no draft is left"),
    ],
)
def test_why_it_ends(name, words):
    steps = walk.schedule_steps(TWO, CURVES[name])
    assert words in walk.why_it_ends(steps, CURVES[name])


def test_each_place_of_the_walk_has_its_picture():
    table = walk.walks(TWO, CURVES)
    assert {number for name, number in table if name == "stairs"} == set(range(15))
    shown = walk.walk_picture(table["stairs", 3])
    assert shown.text.startswith("No. 3: request 2, draft 1: Theta 3.89 to 3.42: stop")
    assert len(shown.text.splitlines()) == 7
    assert shown.figure.get_suptitle() in shown.text
    start = walk.walk_picture(table["free", 0])
    assert start.text.startswith("No. 0: no drafts yet, Theta 2.00")
    texts = {walk.walk_picture(table["smooth", n]).text for n in range(15)}
    assert len(texts) == 15  # each move of the slider is seen


# --- curves and brute force -------------------------------------------------------


def step_times(sps):
    return [1 / sps(b) for b in range(min(sps.points), sps.capacity + 1)]


def test_the_made_up_curves_have_their_shapes():
    for convex in (
        curves.smooth_curve(2, 16),
        curves.random_curve(2, 9, convex=True, seed=1),
    ):
        rises = torch.tensor(step_times(convex)).double().diff()
        assert (rises.diff() > -1e-6).all() and (rises > -1e-6).all()
    unordered = torch.tensor(
        step_times(curves.random_curve(2, 9, convex=False, seed=1))
    )
    assert (unordered.diff().diff() < 0).any()
    assert step_times(curves.staircase(1, 9, tread=4, rise=0.5)) == pytest.approx(
        [1.0] * 4 + [1.5] * 4 + [2.0]
    )
    assert curves.compute_bound(1, 128)(96) == pytest.approx(2 / 3)


def test_brute_force_by_hand():
    chances = torch.tensor([[0.8, 0.72]])
    assert scheduling.brute_force(chances, APPENDIX_A) == pytest.approx(2.52 * 0.45)
    two = torch.tensor([[0.5], [0.9]])  # 2, 2.9 (the better one), 3.4 tokens
    sps = StepsPerSecond({2: 1.0, 3: 0.8, 4: 0.7})
    assert scheduling.brute_force(two, sps) == pytest.approx(3.4 * 0.7)
    capped = StepsPerSecond({2: 1.0, 3: 0.8})
    assert scheduling.brute_force(two, capped) == pytest.approx(2.9 * 0.8)


def test_duels():
    convex = scheduling.duels(convex=True, count=8, shape=(2, 3))
    unordered = scheduling.duels(convex=False, count=30, shape=(2, 3))
    assert min(convex["the stop"] + convex["the search"]) > 1 - 1e-9
    assert min(unordered["the search"]) > 1 - 1e-9 > min(unordered["the stop"])
    assert max(unordered["the stop"]) < 1 + 1e-9
    ratios = {"convex": convex["the stop"], "any": unordered["the stop"]}
    title = figures.duels_picture(ratios).figure.get_suptitle()
    assert title.startswith("The stop finds the best: 8 of 8 (convex)")


# --- crowds -----------------------------------------------------------------------


def table(rows, seconds):
    """A measured table of rows of 1 to 4 tokens."""
    points = [
        Point(row, n, 0.001, seconds * (1 + 0.1 * row * n)) for row in rows
        for n in range(1, 5)
    ]  # fmt: skip
    return Profile("cpu", 1, "float32", "tiny", "2026-01-01", 64, 3, tuple(points))


def test_a_crowd_gets_what_the_scheduler_says():
    profile, chances = table((1, 80), 0.001), torch.tensor([[0.9, 0.6, 0.1]])
    wanted = scheduling.wanted_by_crowd(chances, [1, 80], profile, crowds=2)
    alone = schedule_prefixes(chances, profile.steps_per_second(1))
    crowd = schedule_prefixes(chances.expand(80, 3), profile.steps_per_second(80))
    assert wanted["the stop, measured"][0] == alone.item()
    assert wanted["the stop, measured"][1] == pytest.approx(
        crowd.double().mean().item()
    )
    assert wanted["the stop, made up: compute-bound"] == [3.0, 0.0]
    text = figures.crowd_picture([1, 80], wanted, "").text
    assert text.startswith("the stop, measured: 2.0 drafts for one user")


# --- policies ---------------------------------------------------------------------


def confidence_of(drafts):
    return torch.tensor([[0.8, 0.9 if drafts[0] == 0 else 0.0]])


def test_looking_ahead_is_the_search():
    policy = scheduling.LookAhead(APPENDIX_A)
    for path, length in ((0, 0), 2), ((1, 0), 0):
        found = policy.verify_lengths(confidence_of(path), block_size=2)
        assert found.tolist() == [length]


@pytest.mark.usefixtures("no_shape_checks")
def test_looking_ahead_needs_a_head():
    with pytest.raises(ValueError, match="drafter must come with a confidence head"):
        scheduling.LookAhead(APPENDIX_A).verify_lengths(None, block_size=2)


def test_a_length_does_not_remember_the_question_before():
    lagged = LaggedPrefixScheduler(APPENDIX_A, lag=1)
    length = scheduling.lengths_after(lagged, confidence_of, [(0, 0)])
    # two drafts fit; after B only one of them may stand
    assert [length((0, 0)), length((1, 0)), length((0, 0))] == [2, 1, 2]
    after = scheduling.after_every_past(
        LaggedPrefixScheduler(APPENDIX_A), confidence_of
    )
    assert [length((0, 0)) for length in after] == [2] * 8 + [0] * 8


def test_mean_throughput_by_hand():
    steps = torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])
    found = scheduling.mean_throughput(steps, FixedLength(1), APPENDIX_A)
    assert found == pytest.approx((1.5 * 0.5 + 2.0 * 0.5) / 2)


def test_being_late_beats_the_stop_on_a_staircase():
    generator = torch.Generator().manual_seed(0)
    steps = 0.6 + 0.4 * torch.rand(40, 4, 5, generator=generator)
    tiles = curves.staircase(4, 24, tread=8)
    thetas = {
        name: scheduling.mean_throughput(steps, policy, tiles)
        for name, policy in scheduling.rivals(tiles, 5).items()
    }
    assert thetas["the stop"] < thetas["two steps late"] <= thetas["the search"]
    assert thetas["the search"] == max(thetas.values())
    text = figures.policies_picture(thetas, "").text
    assert text.startswith("On a staircase the stop gets")


def test_the_title_names_who_bends_the_law():
    shares = {"the stop": [0.7, 0.7], "looking ahead": [0.85, 0.7]}
    assert "bent by looking ahead" in figures.law_picture(shares, 0.7).text
    assert "bent by none" in figures.law_picture({"the stop": [0.7, 0.7]}, 0.7).text


def test_the_speed_title_is_of_the_table():
    profile = table((1, 2, 4), 0.1)
    text = figures.speed_picture(profile, [1, 2, 4]).text
    assert text.startswith("4 tokens a row instead of 1 cost")
    assert "4 users" in text and "1 user " in text
