"""A drafter says what it is: block, slots, taps, head, confidence, what it borrows."""

import pytest
from tiny_models import HEADS, tiny_drafter, tiny_target

TARGET = tiny_target()


@pytest.mark.parametrize("head", HEADS)
def test_the_description_names_what_matters(head):
    drafter = tiny_drafter(TARGET, head)
    text = drafter.describe()
    words = {
        "dflash": "no correction head",
        "markov": "Markov head (DSpark vanilla), rank 5",
        "gated": "gated Markov head, rank 5",
        "rnn": "carries a state of 5 numbers",
        "domino": "carries a state of 6 numbers",
    }
    assert words[head] in text
    assert "4 drafts per cycle; slot k predicts anchor+k+1" in text
    assert "layers 0, 2, 1" in text
    assert "borrowed from the target: embedding, LM head" in text
    in_head = sum(parameter.numel() for parameter in drafter.head.parameters())
    assert f"{in_head:,} of them in the head" in text


def test_it_follows_the_spec():
    changes = {"anchor_predicts": False, "pure_draft_prefix_len": 2}
    text = tiny_drafter(TARGET, "domino", **changes).describe()
    assert "slot 0 dropped" in text
    assert "first 2 drafts keep their base logits" in text
    plain = tiny_drafter(TARGET, "markov", confidence=False).describe()
    assert "no confidence head" in plain
    fitted = tiny_drafter(TARGET, "markov", confidence_temperatures=(1.0,) * 4)
    assert "h_k and W_1[x_{k-1}], calibrated" in fitted.describe()
