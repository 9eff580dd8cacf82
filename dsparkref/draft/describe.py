"""What a drafter is, in words."""

from dsparkref.draft.spec import DrafterSpec

HEAD_WORDS = {
    "dflash": "no correction head (DFlash): each slot is drawn by itself",
    "markov": "Markov head (DSpark vanilla), rank {rank}: reads the token before",
    "gated": "gated Markov head, rank {rank}: reads the token before and h_k",
    "rnn": "rnn head (DSpark), rank {rank}: carries a state of {rank} numbers",
    "domino": "GRU head (Domino): carries a state of {gru_size} numbers",
}


def describe_drafter(spec: DrafterSpec, parameters: int, in_head: int) -> str:
    """Return a few lines: block, taps, head, confidence, what is borrowed.

    ``parameters`` counts the drafter's own, ``in_head`` those of its head.
    """
    first = (
        "anchor+k+1 (K slots)" if spec.anchor_predicts else "anchor+k, slot 0 dropped"
    )
    taps = ", ".join(map(str, spec.target_layer_ids))
    owned = {"embedding": spec.owns_embedding, "LM head": spec.owns_lm_head}
    own = ", ".join(name for name, has in owned.items() if has) or "none"
    borrowed = ", ".join(name for name, has in owned.items() if not has) or "none"
    lines = [
        f"{spec.block_size} drafts per cycle; slot k predicts {first}",
        f"reads the target's layers {taps} (id i is hidden_states[i+1])",
        f"{spec.num_layers} draft layers of width {spec.hidden_size}, "
        f"{parameters:,} parameters of its own, {in_head:,} of them in the head",
        HEAD_WORDS[spec.head].format(rank=spec.rank, gru_size=spec.gru_size),
        _confidence(spec),
        f"own copies: {own}; borrowed from the target: {borrowed}",
        f"mask token {spec.mask_token_id}",
    ]
    if spec.pure_draft_prefix_len:
        lines.append(
            f"first {spec.pure_draft_prefix_len} drafts keep their base logits"
        )
    return "\n".join(lines)


def _confidence(spec: DrafterSpec) -> str:
    if not spec.confidence:
        return "no confidence head"
    lent = "the GRU state" if spec.head == "domino" else "W_1[x_{k-1}]"
    reads = "h_k" if spec.confidence_input == "hidden" else f"h_k and {lent}"
    fitted = "calibrated" if spec.confidence_temperatures else "not calibrated"
    return f"confidence head reads {reads}, {fitted}"
