"""Toy worlds: their laws against plain products, the best drafters against searches."""

from itertools import product
from math import comb, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsparkref import MarkovWorld
from dsparkref.analysis.exact import emitted_law
from dsparkref.analysis.metrics import conditional_acceptance
from dsparkref.analysis.toy import (
    OBJECTIVES,
    best_drafter,
    exact_conditional,
    exact_survival,
    most_kept_law,
    rows_along,
    shared_word_world,
    simulate,
    two_mode_world,
)
from dsparkref.verify.rejection import verify_block

TOLERANCE = 1e-12
ORDERS = pytest.mark.parametrize("order", [0, 1, 2])


def world_of(order: int, vocab: int = 3, seed: int = 0) -> MarkovWorld:
    return MarkovWorld.random(vocab, order, generator=seed)


def close(values: Tensor, expected) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(values, expected, rtol=0, atol=TOLERANCE)


def by_hand(world: MarkovWorld, context: list[int], block) -> float:
    """The chance of a block: one row of the transition after the other."""
    text, chance = list(context), 1.0
    for token in block:
        row = world.transition
        for back in range(world.order, 0, -1):
            row = row[text[-back]]
        chance *= row[token].item()
        text.append(token)
    return chance


def full(tables: list[Tensor]) -> list[Tensor]:
    """Tables without axes of size 1."""
    return [table.expand([table.shape[-1]] * table.dim()) for table in tables]


# --- the laws of a world ---------------------------------------------------------


@ORDERS
@pytest.mark.parametrize("length", [1, 2, 4])
def test_block_laws_are_products_of_transition_rows(order, length):
    world, context = world_of(order), [2, 0, 1]
    tables = world.block_laws(context, length)
    blocks = torch.tensor(list(product(range(3), repeat=length)))
    rows = rows_along(tables, blocks)  # [3^length, length, 3]
    found = rows.gather(-1, blocks[..., None])[..., 0].prod(dim=1)
    close(found, [by_hand(world, context, block.tolist()) for block in blocks])
    assert found.sum().item() == pytest.approx(1, abs=TOLERANCE)
    close(world.next_law(context), [by_hand(world, context, [x]) for x in range(3)])


@ORDERS
def test_only_the_last_tokens_of_the_context_count(order):
    world = world_of(order)
    context = [0, 1, 2][3 - order :]
    for longer in ([2, 2, *context], [1, 0, *context]):
        for short, long in zip(
            world.block_laws(context, 3), world.block_laws(longer, 3), strict=True
        ):
            assert torch.equal(short, long)


def test_a_random_world_is_made_by_its_seed_alone():
    first, again, other = (world_of(2, seed=seed).transition for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    flat = MarkovWorld.random(4, 1, sharpness=0.0, generator=0)
    close(flat.transition, torch.full((4, 4), 0.25))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rounded_laws_become_exact_ones(dtype):
    world = MarkovWorld(torch.full((3, 3), 1 / 3, dtype=dtype))
    close(world.transition.sum(-1), [1.0] * 3)
    assert world.words == ("0", "1", "2")


@ORDERS
@pytest.mark.parametrize("memory", [0, 1])
def test_survival_is_what_the_verifier_itself_accepts(order, memory):
    """By exact integration over the uniforms of `verify_block`."""
    target = world_of(order).block_laws([0, 1], 3)
    draft = best_drafter(world_of(1, seed=5).block_laws([1], 2), memory)
    _, accepted = emitted_law(verify_block, target, draft)
    tail = accepted.flip(0).cumsum(0).flip(0)  # P(n >= k)
    close(exact_survival(target, draft), tail[1:])


# --- closed forms ------------------------------------------------------------------


@pytest.mark.parametrize("first", [0.5, 0.7, 0.9, 1.0])
def test_of_course_and_no_problem(first):
    """Two modes: a parallel drafter mixes them, or gives up the rarer one."""
    laws = two_mode_world(first).block_laws([0], 6)  # two phrases
    mixed = first**2 + (1 - first) ** 2
    found = exact_survival(laws, best_drafter(laws, 0))
    close(found, [1, mixed, mixed, mixed, mixed**2, mixed**2])
    found = exact_survival(laws, best_drafter(laws, 0, "overlap"))
    close(found, [1, first, first, first, first**2, first**2])
    for memory in (1, 2, None):
        close(exact_survival(laws, best_drafter(laws, memory)), [1] * 6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_token_of_memory_misses_what_a_shared_word_hides(objective):
    world = shared_word_world()
    laws = world.block_laws([5, 0], 4)  # a phrase of three words, and a comma
    for memory in (0, 1):
        draft = best_drafter(laws, memory, objective)
        close(exact_survival(laws, draft), [1, 1, 1 / 3, 1 / 3])
    for memory in (2, None):
        draft = best_drafter(laws, memory, objective)
        close(exact_survival(laws, draft), [1, 1, 1, 1])
    assert world.spell([2, 1, 5, 0]) == "slow and steady ,"


def test_what_never_stands_has_no_acceptance_behind_it():
    law = torch.tensor([1.0, 0.0]).double()
    wrong = [law.flip(0), law.expand(1, 2)]
    found = exact_conditional([law, law.expand(1, 2)], wrong)
    assert found[0] == 0 and found[1].isnan()


# --- the best drafters -------------------------------------------------------------


@ORDERS
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_as_much_memory_as_the_world_has_is_enough(order, objective):
    target = world_of(order).block_laws([0, 1], 4)
    for memory in (*range(order, 4), None):
        close(exact_survival(target, best_drafter(target, memory, objective)), [1] * 4)
    if order:
        poor = exact_survival(target, best_drafter(target, order - 1, objective))
        assert poor[-1] < 0.99


@pytest.mark.parametrize("seed", range(2))
def test_less_memory_is_the_marginal_of_more(seed):
    """The best by cross entropy is P(x_k | last m drafts), added up path by path."""
    world, context, block = world_of(2, seed=seed), [0, 1], 3
    target = world.block_laws(context, block)
    for memory in range(block):
        draft = best_drafter(target, memory)
        for path in product(range(3), repeat=block):
            seen = path[block - 1 - memory : block - 1]
            same = [
                p for p in product(range(3), repeat=block) if p[2 - memory : 2] == seen
            ]
            whole = sum(by_hand(world, context, p) for p in same)
            part = sum(by_hand(world, context, p) for p in same if p[2] == path[2])
            found = rows_along(draft, torch.tensor([path]))[0, -1, path[2]]
            assert found.item() == pytest.approx(part / whole, abs=TOLERANCE)


def reached_overlap(target: list[Tensor], draft: list[Tensor]) -> Tensor:
    """The mean of 1 - TV at each position, over the target's own text, [K]."""
    prefix, found = torch.ones((), dtype=torch.float64), []
    for wanted, drafted in zip(target, draft, strict=True):
        found.append((prefix[..., None] * torch.minimum(wanted, drafted)).sum())
        prefix = prefix[..., None] * wanted
    return torch.stack(found)


def reached_entropy(target: list[Tensor], draft: list[Tensor]) -> Tensor:
    """The mean of -log q at each position, over the target's own text, [K]."""
    prefix, found = torch.ones((), dtype=torch.float64), []
    for wanted, drafted in zip(target, draft, strict=True):
        prefix = prefix[..., None] * wanted
        found.append(-(prefix * drafted.log()).sum())
    return torch.stack(found)


@pytest.mark.parametrize("seed", range(4))
def test_more_memory_is_never_worse_and_each_is_best_at_its_own(seed):
    target = world_of(2, vocab=4, seed=seed).block_laws([0, 1], 3)
    for objective, score in (
        ("overlap", reached_overlap),
        ("cross_entropy", lambda *pair: -reached_entropy(*pair)),
    ):
        drafts = [best_drafter(target, m, objective) for m in (0, 1, 2, None)]
        scores = torch.stack([score(target, draft) for draft in drafts])
        assert (scores.diff(dim=0) > -TOLERANCE).all()
        assert scores[0, 2] < scores[2, 2] - 1e-3
        for memory, found in enumerate(scores[:3]):
            for other in OBJECTIVES:
                rival = score(target, best_drafter(target, memory, other))
                assert (found >= rival - TOLERANCE).all()


def test_the_best_parallel_drafter_beats_any_on_a_grid():
    """V 3: no law on a fine grid is kept more often at the second position."""
    target = world_of(1, seed=3).block_laws([0], 2)
    best = reached_overlap(target, best_drafter(target, 0, "overlap"))[1]
    rivals = [
        reached_overlap(target, [target[0], law[None]])[1] for law in grid_of_laws(40)
    ]
    assert best >= max(rivals) - TOLERANCE
    assert best < max(rivals) + 0.02  # and the grid comes close


def grid_of_laws(steps: int) -> Tensor:
    """Every law of three tokens in multiples of 1 / steps."""
    pairs = [(a, b) for a in range(steps + 1) for b in range(steps + 1 - a)]
    assert len(pairs) == comb(steps + 2, 2)
    laws = torch.tensor([(a, b, steps - a - b) for a, b in pairs])
    return laws.double() / steps


def kept(laws: Tensor, weights: Tensor, q: Tensor) -> float:
    return (weights[:, None] * torch.minimum(laws, q)).sum().item()


def best_by_breakpoints(laws: Tensor, weights: Tensor) -> float:
    """The slow way: the optimum of a concave, piecewise linear sum lies at a corner.

    At a corner all coordinates but one are breakpoints (0 or some p_i(x)), and the
    one that is left makes the sum 1.
    """
    vocab, best = laws.shape[1], 0.0
    stops = torch.cat([torch.zeros(1, vocab).double(), laws])
    for free in range(vocab):
        others = [x for x in range(vocab) if x != free]
        for rows in product(range(len(stops)), repeat=vocab - 1):
            q = torch.zeros(vocab, dtype=torch.float64)
            for x, row in zip(others, rows, strict=True):
                q[x] = stops[row, x]
            q[free] = 1 - q.sum()
            if q[free] >= -TOLERANCE:
                best = max(best, kept(laws, weights, q))
    return best


counts = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any)
mixtures = st.lists(st.tuples(counts, st.integers(0, 4)), min_size=1, max_size=3)


@settings(deadline=None, max_examples=40)
@given(mixtures)
def test_most_kept_law_is_the_best_of_all(mixture):
    rows, weights = zip(*mixture, strict=True)
    laws = torch.tensor(rows).double()
    laws, weights = laws / laws.sum(-1, keepdim=True), torch.tensor(weights).double()
    q = most_kept_law(laws, weights)
    assert (q >= 0).all()
    assert q.sum().item() == pytest.approx(1, abs=TOLERANCE)
    best = best_by_breakpoints(laws, weights)
    assert kept(laws, weights, q) == pytest.approx(best, abs=1e-9)


# --- simulation --------------------------------------------------------------------


def z_scores(target: list[Tensor], draft: list[Tensor], expected: Tensor) -> Tensor:
    """Standard errors between simulated and expected conditional acceptance, [K]."""
    block, count = len(draft), 20_000
    accepted = simulate(target, draft, count, generator=0)
    found = conditional_acceptance(accepted, torch.full((count,), block), block)
    reached = torch.stack([(accepted >= k).sum() for k in range(block)])
    error = (expected * (1 - expected) / reached).sqrt()
    return (found - expected).abs() / error.clamp(min=1 / count / sqrt(count))


@ORDERS
@pytest.mark.parametrize("memory", [0, 1, None])
def test_simulation_agrees_within_four_standard_errors(order, memory):
    target = world_of(order, vocab=4).block_laws([0, 1], 4)
    known = world_of(order, vocab=4, seed=1).block_laws([0, 1], 3)
    draft = best_drafter(known, memory)
    assert (z_scores(target, draft, exact_conditional(target, draft)) < 4).all()


@pytest.mark.parametrize("memory", [0, 1])
def test_simulation_of_another_drafter_does_not_agree(memory):
    """The planted fault: judged by the numbers of a drafter with more memory."""
    target = world_of(2, vocab=4).block_laws([0, 1], 4)
    draft = best_drafter(target[:3], memory)
    better = exact_conditional(target, best_drafter(target[:3], memory + 1))
    assert (z_scores(target, draft, better) > 4).any()


def test_simulation_is_made_by_its_seed_alone():
    target = world_of(2, vocab=4).block_laws([0, 1], 4)
    draft = best_drafter(target[:3], 0)
    first, again, other = (simulate(target, draft, 50, generator=g) for g in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.min() >= 0 and first.max() <= 3


# --- bad input ---------------------------------------------------------------------

UNEVEN = torch.tensor([0.5, 0.6])
COIN = torch.tensor([0.5, 0.5]).double()
LAWS = [COIN, COIN.expand(2, 2)]
WORLD = MarkovWorld(COIN.expand(2, 2))
DIE = torch.full((3,), 1 / 3).double()

BAD = {
    "transition must be a tensor": lambda: MarkovWorld([0.5, 0.5]),
    "transition must have axes of one size": lambda: MarkovWorld(torch.ones(2, 3) / 3),
    "transition must have axes": lambda: MarkovWorld(torch.tensor(1.0)),
    "transition must sum to 1": lambda: MarkovWorld(UNEVEN),
    "transition must hold probab": lambda: MarkovWorld(torch.tensor([1.5, -0.5])),
    "words must name each token": lambda: MarkovWorld(COIN, ("a", "b", "c")),
    "vocab_size must be in range": lambda: MarkovWorld.random(1, 1),
    "order must be in range": lambda: MarkovWorld.random(3, -1),
    "sharpness must be in range": lambda: MarkovWorld.random(3, 1, sharpness=-1.0),
    "first_mode must be in range": lambda: two_mode_world(1.5),
    "context must reach back far enough": lambda: WORLD.block_laws([], 2),
    "context must be in range: .* got 2": lambda: WORLD.block_laws([0, 2], 2),
    "context must be in range: .* got 0.5": lambda: WORLD.next_law([0.5]),
    "length must be in range": lambda: WORLD.block_laws([0], 0),
    "tokens must be in range": lambda: WORLD.spell([-1]),
    "memory must be in range": lambda: best_drafter(LAWS, -1),
    "objective must be a known name": lambda: best_drafter(LAWS, 0, "accuracy"),
    "target must hold a table": lambda: best_drafter([], 0),
    "target must hold a table .* got Tensor": lambda: best_drafter(torch.ones(2, 2), 0),
    r"target\[0\] must have shape \[V\]": lambda: best_drafter([COIN[None]], 0),
    r"target\[1\] must be a law given": lambda: best_drafter([COIN, COIN], 0),
    r"target\[1\] must .* got \[1, 3\]": lambda: best_drafter([COIN, DIE[None]], 0),
    r"target\[0\] must sum to 1": lambda: exact_survival([UNEVEN], [COIN]),
    r"draft\[0\] must sum to 1": lambda: exact_survival([COIN], [UNEVEN]),
    "target must reach as far": lambda: exact_survival([COIN], LAWS),
    "draft must cover the target's": lambda: exact_survival([COIN], [DIE]),
    "target must reach .* 3 tables, got 2": lambda: simulate(LAWS, LAWS, 5),
    "count must be in range": lambda: simulate(LAWS, LAWS[:1], 0),
    "generator must be a generator": lambda: simulate(LAWS, LAWS[:1], 5, generator=0.5),
    "tokens must lead to the last": lambda: rows_along(LAWS, torch.zeros(1, 0).long()),
    "laws must sum to 1": lambda: most_kept_law(UNEVEN[None], torch.ones(1)),
    "weights must have shape": lambda: most_kept_law(COIN[None], torch.ones(2)),
    "weights must be weights": lambda: most_kept_law(COIN[None], -torch.ones(1)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message, no_shape_checks):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        BAD[message]()
