# %% [markdown]
# # 10 · What happens in one cycle, end to end, on Qwen3?
#
# | | |
# | --- | --- |
# | Reading | 40 minutes; the exercises take 30 more |
# | Running | about half a minute on a laptop, no GPU, no network |
# | Needs | notebooks 01, 02, 04 to 06 and 08 |
# | Equations | 4, 7 and 8 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `decode/cycle.py`, `decode/loop.py`, `analysis/evaluate.py` |
#
# **You will be able to**
#
# - walk through one cycle with every tensor, its shape and its symbol at hand;
# - write the whole loop in fifteen lines, and show that it loses nothing;
# - compare five drafters honestly, and run the same cells on Qwen3-4B.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## The line
#
# You have met all the parts. Here they stand in the order in which a cycle calls them:
#
#     Target.prefill -> target_hidden -> Backbone (hidden, base_logits)
#       -> Head (bias, tokens, p_draft) -> Confidence (confidence, survival)
#       -> policy (verify_len) -> Target.verify (p_target)
#       -> verify_block (num_accepted, next_token) -> Target.commit -> CycleTrace
#
# We walk along it by hand, at temperature 1, and draw every random number from one
# generator. At the end the package's own loop must have done the very same.
#
# **Prefill.** The target reads the prompt once. It leaves its features for the drafter,
# and one law, from which the first token is drawn: the first anchor. It was free of
# drafting, so it belongs to no cycle.

# %%
import torch

from dsparkref import load_pair, probabilities
from dsparkref.decode.request import as_row
from dsparkref.lab.tensors import tensor_table
from dsparkref.verify.sampling import draw_uniforms, sample

pair = load_pair()
target, drafter = pair.target, pair.drafter
prompt = as_row(target.encode("I want to try chess. Can you help me?"), target.device)
session, read = target.prefill(prompt, drafter.spec.target_layer_ids)

# %%
generator = torch.Generator().manual_seed(1)
u = draw_uniforms((1,), generator=generator, device=target.device)
anchor = sample(probabilities(read.logits[:, -1]), u)  # [1]
print(f"head: {drafter.head_type}, K = {drafter.block_size}")
print(tensor_table(prompt=prompt, target_hidden=read.hidden, anchor=anchor))
assert session.length == prompt.shape[1]  # the anchor is not read yet

# %% [markdown]
# **Backbone, head, confidence.** `propose` runs all three. The backbone fills the block
# in one pass; then the head walks through it, slot by slot, adding to each row of
# logits a bias that knows the token just drawn.
#
# **Paper** Eq. 4: $p_k = \mathrm{softmax}(U_k + B_k)$, where $B_k$ may depend on the
# anchor and on all drafts before k.
#
# Letters in the tables: B requests (one), T context tokens, LD the width of L tapped
# layers, D of one, K drafts, V words of the vocabulary.

# %%
stream = generator.clone_state()  # a copy, so that this cell may be run again
draft = drafter.propose(read.hidden, anchor, temperature=1.0, generator=stream)
order = ("hidden", "base_logits", "draft_logits", "p_draft", "tokens", "confidence")
made = {name: getattr(draft, name) for name in order}
made = {name: tensor for name, tensor in made.items() if tensor is not None}
print(tensor_table(anchor=anchor, **made))

# %% [markdown]
# Then we take the proposal apart again: walk the head over the tokens that were drawn,
# and its biases must be what lies between the two tables of logits.
#
# **Predict**: in how many of the K slots does the head change which token is likeliest?

# %%
guess = ...  # a number of slots

# %%
from dsparkref.lab.checks import compare_guess

likeliest = [x.argmax(dim=-1) for x in (draft.base_logits, draft.draft_logits)]
compare_guess(guess, (likeliest[0] != likeliest[1]).sum().item(), digits=0)

# %%
from dsparkref.lab.anatomy import agree

before = torch.cat([anchor[:, None], draft.tokens], dim=1)  # [1, K+1]
state, biases = drafter.head.init_state(1), []
for k in range(drafter.block_size):
    bias, state = drafter.head.step(state, before[:, k], draft.hidden[:, k])
    biases.append(bias)
assert agree(draft.draft_logits, draft.base_logits + torch.stack(biases, dim=1))

# %% [markdown]
# **Policy.** The confidences say how likely each draft is to stand, given all before
# it; their running product is the survival. Here a draft is handed to the target while
# its survival is at least 0.7. (A drafter without a confidence head hands over all.)
#
# **Verify.** The target reads the anchor and those drafts in one pass. Row k is its law
# of the token after the k-th of them, so l drafts give l + 1 laws: the last is for the
# bonus.

# %%
from dsparkref import ConfidenceThreshold, FixedLength, survival
from dsparkref.lab.course import text_table

policy = FixedLength(drafter.block_size)
if draft.confidence is not None:
    policy = ConfidenceThreshold(0.7, on="survival")
    chances = {"confidence": draft.confidence, "survival": survival(draft.confidence)}
    print(text_table({name: row[0].tolist() for name, row in chances.items()}))
verify_len = policy.verify_lengths(draft.confidence, block_size=drafter.block_size)

# %%
from dsparkref import Proposal, verify_block

drafts = draft.tokens[:, : int(verify_len)]
block = torch.cat([anchor[:, None], drafts], dim=1)
seen = session.verify(block)
p_target, p_draft = probabilities(seen.logits), draft.p_draft[:, : int(verify_len)]
uniforms = draw_uniforms(block.shape, generator=stream, device=target.device)
verdict = verify_block(drafts, p_draft, p_target, uniforms)

# %%
from dsparkref.lab import course

given = {"verify_len": verify_len, "drafts": drafts, "read": block}
judged = {"p_target": p_target, "uniforms": uniforms}
print(tensor_table(**given, **judged, **vars(verdict)), end="\n\n")
shown = Proposal(tokens=drafts, p_draft=p_draft)
print(course.cycle_table(target, anchor, shown, p_target, uniforms, verdict))

# %% [markdown]
# **Commit.** The target has keys and values of everything it read, also of drafts that
# fell. Those must go.
#
# **Predict**: how many tokens does the target hold after the commit? The table above
# has all you need.

# %%
guess = ...  # a number of tokens

# %%
kept = 1 + int(verdict.num_accepted)  # the anchor, and the drafts that stood
session.commit(kept)
compare_guess(guess, session.length, digits=0)

# %% [markdown]
# The new token is **not** among them: it was chosen, not read. It is the next anchor,
# just as the first one was after the prefill.
#
# Is the next cycle's start clean? Somebody who knows nothing of drafts reads all
# committed tokens at once. Cache and features must be the same.

# %%
committed = torch.cat([prompt, block[:, :kept]], dim=1)
fresh, again = target.prefill(committed, drafter.spec.target_layer_ids)
features = torch.cat([read.hidden, seen.hidden[:, :kept]], dim=1)
assert fresh.length == session.length and agree(again.hidden, features)
next_laws = [s.verify(verdict.next_token[:, None]).logits for s in (fresh, session)]
assert agree(*next_laws)

# %% [markdown]
# ## The loop did the same
#
# `decode_cycles` yields one `CycleTrace` per cycle. Same seed, same policy: the same
# first cycle. Then each cycle in one picture: what three laws give to the drafted
# token, and what the drafter expected. Where the orange bar is low and the blue one
# high, the head knew something that the backbone could not.

# %%
from dsparkref import decode_cycles

options = {"max_new_tokens": 48, "temperature": 1.0, "generator": 1, "policy": policy}
cycles = list(decode_cycles(target, drafter, prompt, **options, keep_tensors=True))
first, second = cycles[:2]
assert first.anchor == int(anchor) and first.drafts == draft.tokens[0].tolist()
assert first.emitted == [*drafts[0, : kept - 1].tolist(), int(verdict.next_token)]

# %%
assert second.anchor == first.next_token  # it starts where the first one ended
assert second.context_len == first.context_len + 1 + first.num_accepted
fields = "index context_len anchor drafts verify_len num_accepted next_token emitted"
for name in fields.split():
    print(f"{name:<12}  {getattr(first, name)!s:<32}  {getattr(second, name)}")

# %%
from dsparkref.lab import full_decoding_figures as figures
from dsparkref.lab.widgets import explore

table = {(cycle.index + 1,): (target, cycle) for cycle in cycles}
explore(table, figures.cycle_picture, {"cycle": [number for (number,) in table]})

# %% [markdown]
# ## All heads, side by side
#
# One target, one recipe, one difference: the head. Every drafter decodes the same
# prompts of three domains.
#
# **Predict**: by how much does the best head lengthen dflash's cycles?

# %%
guess = ...  # a share: 0.1 is a tenth

# %%
from dsparkref.lab import side_by_side

examples = course.evaluation_examples(pair, per_domain=6 if course.is_tiny() else 1)
drafters = course.sibling_drafters(pair)
decoded = side_by_side.decode_domains(target, drafters, examples)
gains = side_by_side.gains_over_dflash(drafters, decoded)
note = f"{len(examples)} prompts, temperature 1; lines: 95 % over prompts drawn anew"
compare_guess(guess, max((found.gain for found in gains.values()), default=0.0))

# %%
from dsparkref.lab.pictures import show

if course.is_tiny():
    chat, math = (side_by_side.lengths(decoded, d) for d in ("chat", "math"))
    assert all(gains[n].gain > 0.1 and chat[n] > 1.15 * chat["dflash"] for n in gains)
    assert chat["dflash"] < 0.9 * math["dflash"]  # dflash loses most there
show(figures.side_by_side_picture(decoded, gains, note))

# %% [markdown]
# Every head gains on every kind of text, and most on chat. That is where several next
# words are equally good, so that a parallel drafter trips over its own coins. Where one
# word is plainly right, as in a sum, there is less to repair.
#
# **Why** intervals over *prompts*? Cycles of one reply are alike; counting them as
# independent would make the bars look far more certain than they are.
#
# Look into the replies, cycle by cycle:

# %%
table = figures.first_replies(target, decoded)
heads, domains = list(decoded), ["math", "code", "chat"]
controls = {"drafter": heads, "domain": domains}
explore(table, figures.reply_picture, controls, start=(heads[0], "chat"))

# %% [markdown]
# ## The same cells on Qwen3-4B
#
# Nothing above knows how large the pair is. The next cells run where a GPU, Qwen3-4B
# and at least one released drafter are *already* on this machine; elsewhere they say so
# in one line. To have the whole notebook on that pair, and fetch what is missing, start
# Jupyter with `DSPARKREF_PAIR=qwen3-4b`.

# %% tags=["gpu", "nbval-ignore-output"]
real = side_by_side.qwen3_4b_here()
if real:
    real_target, real_drafters = real
    print("\n\n".join(one.describe() for one in real_drafters.values()))

# %% tags=["gpu", "nbval-ignore-output"]
from IPython.display import display

if real:
    real_decoded = side_by_side.decode_domains(real_target, real_drafters, examples)
    real_gains = side_by_side.gains_over_dflash(real_drafters, real_decoded)
    display(show(figures.side_by_side_picture(real_decoded, real_gains, note)))

# %% [markdown]
# **Paper** Their own numbers, not ours. DSpark's authors report for Qwen3-4B, block 7,
# temperature 1, tokens per cycle
# ([table of the DSpark paper](https://arxiv.org/abs/2607.05147)):
#
# | | GSM8K (math) | MBPP (code) | MT-Bench (chat) |
# | --- | --- | --- | --- |
# | DFlash | 5.40 | 4.40 | 3.07 |
# | DSpark | 6.11 | 5.13 | 3.64 |
#
# There the head is ahead everywhere, and chat is hardest for both. Here chat is hardest
# for dflash by far. For which heads it is, six prompts per domain cannot say; the
# README's table has a hundred.
#
# **Differs** The released drafters do not share a recipe: block sizes, data and epochs
# differ. Between them, tokens per cycle do not compare *heads*. On the tiny pair they
# do.
#
# ## Build it once
#
# The whole decoder, greedy, for any pair. Fifteen lines, and every one has had a
# notebook. At temperature 0 each law has one possible token, so that any random number
# decides alike: the verifier gets zeros.


# %% tags=["build-it-once"]
def decode(target, drafter, prompt, num_cycles):
    session, read = target.prefill(prompt, drafter.spec.target_layer_ids)
    cache, features, reply = drafter.new_cache(), read.hidden, []
    anchor = read.logits[:, -1].argmax(dim=-1)
    for _ in range(num_cycles):
        draft = drafter.propose(features, anchor, cache=cache)
        block = torch.cat([anchor[:, None], draft.tokens], dim=1)
        seen = session.verify(block)
        laws, zeros = probabilities(seen.logits, 0.0), torch.zeros_like(block).float()
        verdict = verify_block(draft.tokens, draft.p_draft, laws, zeros)
        kept, anchor = 1 + int(verdict.num_accepted), verdict.next_token
        session.commit(kept)
        features = seen.hidden[:, :kept]
        reply += block[0, :kept].tolist()
    return reply + anchor.tolist()


# %%
from dsparkref import autoregressive

num_cycles = 6
mine = decode(target, drafter, prompt, num_cycles)
options = {"max_new_tokens": len(mine), "stop_token_ids": []}
alone = autoregressive(target, prompt, **options).tokens
assert mine == alone or not course.is_tiny()
print(f"{len(mine)} tokens from {1 + num_cycles} passes: {target.decode(mine)!r}")

# %% [markdown]
# Not a token differs from what the target writes alone, one pass a token. That is the
# whole promise. (On a GPU in bfloat16 two logits may lie within rounding of each other;
# there, and only there, the texts may part.)
#
# ## Exercises
#
# Replace the dots and run the cell. `EXERCISES["mean_length"].reveal()` shows the
# package's own function.
#
# **Warm-up.** Tokens per cycle over some of the replies. `evaluation.lengths`, [n, 2],
# holds the tokens added by cycles, and the cycles, of each reply. `prompts` are indices
# of replies, and may name one twice.

# %% tags=["exercise"]
from dsparkref.lab.exercises.full_decoding import EXERCISES


def mean_length(evaluation, prompts):
    """prompts [m]. Return one number."""
    return ...


EXERCISES["mean_length"].check(mean_length)

# %% [markdown]
# **Core.** A cycle hands over several tokens at once. A stop token ends the reply and
# is its last entry; the cap counts the whole reply. `request` has `tokens` (the reply
# so far), `max_new_tokens` and `stop_token_ids`. Return what is kept of `new_tokens`.


# %% tags=["exercise"]
def keep(request, new_tokens):
    """new_tokens: a list of ids. Return a list of ids."""
    return ...


EXERCISES["keep"].check(keep)

# %% [markdown]
# **Stretch.** What do cycles prove? For each, count the drafts accepted, and the drafts
# *observed*: as many as the verifier looked at. But where a stop token or the cap cut
# the reply inside the block, nothing is known of what stood behind the cut. Such a
# cycle has `next_token` None, and counts as observed up to the cut.


# %% tags=["exercise"]
def observed_drafts(cycles):
    """cycles: n traces. Return two integer tensors [n]: accepted, observed."""
    return ...


EXERCISES["observed_drafts"].check(observed_drafts)

# %% [markdown]
# **In words.** A colleague's loop hands the drafter `seen.hidden` whole, rejected
# drafts included, and its replies are still exactly the target's. What is wrong then,
# and how does it show?

# %% [markdown] tags=["solution"]
# The drafter's context holds features of tokens that are not in the text, and every
# later position is shifted. Its drafts are for another text, so acceptance falls, cycle
# after cycle. The output stays right, because the verifier asks the target alone. It
# shows in tokens per cycle, and in `cache.length`, which no longer equals the committed
# tokens.

# %% [markdown]
# ## Recap
#
# - A cycle: propose, choose a length, verify once, keep a prefix and one token, commit.
#   The next begins from committed tokens alone.
# - The new token is never read in its own cycle: it is the next anchor.
# - Heads gain everywhere, most on chat; an interval over prompts says how sure we are.
#
# **Next**: one user is served. What does the scheduler buy when many share one engine?
# Notebook 11.
