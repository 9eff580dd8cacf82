"""One table of bad calls: what they raise, and that all of it speaks with one voice."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import ScriptedDrafter, greedy_reply, tiny_drafter, tiny_target

from dsparkref import Proposal, autoregressive, decode_cycles, generate

VOICE = r"(?s)\A\S.* must .+: expected .+, got .+\.( .+)?\Z"
PROMPT = [3, 14, 15, 9, 2, 6]
NAN, INF = float("nan"), float("inf")

# (options of the call, error, what the message says); the prompt is one of them
REQUESTS = [
    ({"prompt_ids": []}, ValueError, "prompt_ids must not be empty"),
    ({"prompt_ids": torch.zeros(1, 0).long()}, ValueError, "prompt_ids must not be em"),
    ({"prompt_ids": [1, 2.5]}, TypeError, "prompt_ids must be in range: .* got 2.5"),
    ({"prompt_ids": [1.0]}, TypeError, "prompt_ids must be in range"),
    ({"prompt_ids": [True]}, TypeError, "prompt_ids must be in range: .* got True"),
    ({"prompt_ids": torch.ones(3)}, ValueError, "prompt_ids must hold one .*float32"),
    ({"prompt_ids": torch.ones(2, 3).long()}, ValueError, "one prompt: .*[2, 3]"),
    ({"prompt_ids": torch.tensor(3)}, ValueError, "prompt_ids must hold one prompt"),
    ({"prompt_ids": [31]}, ValueError, "prompt_ids must be in range: .* 30, got 31"),
    ({"prompt_ids": [-1]}, ValueError, "prompt_ids must be in range: .* got -1"),
    ({"prompt_ids": "hello"}, TypeError, "prompt_ids must hold ids: .*target.encode"),
    ({"prompt_ids": None}, TypeError, "prompt_ids must hold ids: .* got NoneType"),
    ({"prompt_ids": [[1, 2]]}, TypeError, "prompt_ids must be in range"),
    ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be in range: .* got -1"),
    ({"max_new_tokens": 2.0}, TypeError, "max_new_tokens must be in .* integer .* 2.0"),
    ({"max_new_tokens": True}, TypeError, "max_new_tokens must be in range"),
    ({"max_new_tokens": None}, TypeError, "max_new_tokens must be in range"),
    ({"temperature": -1}, ValueError, "temperature must be in range: .* got -1"),
    ({"temperature": NAN}, ValueError, "temperature must be in range: .* got nan"),
    ({"temperature": INF}, ValueError, "temperature must be in range: .* got inf"),
    ({"temperature": "hot"}, TypeError, "temperature must be in range: .* got 'hot'"),
    ({"temperature": None}, TypeError, "temperature must be in range: .* got None"),
    ({"top_k": 0}, ValueError, "top_k must be in range: .* >= 1, got 0"),
    ({"top_k": 1.5}, TypeError, "top_k must be in range"),
    ({"top_p": 0.0}, ValueError, "top_p must be in range: .* > 0.0 .* got 0.0"),
    ({"top_p": 1.5}, ValueError, "top_p must be in range: .* <= 1.0, got 1.5"),
    ({"top_p": NAN}, ValueError, "top_p must be in range: .* got nan"),
    ({"stop_token_ids": [31]}, ValueError, "stop_token_ids must be in range"),
    ({"stop_token_ids": [1.5]}, TypeError, "stop_token_ids must be in range"),
    ({"stop_token_ids": 5}, TypeError, "stop_token_ids must hold ids: .* got int"),
    ({"stop_token_ids": "</s>"}, TypeError, "stop_token_ids must hold ids"),
    ({"generator": 1.5}, TypeError, "generator must be a generator: .* got float"),
    ({"generator": True}, TypeError, "generator must be a generator: .* got bool"),
    ({"generator": np.random.default_rng()}, TypeError, "generator must .* Generator"),
    ({"generator": -1}, ValueError, "generator must be in range: .* got -1"),
]
SPECULATIVE = [
    ({"verifier": "typical"}, ValueError, "verifier must be a known name: .*rejection"),
    ({"verifier": None}, ValueError, "verifier must be a known name"),
]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def drafter(target):
    return tiny_drafter(target)


def refuse(error, pattern, call, *args, **options):
    with pytest.raises(error, match=pattern) as caught:
        call(*args, **options)
    assert caught.match(VOICE)


def arguments(options):
    options = {"prompt_ids": PROMPT, "max_new_tokens": 9} | options
    return options.pop("prompt_ids"), options


@pytest.mark.parametrize(("options", "error", "pattern"), REQUESTS)
def test_bad_requests(options, error, pattern, target, drafter, no_shape_checks):
    """Refused before any model runs, by all three; decode_cycles at once, not late."""
    prompt, options = arguments(options)
    calls = []
    handle = target.model.register_forward_pre_hook(lambda *_: calls.append(1))
    refuse(error, pattern, generate, target, drafter, prompt, **options)
    refuse(error, pattern, decode_cycles, target, drafter, prompt, **options)
    refuse(error, pattern, autoregressive, target, prompt, **options)
    handle.remove()
    assert calls == []


@pytest.mark.parametrize("value", [None, 3, "markov"])
def test_a_drafter_or_policy_that_is_none(value, target, drafter, no_shape_checks):
    with pytest.raises(TypeError, match=r"drafter must be a drafter: .* without"):
        generate(target, value, [1, 2], max_new_tokens=2)
    if value is not None:
        with pytest.raises(TypeError, match=r"policy must be a policy: .* without"):
            generate(target, drafter, [1, 2], max_new_tokens=2, policy=value)


@pytest.mark.parametrize(("options", "error", "pattern"), SPECULATIVE)
def test_bad_verifiers(options, error, pattern, target, drafter, no_shape_checks):
    for call in (generate, decode_cycles):
        refuse(
            error, pattern, call, target, drafter, PROMPT, max_new_tokens=9, **options
        )


@pytest.mark.parametrize(
    "name", ["repetition_penalty", "min_p", "num_beams", "shift_targts", "eos_token_id"]
)
def test_unknown_keywords(name, target, drafter, no_shape_checks):
    """A15, C18: an option is either obeyed or refused by name."""
    options = {"max_new_tokens": 9, name: 1}
    for call, *models in (
        (generate, target, drafter),
        (decode_cycles, target, drafter),
        (autoregressive, target),
    ):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            call(*models, PROMPT, **options)
    rows = torch.zeros(1, 3, drafter.spec.feature_size)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        drafter.propose(rows, torch.tensor([3]), **{name: 1})


# --- a drafter that does not fit -------------------------------------------------


def test_other_vocabulary(target, no_shape_checks):
    """C8: both sizes are named."""
    other = tiny_drafter(tiny_target(vocab_size=37))
    pattern = "drafter must fit the target: .* 31, got 37"
    refuse(ValueError, pattern, generate, target, other, PROMPT, max_new_tokens=9)


def test_other_hidden_size(target, no_shape_checks):
    other = tiny_drafter(tiny_target(hidden_size=16))
    pattern = "target_hidden must have the drafter's feature width: expected 48, got 72"
    refuse(ValueError, pattern, generate, target, other, PROMPT, max_new_tokens=9)


def test_other_depth(target, no_shape_checks):
    other = tiny_drafter(tiny_target(num_hidden_layers=6), target_layer_ids=(1, 4))
    pattern = "target_layer_ids must name usable layers: .* 4 layers, got 4"
    refuse(ValueError, pattern, generate, target, other, PROMPT, max_new_tokens=9)


def test_other_device(target, no_shape_checks):
    """H1: both devices are named, before any compute."""
    other, calls = tiny_drafter(target).to("meta"), []
    handle = target.model.register_forward_pre_hook(lambda *_: calls.append(1))
    pattern = "drafter must be on the target's device: expected cpu, got meta"
    refuse(ValueError, pattern, generate, target, other, PROMPT, max_new_tokens=9)
    handle.remove()
    assert calls == []
    rows = torch.zeros(1, 3, other.spec.feature_size)
    pattern = "target_hidden must be on the drafter's device: expected meta, got cpu"
    refuse(ValueError, pattern, other.propose, rows, torch.tensor([3]))


class Lying(ScriptedDrafter):
    """Hands over what ``change`` makes of an honest proposal."""

    change = staticmethod(lambda proposal: proposal)

    def propose(self, target_hidden, anchor, **options):
        return self.change(super().propose(target_hidden, anchor, **options))


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (
            lambda p: Proposal(p.tokens[:, :3], p.p_draft),
            r"proposal.tokens must have shape .* \[1, 4\], got \[1, 3\]",
        ),
        (
            lambda p: Proposal(p.tokens, p.p_draft[..., :30]),
            r"proposal.p_draft must have shape .* \[1, 4, 31\], got \[1, 4, 30\]",
        ),
        (
            lambda p: replace(p, tokens=(p.tokens + 1) % 31),
            "proposal.tokens must be drawn from p_draft: .* got probability 0",
        ),
        (lambda p: replace(p, p_draft=p.p_draft * 2), "p_draft must sum to 1"),
        (lambda p: replace(p, p_draft=p.p_draft / p.p_draft.clamp(max=0)), "p_draft"),
    ],
    ids=["short", "narrow", "not drawn", "no law", "NaN law"],
)
def test_proposals_that_cannot_be_verified(change, pattern, target, no_shape_checks):
    text = PROMPT + greedy_reply(target, PROMPT, 30)
    lying = Lying(text, 99)
    lying.change = change
    refuse(ValueError, pattern, generate, target, lying, PROMPT, max_new_tokens=9)


@pytest.mark.parametrize(
    ("method", "args", "pattern"),
    [
        ("propose", (torch.zeros(1, 3, 71), torch.tensor([3])), "width: .* 72, got 71"),
        ("propose", (torch.zeros(3, 72), torch.tensor([3])), "target_hidden must have"),
        ("propose", (torch.zeros(1, 3, 72), torch.tensor([3, 4])), "anchor must have"),
        (
            "teacher_forced",
            (torch.zeros(1, 3, 72), torch.zeros(1, 5).long()),
            r"prev_tokens must have shape .* \[1, 4\], got \[1, 5\]",
        ),
        (
            "training_forward",
            (torch.zeros(2, 9).long(), torch.zeros(2, 8, 72), torch.zeros(2, 1).long()),
            r"input_ids must have shape .* \[2, 8\], got \[2, 9\]",
        ),
        (
            "training_forward",
            (torch.zeros(2, 8).long(), torch.zeros(2, 8, 72), torch.zeros(1, 1).long()),
            "anchors must have shape",
        ),
    ],
)
def test_shapes_are_refused_by_name(method, args, pattern, drafter, no_shape_checks):
    refuse(ValueError, pattern, getattr(drafter, method), *args)


# --- numbers that are none -------------------------------------------------------


def spoil(module, row, value, *, only_rows=None):
    """Put a value into one row of what ``module`` returns; returns the handle."""

    def hook(_, __, output):
        if only_rows is None or output.shape[1] == only_rows:
            output = output.clone()
            output[:, row, 5] = value
        return output

    return module.register_forward_hook(hook)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [0, 3, 4])
def test_target_logits_that_are_no_numbers(row, temperature, value, no_shape_checks):
    """A7: the model and the position in the block are named; nothing is emitted."""
    target = tiny_target()
    spoil(target.model.lm_head, row, value, only_rows=5)  # block passes, no prefill
    pattern = f"target logits must be finite .* at position {row}\\."
    options = {"max_new_tokens": 9, "temperature": temperature, "generator": 0}
    refuse(
        ValueError, pattern, generate, target, tiny_drafter(target), PROMPT, **options
    )


def test_prefill_logits_that_are_no_numbers(no_shape_checks):
    target = tiny_target()
    spoil(target.model.lm_head, -1, NAN)
    pattern = "target logits must be finite"
    refuse(ValueError, pattern, autoregressive, target, PROMPT, max_new_tokens=9)
    drafter = tiny_drafter(target)
    refuse(ValueError, pattern, generate, target, drafter, PROMPT, max_new_tokens=9)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [0, 2, 3])
def test_draft_logits_that_are_no_numbers(row, temperature, value, no_shape_checks):
    target = tiny_target()
    drafter = tiny_drafter(target)
    spoil(drafter.backbone.norm, row, value)
    pattern = f"draft logits must be finite .* at position {row}\\."
    options = {"max_new_tokens": 9, "temperature": temperature, "generator": 0}
    refuse(ValueError, pattern, generate, target, drafter, PROMPT, **options)
