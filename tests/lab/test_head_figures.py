"""The figures of notebooks 05 and 06 say what their numbers say."""

import pytest
import torch
from tiny_models import tiny_drafter, tiny_target

from dsparkref.analysis.memory import MemoryAcceptance, Place
from dsparkref.lab import heads_with_memory_figures as memory
from dsparkref.lab import markov_head_figures as markov


def test_the_title_names_the_rank_that_wins_half():
    picture = markov.rank_picture({0: 2.0, 4: 3.5, 8: 4.0}, {"dflash": 3.0})
    first, *table = picture.text.splitlines()
    assert first == "From 2.0 to 4.0 tokens per cycle: rank 4 of 8 is worth 75 % of it"
    assert table[1].split() == ["cut", "head", "2.0", "3.5", "4.0"]
    assert picture.figure.get_suptitle() == first


def test_gates_are_counted_into_tenths():
    gates = torch.tensor([[0.05, 0.95], [0.95, 1.0]])
    text = markov.gate_picture(gates).text
    assert text.startswith("75 % of the gates are more than 90 % open")
    assert text.splitlines()[2].split() == ["0.0-0.1", "0.25"]


@pytest.mark.parametrize(
    ("head", "multiply_adds", "out", "parameters", "state"),
    [  # V 31, D 24, rank 5, GRU 6, inner 7
        ("dflash", 0, 0, 0, 0),
        ("markov", 5 * 31, 5 * 31, 2 * 5 * 31, 0),
        ("gated", 5 * 31 + 29 * 5, 5 * 31, 2 * 5 * 31 + 29 * 5 + 5, 0),
        ("rnn", 5 * 31 + 34 * 15, 5 * 31, 2 * 5 * 31 + 34 * 15 + 15, 5),
        ("domino", 7 * 31 + 30 * 18 + 30 * 7, 7 * 31, 7 * 31 + 30 * 18 + 30 * 7, 6),
    ],
)
def test_costs_are_those_counted_by_hand(head, multiply_adds, out, parameters, state):
    spec = tiny_drafter(tiny_target(), head).spec
    row = memory.cost_table({head: spec}).splitlines()[1]
    numbers = [f"{n:,}" for n in (multiply_adds, out, parameters, state)]
    assert row.split() == [head, *numbers]


def test_the_big_table_has_the_released_sizes():
    grown = memory.at_qwen3_4b_sizes(tiny_drafter(tiny_target(), "domino").spec)
    assert (grown.vocab_size, grown.hidden_size) == (151_936, 2560)
    assert (grown.gru_size, grown.inner_size, grown.rank) == (1024, 256, 0)


def test_drafters_are_grouped_by_their_block():
    target = tiny_target()
    four, six = tiny_drafter(target), tiny_drafter(target, block_size=6)
    found = memory.by_block_size({"markov": four, "markov-k6": six})
    assert found == {4: [("markov", "markov")], 6: [("markov", "markov-k6")]}


def test_places_are_averaged_by_kind_the_commonest_first():
    places = (
        Place(0, 3, "slow and", "steady", 0.2),
        Place(0, 9, "rain or", "shine", 0.5),
        Place(1, 3, "rain or", "shine", 1.0),
    )
    found = {"markov": MemoryAcceptance(places, 0.4, 0.9)}
    lines = memory.named_places(found, 2).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["0.75", "0.20"]
    assert lines[1].startswith("rain or → shine")
    title = memory.places_picture((4, found)).text.splitlines()[0]
    assert "K = 4" in title and "markov 40 %" in title


def test_a_drafter_without_a_head_has_none_to_cut_off():
    shares = {"dflash": {"base alone": 0.7, "whole": 0.7}}
    assert "there is none" in memory.base_picture(shares).text
    shares |= {
        n: {"base alone": x, "whole": 0.9} for n, x in (("rnn", 0.4), ("a", 0.5))
    }
    assert memory.base_picture(shares).text.splitlines()[0].endswith("rnn 40 %, a 50 %")
