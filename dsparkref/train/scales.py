"""How much of everything the tiny pair is made of: in earnest, or for a test."""

from dataclasses import dataclass

from dsparkref.train.trainer import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of everything; the same code makes both."""

    # exchanges the target learns from
    examples: int
    # prompts the target answers for the drafters
    replies: int
    target: TrainConfig
    drafter: TrainConfig
    # overrides of the target's sizes
    target_sizes: dict[str, int]
    # evaluation prompts per domain
    evaluation: int


SCALES = {
    "full": Scale(
        examples=60_000,
        replies=12_000,
        target=TrainConfig(
            steps=3_000,
            batch_size=32,
            learning_rate=2e-3,
            weight_decay=0.1,
            precision="bf16",
        ),
        drafter=TrainConfig(
            steps=1_200, batch_size=24, learning_rate=3e-3, precision="bf16"
        ),
        target_sizes={},
        evaluation=120,
    ),
    "smoke": Scale(
        examples=600,
        replies=64,
        target=TrainConfig(steps=20, batch_size=8, learning_rate=2e-3),
        drafter=TrainConfig(steps=6, batch_size=4, learning_rate=1.5e-3),
        target_sizes={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        evaluation=8,
    ),
}

# name -> (head, block size)
DRAFTERS = {
    "dflash": ("dflash", 7),
    "markov": ("markov", 7),
    "gated": ("gated", 7),
    "rnn": ("rnn", 7),
    "domino": ("domino", 7),
    "dflash-k15": ("dflash", 15),
    "markov-k15": ("markov", 15),
    "rnn-k15": ("rnn", 15),
    "domino-k15": ("domino", 15),
}
