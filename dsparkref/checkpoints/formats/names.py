"""Tensor names: parts of ours, and how the published layouts spell them, per head."""

Names = dict[str, str]

BACKBONE: Names = {
    "backbone.context_proj.": "fc.",
    "backbone.context_norm.": "hidden_norm.",
    "backbone.norm.": "norm.",
    "backbone.layers.": "layers.",
    ".input_norm.": ".input_layernorm.",
    ".mlp_norm.": ".post_attention_layernorm.",
    ".attention.": ".self_attn.",
    "own_embedding": "embed_tokens.weight",
    "own_lm_head": "lm_head.weight",
}
_MARKOV = {
    "head.prev_embed.": "markov_head.markov_w1.",
    "head.bias_proj.": "markov_head.markov_w2.",
    "head.gate_proj.": "markov_head.gate_proj.",
    "head.joint_proj.": "markov_head.joint_proj.",
    "confidence.proj.": "confidence_head.proj.",
}
# ModelOpt's: the same without the prefix
_BARE_MARKOV = {
    "head.prev_embed.": "markov_w1.",
    "head.bias_proj.": "markov_w2.",
    "head.gate_proj.": "gate_proj.",
    "head.joint_proj.": "joint_proj.",
    "confidence.proj.": "confidence_proj.",
}
_DOMINO = {
    "head.gru.weight_ih": "prefix_gru.weight_ih_l0",
    "head.gru.weight_hh": "prefix_gru.weight_hh_l0",
    "head.inner_proj.": "embed_proj.0.",
    "head.bias_proj.": "embed_proj.2.",
}

# head -> names; a head that is not in a layout's table cannot be written in it
DFLASH = {"dflash": BACKBONE}
DSPARK = dict.fromkeys(("dflash", "markov", "gated", "rnn"), BACKBONE | _MARKOV)
BARE_DSPARK = dict.fromkeys(("markov", "gated", "rnn"), BACKBONE | _BARE_MARKOV)
DOMINO = {"domino": BACKBONE | _DOMINO}
REDUCED = {"vocabulary.ids": "d2t"}


def extended(table: dict[str, Names], more: Names) -> dict[str, Names]:
    """Return a table with more names for every head."""
    return {head: names | more for head, names in table.items()}
