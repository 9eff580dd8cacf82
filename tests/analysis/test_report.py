"""The evaluation report: gains, goals, and what happens when a claim turns false."""

import copy
from types import SimpleNamespace

import pytest

from dsparkref.analysis.evaluate import Evaluation
from dsparkref.analysis.report import chat_shortfall, gains, goals, with_all
from dsparkref.records import CycleTrace, Generation


def evaluation(kept_per_reply, *, size=3):
    """Replies whose cycles keep so many drafts each."""
    replies = []
    for kept in kept_per_reply:
        cycles = [
            CycleTrace(
                index, 5, 1, [2] * size, None, size, n, 9, [2] * n + [9], 0.1, 0.2
            )
            for index, n in enumerate(kept)
        ]
        tokens = [1, *(token for cycle in cycles for token in cycle.emitted)]
        replies.append(Generation(tokens, "length", cycles))
    return Evaluation(size, tuple(replies), (1.0,) * len(replies))


def drafter(head, size=3):
    return SimpleNamespace(head_type=head, block_size=size)


def by_domain(math, code, chat):
    names = ("math", "code", "chat")
    return with_all(dict(zip(names, map(evaluation, (math, code, chat)), strict=True)))


DFLASH = by_domain([[2, 2]], [[2, 2]], [[0, 0]])
MARKOV = by_domain([[3, 3]], [[3, 3]], [[1, 1]])


def test_all_is_the_sum_of_the_domains():
    assert DFLASH["all"].accepted_length == pytest.approx((3 + 3 + 1) / 3)
    assert [len(DFLASH[name].replies) for name in DFLASH] == [1, 1, 1, 3]


def test_a_gain_is_over_the_dflash_of_the_same_block():
    long = {
        name: evaluation([[size]], size=5)
        for name, size in zip(("math", "code", "chat"), (4, 4, 4), strict=True)
    }
    drafters = {
        "dflash": drafter("dflash"),
        "markov": drafter("markov"),
        "dflash-k15": drafter("dflash", 5),
        "markov-k15": drafter("markov", 5),
        "orphan": drafter("rnn", 9),
    }
    evaluations = {
        "dflash": DFLASH,
        "markov": MARKOV,
        "dflash-k15": with_all(long),
        "markov-k15": with_all(long),
        "orphan": with_all(long),
    }
    found = gains(drafters, evaluations)
    assert set(found) == {"markov", "markov-k15"}
    assert found["markov"]["over"] == "dflash"
    assert found["markov"]["chat"]["gain"] == pytest.approx(1.0)
    assert found["markov"]["all"]["gain"] == pytest.approx(10 / 7 - 1)
    assert found["markov-k15"]["over"] == "dflash-k15"
    assert found["markov-k15"]["all"]["gain"] == 0.0
    assert found == gains(drafters, evaluations)  # the intervals have a seed


def test_an_interval_holds_its_gain():
    ours = evaluation([[3, 3], [1], [2, 0, 3], [3]])
    theirs = evaluation([[1, 2], [1], [0, 0, 1], [2]])
    drafters = {"dflash": drafter("dflash"), "rnn": drafter("rnn")}
    found = gains(drafters, {"dflash": {"all": theirs}, "rnn": {"all": ours}})
    gain = found["rnn"]["all"]
    assert gain["low"] < gain["gain"] < gain["high"]


def report():
    decoding = {"autoregressive": {"all": {"tokens": 5}}}
    lengths = {"math": 6.0, "code": 6.0, "chat": 4.0, "all": 5.3}
    for name in ("dflash", "markov"):
        decoding[name] = {d: {"accepted_length": n} for d, n in lengths.items()}
        decoding[name]["all"]["conditional_acceptance"] = [0.9, 0.8, 0.7]
    return {
        "target": {"math": {"accuracy": 0.99, "perplexity": 1.2}},
        "decoding": decoding,
        "gains": {
            "markov": {"over": "dflash", "all": {"gain": 0.2}, "chat": {"gain": 0.4}},
            "markov-k15": {"over": "dflash-k15", "all": {"gain": 0.5}},
        },
        "memory": {
            "drafters": {"markov": {"at_places": 0.3}, "rnn": {"at_places": 0.8}}
        },
    }


def verdicts(found):
    return {goal["claim"]: goal["met"] for goal in goals(found)}


def test_all_goals_are_met_by_a_report_that_meets_them():
    assert len(verdicts(report())) == 8
    assert all(verdicts(report()).values())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("target", "math", "accuracy"), 0.94),
        (("decoding", "markov", "chat", "accepted_length"), 4.6),
        (("decoding", "dflash", "code", "accepted_length"), 5.2),
        (("decoding", "dflash", "all", "conditional_acceptance"), [0.9, 0.8]),
        (("gains", "markov", "all", "gain"), 0.13),
        (("gains", "markov", "chat", "gain"), 0.29),
        (("gains", "markov-k15", "all", "gain"), 0.2),
        (("memory", "drafters", "rnn", "at_places"), 0.3),
    ],
)
def test_each_goal_can_be_missed(path, value):
    changed = copy.deepcopy(report())
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    missed = [claim for claim, met in verdicts(changed).items() if not met]
    assert len(missed) == 1


def test_shortfall_is_against_the_nearer_domain():
    found = {"math": 6.0, "code": 4.0, "chat": 3.0}
    lengths = {name: {"accepted_length": value} for name, value in found.items()}
    assert chat_shortfall(lengths) == 0.25
