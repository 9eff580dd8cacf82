"""The law a drafter tells is the law its drafts come from: every head, every path.

Each block of drafts is walked through, token by token, in real drafters on a random
target in float64. Both verifiers, told that law, keep the target's own to 1e-12.
"""

import pytest
import torch
from exact_laws import CUTS, Block, check_lossless, every_run, warped
from tiny_models import HEADS, tiny_drafter, tiny_target

from dsparkref.verify.rejection import VERIFIERS

PROMPT, ANCHOR = [2, 0, 1], 1
LAYERS = (0, -1)
pytestmark = pytest.mark.usefixtures("no_shape_checks")


def drafted_block(head: str, vocab: int, size: int, cut: dict, monkeypatch) -> Block:
    """The laws of one block after the anchor, each table filled in path by path."""
    sizes = {"vocab_size": vocab, "num_hidden_layers": 2, "initializer_range": 0.3}
    target = tiny_target(dtype=torch.float64, **sizes)
    drafter = tiny_drafter(target, head, block_size=size, target_layer_ids=LAYERS)
    features = target.forward(torch.tensor([PROMPT]), LAYERS).hidden.detach()
    kind = {"dtype": torch.float64}
    # a path that is never drafted has no law of its own; the target's matters still
    draft, told = (
        [torch.full([vocab] * (k + 1), 1 / vocab, **kind) for k in range(size)]
        for _ in range(2)
    )

    def propose(choices):
        path, laws = [], []

        def choose(probs, uniforms):
            laws.append(probs[0])
            path.append(choices.choose(probs[0]))
            return torch.tensor(path[-1:])

        monkeypatch.setattr("dsparkref.draft.drafter.sample", choose)
        proposal = drafter.propose(features, torch.tensor([ANCHOR]), **cut)
        assert proposal.tokens[0].tolist() == path
        for k in range(size):
            draft[k][tuple(path[:k])] = laws[k]
            told[k][tuple(path[:k])] = proposal.p_draft[0, k]

    runs = list(every_run(propose))
    assert sum(chance for _, chance in runs) == pytest.approx(1, abs=1e-12)
    paths = torch.cartesian_prod(*[torch.arange(vocab)] * size).view(-1, size)
    start = torch.tensor([*PROMPT, ANCHOR]).expand(len(paths), -1)
    with torch.no_grad():
        logits = target.model(torch.cat([start, paths], dim=1), use_cache=False).logits
    laws = warped(logits[:, len(PROMPT) :], **cut)  # [V^K, K + 1, V]
    grid = laws.view(*[vocab] * size, size + 1, vocab)
    tables = [
        grid[(slice(None),) * k + (0,) * (size - k) + (k,)] for k in range(size + 1)
    ]
    return Block(tables, draft, told)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "vocab, size, cut",
    [
        (3, 2, "plain"),
        (3, 2, "top_k"),
        (3, 2, "greedy"),
        *(
            pytest.param(vocab, size, cut, marks=pytest.mark.slow)
            for vocab, size, cut in [
                (3, 3, "plain"),
                (4, 2, "cold"),
                (4, 2, "all"),
                (4, 3, "top_p"),
                (5, 3, "top_k"),
                (5, 1, "plain"),
            ]
        ),
    ],
)
def test_blocks_of_every_head_leave_the_targets_law(
    vocab, size, cut, head, monkeypatch
):
    block = drafted_block(head, vocab, size, CUTS[cut], monkeypatch)
    for verifier in VERIFIERS.values():
        check_lossless(verifier, block)
    if size > 1 and cut in ("plain", "cold"):  # every path is drafted
        reads = (block.draft[1].diff(dim=0).abs() > 1e-3).any()
        assert reads == (head != "dflash")  # the draft before
