# %% [markdown]
# # 06 · What does one step of memory miss?
#
# | | |
# | --- | --- |
# | Reading | 40 minutes; the exercises take 40 more |
# | Running | about half a minute on a laptop, no GPU, no network |
# | Needs | notebooks 01 and 05; what a recurrent network is |
# | Equations | 4 to 6 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `draft/heads.py`, `analysis/toy.py`, `analysis/memory.py` |
#
# **You will be able to**
#
# - say which languages a head can draft, from how far back each of the two looks;
# - step DSpark's rnn head and Domino's GRU by hand, and name the one index in which
#   they differ;
# - weigh what a memory wins against what a step of it costs.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## Slow and …
#
# The table of notebook 05 pushed every ending after "and", because "and" is all that it
# saw. Here is that language alone: "slow and steady", "short and sweet" or "plain and
# simple", a comma, and again. Each phrase comes a third of the time.
#
# A block starts at a comma. Draft 1 is "slow", "short" or "plain", draft 2 is "and",
# draft 3 the ending.
#
# **Predict**: the best drafter that sees the token before and nothing else. Which share
# of its third drafts is kept?

# %%
guess = ...  # a share, from 0 to 1

# %%
import torch

from dsparkref.analysis import toy
from dsparkref.lab.checks import compare_guess

phrases = toy.shared_word_world()
laws = phrases.block_laws([5, 0], length=6)  # after "steady ,"
memories = {"parallel": 0, "one token back": 1, "every draft": None}
drafts = {name: toy.best_drafter(laws, seen) for name, seen in memories.items()}
kept = {name: toy.exact_conditional(laws, one).tolist() for name, one in drafts.items()}
compare_guess(guess, kept["one token back"][2])

# %%
from dsparkref.lab import heads_with_memory_figures as figures
from dsparkref.lab.pictures import show

assert abs(kept["one token back"][2] - 1 / 3) < 1e-12
assert min(kept["every draft"]) > 1 - 1e-12
seeing = {name: curve for name, curve in kept.items() if name != "parallel"}
show(figures.memory_curves_picture(seeing))

# %% [markdown]
# Seeing "and", the drafter can only guess among three endings. The coin was thrown two
# tokens ago. Everywhere else one token back is enough.
#
# ## Heads against worlds
#
# Now all combinations. A language may look 0, 1 or 2 tokens back; a head may see none
# of its drafts (dflash), the last one (markov, gated), or all (rnn, domino: whatever
# they read goes into a state that is carried along). Both random worlds and worlds made
# to hurt: coins, the two modes, the phrases. In each cell the *best* drafter of its
# kind.

# %%
coins, orders = toy.MarkovWorld(torch.full((6,), 1 / 6)), (0, 1, 2)
kinds = {"made to hurt": [[coins], [toy.two_mode_world()], [phrases]]}
kinds["random"] = [
    [toy.MarkovWorld.random(5, m, generator=s) for s in range(8)] for m in orders
]
sees = {"nothing": 0, "one token back": 1, "every draft": None}


# %%
def survival(worlds, memory):  # mean chance that drafts 1 to k all stand, k = 1..6
    blocks = [world.block_laws([1, 0], length=6) for world in worlds]
    best = [toy.best_drafter(laws, memory) for laws in blocks]
    each = map(toy.exact_survival, blocks, best)
    return torch.stack(list(each)).mean(dim=0)


# %%
def grid(kind, count):
    return {
        head: {str(m): count(survival(kinds[kind][m], memory)).item() for m in orders}
        for head, memory in sees.items()
    }


# %%
from dsparkref.lab.widgets import explore

counts = {"tokens per cycle": lambda s: 1 + s.sum(), "block kept": lambda s: s[-1]}
table = {(k, c): (c, grid(k, count)) for k in kinds for c, count in counts.items()}
for _, shares in table.values():
    assert shares["one token back"]["2"] < shares["every draft"]["2"] - 0.1
controls = {"worlds": ["random", "made to hurt"], "counted": list(counts)}
explore(table, figures.worlds_heat_map, controls)

# %% [markdown]
# The grid is full on and below the diagonal: a head is perfect where it sees as far
# back as the language looks. One step of memory misses whatever lies two steps back.
#
# **Why** not simply look up two tokens? A table over pairs has V² rows. A *state* has a
# fixed size, and the head learns what is worth keeping in it.
#
# ## A state by hand
#
# **Paper** Eq. 6, the rnn head. s_k is a state of r numbers, s_0 is zero. One
# projection reads the state, the token and the hidden state, and gives three parts:
#
# $$z_k = [s_{k-1} ; W_1[x_{k-1}] ; h_k] \;\to\; gate,\; candidate,\; output$$
#
# $$s_k = \sigma(gate) \, s_{k-1} + (1 - \sigma(gate)) \tanh(candidate)$$
#
# $$B_k = W_2 \tanh(output)$$
#
# The gate says how much of the old state stays. Let us write weights that keep the
# first word of a phrase: write it when it is read, hold it over "and".

# %%
from dsparkref.draft.heads import RNNHead

first = torch.zeros(8, 3)  # W_1: slow, short, plain (ids 2, 3, 4) have a number each
first[[2, 3, 4], [0, 1, 2]] = 1.0
ending = 12.0 * first.roll(3, dims=0)  # W_2: the same for steady, sweet, simple
one, none = torch.eye(3), torch.zeros(3, 3)
# a gate of -20 writes the new, one of +10 keeps the old; columns: the state, the token
gate, candidate, output = [none, none - 20], [none, 10 * one], [10 * one, none]

# %%
weights = {"prev_embed.weight": first, "bias_proj.weight": ending}
rows = [torch.cat(part, dim=1) for part in (gate, candidate, output)]  # [r, 2r] each
weights["joint_proj.weight"] = torch.cat([torch.cat(rows), torch.zeros(9, 1)], dim=1)
weights["joint_proj.bias"] = torch.tensor([10.0] * 3 + [0.0] * 6)  # by default, keep
by_hand = RNNHead(vocab_size=8, rank=3, hidden_size=1)  # h_k goes unread: a zero
_ = by_hand.load_state_dict(weights)

# %%
text, state, states = "slow and steady , plain and", by_hand.init_state(1), []
for word in text.split():
    token = torch.tensor([phrases.words.index(word)])
    _, state = by_hand.step(state, token, torch.zeros(1, 1))
    states.append(state[0])
show(figures.state_picture(text.split(), states, phrases.words[2:5]))

# %%
from dsparkref.analysis.head_laws import head_laws

base = torch.stack([law.flatten() for law in drafts["parallel"]])
drafted = head_laws(by_hand, base, anchor=0, hidden=torch.zeros(6, 1))
stands = toy.exact_conditional(laws, drafted)
assert stands.min() > 0.999
print(figures.text_table(kept | {"rnn by hand": stands.tolist()}))

# %% [markdown]
# Three numbers of state, and the third draft is kept.
#
# Mind the index. B_k sees s_{k-1}, *not* s_k: the token before comes in by itself, as
# W_1[x_{k-1}], and the state holds what came before it.
#
# **Differs** The released projection has a bias, which Eq. 6 does not print. Ours uses
# one, too: it is what makes the gate keep by default.
#
# ## Domino's GRU
#
# **Paper** [Domino](https://arxiv.org/abs/2605.29707) carries a state of another kind:
# a GRU, PyTorch's own, over the *target's* token embeddings, from the anchor on. Its
# own width g, no tables W_1 and W_2:
#
# $$g_k = GRU(embedding(x_{k-1}), g_{k-1}), \qquad B_k = W_b \, SiLU(W_a [h_k ; g_k])$$
#
# (SiLU(x) = x σ(x), number by number.)
#
# Here B_k sees g_k, which *has* read x_{k-1}: the token has no other way in. The first
# few drafts may keep their base logits (`pure_draft_prefix_len`); the GRU reads their
# tokens all the same.
#
# The state is carried. Reading everything from the anchor again at each draft gives the
# same numbers, for K(K+1)/2 steps instead of K:

# %%
from functools import reduce

gru, prefix = torch.nn.GRUCell(8, 6, bias=False), torch.randn(7, 1, 8)  # a random one
carried = torch.zeros(1, 6)
for k in range(7):
    carried = gru(prefix[k], carried)  # one step
    again = reduce(lambda g, x: gru(x, g), prefix[: k + 1], torch.zeros(1, 6))  # k + 1
    assert torch.equal(carried, again)

# %% [markdown]
# ## Where the token two back decides
#
# Now the trained drafters, on held-out chat replies. In this corpus some words are
# decided by the word two back: "slow and **steady**", "right as **rain**". We know
# these places, and measure the overlap with the target's law there and everywhere else,
# from draft 3 on (before, the token two back is context, and every drafter sees it).
#
# **Predict**: at these places, what does the Markov head keep?

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref import load_pair
from dsparkref.analysis.memory import at_memory_positions
from dsparkref.lab import course
from dsparkref.train.corpus import memory_positions

pair = load_pair()
target, drafters = pair.target, course.sibling_drafters(pair)
chats = course.evaluation_examples(pair, 5 if course.is_tiny() else 2, domains=["chat"])
where = [memory_positions(chat.text, target.tokenizer) for chat in chats]
found = {n: at_memory_positions(target, d, chats, where) for n, d in drafters.items()}
compare_guess(guess, found.get("markov", found[pair.drafter.head_type]).at_places)

# %%
from dsparkref import load_drafter

long = ("dflash", "markov", "rnn", "domino") if course.is_tiny() else ()
long = {f"{n}-k15": load_drafter(f"tiny/{n}-k15", target) for n in long}
found |= {n: at_memory_positions(target, d, chats, where) for n, d in long.items()}
blocks = figures.by_block_size(drafters | long)
table = {(K,): (K, {n: found[name] for n, name in row}) for K, row in blocks.items()}
explore(table, figures.places_picture, {"block size": list(blocks)})

# %%
print(figures.named_places({n: found[n] for n in drafters}, count=8))
if course.is_tiny():
    at = {n: one.at_places for n, one in found.items()}
    assert max(at["dflash"], at["markov"], at["gated"]) < 0.35
    assert at["rnn"] > 0.6 and at["domino"] > 0.4

# %% [markdown]
# Where one token back is enough, the heads are alike. At these places the ones without
# a state fail, whatever the block size. Domino lies in between. A likely reason: its
# GRU reads the target's embeddings as they are, while the rnn head learns in W_1 what a
# token should leave behind.
#
# **Paper** On real text the rnn head adds little over Markov, mainly on long blocks.
# This corpus was made so that the difference can be seen.
#
# One index makes the difference between a memory and a mess. Here is the trained rnn
# head with B_k computed from s_k. It loads, it runs, it raises nothing:

# %%
import copy

some = drafters.get("rnn", pair.drafter)
late, step = copy.deepcopy(some), some.head.step
late.head.step = lambda s, x, h: (step(step(s, x, h)[1], x, h)[0], step(s, x, h)[1])
both = {"B_k from s_{k-1}": some, "B_k from s_k": late}
rates = {n: at_memory_positions(target, d, chats, where) for n, d in both.items()}
print(figures.place_table(rates))

# %% [markdown]
# ## What it is worth
#
# Tokens per cycle, decoded from chat prompts, with blocks of 7 and of 15.

# %%
prompts = [chat.prompt for chat in chats[:4]]
everyone = drafters | long
lengths = course.accepted_lengths(target, everyone, prompts, max_new_tokens=40)
if course.is_tiny():
    assert min(lengths["markov-k15"], lengths["rnn-k15"]) > lengths["dflash-k15"]
    assert min(lengths[n] for n in drafters if n != "dflash") > lengths["dflash"]

# %%
groups = {f"K = {K}": {n: lengths[x] for n, x in row} for K, row in blocks.items()}
show(figures.lengths_picture(groups))

# %% [markdown]
# The longer the block, the more a memory is worth: there are more drafts that lie two
# steps and further behind the anchor. Four prompts only hint at it; the README's table
# has a hundred per domain.
#
# ## A drafter that can do without
#
# Notebook 05 cut off the Markov head and was left with a ruin. Domino is trained to
# avoid that: part of its loss asks the *base* logits alone to be right, much at first
# and less and less later ("base-anchored"). Does it show?

# %%
from dsparkref.draft.heads import NoHead


def base_and_whole(one):
    bare = copy.deepcopy(one)
    bare.head, bare.confidence = NoHead(one.spec.num_draftable), None
    parts = {"base alone": bare, "whole": one}
    curves = {n: course.overlap_on_text(target, d, examples) for n, d in parts.items()}
    return {kind: curve.mean().item() for kind, curve in curves.items()}


# %%
examples = course.evaluation_examples(pair, per_domain=2 if course.is_tiny() else 1)
shares = {name: base_and_whole(one) for name, one in drafters.items()}
base = {name: row["base alone"] for name, row in shares.items()}
if course.is_tiny():
    assert base["dflash"] > base["domino"] > max(base["markov"], base["rnn"]) + 0.05
show(figures.base_picture(shares))

# %% [markdown]
# It shows: Domino's backbone loses least when its head is taken away, though it is not
# a dflash either.
#
# ## What a step costs
#
# A head runs K times per block, one step after the other, so a step must be cheap. We
# count exactly: multiply-adds in matrix products, numbers stored, numbers carried to
# the next step for each request. First the shipped drafters, then the same heads at the
# sizes used for Qwen3-4B: V 151,936, width 2,560, rank 256, GRU 1,024, inner width 256.

# %%
specs = {name: one.spec for name, one in drafters.items()}
print(figures.cost_table(specs), "", sep="\n")
grown = {name: figures.at_qwen3_4b_sizes(spec) for name, spec in specs.items()}
print(figures.cost_table(grown))

# %% tags=["nbval-ignore-output"]
for name, one in drafters.items():
    print(f"{name:8}{figures.step_microseconds(target, one):8.1f} microseconds a step")

# %% [markdown]
# At the sizes of Qwen3-4B three quarters and more of the multiply-adds make V pushes,
# in every head alike. The memory is the smaller part of the bill, and the bill is
# small: the papers report 0.2 to 1.3 % of latency for DSpark's sequential loop and 2.8
# % for Domino's head (their numbers, not ours).
#
# The seconds say it less clearly: on a small model a step is bound by starting a few
# small operations, not by the multiplications, and a GRU starts more of them.
#
# ## Build it once
#
# A GRU cell from its weights, in PyTorch's order of the gates: reset, update, new.


# %% tags=["build-it-once"]
def gru_cell(gru, token, memory):
    from_token = (token @ gru.weight_ih.T).chunk(3, dim=-1)  # r, z, n: [B, g] each
    from_memory = (memory @ gru.weight_hh.T).chunk(3, dim=-1)
    reset = torch.sigmoid(from_token[0] + from_memory[0])
    update = torch.sigmoid(from_token[1] + from_memory[1])
    new = torch.tanh(from_token[2] + reset * from_memory[2])
    return update * memory + (1 - update) * new


token, memory = torch.randn(4, 8), torch.randn(4, 6)
assert (gru_cell(gru, token, memory) - gru(token, memory)).abs().max() < 1e-6

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. Heads are objects with weights, as in notebook 05.
#
# **Warm-up.** Count one step of the *rnn* head: multiply-adds in matrix products, and
# numbers carried to the next step. `spec` has `vocab_size`, `hidden_size` and `rank`;
# in the first input they are 97, 32 and 8.

# %% tags=["exercise"]
from dsparkref.lab.exercises.heads_with_memory import EXERCISES


def rnn_cost(spec):
    """Return two integers: multiply-adds, numbers carried."""
    return ...


EXERCISES["rnn_cost"].check(rnn_cost)

# %% [markdown]
# **Core.** One step of the rnn head, Eq. 6. `head.prev_embed` is W_1, `head.bias_proj`
# is W_2, and `head.joint_proj` is the one projection: gate, candidate, output.


# %% tags=["exercise"]
def rnn_step(head, state, prev_tokens, hidden):
    """state [B, r], prev_tokens [B], hidden [B, D]. Return B_k [B, V] and s_k."""
    return ...


EXERCISES["rnn_step"].check(rnn_step)

# %% [markdown]
# **Stretch.** One step of Domino. `head.embed` gives embeddings, `head.gru` is the
# cell, `head.inner_proj` is W_a and `head.bias_proj` is W_b. The state is a pair:
# g_{k-1}, and the position k, counted from 0. The bias is 0 for the first
# `head.prefix_len` drafts.


# %% tags=["exercise"]
def domino_step(head, state, prev_tokens, hidden):
    """state (g_{k-1} [B, g], k). Return B_k [B, V], and the next state."""
    return ...


EXERCISES["domino_step"].check(domino_step)

# %% [markdown]
# **In words.** A colleague computes Domino's bias from g_{k-1}, "as in Eq. 6", and
# trains it from scratch that way. Nothing crashes. Which languages can this head draft?
# And which can it not, though a Markov head can?

# %% [markdown] tags=["solution"]
# It sees every draft but the last one. In the language of the phrases it knows "slow"
# when it drafts the ending, so it is right there. It fails where one token back
# decides: after "of" or "no" it cannot tell "course" from "problem", which any Markov
# head can. It has a long memory with a hole exactly where it matters most.

# %% [markdown]
# ## Recap
#
# - A head is perfect where it sees as far back as its language looks. One token of
#   memory misses what lies two back, however large its table.
# - rnn: B_k sees s_{k-1} and x_{k-1}. Domino: B_k sees g_k, which has read x_{k-1}. One
#   index off, and a trained head fails without an error.
# - The state is carried: a step costs the same everywhere in the block, and most of it
#   is the vocabulary.
#
# **Next**: backbone and head share the work as their loss tells them to. Which loss,
# and which curriculum? Notebook 07.
