"""The check of a user's own pair: its four answers, and faults planted from outside."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_models import greedy_reply, random_ids, tiny_drafter, tiny_target
from toy_models import Teller

from dsparkref import FixedLength, Proposal, Verdict, decode_cycles
from dsparkref.analysis.lossless import check_lossless
from dsparkref.analysis.replay import deviation, standard_score
from dsparkref.analysis.rounding import Rounding, compare_passes, tie_width, ulp
from dsparkref.decode.target import Session
from dsparkref.lab.planted_faults import MISTOLD, SOFT_LAW
from dsparkref.verify.rejection import VERIFIERS
from dsparkref.verify.sampling import draw_uniforms, invert_cdf, probabilities

PROMPTS = [random_ids(8, seed=seed).tolist() for seed in range(4)]
pytestmark = pytest.mark.usefixtures("no_shape_checks")


class Blurred:
    """Drafts from the target's own law, made flatter: often right, not always.

    It taps the embeddings, and finds the text again by comparing them.
    """

    def __init__(self, target, block_size=3, sharpness=0.8):
        self.target, self.block_size, self.sharpness = target, block_size, sharpness
        self.spec = SimpleNamespace(
            target_layer_ids=(-1,), vocab_size=target.vocab_size
        )

    @torch.no_grad()
    def propose(
        self, target_hidden, anchor, *, temperature, top_k, top_p, generator, cache
    ):
        table = self.target.embedding
        ids = (target_hidden[0, :, None] - table).abs().sum(-1).argmin(-1)
        ids, rows = torch.cat([ids, anchor])[None], []
        numbers = draw_uniforms((1, self.block_size), generator=generator, device="cpu")
        for k in range(self.block_size):
            logits = self.target.model(ids, use_cache=False).logits[:, -1].float()
            rows.append(self.sharpness * logits + 0.4 * torch.sin(7.0 * logits))
            law = probabilities(rows[-1], temperature, top_k, top_p)
            ids = torch.cat([ids, invert_cdf(law, numbers[:, k])[:, None]], dim=1)
        draft_logits = torch.stack(rows, dim=1)
        laws = probabilities(draft_logits, temperature, top_k, top_p)
        drafts = ids[:, -self.block_size :]
        return Proposal(tokens=drafts, p_draft=laws, draft_logits=draft_logits)


def small_target(**options):
    return tiny_target(num_hidden_layers=2, **options)


def check(target=None, drafter=None, *, prompts=2, **options):
    """Check a pair; return the report, and the answers by what was looked at."""
    target = target or small_target()
    drafter = drafter or Blurred(target)
    report = check_lossless(
        target, drafter, PROMPTS[:prompts], max_new_tokens=16, **options
    )
    return report, {found.name: found.answer for found in report.findings}


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_an_honest_pair_passes(verifier):
    report, answers = check(verifier=verifier)
    assert report.answer == "pass", report.findings
    assert set(answers.values()) == {"pass"}
    assert ("the drafts' laws" in answers) == (verifier == "rejection")
    verified, kept = (int(x) for x in report.findings[0].detail.split()[:4:3])
    assert verified > kept > 9  # some drafts were rejected, and rolled back
    assert report.rounding.positions == 32
    assert (report.rounding.flips, report.rounding.difference < 1e-4) == (0, True)


def test_a_real_drafter_passes_too():
    target = small_target()
    drafter = tiny_drafter(target, "rnn", target_layer_ids=(0, -1))
    report, answers = check(target, drafter, temperature=2.0)
    assert report.answer in ("pass", "inconclusive"), report.findings
    assert set(answers.values()) <= {"pass", "inconclusive"}


def test_where_nothing_is_verified_it_is_inconclusive():
    report, answers = check(policy=FixedLength(0))
    assert report.answer == answers["drafts"] == "inconclusive"
    assert set(answers.values()) == {"pass", "inconclusive"}
    assert "0 verified and 0 kept" in report.findings[0].detail


def test_replies_that_part_at_a_tie():
    """Two ids are made one and the same to the target; the loop says the other one."""
    target = small_target()
    reply = greedy_reply(target, PROMPTS[0], 16)
    used = {*reply, *greedy_reply(target, PROMPTS[1], 16), *PROMPTS[0], *PROMPTS[1]}
    pairs = ((a, b) for a in reply for b in range(a + 1, 31) if b not in used)
    one, other = next(pairs)  # of equal logits the lower id wins
    with torch.no_grad():
        for table in (
            target.model.get_input_embeddings(),
            target.model.get_output_embeddings(),
        ):
            table.weight[other] = table.weight[one]

    def swapping(*args, temperature, **options):
        names = {one: other} if temperature == 0 else {}
        for cycle in decode_cycles(*args, temperature=temperature, **options):
            emitted = [names.get(token, token) for token in cycle.emitted]
            yield replace(cycle, emitted=emitted)

    assert check(target)[0].answer == "pass"
    report, answers = check(target, decode=swapping)
    assert report.answer == answers.pop("greedy replies") == "tie"
    assert set(answers.values()) == {"pass"}
    assert f"{other} for {one}, 0 below" in report.findings[1].detail


# --- planted faults -------------------------------------------------------------


def lenient(tokens, p_draft, p_target, uniforms, *, verify_len):
    """Keep every draft."""
    rows = torch.arange(len(tokens))
    law = p_target[rows, verify_len]
    return Verdict(verify_len, invert_cdf(law, uniforms[:, -1]))


def from_target(tokens, p_draft, p_target, uniforms, *, verify_len):
    """Replace a rejected draft by a token of the target's, not of the residual."""
    verdict = HONEST(tokens, p_draft, p_target, uniforms, verify_len=verify_len)
    law = p_target[torch.arange(len(tokens)), verdict.num_accepted]
    return Verdict(verdict.num_accepted, invert_cdf(law, uniforms[:, -1]))


HONEST = VERIFIERS["rejection"]


def test_a_verifier_that_keeps_everything_fails(monkeypatch):
    monkeypatch.setitem(VERIFIERS, "rejection", lenient)
    report, answers = check()
    assert report.answer == answers["greedy replies"] == answers["verdicts"] == "fail"
    assert "below" in report.findings[1].detail


def test_a_verifier_that_only_bends_the_law_fails(monkeypatch):
    """Greedy text does not show it: with one-hot laws both draws are the same."""
    monkeypatch.setitem(VERIFIERS, "rejection", from_target)
    report, answers = check()
    assert answers["greedy replies"] == "pass"
    assert report.answer == answers["verdicts"] == "fail"


def test_a_drafter_that_tells_another_law_than_its_own_fails():
    target = small_target()
    liar = Teller(Blurred(target), MISTOLD[SOFT_LAW], temperature=0.0)
    report, answers = check(target, liar, prompts=4)
    assert report.answer == answers["the drafts' laws"] == "fail"
    honest = Teller(Blurred(target), temperature=0.0)
    assert check(target, honest)[0].answer == "pass"


def test_rejected_drafts_left_in_the_cache_fail(monkeypatch):
    def keep(self):
        self._pending = 0

    monkeypatch.setattr(Session, "roll_back", keep)
    report, answers = check()
    assert report.answer == answers["the target's laws"] == "fail"


@pytest.mark.parametrize("cut", [slice(1), slice(0, -1), slice(0, None, 2)])
def test_tokens_lost_on_the_way_fail(cut):
    def losing(*args, **options):
        for cycle in decode_cycles(*args, **options):
            yield replace(cycle, emitted=cycle.emitted[cut])

    report, _ = check(decode=losing)
    assert report.answer == "fail"


def test_a_loop_that_goes_on_after_the_end_fails():
    def overrunning(target, drafter, prompt, *, max_new_tokens, **options):
        count = max_new_tokens + 5
        return decode_cycles(target, drafter, prompt, max_new_tokens=count, **options)

    report, answers = check(decode=overrunning)
    assert report.answer == answers["greedy replies"] == "fail"
    assert "21 tokens, 16 expected" in report.findings[1].detail


def test_traces_without_their_tables_are_refused():
    def bare(*args, keep_tensors=False, **options):
        return decode_cycles(*args, **options)

    with pytest.raises(ValueError, match="decode must keep what a cycle used"):
        check(decode=bare)


def test_bad_options():
    for options, name in (
        ({"temperature": 0.0}, "temperature"),
        ({"verifier": "typical"}, "verifier"),
    ):
        with pytest.raises(ValueError, match=f"{name} must"):
            check(**options)
    with pytest.raises(ValueError, match="prompts must not be empty"):
        check_lossless(tiny_target(), None, [])
    with pytest.raises(ValueError, match="max_new_tokens must be in range"):
        check_lossless(tiny_target(), None, PROMPTS, max_new_tokens=1)


# --- what it is built on --------------------------------------------------------


def test_draws_from_their_law_do_not_surprise():
    generator = torch.Generator().manual_seed(0)
    law = (2 * torch.randn(4000, 12, generator=generator)).softmax(-1)
    drawn = torch.multinomial(law, 1, generator=generator)[:, 0]
    assert abs(standard_score(deviation(law, drawn))) < 4
    assert standard_score(deviation(law, law.argmax(-1))) > 20
    colder = (1.3 * law.log()).softmax(-1)
    assert abs(standard_score(deviation(colder, drawn))) > 5
    one_hot = torch.eye(3)
    assert standard_score(deviation(one_hot, torch.arange(3))) is None
    assert standard_score(deviation(one_hot, torch.tensor([0, 1, 1]))) == -float("inf")


def test_the_width_of_a_tie():
    """Two steps of the dtype at the logit; in float32 never below 1e-4."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for value in (0.3, 1.0, 17.5, 100.0):
            number = torch.tensor(value, dtype=dtype)
            step = torch.nextafter(number, torch.tensor(1e4, dtype=dtype)) - number
            assert ulp(number.item(), dtype) == step.item()
    assert tie_width(17.5, torch.bfloat16) == 0.25
    assert tie_width(17.5, torch.bfloat16, 0.3) == 0.6
    assert tie_width(17.5, torch.float32, 0.3) == 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_block_passes_beside_one_token_passes(dtype):
    target = small_target(dtype=dtype)
    reply = random_ids(40, seed=9).tolist()
    found = compare_passes(target, PROMPTS[0], reply, 5)
    assert found.positions == 40
    assert (found.difference > 1e-3) == (dtype == torch.bfloat16)
    if not found.flips:
        assert (found.gap, found.gap_ulps) == (0, 0)
    assert compare_passes(target, PROMPTS[0], reply, 1) == Rounding(40)
    total = found + Rounding(2, 1, 0.5, 3.0, 9.0)
    assert (total.positions, total.flips) == (42, found.flips + 1)
    assert (total.gap >= 0.5, total.difference) == (True, 9.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parts_at_ties_or_not_at_all(dtype):
    target = small_target(dtype=dtype)
    report, _ = check(target, Blurred(target, sharpness=1.0))
    assert report.answer in ("pass", "tie"), report.findings
