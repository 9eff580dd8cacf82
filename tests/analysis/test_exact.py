"""Exact laws: the closed form against the integral over drafts and coins."""

import pytest
import torch
from torch import Tensor

from dsparkref import MarkovWorld, token_match_block, verify_block
from dsparkref.analysis.exact import (
    emitted_law,
    emitted_token_law,
    joint_law,
    verdict_law,
)
from dsparkref.lab.planted_faults import plain_verifier

EXACT = {"rtol": 0, "atol": 1e-12}


def worlds(seed: int, vocab: int = 4) -> tuple[MarkovWorld, ...]:
    return tuple(
        MarkovWorld.random(vocab, 1, generator=3 * seed + number) for number in range(3)
    )


def first_token(law: Tensor) -> Tensor:
    return law.flatten(1).sum(dim=1)


@pytest.mark.parametrize("seed", range(4))
def test_the_closed_form_is_what_the_verifier_does(seed):
    target, draft, other = (world.block_laws([0], 2) for world in worlds(seed))
    for told in draft[:1], other[:1]:
        law, _ = emitted_law(verify_block, target, draft[:1], told=told)
        formula = emitted_token_law(target[0], draft[0], told[0])
        torch.testing.assert_close(first_token(law), formula, **EXACT)


def test_an_honest_drafter_leaves_the_law_row_by_row():
    p, q, other = (world.transition for world in worlds(5))
    torch.testing.assert_close(emitted_token_law(p, q), p, **EXACT)
    bent = emitted_token_law(p, q, told=other)
    torch.testing.assert_close(bent.sum(dim=-1), torch.ones(4).double(), **EXACT)
    assert (bent - p).abs().max() > 0.01


@pytest.mark.parametrize("verifier", [verify_block, token_match_block])
@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_block_has_the_targets_law(verifier, size):
    target, draft, _ = (world.block_laws([1], 3) for world in worlds(1, vocab=3))
    target, draft = target[: size + 1], draft[:size]  # tables with axes of size 1
    law, accepted = emitted_law(verifier, target, draft)
    torch.testing.assert_close(law, joint_law(target), **EXACT)
    assert len(accepted) == size + 1 and abs(accepted.sum().item() - 1) < 1e-12


def test_the_verify_length_may_look_at_the_drafts():
    target, draft, _ = (world.block_laws([0], 3) for world in worlds(2, vocab=2))
    drafted = draft[0][1].item()
    length = {0: 0, 1: 1}
    _, accepted = emitted_law(
        verify_block, target, draft[:2], verify_len=lambda path: length[path[0]]
    )
    kept = drafted * min(1.0, (target[0][1] / draft[0][1]).item())
    assert accepted.tolist() == pytest.approx([1 - kept, kept, 0.0])


def test_cutting_finer_changes_nothing():
    target, draft, _ = (world.block_laws([2], 3) for world in worlds(3, vocab=3))
    path = [0, 2]
    told = torch.stack([draft[0], draft[1][0]])
    p_target = torch.stack([target[0], target[1][0], target[2][0, 2]])
    law = verdict_law(verify_block, path, told, p_target)
    finer = verdict_law(plain_verifier(), path, told, p_target, faulty=True)
    torch.testing.assert_close(law, finer, **EXACT)


def test_too_few_tables_are_refused(no_shape_checks):
    p = torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match="target must reach as far as the drafts do"):
        emitted_law(verify_block, [p], [p])
