"""Exercises of notebook 10: counting over replies, stops and caps, what a cut proves.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dsparkref.analysis.evaluate import Evaluation
from dsparkref.analysis.metrics import observations
from dsparkref.decode.request import Request
from dsparkref.lab.checks import Exercise, shown
from dsparkref.records import CycleTrace

# -- warm-up: tokens per cycle over several replies -----------------------------------


@dataclass(frozen=True, repr=False)
class Counted:
    """Stands for an ``Evaluation``: its counts alone."""

    # [n, 2], tokens added by cycles, and cycles, of each reply
    lengths: Tensor

    def __repr__(self) -> str:
        return f"evaluation(lengths={shown(self.lengths)})"


def _mean_of_replies(counted: Counted, prompts: Tensor) -> float:
    tokens, cycles = counted.lengths[prompts].T
    return (tokens / cycles).mean().item()


def _all_replies(counted: Counted, prompts: Tensor) -> float:
    tokens, cycles = counted.lengths.sum(dim=0).tolist()
    return tokens / cycles


def _upside_down(counted: Counted, prompts: Tensor) -> float:
    tokens, cycles = counted.lengths[prompts].sum(dim=0).tolist()
    return cycles / tokens


def _drafts_alone(counted: Counted, prompts: Tensor) -> float:
    tokens, cycles = counted.lengths[prompts].sum(dim=0).tolist()
    return (tokens - cycles) / cycles


def _prefill_too(counted: Counted, prompts: Tensor) -> float:
    tokens, cycles = counted.lengths[prompts].sum(dim=0).tolist()
    return (tokens + len(prompts)) / cycles


def _each_once(counted: Counted, prompts: Tensor) -> float:
    tokens, cycles = counted.lengths[prompts.unique()].sum(dim=0).tolist()
    return tokens / cycles


MEAN_LENGTH = Exercise(
    name="mean_length",
    reference=Evaluation.mean_length,
    cases=[
        (Counted(torch.tensor([[12, 2], [10, 10]])), torch.tensor([0, 1])),
        (Counted(torch.tensor([[12, 2], [10, 10], [9, 3]])), torch.tensor([2, 0, 2])),
        (Counted(torch.tensor([[7, 4], [8, 2]])), torch.tensor([0])),
    ],
    mistakes={
        "A mean of the replies' means: a reply of two cycles weighs as much as one of "
        "ten. Count tokens and cycles over all of them.": _mean_of_replies,
        "Only the replies in `prompts` count.": _all_replies,
        "Upside down: these are cycles per token.": _upside_down,
        "These are drafts per cycle. The target's own token counts as well, and it is "
        "in the counts already.": _drafts_alone,
        "The first token of a reply comes from the prefill and belongs to no cycle.": (
            _prefill_too
        ),
        "A reply that is named twice counts twice: that is how replies are drawn anew "
        "for an interval.": _each_once,
    },
)

# -- core: what of a cycle's tokens is kept -------------------------------------------


@dataclass(repr=False)
class ShortRequest(Request):
    """A request that says only what this exercise is about."""

    def __repr__(self) -> str:
        stops = sorted(self.stop_token_ids)
        return (
            f"request(tokens={self.tokens}, max_new_tokens={self.max_new_tokens}, "
            f"stop_token_ids={stops})"
        )


def _everything(request: Request, new_tokens: Sequence[int]) -> list[int]:
    return list(new_tokens)


def _cap_alone(request: Request, new_tokens: Sequence[int]) -> list[int]:
    return list(new_tokens)[: request.max_new_tokens - len(request.tokens)]


def _stop_alone(request: Request, new_tokens: Sequence[int]) -> list[int]:
    return replace(request, max_new_tokens=10**6).keep(new_tokens)


def _stop_left_out(request: Request, new_tokens: Sequence[int]) -> list[int]:
    kept = replace(request, tokens=list(request.tokens)).keep(new_tokens)
    return [token for token in kept if token not in request.stop_token_ids]


def _only_the_last(request: Request, new_tokens: Sequence[int]) -> list[int]:
    room = request.max_new_tokens - len(request.tokens)
    stopped = new_tokens and new_tokens[-1] in request.stop_token_ids
    return list(new_tokens) if stopped else list(new_tokens)[:room]


def _cap_per_cycle(request: Request, new_tokens: Sequence[int]) -> list[int]:
    return replace(request, tokens=[]).keep(new_tokens)


def _one_more(request: Request, new_tokens: Sequence[int]) -> list[int]:
    return replace(request, max_new_tokens=request.max_new_tokens + 1).keep(new_tokens)


def _nothing_after_a_stop(request: Request, new_tokens: Sequence[int]) -> list[int]:
    stopped = request.stop_token_ids & set(new_tokens)
    return [] if stopped else _cap_alone(request, new_tokens)


def _request(cap: int, *tokens: int) -> Request:
    return ShortRequest([5, 6], cap, frozenset([9]), list(tokens))


KEEP = Exercise(
    name="keep",
    reference=Request.keep,
    cases=[
        (_request(10, 1), [2, 9, 3]),
        (_request(4, 1, 2), [3, 4, 5, 6, 7]),
        (_request(3, 1), [2, 9]),
        (_request(3, 1, 2), [3, 9]),
        (_request(8), [4, 4, 4]),
    ],
    mistakes={
        "Neither a stop token nor the cap ends the reply.": _everything,
        "A stop token inside the block ends the reply there: what stands behind it "
        "is dropped, though the verifier kept it.": _cap_alone,
        "The cap is not kept: a block may reach past it.": _stop_alone,
        "The stop token belongs to the reply, as its last entry.": _stop_left_out,
        "You look for a stop token at the end of the block only; it may stand "
        "anywhere in it.": _only_the_last,
        "The cap is for the whole reply. The tokens that it already has count.": (
            _cap_per_cycle
        ),
        "One token too many: the reply has the cap's length when it is full.": (
            _one_more
        ),
        "A block with a stop token in it is not lost: all up to that token is kept.": (
            _nothing_after_a_stop
        ),
    },
)

# -- stretch: what a cut proves -------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ShortTrace(CycleTrace):
    """A trace that says only what this exercise is about."""

    def __repr__(self) -> str:
        shown = ("verify_len", "num_accepted", "next_token")
        return f"cycle({', '.join(f'{n}={getattr(self, n)}' for n in shown)})"


def _cycle(verify_len: int, num_accepted: int, next_token: int | None) -> ShortTrace:
    emitted = [7] * num_accepted + ([] if next_token is None else [next_token])
    return ShortTrace(
        index=0,
        context_len=9,
        anchor=1,
        drafts=[7] * 4,
        confidence=None,
        verify_len=verify_len,
        num_accepted=num_accepted,
        next_token=next_token,
        emitted=emitted,
        draft_seconds=0.0,
        verify_seconds=0.0,
    )


def _counts(accepted: Any, observed: Any) -> tuple[Tensor, Tensor]:
    return torch.tensor(accepted), torch.tensor(observed)


def _cut_is_refused(cycles: Sequence[CycleTrace]) -> Any:
    return _counts(
        [cycle.num_accepted for cycle in cycles], [cycle.verify_len for cycle in cycles]
    )


def _whole_block(cycles: Sequence[CycleTrace]) -> Any:
    return _counts(
        [cycle.num_accepted for cycle in cycles],
        [
            cycle.num_accepted if cycle.next_token is None else len(cycle.drafts)
            for cycle in cycles
        ],
    )


def _cut_left_out(cycles: Sequence[CycleTrace]) -> Any:
    whole = [cycle for cycle in cycles if cycle.next_token is not None]
    return observations(whole)


def _never_refused(cycles: Sequence[CycleTrace]) -> Any:
    accepted = [cycle.num_accepted for cycle in cycles]
    return _counts(accepted, accepted)


def _bonus_accepted(cycles: Sequence[CycleTrace]) -> Any:
    _, observed = observations(cycles)
    return torch.tensor([len(cycle.emitted) for cycle in cycles]), observed


def _emitted_less_one(cycles: Sequence[CycleTrace]) -> Any:
    _, observed = observations(cycles)
    return torch.tensor([len(cycle.emitted) - 1 for cycle in cycles]), observed


def _token_0_is_none(cycles: Sequence[CycleTrace]) -> Any:
    return _counts(
        [cycle.num_accepted for cycle in cycles],
        [
            cycle.verify_len if cycle.next_token else cycle.num_accepted
            for cycle in cycles
        ],
    )


def _with_one_more(cycles: Sequence[CycleTrace], where_cut: int) -> Any:
    accepted = [cycle.num_accepted for cycle in cycles]
    more = [where_cut if cycle.next_token is None else 1 for cycle in cycles]
    return _counts(accepted, [n + m for n, m in zip(accepted, more, strict=True)])


def _one_more_everywhere(cycles: Sequence[CycleTrace]) -> Any:
    return _with_one_more(cycles, where_cut=1)


def _one_more_where_uncut(cycles: Sequence[CycleTrace]) -> Any:
    return _with_one_more(cycles, where_cut=0)


def _up_to_the_rejection(cycles: Sequence[CycleTrace]) -> Any:
    accepted, observed = observations(cycles)
    return accepted, torch.minimum(accepted + 1, observed)


def _swapped(cycles: Sequence[CycleTrace]) -> Any:
    return observations(cycles)[::-1]


OBSERVED = Exercise(
    name="observed_drafts",
    reference=observations,
    cases=[
        ([_cycle(3, 2, 5), _cycle(3, 2, None)],),
        ([_cycle(4, 0, 6), _cycle(2, 2, 8), _cycle(4, 1, None), _cycle(3, 1, 5)],),
        ([_cycle(3, 1, 0)],),
    ],
    mistakes={
        "A cycle that a stop token or the cap cut counts as one that refused its next "
        "draft. Nobody knows whether it stood: next_token is None.": _cut_is_refused,
        "Drafts that were never handed to the target count as observed.": _whole_block,
        "Cut cycles are left out. They do prove something: the drafts before the cut "
        "stood, and leaving them out drops just those that stood long.": _cut_left_out,
        "Yours says that no draft was ever refused. Where next_token is there, the "
        "draft behind the accepted ones was judged and fell.": _never_refused,
        "The target's own token is no draft: count num_accepted, not emitted.": (
            _bonus_accepted
        ),
        "len(emitted) - 1 counts the drafts only where the target's own token was "
        "kept; a cut cycle has none.": _emitted_less_one,
        "You stop at the rejected draft. The verifier looked on to verify_len, and "
        "that is what is counted. (Conditional acceptance is the same either way.)": (
            _up_to_the_rejection
        ),
        "Token 0 is a token: ask whether `next_token is None`.": _token_0_is_none,
        "num_accepted + 1 is the draft that fell, if one did. Where all that were "
        "verified stood, nothing behind them was judged; where the reply was cut, "
        "neither.": _one_more_everywhere,
        "num_accepted + 1 is the draft that fell, if one did. Where all that were "
        "verified stood, nothing behind them was judged.": _one_more_where_uncut,
        "The two are in the wrong order: accepted first, then observed.": _swapped,
    },
)

EXERCISES = {exercise.name: exercise for exercise in (MEAN_LENGTH, KEEP, OBSERVED)}
