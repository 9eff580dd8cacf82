"""The law of the whole loop, by enumeration: prefill, cycles, cache, stops and cap.

Every random decision of a run becomes a choice: a token is chosen outright from the
law it would be drawn from, a verdict from the exact law of the verifier's verdicts.
Walking through all choices gives all runs, each with its probability. Their sum must
be the target's own law of the reply, computed without cache, drafter or loop.

Two kinds of target: a world whose law is a table, behind the interface of a model;
and a random Qwen3 in float64, with real drafters.
"""

import pytest
import torch
from exact_laws import (
    CUTS,
    Choices,
    added_up,
    check_same_law,
    every_run,
    output_law,
    warped,
    watched,
)
from tiny_models import HEADS, tiny_drafter, tiny_target
from torch import Tensor
from toy_models import Teller, WorldDrafter, world_target

from dsparkref import (
    ConfidenceThreshold,
    FixedLength,
    MarkovWorld,
    Verdict,
    generate,
    survival,
)
from dsparkref.analysis.exact import verdict_law
from dsparkref.analysis.toy import shared_word_world, two_mode_world
from dsparkref.lab.planted_faults import (
    BEFORE_TOP_K,
    MISTOLD,
    SOFT_LAW,
    WRONG_VERDICTS,
    plain_verifier,
)
from dsparkref.verify.policies import LaggedPrefixScheduler, Policy, PrefixScheduler
from dsparkref.verify.rejection import VERIFIERS
from dsparkref.verify.sampling import sample
from dsparkref.verify.scheduler import StepsPerSecond, schedule_prefixes

# Thousands of runs: annotations are checked elsewhere.
pytestmark = pytest.mark.usefixtures("no_shape_checks")
slow = pytest.mark.slow
both = pytest.mark.parametrize("verifier", VERIFIERS)


# --- all runs of the loop --------------------------------------------------------


def law_of_the_loop(
    target, drafter, prompt, *, verifier="rejection", planted=None, **options
):
    """The exact law of `generate`'s tokens; ``planted`` stands in for the verifier."""
    judge, known = watched(planted or VERIFIERS[verifier]), {}

    def verdicts(tokens: Tensor, p_draft: Tensor, p_target: Tensor) -> Tensor:
        key = tuple(t.numpy().tobytes() for t in (tokens, p_draft, p_target))
        if key not in known:  # the same cycle comes back in many runs
            tables = tokens[0].tolist(), p_draft[0], p_target[0]
            known[key] = verdict_law(judge, *tables, faulty=planted is not None)
        return known[key]

    def run(choices: Choices) -> tuple[int, ...]:
        def choose_token(probs: Tensor, uniforms: Tensor) -> Tensor:
            assert probs.shape[:-1] == uniforms.shape == (1,)
            return torch.tensor([choices.choose(probs[0])])

        def choose_verdict(
            tokens, p_draft, p_target, uniforms, *, verify_len
        ) -> Verdict:
            assert uniforms.shape == p_target.shape[:2]
            assert verify_len.tolist() == [tokens.shape[1]]  # cut before the pass
            law = verdicts(tokens, p_draft, p_target)
            kept, token = divmod(choices.choose(law.flatten()), law.shape[1])
            return Verdict(torch.tensor([kept]), torch.tensor([token]))

        with pytest.MonkeyPatch.context() as patch:
            for name in (
                "dsparkref.decode.cycle.invert_cdf",
                "dsparkref.draft.drafter.invert_cdf",
                "toy_models.sample",
            ):
                patch.setattr(name, choose_token)
            patch.setitem(VERIFIERS, verifier, choose_verdict)
            got = generate(target, drafter, prompt, verifier=verifier, **options)
        return tuple(got.tokens)

    return added_up(every_run(run))


# --- worlds ------------------------------------------------------------------------


def check_world(world, drafter, prompt, *, count=3, stops=(), cut="plain", **options):
    """Fail unless the loop's replies have the world's own law."""
    found = law_of_the_loop(
        world_target(world),
        drafter,
        prompt,
        max_new_tokens=count,
        stop_token_ids=list(stops),
        **CUTS[cut],
        **options,
    )
    warped_world = MarkovWorld(warped(world.transition.log(), **CUTS[cut]))
    check_same_law(found, output_law(warped_world.next_law, prompt, count, stops))
    return found


def pair_of_worlds(vocab, order, block, memory):
    """A random world, and a drafter that knows another one, twice as sharp."""
    world = MarkovWorld.random(vocab, order, sharpness=1.0, generator=order)
    other = MarkovWorld.random(vocab, order, sharpness=2.0, generator=order + 10)
    return world, WorldDrafter(other, block, memory)


@both
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(
    "vocab, block, cut",
    [
        (3, 1, "plain"),
        (4, 2, "top_k"),
        pytest.param(3, 2, "plain", marks=slow),
        pytest.param(5, 1, "plain", marks=slow),
        pytest.param(4, 3, "top_k", marks=slow),
        pytest.param(3, 2, "cold", marks=slow),
        pytest.param(4, 2, "top_p", marks=slow),
        pytest.param(3, 2, "all", marks=slow),
    ],
)
def test_replies_have_the_worlds_law(vocab, block, cut, order, verifier):
    world, drafter = pair_of_worlds(vocab, order, block, memory=1)
    options = {"cut": cut, "verifier": verifier}
    found = check_world(world, drafter, [1, 2], **options)
    assert len(found) > 4
    assert cut == "cold" or max(found.values()) < 0.9  # several replies compete


@both
@pytest.mark.parametrize("memory", [0, 1, None])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_of_course_and_no_problem(count, memory, verifier):
    """Stop at "problem" or at the cap, inside a block or between two."""
    world = two_mode_world(0.7)
    drafter = WorldDrafter(two_mode_world(0.4), 3, memory)
    options = {"count": count, "stops": [world.words.index("problem")]}
    found = check_world(world, drafter, [0], verifier=verifier, **options)
    assert {len(reply) for reply in found} == {min(n, count) for n in (2, 5, 7)}


@both
@pytest.mark.parametrize("memory", [0, 2])
def test_a_word_shared_by_three_phrases(memory, verifier):
    world = shared_word_world()
    drafter = WorldDrafter(world, 3, memory)
    found = check_world(world, drafter, [5, 0], count=5, verifier=verifier)
    assert len(found) == 9


# After an even token the confidence is .9. One draft is then not worth it (1.9 * .52
# < 1), two are if the first is even again (2.71 * .4 > 1), else not (2.17 * .4 < 1).
STAIRCASE = StepsPerSecond({1: 1.0, 2: 0.52, 3: 0.4})
CONVEX = StepsPerSecond({1: 1.0, 2: 0.6, 3: 0.5})


class UnlaggedSearch(Policy):
    """The planted mutant: the global search, used on the step it looked at."""

    def verify_lengths(self, confidence, *, block_size, num_requests=1):
        return schedule_prefixes(survival(confidence), STAIRCASE, early_stop=False)


POLICIES = {
    "none": FixedLength(0),
    "one": FixedLength(1),
    "conditional": ConfidenceThreshold(0.5),
    "survival": ConfidenceThreshold(0.5, on="survival"),
    "scheduler": PrefixScheduler(CONVEX),
    "lagged": LaggedPrefixScheduler(STAIRCASE, lag=1),
}


@both
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_leaves_the_law_alone(policy, verifier):
    """A confidence that reads the draft before may decide what is verified."""
    world, drafter = pair_of_worlds(4, 1, 2, memory=None)
    options = {"cut": "top_k", "stops": [3], "verifier": verifier}
    check_world(world, drafter, [0, 2], policy=policy, **options)


def test_a_search_without_a_lag_is_caught():
    """Appendix A in the loop: the law bends, and token match hides it."""
    world, drafter = pair_of_worlds(3, 1, 2, memory=None)
    policy = UnlaggedSearch()
    with pytest.raises(AssertionError, match="the emitted law is off"):
        check_world(world, drafter, [0, 2], policy=policy)
    check_world(world, drafter, [0, 2], policy=policy, verifier="token_match")


def test_features_are_the_text_that_is_committed():
    world, drafter = pair_of_worlds(4, 2, 3, memory=None)
    prompt, options = [1, 0, 2], {"max_new_tokens": 40, "temperature": 1.0}
    got = generate(world_target(world), drafter, prompt, **options, generator=0)
    text = [*prompt, *got.tokens]
    assert len(drafter.texts) == len(got.cycles) > 5
    for seen in drafter.texts:
        assert seen == text[: len(seen)]


# --- a Qwen3 and real drafters --------------------------------------------------------


def check_qwen(head, vocab, block, *, cut, count=3, stops=(), **options):
    """Fail unless the replies have the law of the target's own logits."""
    sizes = {"vocab_size": vocab, "num_hidden_layers": 2, "initializer_range": 0.3}
    target = tiny_target(dtype=torch.float64, **sizes)
    drafter = tiny_drafter(target, head, block_size=block, target_layer_ids=(0, -1))
    prompt = [2, 0, 1]

    @torch.no_grad()
    def next_law(text: list[int]) -> Tensor:
        output = target.model(torch.tensor([text]), use_cache=False)
        return warped(output.logits[0, -1], **CUTS[cut])

    found = law_of_the_loop(
        target,
        drafter,
        prompt,
        max_new_tokens=count,
        stop_token_ids=list(stops),
        **CUTS[cut],
        **options,
    )
    check_same_law(found, output_law(next_law, prompt, count, stops))
    return found


@both
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "vocab, block, cut, count",
    [
        (3, 2, "top_k", 4),
        pytest.param(3, 2, "plain", 3, marks=slow),
        pytest.param(3, 2, "cold", 3, marks=slow),
        pytest.param(4, 1, "top_p", 3, marks=slow),
        pytest.param(4, 1, "all", 3, marks=slow),
        pytest.param(5, 3, "top_k", 3, marks=slow),
        pytest.param(5, 3, "greedy", 8, marks=slow),
    ],
)
def test_replies_have_the_law_of_the_model(vocab, block, cut, count, head, verifier):
    options = {"cut": cut, "count": count, "verifier": verifier}
    found = check_qwen(head, vocab, block, stops=[0], **options)
    assert len(found) > 2 or cut == "greedy"  # several replies compete


# --- planted faults -----------------------------------------------------------------

CAUGHT = r"probability 0|the emitted law is off"


def fault_pair():
    """The drafter proposes what the target never says, and the other way round."""
    world = MarkovWorld(torch.tensor([[0.6, 0.4, 0], [0, 0.3, 0.7], [0.5, 0, 0.5]]))
    other = MarkovWorld(torch.tensor([[0.3, 0, 0.7], [0.5, 0.5, 0], [0, 0.6, 0.4]]))
    return world, WorldDrafter(other, 2, memory=1)


def test_the_plain_verifier_passes():
    check_world(*fault_pair(), [0], planted=plain_verifier())


@pytest.mark.parametrize("fault", WRONG_VERDICTS)
def test_a_wrong_verifier_is_caught(fault):
    with pytest.raises(AssertionError, match=CAUGHT):
        check_world(*fault_pair(), [0], planted=plain_verifier(fault))


@pytest.mark.parametrize("fault", MISTOLD)
def test_a_drafter_that_tells_another_law_is_caught(fault):
    world, drafter = pair_of_worlds(3, 1, 2, memory=1)
    cut = "top_k" if fault == BEFORE_TOP_K else "plain"
    drawn = {"temperature": 0.0} if fault == SOFT_LAW else {}
    check_world(world, Teller(drafter, **drawn), [0], count=2, cut=cut)
    liar = Teller(drafter, MISTOLD[fault], **drawn)
    with pytest.raises(AssertionError, match=CAUGHT):
        check_world(world, liar, [0], count=2, cut=cut)


# --- the numbers themselves ---------------------------------------------------------


@both
def test_no_random_number_is_used_twice(verifier, monkeypatch):
    """What the enumeration takes for granted: each draw and coin has its own number."""
    world, drafter = pair_of_worlds(4, 1, 3, memory=1)
    judge, used = VERIFIERS[verifier], []

    def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
        used.extend(uniforms.flatten().tolist())
        return sample(probs, uniforms)

    def judging(tokens, p_draft, p_target, uniforms, **options) -> Verdict:
        used.extend(uniforms.flatten().tolist())
        return judge(tokens, p_draft, p_target, uniforms, **options)

    monkeypatch.setattr("dsparkref.decode.cycle.invert_cdf", draw)
    monkeypatch.setattr("toy_models.sample", draw)
    monkeypatch.setitem(VERIFIERS, verifier, judging)
    options = {"max_new_tokens": 30, "temperature": 1.0, "verifier": verifier}
    got = generate(world_target(world), drafter, [0], **options, generator=0)
    assert len(used) == 1 + len(got.cycles) * (3 + 3 + 1)
    assert len(set(used)) == len(used)
