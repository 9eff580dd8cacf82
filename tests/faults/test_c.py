"""Section C of tests/FAULTS.md: what the tests of each part do not show already.

Where those hold one layout or one function, these hold the kind: every layout of the
table, every public name.
"""

import inspect
import pkgutil
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from layout_models import CONFIGS, write_as
from tiny_models import GOLDEN, greedy_reply, random_ids, tiny_drafter, tiny_target

import dsparkref
from dsparkref import (
    FixedLength,
    Target,
    accept_rate,
    autoregressive,
    generate,
    load_drafter,
    load_target,
)
from dsparkref.analysis.exact import emitted_token_law
from dsparkref.draft.vocabulary import DraftVocabulary
from dsparkref.train import corpus
from dsparkref.train.data import tokenize_exchanges
from dsparkref.train.train_target import save_target, train_target
from dsparkref.train.trainer import TrainConfig
from tests.tiny_pair import random_target

# a head that each layout can hold
HEADS = {layout: "markov" for layout in CONFIGS} | {"z-lab": "dflash"}
HEADS |= {"domino": "domino"}
SLOT_0 = {"z-lab": False}
IDS = {"speculators": "aux_hidden_state_layer_ids"}

each_layout = pytest.mark.parametrize("layout", CONFIGS)


def drafter_of(layout, **changes):
    head = HEADS[layout]
    changes |= {"anchor_predicts": SLOT_0.get(layout, True)}
    if head == "markov":
        changes |= {"confidence": True, "confidence_input": "hidden+head"}
    else:
        changes |= {"confidence": False, "confidence_input": "hidden"}
    target = tiny_target()
    return target, tiny_drafter(target, head, **changes)


def places(config):
    """A config, and the objects inside it."""
    inside = [value for value in config.values() if isinstance(value, dict)]
    return [config, *inside]


# --- C3, C5, C7 ----------------------------------------------------------------------


@each_layout
def test_layer_ids_are_never_guessed(layout, tmp_path):
    """C3, in every layout."""
    target, drafter = drafter_of(layout)
    key = IDS.get(layout, "target_layer_ids")

    def forget(config):
        for place in places(config):
            place.pop(key, None)

    folder = write_as(layout, drafter, tmp_path / "d", config=forget)
    with pytest.raises(ValueError, match=rf"{key} must be given .* cannot be guessed"):
        load_drafter(folder, target, layout=layout)


@each_layout
def test_one_layer_more_names_both_widths(layout, tmp_path):
    target, drafter = drafter_of(layout)
    key = IDS.get(layout, "target_layer_ids")

    def another(config):
        for place in places(config):
            if key in place:
                place[key] = [*place[key], 2]

    folder = write_as(layout, drafter, tmp_path / "d", config=another)
    pattern = r"fc.weight must match the config by shape: .*\[24, 96\], got \[24, 72\]"
    with pytest.raises(ValueError, match=pattern):
        load_drafter(folder, target)


@pytest.mark.parametrize(
    ("layout", "size", "drafts"), [("z-lab", 16, 15), ("deepspec", 7, 7)]
)
def test_published_block_sizes(layout, size, drafts, tmp_path):
    """C5: DFlash's 16 slots are 15 drafts, DSpark's 7 are 7; both say so in words."""
    target, drafter = drafter_of(layout, block_size=drafts)
    sizes = []
    folder = write_as(
        layout, drafter, tmp_path / "d", config=lambda c: sizes.append(c["block_size"])
    )
    assert sizes == [size]
    loaded = load_drafter(folder, target)
    assert loaded.block_size == drafts
    rows = torch.zeros(1, 3, loaded.spec.feature_size)
    assert loaded.propose(rows, torch.tensor([3])).tokens.shape == (1, drafts)
    said = dsparkref.describe(folder)
    assert f"layout: {layout}" in said and f"{drafts} drafts per cycle" in said
    slots = "slot 0 dropped" if layout == "z-lab" else "slot k predicts anchor+k+1"
    assert slots in said


def test_qwen3s_mask_token_lies_in_the_padding():
    """C7: 151,669 of 151,936 rows is no word of the tokenizer, and right."""
    spec = tiny_drafter(tiny_target()).spec
    sizes = {"vocab_size": 151_936, "mask_token_id": 151_669}
    assert replace(spec, **sizes).mask_token_id == 151_669
    with pytest.raises(ValueError, match="151936 rows, got 151936"):
        replace(spec, vocab_size=151_936, mask_token_id=151_936)


# --- C8, C10 -------------------------------------------------------------------------


@pytest.mark.parametrize("drafted", [151_936, 152_320])
def test_padded_vocabularies_are_told_apart(drafted, no_shape_checks):
    """C8: both sizes are named; which rows are padding nobody can know."""
    p_target, p_draft = torch.full((152_064,), 1 / 152_064), torch.zeros(drafted)
    p_draft[0] = 1.0
    with pytest.raises(ValueError, match=f"V = 152064, got V = {drafted}"):
        accept_rate(p_target, p_draft)


def test_a_reduced_vocabulary_leaves_the_law_alone():
    """C10: V_t 10, V_d 4, the map {1, 3, 5, 9}; added up, so exact."""
    vocabulary = DraftVocabulary(10, 4)
    vocabulary.ids.copy_(torch.tensor([1, 3, 5, 9]))
    q = vocabulary.spread(torch.tensor([0.4, 0.3, 0.2, 0.1]).double().log()).softmax(-1)
    assert q.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert q.nonzero().flatten().tolist() == [1, 3, 5, 9]
    p = torch.full((10,), 0.1, dtype=torch.float64)
    assert emitted_token_law(p, q).allclose(p, atol=1e-12)  # every id, 0 included


@pytest.mark.parametrize("head", ["markov", "gated", "rnn"])
def test_heads_of_a_reduced_vocabulary_read_target_ids(head):
    """C10: the lookup of the token before is by the target's ids, as drawn."""
    target = tiny_target()
    drafter = tiny_drafter(target, head, draft_vocab_size=4, owns_lm_head=True)
    drafter.vocabulary.ids.copy_(torch.tensor([1, 3, 5, 9]))
    read, step = [], drafter.head.step

    def watched(state, prev_tokens, hidden):
        read.append(prev_tokens.item())
        return step(state, prev_tokens, hidden)

    drafter.head.step = watched
    rows = torch.zeros(1, 3, drafter.spec.feature_size)
    proposal = drafter.propose(rows, torch.tensor([17]), temperature=1.0, generator=0)
    drawn = proposal.tokens[0].tolist()
    assert set(drawn) <= {1, 3, 5, 9}
    assert read == [17, *drawn[:-1]]


# --- C11, C12, C14 -------------------------------------------------------------------


@each_layout
@pytest.mark.parametrize("fault", ["prefix", "lost", "surplus"])
def test_no_name_is_skipped_in_any_layout(layout, fault, tmp_path):
    """C11: it loads fully, or names what is missing and what nobody asked for."""
    target, drafter = drafter_of(layout)

    def edit(tensors):
        if fault == "prefix":
            for name in list(tensors):
                tensors[f"model.{name}"] = tensors.pop(name)
        elif fault == "lost":
            del tensors["norm.weight"]
        else:
            tensors["surprise"] = torch.ones(1)

    folder = write_as(layout, drafter, tmp_path / "d", tensors=edit)
    with pytest.raises(ValueError, match=r"missing: .*unexpected: ") as caught:
        load_drafter(folder, target, layout=layout)
    said = {"prefix": "model.norm.weight", "lost": "missing: norm.weight;"}
    assert said.get(fault, "unexpected: surprise") in str(caught.value)


def test_what_the_file_lacks_is_the_targets_own():
    """C12: the same storage, and said in words; never a random LM head."""
    folder = GOLDEN / "zlab_dflash"
    target = load_target(folder / "target")
    drafter = load_drafter(folder / "drafter", target)
    for ours, theirs in zip(
        drafter.tables(), (target.embedding, target.lm_head), strict=True
    ):
        assert ours.data_ptr() == theirs.data_ptr()
    assert "borrowed from the target: embedding, LM head" in drafter.describe()


@pytest.mark.parametrize("tied", [True, False])
def test_a_trained_target_says_the_same_when_it_is_read_back(tied, tmp_path):
    """C14: five steps of training, saved, loaded: the same 32 tokens."""
    tokenizer = corpus.build_tokenizer(corpus.training_examples(400, seed=0))
    target = random_target(tokenizer)
    if not tied:
        config = type(target.model.config).from_dict(
            target.model.config.to_dict() | {"tie_word_embeddings": False}
        )
        torch.manual_seed(0)
        target = Target(type(target.model)(config), tokenizer)
    rows = [
        {"prompt": x.prompt, "reply": x.reply} for x in corpus.training_examples(12, 1)
    ]
    samples, _ = tokenize_exchanges(tokenizer, rows, max_length=160)
    train_target(
        target, samples, TrainConfig(steps=5, batch_size=4, learning_rate=1e-2)
    )
    save_target(target, tmp_path / "t", torch.float32)
    loaded = load_target(tmp_path / "t")
    prompt = target.encode("Hello")
    options = {"max_new_tokens": 32, "stop_token_ids": []}
    texts = [autoregressive(t, prompt, **options).tokens for t in (target, loaded)]
    assert texts[0] == texts[1] and len(texts[0]) == 32
    assert loaded.lm_head.equal(loaded.embedding) == tied


# --- C18 -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", dsparkref.__all__)
def test_a_misspelt_keyword_is_refused(name, no_shape_checks):
    with pytest.raises(TypeError, match="shift_targts"):
        getattr(dsparkref, name)(shift_targts=True)


def test_no_public_function_swallows_keywords():
    """C18 as a kind: those that take any are given sizes, of a model or by letter."""
    swallow = set()
    for found in pkgutil.walk_packages(dsparkref.__path__, "dsparkref."):
        if found.name == "dsparkref.__main__" or ".lab" in found.name:
            continue
        module = import_module(found.name)
        for name, value in vars(module).items():
            own = getattr(value, "__module__", "") == found.name
            if own and inspect.isfunction(value) and not name.startswith("_"):
                kinds = {x.kind for x in inspect.signature(value).parameters.values()}
                if inspect.Parameter.VAR_KEYWORD in kinds:
                    swallow.add(name)
    assert swallow == {"new_target", "check_shape", "check_anchors"}


# --- C19, C20, C21 -------------------------------------------------------------------


def test_lossless_in_every_prompt_style():
    """C19: raw text, the chat template with thinking on, and off."""
    pair = dsparkref.load_pair("tiny")
    tokenizer, text = pair.target.tokenizer, "I start yoga today. Any tips?"
    chat = [{"role": "user", "content": text}]
    styles = [
        tokenizer(text)["input_ids"],
        *(
            tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, enable_thinking=on, return_dict=False
            )
            for on in (True, False)
        ),
    ]
    assert styles[2] == pair.target.encode(text)
    for prompt in styles:
        reply = generate(pair.target, pair.drafter, prompt, max_new_tokens=32)
        plain = autoregressive(pair.target, prompt, max_new_tokens=32)
        assert reply.tokens == plain.tokens


@pytest.mark.parametrize(("drafts", "slot_0"), [(7, True), (15, False)])
def test_every_shorter_draft_is_greedy_and_a_longer_one_is_refused(drafts, slot_0):
    """C20: DSpark's 7 and DFlash's 16 (15 drafts), each verified up to every K."""
    target = tiny_target()
    head = "markov" if slot_0 else "dflash"
    drafter = tiny_drafter(target, head, block_size=drafts, anchor_predicts=slot_0)
    prompt = random_ids(6).tolist()
    expected = greedy_reply(target, prompt, 8)
    for k in range(1, drafts + 1):
        policy = FixedLength(k)
        reply = generate(target, drafter, prompt, max_new_tokens=8, policy=policy)
        assert reply.tokens == expected
        assert {cycle.verify_len for cycle in reply.cycles} == {k}
    beyond = FixedLength(drafts + 1)
    with pytest.raises(ValueError, match=f"<= {drafts}, got {drafts + 1}"):
        generate(target, drafter, prompt, max_new_tokens=8, policy=beyond)


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_dominos_gru_reads_every_token_from_the_anchor_on(prefix):
    """C21: at draft 1 it has read the pending token and draft 0, in this order."""
    target = tiny_target()
    drafter = tiny_drafter(target, "domino", pure_draft_prefix_len=prefix)
    read = []
    drafter.head.gru.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    rows = torch.ones(1, 3, drafter.spec.feature_size)
    proposal = drafter.propose(rows, torch.tensor([17]), temperature=1.0, generator=0)
    tokens = [17, *proposal.tokens[0].tolist()]
    expected = target.embedding[torch.tensor(tokens[: drafter.block_size])]
    assert torch.cat(read).equal(expected)
    corrected = (proposal.draft_logits != proposal.base_logits).any(dim=-1)[0]
    assert corrected.tolist() == [k >= prefix for k in range(drafter.block_size)]
