"""One decoded prompt, cycle by cycle, in a terminal.

Five things can happen to a token. Colour tells them apart, and marks do where there
is no colour (NO_COLOR is set, or the output is a file), so that nobody needs to see
colours to follow a cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from dsparkref.decode.target import Target
from dsparkref.records import CycleTrace


@dataclass(frozen=True)
class Kind:
    """How one kind of token looks."""

    # in the legend
    label: str
    # rich style, where there is colour
    style: str
    # put before the token where there is none
    mark: str


KINDS = {
    "anchor": Kind("anchor", "bold", "@"),
    "accepted": Kind("draft accepted", "green", "+"),
    "rejected": Kind("draft rejected", "red strike", "-"),
    "unjudged": Kind("draft not judged", "dim", "~"),
    "corrected": Kind("corrected", "bold black on yellow", ">"),
    "bonus": Kind("bonus", "bold black on cyan", "*"),
}

Piece = tuple[str, int]


def cycle_pieces(cycle: CycleTrace) -> list[Piece]:
    """Return what became of each token of a cycle: (kind, id), in reading order.

    >>> cycle = CycleTrace(0, 9, 1, [4, 5, 6], None, 3, 1, 8, [4, 8], 0.0, 0.0)
    >>> for kind, token in cycle_pieces(cycle): print(kind, token)
    anchor 1
    accepted 4
    rejected 5
    unjudged 6
    corrected 8
    """
    kept, judged = cycle.num_accepted, cycle.verify_len
    cut = cycle.next_token is None  # by a stop token or the cap: the rest is moot
    refused = not cut and kept < judged
    pieces = [("anchor", cycle.anchor)]
    pieces += [("accepted", token) for token in cycle.drafts[:kept]]
    pieces += [("rejected", token) for token in cycle.drafts[kept : kept + refused]]
    pieces += [("unjudged", token) for token in cycle.drafts[kept + refused :]]
    if cycle.next_token is not None:
        pieces.append(("corrected" if refused else "bonus", cycle.next_token))
    return pieces


def has_colour(console: Console) -> bool:
    """Whether colours reach the reader."""
    return console.color_system is not None and not console.no_color


def legend(colour: bool) -> Text:
    """Return one line that explains the colours, or the marks."""
    line = Text()
    for kind in KINDS.values():
        shown = kind.label if colour else kind.mark + kind.label
        line.append(shown, kind.style if colour else "")
        line.append("  ")
    return line


def cycle_line(target: Target, cycle: CycleTrace, colour: bool) -> Text:
    """Return a cycle as one line: its number, drafts kept of judged, its tokens."""
    line = Text(f"{cycle.index + 1:3}  {cycle.num_accepted}/{cycle.verify_len}  ")
    for kind, token in cycle_pieces(cycle):
        look, text = KINDS[kind], token_text(target, token)
        if colour:
            line.append(text, look.style)
        else:
            line.append(f"{look.mark}{text.strip(' ') or '_'} ")
    return line


def token_text(target: Target, token: int) -> str:
    """Return a token's text on one line; a part of a character shows as its id."""
    text = target.tokenizer.decode([token])
    if "\ufffd" in text:
        return f"<{token}>"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show_cycles(console: Console, target: Target, cycles: Sequence[CycleTrace]) -> None:
    """Print the legend, then each cycle: number, drafts kept of judged, tokens."""
    colour = has_colour(console)
    console.print(legend(colour))
    console.print(Text("cycle, drafts kept/judged, tokens:"))
    for cycle in cycles:
        console.print(cycle_line(target, cycle, colour))
