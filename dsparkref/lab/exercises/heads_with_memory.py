"""Exercises of notebook 06: the cost of a step, Eq. 6, Domino's step.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from dsparkref.draft.describe import head_cost
from dsparkref.draft.heads import DominoHead, Head, RNNHead
from dsparkref.draft.spec import DrafterSpec
from dsparkref.lab.checks import Exercise

# -- warm-up: what a step of the rnn head costs ---------------------------------------


def _spec(vocab_size: int, hidden_size: int, rank: int) -> DrafterSpec:
    return DrafterSpec(
        head="rnn",
        block_size=7,
        target_layer_ids=(1, 3),
        mask_token_id=0,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rank=rank,
    )


def _joint(spec: DrafterSpec) -> int:
    return 3 * spec.rank * (2 * spec.rank + spec.hidden_size)


def _out(spec: DrafterSpec) -> int:
    return spec.rank * spec.vocab_size


def _lookup_counted(spec: DrafterSpec) -> tuple[int, int]:
    return _joint(spec) + 2 * _out(spec), spec.rank


def _one_part(spec: DrafterSpec) -> tuple[int, int]:
    return _joint(spec) // 3 + _out(spec), spec.rank


def _no_output(spec: DrafterSpec) -> tuple[int, int]:
    return _joint(spec), spec.rank


def _no_state_read(spec: DrafterSpec) -> tuple[int, int]:
    return 3 * spec.rank * (spec.rank + spec.hidden_size) + _out(spec), spec.rank


def _no_hidden_read(spec: DrafterSpec) -> tuple[int, int]:
    return 6 * spec.rank**2 + _out(spec), spec.rank


def _whole_block(spec: DrafterSpec) -> tuple[int, int]:
    return spec.block_size * (_joint(spec) + _out(spec)), spec.rank


def _token_carried(spec: DrafterSpec) -> tuple[int, int]:
    return _joint(spec) + _out(spec), 2 * spec.rank


def _all_parts_carried(spec: DrafterSpec) -> tuple[int, int]:
    return _joint(spec) + _out(spec), 3 * spec.rank


def _nothing_carried(spec: DrafterSpec) -> tuple[int, int]:
    return _joint(spec) + _out(spec), 0


def _constants_counted(spec: DrafterSpec) -> tuple[int, int]:
    return _joint(spec) + 3 * spec.rank + _out(spec), spec.rank


def _multiplications_and_additions(spec: DrafterSpec) -> tuple[int, int]:
    return 2 * (_joint(spec) + _out(spec)), spec.rank


COST = Exercise(
    name="rnn_cost",
    reference=head_cost,
    cases=[(_spec(97, 32, 8),), (_spec(1000, 48, 16),)],
    mistakes={
        "W_1 is looked up: its row is read, and nothing is multiplied.": (
            _lookup_counted
        ),
        "The joint projection makes three parts of r numbers each: gate, candidate, "
        "output.": _one_part,
        "W_2 is missing. It makes V pushes of r numbers, at every step.": _no_output,
        "z_k has three parts, and s_{k-1} is one of them.": _no_state_read,
        "z_k has three parts, and h_k is one of them.": _no_hidden_read,
        "This is a whole block. One step was asked for.": _whole_block,
        "Only s_k goes on to the next step. W_1[x_{k-1}] is looked up anew.": (
            _token_carried
        ),
        "Something is carried: s_k, the memory of this head.": _nothing_carried,
        "Gate and output are used up within the step. Only s_k goes on.": (
            _all_parts_carried
        ),
        "The constants of the projection are added, not multiplied: they are no "
        "multiply-adds.": _constants_counted,
        "A multiply-add counts once here, not twice.": _multiplications_and_additions,
    },
)

# -- core: Eq. 6 ----------------------------------------------------------------------


@torch.no_grad()
def _with_random_weights(head: Head, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        parameter.normal_(generator=generator).requires_grad_(False)
    return head


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _parts(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, ...]:
    joint = torch.cat([state, head.prev_embed(prev_tokens), hidden], dim=-1)
    return head.joint_proj(joint).chunk(3, dim=-1)


def _moved(state: Tensor, gate: Tensor, candidate: Tensor) -> Tensor:
    gate = gate.sigmoid()
    return gate * state + (1 - gate) * candidate.tanh()


def _one_too_late(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """B_k from z_k with s_k in it."""
    _, after = RNNHead.step(head, state, prev_tokens, hidden)
    bias, _ = RNNHead.step(head, after, prev_tokens, hidden)
    return bias, after


def _state_projected(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    _, after = RNNHead.step(head, state, prev_tokens, hidden)
    return head.bias_proj(after), after


def _z_turned_round(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    joint = torch.cat([head.prev_embed(prev_tokens), state, hidden], dim=-1)
    gate, candidate, output = head.joint_proj(joint).chunk(3, dim=-1)
    return head.bias_proj(output.tanh()), _moved(state, gate, candidate)


def _candidate_first(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    candidate, gate, output = _parts(head, state, prev_tokens, hidden)
    return head.bias_proj(output.tanh()), _moved(state, gate, candidate)


def _gate_turned_round(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    gate, candidate, output = _parts(head, state, prev_tokens, hidden)
    return head.bias_proj(output.tanh()), _moved(state, -gate, candidate)


def _no_tanh(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    gate, candidate, output = _parts(head, state, prev_tokens, hidden)
    return head.bias_proj(output), _moved(state, gate, candidate)


def _no_tanh_in_the_state(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    gate, candidate, output = _parts(head, state, prev_tokens, hidden)
    gate = gate.sigmoid()
    return head.bias_proj(output.tanh()), gate * state + (1 - gate) * candidate


def _gate_is_a_logit(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    gate, candidate, output = _parts(head, state, prev_tokens, hidden)
    after = gate * state + (1 - gate) * candidate.tanh()
    return head.bias_proj(output.tanh()), after


def _state_first(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    bias, after = RNNHead.step(head, state, prev_tokens, hidden)
    return after, bias


def _state_not_moved(
    head: RNNHead, state: Tensor, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    return RNNHead.step(head, state, prev_tokens, hidden)[0], state


def _rnn_case(rank: int, hidden_size: int, tokens: list[int]) -> tuple[Any, ...]:
    head = _with_random_weights(RNNHead(5, rank, hidden_size), seed=rank)
    count = len(tokens)
    state, hidden = _randn(count, rank).tanh(), _randn(count, hidden_size)
    return head, state, torch.tensor(tokens), hidden


RNN = Exercise(
    name="rnn_step",
    reference=RNNHead.step,
    cases=[_rnn_case(2, 3, [1]), _rnn_case(3, 4, [4, 0])],
    mistakes={
        "B_k was computed from s_k. In Eq. 6 it sees s_{k-1}, through z_k: the token "
        "x_{k-1} comes in by itself.": _one_too_late,
        "W_2 was given the new state. It is given tanh of the third part of the "
        "projection, the output.": _state_projected,
        "z_k is [s_{k-1} ; W_1[x_{k-1}] ; h_k], in this order: the columns of the "
        "weights are not yours to choose.": _z_turned_round,
        "The parts are gate, candidate, output, in this order.": _candidate_first,
        "The gate says how much of the *old* state stays. Yours says how much is "
        "new.": _gate_turned_round,
        "The output goes through tanh before W_2.": _no_tanh,
        "The candidate goes through tanh before it is mixed in.": (
            _no_tanh_in_the_state
        ),
        "The gate goes through a sigmoid: it is a number between 0 and 1.": (
            _gate_is_a_logit
        ),
        "A step returns the bias first, then the state.": _state_first,
        "The state handed on is the old one: nothing is ever remembered.": (
            _state_not_moved
        ),
    },
)

# -- stretch: Domino's step -----------------------------------------------------------

DominoState = tuple[Tensor, int]


def _corrected(head: DominoHead, memory: Tensor, hidden: Tensor) -> Tensor:
    return head.bias_proj(silu(head.inner_proj(torch.cat([hidden, memory], dim=-1))))


def _read(head: DominoHead, memory: Tensor, prev_tokens: Tensor) -> Tensor:
    return head.gru(head.embed(prev_tokens), memory)


def _nothing(head: DominoHead, count: int) -> Tensor:
    return torch.zeros(count, head.bias_proj.out_features)


def _prefix_ignored(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    memory = _read(head, state[0], prev_tokens)
    return _corrected(head, memory, hidden), (memory, state[1] + 1)


def _prefix_not_read(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    memory, position = state
    if position < head.prefix_len:
        return _nothing(head, len(hidden)), (memory, position + 1)
    return _prefix_ignored(head, state, prev_tokens, hidden)


def _prefix_too_long(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    bias, after = _prefix_ignored(head, state, prev_tokens, hidden)
    return _nothing(head, len(hidden)) if state[1] <= head.prefix_len else bias, after


def _one_too_early(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    """B_k from g_{k-1}, as Eq. 6 would have it."""
    bias, after = DominoHead.step(head, state, prev_tokens, hidden)
    if state[1] >= head.prefix_len:
        bias = _corrected(head, state[0], hidden)
    return bias, after


def _input_turned_round(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    bias, after = DominoHead.step(head, state, prev_tokens, hidden)
    if state[1] >= head.prefix_len:
        joint = torch.cat([after[0], hidden], dim=-1)
        bias = head.bias_proj(silu(head.inner_proj(joint)))
    return bias, after


def _one_matrix(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    """Without the SiLU in between."""
    bias, after = DominoHead.step(head, state, prev_tokens, hidden)
    if state[1] >= head.prefix_len:
        joint = torch.cat([hidden, after[0]], dim=-1)
        bias = head.bias_proj(head.inner_proj(joint))
    return bias, after


def _sigmoid_between(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    bias, after = DominoHead.step(head, state, prev_tokens, hidden)
    if state[1] >= head.prefix_len:
        joint = torch.cat([hidden, after[0]], dim=-1)
        bias = head.bias_proj(head.inner_proj(joint).sigmoid())
    return bias, after


def _not_counted_on(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    bias, (memory, _) = DominoHead.step(head, state, prev_tokens, hidden)
    return bias, (memory, state[1])


def _memory_alone(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    bias, (memory, _) = DominoHead.step(head, state, prev_tokens, hidden)
    return bias, memory


def _never_read(
    head: DominoHead, state: DominoState, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, DominoState]:
    """The GRU always starts from nothing."""
    memory = _read(head, torch.zeros_like(state[0]), prev_tokens)
    if state[1] < head.prefix_len:
        return _nothing(head, len(hidden)), (memory, state[1] + 1)
    return _corrected(head, memory, hidden), (memory, state[1] + 1)


def _domino_case(prefix_len: int, position: int) -> tuple[Any, ...]:
    vocab_size, hidden_size, gru_size, inner_size = 4, 2, 3, 2
    embedding = _randn(vocab_size, hidden_size)

    def embed(tokens: Tensor) -> Tensor:
        return embedding[tokens]

    sizes = vocab_size, hidden_size, gru_size, inner_size, prefix_len
    head = _with_random_weights(DominoHead(*sizes, embed), seed=position)
    state = _randn(1, gru_size).tanh(), position
    return head, state, torch.tensor([position]), _randn(1, hidden_size)


DOMINO = Exercise(
    name="domino_step",
    reference=DominoHead.step,
    cases=[_domino_case(0, 2), _domino_case(1, 0), _domino_case(1, 1)],
    mistakes={
        "The first `prefix_len` drafts keep their base logits: their bias is 0.": (
            _prefix_ignored
        ),
        "The bias of the first drafts is 0, and the GRU reads their tokens all the "
        "same: later drafts need them.": _prefix_not_read,
        "One draft too many keeps its base logits: positions count from 0.": (
            _prefix_too_long
        ),
        "B_k was computed from g_{k-1}. Unlike in Eq. 6, x_{k-1} comes in through "
        "the GRU alone, so it has to be read first.": _one_too_early,
        "The inner projection reads [h_k ; g_k], in this order.": _input_turned_round,
        "The SiLU between the two projections is missing; without it they are one "
        "matrix.": _one_matrix,
        "A sigmoid stands in the place of the SiLU, which is x times the sigmoid of "
        "x.": _sigmoid_between,
        "The state is a pair: g_k, and the position of the next draft.": _memory_alone,
        "The position is not counted on: it is part of the state.": _not_counted_on,
        "The GRU starts anew at each step. It goes on from the state it is given.": (
            _never_read
        ),
    },
)

EXERCISES = {exercise.name: exercise for exercise in (COST, RNN, DOMINO)}
