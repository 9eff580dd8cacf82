# %% [markdown]
# # 11 · What does the scheduler buy when many users share one engine?
#
# | | |
# | --- | --- |
# | Reading | 40 minutes; the exercises take 30 more |
# | Running | well under half a minute on a laptop, no GPU, no network |
# | Needs | `pip install -e ".[notebooks]"`; notebooks 03, 08 and 09 |
# | Equations | Figures 7 and 8 of [DSpark](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `analysis/load.py`, `analysis/clock.py`, `analysis/serving.py` |
#
# **You will be able to**
#
# - tell the speed of one user from the throughput of the engine, and say who pays for
#   a draft;
# - simulate a loaded engine with real confidences and a measured clock;
# - predict from the shape of a speed curve whether a scheduler has anything to win.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## Two speeds
#
# An engine serves many requests in one step. Two numbers describe it. The *speed of a
# user* is the tokens per second that one reply grows by. The *throughput* is the tokens
# per second of all replies together. Whoever operates the engine wants throughput;
# whoever reads the reply wants speed.
#
# The clock of this notebook is a table: how long a step takes for R requests with n
# tokens each. It was measured once, with `python -m dsparkref profile`, and ships in
# `data/measured/`. So every machine sees the same seconds here.
#
# **Predict**: 64 users share the engine, without any drafter. By which factor is each
# of them slower than a user who is alone?

# %%
guess = ...  # a factor, 1 or more

# %%
from dsparkref.analysis.clock import table_clock
from dsparkref.analysis.profile import load_measured
from dsparkref.lab.checks import compare_guess

clock = table_clock(load_measured())
alone, crowd = (clock([0] * users, drafted=False) for users in (1, 64))
compare_guess(guess, crowd / alone)

# %%
print(f"throughput of 64 against one: {64 * alone / crowd:.0f} times")
assert crowd < 4 * alone  # far less than 64 times

# %% [markdown]
# A small batch leaves the processor idle, so company is nearly free. Speculation uses
# the same idle capacity: it fills the step with drafts instead of users. Under a heavy
# load the two compete. That is the whole subject of this notebook.
#
# ## A load that is replayed
#
# Which drafts would stand? We do not invent that. The pair has decoded prompts of
# math, code and chat with all K drafts verified, and every cycle was kept: what the
# confidence head said, and how many drafts stood.
#
# A simulated request is of one domain and meets cycles of that domain, in random order.
# If a policy verifies fewer drafts than stood, it gets fewer tokens. It never sees more
# than the confidences.

# %%
from dsparkref import load_pair
from dsparkref.lab import serving_lesson as lesson
from dsparkref.lab.course import text_table

pair = load_pair()
recorded = lesson.recorded_load(pair)
counts = {pair.drafter.head_type: recorded.kind.bincount().tolist()}
print(text_table(counts, ["math", "code", "chat"], head="cycles of", digits=0))

# %%
kinds = range(int(recorded.kind.max()) + 1)
kept = [recorded.num_accepted[recorded.kind == k].double().mean() for k in kinds]
print(text_table({"drafts kept": kept}, ["math", "code", "chat"], head="per cycle"))

# %% [markdown]
# **Why** untruncated? A policy that had cut the deep drafts would have left cycles that
# say nothing about them (notebook 08).
#
# Now one run. Sixteen places, always full; every request wants the same number of
# tokens. The scheduler is the lagged one of notebook 09.

# %%
from dsparkref import LaggedPrefixScheduler

lagged = LaggedPrefixScheduler(clock.steps_per_second)
result = lesson.served(recorded, clock, lagged, places=16)
print(f"{result.steps} steps of {result.batch_requests:.0f} requests")
print(f"{result.throughput:.0f} tokens/s in all, {result.user_speed:.0f} for a user")
print(f"{1 + result.verify_len:.1f} verified, {result.accepted_length:.1f} gained")

# %% [markdown]
# The scheduler is told `clock.steps_per_second`, not one curve: SPS(B) at the number of
# requests in the step. B tokens in many short rows take another time than B tokens in
# a few long ones.
#
# ## Throughput against speed
#
# Now every policy at four loads: no drafter at all, each fixed length, a threshold on
# the survival, Algorithm 1 with its early stop, and the lagged scheduler. Each dot is
# one load; to the right is good for the user, up is good for the operator.
#
# **Predict**: at 64 requests, how much more throughput does the lagged scheduler give
# than the engine without a drafter? A share: 0.5 would be half as much again.

# %%
guess = ...  # a share

# %%
from dsparkref.analysis.serving import row_of

loads = [1, 4, 16, 64]
rows = lesson.compared(recorded, clock, loads)
ours, plain = (row_of(rows, n, 64)["throughput"] for n in ("lagged", "autoregressive"))
compare_guess(guess, ours / plain - 1)

# %%
from dsparkref.lab import serving_figures as figures
from dsparkref.lab.pictures import show

note = f"requests of {pair.drafter.head_type}; clock: {clock}"
show(figures.trade_off_picture(rows, note))

# %%
from dsparkref.lab import course

if course.is_tiny():
    speeds = [row_of(rows, n, 1)["user_speed"] for n in ("lagged", "autoregressive")]
    assert speeds[0] > 2 * speeds[1]  # alone: far faster
    assert -0.05 < ours / plain - 1 < 0.1  # in a crowd: no gain left here

# %% [markdown]
# **Paper** Figure 7 has this shape, with one line per engine. In DeepSeek's production
# (their numbers, their hardware) the speed of a user rose by 57 to 85 % at the same
# throughput. They draft five tokens, for a target that is far larger than ours.
#
# Why is nothing left at 64 here? Look at what a step is spent on.

# %%
shares = lesson.step_shares(load_measured(), loads)
print(text_table(shares, loads, head="share of a full step"))
assert shares["draft pass"][-1] > 0.3

# %% [markdown]
# The tiny pair's drafter has two layers, its target six. Drafting for 64 requests takes
# longer than the target's own one-token step. No policy that drafts can win that back:
# the draft pass is paid *before* the confidences are known. A scheduler that decides to
# verify nothing has still paid it.
#
# **Differs** Beside a large model a drafter of a few layers costs far less, and an
# engine may leave it out altogether when the load is high.
#
# ## The budget under load

# %%
show(figures.load_picture(rows, note))

# %%
from dsparkref.analysis.serving import against_best_fixed

if course.is_tiny():
    for row in against_best_fixed(rows):
        assert row["lagged"] > -0.02  # at every load, knowing none beforehand
    budgets = [row_of(rows, "lagged", users)["budget"] for users in loads]
    assert budgets[0] > budgets[-1] > 7

# %% [markdown]
# The lagged scheduler stays with the best fixed length at every load, and nobody told
# it the load. The early stop falls behind where the measured curve has a dip.
#
# The budget shrinks, but little. When is one more draft worth its time? It adds its
# survival to the tokens of the step, and some time to all of them.
# It pays when its survival is above what everybody would have got in that time.


# %%
def must_survive(users):
    one, *_, full = load_measured().at(users)
    more = (full.verify_seconds - one.verify_seconds) / (users * (full.tokens - 1))
    return row_of(rows, "lagged", users)["throughput"] * more


# %%
least = [must_survive(users) for users in loads]
print(text_table({"least survival": least}, loads, head="requests"))
if course.is_tiny():
    assert least == sorted(least) and least[-1] < 0.5

# %% [markdown]
# Alone, a draft pays although it rarely stands; in a crowd the bar is several times
# higher. Most drafts of this pair are better than that, so most stay in.
#
# ## Other curves
#
# What if verifying were dearer? Two curves that **nobody measured**, and every output
# says so. *Staircase*: a kernel that works on tiles of 64 tokens, so that token 65
# costs as much as the next 64 together. *Roofline*: flat up to 128 tokens, then each
# token costs the same.
#
# **Predict**: on the roofline at 64 requests, how many tokens per request and step does
# the lagged scheduler verify? (With all K drafts it would be K + 1.)

# %%
guess = ...  # tokens, anchor included

# %%
clocks, table = lesson.clocks(recorded.block_size), {}
for name, one in clocks.items():
    said = f"requests of {pair.drafter.head_type}; clock: {one}"
    for users in loads:
        table[name, users] = lesson.compared(recorded, one, [users]), said
compare_guess(guess, row_of(table["roofline", 64][0], "lagged", 64)["budget"])

# %%
from dsparkref.lab.widgets import explore

controls = {"curve": list(clocks), "requests at once": loads}
explore(table, figures.one_load_picture, controls, start=("staircase", 64))

# %%
stairs, roof = (table[name, 64][0] for name in ("staircase", "roofline"))
if course.is_tiny():
    assert row_of(stairs, "Algorithm 1", 64)["budget"] == 1  # it never starts
    assert against_best_fixed(stairs)[0]["Algorithm 1"] < -0.1
    assert min(against_best_fixed(t)[0]["lagged"] for t in (stairs, roof)) > -0.02
    assert row_of(roof, "lagged", 64)["budget"] < 4

# %% [markdown]
# On the staircase 64 anchors fill the first tile. The first draft opens the second one
# and cannot pay for it alone, so Algorithm 1 stops before it began. A tile full of good
# drafts would have paid: the search sees that, and its lag makes it lossless.
# On the roofline the curve is convex beyond its knee; there the two agree.
#
# **Paper** Figure 8: below 200 concurrent requests (150 for the larger model) the
# production engine verifies 4 to 6 tokens a request, anchor included, and fewer as the
# load grows. Such a fall fits our roofline better than our two cores.
#
# ## Build it once
#
# A load whose requests are all there at once, and a fixed length k. Steps are taken
# until every reply has its tokens. The package's simulation must count the same steps.

# %% tags=["build-it-once"]
import torch

from dsparkref import FixedLength
from dsparkref.analysis.load import Recorded, simulate_load


def steps_and_seconds(kept, k, users, tokens, seconds_of):
    left, steps, seconds = [tokens] * users, 0, 0.0
    while left:
        seconds += seconds_of([k] * len(left), True)
        left = [n - 1 - min(kept, k) for n in left]
        left, steps = [n for n in left if n > 0], steps + 1
    return steps, seconds


four = Recorded(None, torch.tensor([4]), recorded.block_size)
load = {"rate": float("inf"), "concurrency": 8, "num_requests": 8, "tokens": 40}
for k in (0, 3, 5):
    theirs = simulate_load(four, clock, FixedLength(k), **load)
    steps, seconds = steps_and_seconds(4, k, 8, 40, clock)
    assert (steps, round(320 / seconds)) == (theirs.steps, round(theirs.throughput))

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. `EXERCISES["tokens_of"].reveal()` shows the
# package's own function.
#
# **Warm-up.** What does a recorded cycle give when only part of it is verified?
# `num_accepted` counts the drafts that stood, `verify_len` those that are verified now.

# %% tags=["exercise"]
from dsparkref.lab.exercises.serving_under_load import EXERCISES


def tokens_of(num_accepted, verify_len):
    """num_accepted [R], verify_len [R], integers. Return tokens gained, [R]."""
    return ...


EXERCISES["tokens_of"].check(tokens_of)

# %% [markdown]
# **Core.** The speed that users see, mean over users. Four lists with one number per
# request; the times are seconds. A request waits from `arrived` to `admitted`.


# %% tags=["exercise"]
def speed_of_users(tokens, arrived, admitted, finished):
    """Four lists. Return one number, tokens per second."""
    return ...


EXERCISES["speed_of_users"].check(speed_of_users)

# %% [markdown]
# **Core.** What the schedulers are held against: the fixed length with the highest
# throughput at one load. `rows` are dicts with `policy` ("fixed 1", "lagged" and so
# on), `concurrency` and `throughput`.


# %% tags=["exercise"]
def best_length(rows, concurrency):
    """Return the row."""
    return ...


EXERCISES["best_length"].check(best_length)

# %% [markdown]
# **Stretch.** A step is expected to give `expected_tokens` to all requests together and
# takes `seconds`. One more draft adds `more_seconds`. From which survival on does it
# raise the throughput?


# %% tags=["exercise"]
def break_even(expected_tokens, seconds, more_seconds):
    """Three numbers. Return a survival (above 1: no draft pays)."""
    return ...


EXERCISES["break_even"].check(break_even)

# %% [markdown]
# **In words.** An operator finds that a fixed length of 7 has the best throughput in
# the afternoon and removes the scheduler. What will they see at night, and what when
# twice as many users come?

# %% [markdown] tags=["solution"]
# At night little changes: alone, long prefixes are right, and the scheduler would have
# chosen them too. With twice the users the best fixed length is another one, and it is
# known only afterwards. Where verifying is dear, 7 then costs everybody. The scheduler
# was the insurance: it follows the load without being told.

# %% [markdown]
# ## Recap
#
# - Users and drafts compete for the same idle capacity.
# - The draft pass is paid before anything is decided; where it is dear, no scheduler
#   wins it back.
# - A draft pays when its survival beats what all would have got in its time. The more
#   requests, the higher the bar.
# - The lagged search follows the best fixed length on every curve; the early stop loses
#   on staircases.
#
# **Next**: all this ran on our own drafters. What is in a released one? Notebook 12.
