"""The synthetic corpus: right answers, a strict split, places that need memory."""

import json
import warnings
from collections import Counter, defaultdict
from dataclasses import asdict

import pytest

from dsparkref.train import corpus
from dsparkref.train.corpus import chat, phrases, sandbox
from dsparkref.train.corpus.tokenizer import whole_words


@pytest.fixture(scope="module")
def examples():
    return corpus.training_examples(2000, seed=0)


@pytest.fixture(scope="module")
def tokenizer(examples):
    return corpus.build_tokenizer(examples)


def of_domain(examples, domain):
    return [example for example in examples if example.domain == domain]


# ---------------------------------------------------------------- examples


def test_every_reply_passes_its_own_check(examples):
    for example in examples:
        assert corpus.answer_is_right(example.check, example.domain, example.reply)


def test_every_style_of_every_function_is_right():
    """Often enough drawn, each body of each task turns up; none may be wrong."""
    for example in corpus.generate_examples("code", 1000, seed=1):
        assert corpus.answer_is_right(example.check, "code", example.reply), example


@pytest.mark.parametrize("domain", corpus.DOMAINS)
def test_examples_follow_from_their_arguments_alone(domain):
    first = corpus.generate_examples(domain, 20, seed=3)
    assert first == corpus.generate_examples(domain, 20, seed=3)
    assert first[5:] == corpus.generate_examples(domain, 15, seed=3, start=5)
    assert first != corpus.generate_examples(domain, 20, seed=4)


def test_examples_survive_json(examples):
    for example in examples[:200]:
        assert corpus.Example(**json.loads(json.dumps(asdict(example)))) == example


def test_unknown_domain_is_refused():
    with pytest.raises(ValueError, match="domain must name a part of the corpus"):
        corpus.generate_examples("poetry", 1, seed=0)


# ---------------------------------------------------------------- split


@pytest.mark.parametrize("domain", corpus.DOMAINS)
def test_evaluation_prompts_are_never_trained_on(domain):
    held_out = {example.prompt for example in corpus.evaluation_examples(domain)}
    assert len(held_out) == 120
    trained = corpus.generate_examples(domain, 2000, seed=0)
    assert held_out.isdisjoint(example.prompt for example in trained)
    assert all(map(corpus.is_held_out, held_out))


def test_mixture_never_holds_an_evaluation_prompt(examples):
    assert not any(corpus.is_held_out(example.prompt) for example in examples)


def test_more_evaluation_prompts_than_exist_are_refused(monkeypatch):
    monkeypatch.setattr(corpus, "is_held_out", lambda prompt: True)
    monkeypatch.setattr(chat, "generate", lambda rng: (rng.choice("ab"), "", {}))
    assert len(corpus.evaluation_examples("chat", 2)) == 2
    with pytest.raises(ValueError, match="count must leave enough different prompts"):
        corpus.evaluation_examples("chat", 3)


# ---------------------------------------------------------------- tokenizer


def test_mixture_gives_each_domain_a_third_of_the_tokens(examples, tokenizer):
    tokens = Counter()
    for example in examples:
        tokens[example.domain] += conversation_length(example, tokenizer)
    for domain in corpus.DOMAINS:
        assert 0.30 < tokens[domain] / tokens.total() < 0.37


def conversation_length(example, tokenizer):
    messages = [
        {"role": "user", "content": example.prompt},
        {"role": "assistant", "content": example.reply},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return len(tokenizer.encode(text))


def test_every_conversation_fits_the_context(examples, tokenizer):
    assert max(conversation_length(example, tokenizer) for example in examples) <= 160


def test_tokenizer_loses_nothing(examples, tokenizer):
    assert len(tokenizer) == 1024
    for example in examples:
        assert tokenizer.decode(tokenizer.encode(example.reply)) == example.reply
    for text in ("Größe, 東京 and 🙂", "  two  spaces\n\n\tand tabs ", "x==1"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_stand_alone(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("1234")] == list("1234")
    with_digit = [t for t in tokenizer.get_vocab() if any(c in "0123456789" for c in t)]
    assert sorted(with_digit) == list("0123456789")


def test_chat_words_are_single_tokens(tokenizer):
    for word in whole_words():
        assert len(tokenizer.encode(word)) == 1, word


def test_template_is_qwens(tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    ids = tokenizer.encode(text)
    assert ids[0] == start and end in ids


def test_tokenizer_comes_back_from_a_folder(examples, tokenizer, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
    for name in ("eos_token", "pad_token", "mask_token", "mask_token_id"):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert (again.eos_token, again.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert again.chat_template == tokenizer.chat_template
    for example in examples[:300]:
        assert again.encode(example.reply) == tokenizer.encode(example.reply)


def test_same_examples_give_the_same_tokenizer(examples, tokenizer):
    again = corpus.build_tokenizer(examples)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_too_small_a_vocabulary_is_refused(examples):
    with pytest.raises(ValueError, match="vocab_size must make each chat word one"):
        corpus.build_tokenizer(examples, vocab_size=400)


# ---------------------------------------------------------------- memory


def test_two_back_decides_and_one_back_does_not():
    """Around each shared word: five alternatives or more, no ending used twice."""
    groups = {**phrases.MEMORY_PHRASES, **phrases.JOBS}
    for pairs in groups.values():
        firsts, lasts = zip(*pairs, strict=True)
        assert len(pairs) >= 5
        assert len(set(firsts)) == len(set(lasts)) == len(pairs)
    verbs = [verb for jobs in phrases.JOBS.values() for verb, _ in jobs]
    assert len(set(verbs)) == len(verbs)


def test_memory_phrases_are_an_even_toss(examples):
    seen = defaultdict(Counter)
    for example in of_domain(examples, "chat"):
        for first, shared, _ in example.check["memory_pairs"]:
            seen[shared][first] += 1
    for shared, pairs in phrases.MEMORY_PHRASES.items():
        counts = [seen[shared][first] for first, _ in pairs]
        assert max(counts) < 2 * min(counts)


def test_memory_positions_name_the_deciding_places(tokenizer):
    text = "Yes, of course! Keep it slow and steady, day by day."
    places = corpus.memory_positions(text, tokenizer)
    ids = tokenizer.encode(text)
    assert [tokenizer.decode([ids[p]]) for p in places] == [" of", " steady", " day"]
    assert corpus.memory_positions("So 2 + 2 = 4.", tokenizer) == []


def test_a_reply_has_several_memory_places_all_over(examples, tokenizer):
    replies = [example.reply for example in of_domain(examples, "chat")]
    places = [corpus.memory_positions(reply, tokenizer) for reply in replies]
    assert min(map(len, places)) >= 3
    assert len({place for reply in places for place in reply}) > 35
    assert all(
        len(found) == len(chat.memory_pairs(reply))
        for found, reply in zip(places, replies, strict=True)
    )


# ---------------------------------------------------------------- checks


@pytest.mark.parametrize(
    "reply",
    [
        "So 20 + 22 = 42.",
        "The answer is 24 apples.",
        "The answer is 42 apples",
        "",
    ],
)
def test_math_check_refuses(reply):
    assert not corpus.answer_is_right({"answer": 42}, "math", reply)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def f(x):\n    return x +",
        "def f(x):\n    while True:\n        x += 1",
        "import os\ndef f(x):\n    return x",
        "def f(x):\n    return f(x)",
        "def f(x):\n    return x.__class__",
        "def f(x):\n    return open('/etc/hosts')",
        "def f(x):\n    return x ** x",
        "def f(x):\n    for i in x:\n        for j in x:\n            x.append(i)",
        "def f(x):\n    return y",
        "def g(x):\n    return x",
    ],
)
def test_code_check_refuses(source):
    assert not sandbox.satisfies(source, [["f(1)", 1]])


def test_a_loop_over_a_growing_list_ends():
    source = "def f(x):\n    for i in x:\n        x.append(i)\n    return len(x)"
    assert sandbox.satisfies(source, [["f([1, 2])", 4]])


def test_true_is_not_one():
    assert not sandbox.satisfies("def f(x):\n    return x == 1", [["f(1)", 1]])


@pytest.mark.parametrize(
    "change",
    [
        ("of course", "of problem"),
        ("slow and steady", "slow and sweet"),
        ("Keep it", "Keep it it"),
        ("steady", "swiftly"),
        ("Good luck!", "Good luck"),
        ("Yes,", "No,"),
        ("red little chair", "red little lamp"),
    ],
)
def test_chat_check_refuses(change):
    reply = (
        "Yes, of course! Keep it slow and steady, day by day. "
        "Put your red little chair close to your blue own coat. Good luck!"
    )
    check = {"topic": "painting"}
    assert corpus.answer_is_right(check, "chat", reply)
    assert not corpus.answer_is_right(check, "chat", reply.replace(*change))
