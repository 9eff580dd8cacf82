"""What the notebooks share: versions, the pair's drafters and prompts, plain tables.

Nothing here prints a path, a time or a device: the outputs of the notebooks are
compared from machine to machine.
"""

import math
import os
from collections.abc import Mapping, Sequence

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor

import dsparkref
from dsparkref.analysis.evaluate import EvalPrompt, evaluate_drafter
from dsparkref.analysis.memory import block_acceptance
from dsparkref.checkpoints.hub import held_copy
from dsparkref.checkpoints.io import (
    QWEN3_4B_DRAFTERS,
    Pair,
    load_drafter,
    load_pair,
)
from dsparkref.decode.request import Prompt
from dsparkref.decode.target import Target
from dsparkref.draft.drafter import Drafter
from dsparkref.draft.heads import MarkovHead
from dsparkref.draft.spec import HEADS
from dsparkref.lab.prompts import evaluation_prompts, in_turn
from dsparkref.lab.terminal import token_text
from dsparkref.records import Proposal, Verdict
from dsparkref.train.corpus import DOMAINS
from dsparkref.verify.rejection import accept_probability

# Neighbouring blocks say much the same: every third is enough, and three times faster.
BLOCK_EVERY = 3


def versions() -> str:
    """Return the versions a report of a problem should name."""
    found = {
        "dsparkref": dsparkref.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return ", ".join(f"{name} {version}" for name, version in found.items())


def pair_name() -> str:
    """Return the name of the pair that ``load_pair()`` gives."""
    return os.environ.get("DSPARKREF_PAIR") or "tiny"


def is_tiny() -> bool:
    """Whether the notebooks run on the shipped pair, for which numbers are asserted."""
    return pair_name() == "tiny"


def sibling_drafters(pair: Pair) -> dict[str, Drafter]:
    """Return the drafters made for the pair's target, by head; the pair's own is one.

    The tiny target has five. For ``qwen3-4b`` those released ones are taken that are
    on this machine; a pair of the reader's own has the one that was named.
    """
    own = {pair.drafter.head_type: pair.drafter}
    if is_tiny():
        others = {head: f"tiny/{head}" for head in HEADS}
    elif pair_name() == "qwen3-4b":
        others = QWEN3_4B_DRAFTERS
    else:
        others = {}
    return drafters_here(pair.target, others, own) or own


def with_tables(pair: Pair) -> Pair:
    """Return the pair, or the tiny one in place of a drafter without Markov tables."""
    if isinstance(pair.drafter.head, MarkovHead):
        return pair
    own = pair.drafter.head_type
    print(f"{own}: no Markov table in this drafter; the tiny pair stands in.")
    return load_pair("tiny", "markov")


def drafters_here(
    target: Target, sources: Mapping[str, str], own: Mapping[str, Drafter] | None = None
) -> dict[str, Drafter]:
    """Load those drafters that need no download; the others are named and left out.

    ``own`` are loaded already.
    """
    own, found = own or {}, {}
    for name, source in sources.items():
        if name in own:
            found[name] = own[name]
        elif source.startswith("tiny/") or held_copy(source):
            found[name] = load_drafter(source, target)
        else:
            print(f"{name}: {source} is not on this machine, and is left out.")
    return found


def evaluation_examples(
    pair: Pair, per_domain: int, domains: Sequence[str] = DOMAINS
) -> list[EvalPrompt]:
    """Return held-out prompts with replies, of math, code and chat in turn."""
    return in_turn(evaluation_prompts(pair.target, per_domain, domains))


def accepted_lengths(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 48,
) -> dict[str, float]:
    """Return each drafter's tokens per cycle, bonus included, at temperature 1."""
    return {
        name: evaluate_drafter(
            target, drafter, prompts, max_new_tokens=max_new_tokens, generator=0
        ).accepted_length
        or math.nan
        for name, drafter in drafters.items()
    }


def last_token(target: Target, text: str) -> int:
    """Return the id of a text's last token: of the word itself, where it is one."""
    return target.tokenizer.encode(text, add_special_tokens=False)[-1]


def overlap_on_text(
    target: Target, drafter: Drafter, examples: Sequence[EvalPrompt]
) -> Float[Tensor, " K"]:
    """Return the mean of 1 - TV at each position, over blocks of given text.

    A block begins at every ``BLOCK_EVERY``-th token of each reply.
    """
    size = drafter.block_size
    total, count = torch.zeros(size), torch.zeros(size)
    for example in examples:
        rates, _, inside = block_acceptance(
            target, drafter, example.prompt, example.reply, every=BLOCK_EVERY
        )
        total += torch.where(inside, rates, 0.0).sum(dim=0).cpu()
        count += inside.sum(dim=0).cpu()
    return total / count


def cycle_table(
    target: Target,
    anchor: Int[Tensor, " 1"],
    proposal: Proposal,
    p_target: Float[Tensor, "1 rows V"],
    uniforms: Float[Tensor, "1 rows"],
    verdict: Verdict,
) -> str:
    """Return one verified block as text, draft by draft, and the token that follows."""
    drafts = proposal.tokens
    judged = p_target[:, :-1]
    keep = accept_probability(judged, proposal.p_draft, drafts)
    drawn = proposal.p_draft.gather(-1, drafts[..., None])[..., 0]  # [1, K]
    wanted = judged.gather(-1, drafts[..., None])[..., 0]  # [1, K]
    kept = int(verdict.num_accepted)
    lines = [
        f"anchor: {token_text(target, int(anchor))!r}",
        "draft         p_draft  p_target  keep if u <     u  verdict",
    ]
    for k, token in enumerate(drafts[0].tolist()):
        said = "kept" if k < kept else "rejected" if k == kept else "not reached"
        word = repr(token_text(target, token))
        numbers = f"{drawn[0, k]:7.2f}  {wanted[0, k]:8.2f}  {keep[0, k]:11.2f}"
        lines.append(f"{word:<12}  {numbers}  {uniforms[0, k]:.2f}  {said}")
    last = token_text(target, int(verdict.next_token))
    kind = "bonus" if kept == drafts.shape[1] else "replacement"
    return "\n".join([*lines, f"{last!r:<12}  from the target: the {kind}"])


def text_table(
    rows: Mapping[str, Sequence[float]],
    columns: Sequence[object] | None = None,
    *,
    head: str = "position",
    digits: int = 2,
) -> str:
    """Return named rows of numbers as text; columns count from 1 unless given.

    >>> print(text_table({"parallel": [1.0, 0.5], "Markov": [1.0, 1.0]}))
    position     1     2
    parallel  1.00  0.50
    Markov    1.00  1.00
    """
    longest = max((len(row) for row in rows.values()), default=0)
    columns = range(1, longest + 1) if columns is None else columns
    lines = [[head, *map(str, columns)]]
    for name, row in rows.items():
        lines.append([name, *(_number(value, digits) for value in row)])
    first = max(len(line[0]) for line in lines)
    widths = [
        max(len(line[i]) for line in lines if i < len(line))
        for i in range(1, max(map(len, lines)))
    ]
    return "\n".join(
        line[0].ljust(first)
        + "".join(f"  {c:>{w}}" for c, w in zip(line[1:], widths, strict=False))
        for line in lines
    )


def _number(value: float, digits: int) -> str:
    if math.isnan(value):
        return "-"
    return f"{round(float(value), digits) + 0.0:.{digits}f}"  # no -0.00
