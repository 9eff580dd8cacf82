"""Figures as notebooks show them: the picture, and its numbers as text."""

import base64
import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dsparkref.lab.figures import Figure

# A picture as wide as a notebook's text column, in CSS pixels.
WIDTH = 820
DPI = 110

Bundle = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure in a notebook, and every number in it as text."""

    figure: Figure
    # its title, then a table
    text: str

    @cached_property
    def png(self) -> bytes:
        """The figure as PNG, the same bytes whatever wrote them last."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        return buffer.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        encoded = base64.b64encode(self.png).decode()
        data = {"image/png": encoded, "text/plain": self.text.partition("\n")[0]}
        return data, {"image/png": {"width": WIDTH}}


def show(picture: Picture) -> Picture:
    """Print a picture's numbers and return it, as the last line of a cell."""
    print(picture.text)
    return picture
