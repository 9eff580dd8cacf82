"""A target and its drafter by one name; and the names that others load and save by."""

import os
from dataclasses import dataclass

from dsparkref.checkpoints.files import find_folder
from dsparkref.checkpoints.fresh import new_drafter
from dsparkref.checkpoints.load import load_drafter
from dsparkref.checkpoints.save import save_drafter
from dsparkref.checkpoints.targets import load_target, quiet_transformers
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.shapes import check_known, problem

__all__ = [
    "PAIRS",
    "Pair",
    "load_drafter",
    "load_pair",
    "load_target",
    "new_drafter",
    "quiet_transformers",
    "save_drafter",
]

# the names of whole pairs; any other pair is TARGET,DRAFTER
PAIRS = ("tiny", "qwen3-4b")
QWEN3_4B = "Qwen/Qwen3-4B"
QWEN3_4B_DRAFTERS = {
    "dflash": "deepseek-ai/dflash_qwen3_4b_block7",
    "markov": "deepseek-ai/dspark_qwen3_4b_block7",
    "dflash-b16": "z-lab/Qwen3-4B-DFlash-b16",
    "domino": "Huang2020/Qwen3-4B-Domino-b16",
}
UNRELEASED = ("gated", "rnn")


@dataclass(frozen=True)
class Pair:
    """A target and a drafter made for it."""

    target: Target
    drafter: Drafter


def load_pair(name: str | None = None, head: str = "markov") -> Pair:
    """Load a target and its drafter by one name.

    ``"tiny"``, ``"qwen3-4b"`` or ``"TARGET,DRAFTER"`` (folders or Hub ids); None
    takes the environment variable DSPARKREF_PAIR, and ``"tiny"`` without it. On
    qwen3-4b the heads with a released drafter are dflash, markov, domino and
    dflash-b16; gated and rnn have none.
    """
    if name is not None and not isinstance(name, str):
        expected, got = "'tiny', 'qwen3-4b' or 'TARGET,DRAFTER'", type(name).__name__
        raise problem("pair", "be a name", expected, got, error=TypeError)
    origin = "pair" if name else "DSPARKREF_PAIR"
    name = name or os.environ.get("DSPARKREF_PAIR") or PAIRS[0]
    # both are found, or fetched, before either is loaded
    target_source, drafter_source = _sources(name, head, origin)
    target_folder = find_folder(target_source, f"{origin}'s target")
    drafter_name = "head" if name in PAIRS else f"{origin}'s drafter"
    drafter_folder = find_folder(drafter_source, drafter_name)
    target = load_target(target_folder)
    return Pair(target, load_drafter(drafter_folder, target))


def _sources(name: str, head: str, origin: str) -> tuple[str, str]:
    if name == "tiny":
        return "tiny", f"tiny/{head}"
    if name == "qwen3-4b":
        if head in UNRELEASED:
            expected = f"one of {', '.join(QWEN3_4B_DRAFTERS)}"
            hint = "No drafter with this head was released for Qwen3-4B."
            raise problem("head", "be a known name", expected, repr(head), hint)
        check_known("head", head, tuple(QWEN3_4B_DRAFTERS))
        return QWEN3_4B, QWEN3_4B_DRAFTERS[head]
    parts = [part.strip() for part in name.split(",")]
    if len(parts) != 2 or not all(parts):
        expected = "'tiny', 'qwen3-4b' or 'TARGET,DRAFTER'"
        raise problem(origin, "name a target and a drafter", expected, repr(name))
    return parts[0], parts[1]
