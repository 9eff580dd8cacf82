"""A reduced draft vocabulary: an LM head that knows some of the target's tokens."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class DraftVocabulary(nn.Module):
    """Which target token each row of the drafter's LM head stands for.

    Everything outside has probability 0, so that what the verifier sees is a law over
    the target's whole vocabulary. Tokens go into the heads as target ids, always.
    """

    # [V_draft], distinct target ids
    ids: Tensor

    def __init__(self, num_tokens: int, num_draftable: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.register_buffer("ids", torch.arange(num_draftable))

    def spread(self, logits: Float[Tensor, "*B Vd"]) -> Float[Tensor, "*B V"]:
        """Scatter draft logits into the target's vocabulary, -inf elsewhere.

        >>> vocabulary = DraftVocabulary(num_tokens=4, num_draftable=2)
        >>> vocabulary.ids.copy_(torch.tensor([1, 3])).tolist()
        [1, 3]
        >>> vocabulary.spread(torch.tensor([0.5, 2.0])).tolist()
        [-inf, 0.5, -inf, 2.0]
        """
        spread = logits.new_full((*logits.shape[:-1], self.num_tokens), -math.inf)
        return spread.index_copy(-1, self.ids, logits)
