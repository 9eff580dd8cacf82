"""One cycle: draft, verify, commit; for one request or for many at once.

The drafter proposes K tokens after each request's anchor, a policy says how many of
them the target looks at, the target runs once over anchors and drafts, the verifier
keeps a prefix of each row and adds one token of its own: that request's next anchor.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dsparkref.decode.request import Request, as_row
from dsparkref.decode.target import Session, SessionBatch, Target
from dsparkref.draft.drafter import Drafter
from dsparkref.records import CycleTrace, Proposal, Verdict
from dsparkref.shapes import check_known, check_offers, check_shape, problem
from dsparkref.verify.inputs import check_draft_ids, check_lengths
from dsparkref.verify.policies import Policy
from dsparkref.verify.rejection import VERIFIERS
from dsparkref.verify.sampling import (
    check_settings,
    draw_uniforms,
    invert_cdf,
    probabilities,
)

TARGET_LOGITS = "target logits"


@dataclass(frozen=True)
class Sampler:
    """Temperature and filters: from the target's logits to laws and tokens."""

    # >= 0; 0 is greedy
    temperature: float = 0.0
    # >= 1, or None: no cut
    top_k: int | None = None
    # in (0, 1], or None: no cut
    top_p: float | None = None

    def __post_init__(self) -> None:
        check_settings(**asdict(self))  # before any model runs

    def law(self, logits: Tensor) -> Tensor:
        """Return the target's probabilities, float32 or wider."""
        return probabilities(logits, **asdict(self), name=TARGET_LOGITS)

    def draw(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw one token per row, [B, V] -> [B]."""
        law, rows = self.law(logits), (len(logits),)
        uniforms = draw_uniforms(rows, generator=generator, device=logits.device)
        return invert_cdf(law, uniforms)


class Features:
    """The target features a drafter has not seen yet.

    A drafter with a context cache gets each row once; one without gets all rows of
    the committed context every time.
    """

    def __init__(self, drafter: Any, hidden: Tensor) -> None:
        make_cache = getattr(drafter, "new_cache", None)
        self.cache = None if make_cache is None else make_cache()
        self._rows = hidden  # [1, n, L*D], those of the last n committed tokens
        self._committed = hidden.shape[1]

    def rows(self) -> Tensor:
        """Return the rows for the drafter's next call."""
        if self.cache is None:
            return self._rows
        # The cache says what it holds: a cycle that broke off may have filled it.
        unseen = self._committed - self.cache.length
        return self._rows[:, max(self._rows.shape[1] - unseen, 0) :]

    def extend(self, hidden: Tensor) -> None:
        """Take in the rows of newly committed tokens."""
        self._committed += hidden.shape[1]
        if self.cache is None:
            hidden = torch.cat([self._rows, hidden], dim=1)
        self._rows = hidden


@dataclass
class Running:
    """One request between two cycles: what is committed, and what comes next."""

    request: Request
    generator: torch.Generator | None
    session: Session
    features: Features
    # [1], the last token emitted; the target has not read it yet
    anchor: Tensor
    # cycles so far
    index: int = 0

    def remember(self) -> Callable[[], None]:
        """Return a function that undoes all that has happened since.

        Not what a drafter's context cache took in: ``Features.rows`` sees it there.
        """
        held = dict(vars(self)), dict(vars(self.features))
        tokens, reason = list(self.request.tokens), self.request.finish_reason
        length = self.session.length

        def undo() -> None:
            vars(self).update(held[0])
            vars(self.features).update(held[1])
            self.request.tokens[:] = tokens
            self.request.finish_reason = reason
            self.session.length = length
            self.session.roll_back()

        return undo

    def advance(
        self,
        proposal: Proposal,
        verify_len: int,
        verdict: Verdict,
        hidden: Tensor,
        seconds: tuple[float, float],
        tables: Mapping[str, Any],
    ) -> CycleTrace:
        """Take in what a cycle decided, after the session has committed it.

        ``tables`` are the trace's tensors, as far as they are kept.
        """
        num_accepted, next_token = int(verdict.num_accepted), int(verdict.next_token)
        drafts, confidence = proposal.tokens[0].tolist(), proposal.confidence
        anchor = self.request.tokens[-1]
        emitted = self.request.keep([*drafts[:num_accepted], next_token])
        trace = CycleTrace(
            index=self.index,
            context_len=self.session.length - (1 + num_accepted),
            anchor=anchor,
            drafts=drafts,
            confidence=None if confidence is None else confidence[0].tolist(),
            verify_len=verify_len,
            num_accepted=min(num_accepted, len(emitted)),
            next_token=next_token if len(emitted) > num_accepted else None,
            emitted=emitted,
            draft_seconds=seconds[0],
            verify_seconds=seconds[1],
            **tables,
        )
        self.features.extend(hidden[:, : 1 + num_accepted])
        self.anchor, self.index = verdict.next_token, self.index + 1
        return trace


class Decoding:
    """A pair, its settings and the policy's memory: what all cycles share."""

    def __init__(
        self,
        target: Target,
        drafter: Any,
        sampler: Sampler,
        policy: Policy | None,
        verifier: str,
    ) -> None:
        check_known("verifier", verifier, tuple(VERIFIERS))
        check_offers("target", target, "prefill", "vocab_size")
        check_offers("drafter", drafter, "block_size", "propose")
        if policy is not None:
            check_offers("policy", policy, "start", "verify_lengths")
        self.target, self.drafter, self.sampler = target, drafter, sampler
        self.policy = None if policy is None else policy.start()
        self.verify_block = VERIFIERS[verifier]
        spec = getattr(drafter, "spec", None)
        self.layer_ids = spec.target_layer_ids if spec is not None else ()
        if spec is not None and spec.vocab_size != target.vocab_size:
            rule, expected = "fit the target", f"vocabulary {target.vocab_size}"
            raise problem("drafter", rule, expected, spec.vocab_size)
        # tokens of context it was made for; None: not known, or said already
        self._reach = getattr(spec, "max_position_embeddings", None)
        device = getattr(drafter, "device", target.device)  # a scripted one has none
        if device != target.device:
            rule = "be on the target's device"
            raise problem("drafter", rule, target.device, device)

    def start(self, request: Request, generator: torch.Generator | None) -> Running:
        """Read a prompt and draw the first token, which belongs to no cycle."""
        prompt = as_row(request.prompt, self.target.device)
        session, output = self.target.prefill(prompt, self.layer_ids)
        features = Features(self.drafter, output.hidden)
        anchor = self.sampler.draw(output.logits[:, -1], generator)  # [1]
        request.keep([int(anchor)])
        return Running(request, generator, session, features, anchor)

    def cycle(
        self, rows: Sequence[Running], keep_tensors: bool = False
    ) -> list[CycleTrace]:
        """Take each row one cycle further; the target runs once for all of them.

        Nothing is committed before all is decided. The seconds are the whole cycle's.
        """
        began = self.target.clock()
        self._note_reach(rows)
        anchors = torch.cat([row.anchor for row in rows])  # [R]
        proposal = self._propose(rows, anchors)
        lengths = self._verify_lengths(rows, proposal)  # [R]
        drafted = self.target.clock()
        counts = lengths.tolist()
        longest = max(counts)
        drafts, p_draft = proposal.tokens[:, :longest], proposal.p_draft[:, :longest]
        sessions = SessionBatch(self.target, [row.session for row in rows])
        block = torch.cat([anchors[:, None], drafts], dim=1)  # [R, longest + 1]
        output = sessions.verify(block, [1 + count for count in counts])
        p_target = self.sampler.law(output.logits)  # [R, longest + 1, V]
        uniforms = self._uniforms(rows, counts)
        verdict = self.verify_block(
            drafts, p_draft, p_target, _one_table(uniforms), verify_len=lengths
        )
        sessions.commit((1 + verdict.num_accepted).tolist())
        seconds = drafted - began, self.target.clock() - drafted
        decided = _split(proposal, len(rows)), counts, _split(verdict, len(rows))
        traces = []
        for index, (row, *own) in enumerate(zip(rows, *decided, strict=True)):
            own_proposal, length, own_verdict = own
            tables = {
                "proposal": own_proposal,
                "p_draft": proposal.p_draft[index],
                "p_target": p_target[index, : length + 1],
                "uniforms": uniforms[index],
                "verdict": own_verdict,
            }
            hidden = output.hidden[index : index + 1]
            kept = tables if keep_tensors else {}
            traces.append(
                row.advance(own_proposal, length, own_verdict, hidden, seconds, kept)
            )
        return traces

    def _propose(self, rows: Sequence[Running], anchors: Tensor) -> Proposal:
        """Ask the drafter, for all rows at once where it can, and check its answer."""
        features = [row.features.rows() for row in rows]
        generators = [row.generator for row in rows]
        caches = [row.features.cache for row in rows]
        settings = asdict(self.sampler)
        if len(rows) > 1 and _drafts_in_batch(self.drafter):
            streams = {"generators": generators, "caches": caches}
            proposal = self.drafter.propose_batch(
                features, anchors, **settings, **streams
            )
            return self._checked(proposal, len(rows))
        proposals = []
        for own, anchor, generator, cache in zip(
            features, anchors.split(1), generators, caches, strict=True
        ):
            proposal = self.drafter.propose(
                own, anchor, **settings, generator=generator, cache=cache
            )
            proposals.append(self._checked(proposal, 1))
        return _joined(proposals)

    def _checked(self, proposal: Proposal, rows: int) -> Proposal:
        """Check shapes, devices and ids, and that its law can have given each draft."""
        sizes = {"B": rows, "K": self.drafter.block_size, "V": self.target.vocab_size}
        for name, shape in (("tokens", "B K"), ("p_draft", "B K V")):
            table, name = getattr(proposal, name), f"proposal.{name}"
            check_shape(name, table, shape, **sizes)
            if table.device != self.target.device:
                rule = "be on the target's device"
                raise problem(name, rule, self.target.device, table.device)
        check_draft_ids(proposal.tokens, proposal.p_draft.shape)
        drawn = proposal.p_draft.gather(-1, proposal.tokens[..., None])
        if not (drawn > 0).all():
            hint = "Draft and verifier must use the same tensor."
            rule, expected = "be drawn from p_draft", "p_draft > 0 at each draft"
            raise problem("proposal.tokens", rule, expected, "probability 0", hint)
        return proposal

    def _verify_lengths(self, rows: Sequence[Running], proposal: Proposal) -> Tensor:
        """Ask the policy how many drafts of each row the target is to look at.

        Never more than its context has room for: what stands past it is never kept.
        """
        size, device = self.drafter.block_size, proposal.tokens.device
        chosen = None  # all
        if self.policy is not None:
            chosen = self.policy.verify_lengths(
                proposal.confidence, block_size=size, num_requests=len(rows)
            )
        lengths = check_lengths(chosen, len(rows), size, device=device)
        limit = self.target.max_length
        if limit is None:
            return lengths
        room = [limit - 1 - row.session.length for row in rows]  # the anchor's is 1
        return lengths.minimum(torch.tensor(room, device=device))

    def _note_reach(self, rows: Sequence[Running]) -> None:
        """Warn, once, when a context has outgrown what the drafter was made for."""
        longest = 1 + max(row.session.length for row in rows)  # with the anchor
        if self._reach is not None and longest > self._reach:
            warnings.warn(
                f"the drafter's max_position_embeddings is {self._reach} and a context "
                f"has {longest} tokens: drafts may be poor from here on. The output's "
                "law is the target's all the same.",
                stacklevel=2,
            )
            self._reach = None

    def _uniforms(
        self, rows: Sequence[Running], lengths: Sequence[int]
    ) -> list[Tensor]:
        """Draw each row's numbers from its own stream, [verify_len + 1] each."""
        device = self.target.device
        return [
            draw_uniforms((1, length + 1), generator=row.generator, device=device)[0]
            for row, length in zip(rows, lengths, strict=True)
        ]


def _drafts_in_batch(drafter: Any) -> bool:
    """Tell whether ``propose`` is ours; a wrapper's own is asked row by row."""
    return getattr(drafter.propose, "__func__", None) is Drafter.propose


def _one_table(uniforms: Sequence[Tensor]) -> Tensor:
    """Pad rows of unlike lengths to one table; a row's last number stays last.

    >>> _one_table([torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.4, 0.5])])
    tensor([[0.1000, 0.0000, 0.2000],
            [0.3000, 0.4000, 0.5000]])
    """
    longest = max(len(row) for row in uniforms)
    padded = [
        torch.cat([row[:-1], row.new_zeros(longest - len(row)), row[-1:]])
        for row in uniforms
    ]
    return torch.stack(padded)  # [R, longest]


def _split(record: Any, rows: int) -> list[Any]:
    """Split a record of tensors [R, ...] into R records [1, ...]."""
    if rows == 1:
        return [record]
    columns = {
        name: [None] * rows if table is None else table.split(1)
        for name, table in vars(record).items()
    }
    own = zip(*columns.values(), strict=True)
    return [type(record)(*values) for values in own]


def _joined(proposals: Sequence[Proposal]) -> Proposal:
    """Join proposals [1, ...] to one [R, ...]; what one of them lacks is None."""
    if len(proposals) == 1:
        return proposals[0]
    columns: dict[str, Tensor | None] = {}
    for name in vars(proposals[0]):
        found = [getattr(proposal, name) for proposal in proposals]
        columns[name] = None if any(x is None for x in found) else torch.cat(found)
    return Proposal(**columns)  # type: ignore[arg-type]
