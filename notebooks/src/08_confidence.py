# %% [markdown]
# # 08 · Does the drafter know when it will be rejected?
#
# | | |
# | --- | --- |
# | Reading | 45 minutes; the exercises take 40 more |
# | Running | half a minute on a laptop, no GPU, no network |
# | Needs | `pip install -e ".[notebooks]"`; notebooks 01, 02 and 05 |
# | Equations | 7 and 8 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `verify/calibration.py`, `verify/policies.py` |
#
# **You will be able to**
#
# - say whether a drafter's confidence means what it says, position by position, on
#   prompts that nothing was fitted to;
# - fit one temperature per position, and tell an improvement from noise;
# - read a threshold sweep whose rates count different things;
# - say which records must never be used for a calibration.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## What the head says
#
# Verifying a draft costs the target some time, and a draft that is rejected was checked
# in vain. It would help to know beforehand. So DSpark's drafters have a second, tiny
# output: for each draft one number between 0 and 1, the **confidence**
#
# $$c_k = \sigma(w \cdot [h_k ; W_1[x_{k-1}]]) \qquad (7)$$
#
# It is the head's guess at a *conditional* chance: draft k is kept, **given** that all
# before it are. In training it is compared with $c_k^* = 1 - \mathrm{TV}$, the overlap
# of notebook 01 (Eq. 8). The chance that the whole run up to k stands is the product
# $a_k = c_1 c_2 \cdots c_k$, the **survival**.

# %%
import torch

from dsparkref import decode_cycles, load_pair, survival
from dsparkref.lab import confidence, course

pair = load_pair()
target, drafter = pair.target, pair.drafter
prompt = target.encode("I want to try chess. Can you help me?")
options = {"max_new_tokens": 40, "temperature": 1.0, "generator": 2}
cycles = list(decode_cycles(target, drafter, prompt, **options))
print(f"drafter: {drafter.head_type}\n{confidence.cycle_lines(target, cycles[0])}")

# %% [markdown]
# Look at the inputs once more: the head reads $h_k$ and the draft *before* k, never
# $x_k$ itself. Notebook 09 will need that.
#
# One cycle proves nothing. We need *records*: many cycles, for each the logits that the
# head gave (before the sigmoid) and which drafts the verifier kept. Ten thousand cycles
# of the tiny pair were recorded on the evaluation prompts by
#
#     python -m dsparkref calibrate --prompts 120 --replies 3 --records FILE
#
# (On another pair, the next cell decodes a few prompts instead.)
#
# **Predict**: take all drafts to which the head gives between 0.90 and 0.95. Which
# share of them is kept?

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref.lab.checks import compare_guess

records, domain = confidence.confidence_records(pair)
said = torch.sigmoid(records.logits)  # [n, K]
band = records.reached & (said >= 0.90) & (said < 0.95)
compare_guess(guess, records.accepted[band].mean().item())

# %%
average = confidence.said_and_came(records)
print(course.text_table(average))
if course.is_tiny():
    assert max(map(abs, average["too sure by"])) < 0.06  # nearly right on average
    assert average["too sure by"][0] < 0  # and too modest about the first draft

# %% [markdown]
# `reached` keeps the denominator honest: only cycles that kept all before k are asked
# about k (notebook 01).
#
# **Why** measure? A head may be *over*-confident and promise more than comes. Ours errs
# the other way at the start of the block.
#
# ## One temperature per position
#
# Right on average is not enough: a head that always said the mean would be that, and
# useless. So sort the records into **bins** by what was said, and compare inside each
# bin. Drawn, this is the reliability diagram (it comes with a slider below). In one
# number it is the *expected calibration error*, the gap of each bin weighted by its
# share of the records:
#
# $$\mathrm{ECE} = \sum_b \frac{n_b}{n} |\mathrm{said}_b - \mathrm{came}_b|$$
#
# We look at the survival, since that is what a scheduler will read.
#
# The repair changes the scale and nothing else: $c_k = \sigma(z_k / T_k)$. With
# $T_k > 1$ the head speaks more softly, with $T_k < 1$ more firmly. **Sequential
# Temperature Scaling** (STS) goes from the first position to the last. At each it takes
# the temperature that gives the *product so far* the smallest ECE, the earlier
# temperatures fixed.
#
# What is fitted must be judged elsewhere: we fit on the prompts of even number and
# judge on the others. (By prompt, not by cycle: cycles of one reply are alike.)

# %%
from dsparkref import apply_sts
from dsparkref.analysis.calibrate import fitted_temperatures
from dsparkref.analysis.calibration_records import split_records

fit, held_out = split_records(records)
temperatures = fitted_temperatures(fit)
raw = torch.sigmoid(held_out.logits)
sts = apply_sts(held_out.logits, temperatures)
print(course.text_table({"temperature": temperatures.tolist()}))

# %%
from dsparkref.analysis.calibrate import constant_scores
from dsparkref.lab import confidence_figures as figures
from dsparkref.lab import reliability
from dsparkref.lab.pictures import show

scores = {"raw": raw, "after STS": sts, "constant": constant_scores(fit, held_out)}
errors = {name: reliability.survival_errors(held_out, s) for name, s in scores.items()}
changes = reliability.error_changes(held_out, raw, sts)
show(figures.error_picture(errors, changes))

# %%
if course.is_tiny():
    before, after, constant = (sum(found["ece"]) for found in errors.values())
    assert after < 0.85 * before  # it helps, over the block as a whole
    assert max(changes["low"]) < 0  # and does clear harm nowhere
    assert constant < after  # and something simple is better calibrated still

# %% [markdown]
# Four habits to take from these two pictures.
#
# 1. An ECE is never 0. The grey floor is what the raw head would show if it were
#    *perfect*: outcomes were drawn from its own numbers.
# 2. Look at the *change*, on the same resampled prompts. Two ECEs with overlapping
#    intervals may still differ clearly; two that look different may not.
# 3. Say where it helps and where it does not. (The title counts. And STS aims at the
#    product: the conditional $c_k$ may come out of it worse, as `calibrate` shows.)
# 4. Compare with something simple. *Constant* is each position's mean acceptance,
#    whatever the head says, and its ECE is the lowest of all. Think about that until
#    the last exercise.
#
# **Paper** On Alpaca: ECE 5.7, 8.2, 5.8, 3.3 % at positions 1, 3, 5, 7 before STS,
# and 2.0, 1.7, 0.8, 0.4 % after. Independent reports are mixed: one finds STS worse
# than raw at several positions and, as we do, a constant better; another finds "little
# benefit".
#
# **Differs** DeepSeek's released code has no calibration; some community checkpoints
# carry `confidence_temperatures`, and so do ours when you save them.
#
# ## A head that is twice too sure
#
# Our head was not far off to begin with. To see STS at work, let us break it on
# purpose: double every logit.
#
# **Predict**: the temperatures fitted to the doubled logits are larger than before. By
# which factor?

# %%
guess = ...  # a factor

# %%
from dsparkref import fit_sts

doubled = fit_sts(2 * fit.logits, fit.accepted, counted=fit.counted)
factor = (doubled / temperatures).mean().item()
compare_guess(guess, factor)

# %%
from dsparkref.lab.widgets import explore

scores["twice too sure"] = torch.sigmoid(2 * held_out.logits)
scores["twice, after STS"] = apply_sts(2 * held_out.logits, doubled)
table = reliability.reliability_table(held_out, scores)
controls = {"draft": list(range(1, drafter.block_size + 1)), "score": list(scores)}
start = (drafter.block_size, "twice too sure")
explore(table, figures.reliability_picture, controls, start=start)

# %%
if course.is_tiny():
    broken = reliability.survival_errors(held_out, scores["twice too sure"])
    assert broken["ece"][-1] > 2 * errors["raw"]["ece"][-1]
    assert torch.allclose(scores["twice, after STS"], sts, atol=0.02)  # as good as new

# %% [markdown]
# A wrong scale is all that a temperature can mend. Move the slider through the
# positions: dots that bend stay bent, and a head that cannot tell good drafts from bad
# ones learns nothing.
#
# ## Order survives at one position, not in the product
#
# Does calibration change *who is ahead*? At one position it cannot: $z / T$ keeps the
# order of the $z$. So the AUROC, the chance that a kept draft was given more than a
# rejected one, is the same before and after. But a scheduler compares products.

# %%
two = torch.tensor([[0.90, 0.50], [0.70, 0.65]]).logit()  # two requests, two drafts
for temperature in (1.0, 2.0):
    a = survival(torch.sigmoid(two / temperature))
    print(f"T = {temperature}: survival of draft 2: {a[0, 1]:.3f} and {a[1, 1]:.3f}")
assert survival(torch.sigmoid(two))[:, 1].argmax() == 1
assert survival(torch.sigmoid(two / 2))[:, 1].argmax() == 0

# %% [markdown]
# The same temperature everywhere, and the second request is no longer ahead.
#
# **Predict**: of all pairs of held-out cycles, how many per cent change their order at
# the last position when STS is applied to the survival?

# %%
guess = ...  # per cent

# %%
flips = confidence.order_changes(raw, sts)
compare_guess(guess, 100 * flips["the product"][-1], digits=1)

# %%
assert max(flips["one position"]) == 0 and flips["the product"][0] == 0
if course.is_tiny():
    assert min(flips["the product"][1:]) > 0.005
show(figures.flips_picture(flips))

# %% [markdown]
# Few pairs, but they are the ones that were close, and those are what a scheduler has
# to decide about. So calibrate *before* ranking.
#
# ## A threshold
#
# The simplest use: verify only the leading run of drafts whose value reaches a
# threshold. There are two rules. *Conditional* looks at $c_k$, *survival* at $a_k$: the
# same number means different things in them.
#
# And there are two rates. *Kept / verified* says how good the verified drafts were.
# **Paper** Figure 5 counts the bonus as well, (kept + 1) / (verified + 1), and goes
# from 45.7 to 95.7 % on chat. It must tend to 1: verify nothing, and the bonus alone
# is left.
#
# Records let us try any threshold without decoding: a cycle that kept n of all its
# drafts keeps min(n, l) of the first l. Where the next block would have begun it cannot
# know: `calibrate --thresholds` really decodes, and gets a little less at high ones.

# %%
levels = [0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]
held_domain = domain[records.prompt % 2 == 1]
table = confidence.threshold_table(held_out, sts, held_domain, levels)
rules, domains = (list(dict.fromkeys(names)) for names in zip(*table, strict=True))
explore(table, figures.sweep_picture, {"rule": rules, "domain": domains})

# %%
for rule in rules:
    rows = table[rule, "all"][2]
    assert rows[-1]["acceptance_with_bonus"] == 1 and rows[-1]["accepted_length"] == 1
    lengths = [row["accepted_length"] for row in rows]
    assert lengths == sorted(lengths, reverse=True)  # pruning never adds a token

# %% [markdown]
# At a threshold that nobody passes, each cycle still emits one token of the target's
# own: slow, never stuck. Compare math with chat: where drafts fail often, there is more
# to prune. And notice what a threshold does *not* know: whether the target is idle or
# busy. That is notebook 09.
#
# ## Records that a policy has thinned
#
# A server that runs with such a threshold logs its cycles. Tempting: fit temperatures
# on the log. The package refuses.

# %%
from dsparkref import ConfidenceThreshold
from dsparkref.analysis.calibration_records import calibration_records

policy = ConfidenceThreshold(0.8)
options |= {"policy": policy, "keep_tensors": True}
try:
    calibration_records([decode_cycles(target, drafter, prompt, **options)])
except ValueError as error:
    print(str(error).partition(", got")[0])

# %% [markdown]
# Why so strict? We can see what the log would have held: of the drafts that were
# reached, those that were also verified.

# %%
lengths = policy.verify_lengths(said, block_size=drafter.block_size)
came, share = confidence.thinned(records, lengths)
show(figures.thinned_picture(came, share, policy.threshold))

# %%
thin, full, refused = came.values()
if course.is_tiny():
    assert all(a > b > c for a, b, c in zip(thin, full, refused, strict=True))
    assert share[-1] < 0.8 < share[0]

# %% [markdown]
# **Why** The policy looks deep only where the head was confident all the way. The deep
# drafts it judges are a selection, and the lower bins are *empty*: nothing in the log
# says whether 0.5 means a half. To count what was not verified as rejected is worse
# still (the dotted line; you met it in notebook 01). Gather records with no policy.
#
# ## Build it once
#
# STS in a dozen lines: a coarse search over powers of two, then a fine one around the
# best. Where errors tie, the temperature nearest to 1 wins.


# %% tags=["build-it-once"]
from dsparkref import expected_calibration_error
from dsparkref.verify.calibration import COARSE, FINE


def sequential_scaling(records):
    powers, standing = [], torch.ones(len(records), dtype=torch.float64)
    for k in range(records.logits.shape[1]):
        rows = records.counted[:, k]
        block = records.logits[rows, k], standing[rows], records.accepted[rows, k]

        def error(power, block=block):
            logit, before, kept = block
            now = before * torch.sigmoid(logit / 2**power)
            return expected_calibration_error(now, kept), abs(power)

        coarse = min(COARSE.tolist(), key=error)
        powers.append(min((coarse + FINE).tolist(), key=error))
        standing = standing * torch.sigmoid(records.logits[:, k] / 2 ** powers[-1])
    return 2 ** torch.tensor(powers, dtype=torch.float64)


assert torch.allclose(sequential_scaling(fit), temperatures)

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. `EXERCISES["calibrated"].reveal()` shows the
# package's own function.
#
# **Warm-up.** Calibrated confidences from logits.

# %% tags=["exercise"]
from dsparkref.lab.exercises.confidence import EXERCISES


def calibrated(logits, temperatures):
    """logits [..., K], before the sigmoid; temperatures [K]. Return [..., K]."""
    return ...


EXERCISES["calibrated"].check(calibrated)

# %% [markdown]
# **Core.** The expected calibration error. Bin i holds predictions from i / bins up to,
# but not including, (i + 1) / bins; the last bin also holds 1.


# %% tags=["exercise"]
def calibration_error(predicted, observed, bins):
    """predicted [n] in [0, 1], observed [n] of 0 and 1. Return one number."""
    return ...


EXERCISES["calibration_error"].check(calibration_error)

# %% [markdown]
# **Core.** What a threshold lets through, by either rule: `on` is "conditional" or
# "survival". How many drafts of each request are verified?


# %% tags=["exercise"]
def verify_lengths(confidence, threshold, on):
    """confidence [R, K], threshold in [0, 1]. Return [R], whole numbers."""
    return ...


EXERCISES["verify_lengths"].check(verify_lengths)

# %% [markdown]
# **Stretch.** The AUROC: of all pairs of one kept and one rejected draft, the share in
# which the kept one was given more. A tie counts half.


# %% tags=["exercise"]
def ranking(predicted, observed):
    """predicted [n], observed [n] of 0 and 1. Return one number."""
    return ...


EXERCISES["ranking"].check(ranking)

# %% [markdown]
# **In words.** A colleague replaces the head by each position's mean acceptance. Its
# ECE is lower than the head's. Should the head go?

# %% [markdown] tags=["solution"]
# No. A constant is well calibrated and blind: it gives every draft at a position the
# same number, so its AUROC is one half, and no scheduler can tell a good request from a
# bad one. Calibration and ranking are two qualities. Keep the head and mend its scale.

# %% [markdown]
# ## Recap
#
# - A confidence is conditional; survival is its product. Check both against what came,
#   bin by bin, on prompts that nothing was fitted to.
# - STS mends the scale of the survival. Judge it by the change and its interval, and
#   know the floor.
# - At one position it keeps the order; in the product it does not.
# - A rate that counts the bonus tends to 1 as pruning grows. Name the denominator.
# - Records must come from cycles that were free to keep everything.
#
# **Next**: with numbers that can be trusted, how many drafts should a *busy* target
# verify? Notebook 09.
