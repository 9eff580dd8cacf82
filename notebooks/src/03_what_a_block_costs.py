# %% [markdown]
# # 03 · When do K drafts pay?
#
# | | |
# | --- | --- |
# | Reading | 35 minutes; the exercises take 35 more |
# | Running | well under half a minute on a laptop, no GPU, no network |
# | Needs | `pip install -e ".[notebooks]"`; notebooks 01 and 02 |
# | Equations | 1 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `analysis/metrics.py`, `analysis/passes.py`, `data/measured/` |
#
# **You will be able to**
#
# - work out a speed-up from four numbers, and say which tokens per cycle break even;
# - find the number of drafts that pays best, for a drafter and a machine;
# - name the cases in which speculation makes things slower.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## One equation
#
# A cycle costs a draft pass and a target pass over the anchor and the drafts. It yields
# tau tokens, the replacement or bonus included.
#
# **Paper** Eq. 1, the time per token: L = (T_draft + T_verify) / tau.
#
# Without a drafter a token costs T_token: one target pass over one token. So the
# speed-up is tau · T_token / (T_draft + T_verify). It is handy to count in one-token
# passes. The *price* of a cycle is (T_draft + T_verify) / T_token, and
#
# $$\text{speed-up} = \frac{\text{tokens per cycle}}{\text{price of a cycle}}.$$
#
# **Predict**: drafting takes 0.9 one-token passes, verifying 1.2. A cycle yields 5.6
# tokens. How many times as fast is that?

# %%
guess = ...  # times

# %%
from dsparkref import speedup
from dsparkref.lab.checks import compare_guess

times = speedup(
    draft_seconds=0.9, verify_seconds=1.2, accepted_length=5.6, token_seconds=1.0
)
compare_guess(guess, times)

# %% [markdown]
# The price of 2.1 is also the tokens per cycle at which nothing is won or lost.
#
# ## Why a wide pass is cheap
#
# Speculation lives on one fact: a pass over eight tokens takes hardly longer than a
# pass over one.
#
# **Why** On a GPU with a large model a pass must fetch all weights from memory. That
# takes the time, and it is the same fetch for one token as for eight. On a small model
# the time goes into starting operations, and they are equally many. Either way some
# capacity lies idle, and drafts fill it.
#
# A table of this project's tiny pair, measured on an idle machine, ships in
# `data/measured/`.
#
# **Predict**: how many times as long as a pass over one token takes one over eight?

# %%
guess = ...  # times

# %%
from dsparkref.analysis.profile import load_measured

measured = load_measured("cpu-x86_64")
alone = [point.verify_seconds for point in measured.at(rows=1)]  # 1 to 8 tokens
print(measured)
compare_guess(guess, alone[7] / alone[0])

# %% [markdown]
# Now on *your* machine: seven passes over one token beside one pass over seven, for the
# target and for the drafter's backbone. (These numbers change from run to run.)

# %% tags=["nbval-ignore-output"]
from dsparkref import load_pair
from dsparkref.analysis.passes import compare_passes
from dsparkref.lab import cost_figures as figures
from dsparkref.lab.pictures import show

pair = load_pair()
target, drafter = pair.target, pair.drafter
seconds = compare_passes(target, drafter)
passes = {name: (1000 * many, 1000 * one) for name, (many, one) in seconds.items()}
assert all(many > one for many, one in passes.values())
show(figures.passes_picture(passes, drafter.block_size))

# %% [markdown]
# The first pair of bars is why *verifying* is cheap. The second is why DFlash drafts in
# parallel: a drafter that goes one by one pays its backbone K times.
#
# ## Tokens per cycle
#
# How much does a longer block yield? Let every draft stand with the same chance a,
# given all before it. Draft k then survives with a to the power k, and a cycle yields
# 1 + a + a² + ... tokens.
#
# **Predict**: a = 0.8, and a block as long as you like. Tokens per cycle?

# %%
guess = ...  # tokens

# %%
import torch

from dsparkref import expected_accepted_length

endless = torch.full((200,), 0.8)
compare_guess(guess, expected_accepted_length(endless).item())

# %% [markdown]
# The yield levels off at 1 / (1 - a): an endless block of good drafts is worth five
# tokens. So there is a best K as soon as each further draft costs something.
#
# Below, a draft pass costs a part of a target pass, and verifying is free of charge (it
# costs one one-token pass, however many drafts). The *parallel* drafter pays one draft
# pass per block, the one that goes *one by one* pays K. Move acceptance and cost.

# %%
from dsparkref.analysis.metrics import speedup_curve
from dsparkref.lab.widgets import explore

length = torch.arange(1, 17).double()  # K


def two_drafters(acceptance, cost):
    survival, free = acceptance**length, torch.ones(17).double()
    ways = {"parallel": cost, "one by one": cost * length}
    return {way: speedup_curve(survival, c, free).tolist() for way, c in ways.items()}


# %%
acceptances, costs = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95], [0.05, 0.1, 0.25, 0.5, 1.0]
table = {(a, c): two_drafters(a, c) for a in acceptances for c in costs}
controls = {"acceptance": acceptances, "cost of a draft pass": costs}
explore(table, figures.drafters_picture, controls, start=(0.8, 0.25))

# %%
for curves in table.values():
    parallel, one_by_one = (figures.best(curve) for curve in curves.values())
    assert one_by_one[0] <= parallel[0] and one_by_one[1] <= parallel[1] + 1e-6
dear = {a: figures.best(table[a, 1.0]["one by one"])[1] for a in acceptances}
print("one by one, as dear as the target:", {a: round(x, 2) for a, x in dear.items()})
assert max(dear.values()) < 1  # never pays, however good

# %% [markdown]
# The parallel drafter's best K is always the longest: a further slot costs nothing.
# That is too good to be true, twice. Its acceptance falls along the block (notebook
# 01), and verifying is only *nearly* free.
#
# ## The tiny pair
#
# So take both from the real thing: the survival of a trained drafter, decoding at
# temperature 1, and the measured table, which knows each number of tokens.

# %%
from dsparkref.analysis.evaluate import evaluate_drafter
from dsparkref.lab import course

examples = course.evaluation_examples(pair, 3 if course.is_tiny() else 1)
prompts = [example.prompt for example in examples]
run = evaluate_drafter(target, drafter, prompts, max_new_tokens=48, generator=0)
survival = run.survival[:7].nan_to_num(0.0)  # the table ends at 7 drafts
print(course.text_table({f"{drafter.head_type}, survival": survival.tolist()}))


# %%
def on_the_table(rows, survival):
    points = measured.at(rows)[: len(survival) + 1]
    verify = torch.tensor([point.verify_seconds for point in points]).double()
    curve = speedup_curve(survival, points[0].draft_seconds, verify)
    return curve.tolist()


show(figures.load_picture((1, "as measured", on_the_table(1, survival))))

# %%
if course.is_tiny():
    curve = on_the_table(1, survival)
    assert curve[0] < 1.1 < 2 < max(curve)  # one draft does not pay for its draft pass
    assert curve[3] < curve[6]  # the whole block is worth it

# %% [markdown]
# A single draft hardly pays for the draft pass; with every further one the same pass
# brings more. For one user the tiny pair should verify its whole block.
#
# Does the clock agree? Decode the same prompts one token a pass, and compare the
# measured speed-up with what Eq. 1 makes of the measured parts.

# %% tags=["nbval-ignore-output"]
plain = evaluate_drafter(target, None, prompts, max_new_tokens=48, generator=0)
cycles = len(run.cycles)
draft = sum(cycle.draft_seconds for cycle in run.cycles) / cycles
verify = sum(cycle.verify_seconds for cycle in run.cycles) / cycles
predicted = speedup(draft, verify, run.accepted_length, 1 / plain.tokens_per_second)
print(f"draft {1000 * draft:.1f} ms, verify {1000 * verify:.1f} ms a cycle")

# %% tags=["nbval-ignore-output"]
clock = run.tokens_per_second / plain.tokens_per_second
print(f"Eq. 1: {predicted:.2f} times as fast; the clock: {clock:.2f}")
assert 0.5 < predicted / clock < 2  # prefill and bookkeeping are not in Eq. 1

# %% [markdown]
# ## Sixty-four at once
#
# A server has many users. Their requests share a pass, and that fills the idle capacity
# *before* any draft does. The table knows passes of up to 64 requests.
#
# **Predict**: 64 requests, acceptance 0.7, all seven drafts verified. How many times as
# fast as 64 requests without a drafter?

# %%
guess = ...  # times; below 1 is slower

# %%
at_chance = {str(a): a ** torch.arange(1.0, 8.0) for a in (0.5, 0.7, 0.9)}
crowd = on_the_table(64, at_chance["0.7"])
compare_guess(guess, crowd[6])

# %%
rows = [1, 2, 4, 8, 16, 32, 64]
chances = at_chance | {"as measured": survival}
table = {(r, n): (r, n, on_the_table(r, s)) for r in rows for n, s in chances.items()}
controls = {"requests": rows, "acceptance": list(chances)}
explore(table, figures.load_picture, controls, start=(64, "0.7"))

# %%
best = {n: [figures.best(table[r, n][2])[1] for r in rows] for n in at_chance}
print(course.text_table(best, rows, head="acceptance \\ requests"))
assert best["0.7"][0] > 1.3 and best["0.7"][-1] < 0.7  # wins alone, loses in a crowd
assert max(best["0.5"]) < 1  # never pays on this machine
wide = [point.verify_seconds for point in measured.at(rows=64)]
print(f"64 rows: eight tokens each take {wide[7] / wide[0]:.1f} times as long as one")

# %% [markdown]
# Speculation buys time with spare capacity. Under load there is none: sixty-four rows
# of eight tokens take more than three times as long as sixty-four of one, and each
# rejected draft was paid for. Two ways to lose, then: **low acceptance** and **dear
# verification**.
#
# **Paper** DSpark's answer to the second is to verify fewer drafts when the load is
# high, and only the likely ones. That needs a drafter that knows which they are
# (notebooks 08 and 09).
#
# ## Other machines
#
# Eq. 1 also reads backwards. DFlash reports 4.91 times the speed at 6.54 tokens per
# cycle for Qwen3-4B at temperature 0 (published, not ours;
# [their paper](https://arxiv.org/abs/2602.06036)). Divide, and you have the price of
# its cycle.

# %%
published = 6.54 / 4.91
tiny = (measured.at(1)[7].verify_seconds + measured.at(1)[0].draft_seconds) / alone[0]
print(f"price of a cycle: {published:.2f} on their GPU, {tiny:.2f} for the tiny pair")
assert published < 1.5 < 2 < tiny < 2.5

# %% [markdown]
# A draft model of five layers beside a target of 36 is nearly free; two layers beside
# six are not. The tables that ship with this project, and any that you add with
# `python -m dsparkref profile`:

# %% tags=["nbval-ignore-output"]
from dsparkref.analysis.profile import read_profile
from dsparkref.checkpoints.files import data_folder

tables = [read_profile(p) for p in sorted((data_folder() / "measured").glob("*.json"))]
for found in tables:
    one, *_, block = found.at(min(point.rows for point in found.points))
    price = (block.draft_seconds + block.verify_seconds) / one.verify_seconds
    print(f"{found}: price {price:.2f}")
print(sum(found.threads == 0 for found in tables), "of them measured on a GPU")

# %% [markdown]
# **Differs** The speed-ups of small models are real, and of another kind. A GPU with a
# large model is bound by memory traffic; the tiny pair by the overhead of each
# operation. Independent reports for targets of 0.6 to 0.8 billion parameters find 0.44
# to 0.96 times the plain speed: a loss. Acceptance carries over from small models, the
# price does not. Measure it where you decode.
#
# ## Build it once
#
# Eq. 1 for every number of drafts, as a loop.


# %% tags=["build-it-once"]
def best_number(survival, draft, verify):
    tokens, found = 1.0, []
    for n, chance in enumerate(survival, start=1):
        tokens += chance  # one draft more: it adds its chance to stand
        seconds = draft + verify[n]  # the pass reads n drafts and the anchor
        found.append(verify[0] * tokens / seconds)
    best = max(range(len(found)), key=lambda n: found[n])
    return best + 1, found[best]


draft = measured.at(1)[0].draft_seconds
mine = best_number(survival.tolist(), draft, alone)
theirs = figures.best(on_the_table(1, survival))
assert mine[0] == theirs[0] and abs(mine[1] - theirs[1]) < 1e-6

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. A wrong answer is told what went wrong where the
# mistake is a known one. `EXERCISES["times_faster"].reveal()` shows the package's own
# function.
#
# **Warm-up.** Tokens per cycle from conditional acceptance: `confidence[k]` is the
# chance that draft k stands, given all before it.

# %% tags=["exercise"]
from dsparkref.lab.exercises.what_a_block_costs import EXERCISES


def tokens_per_cycle(confidence):
    """confidence [K]. Return one number, the token of the target's own included."""
    return ...


EXERCISES["tokens_per_cycle"].check(tokens_per_cycle)

# %% [markdown]
# **Core.** Eq. 1 as a speed-up. All times are in one unit; `accepted_length` is tau.


# %% tags=["exercise"]
def times_faster(draft_seconds, verify_seconds, accepted_length, token_seconds):
    """Four numbers. Return one: above 1 is faster than one token a pass."""
    return ...


EXERCISES["times_faster"].check(times_faster)

# %% [markdown]
# **Stretch.** The same for n = 1 to K verified drafts, without a loop.
# `verify_seconds[n]` is a target pass over n + 1 tokens: entry 0 is what a token costs
# without a drafter.


# %% tags=["exercise"]
def speedups(survival, draft_seconds, verify_seconds):
    """survival [K], one number, verify_seconds [K + 1]. Return [K]."""
    return ...


EXERCISES["speedups"].check(speedups)

# %% [markdown]
# **In words.** A blog post reports 80 % acceptance and a slow-down, and concludes that
# the verifier must be broken. What else could it be?

# %% [markdown] tags=["solution"]
# Acceptance is half of Eq. 1. At 80 % a block of seven yields about four tokens; if a
# cycle costs more than four one-token passes, it is a loss with a verifier that works
# well. Candidates: a drafter that is large or goes one by one, a batch that already
# fills the machine, a small target, rollback or copying that nobody counted. Ask for
# T_draft, T_verify and T_token first.

# %% [markdown]
# ## Recap
#
# - Speed-up is tokens per cycle over the price of a cycle, counted in one-token passes.
# - A wide pass costs little more than a narrow one as long as capacity lies idle. That
#   pays for verification, and for drafting in parallel.
# - There is a best number of drafts. It falls with acceptance and with load, and in a
#   crowd it may be none.
# - A price belongs to a machine and a model. Measure before you promise.
#
# **Next**: a draft pass fills a whole block at once. What does it look at to do that?
# Notebook 04.
