"""What a command line names: a target, drafters, a pair, and what tiny has of them.

What cannot be found is named as the command line does, by its option.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsparkref.checkpoints import files
from dsparkref.checkpoints.io import PAIRS, Pair, load_drafter, load_pair, load_target
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.spec import HEADS
from dsparkref.shapes import problem


def open_pair(name: str | None, head: str | None) -> Pair:
    """Load the pair of a command; None is what ``load_pair`` takes without it.

    A pair TARGET,DRAFTER has one drafter. A head asked for beside it must be its own.
    """
    loaded = load_pair(name, "markov" if head is None else head)
    chosen = name or os.environ.get("DSPARKREF_PAIR") or PAIRS[0]
    own = loaded.drafter.head_type
    if head not in (None, own) and chosen not in PAIRS:
        hint = f"The pair {chosen} names its drafter already: leave the head out."
        raise problem("head", "be that of the pair's drafter", own, repr(head), hint)
    return loaded


def open_target(source: str) -> Target:
    """Load the target that ``--target`` names."""
    return load_target(files.find_folder(source, "target"))


def open_drafters(
    target: Target, names: Sequence[str] | None
) -> tuple[Mapping[str, Drafter], bool]:
    """Load the drafters that ``--drafters`` names, None: all of tiny's.

    Returns them by name, and whether all of them are tiny's.
    """
    chosen = tiny_drafters() if names is None else names
    sources = {name.strip(): drafter_source(name, "drafters") for name in chosen}
    drafters = {
        name: load_drafter(files.find_folder(source, "drafters"), target)
        for name, source in sources.items()
    }
    return drafters, all(map(is_tiny, sources.values()))


def tiny_drafters() -> list[str]:
    """Return the names of the tiny pair's drafters, short blocks first."""
    folder = files.data_folder() / "tiny" / "drafters"
    names = [path.name for path in folder.glob("[!.]*") if path.is_dir()]
    if not names:
        hint = "Make them with: python -m dsparkref train tiny"
        rule, expected = "be there", f"folders in {folder}"
        raise problem("tiny drafters", rule, expected, "none", hint, FileNotFoundError)
    rank = {head: place for place, head in enumerate(HEADS)}

    def order(name: str) -> tuple[bool, int]:
        head, _, long_block = name.partition("-")
        return bool(long_block), rank.get(head, len(HEADS))

    return sorted(names, key=order)


def drafter_source(name: str, option: str) -> str:
    """A bare name is one of tiny's drafters; anything with a slash, a folder or id."""
    name = name.strip()
    if "/" in name or (name and Path(name).is_dir()):
        return name
    if name not in tiny_drafters():
        expected = f"a folder, a Hub id or one of {', '.join(tiny_drafters())}"
        raise problem(option, "exist", expected, repr(name), "", FileNotFoundError)
    return f"tiny/{name}"


def is_tiny(source: str) -> bool:
    """Whether a source is a part of the tiny pair.

    >>> is_tiny("tiny"), is_tiny("tiny/rnn"), is_tiny("tiny-of-mine/rnn")
    (True, True, False)
    """
    return source.partition("/")[0] == "tiny"
