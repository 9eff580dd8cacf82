"""The tensors of a cycle as a table: name, the papers' symbol, shape, what it is.

The letters are those of ``shapes.py``. Every row is held against the real tensor, so
that a table in a notebook cannot say what the code does not do.
"""

from dataclasses import dataclass

from torch import Tensor

from dsparkref.shapes import check_known, problem


@dataclass(frozen=True)
class Symbol:
    """One row of the table of symbols."""

    # as the papers print it; empty where they print nothing
    paper: str
    # shape in letters, such as "B K V" or "B l+1"
    letters: str
    # in a few words
    words: str


# Hq, Hkv: query and key-value heads; d: width of a head; l: drafts to be verified.
SYMBOLS = {
    "prompt": Symbol("", "B T", "ids of the prompt"),
    "target_hidden": Symbol("H^(l)", "B T LD", "L tapped layers, side by side"),
    "context": Symbol("H_ctx", "B T D", "features, projected and normed (Eq. 2)"),
    "context_keys": Symbol("", "B Hkv T d", "of one draft layer, from the context"),
    "context_values": Symbol("", "B Hkv T d", "likewise"),
    "anchor": Symbol("x_0", "B", "id the block starts from"),
    "block_tokens": Symbol("", "B Q", "the anchor's id, then mask tokens"),
    "positions": Symbol("", "B Q", "T, T+1, ...: right after the context"),
    "block": Symbol("", "B Q D", "its rows, after the layer's input norm"),
    "queries": Symbol("", "B Hq Q d", "from the block alone"),
    "keys": Symbol("", "B Hkv T+Q d", "context, then block (Eq. 3)"),
    "values": Symbol("", "B Hkv T+Q d", "likewise"),
    "weights": Symbol("", "B Hq Q T+Q", "attention: each row sums to 1"),
    "hidden": Symbol("h_k", "B K D", "the backbone's answer, slot by slot"),
    "base_logits": Symbol("U_k", "B K V", "the parallel draft"),
    "bias": Symbol("B_k", "B K V", "what the head adds"),
    "draft_logits": Symbol("U_k + B_k", "B K V", "corrected"),
    "tokens": Symbol("x_k", "B K", "the drafts"),
    "p_draft": Symbol("p^d_k", "B K V", "the law each draft was drawn from"),
    "confidence": Symbol("c_k", "B K", "chance that draft k stands, given all before"),
    "survival": Symbol("a_k", "B K", "chance that drafts 1 to k all stand"),
    "verify_len": Symbol("l", "B", "drafts handed to the target"),
    "drafts": Symbol("x_1 .. x_l", "B l", "those drafts"),
    "read": Symbol("x_0 .. x_l", "B l+1", "what the target reads: anchor and drafts"),
    "p_target": Symbol("p^t_k", "B l+1 V", "the target's laws"),
    "uniforms": Symbol("u_k", "B l+1", "one number for each decision"),
    "num_accepted": Symbol("", "B", "drafts kept"),
    "next_token": Symbol("", "B", "replacement or bonus: the next anchor"),
}


def tensor_table(**tensors: Tensor) -> str:
    """Return the tensors given by name as a table, in the order given.

    >>> import torch
    >>> print(tensor_table(tokens=torch.zeros(1, 7), p_draft=torch.zeros(1, 7, 9)))
    tensor   paper  letters    here       what it is
    tokens   x_k    [B, K]     [1, 7]     the drafts
    p_draft  p^d_k  [B, K, V]  [1, 7, 9]  the law each draft was drawn from
    >>> tensor_table(tokens=torch.zeros(1, 7), p_draft=torch.zeros(1, 6, 9))
    Traceback (most recent call last):
    ValueError: p_draft must have shape [B, K, V]: expected [1, 7, 9], got [1, 6, 9].

    Raises:
        ValueError: a name without a symbol, or a shape that does not fit the letters.
    """
    lines = [["tensor", "paper", "letters", "here", "what it is"]]
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        check_known("tensor", name, tuple(SYMBOLS))
        symbol, shape = SYMBOLS[name], list(tensor.shape)
        letters = symbol.letters.split()
        _check(name, letters, shape, sizes)
        shown = [f"[{', '.join(map(str, part))}]" for part in (letters, shape)]
        lines.append([name, symbol.paper, *shown, symbol.words])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{x:<{w}}" for x, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _check(
    name: str, letters: list[str], shape: list[int], sizes: dict[str, int]
) -> None:
    """Hold a shape against its letters; a letter seen first takes its size."""
    if len(shape) == len(letters):
        for letter, size in zip(letters, shape, strict=True):
            if letter.isalpha():
                sizes.setdefault(letter, size)
    expected = [_size(letter, sizes) for letter in letters]
    if shape != expected:
        rule = f"have shape [{', '.join(letters)}]"
        raise problem(name, rule, f"[{', '.join(map(str, expected))}]", shape)


def _size(letter: str, sizes: dict[str, int]) -> int | str:
    """Return the size of "K", "l+1" or "T+Q"; the letters where one is unknown."""
    parts = letter.split("+")
    if any(not part.isdigit() and part not in sizes for part in parts):
        return letter
    return sum(int(part) if part.isdigit() else sizes[part] for part in parts)
