"""A slider moves the picture, and where none is alive the picture stands alone."""

import base64
import sys
from html import unescape

import pytest
from matplotlib import pyplot

from dsparkref.lab.figures import curve_figure
from dsparkref.lab.pictures import Picture, show
from dsparkref.lab.widgets import Explorer, explore

WIDGET = "application/vnd.jupyter.widget-view+json"
SHARES, WORDS = [0.5, 0.9], ["one", "two"]
TABLE = {(s, w): [s, s / (1 + WORDS.index(w))] for s in SHARES for w in WORDS}
CONTROLS = {"share": SHARES, "word": WORDS}


class Artist:
    """Draws, and keeps count."""

    def __init__(self):
        self.drawn = []

    def __call__(self, numbers):
        self.drawn.append(numbers)
        title = f"ends at {numbers[-1]:.2f} < 1"
        figure = curve_figure({"parallel": numbers}, title, ylabel="share")
        return Picture(figure, f"{title}\n{numbers}")


def parts(explorer):
    share, word, image, text = explorer.widget.children
    return share, word, image, text


def test_moving_a_control_changes_picture_and_numbers():
    artist = Artist()
    share, word, image, text = parts(Explorer(TABLE, artist, CONTROLS))
    first = bytes(image.value)
    assert first.startswith(b"\x89PNG") and "[0.5, 0.5]" in text.value
    share.value = 0.9
    assert bytes(image.value) != first and "[0.9, 0.9]" in text.value
    word.value = "two"
    assert "[0.9, 0.45]" in unescape(text.value)
    assert "<pre>" in text.value and "&lt; 1" in text.value  # escaped
    share.value, word.value = 0.5, "one"
    assert bytes(image.value) == first
    # each change draws once, and what was drawn is kept
    assert artist.drawn == [[0.5, 0.5], [0.9, 0.9], [0.9, 0.45], [0.5, 0.25]]


def test_the_start_can_be_chosen():
    explorer = Explorer(TABLE, Artist(), CONTROLS, start=(0.9, "two"))
    share, word, _, text = parts(explorer)
    assert (share.value, word.value) == (0.9, "two")
    assert "[0.9, 0.45]" in text.value


def test_one_output_holds_widget_picture_and_title():
    data, metadata = Explorer(TABLE, Artist(), CONTROLS)._repr_mimebundle_()
    assert set(data) == {WIDGET, "image/png", "text/plain"}
    assert data["text/plain"] == "ends at 0.50 < 1"
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata["image/png"]["width"] > 0


def test_without_ipywidgets_the_picture_remains(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    data, _ = Explorer(TABLE, Artist(), CONTROLS)._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}


def test_numbers_are_printed_once(capsys):
    picture = explore(TABLE, Artist(), CONTROLS).picture((0.5, "one"))
    assert capsys.readouterr().out == picture.text + "\n"
    assert show(picture) is picture
    assert capsys.readouterr().out == picture.text + "\n"


def test_running_a_cell_again_leaves_nothing_behind():
    for _ in range(5):
        Explorer(TABLE, Artist(), CONTROLS)._repr_mimebundle_()
    assert pyplot.get_fignums() == []


def test_a_picture_is_the_same_whenever_it_is_drawn():
    assert Artist()([0.5, 0.4]).png == Artist()([0.5, 0.4]).png


@pytest.mark.parametrize(
    ("table", "controls", "start", "message"),
    [
        (TABLE, {}, None, "controls must be few and have values"),
        (TABLE, CONTROLS | {"third": [1]}, None, "controls must be few"),
        (TABLE, {"share": []}, None, "controls must be few and have values"),
        ({}, CONTROLS, None, r"table must cover the controls: .* no \(0.5, 'one'\)"),
        (TABLE, CONTROLS, (0.7, "one"), "start must be a choice"),
    ],
)
def test_what_cannot_be_chosen_is_refused(table, controls, start, message):
    with pytest.raises(ValueError, match=message):
        Explorer(table, Artist(), controls, start)
