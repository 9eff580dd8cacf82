"""Exercises that check themselves, and predictions that are compared.

An exercise holds the right function (the package's own), some inputs, and the wrong
functions that learners really write. A learner's function that agrees with a wrong
one on every input has made that mistake, and is told which.
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from dsparkref.shapes import check_known

NOT_ATTEMPTED, WRONG, CORRECT = "not attempted", "wrong", "correct"
# Numbers this close are equal: float32 and float64 solutions both count.
TOLERANCE = 1e-5
# Tensors with more numbers than this are described in messages, not printed.
SHOWN_NUMBERS = 16
# Dataclasses whose own words are longer than this are named only.
SHOWN_LETTERS = 100

Function = Callable[..., Any]
Case = tuple[Any, ...]


@dataclass(frozen=True)
class Feedback:
    """What a learner is told; a notebook cell that ends with one shows its text."""

    # "not attempted", "wrong" or "correct"
    status: str
    # one sentence or two
    message: str

    def __post_init__(self) -> None:
        check_known("status", self.status, (NOT_ATTEMPTED, WRONG, CORRECT))

    def __repr__(self) -> str:
        return f"{self.status}: {self.message}"


@dataclass(frozen=True)
class Raised:
    """The outcome of a call that ended in an exception."""

    # its type and message
    what: str


@dataclass(frozen=True, eq=False)
class Exercise:
    """One function to write.

    >>> double = Exercise("double", lambda x: 2 * x, [(1,), (3,)], {
    ...     "That is the square.": lambda x: x * x})
    >>> double.check(lambda x: ...)
    not attempted: replace the `...` in `double` and run the cell again.
    >>> double.check(lambda x: x ** 2)
    wrong: That is the square.
    >>> double.check(lambda x: x + 1)
    wrong: double(3) should be 6, got 4.
    >>> double.check(lambda x: x + x)
    correct: it agrees with the package's function on 2 inputs.
    """

    # the name of the learner's function
    name: str
    # the right one, the package's own
    reference: Function
    # the arguments of each call
    cases: Sequence[Case]
    # what to say -> the function that makes this mistake
    mistakes: Mapping[str, Function] = field(default_factory=dict)

    def check(self, answer: Any) -> Feedback:
        """Compare a learner's function with the right one and with each mistake."""
        if not callable(answer):
            return Feedback(WRONG, f"hand over {self.name} itself, not its result.")
        got = [outcome(answer, case) for case in self.cases]
        if got[0] is ...:
            what = f"replace the `...` in `{self.name}` and run the cell again."
            return Feedback(NOT_ATTEMPTED, what)
        expected = [outcome(self.reference, case) for case in self.cases]
        if same(expected, got):
            what = f"it agrees with the package's function on {len(got)} inputs."
            return Feedback(CORRECT, what)
        for hint, mistake in self.mistakes.items():
            if same([outcome(mistake, case) for case in self.cases], got):
                return Feedback(WRONG, hint)
        return Feedback(WRONG, self._first_failure(expected, got))

    def reveal(self) -> "Source":
        """Return the package's function, to be read."""
        return Source(self.reference)

    def _first_failure(self, expected: list[Any], got: list[Any]) -> str:
        """Say where an answer first parts from the reference; no known mistake."""
        index = [same(a, b) for a, b in zip(expected, got, strict=True)].index(False)
        call = f"{self.name}({', '.join(map(shown, self.cases[index]))})"
        if isinstance(got[index], Raised):
            return f"{call} raises {got[index].what}"
        message = f"{call} should be {shown(expected[index])}, got {shown(got[index])}."
        missing = got[index] is None
        return message + (" Is there a `return`?" if missing else "")


class Source:
    """A function's source: highlighted in a notebook, plain elsewhere."""

    def __init__(self, function: Function) -> None:
        self.text = inspect.getsource(function)

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}```"


def outcome(function: Function, case: Case) -> Any:
    """Call a function on copies of the arguments; an exception is an outcome too."""
    try:
        return function(*copy.deepcopy(case))
    except Exception as error:
        return Raised(f"{type(error).__name__}: {error}")


def same(expected: Any, got: Any) -> bool:
    """Whether two results are equal, numbers within ``TOLERANCE``, NaN to NaN.

    Lists of numbers and tensors are one kind of thing to a learner, as are a number
    and a tensor that holds it; shapes must agree.

    >>> same(torch.tensor([0.5, 1.0]), [0.5, 1]), same(0.5, torch.tensor(0.5))
    (True, True)
    >>> same(torch.tensor([0.5]), 0.5), same([1, 2], [1, 2, 3])
    (False, False)
    """
    if isinstance(expected, Tensor) or isinstance(got, Tensor):
        return _same_tensors(expected, got)
    if isinstance(expected, Real) and isinstance(got, Real):
        a, b = float(expected), float(got)
        return math.isclose(a, b, abs_tol=TOLERANCE) or (a != a and b != b)
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        return len(expected) == len(got) and all(map(same, expected, got))
    return type(expected) is type(got) and expected == got


def shown(value: Any) -> str:
    """Return a value in few characters, numbers to four digits.

    >>> shown(torch.tensor([0.5, 1 / 3])), shown([torch.zeros(2), 7])
    ('[0.5, 0.3333]', '[[0.0, 0.0], 7]')
    >>> shown(torch.zeros(5, 5))
    'a tensor of shape [5, 5]'
    >>> shown(Feedback("wrong", "Half.")), shown(Feedback("wrong", 99 * "so "))
    ('wrong: Half.', 'a Feedback')
    """
    if isinstance(value, Tensor):
        if value.numel() > SHOWN_NUMBERS:
            return f"a tensor of shape {list(value.shape)}"
        return shown(value.tolist())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if is_dataclass(value) and len(repr(value)) <= SHOWN_LETTERS:
        return repr(value)
    if isinstance(value, nn.Module) or is_dataclass(value):
        return f"a {type(value).__name__}"
    return repr(round(value, 4)) if isinstance(value, float) else repr(value)


def compare_guess(guess: Any, truth: float, *, digits: int = 2) -> Feedback:
    """Answer a prediction: how far was it from what came out?

    >>> compare_guess(..., 0.5)  # the answer is kept back
    not attempted: put a number in place of the dots above, then run both cells.
    >>> compare_guess(0.9, 0.5)
    wrong: you said 0.90, it is 0.50: too high by 0.40.
    >>> compare_guess(0.5, 0.5)
    correct: you said 0.50, it is 0.50.
    """
    if guess is ...:
        what = "put a number in place of the dots above, then run both cells."
        return Feedback(NOT_ATTEMPTED, what)
    value = f"it is {truth:.{digits}f}"
    if isinstance(guess, Tensor) and guess.numel() == 1:
        guess = guess.item()
    if not isinstance(guess, Real):
        return Feedback(WRONG, f"a guess is one number; {value}.")
    distance = float(guess) - truth
    said = f"you said {float(guess):.{digits}f}, {value}"
    if abs(distance) <= 0.5 * 10**-digits:
        return Feedback(CORRECT, f"{said}.")
    side = "high" if distance > 0 else "low"
    return Feedback(WRONG, f"{said}: too {side} by {abs(distance):.{digits}f}.")


def _same_tensors(expected: Any, got: Any) -> bool:
    try:
        a, b = torch.as_tensor(expected).double(), torch.as_tensor(got).double()
    except (TypeError, ValueError, RuntimeError):
        return False
    return a.shape == b.shape and torch.allclose(
        a, b, rtol=0.0, atol=TOLERANCE, equal_nan=True
    )
