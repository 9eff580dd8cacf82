"""The suffix-decay figure says what its numbers say."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkref.lab.figures import (
    DRAFTER_COLOURS,
    save_figure,
    spread,
    suffix_decay_figure,
    suffix_decay_finding,
)

CURVES = {
    "dflash": [0.91, 0.8, 0.65],
    "markov": [0.93, 0.9, 0.83],
    "gated": [0.93, 0.9, 0.83],
    "rnn": [0.92, 0.9, math.nan],
    "domino": [0.92, 0.9, 0.87],
}


def test_the_figure_holds_the_curves_in_their_colours():
    figure = suffix_decay_figure(CURVES, note="30 cycles")
    (axes,) = figure.axes
    drawn = {line.get_label(): line for line in axes.get_lines()}
    assert list(drawn) == list(CURVES)
    for name, line in drawn.items():
        assert list(line.get_xdata()) == [1, 2, 3]
        assert line.get_color() == DRAFTER_COLOURS[name]
        assert list(line.get_ydata()) == pytest.approx(CURVES[name], nan_ok=True)
    assert len({line.get_marker() for line in drawn.values()}) == len(CURVES)
    assert "position" in axes.get_xlabel() and "share" in axes.get_ylabel()
    assert figure.get_suptitle() == suffix_decay_finding(CURVES)
    assert axes.get_title("left") == "30 cycles"
    labels = sorted(text.get_position()[1] for text in axes.texts)
    low, high = axes.get_ylim()
    gaps = [b - a for a, b in itertools.pairwise(labels)]
    assert min(gaps) > 0.06 * (high - low)  # none is written over another


def test_the_title_follows_the_numbers():
    assert "dflash falls from 91 % to 65 %" in suffix_decay_finding(CURVES)
    assert suffix_decay_finding(CURVES).endswith("domino ends at 87 %")
    turned = CURVES | {"dflash": [0.5, 0.9, 0.95], "rnn": [0.9, 0.9, 0.99]}
    assert "dflash rises from 50 % to 95 %" in suffix_decay_finding(turned)
    assert suffix_decay_finding(turned).endswith("rnn ends at 99 %")
    unseen = suffix_decay_finding({"rnn": [0.9, math.nan]})
    assert unseen == "No drafter was seen at both ends of the block"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_labels_keep_their_distance_and_their_order(heights):
    placed = spread(heights, 0.1)
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    ranked = [placed[index] for index in order]
    assert all(b - a >= 0.1 - 1e-9 for a, b in itertools.pairwise(ranked))
    assert sum(placed) == pytest.approx(sum(heights))


def test_a_figure_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    figure = suffix_decay_figure({"dflash": [0.9, 0.8]})
    path = tmp_path / "decay.png"
    save_figure(figure, path)
    before = path.read_bytes()
    assert before.startswith(b"\x89PNG")

    def interrupted(name):
        name.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_figure(figure, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_unlike_blocks_are_refused():
    with pytest.raises(ValueError, match="curves must have one block size: expected"):
        suffix_decay_figure({"dflash": [0.9], "rnn": [0.9, 0.8]})
