"""Which weights, which samples: short digests, so that no run takes up another's work.

An unfinished run, a file of replies and the records of a teacher are worth a night,
and worth nothing to a run with another target or other data.
"""

import hashlib
from collections.abc import Sequence

import torch
from datasets import Dataset
from torch import nn


def fingerprint_weights(module: nn.Module) -> str:
    """Return a digest of all weights of a model, names and dtypes included."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        plain = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(plain.numpy().data)
    return digest.hexdigest()[:16]


def fingerprint_samples(samples: Dataset) -> str:
    """Return a digest of tokenised samples, order and loss masks included."""
    digest = hashlib.sha256()
    for key in ("input_ids", "loss_mask"):
        for row in samples[key]:
            digest.update(repr(list(row)).encode())
    return digest.hexdigest()[:16]


def fingerprint_texts(texts: Sequence[str]) -> str:
    """Return a digest of texts in their order.

    >>> fingerprint_texts(["a", "b"]) == fingerprint_texts(["ab"])
    False
    """
    digest = hashlib.sha256()
    for text in texts:
        digest.update(repr(text).encode())
    return digest.hexdigest()[:16]
