"""nvidia-modelopt: its own drafters, its own exporter, its own forward pass."""

from collections.abc import Iterator
from pathlib import Path

import modelopt.torch.speculative as mtsp
import torch
from measure import ANCHORS, Case, shaken_module, tokens_of_text
from tiny_models import tiny_target

BLOCK, MASK, TAPS = 4, 30, [0, 2]
SIZES = {
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "target_layer_ids": TAPS,
}
DSPARK = {"projector_type": "dspark", "markov_rank": 5, "use_confidence_head": True}
DOMINO = {"projector_type": "domino", "emb_dim": 7, "gru_hidden_dim": 6}


def cases(folder: Path) -> Iterator[Case]:
    """Yield every kind of drafter that it exports, and its numbers."""
    for kind in ("vanilla", "gated", "rnn"):
        yield case(folder, f"dspark {kind}", DSPARK | {"markov_head_type": kind})
    for prefix in (0, 2):
        parts = DOMINO | {"pure_draft_prefix_len": prefix}
        yield case(folder, f"domino, prefix {prefix}", parts)
    yield case(folder, "plain dflash", {})
    window = {"dflash_swa_window_size": 5}
    yield case(folder, "dspark, window 5", DSPARK, **window)
    causal = {"dflash_draft_attention": "causal"}
    yield case(folder, "dspark, causal block", DSPARK, **causal)
    yield case(folder, "dspark, base 500 set by hand", DSPARK, base=500.0)


def case(folder: Path, name: str, parts: dict, *, base: float = 1e4, **options) -> Case:
    """Convert a tiny target, draw the drafter's weights, export, and run it."""
    rotary = {"rope_theta": base, "rope_type": "default"}
    target = tiny_target(rope_parameters=rotary)
    settings = {"dflash_block_size": BLOCK, "dflash_mask_token_id": MASK} | options
    settings["dflash_architecture_config"] = SIZES | parts
    mtsp.convert(target.model, mode=[("dflash", settings)])
    model = target.model.eval()
    # 0.47 builds the rotary embedding from base 1e4 whatever the target's is, and
    # exports the target's
    model.dflash_module._rotary_config.rope_parameters = rotary
    shaken_module(model.dflash_module)
    place = folder / name
    model.get_exporter().export(place)
    with torch.no_grad():
        return Case(name, place, target, numbers(model, parts), BLOCK - (not parts))


def numbers(model, parts: dict) -> dict[str, torch.Tensor]:
    """Run its training forward on a few anchors: [N, K, ...] each."""
    ids, anchors = tokens_of_text(), torch.tensor([ANCHORS])
    keep = torch.ones_like(anchors, dtype=torch.bool)
    count, length = len(ANCHORS), ids.shape[1]
    states = model._base_model(input_ids=ids, output_hidden_states=True).hidden_states
    features = torch.cat([states[tap + 1] for tap in TAPS], dim=-1)
    hidden = model.dflash_module(
        noise_embedding=model._build_noise_embedding(ids, anchors, keep, count),
        target_hidden=features,
        position_ids=model._build_position_ids(length, anchors, ids.device),
        attention_mask=model._build_draft_attention_mask(
            length,
            anchors,
            keep,
            count,
            features.dtype,
            ids.device,
            window=model.dflash_swa_window_size,
        ),
    )
    base = model._base_model_lm_head(hidden)
    found = {"hidden": hidden, "base_logits": base}
    if parts.get("projector_type") == "dspark":
        logits, confidence = model._apply_markov_head(hidden, base, ids, anchors, count)
        found |= {"draft_logits": logits, "confidence_logits": confidence}
    elif parts.get("projector_type") == "domino":
        logits = model._apply_domino_head(hidden, base, ids, anchors, count)
        found["draft_logits"] = logits
    blocks = {name: v.reshape(count, BLOCK, -1) for name, v in found.items()}
    # plain DFlash is z-lab's: slot 0 predicts nothing
    return blocks if parts else {name: v[:, 1:] for name, v in blocks.items()}
