# %% [markdown]
# # 09 · How many tokens should be verified under load?
#
# | | |
# | --- | --- |
# | Reading | 45 minutes; the exercises take 45 more |
# | Running | well under half a minute on a laptop, no GPU, no network |
# | Needs | `pip install -e ".[notebooks]"`; notebooks 02, 03 and 08 |
# | Equations | Algorithm 1, appendix A of [DSpark](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `verify/scheduler.py`, `verify/policies.py`, `analysis/exact.py` |
#
# **You will be able to**
#
# - run Algorithm 1 by hand, and say where it stops and why;
# - tell on which speed curves the early stop is optimal, and on which it is not;
# - show with four numbers that a scheduler which looks ahead changes the text;
# - explain how looking ahead *two steps late* is allowed again.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## A place in the step costs everybody
#
# A server decodes many users at once. In each step every user brings one token that
# must be computed (the anchor) and some drafts to verify: B tokens in all. The more
# tokens, the longer the step, and *everybody* waits for it. So a draft that is not
# likely to stand is paid for by the others.
#
# How much longer? That is measured: SPS(B), steps per second at B tokens. The table
# below is this project's own, made by `python -m dsparkref profile` on two CPU threads.
# (A *row* is what one user brings; 64 rows of one token take another time than one row
# of 64: the table keeps them apart, and SPS(B) is asked for at a number of users.)
#
# **Predict**: 64 users verify 7 drafts each, 8 tokens a row instead of 1. Which share
# of the steps per second is left?

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref.analysis.profile import read_profile
from dsparkref.checkpoints import files
from dsparkref.lab.checks import compare_guess

profile = read_profile(files.data_folder() / "measured" / "cpu-x86_64.json")
crowd = profile.steps_per_second(rows=64)
compare_guess(guess, crowd(64 * 8) / crowd(64))

# %%
from dsparkref.lab import scheduling_figures as figures
from dsparkref.lab.pictures import show

assert crowd(64 * 8) < 0.7 * crowd(64)
show(figures.speed_picture(profile, [1, 8, 64]))

# %% [markdown]
# Eight tokens are far from eight times the price, and for one user they are almost
# free. This small model on a CPU is bound by overhead (what any step costs): a large
# one on a GPU has other numbers, and the same questions.
#
# ## Algorithm 1, one draft at a time
#
# What should be as large as possible is the expected **throughput**, tokens of the step
# times steps per second:
#
# $$\Theta = \tau \cdot \mathrm{SPS}(B), \qquad \tau = R + \sum a_{r,j}$$
#
# Each of the R requests (one of each user) gets one token of the target's own. Draft j
# of request r adds $a_{r,j}$, its survival (notebook 08). **Paper** Algorithm 1:
#
# 1. Begin without drafts: B = R, tau = R.
# 2. Rank all drafts of all requests by survival, the best first.
# 3. Take the next one in: B grows by 1, tau by its survival.
# 4. If Theta has risen, keep it and go on. **Else stop.**
#
# Since survival never rises along a block, draft 2 is never taken without draft 1: what
# is chosen are prefixes. Move the slider through the ranking, on three curves. Two of
# them are made up, and say so.

# %%
from dsparkref import schedule_prefixes, survival
from dsparkref.lab import course, made_up_curves, scheduler_walk, scheduling

a = survival(scheduler_walk.TWO_REQUESTS)  # [R, K], by hand
stairs = made_up_curves.staircase(2, 16)
curves = {"made up: staircase": stairs}
curves["made up: smooth"] = made_up_curves.smooth_curve(2, 16)
curves["measured, 2 users"] = profile.steps_per_second(rows=2)

# %%
from dsparkref.lab.widgets import explore

controls = {"curve": list(curves), "draft": list(range(a.numel() + 1))}
table = scheduler_walk.walks(a, curves)
explore(table, scheduler_walk.walk_picture, controls, start=("made up: staircase", 3))

# %%
stopped = schedule_prefixes(a, stairs)
searched = schedule_prefixes(a, stairs, early_stop=False)
print("the stop:", stopped.tolist(), " the search:", searched.tolist())
assert stopped.sum() == 2 and searched.sum() == 10

# %% [markdown]
# On the staircase four tokens share one price. The first draft of the next tile has to
# pay for the whole tile, Theta dips, and the algorithm stops, though three nearly free
# places lie behind. `early_stop=False` is the **search**: it looks at the whole curve
# and takes the highest point.
#
# **Why** ties need care: a confidence of exactly 1 gives two drafts of one request the
# same survival. Whoever sorts by survival alone may take the second without the first.
# The package sorts by (-a, position, request).

# %%
import torch

from dsparkref.verify.scheduler import fill_budget, rank_drafts

sure = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.5, 0.5]])
print("requests, best draft first:", rank_drafts(sure)[1].tolist())
for budget in range(1, 5):
    print(f"budget {budget}: verify", fill_budget(sure, budget).tolist())

# %% [markdown]
# ## When is the stop right?
#
# Compare it with brute force: all lengths of all requests, (K + 1) to the power R of
# them. On a hundred *convex* curves (no token is cheaper than the one before) and on a
# hundred curves whose token prices are drawn in any order.
#
# **Predict**: in how many of the hundred unordered ones does the stop still find the
# best?

# %%
guess = ...  # of 100

# %%
convex, unordered = scheduling.duels(convex=True), scheduling.duels(convex=False)
found = sum(ratio > 1 - 1e-9 for ratio in unordered["the stop"])
compare_guess(guess, found, digits=0)

# %%
ratios = {"convex": convex["the stop"], "unordered": unordered["the stop"]}
assert min(ratios["convex"]) > 1 - 1e-9 > min(ratios["unordered"])
assert min(convex["the search"] + unordered["the search"]) > 1 - 1e-9  # on any curve
show(figures.duels_picture(ratios))

# %% [markdown]
# **Why** convex is enough: the gains only fall (drafts are ranked), the prices only
# rise. Once a draft does not pay, no later one does. On a staircase a price falls
# again.
#
# ## A crowd
#
# Now real confidences: the calibrated ones of notebook 08, held out. For 1 to 64 users
# we draw forty crowds and ask how many drafts each user gets. Beside the measured table
# stands a made-up one for a large accelerator: free up to 64 tokens, then in
# proportion.

# %%
from dsparkref import apply_sts, load_pair
from dsparkref.analysis.calibrate import fitted_temperatures
from dsparkref.analysis.calibration_records import split_records
from dsparkref.lab import confidence as confidences

pair = load_pair()
records, _ = confidences.confidence_records(pair)
fit, held_out = split_records(records)
calibrated = apply_sts(held_out.logits, fitted_temperatures(fit))
print(f"{pair.drafter.head_type}: {pair.drafter.block_size} drafts a cycle")

# %%
users = [1, 2, 4, 8, 16, 32, 64]
wanted = scheduling.wanted_by_crowd(survival(calibrated), users, profile)
if course.is_tiny():
    lone, *_, crowded = wanted["the stop, measured"]
    assert lone > 6.5 > crowded > 4  # a smaller budget under load
show(figures.crowd_picture(users, wanted, "mean over 40 crowds"))

# %% [markdown]
# One and the same rule: long prefixes for few users, a shrinking budget for many, and
# where every token costs in proportion, none. No threshold could do that, since a
# threshold does not know the load. The measured curve has dips: there the stop takes
# fewer drafts than the search.
#
# ## Looking ahead bends the text
#
# So why stop at all, why not always search? Because of something subtle. The
# confidence of draft 2 (its chance to stand where draft 1 does) reads *draft 1*. A
# search that looks at draft 2 before it decides on draft 1 lets draft 1 decide whether
# it is verified itself.
#
# **Paper** Appendix A, one request, two drafts. The target says A with .7 and B with
# .3, the drafter each with .5. The head gives $c_1 = .8$; then $c_2 = .9$ after A, and
# 0 after B. The verifier is rejection sampling: it keeps a draft with chance
# min(1, p/q).

# %%
from dsparkref import PrefixScheduler, StepsPerSecond

sps = StepsPerSecond({1: 1.0, 2: 0.5, 3: 0.45})
stop, ahead = PrefixScheduler(sps), scheduling.LookAhead(sps)


def confidence_of(drafts):  # 0 is A, 1 is B
    return torch.tensor([[0.8, 0.9 if drafts[0] == 0 else 0.0]])


# %%
lengths = {"the stop": scheduling.lengths_after(stop, confidence_of)}
lengths["looking ahead"] = scheduling.lengths_after(ahead, confidence_of)
for name, length in lengths.items():
    print(f"{name}: verifies {length([0, 0])} after A, {length([1, 0])} after B")

# %% [markdown]
# **Predict**: looking ahead, draft A is verified (and p/q = 1.4 > 1: always kept).
# Draft B is not verified at all; then the target simply says its own token. How often
# does A come out, in place of .7?

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref import token_match_block, verify_block
from dsparkref.analysis.exact import emitted_law

p, q = torch.tensor([[0.7, 0.3], [0.5, 0.5]], dtype=torch.float64)
laws = [p, p.expand(2, 2), p.expand(2, 2, 2)], [q, q.expand(2, 2)]  # target, draft


def chance_of_a(verifier, length):
    law, _ = emitted_law(verifier, *laws, verify_len=length)
    return law[0].sum().item()  # the first token is A


compare_guess(guess, chance_of_a(verify_block, lengths["looking ahead"]))

# %% [markdown]
# Half of the time A is drafted and kept; else B is drafted and thrown away unread, and
# the target says A with .7. That makes .5 + .5 x .7. Nothing was sampled: `emitted_law`
# adds up every draft and every coin (notebook 02).
#
# **Why** the stop is safe: it decides about draft 1 from $c_1$, and has not looked at
# $c_2$ yet. No number that it has read knows which token draft 1 is. In general: c at k
# reads the drafts *before* k, so a decision that reads up to $c_k$ is blind to draft k.
#
# ## Two steps late
#
# **Paper** Section 5.2: the production system does search, on the survivals of *two
# steps before*, and takes from it only one number: how many drafts in all. Who gets the
# places is ranked by the survivals of now. The drafts it has looked at are past: they
# cannot gain from it. (And there is time to prepare the next step while this one runs.)
#
# We execute that too, after each of the sixteen pasts that two steps can have. (In the
# first two steps, which have no such past, *ours* is Algorithm 1 with the stop.)

# %%
from dsparkref import LaggedPrefixScheduler

late = scheduling.after_every_past(LaggedPrefixScheduler(sps), confidence_of)
print("drafts verified after A, by past:", [length([0, 0]) for length in late])
each = [chance_of_a(verify_block, length) for length in late]
assert max(abs(chance - 0.7) for chance in each) < 1e-12

# %%
shares = {}
for name, length in lengths.items():
    shares[name] = [chance_of_a(v, length) for v in (verify_block, token_match_block)]
matched = [chance_of_a(token_match_block, length) for length in late]
shares["two steps late"] = [sum(found) / len(late) for found in (each, matched)]

# %%
assert abs(shares["the stop"][0] - 0.7) < 1e-12
assert abs(shares["looking ahead"][0] - 0.85) < 1e-12
assert all(abs(match - 0.7) < 1e-12 for _, match in shares.values())
show(figures.law_picture(shares, 0.7))

# %% [markdown]
# The second colour is a trap. *Token match* (keep drafts while they equal what the
# target samples) always emits the target's own sample, so it never shows the bent law:
# a test of the scheduler must use rejection sampling. A dflash drafter cannot show it
# either, since its confidence reads no draft.
#
# **Differs** Engines leave out the stop and look two steps back; DeepSpec, DeepSeek's
# research code, has no scheduler.
#
# What does being late cost, and what does it save? Two hundred steps of four users on a
# staircase, with the calibrated confidences.

# %%
generator, size = torch.Generator().manual_seed(0), pair.drafter.block_size
steps = calibrated[torch.randint(len(calibrated), (200, 4), generator=generator)]
tiles = made_up_curves.staircase(4, 4 * (size + 1), tread=8)
thetas = {}
for name, policy in scheduling.rivals(tiles, size).items():
    thetas[name] = scheduling.mean_throughput(steps, policy, tiles)

# %%
if course.is_tiny():
    assert thetas["two steps late"] > 0.95 * thetas["the search"]
    assert thetas["the stop"] < 0.8 * thetas["the search"]
show(figures.policies_picture(thetas, "made up: tiles of 8 tokens, 4 users, 200 steps"))

# %% [markdown]
# Late, and still nearly as good: how much a *crowd* wants changes little from step to
# step. And exact, where the search is not. All of these are *policies*, rules for how
# many drafts to verify, and decoding takes any of them:
# `generate(..., policy=LaggedPrefixScheduler(sps))`.
#
# ## Build it once
#
# Algorithm 1 in a dozen lines, one draft at a time. (Python's `sorted` keeps the order
# of equals: ties stay in the order position, request.)


# %% tags=["build-it-once"]
from itertools import product


def algorithm_1(chances, sps):
    lengths, batch, tokens = [0] * len(chances), len(chances), float(len(chances))
    places = product(range(chances.shape[1]), range(len(chances)))  # (j, r)
    for j, r in sorted(places, key=lambda place: -chances[place[1], place[0]]):
        gain, batch = chances[r, j].item(), batch + 1
        if gain == 0 or batch > sps.capacity:
            break
        if (tokens + gain) * sps(batch) <= tokens * sps(batch - 1):
            break
        tokens, lengths[r] = tokens + gain, j + 1
    return lengths


for curve in curves.values():
    assert algorithm_1(a, curve) == schedule_prefixes(a, curve).tolist()

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. `EXERCISES["throughputs"].reveal()` shows the
# package's own function. `steps_per_second(b)` gives SPS at b tokens (one whole
# number), and `steps_per_second.capacity` is the last b that was measured.
#
# **Warm-up.** Theta with the best 0, 1, 2, ... drafts taken in. (All drafts here have a
# survival above 0, and the table is long enough.)

# %% tags=["exercise"]
from dsparkref.lab.exercises.scheduler import EXERCISES


def throughputs(survival, steps_per_second):
    """survival [R, K]. Return [R * K + 1] numbers."""
    return ...


EXERCISES["throughputs"].check(throughputs)

# %% [markdown]
# **Core.** The ranking, ties as above: by survival, then the lower position, then the
# lower request. Drafts of survival 0 stay out.


# %% tags=["exercise"]
def ranking(survival):
    """survival [R, K]. Return (the sorted survivals [n], their requests [n])."""
    return ...


EXERCISES["ranking"].check(ranking)

# %% [markdown]
# **Core.** A budget of drafts, shared out: the best-ranked go in. Drafts of survival 0
# stay out, even where there is room.


# %% tags=["exercise"]
def share_out(survival, budget):
    """survival [R, K]. Return [R]: how many drafts of each request are verified."""
    return ...


EXERCISES["share_out"].check(share_out)

# %% [markdown]
# **Stretch.** The whole of Algorithm 1, with its stop. Mind the plateau (Theta stays
# as it was) and the capacity.


# %% tags=["exercise"]
def schedule(survival, steps_per_second):
    """survival [R, K]. Return [R]: how many drafts of each request are verified."""
    return ...


EXERCISES["schedule"].check(schedule)

# %% [markdown]
# **In words.** An engine searches on the current step, without a stop. Its team
# compared a million outputs with the target's own law and found no difference; they
# verify by token match. They now switch to rejection sampling, which keeps more drafts.
# What do you tell them?

# %% [markdown] tags=["solution"]
# Their test could not fail: with token match every emitted token is the target's own
# sample, whatever the scheduler does. With rejection sampling the same scheduler is not
# lossless, because a draft's outcome decides whether it is verified. Put the early stop
# in, or let the search look at steps that are over, and test again under rejection.

# %% [markdown]
# ## Recap
#
# - Theta = tau SPS(B). Rank all drafts by survival, take them in while Theta rises.
# - The stop is optimal where step time is convex; on a staircase it halts at the first
#   dip.
# - A decision about a draft must not depend on that draft. Looking ahead does, and
#   turns .7 into .85; two steps late does not.
# - Token match hides the fault.
#
# **Next**: one cycle from end to end, every tensor with its shape. Notebook 10.
