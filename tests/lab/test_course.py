"""The helpers of the notebooks: a cycle as a table, and which drafters there are."""

import torch
from tiny_models import tiny_target

from dsparkref import Proposal, Target, load_pair, verify_block
from dsparkref.lab import course

HALF = torch.tensor([0.5, 0.5])


class Words:
    """A tokenizer of two words."""

    def decode(self, ids):
        return ("yes", "no")[ids[0]]


def table(p_target, tokens=(0, 1)):
    """The lines of a block of two drafts, drawn evenly and judged with u = 0.5."""
    tokens, p_draft = torch.tensor([tokens]), HALF.expand(1, 2, 2)
    p_target, uniforms = torch.tensor([p_target]), torch.full((1, 3), 0.5)
    verdict = verify_block(tokens, p_draft, p_target, uniforms)
    target = Target(tiny_target().model, Words())
    proposal = Proposal(tokens=tokens, p_draft=p_draft)
    anchor = torch.tensor([1])
    text = course.cycle_table(target, anchor, proposal, p_target, uniforms, verdict)
    return [line.split() for line in text.splitlines()]


def test_a_cycle_is_told_draft_by_draft():
    anchor, _, first, second, last = table([[0.5, 0.5], [0.8, 0.2], [1.0, 0.0]])
    assert anchor == ["anchor:", "'no'"]
    assert first == ["'yes'", "0.50", "0.50", "1.00", "0.50", "kept"]
    assert second == ["'no'", "0.50", "0.20", "0.40", "0.50", "rejected"]
    assert last == ["'yes'", "from", "the", "target:", "the", "replacement"]


def test_what_follows_a_rejection_was_not_reached():
    lines = table([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    assert [line[-1] for line in lines[2:4]] == ["rejected", "reached"]


def test_a_block_that_stands_ends_with_the_bonus():
    assert table([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])[-1][-1] == "bonus"


def test_a_missing_number_is_a_dash():
    assert course.text_table({"a": [0.5, float("nan")]}).splitlines()[1].split() == [
        "a", "0.50", "-",
    ]  # fmt: skip


def test_the_tiny_pair_has_five_drafters(monkeypatch):
    monkeypatch.delenv("DSPARKREF_PAIR", raising=False)
    pair = load_pair()
    found = course.sibling_drafters(pair)
    assert list(found) == ["dflash", "markov", "gated", "rnn", "domino"]
    assert found["markov"] is pair.drafter  # loaded once
    assert all(drafter.head_type == head for head, drafter in found.items())
    assert course.is_tiny()


def test_a_pair_of_the_readers_own_has_one_drafter(monkeypatch):
    pair = load_pair("tiny", head="rnn")
    monkeypatch.setenv("DSPARKREF_PAIR", "target,drafter")
    assert course.sibling_drafters(pair) == {"rnn": pair.drafter}
    assert not course.is_tiny()


def test_the_tiny_pair_stands_in_for_a_drafter_without_tables(capsys):
    markov = load_pair("tiny", head="markov")
    assert course.with_tables(markov) is markov
    found = course.with_tables(load_pair("tiny", head="domino"))
    assert found.drafter.head_type == "markov"
    assert "domino: no Markov table" in capsys.readouterr().out


def test_released_drafters_that_are_not_here_are_named(monkeypatch, capsys):
    pair = load_pair("tiny", head="markov")
    monkeypatch.setenv("DSPARKREF_PAIR", "qwen3-4b")
    monkeypatch.setitem(course.QWEN3_4B_DRAFTERS, "dflash", "example/not-here")
    monkeypatch.delitem(course.QWEN3_4B_DRAFTERS, "dflash-b16")
    monkeypatch.delitem(course.QWEN3_4B_DRAFTERS, "domino")
    assert course.sibling_drafters(pair) == {"markov": pair.drafter}
    assert "dflash: example/not-here is not on this machine" in capsys.readouterr().out
