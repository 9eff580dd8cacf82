"""Small worlds whose law is known exactly, and the best drafters in them.

In a world of a few words everything can be added up instead of sampled: the law of a
block, the law of the best drafter that remembers nothing, one token or everything, and
the chance that each of its drafts stands. What is lost here is lost by the *shape* of
the drafter. No training could win it back.

The law of a block is a list of tables: table k, of shape [V] * k + [V], is the law
of token k (0-based, the paper's k+1) given tokens 0..k-1. An axis on which a table
does not depend may have size 1; such tables broadcast.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.decode.request import id_list
from dsparkref.shapes import (
    check_known,
    check_probs,
    check_range,
    check_sequence,
    check_shape,
    problem,
)
from dsparkref.verify.inputs import check_tensor
from dsparkref.verify.rejection import verify_block
from dsparkref.verify.sampling import as_generator, draw_uniforms, sample

Laws = list[Tensor]
# what the best drafter is best at
OBJECTIVES = ("cross_entropy", "overlap")
# tokens of a block: torch's tensors have no more axes than this
LONGEST = 60


@dataclass(frozen=True, eq=False)
class MarkovWorld:
    """A language in which a token depends on the ``order`` tokens before it.

    >>> weather = MarkovWorld(torch.tensor([[0.8, 0.2], [0.5, 0.5]]), ("sun", "rain"))
    >>> weather.order, weather.vocab_size
    (1, 2)
    >>> [round(p, 2) for p in weather.next_law([0]).tolist()]  # after a day of sun
    [0.8, 0.2]

    Raises:
        TypeError: ``transition`` is no tensor.
        ValueError: axes of unlike size, rows that are no laws, a word too many.
    """

    # [V] * order + [V], the last axis is the next token's law; kept in float64
    transition: Tensor
    # V names; empty: the ids
    words: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_tensor("transition", self.transition)
        if len(set(self.transition.shape)) != 1:
            rule, expected = "have axes of one size", "shape [V, ..., V]"
            raise problem("transition", rule, expected, list(self.transition.shape))
        table = self.transition.double()
        check_probs("transition", table)
        # laws that were rounded on the way here sum to 1 again, to the last bit
        table = table / table.sum(dim=-1, keepdim=True)
        check_sequence("words", self.words)
        names = tuple(self.words) or tuple(map(str, range(self.vocab_size)))
        if len(names) != self.vocab_size:
            rule, expected = "name each token", f"{self.vocab_size} words"
            raise problem("words", rule, expected, len(names))
        object.__setattr__(self, "transition", table)
        object.__setattr__(self, "words", names)

    @property
    def order(self) -> int:
        """How many tokens back the law looks."""
        return self.transition.dim() - 1

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.transition.shape[-1]

    @classmethod
    def random(
        cls,
        vocab_size: int,
        order: int,
        *,
        sharpness: float = 2.0,
        generator: torch.Generator | int | None = None,
    ) -> "MarkovWorld":
        """Return a world whose laws are softmax(sharpness * normal numbers).

        >>> MarkovWorld.random(4, 2, generator=0).transition.shape
        torch.Size([4, 4, 4])
        """
        check_range("vocab_size", vocab_size, 2, integer=True)
        check_range("order", order, 0, LONGEST, integer=True)
        check_range("sharpness", sharpness, 0.0)
        noise = torch.randn(
            [vocab_size] * (order + 1),
            generator=as_generator(generator),
            dtype=torch.float64,
        )
        return cls((sharpness * noise).softmax(dim=-1))

    def next_law(self, history: Sequence[int]) -> Float[Tensor, " V"]:
        """Return the law of the token after ``history`` (its last ``order`` count)."""
        return self.block_laws(history, 1)[0]

    def block_laws(self, context: Sequence[int], length: int) -> Laws:
        """Return the exact law of the ``length`` tokens after ``context``.

        Args:
            context: at least ``order`` ids, the anchor last.
            length: tables wanted; K drafts and the bonus take K + 1.

        >>> world = two_mode_world()
        >>> first, second = world.block_laws([world.words.index(",")], 2)
        >>> [round(p, 2) for p in first.tolist()]  # of these, 'of' and 'no'
        [0.0, 0.5, 0.5, 0.0, 0.0]
        """
        context = id_list("context", context, self.vocab_size)
        check_range("length", length, 1, LONGEST, integer=True)
        if len(context) < self.order:
            rule, expected = "reach back far enough", f"at least {self.order} ids"
            raise problem("context", rule, expected, len(context))
        tables = []
        for k in range(length):
            reach = max(self.order - k, 0)  # tokens of the context that still count
            table = self.transition[tuple(context[len(context) - reach :])]
            forgotten = max(k - self.order, 0)  # tokens of the block that no longer do
            tables.append(table.view([1] * forgotten + list(table.shape)))
        return tables

    def spell(self, tokens: Sequence[int]) -> str:
        """Return the words of tokens.

        >>> two_mode_world().spell([1, 3, 0])
        'of course ,'
        """
        tokens = id_list("tokens", tokens, self.vocab_size)
        return " ".join(self.words[token] for token in tokens)


def two_mode_world(first_mode: float = 0.5) -> MarkovWorld:
    """Return the world that says "of course" or "no problem", again and again.

    Order 1: after the comma comes "of" with probability ``first_mode``, else "no";
    "of" is followed by "course", "no" by "problem", and either by a comma. Slots that
    do not see each other offer "of problem" too, which nobody says.
    """
    check_range("first_mode", first_mode, 0.0, 1.0)
    words = (",", "of", "no", "course", "problem")
    transition = torch.zeros(5, 5, dtype=torch.float64)
    transition[0, 1], transition[0, 2] = first_mode, 1 - first_mode
    transition[1, 3] = transition[2, 4] = transition[3, 0] = transition[4, 0] = 1.0
    return MarkovWorld(transition, words)


def shared_word_world() -> MarkovWorld:
    """Return a world in which the word between tells nothing: memory of two tokens.

    Order 2: "slow and steady", "short and sweet" or "plain and simple", a comma, and
    again. After "and" only the word before it knows the ending.
    """
    firsts, lasts = ("slow", "short", "plain"), ("steady", "sweet", "simple")
    words = (",", "and", *firsts, *lasts)
    comma, shared = 0, 1
    transition = torch.zeros(8, 8, 8, dtype=torch.float64)
    transition[:, comma, 2:5] = 1 / 3  # any phrase after a comma
    transition[:, 2:5, shared] = 1.0
    transition[:, 5:8, comma] = 1.0
    transition[:, shared, 5:8] = 1 / 3  # a history that never happens
    for i in range(3):
        transition[2 + i, shared, 5:8] = torch.eye(3, dtype=torch.float64)[i]
    return MarkovWorld(transition, words)


def best_drafter(
    target: Laws, memory: int | None, objective: str = "cross_entropy"
) -> Laws:
    """Return the law of the best drafter that sees its last ``memory`` drafts.

    All of them see the context before the block. Memory 0 is the parallel drafter,
    1 a Markov head, None one that sees every draft before. Best is meant as training
    means it: the drafts before are the target's own, as under teacher forcing.

    Args:
        target: K tables, the target's law of the block.
        memory: drafts it sees, >= 0, or None for all.
        objective: "cross_entropy" gives the conditional law of token k given what
            the drafter sees, which cross entropy leads to. "overlap" gives the law
            that is kept most often, which total variation leads to. They differ: the
            one mixes the modes by their weights, the other may drop the rare ones.

    Returns:
        K tables, of size 1 along what the drafter does not see.

    Raises:
        TypeError, ValueError: tables that are no law of a block, a negative memory.

    >>> world = two_mode_world(0.7)
    >>> course = best_drafter(world.block_laws([0], 2), memory=0)[1][0]
    >>> [round(p, 2) for p in course.tolist()]  # of the last two words
    [0.0, 0.0, 0.0, 0.7, 0.3]
    """
    check_tables("target", target)
    check_known("objective", objective, OBJECTIVES)
    if memory is not None:
        check_range("memory", memory, 0, integer=True)
    tables, prefix = [], torch.ones((), dtype=torch.float64)
    for k, law in enumerate(target):
        hidden = 0 if memory is None else max(k - memory, 0)
        joint = prefix[..., None] * law  # [V] * (k + 1)
        if objective == "overlap" and hidden:
            tables.append(_most_kept(prefix, law, hidden))
        else:
            seen = joint.sum(tuple(range(hidden)), keepdim=True) if hidden else joint
            tables.append(_normalised(seen))
        prefix = joint
    return tables


def exact_survival(target: Laws, draft: Laws) -> Float[Tensor, " K"]:
    """Return the chance that drafts 0..k all stand, by adding up every path.

    S_k = sum over x_0..x_k of prod_j min(p_j(x_j | x_<j), q_j(x_j | x_<j)): draft j is
    proposed with probability q_j and kept with min(1, p_j / q_j). One plus the sum of
    all S_k is the accepted length.

    Args:
        target: K tables, or more (the bonus needs none here).
        draft: K tables.

    Returns:
        [K] in [0, 1], never rising.

    Raises:
        TypeError, ValueError: tables that are no law of a block, or too few.

    >>> laws = two_mode_world().block_laws([0], 3)
    >>> for memory in 0, 1:  # the parallel drafter says "of problem" half the time
    ...     print(exact_survival(laws, best_drafter(laws, memory)).tolist())
    [1.0, 0.5, 0.5]
    [1.0, 1.0, 1.0]
    """
    check_pair(target, draft, len(draft))
    survival, standing = [], torch.ones((), dtype=torch.float64)
    for wanted, drafted in zip(target, draft, strict=False):
        standing = standing[..., None] * torch.minimum(wanted, drafted)
        survival.append(standing.sum())
    return torch.stack(survival)  # [K]


def exact_conditional(target: Laws, draft: Laws) -> Float[Tensor, " K"]:
    """Return the chance that draft k stands, given that all before it do.

    S_k / S_{k-1}; NaN behind a draft that never stands. Arguments and errors as in
    ``exact_survival``.

    >>> laws = two_mode_world().block_laws([0], 3)
    >>> exact_conditional(laws, best_drafter(laws, memory=0)).tolist()
    [1.0, 0.5, 1.0]
    """
    survival = exact_survival(target, draft)
    before = torch.cat([torch.ones(1, dtype=survival.dtype), survival[:-1]])
    return survival / before


def simulate(
    target: Laws,
    draft: Laws,
    count: int,
    *,
    generator: torch.Generator | int | None = None,
) -> Int[Tensor, " n"]:
    """Draft ``count`` blocks, judge them by ``verify_block``, return num_accepted.

    Args:
        target: K + 1 tables, or more; the last one is for the bonus.
        draft: K tables.
        count: n, >= 1.
        generator: a torch.Generator, an int seed or None.

    Returns:
        [n], drafts kept in each block, 0..K.

    >>> laws = two_mode_world().block_laws([0], 3)
    >>> simulate(laws, best_drafter(laws[:2], 1), 4, generator=0).tolist()
    [2, 2, 2, 2]
    """
    check_range("count", count, 1, integer=True)
    check_pair(target, draft, len(draft) + 1)
    block, device = len(draft), draft[0].device
    shape = (count, 2 * block + 1)  # a number for each draft, coin and bonus
    uniforms = draw_uniforms(shape, generator=as_generator(generator), device=device)
    tokens = torch.zeros(count, 0, dtype=torch.long, device=device)
    for k in range(block):
        drawn = sample(rows_along(draft[: k + 1], tokens)[:, -1], uniforms[:, k])
        tokens = torch.cat([tokens, drawn[:, None]], dim=1)
    p_draft = rows_along(draft, tokens)
    p_target = rows_along(target[: block + 1], tokens)
    return verify_block(tokens, p_draft, p_target, uniforms[:, block:]).num_accepted


def rows_along(laws: Laws, tokens: Int[Tensor, "n k"]) -> Float[Tensor, "n tables V"]:
    """Return, for each row of tokens, the laws that apply along its path.

    Table k is looked up at tokens 0..k-1; the last table needs no token of its own.

    >>> laws = two_mode_world().block_laws([0], 2)
    >>> rows_along(laws, torch.tensor([[1], [2]]))[:, 1].tolist()  # course; problem
    [[0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    """
    if tokens.shape[1] < len(laws) - 1:
        expected = f"at least {len(laws) - 1} columns"
        raise problem("tokens", "lead to the last table", expected, tokens.shape[1])
    rows = []
    for k, table in enumerate(laws):
        seen = [
            tokens[:, j] if table.shape[j] > 1 else torch.zeros_like(tokens[:, j])
            for j in range(k)
        ]
        rows.append(table[tuple(seen)] if seen else table.expand(len(tokens), -1))
    return torch.stack(rows, dim=1)  # [n, tables, V]


def check_tables(name: str, tables: Laws) -> int:
    """Check that table k is a law of token k given k others; return V."""
    if isinstance(tables, Tensor) or not tables:
        rule, got = "hold a table for each token", type(tables).__name__
        raise problem(name, rule, "a list of at least one", got)
    vocab = check_shape(f"{name}[0]", tables[0], "V")["V"]
    for k, table in enumerate(tables):
        check_tensor(f"{name}[{k}]", table)
        shape = list(table.shape)
        if len(shape) != k + 1 or shape[-1] != vocab or not {*shape} <= {1, vocab}:
            rule, expected = "be a law given what came before", [vocab] * (k + 1)
            hint = "An axis before the last may have size 1."
            raise problem(f"{name}[{k}]", rule, expected, shape, hint)
        check_probs(f"{name}[{k}]", table)
    return vocab


def check_pair(target: Laws, draft: Laws, count: int) -> None:
    """Check two laws of one block; the target's must have ``count`` tables or more."""
    wanted, found = check_tables("target", target), check_tables("draft", draft)
    if wanted != found:
        rule = "cover the target's vocabulary"
        raise problem("draft", rule, f"V = {wanted}", f"V = {found}")
    if len(target) < count:
        rule, expected = "reach as far as the drafts do", f"{count} tables"
        raise problem("target", rule, expected, len(target))


def _normalised(mass: Tensor) -> Tensor:
    """Divide by the last axis' sum; where nothing ever comes, any law will do."""
    total = mass.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, mass / total, 1 / mass.shape[-1])


def _most_kept(prefix: Tensor, law: Tensor, hidden: int) -> Tensor:
    """Return the law that is kept most often, where ``hidden`` axes are not seen."""
    vocab = law.shape[-1]
    law = law.expand(*prefix.shape, vocab)
    seen = prefix.shape[hidden:]
    laws = law.reshape(-1, seen.numel(), vocab)  # [hidden paths, seen paths, V]
    weights = prefix.reshape(-1, seen.numel())  # [hidden paths, seen paths]
    best = [most_kept_law(laws[:, i], weights[:, i]) for i in range(seen.numel())]
    return torch.stack(best).view([1] * hidden + list(seen) + [vocab])


def most_kept_law(
    laws: Float[Tensor, "n V"], weights: Float[Tensor, " n"]
) -> Float[Tensor, " V"]:
    """Return the one law q that maximises sum_i w_i sum_x min(p_i(x), q(x)).

    Raising q(x) pays the weight of all p_i that lie above it, so each p_i(x) is a
    step at which raising x pays less. The mass of 1 goes where it pays most.

    Args:
        laws: [n, V], the p_i.
        weights: [n], >= 0, how often each of them is the target's.

    >>> laws = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double()
    >>> most_kept_law(laws, torch.tensor([0.5, 0.5]).double()).tolist()
    [1.0, 0.0]
    """
    check_probs("laws", laws)
    check_shape("weights", weights, "n", n=len(laws))
    if not (weights >= 0).all():  # NaN is not
        raise problem("weights", "be weights", "numbers >= 0", weights.tolist())
    height, order = laws.sort(dim=0)  # [n, V]
    steps = height.diff(dim=0, prepend=torch.zeros_like(height[:1]))
    pays = weights[order].flip(0).cumsum(dim=0).flip(0)  # [n, V]
    best = pays.flatten().argsort(descending=True, stable=True)
    room = steps.flatten()[best]
    taken = torch.minimum(room, (1 - room.cumsum(0) + room).clamp(min=0))
    filled = torch.zeros_like(room).scatter(0, best, taken)  # [n * V]
    return filled.view_as(steps).sum(dim=0)  # [V]
