"""The figures of notebooks 02 and 03 say in their titles what the numbers say."""

import pytest
import torch

from dsparkref.lab import cost_figures, law_figures

P = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
Q, WORDS = P.flip(0), ["sun", "cloud", "rain", "snow"]


def title(picture) -> str:
    """The first line of the text, which must be the figure's own title."""
    found = picture.text.partition("\n")[0]
    assert picture.figure._suptitle.get_text() == found
    return found


def numbers(picture, row: str) -> list[float]:
    line = next(x for x in picture.text.splitlines() if x.startswith(row))
    return [float(number) for number in line.removeprefix(row).split()]


def test_the_pieces_add_up():
    picture = law_figures.pieces_picture(P, Q, WORDS)
    assert title(picture).startswith("60 % kept drafts and 40 % replacements")
    assert numbers(picture, "kept") == [0.1, 0.2, 0.2, 0.1]
    assert numbers(picture, "emitted") == numbers(picture, "target")


@pytest.mark.parametrize(
    ("counts", "said"),
    [([400, 300, 200, 100], "follow the target"), ([100, 200, 300, 400], "off too")],
)
def test_a_count_that_is_off_is_called_so(counts, said):
    picture = law_figures.sampled_picture(P, Q, torch.tensor(counts), WORDS)
    assert "40 % off" in title(picture) and said in title(picture)


def test_some_of_the_tokens_can_be_shown():
    counts, top = torch.tensor([400, 300, 200, 100]), torch.tensor([3, 0])
    picture = law_figures.sampled_picture(P, Q, counts, ["snow", "sun"], top)
    assert numbers(picture, "target") == [0.1, 0.4]
    assert numbers(picture, "drafter") == [0.4, 0.1]


def test_only_bent_laws_are_counted():
    laws = {"right": (P, P.clone()), "wrong": (P, Q), "cut": (Q, Q)}
    picture = law_figures.laws_picture(laws, WORDS)
    assert title(picture) == "1 of 3 bend the law: by 40 to 40 % of what is written"
    assert numbers(picture, "wrong")[-1] == 0.4
    assert numbers(picture, "target, for cut") == [0.1, 0.2, 0.3, 0.4, 0.0]
    assert title(law_figures.laws_picture({"right": (P, P)}, WORDS)) == (
        "0 of 1 bend the law"
    )


@pytest.mark.parametrize(
    ("temperatures", "said"),
    [((0.25, 1.0), "Best: greedy"), ((1.0, 1.0), "Best: sampled"), ((1.0, 0.0), "and")],
)
def test_the_better_draft_is_named(temperatures, said):
    assert said in title(law_figures.keeping_picture(temperatures))


def test_a_loss_is_called_a_loss():
    won = cost_figures.load_picture((1, "0.9", [0.9, 2.0, 1.5]))
    assert title(won) == "One request, acceptance 0.9: 2.0 times as fast at 2 drafts"
    lost = cost_figures.load_picture((64, "0.5", [0.4, 0.43, 0.3]))
    assert "64 requests" in title(lost)
    assert "every length loses, best 0.43" in title(lost)


def test_the_best_length_of_each_drafter_is_named():
    curves = {"parallel": [1.2, 1.5, 1.6], "one by one": [1.2, 1.3, 1.1]}
    said = "Parallel: 1.6 times as fast at K = 3; one by one: 1.3 at K = 2"
    assert title(cost_figures.drafters_picture(curves)) == said


def test_a_wide_pass_that_is_dear_is_called_so():
    cheap = cost_figures.passes_picture({"target": (8.0, 2.0), "draft": (6.0, 1.0)}, 8)
    assert title(cheap) == "One pass over 8 tokens: 4.0 times cheaper, or more"
    dear = cost_figures.passes_picture({"target": (8.0, 9.0)}, 8)
    assert title(dear) == "One pass over 8 tokens is not always cheaper"
