"""One drafter in the words of every published layout, for tests of their readers.

Each layout's config is written here by hand from the published tables, key by key, and
each tensor name too: none of it comes from the package's own tables.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dsparkref import Drafter, DrafterSpec

KINDS = {"markov": "vanilla", "gated": "gated", "rnn": "rnn"}


def write_as(
    layout: str, drafter: Drafter, folder: Path, *, config=None, tensors=None
) -> Path:
    """Write a drafter's folder in one layout, then let edits in place at it."""
    folder.mkdir(parents=True)
    made, names = CONFIGS[layout](drafter.spec), dict(NAMES)
    names |= BARE if layout == "modelopt" else {}
    held = {}
    for ours, value in drafter.state_dict().items():
        held[renamed(ours, names, drafter.spec)] = value.clone().contiguous()
    if drafter.spec.draft_vocab_size:
        add_maps(held, drafter.spec)
    if config:
        config(made)
    if tensors:
        tensors(held)
    save_file(held, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(made))
    return folder


def add_maps(held: dict[str, Tensor], spec: DrafterSpec) -> None:
    """speculators' two maps: offsets, and a mark on each token that can be drafted."""
    ids = held.pop("vocabulary.ids")
    held["d2t"] = ids - torch.arange(len(ids))
    held["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool)
    held["t2d"][ids] = True


def renamed(ours: str, names: dict[str, str], spec: DrafterSpec) -> str:
    if spec.head == "domino" and ours.startswith("head."):
        return DOMINO[ours]
    for mine, theirs in names.items():
        ours = ours.replace(mine, theirs)
    return ours


NAMES = {
    "backbone.context_proj": "fc",
    "backbone.context_norm": "hidden_norm",
    "backbone.": "",
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    ".attention.": ".self_attn.",
    "own_embedding": "embed_tokens.weight",
    "own_lm_head": "lm_head.weight",
    "head.prev_embed": "markov_head.markov_w1",
    "head.bias_proj": "markov_head.markov_w2",
    "head.gate_proj": "markov_head.gate_proj",
    "head.joint_proj": "markov_head.joint_proj",
    "confidence.proj": "confidence_head.proj",
}
BARE = {"markov_head.": "", "confidence_head.proj": "confidence_proj"}
DOMINO = {
    "head.gru.weight_ih": "prefix_gru.weight_ih_l0",
    "head.gru.weight_hh": "prefix_gru.weight_hh_l0",
    "head.inner_proj.weight": "embed_proj.0.weight",
    "head.bias_proj.weight": "embed_proj.2.weight",
}


def qwen3(spec: DrafterSpec) -> dict:
    return {
        "model_type": "qwen3",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "max_position_embeddings": spec.max_position_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "layer_types": ["full_attention"] * spec.num_layers,
        "tie_word_embeddings": False,
    }


def deepspec(spec: DrafterSpec) -> dict:
    return qwen3(spec) | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": spec.block_size,
        "target_layer_ids": list(spec.target_layer_ids),
        "mask_token_id": spec.mask_token_id,
        "markov_rank": spec.rank,
        "markov_head_type": KINDS.get(spec.head, "vanilla"),
        "enable_confidence_head": spec.confidence,
        "confidence_head_with_markov": spec.confidence_input == "hidden+head",
    }


def dflash(spec: DrafterSpec, architecture: str, **inner) -> dict:
    inner |= {"mask_token_id": spec.mask_token_id}
    inner |= {"target_layer_ids": list(spec.target_layer_ids)}
    slots = spec.block_size + (not spec.anchor_predicts)
    config = qwen3(spec) | {"architectures": [architecture], "block_size": slots}
    return config | {"dflash_config": inner}


def domino(spec: DrafterSpec) -> dict:
    return dflash(
        spec,
        "DominoDraftModel",
        projector_type="domino",
        emb_dim=spec.inner_size,
        gru_hidden_dim=spec.gru_size,
        pure_draft_prefix_len=spec.pure_draft_prefix_len,
        shift_label=spec.anchor_predicts,
    )


def specforge(spec: DrafterSpec) -> dict:
    return dflash(
        spec,
        "DSparkDraftModel",
        projector_type="dspark",
        markov_rank=spec.rank,
        markov_head_type=KINDS.get(spec.head, "vanilla"),
        enable_confidence_head=spec.confidence,
        confidence_head_with_markov=spec.confidence_input == "hidden+head",
    )


def modelopt(spec: DrafterSpec) -> dict:
    config = dflash(
        spec,
        "DFlashDraftModel",
        projector_type="dspark",
        shift_label=True,
        causal=False,
        markov_rank=spec.rank,
        markov_head_type=KINDS.get(spec.head, "vanilla"),
        use_confidence_head=spec.confidence,
    )
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    return config | {"rope_scaling": None, "torch_dtype": "None"}


def speculators(spec: DrafterSpec) -> dict:
    plain = spec.head == "dflash" and not spec.confidence
    config = {
        "architectures": ["DFlashDraftModel" if plain else "DSparkDraftModel"],
        "speculators_model_type": "dflash" if plain else "dspark",
        "auto_map": {"": "config.Config"},
        "aux_hidden_state_layer_ids": [i + 1 for i in spec.target_layer_ids],
        "block_size": spec.block_size + (not spec.anchor_predicts),
        "draft_vocab_size": spec.draft_vocab_size or spec.vocab_size,
        "mask_token_id": spec.mask_token_id,
        "sample_from_anchor": spec.anchor_predicts,
        "transformer_layer_config": qwen3(spec),
    }
    if not plain:
        config |= {
            "markov_rank": spec.rank,
            "markov_head_type": KINDS.get(spec.head, "vanilla"),
            "enable_confidence_head": spec.confidence,
            "confidence_head_with_markov": spec.confidence_input == "hidden+head",
        }
    return config


CONFIGS = {
    "deepspec": deepspec,
    "z-lab": lambda spec: dflash(spec, "DFlashDraftModel"),
    "domino": domino,
    "specforge": specforge,
    "modelopt": modelopt,
    "speculators": speculators,
}
