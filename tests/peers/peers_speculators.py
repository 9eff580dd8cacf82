"""speculators: its own drafters, saved by itself, and its own forward pass."""

from collections.abc import Iterator
from pathlib import Path

import torch
from measure import ANCHORS, Case, shaken_module, tokens_of_text
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashSpeculatorConfig
from speculators.models.dflash.core import DFlashDraftModel
from speculators.models.dspark.config import DSparkSpeculatorConfig
from speculators.models.dspark.core import DSparkDraftModel
from tiny_models import tiny_target
from transformers import Qwen3Config

BLOCK, MASK, TAPS = 4, 30, [0, 2]
KEPT = torch.tensor([2, 3, 11, 29])


def cases(folder: Path) -> Iterator[Case]:
    """Yield both families, in all that their configs can say."""
    for predicts in (False, True):
        parts = {"sample_from_anchor": predicts}
        yield case(folder, f"dflash, anchor predicts {predicts}", None, **parts)
    for kind in ("vanilla", "gated", "rnn"):
        for predicts in (True, False):
            parts = {"sample_from_anchor": predicts}
            name = f"dspark {kind}, anchor predicts {predicts}"
            yield case(folder, name, kind, **parts)
    hidden = {"confidence_head_with_markov": False}
    yield case(folder, "dspark, confidence reads h_k", "gated", **hidden)
    for kind in (None, "vanilla", "rnn"):
        name = f"{kind or 'dflash'}, 4 of 31 tokens"
        yield case(folder, name, kind, draft_vocab_size=len(KEPT))
    for non_causal in (False, True):
        parts = {"sliding_window_non_causal": non_causal}
        name = f"dspark, window 3, non-causal {non_causal}"
        yield case(folder, name, "vanilla", window=3, **parts)
    yield case(folder, "dspark, base 500", "vanilla", base=500.0)


def case(
    folder: Path,
    name: str,
    kind: str | None,
    *,
    window: int | None = None,
    base: float = 1e4,
    **parts,
) -> Case:
    """Build a drafter over a tiny target, draw its weights, save it, and run it."""
    target = tiny_target()
    config = settings(kind, layer(window, base), **parts)
    model = (DSparkDraftModel if kind else DFlashDraftModel)(config).eval()
    shaken_module(model)
    kept = KEPT if config.draft_vocab_size == len(KEPT) else torch.arange(31)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embedding)
        if len(kept) == 31:
            model.lm_head.weight.copy_(target.lm_head)
        else:
            marks = torch.zeros(31, dtype=torch.bool)
            marks[kept] = True
            model.load_vocab_mappings(marks, kept - torch.arange(len(kept)))
        model.verifier_lm_head.weight.zero_()
    place = folder / name
    model.save_pretrained(place)
    with torch.no_grad():
        found = numbers(model, target)
    drop = not config.sample_from_anchor
    found = {name: value[:, drop:] for name, value in found.items()}
    for logits in {"base_logits", "draft_logits"} & found.keys():
        full = torch.full((*found[logits].shape[:2], 31), -torch.inf)
        full[..., kept] = found[logits]
        found[logits] = full
    return Case(name, place, target, found, BLOCK - drop)


def layer(window: int | None, base: float) -> Qwen3Config:
    """Return the config of the draft layers."""
    kinds = ["full_attention", "sliding_attention" if window else "full_attention"]
    return Qwen3Config(
        vocab_size=31,
        hidden_size=24,
        intermediate_size=28,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": base, "rope_type": "default"},
        layer_types=kinds,
        sliding_window=window,
        use_sliding_window=window is not None,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )


def settings(kind: str | None, layers: Qwen3Config, **parts) -> DFlashSpeculatorConfig:
    """Return a drafter's config."""
    parts = {"draft_vocab_size": 31} | parts
    common = {
        "transformer_layer_config": layers,
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "mask_token_id": MASK,
    }
    if kind is None:
        return DFlashSpeculatorConfig(**common, **parts)
    heads = {"markov_rank": 5, "markov_head_type": kind}
    return DSparkSpeculatorConfig(**common, **heads, **parts)


def numbers(model, target) -> dict[str, torch.Tensor]:
    """Run its forward on a few anchors, and hold what it hands to its loss."""
    ids = tokens_of_text()
    states = target.model(ids, output_hidden_states=True).hidden_states
    features = torch.cat([states[tap + 1] for tap in TAPS], dim=-1)
    marked = torch.zeros(ids.shape)
    marked[:, ANCHORS] = 1
    held: dict[str, torch.Tensor] = {}
    handles = [
        model.norm.register_forward_hook(keeping(held, "hidden")),
        model.lm_head.register_forward_hook(keeping(held, "base_logits")),
    ]
    if getattr(model, "confidence_head", None) is not None:
        keep = keeping(held, "confidence_logits")
        handles.append(model.confidence_head.register_forward_hook(keep))
    if getattr(model, "markov_head", None) is not None:
        plain = model.markov_head.block_bias

        def kept_bias(**inputs):
            held["bias"] = plain(**inputs)
            return held["bias"]

        model.markov_head.block_bias = kept_bias
    losses = {"loss_config": resolve_loss_config("kl_div", "eager")}  # no Triton here
    if isinstance(model, DSparkDraftModel):
        losses["tv_loss_fn"] = resolve_loss_config("tv", "eager")["tv"][0]
    documents = torch.zeros_like(ids)
    model(
        features,
        ids,
        marked,
        states[-1],
        documents,
        max_anchors=len(ANCHORS),
        **losses,
    )
    for handle in handles:
        handle.remove()
    found = {k: v.reshape(len(ANCHORS), BLOCK, -1) for k, v in held.items()}
    if "bias" in found:
        found["draft_logits"] = found["base_logits"] + found.pop("bias")
    return found


def keeping(held: dict[str, torch.Tensor], name: str):
    """Return a hook that keeps a module's output."""

    def hook(module, inputs, output):
        held[name] = output

    return hook
