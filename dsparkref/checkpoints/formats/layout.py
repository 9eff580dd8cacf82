"""One family of checkpoints: how it spells a drafter's config and its tensors."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dsparkref.checkpoints.formats.names import Names
from dsparkref.checkpoints.formats.reading import Config, Tensors
from dsparkref.draft.spec import DrafterSpec


def _as_stored(tensors: dict[str, Tensor], spec: DrafterSpec) -> dict[str, Tensor]:
    return tensors


@dataclass(frozen=True)
class Layout:
    """A row of the table of layouts."""

    name: str
    # the spec of a config and the tensors beside it
    read: Callable[[Config, Tensors], DrafterSpec]
    # head -> parts of our parameter names -> parts of theirs
    heads: dict[str, Names]
    # the config of a spec; None: read only
    write: Callable[[DrafterSpec], Config] | None = None
    # what it can say of a drafter, in the words of ``checkpoints/save.py``
    expresses: frozenset[str] = frozenset()
    # whether a file holds the embedding and the LM head whoever owns them
    stores_embeddings: bool = False
    # what older files of this layout put before the names of the head
    old_prefix: str = ""
    # turns what is stored in another form into our values; checks what is beside them
    convert: Callable[[dict[str, Tensor], DrafterSpec], dict[str, Tensor]] = _as_stored

    def tensor_name(self, ours: str, head: str) -> str:
        """Return this layout's name of one of our parameters."""
        for mine, theirs in self.heads[head].items():
            ours = ours.replace(mine, theirs)
        return ours
