"""The synthetic corpus of the tiny pair: math, code and chat, and its tokenizer.

Three domains whose uncertainty rises like that of the papers' benchmarks. *Math* is
nearly certain once the problem is read, *code* leaves the style open, *chat* has
several good words at every turn. A drafter's acceptance falls in the same order, which
is what the notebooks show. Everything is made from a seed; nothing is downloaded.
"""

import hashlib
import random
from dataclasses import dataclass

from dsparkref.shapes import problem
from dsparkref.train.corpus import arithmetic, chat, coding
from dsparkref.train.corpus.tokenizer import build_tokenizer, memory_positions

__all__ = [
    "DOMAINS", "Example", "answer_is_right", "build_tokenizer", "evaluation_examples",
    "generate_examples", "is_held_out", "memory_positions", "training_examples",
]  # fmt: skip

SOURCES = {"math": arithmetic, "code": coding, "chat": chat}
DOMAINS = tuple(SOURCES)

# One prompt in HELD_OUT is kept for evaluation.
HELD_OUT = 8
EVALUATION_SEED = 2026

# How often a domain is drawn, so that each gives about a third of the tokens.
DRAW_WEIGHTS = {"math": 0.29, "code": 0.42, "chat": 0.29}


@dataclass(frozen=True)
class Example:
    """One exchange, and what is needed to check an answer to its prompt."""

    domain: str  # one of DOMAINS
    prompt: str  # the user's message
    reply: str  # one right reply among many
    check: dict  # math: answer; code: calls; chat: topic, memory_pairs


def is_held_out(prompt: str) -> bool:
    """Whether a prompt belongs to evaluation; a hash of its text alone decides.

    >>> sum(is_held_out(f"prompt {i}") for i in range(8000)) // 100
    10
    """
    digest = hashlib.sha256(prompt.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT == 0


def check_domain(domain: str) -> None:
    """Raise ValueError unless the domain is one of DOMAINS."""
    if domain not in SOURCES:
        rule, expected = "name a part of the corpus", f"one of {DOMAINS}"
        raise problem("domain", rule, expected, repr(domain))


def one_example(domain: str, rng: random.Random, held_out: bool) -> Example:
    """Draw until the prompt falls on the wanted side of the split."""
    while True:
        prompt, reply, check = SOURCES[domain].generate(rng)
        if is_held_out(prompt) == held_out:
            return Example(domain, prompt, reply, check)


def generate_examples(
    domain: str, count: int, *, seed: int, start: int = 0, held_out: bool = False
) -> list[Example]:
    """Examples number `start` to `start + count - 1` of one domain.

    Each has a random stream of its own, so a longer list begins with the shorter one.
    `held_out` picks the side of the split: prompts for evaluation, or for training.

    >>> [example] = generate_examples("math", 1, seed=0)
    >>> answer_is_right(example.check, "math", example.reply)
    True
    >>> generate_examples("math", 3, seed=0)[0] == example
    True
    """
    check_domain(domain)
    return [
        one_example(domain, random.Random(f"{seed} {domain} {index}"), held_out)
        for index in range(start, start + count)
    ]


def evaluation_examples(domain: str, count: int = 120) -> list[Example]:
    """The evaluation set of a domain: different prompts, none of them ever trained on.

    >>> len({example.prompt for example in evaluation_examples("chat", 20)})
    20
    """
    check_domain(domain)
    rng = random.Random(f"{EVALUATION_SEED} {domain}")
    chosen: dict[str, Example] = {}
    for _ in range(10 * count):
        if len(chosen) == count:
            break
        example = one_example(domain, rng, held_out=True)
        chosen.setdefault(example.prompt, example)
    else:
        expected = f"at most {len(chosen)} for {domain!r}"
        raise problem("count", "leave enough different prompts", expected, count)
    return list(chosen.values())


def training_examples(count: int, seed: int) -> list[Example]:
    """A shuffled mixture for training: about a third of the tokens from each domain.

    >>> sorted({example.domain for example in training_examples(50, seed=0)})
    ['chat', 'code', 'math']
    """
    rng = random.Random(f"{seed} mixture")
    domains = rng.choices(DOMAINS, [DRAW_WEIGHTS[name] for name in DOMAINS], k=count)
    return [one_example(domain, rng, held_out=False) for domain in domains]


def answer_is_right(example_check: dict, domain: str, reply: str) -> bool:
    """Whether a reply answers its prompt, by the example's own check.

    >>> answer_is_right({"answer": 7}, "math", "So 3 + 4 = 7. That makes 7 pens.")
    True
    """
    check_domain(domain)
    return SOURCES[domain].answer_is_right(example_check, reply)
