"""Targets of other families, and those whose layers cannot be rolled back."""

import json

import pytest
import torch
from tiny_models import greedy_reply, random_ids, tiny_drafter, tiny_target
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from dsparkref import Target, generate, load_target

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_decode_like_transformers(family, tied, tmp_path):
    config, model = FAMILIES[family]
    odd = {} if family == "qwen2" else {"head_dim": 8}  # not 24 / 4
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model(config(**SIZES, **odd, tie_word_embeddings=tied)).save_pretrained(
            tmp_path
        )
    target = load_target(tmp_path)
    drafter = tiny_drafter(target, "gated")
    prompt = random_ids(6).tolist()
    reply = generate(target, drafter, prompt, max_new_tokens=16)
    assert reply.tokens == greedy_reply(target, prompt, 16)


def test_an_encoder_decoder_is_refused(tmp_path):
    sizes = {"vocab_size": 31, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**sizes, num_layers=1))
    with pytest.raises(ValueError, match=r"model must be a causal .*T5For"):
        Target(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="target must load: expected a causal"):
        load_target(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 8}, "sliding_atten"),
        (
            {"sliding_window": 8, "layer_types": None, "use_sliding_window": True},
            "sliding_attention",
        ),
        ({"layers_block_type": ["attention", "recurrent"]}, "recurrent"),
        ({"model_type": "mamba"}, "model_type mamba"),
        ({"text_config": {"layer_types": ["linear_attention"]}}, "linear_attention"),
    ],
)
def test_layers_that_cannot_be_rolled_back_are_refused_by_name(change, named, tmp_path):
    tiny_target().model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=f"layer_types must keep .*got {named}"):
        load_target(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"use_sliding_window": False, "sliding_window": 8},
        {
            "use_sliding_window": True,
            "sliding_window": 256,
            "layer_types": ["sliding_attention"] * 4,
        },
    ],
)
def test_windows_that_never_close_are_fine(change, tmp_path):
    tiny_target().model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    assert isinstance(load_target(tmp_path), Target)
