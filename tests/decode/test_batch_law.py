"""Two requests that share a scheduler, by enumeration: appendix A in the loop.

As in ``test_whole_loop_law``, every random decision becomes a choice, here of a batch:
the joint law of two replies must be the product of the target's own laws. A scheduler
that looks at a draft's own outcome bends it, through its neighbour, too.
"""

from dataclasses import replace

import pytest
import torch
from exact_laws import Choices, added_up, check_same_law, every_run, output_law
from toy_models import WorldDrafter, WorldModel

from dsparkref import MarkovWorld, Target, Verdict, generate_batch, survival
from dsparkref.analysis.exact import verdict_law
from dsparkref.verify.policies import LaggedPrefixScheduler, Policy, PrefixScheduler
from dsparkref.verify.rejection import VERIFIERS
from dsparkref.verify.scheduler import StepsPerSecond, schedule_prefixes

# Hundreds of runs: annotations are checked elsewhere.
pytestmark = pytest.mark.usefixtures("no_shape_checks")
both = pytest.mark.parametrize("verifier", VERIFIERS)

# A and B come with .7 and .3 after either; a prompt that ends with START goes on with
# A, one that ends with RING goes on with RING for ever.
A, B, START, RING = range(4)
ROWS = [[0.7, 0.3, 0, 0], [0.7, 0.3, 0, 0], [1.0, 0, 0, 0], [0, 0, 0, 1.0]]
DRAFTS = [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [1.0, 0, 0, 0], [0, 0, 0, 1.0]]
WORLD, OTHER = (
    MarkovWorld(torch.tensor(rows, dtype=torch.float64)) for rows in (ROWS, DRAFTS)
)
# Two requests: 2 tokens expected at 1 step a second. The first, second and third draft
# of survival .8, .8, .72 do not pay (1.68, 1.80, 1.94), all four do (2.22).
STAIRCASE = StepsPerSecond({1: 1.0, 2: 1.0, 3: 0.6, 4: 0.5, 5: 0.45, 6: 0.44})


class ManyRows(WorldModel):
    """The world as a model of several rows; padding is what the mask hides."""

    def forward(
        self,
        input_ids,
        *,
        past_key_values,
        attention_mask=None,
        logits_to_keep=0,
        **_,
    ):
        ids = input_ids.double()[..., None]  # [R, n, 1]
        keys, _ = past_key_values.update(ids[:, None], ids[:, None], 0)
        held = keys[:, 0, :, 0].long()  # [R, T]
        seen = torch.ones_like(held) if attention_mask is None else attention_mask
        count = logits_to_keep or input_ids.shape[1]
        laws = []
        for row, mask in zip(held, seen.bool(), strict=True):
            ends = range(len(row) - count + 1, len(row) + 1)
            laws += [
                self.world.next_law(row[:end][mask[:end]].tolist()) for end in ends
            ]
        logits = torch.stack(laws).log().view(len(held), count, -1)
        return type("Output", (), {"logits": logits, "hidden_states": (ids,)})


class Confident(WorldDrafter):
    """c_1 is .8; c_2 reads the first draft: .9, and 0 after B."""

    def propose(self, *args, **options):
        proposal = super().propose(*args, **options)
        second = 0.0 if int(proposal.tokens[0, 0]) == B else 0.9
        return replace(proposal, confidence=torch.tensor([[0.8, second]]).double())


class UnlaggedSearch(Policy):
    """The planted mutant: the global search, used on the step it looked at."""

    def verify_lengths(self, confidence, *, block_size, num_requests=1):
        return schedule_prefixes(survival(confidence), STAIRCASE, early_stop=False)


def law_of_the_batch(prompts, policy, *, count, verifier):
    """The exact joint law of ``generate_batch``'s replies."""
    judge, drafter = VERIFIERS[verifier], Confident(OTHER, 2, memory=None)

    def run(choices: Choices):
        def choose_tokens(probs, uniforms):
            return torch.tensor([choices.choose(row) for row in probs])

        def choose_verdicts(tokens, p_draft, p_target, uniforms, *, verify_len):
            found = []
            for row, length in enumerate(verify_len.tolist()):
                told, judged = p_draft[row, :length], p_target[row, : length + 1]
                law = verdict_law(judge, tokens[row, :length].tolist(), told, judged)
                found.append(divmod(choices.choose(law.flatten()), law.shape[1]))
            return Verdict(*map(torch.tensor, zip(*found, strict=True)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dsparkref.decode.cycle.invert_cdf", choose_tokens)
            patch.setattr("toy_models.sample", choose_tokens)
            patch.setitem(VERIFIERS, verifier, choose_verdicts)
            replies = generate_batch(
                Target(ManyRows(WORLD)),
                drafter,
                prompts,
                max_new_tokens=count,
                temperature=1.0,
                stop_token_ids=[],
                policy=policy,
                verifier=verifier,
            )
        return tuple(tuple(reply.tokens) for reply in replies)

    return added_up(every_run(run))


def product_law(prompts, count):
    """Two replies that know nothing of each other."""
    first, second = (output_law(WORLD.next_law, list(p), count) for p in prompts)
    return {(x, y): first[x] * second[y] for x in first for y in second}


def first_after_start(law):
    """The chance of A right after the prefill's token, for each request."""
    return [
        sum(chance for replies, chance in law.items() if replies[number][1] == A)
        for number in (0, 1)
    ]


TWO_CHANCES = ([START], [B, START])  # prompts of unlike lengths: one row is padded


@both
def test_the_early_stop_leaves_both_laws_alone(verifier):
    policy = PrefixScheduler(STAIRCASE)
    law = law_of_the_batch(TWO_CHANCES, policy, count=2, verifier=verifier)
    check_same_law(law, product_law(TWO_CHANCES, 2))
    assert first_after_start(law) == pytest.approx([0.7, 0.7], abs=1e-12)


def test_a_convex_curve_verifies_and_still_leaves_them_alone():
    """Here drafts do get in, and A's second draft before B's."""
    policy = PrefixScheduler(StepsPerSecond({1: 1.0, 2: 0.9, 6: 0.6}))
    law = law_of_the_batch(TWO_CHANCES, policy, count=2, verifier="rejection")
    check_same_law(law, product_law(TWO_CHANCES, 2))


def test_looking_ahead_bends_both():
    """Both are verified where both drew A (1/4), where A is kept for certain; else
    neither is: 1/4 + 3/4 * .7."""
    policy = UnlaggedSearch()
    law = law_of_the_batch(TWO_CHANCES, policy, count=2, verifier="rejection")
    assert first_after_start(law) == pytest.approx([0.775, 0.775], abs=1e-12)
    with pytest.raises(AssertionError, match="the emitted law is off"):
        check_same_law(law, product_law(TWO_CHANCES, 2))


def test_token_match_hides_it():
    policy = UnlaggedSearch()
    law = law_of_the_batch(TWO_CHANCES, policy, count=2, verifier="token_match")
    check_same_law(law, product_law(TWO_CHANCES, 2))


@both
@pytest.mark.parametrize("prompts", [([START], [RING]), ([RING], [B, START])])
def test_the_same_search_one_step_late_is_lossless(prompts, verifier):
    """The second step's budget is 4 drafts or none, as the first step's draft fell."""
    policy = LaggedPrefixScheduler(STAIRCASE, lag=1)
    law = law_of_the_batch(prompts, policy, count=3, verifier=verifier)
    check_same_law(law, product_law(prompts, 3))
    assert len(law) == 4  # two tokens of the request that has a choice
