"""Exercises of notebook 05: a step of the Markov head, of the gated one, the rank.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

from typing import Any

import torch
from torch import Tensor

from dsparkref.analysis.markov_table import truncated_table
from dsparkref.draft.heads import GatedMarkovHead, MarkovHead
from dsparkref.lab.checks import Exercise

Head = MarkovHead | GatedMarkovHead


@torch.no_grad()
def _with_random_weights(head: Head, seed: int) -> Head:
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        parameter.normal_(generator=generator).requires_grad_(False)
    return head


def _step_case(head: Head, prev_tokens: list[int], hidden_size: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(len(prev_tokens))
    hidden = torch.randn(len(prev_tokens), hidden_size, generator=generator)
    # No head looks at this state; a step hands it on as it came.
    return head, len(prev_tokens), torch.tensor(prev_tokens), hidden


# -- warm-up: one step of the vanilla head --------------------------------------------


def _only_the_bias(
    head: MarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> Tensor:
    return MarkovHead.step(head, state, prev_tokens, hidden)[0]


def _token_as_state(
    head: MarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    return _only_the_bias(head, state, prev_tokens, hidden), prev_tokens


def _tables_swapped(
    head: MarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return head.bias_proj.weight[prev_tokens] @ head.prev_embed.weight.T, state


def _not_projected(
    head: MarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return head.prev_embed(prev_tokens), state


def _whole_table(
    head: MarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return head.prev_embed.weight @ head.bias_proj.weight.T, state


def _a_law(
    head: MarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return _only_the_bias(head, state, prev_tokens, hidden).softmax(dim=-1), state


MARKOV = Exercise(
    name="markov_step",
    reference=MarkovHead.step,
    cases=[
        _step_case(_with_random_weights(MarkovHead(4, 2), seed=0), [2], 3),
        _step_case(_with_random_weights(MarkovHead(6, 3), seed=1), [5, 0], 2),
    ],
    mistakes={
        "A step returns two things: the bias and the next state. This head carries "
        "none, and hands on what it was given.": _only_the_bias,
        "The token before is no state: it comes as an argument at every step. Hand on "
        "the state as it came.": _token_as_state,
        "The tables are swapped: yours tells which tokens like to stand *before* "
        "x_{k-1}. The token before is looked up in W_1.": _tables_swapped,
        "These are the r numbers of W_1[x_{k-1}]. The bias has one number for each "
        "token of the vocabulary.": _not_projected,
        "This is the whole table of V x V pushes. Only the row of the token before "
        "is wanted.": _whole_table,
        "A softmax makes a law of the bias. It is added to logits, and the softmax "
        "comes after that (Eq. 4).": _a_law,
    },
)

# -- core: one step of the gated head -------------------------------------------------


def _gated(head: GatedMarkovHead, gate: Tensor, prev_tokens: Tensor) -> Tensor:
    return head.bias_proj(gate * head.prev_embed(prev_tokens))


def _gate_input(head: GatedMarkovHead, prev_tokens: Tensor, hidden: Tensor) -> Tensor:
    return torch.cat([hidden, head.prev_embed(prev_tokens)], dim=-1)


def _gate(head: GatedMarkovHead, prev_tokens: Tensor, hidden: Tensor) -> Tensor:
    return head.gate_proj(_gate_input(head, prev_tokens, hidden)).sigmoid()


def _no_gate(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return head.bias_proj(head.prev_embed(prev_tokens)), state


def _no_sigmoid(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    gate = head.gate_proj(_gate_input(head, prev_tokens, hidden))
    return _gated(head, gate, prev_tokens), state


def _tanh(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    gate = head.gate_proj(_gate_input(head, prev_tokens, hidden)).tanh()
    return _gated(head, gate, prev_tokens), state


def _input_turned_round(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    joint = torch.cat([head.prev_embed(prev_tokens), hidden], dim=-1)
    return _gated(head, head.gate_proj(joint).sigmoid(), prev_tokens), state


def _no_constant(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    logits = _gate_input(head, prev_tokens, hidden) @ head.gate_proj.weight.T
    return _gated(head, logits.sigmoid(), prev_tokens), state


def _gate_alone(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return head.bias_proj(_gate(head, prev_tokens, hidden)), state


def _gated_not_projected(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return _gate(head, prev_tokens, hidden) * head.prev_embed(prev_tokens), state


def _gate_on_the_bias(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    bias = head.bias_proj(head.prev_embed(prev_tokens))
    return _gate(head, prev_tokens, hidden) * bias, state


def _gate_of_the_bias(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    bias = head.bias_proj(head.prev_embed(prev_tokens))
    gate = head.gate_proj(torch.cat([hidden, bias], dim=-1)).sigmoid()
    return gate * bias, state


def _softmax(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    gate = head.gate_proj(_gate_input(head, prev_tokens, hidden)).softmax(dim=-1)
    return _gated(head, gate, prev_tokens), state


def _shut_for_open(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Any]:
    return _gated(head, 1 - _gate(head, prev_tokens, hidden), prev_tokens), state


def _only_the_gated_bias(
    head: GatedMarkovHead, state: Any, prev_tokens: Tensor, hidden: Tensor
) -> Tensor:
    return _gated(head, _gate(head, prev_tokens, hidden), prev_tokens)


GATED = Exercise(
    name="gated_step",
    reference=GatedMarkovHead.step,
    # V = r: only so does a gate meet the V pushes without an error, and can be told
    cases=[
        _step_case(_with_random_weights(GatedMarkovHead(2, 2, 2), seed=2), [1], 2),
        _step_case(_with_random_weights(GatedMarkovHead(3, 3, 2), seed=3), [0, 2], 2),
    ],
    mistakes={
        "A step returns two things: the bias and the next state.": (
            _only_the_gated_bias
        ),
        "This is the vanilla head: the gate is missing.": _no_gate,
        "The gate is a number between 0 and 1; yours is the logit of it.": _no_sigmoid,
        "tanh runs from -1 to 1: this gate could turn a push round. Between shut and "
        "open lie 0 and 1.": _tanh,
        "The gate comes after W_2 here, on the pushes. It weighs the r numbers of "
        "W_1[x_{k-1}], and W_2 makes pushes of what is left.": _gate_on_the_bias,
        "The gate is computed after W_2 here, from the pushes. It reads W_1[x_{k-1}] "
        "beside h_k, and weighs it before W_2.": _gate_of_the_bias,
        "A softmax makes the directions share one opening. Each gate opens by itself: "
        "a sigmoid.": _softmax,
        "These are the r numbers after the gate. W_2 has yet to make V pushes of "
        "them.": _gated_not_projected,
        "The gate reads [h_k ; W_1[x_{k-1}]], in this order: the columns of its "
        "weights are not yours to choose. Swapped parts load cleanly and gate "
        "nonsense.": _input_turned_round,
        "The gate has a constant b, which opens it where nothing is said. It is "
        "missing.": _no_constant,
        "The gate itself is projected here. It has to weigh the r numbers of "
        "W_1[x_{k-1}].": _gate_alone,
        "Open and shut are exchanged: 1 lets a direction pass.": _shut_for_open,
    },
)

# -- stretch: the nearest table of a lower rank ---------------------------------------


def _first_columns(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    return prev_embed[:, :rank] @ bias_proj[:, :rank].T


def _svd(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.linalg.svd(table, full_matrices=False)


def _cut(table: Tensor, rank: int) -> Tensor:
    left, sizes, right = _svd(table)
    return left[:, :rank] * sizes[:rank] @ right[:rank]


def _each_for_itself(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    return _cut(prev_embed, rank) @ _cut(bias_proj, rank).T


def _smallest(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    left, sizes, right = _svd(prev_embed @ bias_proj.T)
    last = slice(len(sizes) - rank, None)
    return left[:, last] * sizes[last] @ right[last]


def _without_sizes(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    left, _, right = _svd(prev_embed @ bias_proj.T)
    return left[:, :rank] @ right[:rank]


def _columns_of_vh(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    left, sizes, right = _svd(prev_embed @ bias_proj.T)
    return left[:, :rank] * sizes[:rank] @ right[:, :rank].T


def _so_many_dropped(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    return _cut(prev_embed @ bias_proj.T, prev_embed.shape[1] - rank)


def _turned_round(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    return truncated_table(prev_embed, bias_proj, rank).T


def _one_direction(prev_embed: Tensor, bias_proj: Tensor, rank: int) -> Tensor:
    """Only direction number ``rank``, not all up to it."""
    left, sizes, right = _svd(prev_embed @ bias_proj.T)
    return left[:, rank - 1 : rank] * sizes[rank - 1] @ right[rank - 1 : rank]


def _table_case(vocab_size: int, full: int, rank: int) -> tuple[Tensor, Tensor, int]:
    generator = torch.Generator().manual_seed(vocab_size)
    tables = torch.randn(2, vocab_size, full, generator=generator)
    return tables[0], tables[1], rank


TRUNCATED = Exercise(
    name="truncated_table",
    reference=truncated_table,
    cases=[
        (torch.eye(3), torch.diag(torch.tensor([1.0, 3.0, 2.0])), 2),
        _table_case(5, 3, 1),
        _table_case(6, 4, 3),
    ],
    mistakes={
        "The first columns of W_1 and W_2 are kept. Nothing says that these push "
        "most: look at the product.": _first_columns,
        "Each table is cut by itself. What counts is the product: a large direction "
        "of W_1 may meet nothing in W_2.": _each_for_itself,
        "The smallest directions are kept: torch.linalg.svd sorts them from large to "
        "small.": _smallest,
        "The singular values are lost: all directions push equally far here.": (
            _without_sizes
        ),
        "One side is taken the wrong way round. torch.linalg.svd returns V transposed, "
        "a direction in each *row*; torch.svd returns V, one in each column.": (
            _columns_of_vh
        ),
        "That many directions are dropped. They should be kept.": _so_many_dropped,
        "The table lies on its side: row x has to hold the pushes after token x.": (
            _turned_round
        ),
        "Only direction number `rank` is kept. All up to it should be.": _one_direction,
    },
)

EXERCISES = {exercise.name: exercise for exercise in (MARKOV, GATED, TRUNCATED)}
