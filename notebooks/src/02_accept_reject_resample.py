# %% [markdown]
# # 02 · How can guessing leave the output law untouched?
#
# | | |
# | --- | --- |
# | Reading | 40 minutes; the exercises take 40 more |
# | Running | well under half a minute on a laptop, no GPU, no network |
# | Needs | `pip install -e ".[notebooks]"`; notebook 01 |
# | Equations | 8 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `verify/rejection.py`, `analysis/exact.py` |
#
# **You will be able to**
#
# - prove that a kept-or-replaced token has the target's law, and that a draft is kept
#   as often as the two laws overlap;
# - name the mistakes that bend the law, and say why no speed table shows them;
# - say when token match keeps more drafts than rejection sampling, and when fewer.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## One word of weather
#
# A language of one word: tomorrow's weather. The target says sun 0.4, cloud 0.3,
# rain 0.2, snow 0.1. Call this law p. The drafter is a pessimist: its law q is the
# same list, backwards.
#
# A draft x is drawn from q and kept with the chance min(1, p(x) / q(x)). If it is
# rejected, another word is drawn from the *residual*: what p has more of than q,
# max(0, p - q), divided by its sum.
#
# **Paper** The rule is from [Leviathan et al.](https://arxiv.org/abs/2211.17192) and
# [Chen et al.](https://arxiv.org/abs/2302.01318), found independently.
#
# **Predict**: the drafter proposes snow in 40 % of the cycles. How often does snow come
# out in the end?

# %%
guess = ...  # a share, from 0 to 1

# %%
import torch

from dsparkref import accept_rate, residual_distribution
from dsparkref.lab import law_figures as figures
from dsparkref.lab.checks import compare_guess
from dsparkref.lab.pictures import show

words = ["sun", "cloud", "rain", "snow"]
p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
q = p.flip(0)
kept = q * (p / q).clamp(max=1)  # drafted, and then kept
emitted = kept + (1 - kept.sum()) * residual_distribution(p, q)
compare_guess(guess, emitted[3].item())

# %%
assert torch.allclose(emitted, p, rtol=0, atol=1e-12)
assert torch.allclose(kept.sum(), accept_rate(p, q))
show(figures.pieces_picture(p, q, words))

# %% [markdown]
# ## The proof
#
# **A draft is kept as often as the laws overlap.** Word x is drafted *and* kept with
# probability
#
# $$q(x) \cdot \min\left(1, \frac{p(x)}{q(x)}\right) = \min(p(x), q(x)).$$
#
# Add this up over all words: the chance to keep a draft is the sum of min(p, q), the
# overlap of notebook 01. As |p - q| = p + q - 2 min(p, q), it is also 1 minus half the
# sum of |p - q|: 1 - TV (Eq. 8).
#
# **The output has the law p.** After the kept drafts, p(x) - min(p(x), q(x)) is still
# missing of word x. That is max(0, p(x) - q(x)), the bar above before it is divided by
# its sum. And its sum is 1 - (sum of min), which is exactly how often a draft is
# rejected. So a replacement from the residual fills each gap to the brim:
#
# $$\min(p, q) + (1 - \textstyle\sum \min(p, q)) \cdot
# \frac{\max(0, p - q)}{\sum \max(0, p - q)} = p.$$
#
# **A whole block.** Take p and q at position k to be the laws *given the tokens
# before*. Then the token at k has the law p, whatever stands before it, as long as each
# position has a random number of its own. After a rejection the later drafts are thrown
# away; after a block that stands, one more token is drawn from p: the bonus. So every
# token was drawn as the target alone would have drawn it. ∎
#
# **Why** it matters what the drafter *tells*: q must be the law that the draft really
# was drawn from. That is the only thing asked of a drafter. It may be bad.
#
# ## Every way it can go
#
# A proof is about the rule, not about the code. `emitted_law` is about the code. A
# verifier only compares its random numbers with some limits, so its answer is constant
# in between. Cut [0, 1) at every limit, ask the verifier once in each piece, and add up
# the widths: the exact law of what it emits, and nothing was sampled.

# %%
from dsparkref import MarkovWorld, verify_block
from dsparkref.analysis import toy
from dsparkref.analysis.exact import emitted_law, joint_law

for seed in range(3):
    worlds = [MarkovWorld.random(3, 1, generator=s) for s in (seed, seed + 3)]
    target, other = (world.block_laws([0], 3) for world in worlds)
    law, accepted = emitted_law(verify_block, target, toy.best_drafter(other[:2], 0))
    print(f"world {seed}: both drafts are kept with {accepted[2]:.2f}")
    assert (law - joint_law(target)).abs().max() < 1e-12

# %% [markdown]
# Two drafts and a bonus, three words, a parallel drafter that knows another world: 27
# texts, each with the target's probability, to the last digits of a computer number.
#
# Beside it, the same thing by chance: 20,000 cycles of the pessimist.

# %%
from dsparkref.verify.sampling import sample


def one_cycle(p, q, u):
    drafts = sample(q, u[:, 0])[:, None]  # [n, 1]
    laws = q[:, None], torch.stack([p, p], dim=1)  # [n, 1, V], [n, 2, V]
    verdict = verify_block(drafts, *laws, u[:, 1:])
    return torch.where(verdict.num_accepted == 1, drafts[:, 0], verdict.next_token)


# %%
count = 20_000
u = torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
counts = one_cycle(p.expand(count, -1), q.expand(count, -1), u).bincount(minlength=4)
error = (p * (1 - p) / count).sqrt()
assert ((counts / count - p).abs() < 4 * error).all()
show(figures.sampled_picture(p, q, counts, words))

# %% [markdown]
# ## Mistakes in one draft
#
# Now break it. Each of these was written by somebody who thought it right. The first
# four change the replacement; p_t is p here, and p_d is q. The last two leave the
# verifier alone and tell it a wrong q: a drafter that always proposes its favourite
# and tells its soft law; a drafter that drew after top-k and tells the law before.
#
# **Predict**: replace a rejected draft from p itself. How often does snow come out?
# (In the table below, "off by" is 1 - the overlap with the right law.)

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref import probabilities
from dsparkref.analysis.exact import emitted_token_law
from dsparkref.lab import planted_faults as faults


def law_of(fault, target, draft):
    return emitted_law(faults.plain_verifier(fault), target, draft, faulty=True)


target = MarkovWorld(p, words).block_laws([], 2)  # one draft and the bonus
found = {fault: law_of(fault, target, [q]) for fault in faults.IN_THE_REPLACEMENT}
assert all(abs(kept[1] - 0.6) < 1e-12 for law, kept in found.values())
compare_guess(guess, found[faults.FROM_TARGET][0][3].sum().item())

# %%
bent = {fault: (p, law.sum(dim=1)) for fault, (law, kept) in found.items()}
always_snow = probabilities(q.log(), temperature=0.0)
bent[faults.SOFT_LAW] = p, emitted_token_law(p, always_snow, told=q)
p_cut, q_cut = (probabilities(law.log(), top_k=3) for law in (p, q))
bent[faults.BEFORE_TOP_K] = p_cut, emitted_token_law(p_cut, q_cut, told=q)
show(figures.laws_picture(bent, words))

# %% [markdown]
# None of them crashes. The first four keep *exactly* as many drafts as the right
# verifier (the first cell asserts it): no speed table tells them apart. The text reads
# well, too. It is merely somebody else's.
#
# **Differs** Such things ship. A greedy draft judged by a soft law was
# [reported against transformers](https://github.com/huggingface/transformers/issues/32867);
# a draft drawn in bfloat16 and judged in float32
# [against DeepSpec](https://github.com/deepseek-ai/DeepSpec/issues/31). Here one tensor
# is both: what `propose` returns as `p_draft` is what it drew from.
#
# ## Mistakes that need a block
#
# Tomorrow's weather depends on today's: after sun 0.8 sun, after rain 0.6 rain. The
# drafter tosses a coin for each of two days. Today is sunny. Four more mistakes, and
# the law of three days: two drafts and what follows (S is sun, R is rain).

# %%
from itertools import product

days = MarkovWorld(torch.tensor([[0.8, 0.2], [0.4, 0.6]]), ("S", "R"))
target = days.block_laws([0], 3)
coin = torch.tensor([0.5, 0.5], dtype=torch.float64)
tosses, right = [coin, coin[None]], joint_law(target).flatten()
found = {fault: law_of(fault, target, tosses)[0] for fault in faults.IN_THE_WALK}
bent = {fault: (right, law.flatten()) for fault, law in found.items()}

# %%
off = {name: figures.distance(*pair) for name, pair in bent.items()}
assert min(off.values()) > 0.01
assert min(off, key=off.get) == faults.ONE_UNIFORM
texts = ["".join(days.words[day] for day in text) for text in product((0, 1), repeat=3)]
show(figures.laws_picture(bent, texts, columns=2))

# %% [markdown]
# The smallest is the meanest. One random number for the whole block leaves the first
# day right and bends what comes after it. A test that counts the first token of each
# cycle passes.
#
# ## Token match
#
# There is a second way to be lossless: draw the target's own token at each position,
# emit it, and go on while it equals the draft. Whatever the drafter does, every emitted
# token is the target's own sample. There is nothing to prove, and q is never read.
#
# What does it keep? Draft and sample are independent; both are x with q(x) p(x).
#
# **Predict**: the pessimist's sampled draft stands in 60 % of the cycles under
# rejection sampling. Under token match?

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref import token_match_block

target = MarkovWorld(p, words).block_laws([], 2)
law, accepted = emitted_law(token_match_block, target, [q])
assert torch.allclose(law.sum(dim=1), p, rtol=0, atol=1e-12)  # lossless
assert torch.isclose(accepted[1], (p * q).sum())
compare_guess(guess, accepted[1].item())

# %% [markdown]
# For one and the same sampled draft, match never keeps more: p q is at most min(p, q)
# at every word. But match allows another *draft*: the greedy one, always the likeliest
# word of q. Its law is a single 1, so that rejection and match agree: both keep it with
# p of that word.
#
# So compare pairs of draft and verifier. A greedy draft with token match can beat a
# sampled draft with rejection, and the other way round. Neither is a bug. Below, p and
# q are the weather at two temperatures.

# %%
from dsparkref.lab.widgets import explore

steps = [0.1, 0.25, 0.5, 1.0, 2.0]
table = {pair: pair for pair in product(steps, steps)}
controls = {"target's temperature": steps, "drafter's temperature": steps}
explore(table, figures.keeping_picture, controls, start=(0.25, 1.0))

# %%
for p_example, q_example in ([0.9, 0.1], [0.6, 0.4]), ([0.5, 0.5], [0.6, 0.4]):
    chances = figures.keeping_chances(torch.tensor(p_example), torch.tensor(q_example))
    print(p_example, {name: round(chance, 2) for name, chance in chances.items()})
    rejection, match, greedy = chances.values()
    assert match < rejection and (greedy > rejection) == (p_example == [0.9, 0.1])

# %% [markdown]
# **Differs** z-lab's DFlash drafts greedily at every temperature, and matches; the
# authors' Domino samples, and matches; DeepSpec samples, and rejects. Their accepted
# lengths at temperature 1 are not one quantity.
#
# ## A trained drafter
#
# Now a vocabulary of a thousand tokens, in the middle of a reply. For every draft of
# one block: how far is the drafter's law from the target's (1 - overlap), and how far
# is the law of what comes out? The formula of the proof gives both exactly.

# %%
from dsparkref import load_pair
from dsparkref.decode.request import as_row
from dsparkref.lab import course

pair = load_pair()
target, drafter = pair.target, pair.drafter
example = course.evaluation_examples(pair, per_domain=3)[-1]
text = as_row([*example.prompt, *example.reply[:14]], target.device)  # [1, T + 1]
session, read = target.prefill(text[:, :-1], drafter.spec.target_layer_ids)
print(target.decode(text[0, -14:].tolist()))

# %%
draft = drafter.propose(read.hidden, text[:, -1], temperature=1.0, generator=0)
seen = session.verify(torch.cat([text[:, -1:], draft.tokens], dim=1))
p_target = probabilities(seen.logits)[0, :-1].double()  # [K, V]
p_draft = draft.p_draft[0].double()  # [K, V]
emitted = emitted_token_law(p_target, p_draft)

# %%
off = {f"{drafter.head_type}'s draft": 1 - accept_rate(p_target, p_draft)}
off["what comes out"] = (emitted - p_target).abs().sum(dim=-1) / 2
print(course.text_table({name: values.tolist() for name, values in off.items()}))
assert off["what comes out"].max() < 1e-5

# %% [markdown]
# The same by chance, at the second draft: draw it again and again, judge it, count what
# comes out. The figure shows the six likeliest tokens.

# %%
from dsparkref.lab.terminal import token_text

p, q = p_target[1], p_draft[1]  # [V]
count = 4_000 if course.is_tiny() else 50
u = torch.rand(count, 3, generator=torch.Generator().manual_seed(1)).to(p.device)
first = one_cycle(p.expand(count, -1), q.expand(count, -1), u)
counts = first.bincount(minlength=len(p))
top = (p + q).topk(6).indices

# %%
if course.is_tiny():
    error = (p * (1 - p) / count).sqrt()[top]
    assert ((counts / count - p)[top].abs() <= 4 * error + 1e-6).all()
    assert 1 - accept_rate(p, q) > 0.2  # the drafter is far off here
shown = [repr(token_text(target, token)) for token in top.tolist()]
show(figures.sampled_picture(p, q, counts, shown, top, drafter.head_type))

# %% [markdown]
# At temperature 0 p is a single 1. A draft then stands where it *is* the target's
# favourite, and else the favourite replaces it: the text must be the very same.

# %%
from dsparkref import autoregressive, generate

question = target.encode("Write a function that adds two numbers.")
alone = autoregressive(target, question, max_new_tokens=40)
for name in "rejection", "token_match":
    both = generate(target, drafter, question, max_new_tokens=40, verifier=name)
    print(f"{name}: {both.tokens == alone.tokens}")
    assert both.tokens == alone.tokens or not course.is_tiny()

# %% [markdown]
# **Why** do people see differences on a GPU all the same? "Lossless" speaks of exact
# arithmetic. In bfloat16 a pass over eight tokens and eight passes over one differ in
# the last bits, and two nearly equal favourites may swap.
#
# ## Build it once
#
# The rule for one request, as a loop.


# %% tags=["build-it-once"]
def draw(law, u):
    return int((law.cumsum(dim=0) > u).int().argmax())


def verify_one(tokens, p_draft, p_target, uniforms):
    for k, token in enumerate(tokens):
        if uniforms[k] >= p_target[k, token] / p_draft[k, token]:
            missing = (p_target[k] - p_draft[k]).clamp(min=0)
            return k, draw(missing / missing.sum(), uniforms[-1])
    return len(tokens), draw(p_target[-1], uniforms[-1])


# %%
torch.manual_seed(2)
q, p = torch.randn(200, 9, 5).softmax(dim=-1).split([4, 5], dim=1)  # [n, 4 or 5, V]
block = sample(q, torch.rand(200, 4)), q, p, torch.rand(200, 5)
verdict = verify_block(*block)
mine = torch.tensor(list(map(verify_one, *block)))  # [n, 2]
assert mine[:, 0].equal(verdict.num_accepted) and mine[:, 1].equal(verdict.next_token)

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. A wrong answer is told what went wrong where the
# mistake is a known one. `EXERCISES["count_kept"].reveal()` shows the package's own
# function.
#
# **Warm-up.** How many drafts stand? `kept[b, k]` says whether draft k of block b won
# its coin toss. Return one number for each block.

# %% tags=["exercise"]
from dsparkref.lab.exercises.accept_reject_resample import EXERCISES


def count_kept(kept):
    """kept [B, K], bool. Return [B]."""
    return ...


EXERCISES["count_kept"].check(count_kept)

# %% [markdown]
# **Core.** The law of the replacement. Mind the case in which the two laws are equal.


# %% tags=["exercise"]
def replacement_law(p_target, p_draft):
    """p_target [V], p_draft [V]. Return [V]."""
    return ...


EXERCISES["replacement_law"].check(replacement_law)

# %% [markdown]
# **Stretch.** A drafter draws from `p_draft` and tells the verifier another law,
# `told`. The verifier believes it, in the coin and in the residual. Which law comes
# out? (`told` is nowhere 0.)


# %% tags=["exercise"]
def law_when_told(p_target, p_draft, told):
    """Three laws [V]. Return the law of the emitted token, [V]."""
    return ...


EXERCISES["law_when_told"].check(law_when_told)

# %% [markdown]
# **In words.** A colleague wants more speed and keeps a draft with min(1, 1.2 p / q).
# Can another law for the replacements repair the output?

# %% [markdown] tags=["solution"]
# Not in general. A word is now kept with min(q, 1.2 p). Where q is larger than 1.2 p
# that is 1.2 p: more than p already, before any replacement. A replacement can only
# add. Such rules trade the law for speed; they may be useful, but they are not
# lossless.

# %% [markdown]
# ## Recap
#
# - Kept drafts cover min(p, q), replacements fill p to the brim: the output has the law
#   p for every drafter that tells the truth about q.
# - The overlap is the chance to keep a draft. It decides speed, never the law.
# - Wrong verifiers are as fast as right ones. Only the law gives them away, and adding
#   up finds what sampling misses.
# - Token match is lossless without q. It keeps less of a sampled draft, and allows a
#   greedy one.
#
# **Next**: nothing is lost. But is anything won? A cycle drafts a block and reads it in
# a wider pass, and both take time. Notebook 03.
