"""The corpus's tokenizer: byte-level BPE, Qwen's way of splitting, Qwen's chat markers.

Two wishes go beyond plain BPE. Digits always stand alone, as in Qwen, so that a model
can add column by column. And every word of a chat reply is one token, so that "two
tokens back" means what it says; such words are shown to the trainer more often.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dsparkref.shapes import problem
from dsparkref.train.corpus.phrases import MEMORY_TRIPLES, OPENINGS, VOCABULARY

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")

# Qwen's split: a word with the space before it, single digits, marks, line ends.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{{ message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Each chat word is added to the text the merges are learned from, once per so many
# examples.
EXAMPLES_PER_WORD = 12


def whole_words() -> list[str]:
    """The words that must be single tokens, with the space they carry in a reply.

    >>> whole_words()[:3], whole_words()[-3:]
    ([' Better', ' Chess', ' Cooking'], ['Sure', 'Well', 'Yes'])
    """
    words = filter(str.isalpha, VOCABULARY)
    return sorted(word if word in OPENINGS else f" {word}" for word in words)


def build_tokenizer(
    examples: Iterable, vocab_size: int = 1024
) -> PreTrainedTokenizerFast:
    """A tokenizer whose merges are learned from the examples.

    `vocab_size` counts everything: 4 special tokens, 256 bytes, the merges. The mask
    token is an ordinary id that no text uses. Raises ValueError where the words of
    chat replies do not fit.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for example in examples for text in (example.prompt, example.reply)]
    texts += whole_words() * (len(texts) // (2 * EXAMPLES_PER_WORD) + 1)
    tokenizer.train_from_iterator(texts, trainer)
    split = [w for w in whole_words() if len(tokenizer.encode(w).ids) > 1]
    if split:
        rule, expected = "make each chat word one token", f"more than {vocab_size}"
        got = f"{len(split)} split words such as {split[0]!r}"
        raise problem("vocab_size", rule, expected, got, "1024 is enough.")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        mask_token="<|mask|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def memory_positions(text: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The places among a reply's tokens that the token two back decides.

    In "slow and steady" it is the place of "steady": "and" before it is shared by six
    phrases, so only "slow" tells. Positions count from 0 in `tokenizer.encode(text)`.
    """
    ids = tokenizer.encode(text, add_special_tokens=False)
    words = [tokenizer.decode([token]).strip() for token in ids]
    triples = enumerate(zip(words, words[1:], words[2:], strict=False), start=2)
    return [place for place, triple in triples if triple in MEMORY_TRIPLES]
