"""A whole ``data/`` folder with random weights, for what loads the tiny pair."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dsparkref import Target, new_drafter, save_drafter
from dsparkref.train import corpus

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def random_target(tokenizer, seed: int = 0) -> Target:
    config = Qwen3Config(
        vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **SIZES
    )
    generator = torch.Generator().manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3, generator=generator)
    return Target(model, tokenizer)


def random_drafter(target: Target, head: str, block_size: int = 7, seed: int = 0):
    sizes = {"rank": 8} if head in ("markov", "gated", "rnn") else {}
    if head == "domino":
        sizes = {"gru_size": 8, "inner_size": 8}
    generator = torch.Generator().manual_seed(seed)
    return new_drafter(
        target,
        head=head,
        block_size=block_size,
        num_layers=1,
        generator=generator,
        **sizes,
    )


def write_tiny_pair(data: Path, drafters: dict[str, tuple[str, int]], prompts: int):
    """Write target, drafters (name -> head, block size) and evaluation prompts."""
    tokenizer = corpus.build_tokenizer(corpus.training_examples(400, seed=0))
    target = random_target(tokenizer)
    target.model.save_pretrained(data / "tiny" / "target")
    tokenizer.save_pretrained(data / "tiny" / "target")
    for name, (head, block_size) in drafters.items():
        drafter = random_drafter(target, head, block_size)
        save_drafter(drafter, data / "tiny" / "drafters" / name)
    (data / "eval").mkdir()
    for domain in corpus.DOMAINS:
        found = corpus.evaluation_examples(domain, prompts)
        lines = [json.dumps(asdict(example)) + "\n" for example in found]
        (data / "eval" / f"{domain}.jsonl").write_text("".join(lines))
