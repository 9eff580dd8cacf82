"""The correction heads, all behind one step, and the confidence head.

A parallel backbone computes the logits U_k of all slots at once, so slot k cannot
know which token was drawn at slot k-1. A head adds a bias B_k that does know:

    p_k(v | x_0, x_<k) = softmax(U_k + B_k(x_0, x_<k))_v             (Eq. 4, DSpark)

Every head is one class with ``init_state`` and ``step``; who calls ``step`` with
drawn tokens is sampling, who calls it with given tokens is teacher forcing. Position
k is 0-based here, the papers' is k+1; ``prev_tokens`` at k = 0 is the anchor.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dsparkref.draft.spec import DrafterSpec

Step = tuple[Float[Tensor, "B V"], Any]


class Head(nn.Module):
    """The protocol: what happens between two drafts, and nothing else.

    A head of your own overrides ``step``, and ``init_state`` if it carries a state.
    """

    # whether a slot 0 that predicts nothing is walked through all the same
    walks_slot_0 = False

    def init_state(self, batch_size: int) -> Any:
        """Return the state before the first draft; None where nothing is carried."""
        return None

    def step(
        self, state: Any, prev_tokens: Int[Tensor, " B"], hidden: Float[Tensor, "B D"]
    ) -> Step:
        """Return the bias B_k and the next state from the state, x_{k-1} and h_k."""
        raise NotImplementedError

    def features(
        self, state: Any, prev_tokens: Int[Tensor, " B"]
    ) -> Float[Tensor, "B C"]:
        """Return what the confidence head may read beside h_k; ``step`` came first."""
        return torch.empty(len(prev_tokens), 0, device=prev_tokens.device)


class NoHead(Head):
    """DFlash: the base logits stay as they are.

    >>> head = NoHead(vocab_size=5)
    >>> bias, state = head.step(None, torch.tensor([3]), torch.zeros(1, 4))
    >>> bias.tolist()
    [[0.0, 0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def step(
        self, state: Any, prev_tokens: Int[Tensor, " B"], hidden: Float[Tensor, "B D"]
    ) -> Step:
        """Return a bias of zeros."""
        return hidden.new_zeros(1, 1).expand(len(hidden), self.vocab_size), state


class MarkovHead(Head):
    """DSpark vanilla (Eq. 5): B_k = W_2 W_1[x_{k-1}], a low-rank bigram table.

    ``prev_embed`` is W_1 [V, r], a lookup; ``bias_proj`` is W_2, from r to V. With a
    reduced draft vocabulary W_1 is looked up by target ids, and W_2 has ``num_out``
    rows, those that can be drafted.

    >>> head = MarkovHead(vocab_size=3, rank=2)
    >>> with torch.no_grad():
    ...     _ = head.prev_embed.weight.copy_(torch.tensor([[1., 0], [0, 1], [2, 2]]))
    ...     _ = head.bias_proj.weight.copy_(torch.tensor([[5., 0], [0, 7], [1, 1]]))
    >>> head.step(None, torch.tensor([2]), torch.zeros(1, 4))[0].tolist()
    [[10.0, 14.0, 4.0]]
    """

    def __init__(
        self, vocab_size: int, rank: int, *, num_out: int | None = None
    ) -> None:
        super().__init__()
        self.prev_embed = nn.Embedding(vocab_size, rank)
        self.bias_proj = nn.Linear(rank, num_out or vocab_size, bias=False)

    def step(
        self, state: Any, prev_tokens: Int[Tensor, " B"], hidden: Float[Tensor, "B D"]
    ) -> Step:
        """Return B_k, which depends on the token just before and on nothing else."""
        return self.bias_proj(self.prev_embed(prev_tokens)), state

    def features(
        self, state: Any, prev_tokens: Int[Tensor, " B"]
    ) -> Float[Tensor, "B r"]:
        """Return W_1[x_{k-1}], which the confidence head reads beside h_k (Eq. 7)."""
        return self.prev_embed(prev_tokens)


class GatedMarkovHead(MarkovHead):
    """B_k = W_2 (sigmoid(W_gate [h_k ; W_1[x_{k-1}]] + b) * W_1[x_{k-1}]).

    The gate lets the hidden state say which of the r directions count here.
    Differs: it is in DeepSpec's code and not in the DSpark paper.
    """

    def __init__(
        self,
        vocab_size: int,
        rank: int,
        hidden_size: int,
        *,
        num_out: int | None = None,
    ) -> None:
        super().__init__(vocab_size, rank, num_out=num_out)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def step(
        self, state: Any, prev_tokens: Int[Tensor, " B"], hidden: Float[Tensor, "B D"]
    ) -> Step:
        """Return B_k from the token just before, weighed by the hidden state."""
        prev = self.prev_embed(prev_tokens)  # [B, r]
        gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, prev], dim=-1)))
        return self.bias_proj(gate * prev), state


class RNNHead(MarkovHead):
    """DSpark rnn (Eq. 6): a recurrent state over the tokens drafted so far.

    z_k = [s_{k-1} ; W_1[x_{k-1}] ; h_k]; one linear 2r+D -> 3r, split in the order
    gate, candidate, output; s_k = g * s_{k-1} + (1 - g) * tanh(candidate) with
    g = sigmoid(gate); B_k = W_2 tanh(output). s_0 = 0.

    B_k sees s_{k-1} through z_k, not s_k. Differs: the released projection has a
    bias, which Eq. 6 does not print; where slot 0 predicts nothing, the state has
    walked through it, and so has read the anchor twice (as in speculators).
    """

    walks_slot_0 = True

    def __init__(
        self,
        vocab_size: int,
        rank: int,
        hidden_size: int,
        *,
        num_out: int | None = None,
    ) -> None:
        super().__init__(vocab_size, rank, num_out=num_out)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def init_state(self, batch_size: int) -> Float[Tensor, "B r"]:
        """Return s_0 = 0."""
        weight = self.prev_embed.weight
        return weight.new_zeros(batch_size, weight.shape[1])

    def step(
        self,
        state: Float[Tensor, "B r"],
        prev_tokens: Int[Tensor, " B"],
        hidden: Float[Tensor, "B D"],
    ) -> Step:
        """Return B_k and s_k from s_{k-1}, x_{k-1} and h_k."""
        joint = torch.cat([state, self.prev_embed(prev_tokens), hidden], dim=-1)
        gate, candidate, output = self.joint_proj(joint).chunk(3, dim=-1)  # [B, r] each
        gate = torch.sigmoid(gate)
        next_state = gate * state + (1 - gate) * torch.tanh(candidate)
        return self.bias_proj(torch.tanh(output)), next_state


class DominoHead(Head):
    """Domino: a GRU over the target's own token embeddings, from the anchor on.

    g_k = GRU(embedding(x_{k-1}), g_{k-1}), g before the first draft = 0;
    B_k = W_b SiLU(W_a [h_k ; g_k]). The first ``prefix_len`` drafts keep their base
    logits to the bit, but the GRU reads their tokens all the same. The state is
    carried from step to step, so a step past the prefix costs the same at every
    position.

    The GRU cell is PyTorch's, with gates in the order reset, update, new, no bias.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        gru_size: int,
        inner_size: int,
        prefix_len: int,
        embed: Any,
    ) -> None:
        super().__init__()
        self.gru = nn.GRUCell(hidden_size, gru_size, bias=False)
        self.inner_proj = nn.Linear(hidden_size + gru_size, inner_size, bias=False)
        self.bias_proj = nn.Linear(inner_size, vocab_size, bias=False)
        self.prefix_len = prefix_len
        # a plain function from ids to embeddings: those weights are not the head's
        self.embed = embed

    def init_state(self, batch_size: int) -> tuple[Float[Tensor, "B g"], int]:
        """Return the GRU state before the anchor is read, and the position 0."""
        weight = self.gru.weight_hh
        return weight.new_zeros(batch_size, weight.shape[1]), 0

    def step(
        self,
        state: tuple[Float[Tensor, "B g"], int],
        prev_tokens: Int[Tensor, " B"],
        hidden: Float[Tensor, "B D"],
    ) -> Step:
        """Return B_k and the state g_k, which has read x_0 .. x_{k-1}."""
        memory, position = state
        memory = self.gru(self.embed(prev_tokens), memory)
        if position < self.prefix_len:
            vocab_size = self.bias_proj.out_features
            bias = hidden.new_zeros(1, 1).expand(len(hidden), vocab_size)
        else:
            inner = self.inner_proj(torch.cat([hidden, memory], dim=-1))
            bias = self.bias_proj(nn.functional.silu(inner))
        return bias, (memory, position + 1)

    def features(
        self, state: tuple[Float[Tensor, "B g"], int], prev_tokens: Int[Tensor, " B"]
    ) -> Float[Tensor, "B g"]:
        """Return g_k, which the confidence head reads beside h_k."""
        return state[0]


class ConfidenceHead(nn.Module):
    """c_k = sigmoid(w [h_k ; features_k] + b) (Eq. 7): will draft k be accepted?

    The chance is conditional on all earlier drafts accepted. Its label is
    c*_k = 1 - 1/2 ||p^d_k - p^t_k||_1 (Eq. 8). The sigmoid is the caller's.
    Differs: the released head has a bias, which Eq. 7 does not print.
    """

    def __init__(self, hidden_size: int, input_size: int) -> None:
        super().__init__()
        self.reads_head = input_size > hidden_size
        self.proj = nn.Linear(input_size, 1)

    def forward(
        self, hidden: Float[Tensor, "*B D"], features: Float[Tensor, "*B C"]
    ) -> Float[Tensor, "*B"]:
        """Return the logit of c_k."""
        if self.reads_head:
            hidden = torch.cat([hidden, features], dim=-1)
        return self.proj(hidden).squeeze(-1)


def build_head(spec: DrafterSpec, embed: Any) -> Head:
    """Return the head that ``spec.head`` names; ``embed`` maps ids to embeddings."""
    tokens, out, width = spec.vocab_size, spec.num_draftable, spec.hidden_size
    match spec.head:
        case "markov":
            return MarkovHead(tokens, spec.rank, num_out=out)
        case "gated":
            return GatedMarkovHead(tokens, spec.rank, width, num_out=out)
        case "rnn":
            return RNNHead(tokens, spec.rank, width, num_out=out)
        case "domino":
            return DominoHead(
                out,
                width,
                spec.gru_size,
                spec.inner_size,
                spec.pure_draft_prefix_len,
                embed,
            )
    return NoHead(out)
