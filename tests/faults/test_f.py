"""F: what a reader sees of a reply while it is written."""

from io import StringIO

from rich.console import Console
from tiny_pair import random_target

from dsparkref import CycleTrace, load_target
from dsparkref.lab.terminal import show_cycles

SMILE = "\N{SLIGHTLY SMILING FACE}"
TEXT = f"So 12 + 30 is 42 {SMILE} na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve"


def full_cycles(ids: list[int], size: int) -> list[CycleTrace]:
    """Cycles that keep all their drafts and emit ``size`` tokens each."""
    blocks = [ids[start : start + size] for start in range(1, len(ids), size)]
    return [
        CycleTrace(
            index=index,
            context_len=9 + size * index,
            anchor=ids[size * index],
            drafts=block[:-1],
            confidence=None,
            verify_len=len(block) - 1,
            num_accepted=len(block) - 1,
            next_token=block[-1],
            emitted=block,
            draft_seconds=0.0,
            verify_seconds=0.0,
        )
        for index, block in enumerate(blocks)
    ]


def test_a_character_split_between_cycles_is_never_half_shown():
    """F6: its bytes are tokens of their own; a cycle may end between them."""
    target, split = random_target(load_target("tiny").tokenizer), 0
    ids = target.tokenizer.encode(TEXT, add_special_tokens=False)
    for size in range(1, 8):
        cycles, out = full_cycles(ids, size), StringIO()
        split += any("\ufffd" in target.decode(cycle.emitted) for cycle in cycles)
        show_cycles(Console(file=out, width=200), target, cycles)
        assert "\ufffd" not in out.getvalue()
        emitted = [token for cycle in cycles for token in cycle.emitted]
        assert target.decode([ids[0], *emitted]) == TEXT
    assert split > 3  # it does happen
