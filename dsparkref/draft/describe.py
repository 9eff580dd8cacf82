"""What a drafter is, in words: a few labelled facts, the same for every origin."""

from typing import Any

import torch
from torch import Tensor, nn

from dsparkref.draft.heads import build_head
from dsparkref.draft.spec import DrafterSpec

HEAD_WORDS = {
    "dflash": "no correction head (DFlash): each slot is drawn by itself",
    "markov": "Markov head (DSpark vanilla), rank {rank}: reads the token before",
    "gated": "gated Markov head, rank {rank}: reads the token before and h_k",
    "rnn": "rnn head (DSpark), rank {rank}: carries a state of {rank} numbers",
    "domino": "GRU head (Domino): carries a state of {gru_size} numbers",
}
WINDOW_WORDS = {
    "anchor": "the last {window} positions before the anchor",
    "slot": "less than {window} positions before each slot",
    "slot, block too": "less than {window} positions away, in the block too",
}


def describe_spec(spec: DrafterSpec, parameters: int, in_head: int) -> dict[str, str]:
    """Return label -> words.

    ``parameters`` counts the drafter's own, ``in_head`` those of its head.
    """
    return {
        "block": _block(spec),
        "taps": _taps(spec),
        "backbone": f"{spec.num_layers} draft layers of width {spec.hidden_size}, "
        f"{parameters:,} parameters of its own, {in_head:,} of them in the head",
        "attention": _attention(spec),
        "rotary base": f"{spec.rope_theta:g}",
        "head": _head(spec),
        "head's step": _step(spec),
        "confidence": _confidence(spec),
        "vocabulary": _vocabulary(spec),
        "weights": _weights(spec),
        "mask token": f"mask token {spec.mask_token_id}",
        "unlike the papers": "; ".join(differences(spec)) or "nothing",
    }


def head_cost(spec: DrafterSpec) -> tuple[int, int]:
    """Count one step of the head: multiply-adds, and numbers carried to the next.

    Measured, not derived: the head takes its steps on torch's meta device, where
    shapes are computed and nothing else. The last step of the block is counted, for
    Domino's first steps may be free.

    >>> from dataclasses import replace
    >>> spec = DrafterSpec(
    ...     head="markov", block_size=7, target_layer_ids=(1, 3), mask_token_id=95,
    ...     vocab_size=97, hidden_size=32, intermediate_size=48, num_layers=2,
    ...     num_heads=4, num_kv_heads=2, head_dim=16, rank=8,
    ... )
    >>> head_cost(spec)  # W_2: 97 x 8
    (776, 0)
    >>> head_cost(replace(spec, head="rnn"))  # and 3r x (2r + D)
    (1928, 8)
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), torch.no_grad():
        head = build_head(spec, nn.Embedding(spec.vocab_size, spec.hidden_size))
        token, hidden = torch.zeros(1).long(), torch.zeros(1, spec.hidden_size)
        state = head.init_state(1)
        for _ in range(spec.block_size - 1):
            _, state = head.step(state, token, hidden)
        with FlopCounterMode(display=False) as counter:
            _, state = head.step(state, token, hidden)
    return counter.get_total_flops() // 2, _numbers(state)


def differences(spec: DrafterSpec) -> list[str]:
    """Return where a drafter parts from the papers' text.

    DFlash: arXiv:2602.06036, Domino: arXiv:2605.29707, DSpark: arXiv:2607.05147.
    """
    domino, confidence = spec.head == "domino", spec.confidence
    found = {
        "the gated head is in DeepSpec's code alone": spec.head == "gated",
        "the joint projection has a bias (Eq. 6 prints none)": spec.head == "rnn",
        "the confidence head has a bias (Eq. 7 prints none)": confidence,
        "confidence beside Domino is ours": domino and confidence,
        "confidence reads h_k alone (Eq. 7 adds W_1[x_{k-1}])": confidence
        and spec.rank > 0
        and spec.confidence_input == "hidden",
        "slot 0 predicts nothing under a head": spec.head != "dflash"
        and not spec.anchor_predicts,
        "causal blocks (the papers' see both ways)": bool(spec.causal_layers),
        "windows over the context (the papers' see all of it)": bool(
            spec.window_layers
        ),
        "a reduced vocabulary": spec.draft_vocab_size is not None,
        "its own embedding (DFlash: the target's)": spec.owns_embedding,
        "its own LM head (DFlash: the target's)": spec.owns_lm_head,
    }
    return [words for words, holds in found.items() if holds]


def _numbers(state: Any) -> int:
    parts = state if isinstance(state, tuple) else (state,)
    return sum(part.numel() for part in parts if isinstance(part, Tensor))


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _block(spec: DrafterSpec) -> str:
    slots = "anchor+k+1 (K slots)"
    if not spec.anchor_predicts:
        slots = "anchor+k, slot 0 dropped"
    return f"{spec.block_size} drafts per cycle; slot k predicts {slots}"


def _taps(spec: DrafterSpec) -> str:
    of = "" if spec.num_target_layers is None else f" of {spec.num_target_layers}"
    words = f"reads the target's layers {_list(spec.target_layer_ids)}{of}"
    words += " (id i is hidden_states[i+1], the output of the layer"
    return words + (", -1 the embedding)" if -1 in spec.target_layer_ids else ")")


def _attention(spec: DrafterSpec) -> str:
    words = ["bidirectional in the block, the whole context before it"]
    if spec.causal_layers:
        words.append(f"causal block in draft layers {_list(spec.causal_layers)}")
    if spec.window_layers:
        sight = WINDOW_WORDS[spec.window_rule].format(window=spec.window)
        words.append(f"draft layers {_list(spec.window_layers)} see {sight}")
    return "; ".join(words)


def _head(spec: DrafterSpec) -> str:
    words = HEAD_WORDS[spec.head].format(rank=spec.rank, gru_size=spec.gru_size)
    if spec.pure_draft_prefix_len:
        words += f"; first {spec.pure_draft_prefix_len} drafts keep their base logits"
    return words


def _step(spec: DrafterSpec) -> str:
    cost, state = head_cost(spec)
    return f"{cost:,} multiply-adds, {state:,} numbers carried to the next"


def _confidence(spec: DrafterSpec) -> str:
    if not spec.confidence:
        return "no confidence head"
    lent = "the GRU state" if spec.head == "domino" else "W_1[x_{k-1}]"
    reads = "h_k" if spec.confidence_input == "hidden" else f"h_k and {lent}"
    fitted = "calibrated" if spec.confidence_temperatures else "not calibrated"
    return f"confidence head reads {reads}, {fitted}"


def _vocabulary(spec: DrafterSpec) -> str:
    if spec.draft_vocab_size is None:
        return f"drafts any of the target's {spec.vocab_size:,} tokens"
    return (
        f"drafts {spec.draft_vocab_size:,} of the target's {spec.vocab_size:,} tokens"
    )


def _weights(spec: DrafterSpec) -> str:
    owned = {"embedding": spec.owns_embedding, "LM head": spec.owns_lm_head}
    own = ", ".join(name for name, has in owned.items() if has) or "none"
    borrowed = ", ".join(name for name, has in owned.items() if not has) or "none"
    return f"own copies: {own}; borrowed from the target: {borrowed}"
