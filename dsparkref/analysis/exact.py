"""What a verifier emits, as an exact law: every draft and every coin added up.

A verifier only compares its uniforms with numbers, so that its answer is piecewise
constant in them. `verdict_law` cuts [0, 1) wherever the answer can change, asks the
verifier itself inside each cell and weighs what it says by the cell's volume. Nothing
is sampled: a law that is off by 1e-9 is seen.

Laws of blocks are lists of tables, as in toy.py.
"""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from dsparkref.analysis.toy import Laws, check_pair, check_tables, rows_along
from dsparkref.records import Verdict
from dsparkref.verify.inputs import check_draft_laws, check_laws
from dsparkref.verify.rejection import residual_distribution

Verifier = Callable[..., Verdict]
# Two jumps closer than this are one, computed in two ways.
SAME_JUMP = 1e-13


def emitted_token_law(
    p_target: Float[Tensor, "*rows V"],
    p_draft: Float[Tensor, "*rows V"],
    told: Float[Tensor, "*rows V"] | None = None,
) -> Float[Tensor, "*rows V"]:
    """Return the law of the token that rejection sampling emits at one position.

    q(x) a(x) + (1 - sum_y q(y) a(y)) r(x): the drafts that are kept, with
    a = min(1, p / told), and the replacements, with r = norm(max(0, p - told)).
    An honest drafter tells q, and this is the target's law p.

    Args:
        p_target: [..., V], p.
        p_draft: [..., V], q, the law that the draft is drawn from.
        told: [..., V], the law that the verifier is told; None: q itself.

    Raises:
        TypeError, ValueError: rows that are no laws, unlike shapes.

    >>> p, q = torch.tensor([0.3, 0.5, 0.2]), torch.tensor([1.0, 0.0, 0.0])
    >>> emitted_token_law(p, q)
    tensor([0.3000, 0.5000, 0.2000])
    >>> emitted_token_law(p, q, told=torch.tensor([0.4, 0.35, 0.25]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    p_target, p_draft = check_laws(p_target, p_draft)
    told = p_draft if told is None else check_draft_laws(told, p_target)
    keep = torch.where(told > 0, (p_target / told).clamp(max=1), 0.0)
    kept = p_draft * keep  # [..., V]
    lost = 1 - kept.sum(dim=-1, keepdim=True)  # [..., 1]
    return kept + lost * residual_distribution(p_target, told)


def emitted_law(
    verifier: Verifier,
    target: Laws,
    draft: Laws,
    *,
    told: Laws | None = None,
    verify_len: Callable[[Sequence[int]], int] | None = None,
    faulty: bool = False,
) -> tuple[Float[Tensor, "..."], Float[Tensor, " counts"]]:
    """Return the exact law of the K + 1 tokens after the anchor, and of num_accepted.

    What a cycle emits is continued by the target to K + 1 tokens. A verifier is
    lossless where the result is ``joint_law(target)``.

    Args:
        verifier: as ``verify_block``.
        target: K + 1 tables, the target's law of the block and of the bonus.
        draft: K tables, the law that the drafts are drawn from; K may be 0.
        told: K tables, what the verifier is told; None: what ``draft`` says.
        verify_len: the drafts -> how many of them are verified; None: all.
        faulty: as in ``verdict_law``.

    Returns:
        [V] * (K + 1), the chance of each text; [K + 1], that of each num_accepted.

    >>> from dsparkref import MarkovWorld, verify_block
    >>> coin = MarkovWorld(torch.tensor([0.8, 0.2]))
    >>> target, draft = coin.block_laws([], 2), [torch.tensor([0.5, 0.5])]
    >>> law, accepted = emitted_law(verify_block, target, draft)
    >>> [round(p, 2) for p in law.sum(1).tolist()]  # of the first token
    [0.8, 0.2]
    >>> [round(p, 2) for p in accepted.tolist()]  # none, one
    [0.3, 0.7]
    """
    vocab, size = check_tables("target", target), len(draft)
    if draft:
        check_pair(target, draft, size + 1)
    told = draft if told is None else told
    mass = [torch.zeros([vocab] * (n + 1)).double() for n in range(size + 1)]
    drafted = joint_law(draft) if size else torch.ones(())
    for path in product(range(vocab), repeat=size):
        if drafted[path] == 0:
            continue
        tokens = torch.tensor([path], dtype=torch.long)  # [1, K]
        p_target = rows_along(target[: size + 1], tokens)[0].double()
        shown = rows_along(told, tokens)[0].double() if size else p_target[:0]
        length = None if verify_len is None else verify_len(path)
        law = verdict_law(
            verifier, path, shown, p_target, verify_len=length, faulty=faulty
        )
        for n in range(size + 1):
            mass[n][path[:n]] += drafted[path] * law[n]
    accepted = torch.stack([part.sum() for part in mass])  # [K + 1]
    for n in range(size):
        mass[n + 1] += mass[n][..., None] * target[n + 1]
    return mass[size], accepted


def joint_law(laws: Laws) -> Float[Tensor, "..."]:
    """Return the law of a whole block, [V] * number of tables.

    >>> joint_law([torch.tensor([0.5, 0.5]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])])
    tensor([[0.5000, 0.0000],
            [0.2500, 0.2500]])
    """
    law = laws[0]
    for table in laws[1:]:
        law = law[..., None] * table
    return law


def verdict_law(
    verifier: Verifier,
    path: Sequence[int],
    told: Float[Tensor, "K V"],
    p_target: Float[Tensor, "K+1 V"],
    *,
    verify_len: int | None = None,
    faulty: bool = False,
) -> Float[Tensor, "K+1 V"]:
    """Return the chance of each (num_accepted, next_token) for one drafted block.

    Args:
        verifier: as ``verify_block``.
        path: K ids, the drafts.
        told: [K, V], the law the verifier is told that they come from; float64.
        p_target: [K+1, V], the target's laws along the path; float64.
        verify_len: 0..K; None: all.
        faulty: cut also where known faults (lab/planted_faults.py) let a verifier
            jump; slower.

    Raises:
        RuntimeError: the verifier jumps inside a cell: two points of it disagree.

    >>> from dsparkref import verify_block
    >>> p_target = torch.tensor([[0.4, 0.6], [0.9, 0.1]]).double()
    >>> told = torch.tensor([[0.5, 0.5]]).double()
    >>> law = verdict_law(verify_block, [0], told, p_target)  # kept with 0.4 / 0.5
    >>> [[round(p, 2) for p in row] for row in law.tolist()]
    [[0.0, 0.2], [0.72, 0.08]]
    """
    block, vocab = told.shape
    jumps = _jumps(path, told, p_target, faulty)
    found = []
    for fraction in 0.25, 0.75:  # of the way through each cell
        points, widths = zip(*(_cells(j, fraction) for j in jumps), strict=True)
        uniforms = _grid(points)  # [cells, K+1]
        count = len(uniforms)
        verdict = verifier(
            torch.tensor(path, dtype=torch.long).expand(count, block),
            told.expand(count, block, vocab),
            p_target.expand(count, block + 1, vocab),
            uniforms,
            **({} if verify_len is None else {"verify_len": verify_len}),
        )
        found.append(verdict.num_accepted * vocab + verdict.next_token)
    if not torch.equal(*found):
        raise RuntimeError("the integrator misses a jump of this verifier")
    law = torch.zeros((block + 1) * vocab, dtype=torch.float64)
    return law.index_add(0, found[0], _grid(widths).prod(1)).view(block + 1, vocab)


def _jumps(
    path: Sequence[int], told: Tensor, p_target: Tensor, faulty: bool
) -> list[Tensor]:
    """Return, for each uniform, the numbers where the verifier can change its mind.

    ``faulty`` adds the jumps of wrong verifiers: to the last uniform the laws they may
    draw from, to the others the coins of all positions and of the rows after.
    """
    block = len(path)
    index = torch.tensor(path, dtype=torch.long)[:, None]
    rows = p_target[:block]
    coins = (rows / told).gather(1, index)  # [K, 1]
    laws = [p_target, residual_distribution(rows, told)]
    if faulty:
        other = rows.scatter(1, index, 0.0)
        laws += [told, (rows - told).clamp(min=0), other / other.sum(1, keepdim=True)]
        after = (p_target[1:] / told).gather(1, index)
        coins = torch.cat([coins, after]).T.expand(block, -1)  # [K, 2K]
    own = p_target.cumsum(1)  # where the target's own sample changes
    firsts = [torch.cat([coins[k], own[k]]) for k in range(block)]
    return [*firsts, torch.cat(laws).cumsum(1).flatten()]


def _cells(jumps: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Return a point in each cell, and its width; first the point 0, of width 0."""
    inside = jumps[(jumps > SAME_JUMP) & (jumps < 1 - SAME_JUMP)]  # NaN drops out
    inside = inside.sort().values
    apart = torch.ones_like(inside, dtype=torch.bool)
    apart[1:] = inside.diff() > SAME_JUMP
    edges = torch.cat([torch.zeros(1), inside[apart], torch.ones(1)])
    width = edges.diff()
    points = edges[:-1] + fraction * width
    return torch.cat([torch.zeros(1), points]), torch.cat([torch.zeros(1), width])


def _grid(columns: Sequence[Tensor]) -> Tensor:
    """Return every combination, one per row."""
    return torch.stack(torch.meshgrid(*columns, indexing="ij"), -1).flatten(0, -2)
