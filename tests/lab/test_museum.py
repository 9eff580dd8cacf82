"""Notebook 12's helpers: six folders of one drafter, nine faults and their symptoms."""

import math
from types import SimpleNamespace

import pytest
import torch
from tiny_models import greedy_reply, random_ids, tiny_drafter, tiny_target

from dsparkref import Pair, generate, load_drafter
from dsparkref.analysis.evaluate import Evaluation
from dsparkref.checkpoints.inspect import inspect_source
from dsparkref.lab import museum, published
from dsparkref.lab import museum_figures as figures
from dsparkref.lab.checks import CORRECT, NOT_ATTEMPTED, WRONG
from dsparkref.records import CycleTrace, Generation

TARGET = tiny_target()


@pytest.fixture(params=["markov", "gated", "rnn"])
def pair(request) -> Pair:
    return Pair(TARGET, tiny_drafter(TARGET, request.param))


@pytest.fixture
def with_tokenizer(monkeypatch):
    """Texts become ids by their letters; Domino's folder needs a mask token."""
    monkeypatch.setattr(TARGET, "tokenizer", SimpleNamespace(mask_token_id=30))
    monkeypatch.setattr(
        type(TARGET), "encode", lambda self, text: [ord(x) % 30 for x in text]
    )


def test_six_folders_are_what_they_are_called(pair, with_tokenizer, tmp_path):
    six = published.write_six(pair, tmp_path)
    said = {name: inspect_source(place)["layout"] for name, place in six.items()}
    assert said == {name: name for name in six} and len(six) == 6
    rows, prev = torch.randn(1, 5, pair.drafter.spec.feature_size), random_ids(1, 4)
    with torch.no_grad():
        want = pair.drafter.teacher_forced(rows, prev)
        for name in published.DSPARK:
            got = load_drafter(six[name], TARGET).teacher_forced(rows, prev)
            assert got.draft_logits.equal(want.draft_logits)
            assert got.confidence_logits.equal(want.confidence_logits)
        plain = load_drafter(six["z-lab"], TARGET)
    kept = pair.drafter.backbone.state_dict()
    assert all(plain.backbone.state_dict()[n].equal(v) for n, v in kept.items())
    words = published.spellings(six)
    assert "head: none" in words and "head: embed_proj.0, embed_proj.2" in words
    assert "layout: modelopt" in published.facts_table(six, ("layout",))


def test_a_drafter_of_no_dspark_gets_a_stand_in(with_tokenizer, tmp_path):
    pair = Pair(TARGET, tiny_drafter(TARGET, "domino"))
    six = published.write_six(pair, tmp_path)
    assert load_drafter(six["deepspec"], TARGET).head_type == "markov"


@pytest.mark.parametrize("name", museum.EXHIBITS)
def test_an_exhibit_is_another_drafter_and_stays_lossless(name, pair):
    """Greedy text is the target's, whatever was planted; the drafts are others'."""
    setup = museum.EXHIBITS[name].plant(pair)
    prompt = random_ids(6).tolist()
    options = {"max_new_tokens": 12}
    sick = generate(TARGET, setup.drafter, prompt, policy=setup.policy, **options)
    assert sick.tokens == greedy_reply(TARGET, prompt, 12)
    well = generate(TARGET, pair.drafter, prompt, **options)

    def seen(reply):
        return [(c.anchor, c.drafts, c.verify_len) for c in reply.cycles]

    if name != "E":  # greedy drafts, told greedily, are what they should be
        assert seen(sick) != seen(well)


def test_the_soft_law_is_a_law_that_nothing_was_drawn_from(pair):
    rows, anchor = torch.randn(1, 5, pair.drafter.spec.feature_size), torch.tensor([3])
    told = museum.GreedyToldSoft(pair.drafter).propose(rows, anchor, temperature=1.0)
    drawn = pair.drafter.propose(rows, anchor, temperature=0.0)
    assert told.tokens.equal(drawn.tokens)
    assert told.p_draft.allclose(drawn.draft_logits.softmax(dim=-1), atol=1e-6)
    assert (told.p_draft.max(dim=-1).values < 1).all()


def test_symptoms_are_counted(pair, with_tokenizer):
    found = museum.examine(pair, ["Hello", "Why?"], max_new_tokens=6)
    assert list(found) == [museum.HEALTHY, *museum.EXHIBITS]
    for one in found.values():
        assert len(one.conditional) == 4 and sum(one.kept) == pytest.approx(1)
        assert one.accepted_length >= 1 and one.surprise > 0
    assert found["D"].accepted_length <= 3
    picture = figures.exhibit_picture(("D", found["D"], found[museum.HEALTHY]))
    assert picture.text.startswith("Exhibit D: ") and "drafts kept" in picture.text
    rows = figures.symptoms_table(found).splitlines()
    assert len(rows) == 2 + len(museum.EXHIBITS)


def test_places_are_compared_by_hand(no_shape_checks):
    """Context of two, anchor 5 at place 2; the reply goes on 6 7 8."""
    cycle = CycleTrace(0, 2, 5, [6, 8, 8], None, 3, 1, 7, [6, 7], 0.0, 0.0)
    run = Evaluation(3, (Generation([5, 6, 7, 8], "length", [cycle]),), (0.0,))
    assert museum.matches(run, [[1, 2]], shift=0) == pytest.approx(2 / 3)  # 6, 8
    assert museum.matches(run, [[1, 2]], shift=1) == pytest.approx(1 / 2)  # of 7, 8
    empty = Evaluation(3, (Generation([], "stop", []),), (0.0,))
    assert math.isnan(museum.matches(empty, [[1]], shift=0))


def test_surprise_is_the_targets_own_cross_entropy():
    run = Evaluation(4, (Generation([4, 9], "length", []),), (0.0,))
    with torch.no_grad():
        logits = TARGET.model(torch.tensor([[1, 2, 4, 9]])).logits[0, 1:3]
    want = torch.nn.functional.cross_entropy(logits, torch.tensor([4, 9]))
    assert museum.surprise(TARGET, run, [[1, 2]]) == pytest.approx(
        float(want), abs=1e-5
    )


def test_a_diagnosis_is_judged():
    listed = [line[4:] for line in museum.causes().splitlines()]
    assert listed == sorted(listed) and len(listed) == len(museum.EXHIBITS) >= 8
    right = {n: listed.index(one.cause) + 1 for n, one in museum.EXHIBITS.items()}
    assert museum.diagnose(right).status == CORRECT
    assert museum.diagnose(dict.fromkeys(right, ...)).status == NOT_ATTEMPTED
    some = dict.fromkeys(right, ...) | {"A": right["A"]}
    assert museum.diagnose(some).message == f"1 of {len(right)} found, 8 to go."
    swapped = right | {"A": right["B"], "B": 99}
    judged = museum.diagnose(swapped)
    assert judged.status == WRONG and "look again at A, B." in judged.message
    assert all(one.cause in museum.reveal() for one in museum.EXHIBITS.values())


def test_a_bare_drafter_has_no_head_and_learns_nothing(pair, monkeypatch):
    monkeypatch.setenv("DSPARKREF_PAIR", "a,b")
    bare = museum.bare_drafter(pair)
    assert bare.head_type == "dflash"
    assert not any(p.requires_grad for p in bare.parameters())
    curves = {"no head": [0.5, 0.25], "your head": [0.5, 0.5]}
    text = figures.own_head_picture(curves, "").text
    assert text.startswith("The last draft overlaps 25 % without a head, 50 % with")
