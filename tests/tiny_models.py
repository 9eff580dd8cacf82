"""Small targets and drafters for the tests: random ones, and ones that know the answer.

Nothing here is trained. A random Qwen3 with large weights has sharp, varied laws and
no near ties; a scripted drafter decides by itself which of its drafts are right.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from dsparkref import Drafter, Proposal, Target, new_drafter

HEADS = ("dflash", "markov", "gated", "rnn", "domino")
GOLDEN = Path(__file__).parent / "golden"
MASK = 30


def tiny_target(*, seed: int = 0, dtype: torch.dtype = torch.float32, **changes):
    """A random Qwen3: 4 layers, V 31, D 24, 4 heads on 2, head_dim 8 (not D / 4)."""
    config = {
        "vocab_size": 31,
        "hidden_size": 24,
        "intermediate_size": 28,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.4,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**(config | changes)))
        for name, parameter in model.named_parameters():
            if "norm" in name:  # ones would hide a norm left out or applied twice
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return Target(model.to(dtype))


def tiny_drafter(target: Target, head: str = "markov", *, seed: int = 0, **changes):
    """A random drafter with weights large enough that every part of it matters.

    ``changes`` are fields of its spec; K is 4, and every width is another number.
    """
    mask = min(MASK, target.vocab_size - 1)
    taps = changes.get("target_layer_ids", (0, 2, 1))
    options = {"block_size": 4, "mask_token_id": mask, "target_layer_ids": taps}
    widths = {"rank": 5, "gru_size": 6, "inner_size": 7}
    spec = new_drafter(target, head=head, **options, **widths).spec
    drafter = Drafter(replace(spec, **changes), target.embedding, target.lm_head)
    return shaken(drafter.to(target.dtype), seed)


def shaken(drafter: Drafter, seed: int = 0) -> Drafter:
    """Draw every parameter anew: matrices and biases wide, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                drawn = 0.5 + torch.rand(parameter.shape, generator=generator)
            else:
                drawn = 0.4 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn)
    return drafter


def random_ids(*shape: int, seed: int = 0, vocab_size: int = MASK) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, shape, generator=generator)


def greedy_reply(target: Target, prompt: list[int], count: int) -> list[int]:
    """What transformers itself generates greedily: the independent oracle."""
    if count == 0:
        return []
    ids = torch.tensor([prompt])
    output = target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


class ScriptedDrafter:
    """Knows the text and drafts from it; a script says how many drafts are right.

    ``right`` gives, cycle by cycle, the length of the correct run; the draft after it
    is wrong by one id. It keeps count of its calls and of the rows it was handed.
    """

    def __init__(
        self,
        text: list[int],
        right: int | Iterable[int],
        *,
        block_size: int = 4,
        vocab_size: int = 31,
    ) -> None:
        self.block_size, self.vocab_size = block_size, vocab_size
        self.text = text  # prompt and reply
        self.right = cycle([right] if isinstance(right, int) else right)
        self.calls: list[int] = []  # context rows seen in each call

    def propose(self, target_hidden: Tensor, anchor: Tensor, **_: object) -> Proposal:
        length = target_hidden.shape[1]  # no cache, so all rows come every time
        self.calls.append(length)
        assert self.text[length] == int(anchor), "the loop lost its place"
        after = self.text[length + 1 : length + 1 + self.block_size]
        after = after + [0] * (self.block_size - len(after))
        right = next(self.right)
        if right < self.block_size:
            after[right] = (after[right] + 1) % self.vocab_size
        tokens = torch.tensor([after])
        one_hot = torch.nn.functional.one_hot(tokens, self.vocab_size)
        return Proposal(tokens=tokens, p_draft=one_hot.float())


def oracle(target: Target, prompt: list[int], *, count: int = 64, **options):
    """A drafter that is always right (for greedy decoding)."""
    text = prompt + greedy_reply(target, prompt, count)
    options = {"right": 10**6, "vocab_size": target.vocab_size} | options
    return ScriptedDrafter(text, **options)


def edited_copy(
    source: Path,
    folder: Path,
    *,
    config: Callable[[dict], object] | None = None,
    tensors: Callable[[dict[str, Tensor]], object] | None = None,
) -> Path:
    """Copy a checkpoint and edit its config or its tensors in place."""
    shutil.copytree(source, folder)
    if config is not None:
        path = folder / "config.json"
        read = json.loads(path.read_text())
        config(read)
        path.write_text(json.dumps(read))
    if tensors is not None:
        path = folder / "model.safetensors"
        loaded = load_file(path)
        tensors(loaded)
        save_file(loaded, path, metadata={"format": "pt"})
    return folder
