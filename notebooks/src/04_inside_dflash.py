# %% [markdown]
# # 04 · What does the drafter see?
#
# | | |
# | --- | --- |
# | Reading | 45 minutes; the exercises take 45 more |
# | Running | well under half a minute on a laptop, no GPU, no network |
# | Needs | notebooks 01 to 03; attention with keys and values, a little PyTorch |
# | Equations | 2 and 3 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `draft/backbone.py`, `draft/blocks.py`, `lab/anatomy.py` |
#
# **You will be able to**
#
# - name every tensor that enters a DFlash drafter in one cycle, with its shape;
# - draw what a slot may look at, in decoding and in training, and measure it;
# - find two faults that raise no error: a wrong layer, and slots read wrongly.

# %% tags=["nbval-ignore-output"]
import sys

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{sys.executable}: %pip install -e "..[notebooks]"') from error
print(versions())

# %% [markdown]
# ## It reads the target's mind
#
# A DFlash drafter is a transformer of very few layers. So small a model would be a poor
# language model. But it never has to read the text: the target has just read it, and
# what the target *understood* is lying around in its hidden states. The drafter reads
# those.
#
# Let the target read a prompt, and keep what a few of its layers put out.

# %%
import torch

from dsparkref import load_pair
from dsparkref.decode.request import as_row

pair = load_pair(head="dflash")
target, drafter = pair.target, pair.drafter
taps = drafter.spec.target_layer_ids
prompt = as_row(target.encode("I want to try chess. Can you help me?"), target.device)
session, read = target.prefill(prompt, taps)
print(f"{drafter.head_type} taps layers {taps} of {target.num_layers}")

# %% [markdown]
# Layers count from 0, and tap i is the **output** of layer i. transformers returns one
# more hidden state than there are layers: number 0 is the embedding, so the output of
# layer i is `hidden_states[i + 1]`. Keep it in mind; we shall get it wrong on purpose.
#
# Side by side the tapped layers are wide. One matrix brings them back to the model's
# width, and a norm evens them out.
#
# **Paper** Eq. 2:
# $H_\mathrm{ctx} = \mathrm{RMSNorm}(W_c\,[H^{(l_1)}; \ldots; H^{(l_m)}])$.
#
# Each draft layer then makes keys and values of H_ctx. Nothing else of the context
# ever enters: no token ids, no embeddings.
#
# Letters in the tables: B requests (one here), T context tokens, L taps, D the width of
# the model and LD of L layers side by side; Q slots of a block; Hq and Hkv heads for
# queries and for keys and values, each d wide.

# %%
from dsparkref.lab.anatomy import agree

with torch.no_grad():
    states = target.model(prompt, output_hidden_states=True).hidden_states
outputs = torch.cat([states[i + 1] for i in taps], dim=-1)  # [1, T, L*D]
assert len(states) == target.num_layers + 1
assert agree(outputs, read.hidden)

# %%
from dsparkref.lab.tensors import tensor_table

with torch.no_grad():
    context = drafter.backbone.context_norm(drafter.backbone.context_proj(read.hidden))
    layers = drafter.backbone.context(read.hidden)  # keys and values, layer by layer
given = {"prompt": prompt, "target_hidden": read.hidden, "context": context}
print(tensor_table(**given, context_keys=layers[0][0], context_values=layers[0][1]))

# %% [markdown]
# The target keeps keys and values of the context too, in each of its own layers.
#
# **Predict**: how much memory do the drafter's add, as a share of the target's?

# %%
guess = ...  # a share; 1 would be as much again

# %%
from dsparkref.lab.checks import compare_guess


def numbers_held(layers):
    return sum(x.numel() for keys_values in layers for x in keys_values)


compare_guess(guess, numbers_held(layers) / numbers_held(session.keys_values()))

# %% [markdown]
# ## One block, tensor by tensor
#
# The block's input is almost empty: the anchor, which is decided, and *mask tokens*,
# one id that means "to be drafted". They stand where the drafts will stand, right after
# the context: at positions T, T+1, and so on.
#
# **Paper** Eq. 3: keys and values come from context *and* block, queries from the block
# alone. One k and one v projection serve both. This is *KV injection*: the context
# never becomes a row of the block, it only lies there to be looked at.
#
# Now we draft one block and record what the attention of each layer really computed.

# %%
from dsparkref.draft.blocks import block_tokens
from dsparkref.lab.anatomy import cycle_attention

anchor = read.logits[:, -1].argmax(dim=-1)  # [1]
seen = cycle_attention(drafter, read.hidden, anchor)
tokens = block_tokens(anchor, drafter.spec.num_slots, drafter.spec.mask_token_id)
positions = torch.arange(tokens.shape[1], device=target.device) + prompt.shape[1]
given = {"anchor": anchor, "block_tokens": tokens, "positions": positions[None]}
print(tensor_table(prompt=prompt, **given, **vars(seen[0])))

# %%
from dsparkref.lab import inside_dflash_figures as figures
from dsparkref.lab.terminal import token_text
from dsparkref.lab.widgets import explore

words = [token_text(target, token) for token in prompt[0].tolist()]
numbers = range(1, len(seen) + 1)
weights = [found.weights[0].mean(dim=0).cpu() for found in seen]  # [Q, T+Q] each
table = {(n,): (f"Draft layer {n}", weights[n - 1], words) for n in numbers}
explore(table, figures.attention_picture, {"draft layer": list(numbers)})

# %% [markdown]
# These weights are not a sketch: they are this cycle's. Mask slots have nothing to say
# at first, yet they are looked at, backwards and **forwards**. Slot 1 asks what slot 5
# is going to be. So the block settles as a whole, and one pass fills it.
#
# **Differs** You will read that DFlash's forward uses "causal attention". The papers
# and their code are causal only *towards the context*. Inside the block attention runs
# both ways. (Some later checkpoints do have causal blocks; their config says so.)
#
# **Predict**: we change the input of the *last* slot a little. In how many of the slots
# does the answer change?

# %%
guess = ...  # a number of slots

# %%
from dsparkref.lab.anatomy import reach, with_spec

last_token = torch.tensor([[prompt.shape[1] - 1]], device=target.device)
moved = reach(drafter, prompt, read.hidden, last_token)[:, -1]  # by the last input
causal = with_spec(drafter, causal_layers=tuple(range(drafter.spec.num_layers)))
moved_if_causal = reach(causal, prompt, read.hidden, last_token)[:, -1]
assert moved_if_causal.sum() == 1
compare_guess(guess, moved.sum().item(), digits=0)

# %% [markdown]
# `reach` differentiates the slots' answers by every input: a zero means "cannot see".
# `with_spec` tells the same weights that their block is causal; then the last slot
# moves nobody but itself.
#
# ## Many blocks in one pass
#
# In decoding no mask is needed: there is one block, and the context ends before its
# anchor because nothing after it exists yet. In *training* the whole text is there, and
# many blocks, each with an anchor of its own, share one pass. Now a mask has to rebuild
# what decoding gives for free. Two blocks in our prompt, measured again:

# %%
from dsparkref.draft.blocks import layer_masks
from dsparkref.lab.pictures import show

anchors = torch.tensor([[8, 17]], device=target.device)
measured = reach(drafter, prompt, read.hidden, anchors)  # [P, T+P]
for mask in layer_masks(drafter.spec, anchors, prompt.shape[1]):
    assert torch.equal(measured, mask[0, 0]) or drafter.spec.window_layers
show(figures.mask_picture((measured.cpu(), [8, 17], prompt.shape[1])))

# %% [markdown]
# **Why** strictly before the anchor? When the drafter starts, the target has not read
# the anchor: it *chose* it. There are no features for it yet. What the drafter knows of
# it is its embedding, in slot 0. Move the second anchor, and make the blocks causal:

# %%
places, ways = [3, 4, 5, 6, 7, 8, 9], list(figures.WAYS)
controls = {"second anchor": places, "inside the block": ways}
masks = figures.moving_masks(places)
explore(masks, figures.mask_picture, controls, start=(6, "both ways"))

# %% [markdown]
# ## One layer early
#
# Now the mistake. Somebody taps `hidden_states[i]` instead of `hidden_states[i + 1]`.
# Shapes agree, all loads, all runs, the text is right (the verifier sees to that).
#
# **Predict**: what share of its tokens per cycle does the drafter lose?

# %%
guess = ...  # a share, from 0 to 1

# %%
from dsparkref.lab import course

early = with_spec(drafter, target_layer_ids=tuple(i - 1 for i in taps))
readings = {"right": drafter, "one layer early": early}
examples = course.evaluation_examples(pair, per_domain=4 if course.is_tiny() else 1)
lengths = course.accepted_lengths(target, readings, [e.prompt for e in examples])
print({name: round(length, 1) for name, length in lengths.items()})
compare_guess(guess, 1 - lengths["one layer early"] / lengths["right"])

# %%
readings["reversed"] = with_spec(drafter, target_layer_ids=taps[::-1])
measure = course.overlap_on_text
overlaps = {n: measure(target, d, examples).tolist() for n, d in readings.items()}
show(figures.taps_picture(overlaps, f"{len(examples)} replies, temperature 1"))

# %%
if course.is_tiny():
    assert 0.03 < 1 - lengths["one layer early"] / lengths["right"] < 0.4
    pairs = zip(overlaps["right"], overlaps["one layer early"], strict=True)
    assert all(right > wrong for right, wrong in pairs)
    assert overlaps["reversed"][-1] < 0.5 * overlaps["right"][-1]

# %% [markdown]
# Reversing the layers breaks the drafter, and everybody notices. One layer early is
# worse: neighbouring layers resemble each other, so the drafter merely looks a little
# less gifted. Nobody looks for a bug there. It costs every user a part of the speed,
# for ever.
#
# **Differs** Some formats store ids that already include the + 1. And the *last* layer
# is refused here: transformers returns it after the final norm, so it is another thing
# than its neighbours. Other codes index on.
#
# ## Which token does a slot predict?
#
# There are two layouts under one name. In DeepSpec's, the anchor's own slot predicts:
# K slots give K drafts, and slot 0 says the token *after* the anchor. In z-lab's, each
# mask slot predicts the token at *its own* place: slot 0 is thrown away, and 16 inputs
# give 15 drafts. No tensor in the file tells which. Let us ask the drafter: compare the
# law of each draft with the target's law of *every* token nearby, under both readings.

# %%
from dsparkref.lab.anatomy import slot_alignment

misread = with_spec(drafter, anchor_predicts=not drafter.spec.anchor_predicts)
readings = {"right": drafter, "misread": misread}
tables = {n: slot_alignment(target, d, examples[:6]) for n, d in readings.items()}
show(figures.alignment_picture(tables))

# %%
if course.is_tiny():
    on_token = tables["right"].diagonal(1)  # draft k against token k
    assert (on_token > 2 * tables["right"].diagonal(0)).all()  # not token k - 1
    assert tables["misread"].diagonal(1).mean() < 0.2 * on_token.mean()

# %% [markdown]
# Misread, the drafts are good, but for the wrong places: each says its neighbour's
# word. Almost nothing is accepted, and again no error. The table finds it at a glance.
#
# ## Cached equals uncached
#
# Features of committed tokens never change, so H_ctx and its keys and values are
# computed once per token and kept: `drafter.new_cache()`.
#
# **Predict**: over one reply, how many times more context rows would be projected
# without the cache?

# %%
guess = ...  # a factor

# %%
from dsparkref import decode_cycles

options = {"max_new_tokens": 48, "temperature": 1.0, "generator": 0}
cycles = list(decode_cycles(target, drafter, prompt, **options))
context_lens = [cycle.context_len for cycle in cycles]
compare_guess(guess, sum(context_lens) / context_lens[-1], digits=1)

# %%
cache = drafter.new_cache()
drafter.propose(read.hidden[:, :8], anchor, cache=cache)  # as if committed so far
cached = drafter.propose(read.hidden[:, 8:], anchor, cache=cache)
whole = drafter.propose(read.hidden, anchor)
assert cache.length == prompt.shape[1] and agree(whole.hidden, cached.hidden)
show(figures.cache_picture(context_lens))

# %% [markdown]
# ## Build it once
#
# The attention of one draft layer, from context and block. A trap: the block goes
# through the layer's `input_norm`, the context does **not**. Sending both through it
# looks tidier and raises nothing; how far off it is, the last cell says.


# %% tags=["build-it-once"]
from dsparkref.draft.backbone import rotary, rotate


def draft_attention(attention, block, context, theta):
    both = torch.cat([context, block], dim=1)  # [1, T+Q, D]
    positions = torch.arange(both.shape[1], device=both.device)[None]
    turn = rotary(positions, attention.head_dim, theta)
    queries = attention.q_norm(attention.heads(attention.q_proj(block)))
    keys = attention.k_norm(attention.heads(attention.k_proj(both)))
    slots, groups = block.shape[1], queries.shape[1] // keys.shape[1]
    queries = rotate(queries, *(part[:, -slots:] for part in turn))
    keys = rotate(keys, *turn).repeat_interleave(groups, dim=1)
    values = attention.heads(attention.v_proj(both)).repeat_interleave(groups, dim=1)
    scores = queries @ keys.transpose(2, 3) / attention.head_dim**0.5
    mixed = scores.softmax(dim=-1) @ values
    return attention.o_proj(mixed.transpose(1, 2).flatten(2))  # [1, Q, D]


# %%
layer, spec = drafter.backbone.layers[0], drafter.spec
block = layer.input_norm(drafter.embed(tokens))
mine = draft_attention(layer.attention, block, context, spec.rope_theta)
turn = rotary(positions[None], spec.head_dim, spec.rope_theta)
assert agree(layer.attention(block, layers[0], *turn, None), mine)

# %%
tidy = layer.input_norm(context)  # looks harmless
wrong = draft_attention(layer.attention, block, tidy, spec.rope_theta)
off = ((wrong - mine).norm() / mine.norm()).item()
print(f"the layer's answer is off by {100 * off:.0f} % of its length")
assert off > 0.02 or not course.is_tiny()

# %% [markdown]
# ## Exercises
#
# Replace the dots and run the cell. `EXERCISES["block_input"].reveal()` shows the
# package's own function.
#
# **Warm-up.** The ids of a block's slots. `anchor` holds one id for each of B blocks.

# %% tags=["exercise"]
from dsparkref.lab.exercises.inside_dflash import EXERCISES


def block_input(anchor, num_slots, mask_token_id):
    """anchor [B]. Return ids [B, num_slots]."""
    return ...


EXERCISES["block_input"].check(block_input)

# %% [markdown]
# **Core.** The training mask of N blocks per text: True where a slot may look. Rows are
# the slots, block after block (P = N * num_slots); columns are the `length` tokens of
# the text (S), then all slots.


# %% tags=["exercise"]
def block_mask(anchors, num_slots, length):
    """anchors [B, N], positions in the text. Return bool [B, 1, P, S+P]."""
    return ...


EXERCISES["block_mask"].check(block_mask)

# %% [markdown]
# **Stretch.** What the context gives each draft layer: Eq. 2, then keys and values.
# The backbone has `context_proj`, `context_norm`, `layers` and `spec`; each layer's
# `attention` has `keys_values(rows, cos, sin)`; `rotary(positions, head_dim, theta)`
# gives cos and sin, [1, T, d] each. Row 0 stands at position `start`.


# %% tags=["exercise"]
def context_keys_values(backbone, target_hidden, start):
    """target_hidden [1, T, L*D]. Return a list with (keys, values) of each layer."""
    return ...


EXERCISES["context_keys_values"].check(context_keys_values)

# %% [markdown]
# **In words.** A released drafter loads without a warning and accepts a tenth less than
# its paper says. Which faults of this notebook can that be, which can it not be, and
# what would you measure first?

# %% [markdown] tags=["solution"]
# Not a misread slot layout and not a wrong order of layers: those cost nearly all.
# One layer early fits, and so do smaller ones: a context sent through the input norm, a
# block taken for causal. First compare the features with the output of the tapped
# layers (a forward hook on layer i), for a number says more than a config. Then check
# on one block that cached and uncached agree. Only then suspect the training.

# %% [markdown]
# ## Recap
#
# - The drafter reads hidden states of the target, never the text. Eq. 2 makes one row
#   per token, once; Eq. 3 injects it into every layer as keys and values.
# - A block is the anchor and masks. Inside it attention runs both ways; of the context
#   it sees what stands strictly before its anchor.
# - Wrong layers and misread slots load, run and stay lossless. Only acceptance tells.
#
# **Next**: all slots are filled at once, so none knows what its neighbour drew. How
# much autoregression does it take to mend that? Notebook 05.
