"""The contexts of several requests, side by side for one pass of the backbone.

Each request keeps its own `ContextCache`, as long as its own committed tokens. For a
shared pass they are padded to the longest, and a mask hides the padding: what a
request drafts does not depend on its neighbours.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dsparkref.draft.backbone import ContextCache, KeysValues


class ContextBatch:
    """The context caches of R requests, each of which brings ``counts[r]`` new rows."""

    def __init__(self, caches: Sequence[ContextCache], counts: Sequence[int]) -> None:
        self._caches, self._counts = caches, counts

    def lengths(self, device: torch.device) -> Int[Tensor, "R 1"]:
        """Return the committed tokens that each cache holds."""
        return torch.tensor([[cache.length] for cache in self._caches], device=device)

    def extend(self, keys_values: list[KeysValues]) -> None:
        """Hand each request its own of the new rows, [R, H, T_new, d] a layer."""
        for row, (cache, count) in enumerate(
            zip(self._caches, self._counts, strict=True)
        ):
            own = slice(row, row + 1), slice(None), slice(0, count)
            cache.extend([(keys[own], values[own]) for keys, values in keys_values])

    def keys_values(self) -> list[KeysValues]:
        """Return what all hold, [R, H, longest, d] a layer, flush right."""
        if len(self._caches) == 1:
            return self._caches[0].keys_values()
        held = zip(*(cache.keys_values() for cache in self._caches), strict=True)
        return [
            (flush_right([k for k, _ in rows]), flush_right([v for _, v in rows]))
            for rows in held
        ]

    def mask(
        self, num_slots: int, device: torch.device
    ) -> Bool[Tensor, "R 1 Q keys"] | None:
        """Return what a block may see: its own context and itself; None: everything."""
        if len(self._caches) == 1:
            return None
        lengths = self.lengths(device)  # [R, 1]
        longest = int(lengths.max())
        if (lengths == longest).all():
            return None
        slots = torch.arange(longest, device=device)
        context = slots >= longest - lengths  # [R, longest]
        block = context.new_ones(len(lengths), num_slots)
        visible = torch.cat([context, block], dim=1)  # [R, longest + Q]
        return visible[:, None, None].expand(-1, 1, num_slots, -1)


def flush_right(rows: Sequence[Float[Tensor, "1 H _ d"]]) -> Float[Tensor, "R H T d"]:
    """Stack rows of unlike lengths, zeros in front of the shorter ones.

    >>> rows = [torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 2)]
    >>> flush_right(rows)[:, 0, :, 0].tolist()
    [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    """
    lengths_first = [row[0].transpose(0, 1) for row in rows]  # [T_r, H, d] each
    padded = pad_sequence(lengths_first, batch_first=True, padding_side="left")
    return padded.transpose(1, 2)  # [R, H, T, d]
