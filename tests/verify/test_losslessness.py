"""The law of the output of one block, by exact integration over drafts and uniforms.

What a verifier emits, continued by the target to K + 1 tokens, must have the target's
own law to 1e-12 (see exact_laws.py), and the same check must catch each planted fault.
"""

from dataclasses import replace

import pytest
import torch
from exact_laws import CUTS, TOLERANCE, Block, block_law, check_lossless
from torch import Tensor

from dsparkref.lab.planted_faults import (
    BEFORE_TOP_K,
    FROM_TARGET,
    MISTOLD,
    MORE_WRONG_VERDICTS,
    SOFT_LAW,
    TRUNCATION,
    WRONG_VERDICTS,
    plain_verifier,
)
from dsparkref.records import Verdict
from dsparkref.verify.policies import ConfidenceThreshold
from dsparkref.verify.rejection import (
    VERIFIERS,
    accept_rate,
    token_match_block,
    verify_block,
)
from dsparkref.verify.sampling import probabilities


def random_logits(count: int, vocab: int, seed: int) -> list[Tensor]:
    """Logits given every path: table k is [V] * k + [V]."""
    generator = torch.Generator().manual_seed(seed)
    kind = {"generator": generator, "dtype": torch.float64}
    return [2 * torch.randn([vocab] * (k + 1), **kind) for k in range(count)]


def random_block(
    size: int, vocab: int, seed: int, *, draft_temperature: float | None = None, **cut
) -> Block:
    logits = random_logits(size + 1, vocab, seed)
    target = [probabilities(table, **cut) for table in logits]
    if draft_temperature is not None:
        cut = {**cut, "temperature": draft_temperature}
    others = random_logits(size, vocab, seed + 1000)
    draft = [probabilities(table, **cut) for table in others]
    return Block(target, draft, draft)


def first_token(law: Tensor) -> list[float]:
    return law.reshape(len(law), -1).sum(1).tolist()


def one_draft(p: list[float], q: list[float], told: list[float] | None = None) -> Block:
    """K = 1; what comes after is a coin of its own."""
    target, draft = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
    shown = draft if told is None else torch.tensor(told, dtype=torch.float64)
    after = torch.full((len(p), len(p)), 1 / len(p), dtype=torch.float64)
    return Block([target, after], [draft], [shown])


# --- both verifiers are lossless -----------------------------------------------

both = pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
slow = pytest.mark.slow
SIZES = [(0, 3), (1, 3), (2, 3), (3, 3), (1, 4), (2, 4), (1, 5), (3, 2)]
SIZES += [pytest.param(*size, marks=slow) for size in [(2, 5), (3, 4), (3, 5)]]


@both
@pytest.mark.parametrize("size, vocab", SIZES)
def test_output_has_the_targets_law(verifier, size, vocab):
    check_lossless(verifier, random_block(size, vocab, seed=10 * size + vocab))


@both
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("draft_temperature", [None, 0.0], ids=["alike", "greedy"])
def test_lossless_under_every_warp(verifier, cut, draft_temperature):
    block = random_block(2, 4, seed=5, draft_temperature=draft_temperature, **cut)
    check_lossless(verifier, block)


@both
@pytest.mark.parametrize("length", [0, 1, 2])
def test_lossless_when_truncated(verifier, length):
    block = random_block(3, 2, seed=7)
    check_lossless(verifier, block, verify_len=lambda path: length)
    accepted = block_law(verifier, block, verify_len=lambda path: length)[1]
    assert accepted[length] > 0 and (accepted[length + 1 :] == 0).all()


@pytest.mark.parametrize("on", ["conditional", "survival"])
def test_lossless_with_a_threshold_on_a_confidence_that_reads_the_drafts(on):
    block = random_block(3, 2, seed=8)
    generator = torch.Generator().manual_seed(9)
    tables = [torch.rand([2] * k, generator=generator) for k in range(3)]
    policy, chosen = ConfidenceThreshold(0.3, on=on), set()

    def verify_len(path):  # c_k reads the drafts before x_k, as Eq. 7 does
        confidence = torch.stack([table[path[:k]] for k, table in enumerate(tables)])
        length = policy.verify_lengths(confidence[None], block_size=3).item()
        chosen.add(length)
        return length

    check_lossless(verify_block, block, verify_len=verify_len)
    assert len(chosen) > 1  # the drafts did decide


# --- planted faults ------------------------------------------------------------

CAUGHT = r"probability 0|the emitted law is off"


def fault_block() -> Block:
    """Top-p leaves zeros in the target that the uncut draft still proposes."""
    target = random_block(2, 3, seed=2, top_p=0.9).target
    assert any((table == 0).any() for table in target[:2])
    draft = random_block(2, 3, seed=3).draft
    return Block(target, draft, draft)


@pytest.mark.parametrize("length", [1, 2])
def test_the_plain_version_passes(length):
    check_lossless(plain_verifier(), fault_block(), verify_len=lambda path: length)


@pytest.mark.parametrize("fault", WRONG_VERDICTS + MORE_WRONG_VERDICTS)
def test_a_wrong_verifier_is_caught(fault):
    length = 1 if fault == TRUNCATION else 2
    options = {"verify_len": lambda path: length, "faulty": True}
    check_lossless(verify_block, fault_block(), **options)
    with pytest.raises(AssertionError, match=CAUGHT):
        check_lossless(plain_verifier(fault), fault_block(), **options)


@pytest.mark.parametrize("fault", MISTOLD)
def test_a_drafter_that_tells_another_law_is_caught(fault):
    settings = (0.0 if fault == SOFT_LAW else 1.0, 2 if fault == BEFORE_TOP_K else None)
    logits = random_logits(2, 3, seed=11)
    draft = [probabilities(table, *settings) for table in logits]
    told = [MISTOLD[fault](table, *settings, None) for table in logits]
    honest = Block(random_block(2, 3, seed=12).target, draft, draft)
    check_lossless(verify_block, honest)
    with pytest.raises(AssertionError, match=CAUGHT):
        check_lossless(verify_block, replace(honest, told=told))
    check_lossless(token_match_block, replace(honest, told=told))  # never reads it


def test_the_integrator_says_when_it_misses_a_jump():
    def moody(tokens, p_draft, p_target, uniforms, *, verify_len=None):
        token = (uniforms[:, -1] > 0.4).long()
        return Verdict(torch.zeros_like(token), token)

    with pytest.raises(RuntimeError, match="misses a jump"):
        block_law(moody, one_draft([0.3, 0.7], [0.3, 0.7]))


# --- published faults, with their values ---------------------------------------


def test_greedy_draft_with_a_soft_law():
    p, soft, greedy = [0.3, 0.5, 0.2], [0.4, 0.35, 0.25], [1.0, 0.0, 0.0]
    law, accepted = block_law(verify_block, one_draft(p, greedy))
    assert first_token(law) == pytest.approx(p, abs=TOLERANCE)
    assert accepted.tolist() == pytest.approx([0.7, 0.3], abs=TOLERANCE)
    law, _ = block_law(verify_block, one_draft(p, greedy, told=soft))
    assert first_token(law) == pytest.approx([0.75, 0.25, 0.0], abs=TOLERANCE)


def test_replacement_from_the_target_itself():
    p, q = [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]
    law, accepted = block_law(verify_block, one_draft(p, q))
    assert first_token(law) == pytest.approx(p, abs=TOLERANCE)
    assert accepted[1].item() == pytest.approx(0.7, abs=TOLERANCE)
    law, _ = block_law(plain_verifier(FROM_TARGET), one_draft(p, q))
    assert first_token(law) == pytest.approx([0.48, 0.39, 0.13], abs=TOLERANCE)


@pytest.mark.parametrize("head, drafts", [("none", 1.5), ("copy", 2.0)])
@both
def test_independent_slots_cost_acceptance_and_not_the_law(verifier, head, drafts):
    """The only continuations are AA and BB; a Markov head copies the last token."""
    half = torch.full((2,), 0.5, dtype=torch.float64)
    copy = torch.eye(2, dtype=torch.float64)
    second = half.expand(2, 2) if head == "none" else copy
    block = Block([half, copy, half.expand(2, 2, 2)], [half, second], [half, second])
    law, accepted = block_law(verifier, block)
    pairs = law.sum(-1)
    assert pairs.flatten().tolist() == pytest.approx([0.5, 0, 0, 0.5], abs=TOLERANCE)
    if verifier is verify_block:
        mean = (accepted * torch.arange(3)).sum().item()
        assert mean == pytest.approx(drafts, abs=TOLERANCE)


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_is_the_overlap(seed):
    """Rejection keeps sum min(p, q) (Eq. 8), token match sum p q, never more."""
    block = random_block(1, 4, seed=seed)
    p, q = block.target[0], block.draft[0]
    kept = block_law(verify_block, block)[1][1]
    matched = block_law(token_match_block, block)[1][1]
    assert kept.item() == pytest.approx(accept_rate(p, q).item(), abs=TOLERANCE)
    assert matched.item() == pytest.approx((p * q).sum().item(), abs=TOLERANCE)
    assert matched < kept


def test_greedy_match_and_sampled_rejection_each_win_somewhere():
    def keep(verifier, p, q):
        return block_law(verifier, one_draft(p, q))[1][1].item()

    peaked, flat = [0.9, 0.1], [0.5, 0.5]
    assert keep(token_match_block, peaked, [1.0, 0.0]) == pytest.approx(0.9)
    assert keep(verify_block, peaked, [1.0, 0.0]) == pytest.approx(0.9)
    assert keep(verify_block, peaked, [0.6, 0.4]) == pytest.approx(0.7)
    assert keep(token_match_block, flat, [1.0, 0.0]) == pytest.approx(0.5)
    assert keep(verify_block, flat, [0.6, 0.4]) == pytest.approx(0.9)
