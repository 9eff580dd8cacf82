"""The Markov table: cut by SVD, read as pushes; against slow versions of both."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny_drafter, tiny_target

from dsparkref.analysis.markov_table import (
    markov_head,
    push_directions,
    strongest_pushes,
    truncated_table,
    with_rank,
)
from dsparkref.draft.heads import MarkovHead


def random_tables(vocab_size=7, draftable=5, rank=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = {"generator": generator, "dtype": torch.float64}
    return torch.randn(vocab_size, rank, **shape), torch.randn(draftable, rank, **shape)


@given(st.integers(0, 3), st.integers(0, 50), st.integers(2, 6))
def test_the_cut_is_that_of_the_whole_products_svd(rank, seed, vocab_size):
    prev_embed, bias_proj = random_tables(vocab_size, seed=seed)
    table = prev_embed @ bias_proj.T
    left, sizes, right = torch.linalg.svd(table, full_matrices=False)
    slow = left[:, :rank] @ torch.diag(sizes[:rank]) @ right[:rank]
    found = truncated_table(prev_embed, bias_proj, rank)
    assert (found - slow).abs().max() < 1e-9
    # what is lost is what the dropped singular values hold
    lost = (found - table).square().sum()
    assert abs(lost - sizes[rank:].square().sum()) < 1e-9


def test_directions_have_length_one_and_are_square_to_each_other():
    directions = push_directions(*random_tables())
    assert (directions.T @ directions - torch.eye(3)).abs().max() < 1e-12


@pytest.mark.parametrize("head", ["markov", "gated", "rnn"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_cut_head_pushes_in_few_directions(head, rank):
    whole = tiny_drafter(tiny_target(), head)
    cut = with_rank(whole, rank)
    tables = whole.head.prev_embed.weight, whole.head.bias_proj.weight
    table = cut.head.prev_embed.weight @ cut.head.bias_proj.weight.T
    assert (table - truncated_table(*tables, rank)).abs().max() < 1e-4
    assert cut.backbone is whole.backbone and cut.tables()[0] is whole.tables()[0]
    assert cut.head.prev_embed is not whole.head.prev_embed


def test_the_whole_rank_changes_nothing():
    whole = tiny_drafter(tiny_target(), "markov")
    before = whole.head.bias_proj.weight.clone()
    cut = with_rank(whole, whole.spec.rank)
    assert (cut.head.bias_proj.weight - before).abs().max() < 1e-5
    assert torch.equal(whole.head.bias_proj.weight, before)


def test_pushes_are_the_largest_entries_of_their_rows():
    head = MarkovHead(70, 3)  # more rows than are looked at together
    table = (head.prev_embed.weight @ head.bias_proj.weight.T).detach()
    table -= table.mean(dim=-1, keepdim=True)
    found = strongest_pushes(head, range(70), count=2)
    assert [push.before for push in found] == [i for i in range(70) for _ in range(2)]
    for x in range(70):
        best = sorted(table[x].tolist(), reverse=True)[:2]
        pushes = found[2 * x : 2 * x + 2]
        assert [push.logits for push in pushes] == pytest.approx(best, abs=1e-5)
        assert all(table[x, p.token] == pytest.approx(p.logits) for p in pushes)


@pytest.mark.usefixtures("no_shape_checks")
def test_what_has_no_table_is_refused():
    with pytest.raises(ValueError, match="drafter must have a head with Markov tables"):
        markov_head(tiny_drafter(tiny_target(), "domino"))
    with pytest.raises(ValueError, match="rank must be"):
        with_rank(tiny_drafter(tiny_target(), "markov"), -1)
    with pytest.raises(ValueError, match="rank must be"):
        truncated_table(*random_tables(), 4)
    with pytest.raises(ValueError, match="before must be"):
        strongest_pushes(MarkovHead(3, 2), [3])
    with pytest.raises(ValueError, match="bias_proj must have shape"):
        push_directions(torch.ones(3, 2), torch.ones(3, 1))


def test_it_goes_on_decoding():
    target = tiny_target()
    drafter = with_rank(tiny_drafter(target, "markov"), 1)
    hidden = torch.randn(1, 4, drafter.spec.feature_size)
    proposal = drafter.propose(hidden, torch.tensor([1]))
    assert proposal.tokens.shape == (1, drafter.block_size)
    assert target.vocab_size == proposal.p_draft.shape[-1]
