"""What an exercise answers, and that every planted mistake earns its own hint."""

import importlib
import pkgutil
from itertools import combinations

import pytest
import torch

from dsparkref.lab import exercises
from dsparkref.lab.checks import (
    CORRECT,
    NOT_ATTEMPTED,
    WRONG,
    Exercise,
    Feedback,
    compare_guess,
    outcome,
    same,
    shown,
)

MODULES = {
    name: importlib.import_module(f"{exercises.__name__}.{name}")
    for _, name, _ in pkgutil.iter_modules(exercises.__path__)
}
ALL = [
    pytest.param(exercise, id=f"{name}-{exercise.name}")
    for name, module in MODULES.items()
    for exercise in module.EXERCISES.values()
]
MEAN = Exercise(
    "mean",
    lambda x: x.mean(),
    [(torch.tensor([1.0, 3.0]),), (torch.tensor([2.0, 2.0, 5.0]),)],
    {"That is the sum.": lambda x: x.sum()},
)


def test_each_notebook_has_three_exercises_or_more():
    assert MODULES
    for module in MODULES.values():
        assert len(module.EXERCISES) >= 3
        assert all(name == found.name for name, found in module.EXERCISES.items())


@pytest.mark.parametrize("exercise", ALL)
def test_the_reference_passes_and_the_stub_neither_passes_nor_fails(exercise):
    assert exercise.check(exercise.reference).status == CORRECT
    assert exercise.check(lambda *_: ...).status == NOT_ATTEMPTED


@pytest.mark.parametrize("exercise", ALL)
def test_each_mistake_earns_its_own_hint(exercise):
    assert len(exercise.mistakes) >= 2
    for hint, mistake in exercise.mistakes.items():
        assert exercise.check(mistake) == Feedback(WRONG, hint)
        for result in (outcome(mistake, case) for case in exercise.cases):
            assert "type-check" not in str(result)  # of our own annotations


@pytest.mark.parametrize("exercise", ALL)
def test_no_hint_is_earned_by_chance(exercise):
    results = [
        [outcome(mistake, case) for case in exercise.cases]
        for mistake in [exercise.reference, *exercise.mistakes.values()]
    ]
    assert not any(same(a, b) for a, b in combinations(results, 2))


@pytest.mark.parametrize("exercise", ALL)
def test_the_reference_is_the_packages_own_and_can_be_read(exercise):
    assert exercise.reference.__module__.startswith("dsparkref.")
    assert not exercise.reference.__module__.startswith("dsparkref.lab")
    source = exercise.reveal()
    assert f"def {exercise.reference.__name__}(" in repr(source)
    assert source._repr_markdown_().startswith("```python")


def gated_by_a_student(head, state, prev_tokens, hidden):
    looked_up = head.prev_embed(prev_tokens)
    gate = torch.sigmoid(head.gate_proj(torch.cat([hidden, looked_up], dim=-1)))
    return head.bias_proj(looked_up) * gate, state


def throughputs_by_a_student(survival, steps_per_second):
    best, tau, found = sorted(survival.flatten().tolist(), reverse=True), 0.0, []
    for batch, chance in enumerate(best, start=1):
        tau += chance
        found.append(tau * steps_per_second(batch))
    return found


def share_by_a_student(survival, budget):
    lengths = [0] * len(survival)
    flat = survival.flatten()
    for place in flat.argsort(descending=True, stable=True)[:budget].tolist():
        lengths[place // survival.shape[1]] += int(flat[place] > 0)
    return lengths


def counted_by_a_student(accepted, verified, block_size):
    shares = []
    for k in range(block_size):
        came = (accepted >= k) & (verified >= k)
        shares.append((came & (accepted > k)).sum() / came.sum())
    return torch.stack(shares)


def edges_in_both_by_a_student(predicted, observed, bins):
    total = 0.0
    for low in range(bins):
        inside = (predicted >= low / bins) & (predicted <= (low + 1) / bins)
        if inside.any():
            gap = predicted[inside].mean() - observed[inside].float().mean()
            total += inside.float().mean() * gap.abs()
    return total


def loop_by_a_student(confidence, threshold, on):
    lengths = []
    for row in confidence.tolist():
        length, product = 0, 1.0
        for value in row:
            product *= value
            if product < threshold:
                break
            length += 1
        lengths.append(length)
    return lengths


def signs_by_a_student(predicted, observed, bins):
    inside = (predicted * bins).long().clamp(max=bins - 1)
    total = 0.0
    for number in inside.unique():
        some = inside == number
        total += (predicted[some] - observed[some]).sum() / len(predicted)
    return abs(total)


def observed_by_a_student(cycles):
    accepted = torch.tensor([cycle.num_accepted for cycle in cycles])
    whole = [c.verify_len if c.next_token else c.num_accepted for c in cycles]
    return accepted, torch.tensor(whole)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("suffix_decay", counted_by_a_student, "`verified >= k` lets one more in"),
        ("markov_head", gated_by_a_student, "The gate comes after W_2 here"),
        ("scheduler", throughputs_by_a_student, "count the drafts alone"),
        ("scheduler", share_by_a_student, "row by row"),
        ("confidence", edges_in_both_by_a_student, "in the lower, or in both"),
        ("confidence", signs_by_a_student, "taken after the sum"),
        ("confidence", loop_by_a_student, "Both rules look at the product"),
        ("full_decoding", observed_by_a_student, "Token 0 is a token"),
    ],
)
def test_a_mistake_written_another_way_earns_the_hint(name, answer, hint):
    found = [e.check(answer) for e in MODULES[name].EXERCISES.values()]
    assert any(hint in feedback.message for feedback in found), found


def test_a_sort_that_is_not_stable_is_told_so():
    """Where torch's happens to be, there is nothing to tell."""

    def ranking(survival):
        order = survival.T.flatten().argsort(descending=True)
        chances = survival.T.flatten()[order]
        return chances[chances > 0], order[chances > 0] % len(survival)

    exercise = MODULES["scheduler"].EXERCISES["ranking"]
    feedback = exercise.check(ranking)
    assert feedback.status == CORRECT or "stable=True" in feedback.message, feedback


@pytest.mark.parametrize(
    ("answer", "status", "part"),
    [
        (lambda x: sum(x) / len(x), CORRECT, "2 inputs"),
        (lambda x: x.mean().item(), CORRECT, "2 inputs"),
        (lambda x: x.sum(), WRONG, "That is the sum."),
        (lambda x: x.max(), WRONG, "mean([1.0, 3.0]) should be 2.0, got 3.0."),
        # right once: the first case that fails is the one shown
        (lambda x: x[-1] - 1, WRONG, "mean([2.0, 2.0, 5.0]) should be 3.0, got 4.0."),
        (lambda x: None, WRONG, "got None. Is there a `return`?"),
        (lambda x: x.means(), WRONG, "mean([1.0, 3.0]) raises AttributeError"),
        (lambda: 0, WRONG, "raises TypeError"),
        (lambda x: x.mean()[None], WRONG, "should be 2.0, got [2.0]"),
        (lambda x: ["a"], WRONG, "got ['a']"),
        (lambda x: ..., NOT_ATTEMPTED, "replace the `...` in `mean`"),
        (2.0, WRONG, "hand over mean itself, not its result"),
    ],
)
def test_answers_are_judged(answer, status, part):
    feedback = MEAN.check(answer)
    assert feedback.status == status
    assert part in feedback.message
    assert repr(feedback) == f"{status}: {feedback.message}"


def test_a_learner_cannot_spoil_the_cases():
    def careless(x):
        x.zero_()
        return x.mean()

    assert MEAN.check(careless).status == WRONG
    assert MEAN.check(MEAN.reference).status == CORRECT


def test_a_learner_may_be_wrong_by_rounding_and_no_more():
    assert MEAN.check(lambda x: x.double().mean() + 1e-7).status == CORRECT
    assert MEAN.check(lambda x: x.mean() + 1e-4).status == WRONG


@pytest.mark.parametrize(
    ("expected", "got", "equal"),
    [
        (torch.tensor([0.0, torch.nan]), torch.tensor([0.0, torch.nan]), True),
        (torch.tensor([0.0, torch.nan]), torch.tensor([0.0, 0.0]), False),
        (torch.ones(2), torch.ones(2, dtype=torch.long), True),
        (torch.ones(2), torch.ones(1, 2), False),  # broadcasting is not equality
        (torch.ones(2), torch.ones(1), False),
        (torch.ones(2), [torch.tensor(1.0), torch.tensor(1.0)], True),
        ([torch.ones(2), 3], [torch.ones(2), 3], True),
        ([torch.ones(2), 3], [torch.ones(2), 4], False),
        (float("nan"), float("nan"), True),
        (1.0, None, False),
        ("a", "a", True),
        ("a", "b", False),
        (1, "1", False),
    ],
)
def test_results_are_compared(expected, got, equal):
    assert same(expected, got) is equal


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mean_length", "mean_length(evaluation(lengths=[[12, 2], [10, 10]]), [0, 1])"),
        ("keep", "tokens=[1], max_new_tokens=10, stop_token_ids=[9]), [2, 9, 3])"),
        ("observed_drafts", "cycle(verify_len=3, num_accepted=2, next_token=None)"),
    ],
)
def test_inputs_that_are_objects_are_shown(name, part):
    exercise = MODULES["full_decoding"].EXERCISES[name]
    assert part in exercise.check(lambda *_: None).message


def test_messages_stay_short():
    assert len(shown(torch.zeros(100, 100))) < 40
    assert shown((1 / 3, "x", [2])) == "[0.3333, 'x', [2]]"


@pytest.mark.parametrize(
    ("guess", "status", "part"),
    [
        (..., NOT_ATTEMPTED, "in place of the dots"),
        (0.501, CORRECT, "you said 0.50"),
        (0.9, WRONG, "too high by 0.40"),
        (torch.tensor(0.25), WRONG, "too low by 0.25"),
        (1, WRONG, "too high by 0.50"),
        ("half", WRONG, "a guess is one number"),
        (torch.ones(2), WRONG, "a guess is one number"),
    ],
)
def test_guesses_are_compared(guess, status, part):
    feedback = compare_guess(guess, 0.5)
    assert feedback.status == status
    assert part in feedback.message


@pytest.mark.usefixtures("no_shape_checks")
def test_a_status_is_one_of_three():
    with pytest.raises(ValueError, match="status must be a known name"):
        Feedback("fine", "")
