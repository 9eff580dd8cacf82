"""The decoding loop, one cycle at a time.

A cycle: the drafter proposes K tokens after the anchor, a policy says how many of
them the target looks at, the target runs once over anchor and drafts, the verifier
keeps a prefix and adds one token of its own, and that token is the next anchor.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dsparkref.decode.request import Prompt, Request, as_row, make_request
from dsparkref.decode.target import Session, Target
from dsparkref.records import CycleTrace, Generation, Proposal
from dsparkref.shapes import check_known, check_range, check_shape, problem
from dsparkref.verify.inputs import check_ids
from dsparkref.verify.policies import Policy
from dsparkref.verify.rejection import VERIFIERS
from dsparkref.verify.sampling import (
    as_generator,
    check_settings,
    draw_uniforms,
    invert_cdf,
    probabilities,
)

TARGET_LOGITS = "target logits"


def generate(
    target: Target,
    drafter: Any,
    prompt_ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token_ids: Sequence[int] | None = None,
    policy: Policy | None = None,
    verifier: str = "rejection",
    generator: torch.Generator | int | None = None,
) -> Generation:
    """Decode one prompt speculatively; the output law is the target's alone.

    prompt_ids: list[int] or LongTensor [T] or [1, T]. max_new_tokens: >= 0.
    temperature, top_k, top_p: shape the target's law, and the drafter's alike.
    stop_token_ids: None takes the target's own, [] never stops; a stop token is the
    last one returned. policy: None verifies all K drafts. verifier: "rejection" or
    "token_match". generator: a torch.Generator, an int seed, or None.
    """
    request = make_request(target, prompt_ids, max_new_tokens, stop_token_ids)
    decoding = Decoding(
        target, drafter, request, temperature, top_k, top_p, policy, verifier, generator
    )
    cycles = list(decoding.cycles())
    return Generation(request.tokens, request.finish_reason or "length", cycles)


def decode_cycles(
    target: Target,
    drafter: Any,
    prompt_ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token_ids: Sequence[int] | None = None,
    policy: Policy | None = None,
    verifier: str = "rejection",
    generator: torch.Generator | int | None = None,
    keep_tensors: bool = False,
) -> Iterator[CycleTrace]:
    """Decode as ``generate`` does and yield each cycle as it is done.

    The first token comes from the prefill: it is the first cycle's ``anchor``. With
    ``keep_tensors`` a trace also holds the [K, V] tables, which are large.
    """
    request = make_request(target, prompt_ids, max_new_tokens, stop_token_ids)
    decoding = Decoding(
        target, drafter, request, temperature, top_k, top_p, policy, verifier, generator
    )
    return decoding.cycles(keep_tensors)


def autoregressive(
    target: Target,
    prompt_ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token_ids: Sequence[int] | None = None,
    generator: torch.Generator | int | None = None,
) -> Generation:
    """Decode one token per forward pass: what speculation is measured against."""
    request = make_request(target, prompt_ids, max_new_tokens, stop_token_ids)
    sampler = Sampler(temperature, top_k, top_p, generator)
    if request.finish_reason is None:
        session, output = target.prefill(as_row(request.prompt, target.device))
    while request.finish_reason is None:
        token = sampler.draw(output.logits[:, -1])  # [1]
        request.keep([int(token)])
        if request.finish_reason is None:
            output = session.verify(token[:, None])
            session.commit(1)
    return Generation(request.tokens, request.finish_reason or "length", [])


class Sampler:
    """Temperature, filters and random stream of one request."""

    def __init__(
        self,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        generator: torch.Generator | int | None,
    ) -> None:
        self.settings: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        check_settings(temperature, top_k, top_p)  # before any model runs
        self.generator = as_generator(generator)

    def law(self, logits: Tensor) -> Tensor:
        """Return the target's probabilities, float32 or wider."""
        return probabilities(logits, **self.settings, name=TARGET_LOGITS)

    def uniforms(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return uniforms in [0, 1)."""
        return draw_uniforms(shape, generator=self.generator, device=device)

    def draw(self, logits: Tensor) -> Tensor:
        """Draw one token per row, [B, V] -> [B]."""
        uniforms = self.uniforms((len(logits),), logits.device)
        return invert_cdf(self.law(logits), uniforms)


class Decoding:
    """One request on its way through the cycles."""

    def __init__(
        self,
        target: Target,
        drafter: Any,
        request: Request,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        policy: Policy | None,
        verifier: str,
        generator: torch.Generator | int | None,
    ) -> None:
        check_known("verifier", verifier, tuple(VERIFIERS))
        check_offers("drafter", drafter, "block_size", "propose")
        if policy is not None:
            check_offers("policy", policy, "start", "verify_lengths")
        self.target, self.drafter, self.request = target, drafter, request
        self.sampler = Sampler(temperature, top_k, top_p, generator)
        self.policy = None if policy is None else policy.start()
        self.verify_block = VERIFIERS[verifier]
        spec = getattr(drafter, "spec", None)
        self.layer_ids = spec.target_layer_ids if spec is not None else ()
        if spec is not None and spec.vocab_size != target.vocab_size:
            rule, expected = "fit the target", f"vocabulary {target.vocab_size}"
            raise problem("drafter", rule, expected, spec.vocab_size)
        device = getattr(drafter, "device", target.device)  # a scripted one has none
        if device != target.device:
            rule = "be on the target's device"
            raise problem("drafter", rule, target.device, device)

    def cycles(self, keep_tensors: bool = False) -> Iterator[CycleTrace]:
        """Prefill, then yield cycles until a stop token or the cap."""
        request, target = self.request, self.target
        if request.finish_reason is not None:
            return
        prompt = as_row(request.prompt, target.device)
        session, output = target.prefill(prompt, self.layer_ids)
        anchor = self.sampler.draw(output.logits[:, -1])  # [1]
        request.keep([int(anchor)])
        features = Features(self.drafter, output.hidden)
        index = 0
        while request.finish_reason is None:
            trace, hidden, anchor = self._cycle(session, features, anchor, index)
            features.extend(hidden)
            index += 1
            yield trace if keep_tensors else without_tensors(trace)

    def _cycle(
        self, session: Session, features: "Features", anchor: Tensor, index: int
    ) -> tuple[CycleTrace, Tensor, Tensor]:
        """Draft, verify, commit; return the trace, new features, the next anchor."""
        start = self._clock()
        proposal = self._propose(features, anchor)
        verify_len = self._verify_len(proposal)
        middle = self._clock()
        drafts = proposal.tokens[:, :verify_len]
        context_len = session.length
        output = session.verify(torch.cat([anchor[:, None], drafts], dim=1))
        p_target = self.sampler.law(output.logits)  # [1, verify_len + 1, V]
        uniforms = self.sampler.uniforms((1, verify_len + 1), anchor.device)
        p_draft = proposal.p_draft[:, :verify_len]
        verdict = self.verify_block(drafts, p_draft, p_target, uniforms)
        num_accepted, next_token = int(verdict.num_accepted), int(verdict.next_token)
        session.commit(1 + num_accepted)
        end = self._clock()

        emitted = self.request.keep([*drafts[0, :num_accepted].tolist(), next_token])
        confidence = proposal.confidence
        trace = CycleTrace(
            index=index,
            context_len=context_len,
            anchor=int(anchor),
            drafts=proposal.tokens[0].tolist(),
            confidence=None if confidence is None else confidence[0].tolist(),
            verify_len=verify_len,
            num_accepted=min(num_accepted, len(emitted)),
            next_token=next_token if len(emitted) > num_accepted else None,
            emitted=emitted,
            draft_seconds=middle - start,
            verify_seconds=end - middle,
            proposal=proposal,
            p_draft=proposal.p_draft[0],
            p_target=p_target[0],
            uniforms=uniforms[0],
            verdict=verdict,
        )
        return trace, output.hidden[:, : 1 + num_accepted], verdict.next_token

    def _propose(self, features: "Features", anchor: Tensor) -> Proposal:
        """Ask the drafter and check what it hands over."""
        proposal = self.drafter.propose(
            features.rows(),
            anchor,
            **self.sampler.settings,
            generator=self.sampler.generator,
            cache=features.cache,
        )
        size, vocab = self.drafter.block_size, self.target.vocab_size
        check_shape("proposal.tokens", proposal.tokens, "B K", B=1, K=size)
        check_shape("proposal.p_draft", proposal.p_draft, "B K V", B=1, K=size, V=vocab)
        check_ids(proposal.tokens, proposal.p_draft.shape)
        drawn = proposal.p_draft.gather(-1, proposal.tokens[..., None])
        if not (drawn > 0).all():
            hint = "Draft and verifier must use the same tensor."
            rule, expected = "be drawn from p_draft", "p_draft > 0 at each draft"
            raise problem("proposal.tokens", rule, expected, "probability 0", hint)
        return proposal

    def _verify_len(self, proposal: Proposal) -> int:
        """Ask the policy how many drafts the target is to look at."""
        size = self.drafter.block_size
        if self.policy is None:
            return size
        chosen = self.policy.verify_lengths(proposal.confidence, block_size=size)
        verify_len = int(chosen)
        check_range("verify_len", verify_len, 0, size, integer=True)
        return verify_len

    def _clock(self) -> float:
        """Return seconds, after the device has done what it was given."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()


class Features:
    """The target features a drafter has not seen yet.

    A drafter with a context cache gets each row once; one without gets all rows of
    the committed context every time.
    """

    def __init__(self, drafter: Any, hidden: Tensor) -> None:
        make_cache = getattr(drafter, "new_cache", None)
        self.cache = None if make_cache is None else make_cache()
        self._rows = hidden  # [1, T, L*D]

    def rows(self) -> Tensor:
        """Return the rows for the drafter's next call."""
        return self._rows

    def extend(self, hidden: Tensor) -> None:
        """Take in the rows of newly committed tokens."""
        if self.cache is None:
            hidden = torch.cat([self._rows, hidden], dim=1)
        self._rows = hidden


def check_offers(name: str, value: Any, *members: str) -> None:
    """Check that an object of the caller's has what the loop calls."""
    lacking = [member for member in members if not hasattr(value, member)]
    if lacking:
        got = f"{type(value).__name__} without {', '.join(lacking)}"
        rule, expected = f"be a {name}", " and ".join(members)
        raise problem(name, rule, expected, got, error=TypeError)


def without_tensors(trace: CycleTrace) -> CycleTrace:
    """Return the trace without its [K, V] tables."""
    tables = ("proposal", "p_draft", "p_target", "uniforms", "verdict")
    kept = {key: value for key, value in vars(trace).items() if key not in tables}
    return CycleTrace(**kept)
