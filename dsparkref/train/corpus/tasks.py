"""The functions of the code domain: tables only.

A task is one line of English, a few equally right ways to write it, and an oracle that
says what is right. A new task is one entry here.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One kind of function: what is asked, how it may be written, what is right."""

    names: tuple[str, ...]  # names the function may have
    inputs: str  # a key of INPUTS: what its arguments are
    returns: str  # its type, for those who write type hints
    asks: str  # "returns ...", with slots {x}, {y} (arguments), {k}, {m} (numbers)
    bodies: tuple[str, ...]  # equally right; {r} is a local, {i} a loop variable
    solve: Callable  # the oracle: solve(*arguments, k, m)


@dataclass(frozen=True)
class Inputs:
    """One kind of arguments: their names, their type, how to draw values for a call."""

    names: tuple[str, ...]
    hint: str
    draw: Callable


INPUTS = {
    "number": Inputs(("x", "n", "value"), "int", lambda rng: [rng.randint(1, 30)]),
    "pair": Inputs(
        ("a, b", "x, y", "left, right"), "int", lambda rng: rng.sample(range(1, 20), 2)
    ),
    "list": Inputs(
        ("items", "numbers", "values"), "list", lambda rng: [rng.sample(range(20), 6)]
    ),
    "word": Inputs(
        ("word", "text", "name"),
        "str",
        lambda rng: [rng.choice(("lantern", "Marble", "ox", "PEBBLE", "tulips"))],
    ),
}

TASKS = (
    Task(
        ("scale", "grow", "line"), "number", "int", "returns {x} times {k} plus {m}",
        (
            "return {x} * {k} + {m}",
            "{r} = {x} * {k}\nreturn {r} + {m}",
            "{r} = {x} * {k}\n{r} += {m}\nreturn {r}",
        ),
        lambda x, k, m: x * k + m,
    ),
    Task(
        ("fits", "check", "is_good"), "number", "bool",
        "tells whether {x} plus {m} is a multiple of {k}",
        (
            "return ({x} + {m}) % {k} == 0",
            "if ({x} + {m}) % {k} == 0:\n    return True\nreturn False",
            "{r} = {x} + {m}\nreturn {r} % {k} == 0",
        ),
        lambda x, k, m: (x + m) % k == 0,
    ),
    Task(
        ("cap", "limit", "at_most"), "number", "int",
        "returns {x} plus {m}, but never more than {k}",
        (
            "return min({x} + {m}, {k})",
            "if {x} + {m} > {k}:\n    return {k}\nreturn {x} + {m}",
            "{r} = {x} + {m}\nif {r} > {k}:\n    return {k}\nreturn {r}",
        ),
        lambda x, k, m: min(x + m, k),
    ),
    Task(
        ("mix", "join", "weigh"), "pair", "int",
        "returns {x} times {k} plus {y} times {m}",
        (
            "return {x} * {k} + {y} * {m}",
            "{r} = {x} * {k}\nreturn {r} + {y} * {m}",
            "{r} = {x} * {k}\n{r} += {y} * {m}\nreturn {r}",
        ),
        lambda x, y, k, m: x * k + y * m,
    ),
    Task(
        ("best", "top", "winner"), "pair", "int",
        "returns the larger of {x} and {y}, times {k}",
        (
            "return max({x}, {y}) * {k}",
            "if {x} > {y}:\n    return {x} * {k}\nreturn {y} * {k}",
            "{r} = max({x}, {y})\nreturn {r} * {k}",
        ),
        lambda x, y, k, m: max(x, y) * k,
    ),
    Task(
        ("gap", "far", "apart"), "pair", "int",
        "returns the distance between {x} and {y}, plus {k}",
        (
            "return abs({x} - {y}) + {k}",
            "if {x} > {y}:\n    return {x} - {y} + {k}\nreturn {y} - {x} + {k}",
            "{r} = abs({x} - {y})\nreturn {r} + {k}",
        ),
        lambda x, y, k, m: abs(x - y) + k,
    ),
    Task(
        ("add_up", "sum_all", "sum_big"), "list", "int",
        "returns the sum of all {x} above {k}",
        (
            "return sum({i} for {i} in {x} if {i} > {k})",
            "{r} = 0\nfor {i} in {x}:\n    if {i} > {k}:\n        {r} += {i}\n"
            "return {r}",
            "{r} = [{i} for {i} in {x} if {i} > {k}]\nreturn sum({r})",
        ),
        lambda x, k, m: sum(v for v in x if v > k),
    ),
    Task(
        ("count", "how_many", "count_all"), "list", "int", "counts the {x} below {k}",
        (
            "return len([{i} for {i} in {x} if {i} < {k}])",
            "{r} = 0\nfor {i} in {x}:\n    if {i} < {k}:\n        {r} += 1\n"
            "return {r}",
            "{r} = [{i} for {i} in {x} if {i} < {k}]\nreturn len({r})",
        ),
        lambda x, k, m: sum(v < k for v in x),
    ),
    Task(
        ("keep", "pick", "choose"), "list", "list",
        "keeps the {x} that are multiples of {k}",
        (
            "return [{i} for {i} in {x} if {i} % {k} == 0]",
            "{r} = []\nfor {i} in {x}:\n    if {i} % {k} == 0:\n"
            "        {r}.append({i})\nreturn {r}",
        ),
        lambda x, k, m: [v for v in x if v % k == 0],
    ),
    Task(
        ("change", "scale_all", "grow_all"), "list", "list",
        "multiplies all {x} by {k} and adds {m}",
        (
            "return [{i} * {k} + {m} for {i} in {x}]",
            "{r} = []\nfor {i} in {x}:\n    {r}.append({i} * {k} + {m})\nreturn {r}",
        ),
        lambda x, k, m: [v * k + m for v in x],
    ),
    Task(
        ("find", "first", "look"), "list", "int",
        "returns the first of the {x} above {k}, or {m} if there is none",
        (
            "for {i} in {x}:\n    if {i} > {k}:\n        return {i}\nreturn {m}",
            "{r} = [{i} for {i} in {x} if {i} > {k}]\nreturn {r}[0] if {r} else {m}",
        ),
        lambda x, k, m: next((v for v in x if v > k), m),
    ),
    Task(
        ("start", "head", "first_part"), "word", "str",
        "returns the first {k} letters of {x} in upper case",
        (
            "return {x}[:{k}].upper()",
            "{r} = {x}[:{k}]\nreturn {r}.upper()",
            "{r} = {x}.upper()\nreturn {r}[:{k}]",
        ),
        lambda x, k, m: x[:k].upper(),
    ),
    Task(
        ("is_long", "long", "is_big"), "word", "bool",
        "tells whether {x} has more than {k} letters",
        (
            "return len({x}) > {k}",
            "if len({x}) > {k}:\n    return True\nreturn False",
            "{r} = len({x})\nreturn {r} > {k}",
        ),
        lambda x, k, m: len(x) > k,
    ),
)  # fmt: skip
