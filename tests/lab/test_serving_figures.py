"""The load figures say what their rows say, and by which clock."""

import pytest

from dsparkref.analysis.serving import ALGORITHM_1, AUTOREGRESSIVE, LAGGED, THRESHOLD
from dsparkref.lab.serving_figures import (
    load_finding,
    load_picture,
    one_load_picture,
    serving_figure,
    trade_off_finding,
    trade_off_picture,
)

NOTE = "clock: MADE UP, not measured: a line"
# policy -> (throughput, user speed, budget) at 1 and at 8 requests
FOUND = {
    AUTOREGRESSIVE: ((10.0, 10.0, 1.0), (60.0, 8.0, 1.0)),
    "fixed 2": ((20.0, 20.0, 3.0), (90.0, 12.0, 3.0)),
    "fixed 4": ((30.0, 30.0, 5.0), (80.0, 11.0, 5.0)),
    THRESHOLD: ((25.0, 25.0, 4.0), (85.0, 11.0, 4.0)),
    ALGORITHM_1: ((30.0, 30.0, 5.0), (72.0, 9.0, 1.5)),
    LAGGED: ((30.0, 30.0, 5.0), (88.2, 12.0, 2.5)),
}
ROWS = [
    {
        "policy": policy,
        "concurrency": places,
        "throughput": throughput,
        "user_speed": speed,
        "budget": budget,
    }
    for index, places in enumerate((1, 8))
    for policy, found in FOUND.items()
    for throughput, speed, budget in (found[index],)
]


def test_the_titles_are_counted_from_the_rows():
    said = trade_off_finding(ROWS)
    assert said.endswith("speed +200 % at 1, throughput +47 % at 8")
    said = load_finding(ROWS)
    assert said.startswith("Budget 5.0 at 1, 2.5 at 8 at once")
    assert said.endswith("lagged at worst 2.0 % below the best length")
    better = [
        row | {"throughput": 95.0} if row["budget"] == 2.5 else row for row in ROWS
    ]
    assert load_finding(better).endswith("lagged never below the best length")


@pytest.mark.parametrize("draw", [trade_off_picture, load_picture])
def test_a_picture_says_its_clock_and_prints_its_numbers(draw):
    picture = draw(ROWS, NOTE)
    title, note, *_ = picture.text.splitlines()
    assert picture.figure.get_suptitle() == title
    assert note == NOTE == picture.figure.axes[0].get_title(loc="left")
    assert picture.png.startswith(b"\x89PNG")
    for policy in FOUND:
        assert f"\n{policy}" in picture.text


def test_both_figures_fit_into_one():
    figure = serving_figure(ROWS, NOTE)
    assert len(figure.axes) == 3
    assert figure.axes[0].get_title(loc="left") == NOTE
    lengths = [text.get_text() for text in figure.axes[1].texts]
    assert lengths == ["2", "4"]  # each fixed length is named at its line's end


def test_one_load_shows_every_policy():
    heavy = [row for row in ROWS if row["concurrency"] == 8]
    picture = one_load_picture((heavy, NOTE))
    assert picture.text.startswith(
        "8 at once: best fixed length 2; lagged -2 %, early stop -20 %"
    )
    heights = [bar.get_height() for bar in picture.figure.axes[0].patches]
    assert heights == [row["throughput"] for row in heavy]
