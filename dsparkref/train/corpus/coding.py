"""Code: small Python functions that parse and do what the prompt asks.

The task is fixed by the prompt; the style is free (docstring or not, type hints or not,
names of local variables, loop or comprehension, early return or expression), so a reply
is less certain than a sum and more certain than a chat.
"""

import random

from dsparkref.train.corpus.sandbox import satisfies
from dsparkref.train.corpus.tasks import INPUTS, TASKS, Task

LOCALS = ("result", "total", "out", "answer")
LOOPS = ("i", "item", "v")
DOCS = (
    "",
    '"""{Asks}."""\n',
    '"""This function {asks}."""\n',
    "# It {asks}.\n",
)
PROMPTS = (
    "Write a function {name}({args}) that {asks}.",
    "I need a Python function {name}({args}). It {asks}.",
    "Please define {name}({args}) so that it {asks}.",
)


def write_function(task: Task, slots: dict, rng: random.Random) -> str:
    """The function's text, in one of its right styles."""
    args, result = slots["args"], ""
    if rng.random() < 0.5:
        hint = INPUTS[task.inputs].hint
        args = ", ".join(f"{arg}: {hint}" for arg in args.split(", "))
        result = f" -> {task.returns}"
    local = {"r": rng.choice(LOCALS), "i": rng.choice(LOOPS)}
    text = rng.choice(DOCS) + rng.choice(task.bodies)
    lines = text.format(**slots, **local).split("\n")
    head = f"def {slots['name']}({args}){result}:"
    return "\n".join((head, *(f"    {line}" for line in lines)))


def generate(rng: random.Random) -> tuple[str, str, dict]:
    """One request for a function: prompt, reply, check.

    >>> prompt, reply, check = generate(random.Random(0))
    >>> answer_is_right(check, reply)
    True
    """
    task = rng.choice(TASKS)
    inputs = INPUTS[task.inputs]
    args, k, m = rng.choice(inputs.names), rng.randint(2, 9), rng.randint(2, 9)
    x, _, y = args.partition(", ")
    slots = {"x": x, "y": y, "k": k, "m": m, "args": args}
    asks = task.asks.format(**slots)
    slots |= {"name": rng.choice(task.names), "asks": asks, "Asks": asks.capitalize()}
    prompt = rng.choice(PROMPTS).format(**slots)
    reply = write_function(task, slots, rng)
    calls = []
    for values in (inputs.draw(rng) for _ in range(4)):
        call = f"{slots['name']}({', '.join(map(repr, values))})"
        calls.append([call, task.solve(*values, k, m)])
    return prompt, reply, {"calls": calls}


def answer_is_right(check: dict, reply: str) -> bool:
    """Whether the reply, run, gives every call of the check its right value.

    >>> check = {"calls": [["double(4)", 8], ["double(-1)", -2]]}
    >>> answer_is_right(check, "def double(x):\\n    return x * 2")
    True
    >>> answer_is_right(check, "def double(x):\\n    return x + 4")
    False
    """
    return satisfies(reply, check["calls"])
