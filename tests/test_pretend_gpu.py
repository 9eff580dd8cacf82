"""Everything on a GPU that is not there: no tensor of one device meets another's."""

import pretend_gpu as pretend
import pytest
import torch
from pretend_gpu import MixedDevices, pretend_gpu

from dsparkref import (
    ConfidenceThreshold,
    LaggedPrefixScheduler,
    PrefixScheduler,
    generate,
    generate_batch,
    load_drafter,
    load_target,
    new_drafter,
)
from dsparkref.analysis.device_check import check_device
from dsparkref.analysis.profile import load_measured, profile_pair
from dsparkref.analysis.random_pair import random_pair
from dsparkref.draft.blocks import aligned_target_logits, supervised_positions
from dsparkref.draft.spec import HEADS
from dsparkref.train.loss import block_loss

pytestmark = pretend.needs_registration

PROMPTS = ("I want to try chess. Can you help me?", "There are 35 cups here. Why?")
GREEDY: dict[str, float] = {}
CUT = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}


@pytest.fixture
def gpu():
    with pretend_gpu() as device:
        yield device


def on_cpu(head, **settings):
    target = load_target("tiny", device="cpu", dtype="float32")
    return decoded(target, head, **settings)


def decoded(target, head, **settings):
    drafter = load_drafter(f"tiny/{head}", target)
    ids = target.encode(PROMPTS[0])
    return generate(target, drafter, ids, max_new_tokens=24, **settings).tokens


# The pretended device itself.


def test_a_tensor_there_says_so(gpu):
    made = torch.zeros(2, 3, device=gpu)
    assert made.device == torch.tensor([1], device=gpu).device == gpu
    assert made[0].device == (made + 1).device == made.new_tensor([2]).device == gpu
    assert made.cpu().device.type == torch.zeros(2).device.type == "cpu"
    assert torch.ones(2).to(gpu).device == gpu
    assert (made + 1).sum().item() == 6.0 and made[:, 0].tolist() == [0.0, 0.0]
    made[1] = 5.0  # through a view
    assert made.tolist() == [[0.0, 0.0, 0.0], [5.0, 5.0, 5.0]]


def test_what_a_gpu_refuses_is_refused(gpu):
    here, there = torch.arange(3.0), torch.arange(3.0, device=gpu)
    for mixed in (
        lambda: here + there,
        lambda: torch.cat([here, there]),
        lambda: torch.stack([here[0], there[0]]),
        lambda: there.gather(0, torch.tensor([1])),
        lambda: here[torch.tensor([1], device=gpu)],
        lambda: torch.nn.functional.linear(there, here),
        lambda: torch.rand(3, generator=torch.Generator(), device=gpu),
        lambda: there.normal_(generator=torch.Generator()),
    ):
        with pytest.raises(MixedDevices):
            mixed()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()


def test_what_a_gpu_allows_is_allowed(gpu):
    there = torch.arange(3.0, device=gpu)
    assert (there * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0]
    assert there[torch.tensor([2, 0])].tolist() == [2.0, 0.0]
    assert there.copy_(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_outside_it_nothing_has_changed():
    with pretend_gpu(), pytest.raises(MixedDevices):
        torch.ones(3) + torch.ones(3, device=pretend.gpu())
    assert load_target("tiny").device.type == "cpu"
    assert not torch.accelerator.is_available()


# The package on it.


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("settings", [GREEDY, CUT], ids=["greedy", "sampled"])
def test_decoding_there_gives_the_tokens_of_the_cpu(head, settings, gpu):
    target = load_target("tiny")
    assert target.device == gpu and target.dtype == torch.float32
    stream = {"generator": 7}
    there = decoded(target, head, **settings, **stream)
    assert there == on_cpu(head, **settings, **stream)


def test_a_batch_gives_the_tokens_of_the_cpu_with_every_policy(gpu):
    table = load_measured().steps_per_second(rows=2)

    def batch(target, policy):
        replies = generate_batch(
            target,
            load_drafter("tiny/rnn", target),
            [target.encode(text) for text in PROMPTS],
            max_new_tokens=12,
            temperature=1.0,
            policy=policy,
            generators=[1, 2],
        )
        return [reply.tokens for reply in replies]

    there, cpu = load_target("tiny"), load_target("tiny", device="cpu")
    for policy in (
        None,
        ConfidenceThreshold(0.7),
        PrefixScheduler(table),
        LaggedPrefixScheduler(table),
    ):
        assert batch(there, policy) == batch(cpu, policy)


def test_token_match_and_calibrated_confidence(gpu):
    target = load_target("tiny")
    drafter = load_drafter("tiny/markov", target).with_temperatures([1.5] * 7)
    ids = target.encode(PROMPTS[0])
    asked = {"max_new_tokens": 8, "temperature": 1.0, "verifier": "token_match"}
    policy = ConfidenceThreshold(0.5, on="survival")
    assert generate(target, drafter, ids, **asked, policy=policy).tokens


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_there(head, gpu):
    # Its gradient is for the slow lane: a process whose autograd has run before it
    # heard of the device cannot go back through it.
    target = load_target("tiny")
    drafter = new_drafter(target, head=head, generator=0)
    ids = torch.tensor([target.encode(PROMPTS[0])], device=gpu)
    anchors = torch.tensor([[4, 9]], device=gpu)
    seen = target.read(ids, drafter.spec.target_layer_ids)
    output = drafter.training_forward(ids, seen.hidden, anchors)
    size = drafter.block_size
    supervised = supervised_positions(torch.ones_like(ids), anchors, size)
    aligned = aligned_target_logits(seen.logits, anchors, size)
    loss = block_loss(output, aligned, supervised, base_weight=0.5).total
    assert loss.device == gpu and loss.item() > 0


def test_the_script_for_a_real_one(gpu):
    found = check_device(gpu, PROMPTS[:1], heads=("gated", "domino"), max_new_tokens=12)
    assert found.passed and found.equal == found.replies == 2
    pair = random_pair("smoke", "rnn")
    assert pair.target.device == pair.drafter.device == gpu
    profile = profile_pair(
        pair.target, pair.drafter, rows=(1, 2), tokens=(1, 4), context=8, repeats=1
    )
    assert len(profile.points) == 4


@pytest.mark.parametrize(
    "module, name, wrong",
    [
        (
            "dsparkref.decode.cycle",
            "draw_uniforms",
            lambda shape, generator, device: torch.rand(shape, generator=generator),
        ),
        (
            "dsparkref.decode.cycle",
            "check_lengths",
            lambda given, rows, size, device: torch.full((rows,), size),
        ),
        (
            "dsparkref.draft.drafter",
            "block_positions",
            lambda starts, size: starts.cpu()[..., None] + torch.arange(size),
        ),
    ],
    ids=["uniforms", "lengths", "positions"],
)
def test_a_tensor_left_on_the_cpu_is_found(gpu, monkeypatch, module, name, wrong):
    target = load_target("tiny")
    monkeypatch.setattr(f"{module}.{name}", wrong)
    with pytest.raises((MixedDevices, ValueError), match=r"same device|on the"):
        decoded(target, "markov", temperature=1.0, generator=0)


# Commands, in processes of their own. (Notebooks: `test_notebooks.py`.)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "generate Hello --head gated --temperature 1 --max-new-tokens 12 --cycles",
        "evaluate --drafters markov,rnn --prompts 1 --max-new-tokens 12",
        "evaluate --speed --drafters domino --prompts 1 --rounds 1 --max-new-tokens 6",
        "evaluate --lossless tiny --prompts 1 --max-new-tokens 10",
        "calibrate --prompts 2 --max-new-tokens 16 --thresholds 0.5 --save c",
        "profile --rows 1,2 --tokens 1,4 --repeats 1",
        "serve-sim --clock real --concurrency 2 --prompts 2 --requests 3 "
        "--max-new-tokens 6",
        "train drafter --out trained --scale smoke --head rnn",
    ],
    ids=lambda command: " ".join(command.split()[:2]),
)
def test_commands_run_there(command, tmp_path):
    assert pretend.run_there(*command.split(), folder=tmp_path)
