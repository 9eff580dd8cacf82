"""Whether a device decodes as the CPU does: the tiny pair, greedy, in float32.

Two devices add in different orders, so that the last bits of a logit may differ; a
greedy reply must then still be the same token by token, save where the two best logits
are nearly tied. Where replies part, the tie is looked up on the CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dsparkref.checkpoints.io import load_drafter, load_target
from dsparkref.decode.loop import generate
from dsparkref.decode.request import as_row
from dsparkref.decode.target import Target
from dsparkref.draft.spec import HEADS

# Below this a parting is rounding, above it a fault.
NEAR_TIE = 1e-4


@dataclass(frozen=True)
class DeviceCheck:
    """The greedy replies of one device beside the CPU's."""

    # where the pair ran
    device: str
    # replies compared, and those equal token by token
    replies: int
    equal: int
    # difference of the CPU's two best logits at each parting
    gaps: tuple[float, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether replies part at near ties alone."""
        return all(gap < NEAR_TIE for gap in self.gaps)

    def __str__(self) -> str:
        words = f"{self.equal} of {self.replies} greedy float32 replies on "
        words += f"{self.device} equal the CPU's"
        if not self.gaps:
            return words
        tie = "near ties" if self.passed else "NO near ties"
        return f"{words}; the others part at {tie}: {max(self.gaps):.1e}"


def check_device(
    device: torch.device,
    messages: Sequence[str],
    *,
    heads: Sequence[str] = HEADS,
    max_new_tokens: int = 64,
) -> DeviceCheck:
    """Answer each message with each head of the tiny pair, here and on the CPU."""
    cpu = load_target("tiny", device="cpu", dtype="float32")
    here = load_target("tiny", device=device, dtype="float32")
    prompts = [cpu.encode(message) for message in messages]
    gaps = []
    for head in heads:
        for prompt, want, got in zip(
            prompts,
            *(_replies(t, head, prompts, max_new_tokens) for t in (cpu, here)),
            strict=True,
        ):
            if want != got:
                gaps.append(gap_at_parting(cpu, prompt, want, got))
    replies = len(heads) * len(prompts)
    return DeviceCheck(device.type, replies, replies - len(gaps), tuple(gaps))


@torch.no_grad()
def gap_at_parting(
    target: Target, prompt: Sequence[int], want: Sequence[int], got: Sequence[int]
) -> float:
    """Return how far the target's two best logits are apart where replies part."""
    pairs = zip(want, got, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if same is None:  # one is a prefix of the other
        same = min(len(want), len(got))
    ids = as_row([*prompt, *want[:same]], target.device)
    best = target.forward(ids, last_logits=1).logits[0, -1].topk(2).values
    return (best[0] - best[1]).item()


def _replies(
    target: Target, head: str, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    drafter = load_drafter(f"tiny/{head}", target)
    return [
        generate(target, drafter, list(ids), max_new_tokens=max_new_tokens).tokens
        for ids in prompts
    ]
