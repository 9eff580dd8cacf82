"""Wrong verifiers and drafters that tell a wrong law: what every check must catch.

`plain_verifier` is the rejection rule in plain Python, right unless a fault is named.
`MISTOLD` are the laws that a drafter may tell instead of its own.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dsparkref.analysis.exact import Verifier
from dsparkref.records import Verdict
from dsparkref.shapes import check_known
from dsparkref.verify.sampling import probabilities

Law = list[float]

# of the replacement: one draft shows them
FROM_TARGET = "replacement from p_t"
FROM_DRAFT = "replacement from p_d"
NO_RESIDUAL = "no residual: p_t without the rejected token"
UNNORMALISED = "residual not renormalised"
IN_THE_REPLACEMENT = [FROM_TARGET, FROM_DRAFT, NO_RESIDUAL, UNNORMALISED]
# of the walk through the block
ONE_UNIFORM = "one uniform for all positions"
WRONG_ROW = "the wrong row of p_t"
COUNTS_ON = "counts after the first rejection"
ROW_BEFORE = "bonus from the row before"
TRUNCATION = "truncation taken for a rejection"
AT_ZERO = "<= at u = 0"
IN_THE_WALK = [ONE_UNIFORM, WRONG_ROW, COUNTS_ON, ROW_BEFORE]
# of what the drafter tells
SOFT_LAW = "soft q for a greedy draft"
BEFORE_TOP_K = "q before top-k"

# these bend the law of a whole run as well
WRONG_VERDICTS = [
    NO_RESIDUAL,
    UNNORMALISED,
    FROM_TARGET,
    ONE_UNIFORM,
    WRONG_ROW,
    AT_ZERO,
]
# seen in one block, and caught there
MORE_WRONG_VERDICTS = [FROM_DRAFT, COUNTS_ON, ROW_BEFORE, TRUNCATION]

# from draft logits and the caller's settings to the law that is told
MISTOLD: dict[str, Callable[[Tensor, float, int | None, float | None], Tensor]] = {
    SOFT_LAW: lambda logits, temperature, top_k, top_p: probabilities(logits, 1.0),
    BEFORE_TOP_K: lambda logits, temperature, top_k, top_p: probabilities(
        logits, temperature, None, top_p
    ),
    "drawn in another precision": lambda logits, *settings: probabilities(
        logits.bfloat16().double(), *settings
    ),
}


def plain_verifier(fault: str = "") -> Verifier:
    """The rejection rule on Python numbers, with one fault or none."""
    check_known("fault", fault, ("", *WRONG_VERDICTS, *MORE_WRONG_VERDICTS))

    def verifier(
        tokens: Tensor,
        p_draft: Tensor,
        p_target: Tensor,
        uniforms: Tensor,
        *,
        verify_len: int | None = None,
    ) -> Verdict:
        length = tokens.shape[1] if verify_len is None else verify_len
        tables = [table.tolist() for table in (tokens, p_draft, p_target, uniforms)]
        found = [
            _judge(drafts, q, p, numbers, length, fault)
            for drafts, q, p, numbers in zip(*tables, strict=True)
        ]
        return Verdict(*torch.tensor(found).T)

    return verifier


def _judge(
    tokens: list[int],
    p_draft: list[Law],
    p_target: list[Law],
    uniforms: list[float],
    length: int,
    fault: str,
) -> tuple[int, int]:
    kept = []
    for k in range(length):
        u = uniforms[0 if fault == ONE_UNIFORM else k]
        row = p_target[k + 1 if fault == WRONG_ROW else k]
        ratio = row[tokens[k]] / p_draft[k][tokens[k]]
        kept.append(u <= ratio if fault == AT_ZERO else u < ratio)
    n = (*kept, False).index(False)
    if fault == COUNTS_ON:
        n = sum(kept)
    rejected = n < length
    if fault == TRUNCATION:
        rejected = n < len(tokens)
    if fault == ROW_BEFORE and not rejected:
        return n, _pick(p_target[max(n - 1, 0)], uniforms[-1])
    law = p_target[n]
    if rejected:
        law = _replacement(law, p_draft[n], tokens[n], fault)
    return n, _pick(law, uniforms[-1])


def _replacement(p: Law, q: Law, token: int, fault: str) -> Law:
    left = [max(0.0, wanted - drafted) for wanted, drafted in zip(p, q, strict=True)]
    if fault == FROM_TARGET:
        left = p
    if fault == NO_RESIDUAL:
        left = [0.0 if x == token else wanted for x, wanted in enumerate(p)]
    if fault == FROM_DRAFT:
        left = q
    total = 1.0 if fault == UNNORMALISED else sum(left)
    return [mass / total for mass in left] if total > 0 else p


def _pick(law: Law, u: float) -> int:
    running = 0.0
    for x, p in enumerate(law):
        running += p
        if u < running:
            return x
    return max(x for x, p in enumerate(law) if p > 0)
