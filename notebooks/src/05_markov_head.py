# %% [markdown]
# # 05 · How much autoregression is enough?
#
# | | |
# | --- | --- |
# | Reading | 40 minutes; the exercises take 40 more |
# | Running | well under half a minute on a laptop, no GPU, no network |
# | Needs | notebooks 01 and 04; what a singular value is |
# | Equations | 4 and 5 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `draft/heads.py`, `analysis/markov_table.py` |
#
# **You will be able to**
#
# - write a Markov head by hand, and say what it costs and what it sees;
# - tell what a bias can say and what takes a gate;
# - read a trained table word by word, and say how much of it is needed.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## One push per draft
#
# Notebook 01 left us with a coin that a parallel drafter cannot see: slot 1 draws "of"
# or "no", and slot 2 has to fit. An autoregressive drafter (token by token) would see
# everything, at the price of one network pass per draft. Is there something in between?
#
# **Paper** Eq. 4: keep the parallel logits U_k, all computed in one pass, and add a
# *bias* B_k that may depend on the drafts before. Then draw, and go on to the next
# slot. Eq. 5, the *Markov head*, lets it depend on one token, the one just before:
#
# $$B_k = W_2 \, W_1[x_{k-1}]$$
#
# W_1 is a lookup: each token has r numbers. W_2 turns them into one *push* for each
# token of the vocabulary: each of the r numbers drives a *direction*, a list of V
# pushes, and the r lists are added. Together W_1 and W_2 are a table of V rows and V
# columns, stored with 2 V r numbers. r is its *rank*. (In code a batch is rows, so
# that it reads `W_1[x] @ W_2.T`.)
#
# **Predict**: the two-mode world has five words. Which rank does the table need, so
# that "of problem" never comes again?

# %%
guess = ...  # a rank: a whole number from 0 to 5

# %%
import torch

from dsparkref.analysis import toy
from dsparkref.analysis.head_laws import head_laws
from dsparkref.draft.heads import MarkovHead
from dsparkref.lab.checks import compare_guess

world = toy.two_mode_world()  # the words: , of no course problem
# W_1: "of" gets +1, "no" gets -1. W_2: "course" is pushed up by +, "problem" by -.
code = torch.tensor([[0.0], [1.0], [-1.0], [0.0], [0.0]])
push = torch.tensor([[0.0], [0.0], [0.0], [1.0], [-1.0]])
two_modes = MarkovHead(vocab_size=5, rank=1)
compare_guess(guess, code.shape[1], digits=0)

# %%
# head_laws walks every prefix: a real head on the best parallel drafter's marginals
laws = world.block_laws([0], length=2)
base = torch.stack([table.flatten() for table in toy.best_drafter(laws, memory=0)])


def pushed(strength):
    weights = {"prev_embed.weight": code, "bias_proj.weight": strength * push}
    two_modes.load_state_dict(weights)
    return head_laws(two_modes, base, anchor=0, hidden=torch.zeros(2, 1))


# %%
from dsparkref.lab import markov_head_figures as figures
from dsparkref.lab.widgets import explore

strengths = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0]
table = {(s,): (world, laws, pushed(s), s) for s in strengths}
explore(table, figures.pushed_pairs_picture, {"push": strengths}, start=(1.0,))

# %%
for strength in strengths:
    kept = toy.exact_conditional(laws, pushed(strength))
    print(f"push {strength:4.2f}: {kept[1]:.3f} of the second drafts are kept")
    assert abs(kept[1] - torch.sigmoid(torch.tensor(2 * strength))) < 1e-6

# %% [markdown]
# One number per word is enough here: rank 1. With a push of s the right word leads by
# 2s logits, so the draft is kept with probability sigmoid(2s).
#
# **Why** is this cheap? Nothing deep runs between two drafts. A lookup and one small
# product, V times r multiplications, and the next token can be drawn.
#
# ## What a bias cannot say
#
# A bias is *added*. The context speaks through U_k, the token before speaks through
# B_k, and neither changes what the other says. Is there a language in which that is not
# enough? There is: keep left and pass right in Britain, the other way round in France.
# "keep" means one side here and the other there.
#
# In both countries the marginal of slot 2 is half "left" and half "right", so U_2 tells
# nothing, and one table has to serve both.
#
# **Differs** The code that came with the paper has a second form of the head which the
# paper does not print (*vanilla* is the first). A *gate* reads the hidden state h_k
# (what the network has made of slot k) and the token before, and says for each of the r
# directions how far it counts, from 0 to 1:
#
# $$B_k = W_2 \, (\sigma(W_{gate} [h_k ; W_1[x_{k-1}]] + b) \odot W_1[x_{k-1}])$$
#
# ($\sigma$ brings each number between 0 and 1, $\odot$ multiplies number by number.)
# By hand, with two directions: "keep" is +1 in both, "pass" is -1 in both. Direction 1
# pushes "left" on a plus (Britain), direction 2 pushes "right" on a plus (France). h_k
# is one number, +1 in Britain and -1 in France, and the gate lets one direction pass.

# %%
from dsparkref.analysis.head_laws import two_rules_world
from dsparkref.draft.heads import GatedMarkovHead

roads = two_rules_world()  # the words: Britain France keep pass left right
verbs = torch.tensor([[0, 0], [0, 0], [1, 1], [-1, -1], [0, 0], [0, 0.0]])  # keep, pass
sides = torch.zeros(6, 2)
sides[4], sides[5] = torch.tensor([8.0, -8.0]), torch.tensor([-8.0, 8.0])
rules = {"prev_embed.weight": verbs, "bias_proj.weight": sides}
gate = {"gate_proj.weight": torch.tensor([[10.0, 0, 0], [-10.0, 0, 0]])}

# %%
heads = {"no head": MarkovHead(6, rank=1), "vanilla": MarkovHead(6, rank=1)}
heads["gated"] = GatedMarkovHead(6, rank=2, hidden_size=1)
british = {name: weight[:, :1] for name, weight in rules.items()}  # direction 1 alone
heads["no head"].load_state_dict({name: 0 * w for name, w in british.items()})
heads["vanilla"].load_state_dict(british)
_ = heads["gated"].load_state_dict(rules | gate | {"gate_proj.bias": torch.zeros(2)})

# %% [markdown]
# **Predict**: the vanilla head knows the British rule. Over both countries, which share
# of the second drafts is kept?

# %%
guess = ...  # a share, from 0 to 1


# %%
def kept_in(country, head):
    laws = roads.block_laws([4, country], length=2)
    base = torch.stack([table.flatten() for table in toy.best_drafter(laws, 0)])
    hidden = torch.full((2, 1), 1.0 - 2 * country)  # +1 in Britain, -1 in France
    return toy.exact_conditional(laws, head_laws(head, base, country, hidden))[1].item()


# %%
from dsparkref.lab.pictures import show

kept = {
    name: {country: kept_in(c, head) for c, country in enumerate(roads.words[:2])}
    for name, head in heads.items()
}
show(figures.rules_picture(kept))

# %%
means = {name: sum(found.values()) / 2 for name, found in kept.items()}
assert means["no head"] == 0.5 and abs(means["vanilla"] - 0.5) < 1e-6
assert means["gated"] > 0.999
compare_guess(guess, means["vanilla"])

# %% [markdown]
# Right in one country, wrong in the other: the vanilla head gains nothing. In fact no
# table gains anything on these base logits: what it wins in one country, it loses in
# the other. The gate does not add, it *selects*.
#
# ## The trained table at work
#
# Back to the tiny pair. One block, drafted greedily (always the likeliest token): for
# each slot, the favourite of the *base* logits, U_k alone, and the favourite once the
# push is added.

# %%
from dsparkref import load_pair
from dsparkref.decode.request import as_row
from dsparkref.lab import course

pair = course.with_tables(load_pair(head="markov"))  # else tiny stands in
target, drafter = pair.target, pair.drafter
prompt = as_row(target.encode("I want to try chess. Can you help me?"), target.device)
_, read = target.prefill(prompt, drafter.spec.target_layer_ids)
anchor = read.logits[:, -1].argmax(dim=-1)  # [1]

# %%
draft = drafter.propose(read.hidden, anchor)
before = torch.cat([anchor, draft.tokens[0, :-1]])  # [K]: x_0 .. x_{K-1}
W_1, W_2 = drafter.head.prev_embed.weight, drafter.head.bias_proj.weight
by_hand = draft.base_logits[0] + W_1[before] @ W_2.T  # [K, V]
assert not course.is_tiny() or (by_hand - draft.draft_logits[0]).abs().max() < 1e-4
print(figures.push_table(target, anchor, draft))

# %% [markdown]
# Where the reply begins, the base logits know the word; later, several places of the
# reply compete for a slot, and the same favourite stands in slot after slot. The token
# before picks the place. That is Eq. 5 and nothing else: the last cell redid it by
# hand.
#
# ## What it has learnt, in words
#
# The table can be read. For each token of some held-out replies: what does it push
# most, counted from the mean of its row? (A softmax does not notice what all tokens
# get.) Here are the strongest pushes from a word to a word, one for each pushed word.

# %%
from dsparkref.analysis.markov_table import strongest_pushes

examples = course.evaluation_examples(pair, per_domain=4 if course.is_tiny() else 1)
seen = sorted({token for example in examples for token in example.reply})
pushes = figures.between_words(target, strongest_pushes(drafter.head, seen))
show(figures.pushes_picture(target, pushes[:10]))

# %%
words = [course.last_token(target, w) for w in (" no", " great", " of", " and")]
print(figures.pushed_after(target, strongest_pushes(drafter.head, words, count=4)))

# %% [markdown]
# Ten logits multiply the odds by 22,000. "great" knows its "fun", and "no" its
# "problem". After "of" several words are pushed alike: it stands in a greeting, in an
# explanation, in a sum, and the base logits choose among them.
#
# Now look at "and". The corpus says "slow **and** steady", "short **and** sweet",
# "plain **and** simple". The table pushes the endings together, since "and" is all it
# sees: a matter for the next notebook.
#
# ## How much of the table is needed?
#
# The shipped table has rank 64, the released drafters' 256. Let us cut it afterwards. A
# singular value decomposition (SVD) writes a table as a sum of directions, the
# strongest first; of all tables of rank r, the sum of the first r is the nearest.
# `with_rank` keeps those of W_1 W_2, and trains nothing.
#
# At rank 0 no push is left: a parallel drafter, like dflash. The shipped dflash has the
# same backbone, trained by the same recipe, but without a head.
#
# **Predict**: we cut the head off the trained Markov drafter. Which share of its
# *first* drafts is still kept?

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref.analysis.markov_table import with_rank

full = drafter.spec.rank
ranks = [0, *(2**n for n in range(full.bit_length()) if 2**n <= full)]
drafters = course.sibling_drafters(pair)
names = [name for name in ("dflash", "markov", "gated") if name in drafters]
whole = {n: course.overlap_on_text(target, drafters[n], examples) for n in names}
whole = {name: curve.tolist() for name, curve in whole.items()}

# %%
cut = {}
for rank in ranks:
    curve = course.overlap_on_text(target, with_rank(drafter, rank), examples)
    cut[rank] = curve.tolist()
assert not course.is_tiny() or cut[0][0] < whole["dflash"][0] - 0.2
compare_guess(guess, cut[0][0])

# %%
beside = {name: curve for name, curve in whole.items() if name != "gated"}
table = {(rank,): (rank, beside | {f"rank {rank}": cut[rank]}) for rank in ranks}
explore(table, figures.rank_curves_picture, {"rank": ranks}, start=(min(8, full),))

# %% [markdown]
# Without its head this drafter is far worse than one that never had any. It was trained
# *with* the head, and its backbone (all but the head) left to the table what the table
# can say.
#
# **Why** does it matter? A correction head is no part that is bolted on. Backbone and
# head divide the work, and you cannot judge one by taking away the other. For the same
# reason a cut table says little about a table *trained* at that rank, whose backbone
# would have learnt to live with it.
#
# What do cut heads cost in tokens per cycle? Let them decode. (Six prompts: the first
# decimal is noise, the shape is not.)

# %%
prompts = [example.prompt for example in examples[:6]]
cuts = {rank: with_rank(drafter, rank) for rank in ranks}
lengths = course.accepted_lengths(target, cuts, prompts, max_new_tokens=40)
headless = {name: drafters[name] for name in names if name == "dflash"}
headless = course.accepted_lengths(target, headless, prompts, max_new_tokens=40)

# %%
if course.is_tiny():
    assert lengths[0] < headless["dflash"] < lengths[full]
    assert lengths[32] > 0.85 * lengths[full] and lengths[8] < 0.75 * lengths[full]
show(figures.rank_picture(lengths, headless))

# %% [markdown]
# Half the rank costs little, an eighth costs much. The table holds many pairs that have
# nothing to do with each other, and each wants a direction of its own.
#
# ## And the gate?
#
# Vanilla and gated side by side: overlap with the target on the held-out replies, per
# position. Then we listen to the gate while it works: a *hook* is called whenever its
# layer has computed something, and keeps a copy.

# %%
print(course.text_table(whole))
if course.is_tiny():
    gains = torch.tensor(whole["gated"]) - torch.tensor(whole["markov"])
    assert gains.abs().mean() < 0.03  # neither is the better one

# %%
gated, gates = drafters.get("gated"), [torch.ones(1, 1)]  # an open gate: vanilla
if gated is not None:
    layer = gated.head.gate_proj
    hook = layer.register_forward_hook(lambda *seen: gates.append(seen[-1].sigmoid()))
    course.overlap_on_text(target, gated, examples)
    hook.remove()

# %%
opened = torch.cat(gates[1:] or gates)  # [blocks * K, r]
assert not course.is_tiny() or (opened > 0.9).float().mean() > 0.8
show(figures.gate_picture(opened))

# %% [markdown]
# The gate stands open nearly everywhere, and an open gate is the vanilla head. That is
# no verdict on gates: this language has few words like "keep", and what the context has
# to say, U_k says already. A head is worth what its language asks for.
#
# ## Build it once
#
# One step of the gated head, from its weights alone.


# %% tags=["build-it-once"]
def gated_bias(head, prev_tokens, hidden):
    looked_up = head.prev_embed.weight[prev_tokens]  # [B, r]
    joint = torch.cat([hidden, looked_up], dim=-1)  # [B, D + r]
    logits = joint @ head.gate_proj.weight.T + head.gate_proj.bias
    gate = 1 / (1 + torch.exp(-logits))  # [B, r]
    return (gate * looked_up) @ head.bias_proj.weight.T  # [B, V]


head = GatedMarkovHead(vocab_size=50, rank=8, hidden_size=16)
prev_tokens, hidden = torch.arange(4), torch.randn(4, 16)
theirs, _ = head.step(None, prev_tokens, hidden)
assert (gated_bias(head, prev_tokens, hidden) - theirs).abs().max() < 1e-5

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. A head is an object with weights: use
# `head.prev_embed` (a lookup, W_1) and `head.bias_proj` (a linear layer, W_2). All
# heads share one signature, `step(state, prev_tokens, hidden)`, which returns the bias
# and the next state; these two carry no state and return the one they were given.
#
# **Warm-up.** One step of the vanilla head.

# %% tags=["exercise"]
from dsparkref.lab.exercises.markov_head import EXERCISES


def markov_step(head, state, prev_tokens, hidden):
    """prev_tokens [B], hidden [B, D]. Return the bias [B, V], and the state."""
    return ...


EXERCISES["markov_step"].check(markov_step)

# %% [markdown]
# **Core.** One step of the gated head. `head.gate_proj` is a linear layer from D + r
# numbers to r.


# %% tags=["exercise"]
def gated_step(head, state, prev_tokens, hidden):
    """prev_tokens [B], hidden [B, D]. Return the bias [B, V], and the state."""
    return ...


EXERCISES["gated_step"].check(gated_step)

# %% [markdown]
# **Stretch.** The nearest table of a lower rank. `prev_embed` and `bias_proj` are W_1
# and W_2, one row per token. Row x of the result holds the pushes after token x.


# %% tags=["exercise"]
def truncated_table(prev_embed, bias_proj, rank):
    """prev_embed [V, r], bias_proj [V, r], 0 <= rank <= r. Return [V, V]."""
    return ...


EXERCISES["truncated_table"].check(truncated_table)

# %% [markdown]
# **In words.** On the roads of Britain and France, U_2 was undecided between left and
# right. Suppose that it may be trained together with the vanilla table. How many of the
# four cases (country, verb) can the drafter then get right, and why not all?

# %% [markdown] tags=["solution"]
# Three. Let U_2 lean a little towards the left in Britain, and a little towards the
# right in France. After "keep" the table stays silent, and the country decides: left in
# Britain, right in France, both correct. After "pass" both countries lean the wrong
# way, and the one table can overrule this in one of them: pushing hard to the right
# mends Britain and leaves France as it should not be. All four at once are an
# "exclusive or", which no sum of a country's word and a verb's word can express.

# %% [markdown]
# ## Recap
#
# - A Markov head adds one push per token, looked up by the token before. It is a table
#   of rank r, cheap to store and to apply, and it repairs whatever one token can tell.
# - A bias adds; a gate selects. The gate pays only where the token before means one
#   thing here and another there.
# - Backbone and head are trained as one. A drafter without its head is not a DFlash.
# - The table can be read, and its row for "and" pushes every ending at once.
#
# **Next**: what would it take to know that "slow and" goes on with "steady"? Notebook
# 06 gives the head a memory.
