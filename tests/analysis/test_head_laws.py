"""A head's law by enumeration, against the head walked along single paths."""

from itertools import product

import pytest
import torch

from dsparkref.analysis import toy
from dsparkref.analysis.head_laws import head_laws, two_rules_world
from dsparkref.draft.heads import (
    DominoHead,
    GatedMarkovHead,
    MarkovHead,
    NoHead,
    RNNHead,
)

V, D, K = 4, 3, 3


def heads():
    torch.manual_seed(0)
    embedding = torch.randn(V, D)
    return {
        "dflash": NoHead(V),
        "markov": MarkovHead(V, 2),
        "gated": GatedMarkovHead(V, 2, D),
        "rnn": RNNHead(V, 2, D),
        "domino": DominoHead(V, D, 5, 2, 1, lambda tokens: embedding[tokens]),
    }


@pytest.mark.parametrize("name", heads())
@torch.no_grad()
def test_each_row_is_the_law_along_its_path(name):
    head = heads()[name]
    base, hidden = torch.rand(K, V).softmax(dim=-1), torch.randn(K, D)
    laws = head_laws(head, base, 1, hidden)
    assert [list(table.shape) for table in laws] == [[V] * (k + 1) for k in range(K)]
    for path in product(range(V), repeat=K - 1):
        state, previous = head.init_state(1), 1
        for k in range(K):
            token = torch.tensor([previous])
            bias, state = head.step(state, token, hidden[k : k + 1])
            slow = (base[k].log() + bias[0]).softmax(dim=-1)
            assert (laws[k][path[:k]] - slow).abs().max() < 1e-6
            previous = path[k] if k < len(path) else None


def test_without_a_head_the_base_stays():
    base = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    laws = head_laws(NoHead(3), base, 0, torch.zeros(2, 1))
    assert (laws[1] - base[1].expand(3, 3)).abs().max() < 1e-7


def test_no_vanilla_table_serves_two_countries():
    """Any table on the right marginals keeps one half, in the mean of both."""
    world = two_rules_world()
    for seed in range(5):
        torch.manual_seed(seed)
        head, kept = MarkovHead(6, 3), []
        head.bias_proj.weight.data *= 5
        for country in (0, 1):
            laws = world.block_laws([4, country], 2)
            base = torch.stack([t.flatten() for t in toy.best_drafter(laws, 0)])
            drafted = head_laws(head, base, country, torch.zeros(2, 1))
            drafted[0] = laws[0]  # the first draft is right whatever the table says
            kept.append(toy.exact_conditional(laws, drafted)[1])
        assert abs(sum(kept) / 2 - 0.5) < 1e-6


def test_the_rules_are_turned_round():
    world = two_rules_world()
    for country, verb, side in ((0, 2, 4), (0, 3, 5), (1, 2, 5), (1, 3, 4)):
        assert world.next_law([country, verb])[side] == 1


@pytest.mark.usefixtures("no_shape_checks")
def test_what_is_no_law_is_refused():
    fine = torch.full((2, 3), 1 / 3)
    with pytest.raises(ValueError, match="base must"):
        head_laws(NoHead(3), 2 * fine, 0, torch.zeros(2, 1))
    with pytest.raises(ValueError, match="hidden must have shape"):
        head_laws(NoHead(3), fine, 0, torch.zeros(3, 1))
    with pytest.raises(ValueError, match="anchor must be"):
        head_laws(NoHead(3), fine, 3, torch.zeros(2, 1))
