"""What the layouts that can be written have in common: a Qwen3 config."""

from dsparkref.checkpoints.formats.reading import Config
from dsparkref.draft.spec import DrafterSpec


def write_backbone(spec: DrafterSpec, architecture: str) -> Config:
    """Return the keys of a Qwen3 config; the rest is the layout's own."""
    config = {
        "architectures": [architecture],
        "model_type": "qwen3",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": {"rope_theta": spec.rope_theta, "rope_type": "default"},
        "max_position_embeddings": spec.max_position_embeddings,
        "attention_bias": spec.attention_bias,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * spec.num_layers,
        "tie_word_embeddings": False,
    }
    if spec.num_target_layers is not None:
        config["num_target_layers"] = spec.num_target_layers
    return config


def write_dflash(spec: DrafterSpec, architecture: str) -> tuple[Config, Config]:
    """Return a config and its ``dflash_config``; B counts the dropped slot."""
    inner = {
        "mask_token_id": spec.mask_token_id,
        "target_layer_ids": list(spec.target_layer_ids),
    }
    config = write_backbone(spec, architecture)
    return config | {"block_size": spec.num_slots, "dflash_config": inner}, inner
