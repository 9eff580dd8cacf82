# %% [markdown]
# # 12 · What is in a released drafter?
#
# | | |
# | --- | --- |
# | Reading | 40 minutes; the exercises take 50 more |
# | Running | half a minute on a laptop, no GPU, no network |
# | Needs | `pip install -e ".[notebooks,train]"`; notebooks 04 to 06 |
# | Equations | 2 to 5 and 7 of [the DSpark paper](https://arxiv.org/abs/2607.05147) |
# | Files it opens | `checkpoints/formats/`, `draft/describe.py`, `draft/heads.py` |
#
# **You will be able to**
#
# - say what is in a drafter's folder before a single weight is loaded;
# - read a symptom, and name the fault behind it that stops nothing;
# - write a head of your own, train it, and put numbers beside it.

# %% tags=["nbval-ignore-output"]
from sys import executable

try:
    from dsparkref.lab.course import versions
except ModuleNotFoundError as error:
    raise ImportError(f'{executable}: %pip install -e "..[notebooks,train]"') from error
print(versions())

# %% [markdown]
# ## A folder that says what it is
#
# A released drafter is a folder with a `config.json` and one or more `.safetensors`
# files. Each of these begins with a header: name, shape and number type of every
# tensor. Config and headers say all but the values. `describe` reads nothing else,
# so that it answers at once, however large the file is.

# %%
import tempfile
from pathlib import Path

from dsparkref import describe, load_drafter, load_pair
from dsparkref.lab import course, museum, published
from dsparkref.lab import museum_figures as figures
from dsparkref.lab.checks import compare_guess
from dsparkref.lab.pictures import show

pair = load_pair()
target, drafter = pair.target, pair.drafter
folder = tempfile.TemporaryDirectory()  # goes when this notebook is closed
six = published.write_six(pair, Path(folder.name))
print(describe(six["deepspec"]))

# %% [markdown]
# Go through the lines. `block`: how many drafts, and what each slot stands for. `taps`:
# which layers of the target it reads (notebook 04). `head's step`: what one draft costs
# on top of the backbone, and how many numbers are carried on (notebook 06). `weights`:
# what it brings along, and what it borrows.
#
# **Why** safetensors only? A pickle can run any program when it is opened. A folder
# with nothing but a pickle in it is refused, and the file is named.
#
# ## Six ways to write it
#
# Six layouts are in circulation. The folders above hold this pair's drafter in four of
# them; z-lab's has its backbone alone, Domino's a GRU of random weights. In the shell
# the same comes from `python -m dsparkref inspect FOLDER FOLDER`, side by side.

# %%
print(published.spellings(six))

# %% [markdown]
# One class name stands for three layouts, and no file says which it is. The rest must
# tell: the keys beside it, and how the head's tensors are spelt. Where config and names
# point at two layouts, loading stops and says what to pass.
#
# **Differs** A config that leaves a key out means another thing in each layout. Without
# `shift_label` the author's Domino drops slot 0, ModelOpt's does not. Tapped layers
# count from the first layer in five layouts, from the embedding in speculators'.
#
# **Predict**: z-lab's file for Qwen3-4B says `block_size` 16. How many drafts does a
# cycle get?

# %%
guess = ...  # a number of drafts

# %%
from dsparkref.checkpoints.files import read_config

facts = ("block", "confidence", "weights")
print(published.facts_table({name: six[name] for name in ("z-lab", "domino")}, facts))
stored = read_config(six["z-lab"])["block_size"]
assert stored == drafter.block_size + 1  # slot 0 holds the anchor, and predicts nothing
compare_guess(guess, 16 - 1, digits=0)

# %% [markdown]
# Six spellings, one meaning: after loading, all are a `DrafterSpec` in neutral words
# and the same modules. The same weights must give the same numbers, to the last bit.

# %%
import torch

message = "I want to try chess. Can you help me?"
ids = torch.tensor([target.encode(message)], device=target.device)
loaded = {name: load_drafter(six[name], target) for name in published.DSPARK}
taps = loaded["deepspec"].spec.target_layer_ids
rows = target.prefill(ids[:, :-1], taps)[1].hidden

# %%
blocks = {name: one.propose(rows, ids[0, -1:]) for name, one in loaded.items()}
first = blocks["deepspec"].draft_logits
for name, block in blocks.items():
    print(f"{name}: the same bits as deepspec's: {block.draft_logits.equal(first)}")
assert all(block.draft_logits.equal(first) for block in blocks.values())

# %% [markdown]
# ## The museum
#
# Everything so far was checked: a missing tensor, a wrong width, an unknown layer type
# end with one clear sentence. The faults that reach users are the others. The file
# loads, text comes out, and nobody sees more than a low number.
#
# Nine such faults from public reports are planted here, in this pair: configs were
# edited, drafters wrapped. They are called A to I. Each decodes the same chat prompts
# at temperature 1.
#
# **Predict**: exhibit A reads each draft one slot too far, because the file was taken
# for another layout. Every weight is right. How many tokens does a cycle still bring,
# the bonus included?

# %%
guess = ...  # tokens a cycle, from 1 on

# %%
examples = course.evaluation_examples(pair, per_domain=6 if course.is_tiny() else 1)
messages = [example.message for example in examples[2::3]]  # chat
seen = museum.examine(pair, messages)
compare_guess(guess, seen["A"].accepted_length, digits=1)

# %%
print(figures.symptoms_table(seen))

# %% [markdown]
# What the columns say:
#
# - *tokens a cycle*: the accepted length, bonus included.
# - *first kept*: how often the first draft stands. It depends on no other draft.
# - *none kept*: cycles that gained nothing.
# - *in place*: drafts, refused ones too, that equal the reply at their place.
# - *one late*: drafts that equal the reply one place **later**.
# - *nats*: how surprising the target itself finds the reply, per token. A lossless
#   drafter cannot change it beyond chance: the text is the target's own.
#
# Now look at them one by one. Left: does acceptance start low, or fall? Right: are all
# cycles a little worse, or some of them lost?

# %%
from dsparkref.lab.widgets import explore

letters = list(museum.EXHIBITS)
table = {(name,): (name, seen[name], seen[museum.HEALTHY]) for name in letters}
explore(table, figures.exhibit_picture, {"exhibit": letters}, start=("C",))

# %% [markdown]
# These are the nine causes, in alphabetical order. A's you have just been told; give
# each of the others the number of its cause. Two are hard: their symptom is hardly
# larger than chance on so few prompts. Leave them for the end.

# %%
print(museum.causes())

# %%
diagnosis = dict.fromkeys(letters, ...)
diagnosis["A"] = ...  # the number of its cause
museum.diagnose(diagnosis)

# %% [markdown]
# **In words.** Which of the nine changes what the user reads, and how can one tell
# without opening the code? Why does no accepted length show it?

# %% [markdown] tags=["solution"]
# The one whose drafts were the likeliest tokens but whose law was told soft. Its cycles
# are the longest of all, for likely tokens are kept more often, and its replies are too
# likely: fewer nats than the target's own text has. All the others cost time alone,
# since the verifier throws out what does not fit. A rising accepted length is good news
# only while the law stays the target's (notebook 02).

# %% [markdown]
# The next cell reveals the causes, each with a public report of it. Diagnose first.

# %%
print(museum.reveal())

# %%
if course.is_tiny():
    well = seen[museum.HEALTHY]
    assert seen["A"].one_late > 3 * well.one_late  # right words, wrong places
    assert max(seen[x].conditional[0] for x in "BC") < well.conditional[0]
    assert seen["D"].accepted_length <= 3 < seen["E"].accepted_length
    assert seen["E"].surprise < min(one.surprise for n, one in seen.items() if n != "E")

# %% [markdown]
# Read the pattern, not the number. *One late* gives a wrong slot rule away. A first
# draft that fails while the rest would fit is a fallback or a broken input. A cap on
# the accepted length is a setting. And two exhibits look almost healthy: wrong layers
# and a causal block cost a little everywhere. Only the config shows them, which is one
# more reason to read `describe` before a benchmark.
#
# **Paper** None of the papers lists such faults. They are from the trackers of the
# engines that serve these drafters.
#
# ## A head of your own
#
# Adding a head takes one class: `step` gets the state, the token before and the hidden
# state of the slot, and returns the bias of Eq. 4 with the next state. This one looks
# two tokens back. It is put on a frozen drafter that has no head at all.

# %% tags=["build-it-once"]
from torch import nn

from dsparkref.draft.heads import Head


class TwoBack(Head):
    def __init__(self, vocab_size, rank=32):
        super().__init__()
        self.one = nn.Embedding(vocab_size, rank)  # of the token before
        self.two = nn.Embedding(vocab_size, rank)  # of the one before that
        self.out = nn.Linear(rank, vocab_size, bias=False)

    def step(self, state, prev_tokens, hidden):
        row = self.one(prev_tokens)
        if state is not None:  # at the first draft there is only the anchor
            row = row + self.two(state)
        return self.out(row), prev_tokens


# %%
mine = museum.bare_drafter(pair)
held_out = examples[: 12 if course.is_tiny() else 3]
curves = {"no head": course.overlap_on_text(target, mine, held_out).tolist()}

# %%
mine.head = TwoBack(target.vocab_size).to(target.device)
seeded = torch.Generator(target.device).manual_seed(0)
for parameter in mine.head.parameters():
    nn.init.normal_(parameter, std=0.02, generator=seeded)

# %% [markdown]
# **Predict**: sixty steps, eight replies each, and the backbone stays as it is. The
# overlap of the *last* draft with the target's law will rise by how much?

# %%
guess = ...  # a difference of two shares

# %%
from IPython.utils.capture import capture_output

from dsparkref import train_drafter
from dsparkref.train.corpus import training_examples
from dsparkref.train.data import tokenize_exchanges
from dsparkref.train.train_drafter import Recipe
from dsparkref.train.trainer import TrainConfig

pairs = [{"prompt": e.prompt, "reply": e.reply} for e in training_examples(400, seed=5)]
samples, _ = tokenize_exchanges(target.tokenizer, pairs, max_length=160)
config = TrainConfig(steps=60, batch_size=8, learning_rate=2e-2)
recipe = Recipe(weights=(0.1, 0.9, 0.0))  # no confidence: the backbone is frozen
with capture_output():  # a bar in motion does not belong on a page
    train_drafter(target, mine, samples, config, recipe)

# %%
curves["your head"] = course.overlap_on_text(target, mine, held_out).tolist()
gain = [after - before for before, after in zip(*curves.values(), strict=True)]
if course.is_tiny():
    assert gain[-1] > 0.03 and gain[-1] > gain[0]
compare_guess(guess, gain[-1])

# %%
show(figures.own_head_picture(curves, f"{len(held_out)} held-out replies"))

# %% [markdown]
# The first draft gains next to nothing: what comes before it is context already. The
# last one gains most. Train longer, let the state be more than one token, or let `step`
# read `hidden`: each is a line. A head that earns its keep goes into `draft/heads.py`
# and one row of a table, and has a name of its own from then on.
#
# ## Build it once
#
# The rotary base may stand flat, nested, or at both places. A reader that knows one of
# them falls back to a default without a word. Here is one that knows all, and stops
# where they disagree.

# %% tags=["build-it-once"]
from dsparkref.checkpoints.formats.reading import Keys, rope_theta


def base_of(config):
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = {place["rope_theta"] for place in (config, nested) if "rope_theta" in place}
    if len(found) != 1:
        raise ValueError(f"rope_theta must be given once, got {sorted(found)}")
    return float(found.pop())


configs = [read_config(six[name]) for name in ("deepspec", "modelopt", "z-lab")]
assert [base_of(c) for c in configs] == [rope_theta(Keys(c)) for c in configs]

# %% [markdown]
# ## Exercises
#
# **Warm-up.** A reduced vocabulary: the drafter can draft some tokens only. Row i of
# its LM head stands for token i + `d2t[i]`; `t2d` marks the tokens that can be drafted.
# Return the target's id for each row.

# %% tags=["exercise"]
from dsparkref.lab.exercises.published_checkpoints import EXERCISES


def drafted_tokens(d2t, t2d, vocab_size):
    """d2t [V_draft] offsets, t2d [V] bool. Return [V_draft] ids."""
    return ...


EXERCISES["drafted_tokens"].check(drafted_tokens)

# %% [markdown]
# **Core.** What does one step of a head cost? Count multiply-adds of its matrices, and
# the numbers it carries on; `spec` has `head`, `rank`, `hidden_size`, `vocab_size`,
# `gru_size`, `inner_size`. Notebook 06 has the equations.


# %% tags=["exercise"]
def step_cost(spec):
    """Return two integers: multiply-adds of a step, numbers in the state."""
    return ...


EXERCISES["step_cost"].check(step_cost)

# %% [markdown]
# **Stretch.** Which layout is it? `config` is a dict, `names` the names of the tensors.
# Return deepspec, z-lab, domino, specforge, modelopt or speculators.


# %% tags=["exercise"]
def layout_of(config, names):
    """Return the layout's name."""
    return ...


EXERCISES["layout_of"].check(layout_of)

# %% [markdown]
# ## Recap
#
# - Config and headers tell what a drafter is; a folder that leaves it open must not be
#   guessed at.
# - Layouts differ in spelling, in defaults, and in what slot k stands for. The weights
#   behind them are the same.
# - Most faults cost speed and nothing else, so nothing stops. One changed the text, and
#   made the speed look better.
# - A head is one class with one method. Yours is as good as its numbers.
#
# **Next**: a drafter of your own. `python -m dsparkref train drafter --head rnn --out
# my-rnn`, then `evaluate`, `calibrate` and `inspect`: you know what each of them says.
