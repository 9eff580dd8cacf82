"""Nine faults that others shipped, planted in a healthy pair through the public API.

None of them stops anything: each loads, decodes and answers. What is left of it is a
pattern in the numbers, a symptom. Files are edited and drafters wrapped; there is no
switch for a fault anywhere in the package.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dsparkref.analysis.evaluate import Evaluation, evaluate_drafter
from dsparkref.checkpoints.io import Pair, load_drafter, save_drafter
from dsparkref.decode.request import as_row
from dsparkref.decode.target import Target
from dsparkref.lab.checks import CORRECT, NOT_ATTEMPTED, WRONG, Feedback
from dsparkref.lab.course import pair_name
from dsparkref.records import Proposal
from dsparkref.verify.policies import FixedLength, Policy
from dsparkref.verify.sampling import probabilities

HEALTHY = "healthy"


@dataclass(frozen=True)
class Symptoms:
    """What an engineer sees from outside."""

    # tokens per cycle, the bonus included
    accepted_length: float
    # [K] share of drafts kept, given that all before stood; NaN where none came
    conditional: list[float]
    # [K+1] share of cycles that kept 0, 1, ..., K drafts
    kept: list[float]
    # share of all drafts that equal the text at their place, and one place later
    in_place: float
    one_late: float
    # nats per token of the replies, under the target
    surprise: float


class Wrapped:
    """A drafter around another one; it has no cache, and gets all rows each time."""

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.spec = drafter, drafter.spec
        self.block_size = drafter.block_size

    def propose(
        self,
        target_hidden: Tensor,
        anchor: Tensor,
        *,
        cache: Any = None,
        **options: Any,
    ) -> Proposal:
        """Draft as the other one does."""
        return self.drafter.propose(target_hidden, anchor, **options)


class LateFeatures(Wrapped):
    """Each token's features stand one row too late."""

    def propose(
        self,
        target_hidden: Tensor,
        anchor: Tensor,
        *,
        cache: Any = None,
        **options: Any,
    ) -> Proposal:
        """Draft from the rows before."""
        late = torch.cat([target_hidden[:, :1], target_hidden[:, :-1]], dim=1)
        return super().propose(late, anchor, **options)


class GreedyToldSoft(Wrapped):
    """The likeliest tokens, told as if they had been drawn."""

    def propose(
        self,
        target_hidden: Tensor,
        anchor: Tensor,
        *,
        cache: Any = None,
        **options: Any,
    ) -> Proposal:
        """Draft greedily, and tell the law at the caller's temperature."""
        greedy = self.drafter.propose(target_hidden, anchor, temperature=0.0)
        law = probabilities(greedy.draft_logits, options.get("temperature", 1.0))
        return replace(greedy, p_draft=law)


class QuietFallback(Wrapped):
    """Every second call fails inside, and nobody is told."""

    calls = 0

    def propose(
        self,
        target_hidden: Tensor,
        anchor: Tensor,
        *,
        cache: Any = None,
        **options: Any,
    ) -> Proposal:
        """Draft, or repeat the anchor."""
        self.calls += 1
        proposal = super().propose(target_hidden, anchor, **options)
        if self.calls % 2:
            return proposal
        tokens = anchor[:, None].expand(1, self.block_size)
        law = one_hot(tokens, proposal.p_draft.shape[-1])
        return replace(proposal, tokens=tokens, p_draft=law.to(proposal.p_draft.dtype))


@dataclass(frozen=True)
class Setup:
    """All that a run is made of beside the target."""

    drafter: Any
    policy: Policy | None = None


Plant = Callable[[Pair], Setup]


@dataclass(frozen=True)
class Exhibit:
    """One fault: what it is, where it was seen, and how it is planted."""

    cause: str
    # a public report of it
    report: str
    plant: Plant


def edited(**changes: Any) -> Plant:
    """Save the drafter, change keys of its config, and load it: no error, no warning.

    A change is a value, or a function of the drafter's spec.
    """

    def plant(pair: Pair) -> Setup:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "drafter"
            save_drafter(pair.drafter, place)
            path = place / "config.json"
            config = json.loads(path.read_text(encoding="utf-8"))
            for key, change in changes.items():
                is_rule = callable(change)
                config[key] = change(pair.drafter.spec) if is_rule else change
            path.write_text(json.dumps(config))
            return healthy(pair, load_drafter(place, pair.target))

    return plant


def headless(pair: Pair) -> Setup:
    """Save and load all but the head, as a loader does that skips unknown names."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "drafter"
        save_drafter(pair.drafter, place, drop=("head", "confidence"))
        return healthy(pair, load_drafter(place, pair.target))


def healthy(pair: Pair, drafter: Any = None) -> Setup:
    """Return a run with nothing wrong, or with another drafter alone."""
    return Setup(drafter or pair.drafter)


def _wrapped(kind: type[Wrapped]) -> Plant:
    return lambda pair: healthy(pair, kind(pair.drafter))


def _two_drafts(pair: Pair) -> Setup:
    return replace(healthy(pair), policy=FixedLength(2))


EXHIBITS: dict[str, Exhibit] = {
    "A": Exhibit(
        "the drafts stand one slot too far: the file was read as another layout",
        "https://github.com/sgl-project/sglang/issues/40144",
        edited(anchor_predicts=False),
    ),
    "B": Exhibit(
        "the head's tensors were skipped when loading",
        "https://github.com/sgl-project/sglang/pull/29917",
        headless,
    ),
    "C": Exhibit(
        "every second draft pass fails, and a fallback hides it",
        "https://github.com/sgl-project/sglang/issues/36140",
        _wrapped(QuietFallback),
    ),
    "D": Exhibit(
        "the engine asks for two drafts where the block has more",
        "https://github.com/vllm-project/vllm/issues/50012",
        _two_drafts,
    ),
    "E": Exhibit(
        "greedy drafts are told to the verifier as if they had been sampled",
        "https://github.com/huggingface/transformers/issues/32867",
        _wrapped(GreedyToldSoft),
    ),
    "F": Exhibit(
        "the tapped layers are all one too low: hidden_states[i], not [i+1]",
        "https://github.com/vllm-project/vllm/pull/42704",
        edited(target_layer_ids=lambda spec: [i - 1 for i in spec.target_layer_ids]),
    ),
    "G": Exhibit(
        "the mask token is another id",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/2461",
        edited(mask_token_id=lambda spec: spec.mask_token_id // 2),
    ),
    "H": Exhibit(
        "each token's features stand one row late",
        "https://github.com/sgl-project/SpecForge/pull/472",
        _wrapped(LateFeatures),
    ),
    "I": Exhibit(
        "the block was trained to see itself both ways, and is run causally",
        "https://github.com/sgl-project/SpecForge/pull/427",
        edited(causal_layers=lambda spec: list(range(spec.num_layers))),
    ),
}


def examine(
    pair: Pair, messages: Sequence[str], *, max_new_tokens: int = 40
) -> dict[str, Symptoms]:
    """Decode the messages with each exhibit, and with the healthy pair first."""
    plants = {HEALTHY: healthy} | {name: one.plant for name, one in EXHIBITS.items()}
    return {
        name: symptoms(pair, plant(pair), messages, max_new_tokens)
        for name, plant in plants.items()
    }


def symptoms(
    pair: Pair, setup: Setup, messages: Sequence[str], max_new_tokens: int
) -> Symptoms:
    """Decode at temperature 1 and count."""
    prompts = [pair.target.encode(message) for message in messages]
    run = evaluate_drafter(
        pair.target,
        setup.drafter,
        prompts,
        max_new_tokens=max_new_tokens,
        policy=setup.policy,
        generator=0,
    )
    kept = [cycle.num_accepted for cycle in run.cycles]
    places = range(pair.drafter.block_size + 1)
    length = run.accepted_length
    return Symptoms(
        accepted_length=float("nan") if length is None else length,
        conditional=run.conditional.tolist(),
        kept=[kept.count(n) / max(len(kept), 1) for n in places],
        in_place=matches(run, prompts, shift=0),
        one_late=matches(run, prompts, shift=1),
        surprise=surprise(pair.target, run, prompts),
    )


def matches(run: Evaluation, prompts: Sequence[Sequence[int]], shift: int) -> float:
    """Return how often a draft is the reply's token ``shift`` places further on.

    All drafts count, refused and unreached ones too, as far as the reply goes.
    """
    hits = total = 0
    for prompt, reply in zip(prompts, run.replies, strict=True):
        text = [*prompt, *reply.tokens]
        for cycle in reply.cycles:
            there = text[cycle.context_len + 1 + shift :]
            pairs = list(zip(cycle.drafts, there, strict=False))
            hits += sum(draft == token for draft, token in pairs)
            total += len(pairs)
    return hits / total if total else float("nan")


@torch.no_grad()
def surprise(
    target: Target, run: Evaluation, prompts: Sequence[Sequence[int]]
) -> float:
    """Return the mean of -log p_target over the tokens of all replies, in nats."""
    nats, count = 0.0, 0
    for prompt, reply in zip(prompts, run.replies, strict=True):
        ids = as_row([*prompt, *reply.tokens], target.device)
        laws = target.forward(ids).logits[0, len(prompt) - 1 : -1].float()
        drawn = ids[0, len(prompt) :, None]
        nats -= float(laws.log_softmax(dim=-1).gather(1, drawn).sum())
        count += len(drawn)
    return nats / max(count, 1)


def causes() -> str:
    """Return the nine causes in alphabetical order, numbered; no letters."""
    return "\n".join(f"{n:2}  {cause}" for n, cause in enumerate(_causes(), 1))


def diagnose(answer: Mapping[str, Any]) -> Feedback:
    """Compare a diagnosis, exhibit -> number of its cause, with what was planted."""
    given = {name: number for name, number in answer.items() if number is not ...}
    if not given:
        return Feedback(NOT_ATTEMPTED, "put the numbers of causes in place of dots.")
    listed = _causes()
    right = [
        name
        for name, number in given.items()
        if name in EXHIBITS
        and number in range(1, len(listed) + 1)
        and EXHIBITS[name].cause == listed[number - 1]
    ]
    message = f"{len(right)} of {len(EXHIBITS)} found"
    wrong = [name for name in given if name not in right]
    if wrong:
        return Feedback(WRONG, f"{message}; look again at {', '.join(wrong)}.")
    rest = len(EXHIBITS) - len(right)
    return Feedback(CORRECT, f"{message}." if not rest else f"{message}, {rest} to go.")


def reveal() -> str:
    """Return each exhibit's cause and a public report of it."""
    width = len("https://github.com/")
    return "\n".join(
        f"{name}  {one.cause}\n   {one.report[width:]}"
        for name, one in EXHIBITS.items()
    )


def _causes() -> list[str]:
    return sorted(one.cause for one in EXHIBITS.values())


def bare_drafter(pair: Pair) -> Any:
    """Return a drafter without a head, frozen, for one of the reader's own.

    Of the tiny pair it is the one that was trained so; of another, its backbone.
    """
    drafter = headless(pair).drafter
    if pair_name() == "tiny":
        drafter = load_drafter("tiny/dflash", pair.target)
    return drafter.requires_grad_(False)
