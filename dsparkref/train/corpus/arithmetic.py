"""Math: word problems worked column by column, with the carry written out.

A small model cannot add two-digit numbers in one glance, but it can add digits. So
every reply spells the sum out, ones first, then tens, and each step needs only what
stands right before it. Wording varies a little; the answer never does.
"""

import random
import re

NAMES = (
    ("Mia", "her"), ("Tom", "him"), ("Ana", "her"), ("Ben", "him"),
    ("Zoe", "her"), ("Leo", "him"), ("Eva", "her"), ("Sam", "him"),
)  # fmt: skip
OBJECTS = ("apples", "books", "coins", "shells", "stamps", "cards", "pens", "cups")
HOLDERS = ("boxes", "bags", "jars", "rows")

ADD_PROMPTS = (
    "{name} has {a} {things}. {friend} gives {them} {b} more. "
    "How many {things} does {name} have now?",
    "{name} has {a} {things} and {friend} has {b}. How many {things} do they have?",
    "There are {a} {things} here. {name} brings {b} more. How many {things} are here?",
)
TAKE_PROMPTS = (
    "{name} has {a} {things}. {friend} takes {b} of them. "
    "How many {things} does {name} have left?",
    "{name} has {a} {things} and sells {b}. How many {things} are left?",
    "There are {a} {things} here. {name} takes {b}. How many {things} are left?",
)
TIMES_PROMPTS = (
    "{name} has {a} {holders} with {b} {things} each. How many {things} are there?",
    "There are {a} {holders} here, each with {b} {things}. "
    "How many {things} can {name} count?",
)
TIMES_ADD_PROMPTS = (
    "{name} has {a} {holders} with {b} {things} each. {friend} brings {c} more. "
    "How many {things} are there?",
    "{name} has {c} {things} and {a} {holders} with {b} {things} each. "
    "How many {things} are there?",
)

ADD_STARTS = (
    "We add {a} and {b}.",
    "In all it is {a} + {b}.",
    "More {things} come, so we add.",
)
TAKE_STARTS = (
    "We take {b} from {a}.",
    "What is left is {a} - {b}.",
    "Some {things} go, so we take away.",
)
TIMES_STARTS = (
    "Each of the {a} {holders} has {b} {things}.",
    "We count {a} {holders} of {b}.",
    "All the {holders} hold {b}.",
)
ENDINGS = (
    "The answer is {answer} {things}.",
    "So there are {answer} {things}.",
    "That makes {answer} {things}.",
)


def add_steps(a: int, b: int) -> str:
    """The sum of two numbers below 100, digit by digit.

    >>> add_steps(27, 15)
    'Ones: 7 + 5 = 12, write 2, carry 1. Tens: 2 + 1 + 1 = 4. So 27 + 15 = 42.'
    >>> add_steps(20, 6)
    'Ones: 0 + 6 = 6. Tens: 2 + 0 = 2. So 20 + 6 = 26.'
    """
    carry, ones = divmod(a % 10 + b % 10, 10)
    note = f", write {ones}, carry 1" if carry else ""
    more = " + 1" if carry else ""
    tens = a // 10 + b // 10 + carry
    return (
        f"Ones: {a % 10} + {b % 10} = {a % 10 + b % 10}{note}. "
        f"Tens: {a // 10} + {b // 10}{more} = {tens}. So {a} + {b} = {a + b}."
    )


def take_steps(a: int, b: int) -> str:
    """The difference of two numbers below 100, digit by digit.

    >>> take_steps(42, 15)
    'Ones: borrow 1, 12 - 5 = 7. Tens: 4 - 1 - 1 = 2. So 42 - 15 = 27.'
    """
    borrow = a % 10 < b % 10
    ones = a % 10 + 10 * borrow
    note, less = ("borrow 1, ", " - 1") if borrow else ("", "")
    tens = a // 10 - borrow - b // 10
    return (
        f"Ones: {note}{ones} - {b % 10} = {ones - b % 10}. "
        f"Tens: {a // 10}{less} - {b // 10} = {tens}. So {a} - {b} = {a - b}."
    )


def draw_numbers(kind: str, rng: random.Random) -> tuple[dict, str, int]:
    """Numbers for one problem: what the prompt needs, the worked steps, the answer."""
    if kind == "add":
        a = rng.randint(11, 79)
        b = rng.randint(11, 90 - a if a < 70 else 20)
        return {"a": a, "b": b}, add_steps(a, b), a + b
    if kind == "take":
        a = rng.randint(31, 99)
        b = rng.randint(11, a - 10)
        return {"a": a, "b": b}, take_steps(a, b), a - b
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    product = f"{a} x {b} = {a * b}."
    if kind == "times":
        return {"a": a, "b": b}, product, a * b
    c = rng.randint(2, 9)
    return {"a": a, "b": b, "c": c}, f"{product} {add_steps(a * b, c)}", a * b + c


KINDS = {
    "add": (ADD_PROMPTS, ADD_STARTS),
    "take": (TAKE_PROMPTS, TAKE_STARTS),
    "times": (TIMES_PROMPTS, TIMES_STARTS),
    "times and add": (TIMES_ADD_PROMPTS, TIMES_STARTS),
}


def generate(rng: random.Random) -> tuple[str, str, dict]:
    """One word problem: prompt, worked reply, check.

    >>> prompt, reply, check = generate(random.Random(0))
    >>> answer_is_right(check, reply)
    True
    """
    kind = rng.choices(tuple(KINDS), weights=(3, 3, 1, 3))[0]
    prompts, starts = KINDS[kind]
    numbers, steps, answer = draw_numbers(kind, rng)
    (name, them), (friend, _) = rng.sample(NAMES, 2)
    words = {
        "name": name, "them": them, "friend": friend, "things": rng.choice(OBJECTS),
        "holders": rng.choice(HOLDERS), "answer": answer, **numbers,
    }  # fmt: skip
    parts = (rng.choice(starts), steps, rng.choice(ENDINGS))
    reply = " ".join(part.format(**words) for part in parts)
    return rng.choice(prompts).format(**words), reply, {"answer": answer}


def answer_is_right(check: dict, reply: str) -> bool:
    """Whether the reply's closing sentence states the right number.

    >>> answer_is_right({"answer": 42}, "So 27 + 15 = 42. The answer is 42 apples.")
    True
    >>> answer_is_right({"answer": 42}, "So 27 + 15 = 42. The answer is 24 apples.")
    False
    """
    last_sentence = re.search(r"(\d+) [a-z]+\.$", reply.strip())
    return last_sentence is not None and int(last_sentence[1]) == check["answer"]
