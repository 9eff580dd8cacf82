"""The law of the output, by exact integration over drafts and uniform numbers.

A verifier is piecewise constant in its uniforms. `emitted_law` cuts [0, 1) at every
number where it can jump, asks the verifier itself inside each cell, and weighs each
answer by the cell's volume and by the chance of the drafts. What comes out is the
exact law of the emitted tokens, continued by the target to K + 1 tokens; it must be
the target's own. No sampling, so that 1e-12 is a fair demand.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import pytest
import torch
from torch import Tensor

from dsparkref.records import Verdict
from dsparkref.verify.confidence import survival
from dsparkref.verify.policies import (
    ConfidenceThreshold,
    LaggedPrefixScheduler,
    PrefixScheduler,
)
from dsparkref.verify.rejection import (
    VERIFIERS,
    accept_rate,
    residual_distribution,
    token_match_block,
    verify_block,
)
from dsparkref.verify.sampling import probabilities
from dsparkref.verify.scheduler import StepsPerSecond, schedule_prefixes

TOLERANCE = 1e-12


# --- the integrator ------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Conditional laws of a tiny vocabulary: table k is [V] * k + [V]."""

    # K + 1 tables
    target: list[Tensor]
    # K tables, the law the drafts are drawn from
    draft: list[Tensor]
    # K tables, what the verifier is told; an honest drafter tells its own law
    told: list[Tensor]


def random_world(
    block: int, vocab: int, seed: int, *, draft_temperature: float = 1.0, **cut
) -> World:
    generator = torch.Generator().manual_seed(seed)

    def tables(count: int, **options) -> list[Tensor]:
        shapes = [[vocab] * (k + 1) for k in range(count)]
        kind = {"generator": generator, "dtype": torch.float64}
        return [probabilities(2 * torch.randn(s, **kind), **options) for s in shapes]

    target = tables(block + 1, **cut)
    draft = tables(block, **{**cut, "temperature": draft_temperature})
    return World(target, draft, draft)


def rows(tables: list[Tensor], path: tuple[int, ...], vocab: int) -> Tensor:
    """The laws along one path of drafts, [number of tables, V]."""
    laws = [table[path[:k]] for k, table in enumerate(tables)]
    return torch.stack(laws) if laws else torch.zeros(0, vocab, dtype=torch.float64)


def jumps(path, p_draft: Tensor, p_target: Tensor, faulty: str) -> list[Tensor]:
    """For each uniform, the numbers where the verifier can change its mind.

    ``faulty`` adds the jumps of wrong verifiers: to the "last" uniform the laws they
    may draw from, or everything to "all" where one number serves many purposes.
    """
    block = len(path)
    index = torch.tensor(path, dtype=torch.long)[:, None]
    accept = (p_target[:block] / p_draft).gather(1, index)  # [K, 1]
    laws = [p_target, residual_distribution(p_target[:block], p_draft)]
    if faulty:
        other = p_target[:block].scatter(1, index, 0.0)
        left = (p_target[:block] - p_draft).clamp(min=0)
        laws += [p_draft, left, other / other.sum(1, keepdim=True)]
    last = torch.cat(laws).cumsum(1).flatten()
    if faulty == "all":
        return [torch.cat([last, accept.flatten()])] * (block + 1)
    steps = p_target.cumsum(1)
    return [torch.cat([accept[k], steps[k]]) for k in range(block)] + [last]


def cells(jump: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """A point in each cell and the cell's width; first the point 0, of width 0."""
    inside = jump[(jump > 1e-13) & (jump < 1 - 1e-13)].sort().values  # NaN drops out
    apart = torch.ones_like(inside, dtype=torch.bool)
    apart[1:] = inside.diff() > 1e-13
    edges = torch.cat([torch.zeros(1), inside[apart], torch.ones(1)])
    width = edges.diff()
    points = edges[:-1] + fraction * width
    return torch.cat([torch.zeros(1), points]), torch.cat([torch.zeros(1), width])


def grid(columns: list[Tensor]) -> Tensor:
    """Every combination, one per row."""
    return torch.stack(torch.meshgrid(*columns, indexing="ij"), -1).flatten(0, -2)


def emitted_law(
    verifier: Callable[..., Verdict],
    world: World,
    verify_len: Callable[[tuple[int, ...]], int] | None = None,
    faulty: str = "",
) -> tuple[Tensor, Tensor]:
    """Return the exact law of K + 1 emitted tokens and of num_accepted."""
    block, vocab = len(world.draft), len(world.target[0])
    sizes = [[vocab] * (n + 1) for n in range(block + 1)]
    mass = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    truth = target_law(world)
    for path in product(range(vocab), repeat=block):
        chance = prod(law[path[: k + 1]].item() for k, law in enumerate(world.draft))
        if chance == 0:
            continue
        p_target, told = (rows(t, path, vocab) for t in (world.target, world.told))
        jump = jumps(path, told, p_target, faulty)
        verdicts = []
        for fraction in 0.25, 0.75:
            points, widths = zip(*(cells(j, fraction) for j in jump), strict=True)
            uniforms = grid(list(points))  # [cells, K + 1]
            count = len(uniforms)
            verdicts.append(
                verifier(
                    torch.tensor(path, dtype=torch.long).expand(count, block),
                    told.expand(count, block, vocab),
                    p_target.expand(count, block + 1, vocab),
                    uniforms,
                    verify_len=None if verify_len is None else verify_len(path),
                )
            )
        first, second = verdicts
        same = (first.num_accepted == second.num_accepted).all()
        if not same or not (first.next_token == second.next_token).all():
            raise RuntimeError("the integrator misses a jump of this verifier")
        volume = chance * grid(list(widths)).prod(1)
        for n in range(block + 1):
            for x in range(vocab):
                here = (first.num_accepted == n) & (first.next_token == x)
                if here.any():  # even in a cell of volume 0
                    possible = truth[(*path[:n], x)].sum() > 0
                    assert possible, f"emitted {path[:n]} + {x}: probability 0"
                    mass[n][(*path[:n], x)] += volume[here].sum()
    accepted = torch.stack([m.sum() for m in mass])
    for n in range(block):  # what a shorter cycle leaves open, the target fills in
        mass[n + 1] += mass[n][..., None] * world.target[n + 1]
    return mass[block], accepted


def target_law(world: World) -> Tensor:
    """The target's own law of K + 1 tokens, [V] * (K + 1)."""
    law = world.target[0]
    for table in world.target[1:]:
        law = law[..., None] * table
    return law


def check_lossless(verifier, world: World, **options) -> None:
    """Fail unless the emitted tokens have the target's law."""
    law, accepted = emitted_law(verifier, world, **options)
    assert abs(accepted.sum().item() - 1) < TOLERANCE, "outcomes do not sum to 1"
    off = (law - target_law(world)).abs().max().item()
    assert off < TOLERANCE, f"the emitted law is off by {off:.2e}"


def first_token(law: Tensor) -> list[float]:
    return law.reshape(len(law), -1).sum(1).tolist()


def one_draft(p: list[float], q: list[float], told: list[float] | None = None) -> World:
    """K = 1; what comes after is a coin of its own."""
    target, draft = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
    shown = draft if told is None else torch.tensor(told, dtype=torch.float64)
    after = torch.full((len(p), len(p)), 1 / len(p), dtype=torch.float64)
    return World([target, after], [draft], [shown])


# --- both verifiers are lossless -----------------------------------------------

both = pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)

CUTS = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "all": {"temperature": 1.7, "top_k": 3, "top_p": 0.9},
    "greedy": {"temperature": 0.0},
}


@both
@pytest.mark.parametrize("vocab", [2, 3, 4])
@pytest.mark.parametrize("block", [0, 1, 2, 3])
def test_output_has_the_targets_law(verifier, block, vocab):
    check_lossless(verifier, random_world(block, vocab, seed=10 * block + vocab))


@both
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("draft_temperature", [1.0, 0.0], ids=["sampled", "greedy"])
def test_lossless_under_every_warp(verifier, cut, draft_temperature):
    world = random_world(2, 4, seed=5, draft_temperature=draft_temperature, **cut)
    check_lossless(verifier, world)


@both
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_lossless_when_truncated(verifier, length):
    world = random_world(3, 3, seed=7)
    check_lossless(verifier, world, verify_len=lambda path: length)
    accepted = emitted_law(verifier, world, verify_len=lambda path: length)[1]
    assert accepted[length] > 0 and (accepted[length + 1 :] == 0).all()


@pytest.mark.parametrize("on", ["conditional", "survival"])
def test_lossless_with_a_threshold_on_a_confidence_that_reads_the_drafts(on):
    world = random_world(3, 3, seed=8)
    generator = torch.Generator().manual_seed(8)
    tables = [torch.rand([3] * k, generator=generator) for k in range(3)]
    policy, chosen = ConfidenceThreshold(0.3, on=on), set()

    def verify_len(path):  # c_k reads the drafts before x_k, as Eq. 7 does
        confidence = torch.stack([table[path[:k]] for k, table in enumerate(tables)])
        length = policy.verify_lengths(confidence[None], block_size=3).item()
        chosen.add(length)
        return length

    check_lossless(verify_block, world, verify_len=verify_len)
    assert len(chosen) > 1  # the drafts did decide


# --- the scheduler: appendix A, exactly ------------------------------------------

A, STEPS_PER_SECOND = 0, StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})


def appendix_a_world() -> World:
    """Two tokens, p_t = (.7, .3) and p_d = (.5, .5) wherever one looks."""
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ([0.7, 0.3], [0.5, 0.5]))
    target = [p, p.expand(2, 2), p.expand(2, 2, 2)]
    return World(target, [q, q.expand(2, 2)], [q, q.expand(2, 2)])


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
    law, _ = emitted_law(verify_block, appendix_a_world(), with_the_stop)
    assert first_token(law) == pytest.approx([0.7, 0.3], abs=TOLERANCE)


def test_looking_ahead_is_not_lossless():
    """It verifies two if x_1 = A and none if x_1 = B: every accepted A is extra."""
    lengths = [without_the_stop(path) for path in product((0, 1), repeat=2)]
    assert lengths == [2, 2, 0, 0]
    law, _ = emitted_law(verify_block, appendix_a_world(), without_the_stop)
    assert first_token(law) == pytest.approx([0.85, 0.15], abs=TOLERANCE)


def test_looking_ahead_two_steps_back_is_lossless():
    laws, lengths = [], []
    for history in product(product((0, 1), repeat=2), repeat=2):  # each 1/16
        verify_len = with_the_lag(*history)
        check_lossless(verify_block, appendix_a_world(), verify_len=verify_len)
        law, _ = emitted_law(verify_block, appendix_a_world(), verify_len)
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
    check_lossless(token_match_block, appendix_a_world(), verify_len=verify_len)
    law, _ = emitted_law(token_match_block, appendix_a_world(), verify_len)
    assert first_token(law) == pytest.approx([0.7, 0.3], abs=TOLERANCE)


# --- planted faults ------------------------------------------------------------


def pick(law: list[float], u: float) -> int:
    running = 0.0
    for x, p in enumerate(law):
        running += p
        if u < running:
            return x
    return max(x for x, p in enumerate(law) if p > 0)


def by_hand(tokens, p_draft, p_target, uniforms, length, fault) -> tuple[int, int]:
    """One row in plain Python, right unless a fault is named."""
    kept = []
    for k in range(length):
        u = uniforms[0] if fault == "one uniform for all positions" else uniforms[k]
        ratio = p_target[k][tokens[k]] / p_draft[k][tokens[k]]
        kept.append(u <= ratio if fault == "keeps at u = ratio" else u < ratio)
    n = (*kept, False).index(False)
    if fault == "counts after the first rejection":
        n = sum(kept)
    law = list(p_target[n])
    if fault == "bonus from the row before":
        law = list(p_target[max(n - 1, 0)] if n == length else law)
    if n < length or (fault == "truncation taken for a rejection" and n < len(tokens)):
        left = [max(0.0, p - q) for p, q in zip(law, p_draft[n], strict=True)]
        if fault == "replacement from p_t":
            left = law
        if fault == "no residual, only the rejected token left out":
            left = [0.0 if x == tokens[n] else p for x, p in enumerate(law)]
        if fault == "replacement from p_d":
            left = list(p_draft[n])
        total = 1.0 if fault == "residual not renormalised" else sum(left)
        law = [p / total for p in left] if total > 0 else law
    if fault == "one uniform for all positions":
        return n, pick(law, uniforms[0])
    return n, pick(law, uniforms[-1])


def plain_verifier(fault: str = "") -> Callable[..., Verdict]:
    def verifier(tokens, p_draft, p_target, uniforms, *, verify_len=None) -> Verdict:
        block = tokens.shape[1]
        length = block if verify_len is None else verify_len
        tables = (t.tolist() for t in (tokens, p_draft, p_target, uniforms))
        found = [by_hand(*row, length, fault) for row in zip(*tables, strict=True)]
        return Verdict(*torch.tensor(found).T)

    return verifier


FAULTS = [
    "one uniform for all positions",
    "keeps at u = ratio",
    "counts after the first rejection",
    "bonus from the row before",
    "truncation taken for a rejection",
    "replacement from p_t",
    "no residual, only the rejected token left out",
    "replacement from p_d",
    "residual not renormalised",
]


def fault_world() -> World:
    """Top-p leaves zeros in the target that the uncut draft still proposes."""
    world = random_world(2, 3, seed=2, top_p=0.9)
    draft = random_world(2, 3, seed=3).draft
    assert any((table == 0).any() for table in world.target[:2])
    return World(world.target, draft, draft)


@pytest.mark.parametrize("length", [1, 2])
def test_the_plain_version_passes(length):
    check_lossless(plain_verifier(), fault_world(), verify_len=lambda path: length)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught(fault):
    length = 1 if fault == "truncation taken for a rejection" else 2
    shared = fault == "one uniform for all positions"
    world = random_world(2, 2, seed=4) if shared else fault_world()
    faulty = "all" if shared else "last"
    options = {"verify_len": lambda path: length, "faulty": faulty}
    check_lossless(verify_block, world, **options)
    with pytest.raises(AssertionError, match=r"probability 0|the emitted law is off"):
        check_lossless(plain_verifier(fault), world, **options)


def soft_law_for_a_greedy_draft() -> tuple[World, World]:
    soft = random_world(2, 3, seed=11)
    greedy = [probabilities(table.log(), 0.0) for table in soft.draft]
    return World(soft.target, greedy, greedy), World(soft.target, greedy, soft.draft)


def law_before_top_k() -> tuple[World, World]:
    wide = random_world(2, 3, seed=12)
    cut = [probabilities(table.log(), 1.0, 2) for table in wide.draft]
    return World(wide.target, cut, cut), World(wide.target, cut, wide.draft)


def law_in_another_precision() -> tuple[World, World]:
    world = random_world(2, 3, seed=13)
    half = [probabilities(t.log().bfloat16()).double() for t in world.draft]
    half = [table / table.sum(-1, keepdim=True) for table in half]
    return replace(world, draft=half, told=half), replace(world, draft=half)


@pytest.mark.parametrize(
    "worlds", [soft_law_for_a_greedy_draft, law_before_top_k, law_in_another_precision]
)
def test_a_drafter_that_tells_another_law_is_caught(worlds):
    honest, dishonest = worlds()
    check_lossless(verify_block, honest)
    with pytest.raises(AssertionError, match="the emitted law is off"):
        check_lossless(verify_block, dishonest)
    check_lossless(token_match_block, dishonest)  # it never reads the law


def test_the_integrator_says_when_it_misses_a_jump():
    def moody(tokens, p_draft, p_target, uniforms, *, verify_len=None):
        token = (uniforms[:, -1] > 0.4).long()
        return Verdict(torch.zeros_like(token), token)

    with pytest.raises(RuntimeError, match="misses a jump"):
        emitted_law(moody, one_draft([0.3, 0.7], [0.3, 0.7]))


# --- published faults, with their values ---------------------------------------


def test_greedy_draft_with_a_soft_law():
    p, soft, greedy = [0.3, 0.5, 0.2], [0.4, 0.35, 0.25], [1.0, 0.0, 0.0]
    law, accepted = emitted_law(verify_block, one_draft(p, greedy))
    assert first_token(law) == pytest.approx(p, abs=TOLERANCE)
    assert accepted.tolist() == pytest.approx([0.7, 0.3], abs=TOLERANCE)
    law, _ = emitted_law(verify_block, one_draft(p, greedy, told=soft))
    assert first_token(law) == pytest.approx([0.75, 0.25, 0.0], abs=TOLERANCE)


def test_replacement_from_the_target_itself():
    p, q = [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]
    law, accepted = emitted_law(verify_block, one_draft(p, q))
    assert first_token(law) == pytest.approx(p, abs=TOLERANCE)
    assert accepted[1].item() == pytest.approx(0.7, abs=TOLERANCE)
    law, _ = emitted_law(plain_verifier("replacement from p_t"), one_draft(p, q))
    assert first_token(law) == pytest.approx([0.48, 0.39, 0.13], abs=TOLERANCE)


@pytest.mark.parametrize("head, drafts", [("none", 1.5), ("copy", 2.0)])
@both
def test_independent_slots_cost_acceptance_and_not_the_law(verifier, head, drafts):
    """The only continuations are AA and BB; a Markov head copies the last token."""
    half = torch.full((2,), 0.5, dtype=torch.float64)
    copy = torch.eye(2, dtype=torch.float64)
    second = half.expand(2, 2) if head == "none" else copy
    world = World([half, copy, half.expand(2, 2, 2)], [half, second], [half, second])
    law, accepted = emitted_law(verifier, world)
    pairs = law.sum(-1)
    assert pairs.flatten().tolist() == pytest.approx([0.5, 0, 0, 0.5], abs=TOLERANCE)
    if verifier is verify_block:
        mean = (accepted * torch.arange(3)).sum().item()
        assert mean == pytest.approx(drafts, abs=TOLERANCE)


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_is_the_overlap(seed):
    """Rejection keeps sum min(p, q) (Eq. 8), token match sum p q, never more."""
    world = random_world(1, 4, seed=seed)
    p, q = world.target[0], world.draft[0]
    kept = emitted_law(verify_block, world)[1][1]
    matched = emitted_law(token_match_block, world)[1][1]
    assert kept.item() == pytest.approx(accept_rate(p, q).item(), abs=TOLERANCE)
    assert matched.item() == pytest.approx((p * q).sum().item(), abs=TOLERANCE)
    assert matched < kept


def test_greedy_match_and_sampled_rejection_each_win_somewhere():
    def keep(verifier, p, q):
        return emitted_law(verifier, one_draft(p, q))[1][1].item()

    peaked, flat = [0.9, 0.1], [0.5, 0.5]
    assert keep(token_match_block, peaked, [1.0, 0.0]) == pytest.approx(0.9)
    assert keep(verify_block, peaked, [1.0, 0.0]) == pytest.approx(0.9)
    assert keep(verify_block, peaked, [0.6, 0.4]) == pytest.approx(0.7)
    assert keep(token_match_block, flat, [1.0, 0.0]) == pytest.approx(0.5)
    assert keep(verify_block, flat, [0.6, 0.4]) == pytest.approx(0.9)
