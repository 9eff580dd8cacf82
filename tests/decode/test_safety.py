"""What breaks off in the middle of a single loop: the error, the cache, the objects.

For batches see the end of ``test_batch.py``: there the broken step is tried again.
"""

from dataclasses import replace

import pytest
import torch
from tiny_models import random_ids, tiny_drafter, tiny_target

from dsparkref import LaggedPrefixScheduler, StepsPerSecond, Target, generate

# Many small runs, some with NaN on purpose.
pytestmark = pytest.mark.usefixtures("no_shape_checks")

PROMPT = random_ids(7, seed=7).tolist()
SPS = StepsPerSecond({1: 10.0, 3: 9.0, 5: 6.0})
OUT_OF_INK = RuntimeError("out of ink")


class Trip:
    """A forward hook that fails, or spoils what comes out, at its nth call."""

    def __init__(self, module, at, error=None):
        self.left, self.error = at, error
        self.hook = module.register_forward_hook(self)

    def __call__(self, module, _, output):
        self.left -= 1
        if self.left != 0:
            return None
        if self.error is not None:
            raise self.error
        return torch.full_like(output, float("nan"))


# what breaks -> (module of the pair, at which call, the error; None spoils with NaN)
TRIPS = {
    "NaN of the target": (lambda t, d: t.model.lm_head, 3, None),
    "NaN of the drafter": (lambda t, d: d.backbone.norm, 2, None),
    "error in the drafter": (lambda t, d: d.head.bias_proj, 6, OUT_OF_INK),
    "Ctrl-C in the drafter": (lambda t, d: d.backbone.norm, 3, KeyboardInterrupt()),
    "Ctrl-C in the target": (
        lambda t, d: t.model.model.layers[2].mlp,
        3,
        KeyboardInterrupt(),
    ),
}


def run(target, drafter, policy):
    got = generate(
        target,
        drafter,
        PROMPT,
        max_new_tokens=14,
        temperature=1.0,
        policy=policy,
        generator=3,
    )
    seconds = {"draft_seconds": 0.0, "verify_seconds": 0.0}
    return got.tokens, [replace(cycle, **seconds) for cycle in got.cycles]


@pytest.fixture
def sessions(monkeypatch):
    """The sessions of all requests, which a caller of ``generate`` never sees."""
    seen, prefill = [], Target.prefill

    def noted(self, *args, **options):
        session, output = prefill(self, *args, **options)
        seen.append(session)
        return session, output

    monkeypatch.setattr(Target, "prefill", noted)
    return seen


@pytest.mark.parametrize("where", TRIPS)
def test_a_broken_run_leaves_nothing_behind(where, sessions):
    policy = LaggedPrefixScheduler(SPS)  # one with a memory
    target = tiny_target()
    drafter = tiny_drafter(target)
    want = run(target, drafter, policy)
    module, at, error = TRIPS[where]
    trip = Trip(module(target, drafter), at, error)
    with pytest.raises((ValueError, RuntimeError, KeyboardInterrupt)) as caught:
        run(target, drafter, policy)
    if error is None:
        assert "logits must be finite" in str(caught.value)
    else:
        assert caught.value is error  # as itself
    assert trip.left <= 0
    broken = sessions[-1]
    held = {keys.shape[2] for keys, _ in broken.keys_values()}
    assert held == {broken.length}  # every layer is back at the last commit
    assert broken.length > len(PROMPT)  # which was a cycle's
    again = run(target, drafter, policy)  # the same objects
    fresh = tiny_target()
    assert again == want == run(fresh, tiny_drafter(fresh), LaggedPrefixScheduler(SPS))
