"""The law of the whole loop, by enumeration: prefill, cycles, cache and all.

Every random decision of a run is taken from a list; walking through all the lists
gives all runs, each with its exact probability. A draft is chosen outright. A uniform
number is put in the middle of a cell of [0, 1) in which the verifier cannot change
its mind, and the cell's length is its probability. The sum over runs must be the
target's own law of three tokens, computed without cache, drafter or loop.

A vocabulary of 3, blocks of 2, three new tokens, a one-layer target in float64.
"""

from itertools import product

import pytest
import torch
from tiny_models import tiny_target

from dsparkref import ConfidenceThreshold, FixedLength, Proposal, generate, survival
from dsparkref.decode.loop import Sampler
from dsparkref.verify.policies import LaggedPrefixScheduler, Policy, PrefixScheduler
from dsparkref.verify.scheduler import StepsPerSecond, schedule_prefixes

VOCAB, BLOCK, COUNT, TEMPERATURE = 3, 2, 3, 1.0
PROMPT = [2, 0, 1]


class Runs:
    """All lists of choices, depth first: ``choose`` follows the present one."""

    def __init__(self):
        self.path, self.laws = [], []

    def __iter__(self):
        while True:
            self.laws, self.probability = [], 1.0
            yield self
            self.path = self.path[: len(self.laws)]
            while self.path and self._after(self.path[-1], len(self.path) - 1) is None:
                self.path.pop()
            if not self.path:
                return
            self.path[-1] = self._after(self.path[-1], len(self.path) - 1)

    def choose(self, law):
        depth = len(self.laws)
        self.laws.append(list(law))
        if depth == len(self.path):
            self.path.append(self._after(-1, depth))
        choice = self.path[depth]
        self.probability *= self.laws[depth][choice]
        return choice

    def _after(self, choice, depth):
        law = self.laws[depth]
        return next((i for i in range(choice + 1, len(law)) if law[i] > 0), None)

    def uniform(self, law):
        """The middle of the cell that stands for one outcome of ``law``."""
        choice = self.choose(law)
        low = sum(law[:choice])
        return low + law[choice] / 2, choice


class EnumeratedDrafter:
    """Draws from a fixed table p(x_k | x_{k-1}); ``told`` is what it says it drew from.

    Its confidence depends on the token before, as a head's may.
    """

    block_size = BLOCK

    def __init__(self, runs, table, told=None):
        self.runs, self.table = runs, table
        self.told = table if told is None else told

    def propose(self, target_hidden, anchor, **_):
        tokens, before = [], int(anchor)
        for _ in range(BLOCK):
            tokens.append(self.runs.choose(self.table[before].tolist()))
            before = tokens[-1]
        previous = torch.tensor([int(anchor), *tokens[:-1]])
        return Proposal(
            tokens=torch.tensor([tokens]),
            p_draft=self.told[previous][None],
            confidence=torch.tensor([0.9, 0.6, 0.1])[previous][None],
        )


class ScriptedUniforms:
    """Stands in for ``draw_uniforms``, with the cells of the law asked for last."""

    def __init__(self, runs, verifier):
        self.runs, self.verifier = runs, verifier
        self.law = self.proposal = None

    def __call__(self, shape, **_):
        law = self.law.double()
        if len(shape) == 1:  # the prefill's token
            return torch.tensor([self.runs.uniform(law[0].tolist())[0]])
        tokens, told = self.proposal.tokens[0].tolist(), self.proposal.p_draft[0]
        numbers = [0.5] * shape[1]  # for the coins that are never looked at
        rows, run = law[0], 0
        while run < shape[1] - 1:
            if self.verifier == "token_match":
                number, own = self.runs.uniform(rows[run].tolist())
                kept = own == tokens[run]
            else:
                ratio = (rows[run, tokens[run]] / told[run, tokens[run]]).item()
                accept = min(1.0, ratio)
                number, rejected = self.runs.uniform([accept, 1 - accept])
                kept = not rejected
            numbers[run] = number
            if not kept:
                break
            run += 1
        if run == shape[1] - 1:  # the bonus
            numbers[-1], _ = self.runs.uniform(rows[-1].tolist())
        elif self.verifier == "rejection":
            left = (rows[run] - told[run]).clamp(min=0)
            numbers[-1], _ = self.runs.uniform((left / left.sum()).tolist())
        return torch.tensor([numbers], dtype=torch.float64)


def law_of_the_loop(target, monkeypatch, table, *, told=None, **options):
    runs, law = Runs(), torch.zeros([VOCAB] * COUNT, dtype=torch.float64)
    verifier = options.get("verifier", "rejection")
    drafter, uniforms = (
        EnumeratedDrafter(runs, table, told),
        ScriptedUniforms(runs, verifier),
    )
    propose, make_law, draw = drafter.propose, Sampler.law, Sampler.draw

    def recorded_propose(*args, **keywords):
        uniforms.proposal = propose(*args, **keywords)
        return uniforms.proposal

    def recorded_law(self, logits):
        uniforms.law = make_law(self, logits)
        return uniforms.law

    def draw_after_recording(self, logits):
        self.law(logits)  # ``draw`` asks for its number before it makes the law
        return draw(self, logits)

    drafter.propose = recorded_propose
    monkeypatch.setattr(Sampler, "law", recorded_law)
    monkeypatch.setattr(Sampler, "draw", draw_after_recording)
    monkeypatch.setattr("dsparkref.decode.loop.draw_uniforms", uniforms)
    options |= {"max_new_tokens": COUNT, "temperature": TEMPERATURE}
    for run in runs:
        tokens = generate(target, drafter, PROMPT, **options).tokens
        law[tuple(tokens)] += run.probability
    return law


def law_of_the_target(target):
    law = torch.ones([VOCAB] * COUNT, dtype=torch.float64)
    for tokens in product(range(VOCAB), repeat=COUNT):
        ids = torch.tensor([[*PROMPT, *tokens]])
        with torch.no_grad():
            logits = target.model(ids, use_cache=False).logits[0]
        rows = (logits / TEMPERATURE).softmax(-1)[len(PROMPT) - 1 :]
        for row, token in zip(rows, tokens, strict=False):
            law[tokens] *= row[token]
    return law


@pytest.fixture
def target():
    return tiny_target(
        vocab_size=VOCAB,
        num_hidden_layers=1,
        dtype=torch.float64,
        initializer_range=0.3,
    )


# Each row leaves one id out: fewer runs, and a residual that must make up for it.
NARROW = torch.tensor([[0.7, 0.3, 0], [0, 0.4, 0.6], [0.5, 0, 0.5]]).double()
WIDE = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.1, 0.7, 0.2]]).double()
NARROW, WIDE = (table / table.sum(-1, keepdim=True) for table in (NARROW, WIDE))
# After token 0 the confidence is .9. One draft is then not worth it (1.9 * .52 < 1),
# two are if the first is 0 again (2.71 * .4 > 1) and not if it is 1 (2.44 * .4 < 1).
STAIRCASE = StepsPerSecond({1: 1.0, 2: 0.52, 3: 0.4})
CONVEX = StepsPerSecond({1: 1.0, 2: 0.6, 3: 0.5})


class UnlaggedSearch(Policy):
    """The planted mutant: the global search, used on the step it looked at."""

    def verify_lengths(self, confidence, *, block_size, num_requests=1):
        return schedule_prefixes(survival(confidence), STAIRCASE, early_stop=False)


CASES = [
    {"verifier": "rejection"},
    {"policy": LaggedPrefixScheduler(STAIRCASE, lag=1)},
    {"policy": FixedLength(1)},
    {"policy": ConfidenceThreshold(0.5)},
]
MORE_CASES = [
    {"verifier": "token_match"},
    {"policy": FixedLength(0)},
    {"policy": ConfidenceThreshold(0.5, on="survival")},
    {"policy": PrefixScheduler(CONVEX)},
    {"policy": UnlaggedSearch(), "verifier": "token_match"},
]
# Thousands of runs: annotations are checked elsewhere.
pytestmark = pytest.mark.usefixtures("no_shape_checks")


def check(target, monkeypatch, table, options):
    got = law_of_the_loop(target, monkeypatch, table, **options)
    assert abs(got.sum() - 1) < 1e-12
    want = law_of_the_target(target)
    assert want.max() < 0.5  # a law worth the name: several texts compete
    assert (got - want).abs().max() < 1e-12


@pytest.mark.parametrize("options", CASES, ids=str)
def test_output_law_is_the_targets(options, target, monkeypatch):
    check(target, monkeypatch, NARROW, dict(options))


@pytest.mark.slow
@pytest.mark.parametrize("options", MORE_CASES, ids=str)
def test_output_law_of_further_policies(options, target, monkeypatch):
    check(target, monkeypatch, NARROW, dict(options))


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES + MORE_CASES, ids=str)
def test_output_law_is_the_targets_with_a_full_draft_law(options, target, monkeypatch):
    check(target, monkeypatch, WIDE, dict(options))


def test_a_drafter_that_lies_about_its_law_is_caught(target, monkeypatch):
    """The planted mutant: drawn from one table, divided by another (A3)."""
    told = torch.where(NARROW > 0, 0.5, 0.0).double()
    got = law_of_the_loop(target, monkeypatch, NARROW, told=told)
    assert abs(got.sum() - 1) < 1e-12
    assert (got - law_of_the_target(target)).abs().max() > 1e-3


def test_a_search_without_a_lag_is_caught(target, monkeypatch):
    """Appendix A in the loop: the law bends. (Token match hides it: MORE_CASES.)"""
    got = law_of_the_loop(target, monkeypatch, NARROW, policy=UnlaggedSearch())
    assert abs(got.sum() - 1) < 1e-12
    assert (got - law_of_the_target(target)).abs().max() > 1e-3
