"""Appendix A of DSpark, exactly: when does a scheduler bend the law it serves?

One request, two drafts, p_t = (.7, .3). Algorithm 1 with its early stop leaves the law
alone, a search that looks at a draft's own outcome makes .85 of .7, and the same search
two steps late is honest again. The laws are added up, not sampled.
"""

from itertools import product

import pytest
import torch
from exact_laws import TOLERANCE, Block, block_law, check_lossless
from torch import Tensor

from dsparkref.verify.confidence import survival
from dsparkref.verify.policies import LaggedPrefixScheduler, PrefixScheduler
from dsparkref.verify.rejection import token_match_block, verify_block
from dsparkref.verify.scheduler import StepsPerSecond, schedule_prefixes


def first_token(law: Tensor) -> list[float]:
    return law.reshape(len(law), -1).sum(1).tolist()


A, STEPS_PER_SECOND = 0, StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})


def appendix_a_block() -> Block:
    """Two tokens, p_t = (.7, .3) and p_d = (.5, .5) wherever one looks."""
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ([0.7, 0.3], [0.5, 0.5]))
    target = [p, p.expand(2, 2), p.expand(2, 2, 2)]
    return Block(target, [q, q.expand(2, 2)], [q, q.expand(2, 2)])


def appendix_a_confidence(path) -> Tensor:
    """c_1 = .8; c_2 reads x_1: .9 after A, 0 after B."""
    return torch.tensor([[0.8, 0.9 if path[0] == A else 0.0]])


def with_the_stop(path) -> int:
    policy = PrefixScheduler(STEPS_PER_SECOND)
    return policy.verify_lengths(appendix_a_confidence(path), block_size=2).item()


def without_the_stop(path) -> int:
    chances = survival(appendix_a_confidence(path))
    return schedule_prefixes(chances, STEPS_PER_SECOND, early_stop=False).item()


def with_the_lag(*history):
    """The third step, after two whose drafts were ``history``."""

    def verify_len(path) -> int:
        policy = LaggedPrefixScheduler(STEPS_PER_SECOND, lag=2).start()
        for past in history:
            policy.verify_lengths(appendix_a_confidence(past), block_size=2)
        return policy.verify_lengths(appendix_a_confidence(path), block_size=2).item()

    return verify_len


def test_the_early_stop_is_lossless_in_appendix_a():
    assert {with_the_stop(path) for path in product((0, 1), repeat=2)} == {0}
    law, _ = block_law(verify_block, appendix_a_block(), with_the_stop)
    assert first_token(law) == pytest.approx([0.7, 0.3], abs=TOLERANCE)


def test_looking_ahead_is_not_lossless():
    """It verifies two if x_1 = A and none if x_1 = B: every accepted A is extra."""
    lengths = [without_the_stop(path) for path in product((0, 1), repeat=2)]
    assert lengths == [2, 2, 0, 0]
    law, _ = block_law(verify_block, appendix_a_block(), without_the_stop)
    assert first_token(law) == pytest.approx([0.85, 0.15], abs=TOLERANCE)


def test_looking_ahead_two_steps_back_is_lossless():
    laws, lengths = [], []
    for history in product(product((0, 1), repeat=2), repeat=2):  # each 1/16
        verify_len = with_the_lag(*history)
        check_lossless(verify_block, appendix_a_block(), verify_len=verify_len)
        law, _ = block_law(verify_block, appendix_a_block(), verify_len)
        laws.append(torch.tensor(first_token(law), dtype=torch.float64))
        lengths.append([verify_len(path) for path in ((A, A), (1 - A, A))])
    mean = torch.stack(laws).mean(0)
    assert mean.tolist() == pytest.approx([0.7, 0.3], abs=TOLERANCE)
    # two drafts, or the one that may stand, where x_1 was A two steps before
    assert lengths == [[2, 1]] * 8 + [[0, 0]] * 8


@pytest.mark.parametrize(
    "verify_len", [with_the_stop, without_the_stop, with_the_lag((A, A), (A, A))]
)
def test_token_match_never_shows_the_bias(verify_len):
    check_lossless(token_match_block, appendix_a_block(), verify_len=verify_len)
    law, _ = block_law(token_match_block, appendix_a_block(), verify_len)
    assert first_token(law) == pytest.approx([0.7, 0.3], abs=TOLERANCE)
