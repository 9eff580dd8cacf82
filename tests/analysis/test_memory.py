"""Acceptance where the token two back decides, against a slow twin."""

from statistics import fmean

import pytest
import torch
from tiny_models import random_ids, tiny_drafter, tiny_target

from dsparkref import accept_rate
from dsparkref.analysis.evaluate import EvalPrompt
from dsparkref.analysis.memory import at_memory_positions, block_acceptance

REPLY = random_ids(12, seed=1).tolist()
PROMPT = random_ids(5, seed=2).tolist()
EXAMPLES = [
    EvalPrompt("message", PROMPT, REPLY, "text", {}),
    EvalPrompt("message", PROMPT[:3], REPLY[::-1], "text", {}),
]


class Letters:
    def decode(self, ids, skip_special_tokens=False):
        return "".join(chr(97 + token) for token in ids)


@pytest.fixture(scope="module")
def target():
    found = tiny_target()
    found.tokenizer = Letters()
    return found


@torch.no_grad()
def slow_rates(target, drafter, prompt, reply):
    """(number of the token in the reply, k) -> 1 - TV, one block at a time."""
    rates, size = {}, drafter.block_size
    ids = torch.tensor([prompt + reply])
    for first in range(len(reply) - 1):
        start = len(prompt) + first
        output = target.forward(ids[:, :start], drafter.spec.target_layer_ids)
        previous = ids[:, start : start + size]
        block = torch.nn.functional.pad(previous, (0, size - previous.shape[1]))
        drafted = drafter.teacher_forced(output.hidden, block).draft_logits[0]
        for k in range(size):
            label = first + k + 1
            if label >= len(reply):
                break
            law = target.forward(ids[:, : start + k + 1]).logits[0, -1].softmax(-1)
            rates[first, k] = accept_rate(law, drafted[k].softmax(-1)).item()
    return rates


@pytest.mark.parametrize("head", ["dflash", "markov", "rnn", "domino"])
def test_block_acceptance_equals_its_slow_twin(target, head):
    drafter = tiny_drafter(target, head)
    rates, labels, inside = block_acceptance(target, drafter, PROMPT, REPLY)
    slow = slow_rates(target, drafter, PROMPT, REPLY)
    assert int(inside.sum()) == len(slow)
    for (first, k), rate in slow.items():
        assert inside[first, k] and labels[first, k] == first + k + 1
        assert rates[first, k].item() == pytest.approx(rate, abs=2e-5)


def test_places_and_elsewhere_share_out_the_deep_drafts(target):
    drafter = tiny_drafter(target, "rnn")
    positions = [[4, 9], [7]]
    found = at_memory_positions(target, drafter, EXAMPLES, positions)
    here, there, single = [], [], {}
    for number, (example, places) in enumerate(zip(EXAMPLES, positions, strict=True)):
        slow = slow_rates(target, drafter, example.prompt, example.reply)
        for (first, k), rate in slow.items():
            label = first + k + 1
            if k >= 2:  # earlier, the token two back is no draft
                (here if label in places else there).append(rate)
                single.setdefault((number, label), []).append(rate)
    assert found.at_places == pytest.approx(fmean(here), abs=2e-5)
    assert found.elsewhere == pytest.approx(fmean(there), abs=2e-5)
    named = [(place.text, place.position) for place in found.places]
    assert named == [(0, 4), (0, 9), (1, 7)]
    for place in found.places:
        rates = single[place.text, place.position]
        assert place.accept_rate == pytest.approx(fmean(rates), abs=2e-5)


def test_a_place_is_named_by_its_text(target):
    found = at_memory_positions(target, tiny_drafter(target), EXAMPLES[:1], [[4]])
    (place,) = found.places
    letters = Letters().decode(REPLY)
    assert (place.before, place.token) == (letters[2:4], letters[4])


def test_a_place_no_block_reaches_deep_enough_is_left_out(target):
    drafter = tiny_drafter(target)
    found = at_memory_positions(target, drafter, EXAMPLES[:1], [[1, 2, 3]])
    assert [place.position for place in found.places] == [3]
    with pytest.raises(ValueError, match="positions must name places: expected"):
        at_memory_positions(target, drafter, EXAMPLES[:1], [[1, 2]])


def test_unlike_lengths_are_refused(target):
    drafter = tiny_drafter(target)
    with pytest.raises(ValueError, match="positions must be one per text: expected 2"):
        at_memory_positions(target, drafter, EXAMPLES, [[4]])
    short = tiny_drafter(target, block_size=2)
    with pytest.raises(ValueError, match="block_size must be in range: expected"):
        at_memory_positions(target, short, EXAMPLES, [[4], [4]])
