"""The verifiers by hand, against a plain version, and what they refuse.

That their output has the target's law is in test_losslessness.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkref.verify.confidence import survival
from dsparkref.verify.rejection import (
    VERIFIERS,
    accept_probability,
    accept_rate,
    leading_run,
    residual_distribution,
    token_match_block,
    verify_block,
)
from dsparkref.verify.sampling import probabilities, sample

NAN = float("nan")


def tensor(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@st.composite
def law_pairs(draw, dtype=torch.float64):
    size = draw(st.integers(1, 6))
    counts = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    pair = (torch.tensor(draw(counts), dtype=dtype) for _ in range(2))
    return tuple(law / law.sum() for law in pair)


# --- the three formulas --------------------------------------------------------


@settings(deadline=None)
@given(law_pairs())
def test_the_three_formulas_fit_together(pair):
    p, q = pair
    ids = torch.arange(len(p))
    accept = accept_probability(p.expand(len(p), -1), q.expand(len(p), -1), ids)
    rate = accept_rate(p, q).item()
    assert (accept[q == 0] == 0).all() and ((accept >= 0) & (accept <= 1)).all()
    assert (q * accept).sum().item() == pytest.approx(rate, abs=1e-12)
    assert 1 - (p - q).abs().sum().item() / 2 == pytest.approx(rate, abs=1e-12)
    residual = residual_distribution(p, q)
    # what accepted drafts cover and what replacements add make the target's law
    whole = q * accept + (1 - rate) * residual
    torch.testing.assert_close(whole, p, atol=1e-12, rtol=0)


@settings(deadline=None)
@given(law_pairs(dtype=torch.float32))
def test_the_residual_is_a_law_inside_the_target(pair):
    p, q = pair
    residual = residual_distribution(p, q)
    assert residual.isfinite().all() and (residual >= 0).all()
    assert residual.sum().item() == pytest.approx(1, abs=1e-6)
    assert (residual[p == 0] == 0).all()
    if not torch.equal(p, q):
        assert (residual[q >= p] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_residual_of_equal_laws_is_the_law(dtype):
    p = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=dtype)
    assert residual_distribution(p, p).tolist() == p.tolist()


def test_the_rate_of_equal_laws_is_a_probability():
    """A rounded sum of a thousand words may pass 1; what reads a rate may not."""
    logits = 2 * torch.randn(200, 1024, generator=torch.Generator().manual_seed(0))
    law = logits.softmax(dim=-1)
    assert (law.sum(dim=-1) > 1).any()  # what is at stake
    rate = accept_rate(law, law)
    assert (rate <= 1).all() and (rate > 1 - 1e-6).all()
    assert (survival(rate[None]) <= 1).all()


def test_a_law_of_eight_bits_is_one():
    """.6, .3 and .1 sum to 1.0024 in bfloat16; the law is judged as it stands."""
    law = torch.tensor([0.6, 0.3, 0.1]).bfloat16()
    assert accept_rate(law, law) == 1
    assert accept_probability(law, law, torch.tensor(0)) == 1
    assert sample(law, torch.tensor(0.999)) == 2
    with pytest.raises(ValueError, match="must sum to 1"):
        accept_rate(law.float(), law.float())
    with pytest.raises(ValueError, match="must sum to 1"):
        accept_rate(1.01 * law, law)


@pytest.mark.parametrize("nudge", [1e-8, -1e-8])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_residual_of_laws_equal_up_to_rounding(nudge, at):
    p = torch.tensor([0.3, 0.5, 0.2, 0.0])
    q = p.clone()
    q[at] += nudge
    assert torch.equal(residual_distribution(p, q), p)
    block, rows = torch.tensor([[1]]), torch.stack([p, p])[None]
    for u, expected in (0.0, 0), (0.4, 1), (1 - 2**-24, 2):  # 0.999: must reject
        uniforms = torch.tensor([[1 - 2**-24, u]])
        verdict = verify_block(block, q[None, None], rows, uniforms)
        assert verdict.next_token.item() == expected


def test_a_greedy_drafts_residual():
    residual = residual_distribution(tensor([0.3, 0.5, 0.2]), tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(residual, tensor([0.0, 5 / 7, 2 / 7]))


def test_identical_models_accept_everything():
    law = probabilities(torch.tensor([2.0, 1.5, 1.0, 0.5]), 0.5)
    accept = accept_probability(law.expand(4, 4), law.expand(4, 4), torch.arange(4))
    assert accept.tolist() == [1.0] * 4
    assert accept_rate(law, law).item() == pytest.approx(1, abs=1e-6)


def test_half_precision_laws_are_raised():
    p = torch.tensor([0.5, 0.5], dtype=torch.bfloat16)
    assert accept_probability(p, p, torch.tensor(0)).dtype == torch.float32
    assert accept_rate(p, p.double()).dtype == torch.float64
    assert residual_distribution(p, p).dtype == torch.float32


# --- blocks by hand ------------------------------------------------------------


def ratio_block() -> dict:
    """Accept probabilities .5, 1, 1 for the drafts 0, 0, 0."""
    p_draft = tensor([[[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]])
    p_target = tensor([[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]])
    tokens = torch.tensor([[0, 0, 0]])
    return {"tokens": tokens, "p_draft": p_draft, "p_target": p_target}


@pytest.mark.parametrize("last", [0.0, 0.5, 0.99])
def test_only_the_leading_run_counts(last):
    early = verify_block(**ratio_block(), uniforms=tensor([[0.9, 0.1, 0.1, last]]))
    assert early.num_accepted.tolist() == [0]
    assert early.next_token.tolist() == [1]  # the residual of position 0
    whole = verify_block(**ratio_block(), uniforms=tensor([[0.4, 0.1, 0.1, last]]))
    assert whole.num_accepted.tolist() == [3]
    assert whole.next_token.tolist() == [1]  # p_t at position 3


@pytest.mark.parametrize("length, count, token", [(0, 0, 0), (1, 1, 0), (3, 3, 1)])
def test_verify_len_ends_the_block_with_the_bonus_of_its_row(length, count, token):
    uniforms = tensor([[0.4, 0.1, 0.1, 0.2]])
    for limit in length, torch.tensor([length]):
        verdict = verify_block(**ratio_block(), uniforms=uniforms, verify_len=limit)
        assert verdict.num_accepted.tolist() == [count]
        assert verdict.next_token.tolist() == [token]


def test_zero_never_keeps_probability_zero():
    p_target = tensor([[[0.0, 1.0], [0.5, 0.5]]])
    p_draft = tensor([[[1.0, 0.0]]])
    verdict = verify_block(torch.tensor([[0]]), p_draft, p_target, tensor([[0.0, 0.0]]))
    assert (verdict.num_accepted.item(), verdict.next_token.item()) == (0, 1)


@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
def test_no_drafts_at_all(verifier):
    law = tensor([[[0.25, 0.75]], [[0.25, 0.75]]])
    nothing = torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, 2)
    verdict = verifier(*nothing, law, tensor([[0.1], [0.3]]))
    assert verdict.num_accepted.tolist() == [0, 0]
    assert verdict.next_token.tolist() == [0, 1]


def test_token_match_uses_number_k_at_row_k_and_the_last_for_the_bonus():
    """One row per outcome; all laws are fair coins, so u < .5 draws token 0."""
    coins = torch.full((4, 4, 2), 0.5)
    tokens = torch.tensor([[1, 1, 1]]).expand(4, 3)
    uniforms = torch.tensor(
        [
            [0.1, 0.9, 0.9, 0.9],  # parts at row 0, its own sample is 0
            [0.9, 0.1, 0.9, 0.9],  # parts at row 1
            [0.9, 0.9, 0.9, 0.1],  # all match, bonus 0
            [0.9, 0.9, 0.1, 0.1],  # verify_len 2: row 2 draws with the last number
        ]
    )
    limits = torch.tensor([3, 3, 3, 2])
    verdict = token_match_block(tokens, None, coins, uniforms, verify_len=limits)
    assert verdict.num_accepted.tolist() == [0, 1, 3, 2]
    assert verdict.next_token.tolist() == [0, 0, 0, 0]
    swapped = uniforms.clone()
    swapped[3, 2:] = torch.tensor([0.1, 0.9])
    verdict = token_match_block(tokens, None, coins, swapped, verify_len=limits)
    assert verdict.next_token[3] == 1


def plain_rejection(tokens, p_draft, p_target, uniforms, length):
    """The rule, word for word, on Python numbers."""
    for k in range(length):
        x = tokens[k]
        if not uniforms[k] * p_draft[k][x] < p_target[k][x]:
            law = [
                max(p - q, 0.0) for p, q in zip(p_target[k], p_draft[k], strict=True)
            ]
            return k, law
    return length, p_target[length]


def plain_match(tokens, p_draft, p_target, uniforms, length):
    for k in range(length):
        if plain_pick(p_target[k], uniforms[k]) != tokens[k]:
            law = [0.0] * len(p_target[k])
            law[plain_pick(p_target[k], uniforms[k])] = 1.0
            return k, law
    return length, p_target[length]


def plain_pick(law, u):
    total, running = sum(law), 0.0
    for x, p in enumerate(law):
        running += p
        if p > 0 and u * total < running:
            return x
    raise AssertionError


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(1, 6), st.data())
def test_batches_equal_the_plain_rule_row_by_row(seed, block, vocab, data):
    generator = torch.Generator().manual_seed(seed)
    kind = {"generator": generator, "dtype": torch.float64}
    rows = 8
    p_target = (2 * torch.randn(rows, block + 1, vocab, **kind)).softmax(-1)
    p_draft = (
        p_target[:, :block].log() + torch.randn(rows, block, vocab, **kind)
    ).softmax(-1)
    tokens = torch.randint(vocab, (rows, block), generator=generator)
    uniforms = torch.rand(rows, block + 1, **kind)
    limits = data.draw(st.lists(st.integers(0, block), min_size=rows, max_size=rows))
    for verifier, plain in (
        (verify_block, plain_rejection),
        (token_match_block, plain_match),
    ):
        verdict = verifier(
            tokens, p_draft, p_target, uniforms, verify_len=torch.tensor(limits)
        )
        tables = (t.tolist() for t in (tokens, p_draft, p_target, uniforms))
        for row, (table, length) in enumerate(
            zip(zip(*tables, strict=True), limits, strict=True)
        ):
            count, law = plain(*table, length)
            assert verdict.num_accepted[row] == count
            assert verdict.next_token[row] == plain_pick(law, table[3][-1])


def test_leading_run():
    kept = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    assert leading_run(kept).tolist() == [1, 3, 0]


# --- what is refused -----------------------------------------------------------


def good_block() -> dict:
    return {
        "tokens": torch.tensor([[0, 1], [1, 2]]),
        "p_draft": torch.full((2, 2, 4), 0.25),
        "p_target": torch.full((2, 3, 4), 0.25),
        "uniforms": torch.full((2, 3), 0.5),
    }


BAD = {
    "an id of V": ({"tokens": torch.tensor([[0, 4], [1, 2]])}, "tokens .*0..3, got 4"),
    "a negative id": ({"tokens": torch.tensor([[0, -1], [1, 2]])}, "tokens .*got -1"),
    "ids that are floats": ({"tokens": torch.zeros(2, 2)}, "tokens"),
    "rank": ({"tokens": torch.tensor([0, 1])}, "tokens"),
    "a missing bonus row": ({"p_target": torch.full((2, 2, 4), 0.25)}, "p_target"),
    "a missing draft row": ({"p_draft": torch.full((2, 1, 4), 0.25)}, "p_draft"),
    "unlike vocabularies": (
        {"p_draft": torch.full((2, 2, 5), 0.2)},
        "p_draft .*V = 4, got V = 5",
    ),
    "a law that sums to 4": ({"p_target": torch.ones(2, 3, 4)}, "p_target .*sum to 1"),
    "NaN": ({"p_draft": torch.full((2, 2, 4), NAN)}, "p_draft .*probabilities"),
    "a uniform of 1": ({"uniforms": torch.ones(2, 3)}, "uniforms"),
    "a missing uniform": ({"uniforms": torch.zeros(2, 2)}, "uniforms"),
    "too long": ({"verify_len": 3}, "verify_len .*<= 2, got 3"),
    "negative": ({"verify_len": -1}, "verify_len"),
    "no integer": ({"verify_len": 1.0}, "verify_len"),
    "one too long": ({"verify_len": torch.tensor([0, 3])}, "verify_len .*got 3"),
    "one for each": ({"verify_len": torch.tensor([0, 1, 2])}, "verify_len"),
    "float lengths": ({"verify_len": torch.tensor([0.0, 1.0])}, "verify_len"),
}


@pytest.mark.parametrize("changed, match", BAD.values(), ids=BAD)
@pytest.mark.usefixtures("no_shape_checks")
def test_refused_by_name(changed, match):
    verify_block(**good_block())
    with pytest.raises((ValueError, TypeError), match=match):
        verify_block(**{**good_block(), **changed})
    if "p_draft" not in changed:
        token_match_block(**good_block())
        with pytest.raises((ValueError, TypeError), match=match):
            token_match_block(**{**good_block(), **changed})


@pytest.mark.parametrize("formula", [accept_rate, residual_distribution])
@pytest.mark.usefixtures("no_shape_checks")
def test_formulas_refuse_unlike_vocabularies(formula):
    with pytest.raises((ValueError, TypeError), match=r"p_draft .*V = 4, got V = 5"):
        formula(torch.full((4,), 0.25), torch.full((5,), 0.2))


def test_bad_row_is_named_by_its_block_position():
    block = good_block()
    block["p_target"][1, 2, 0] = NAN
    with pytest.raises(ValueError, match=r"p_target .*position 2"):
        verify_block(**block)
