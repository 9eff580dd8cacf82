"""DeepSpec (the DSpark paper's code): all keys at the top level.

A config is a copy of the target's, so it carries stray keys; the anchor's slot
predicts, and the file holds the embedding and the LM head.
"""

from dsparkref.checkpoints.formats.layout import Layout
from dsparkref.checkpoints.formats.names import DSPARK
from dsparkref.checkpoints.formats.reading import (
    HEADS_BY_TYPE,
    Config,
    Keys,
    Tensors,
    read_backbone,
    read_confidence,
    read_markov,
    refuse_windows,
)
from dsparkref.checkpoints.formats.writing import write_backbone
from dsparkref.draft.spec import DrafterSpec


def read(config: Config, tensors: Tensors) -> DrafterSpec:
    """Return the spec; what decides the head has no default."""
    keys = Keys(config)
    backbone = read_backbone(keys, tensors)
    refuse_windows(keys, backbone["num_layers"])
    present = keys.flag("enable_confidence_head", False)
    return DrafterSpec(
        block_size=keys.integer("block_size"),
        target_layer_ids=keys.integers("target_layer_ids"),
        mask_token_id=keys.integer("mask_token_id"),
        **read_markov(keys, keys.integer("markov_rank"), None),
        **read_confidence(keys, present, None),
        **backbone,
    )


def write(spec: DrafterSpec) -> Config:
    """Return a config that DeepSpec's own loader can read."""
    kinds = {head: kind for kind, head in HEADS_BY_TYPE.items()}
    config = write_backbone(spec, "Qwen3DSparkModel") | {
        "block_size": spec.block_size,
        "target_layer_ids": list(spec.target_layer_ids),
        "mask_token_id": spec.mask_token_id,
        "markov_rank": spec.rank,
        "enable_confidence_head": spec.confidence,
    }
    if spec.rank:
        config["markov_head_type"] = kinds[spec.head]
    if spec.confidence:
        config["confidence_head_with_markov"] = spec.confidence_input != "hidden"
    if spec.confidence_temperatures:
        config["confidence_temperatures"] = list(spec.confidence_temperatures)
    return config


DEEPSPEC = Layout(
    "deepspec",
    read,
    DSPARK,
    write,
    expresses=frozenset(
        (
            "head",
            "confidence",
            "confidence_temperatures",
            "embedding",
            "lm_head",
            "an anchor slot that predicts",
        )
    ),
    stores_embeddings=True,
)
