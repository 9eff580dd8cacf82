"""From exchanges to batches: chat text, loss masks, regeneration, anchors.

Everything random is a function of (seed, step) or (seed, batch number), never of what
ran before: that is what lets an interrupted run go on as if nothing had happened.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from jaxtyping import Bool, Int
from torch import Tensor
from tqdm.auto import tqdm

from dsparkref.checkpoints.files import write_text
from dsparkref.decode.target import Target
from dsparkref.draft.blocks import Mask
from dsparkref.shapes import check_range, problem
from dsparkref.train.fingerprint import fingerprint_texts, fingerprint_weights


@dataclass(frozen=True)
class Batch:
    """Padded sequences; padding stands on the right."""

    # [B, S]
    input_ids: Tensor
    # [B, S], 1 on real tokens
    attention_mask: Tensor
    # [B, S], 1 on the reply's tokens, its end marker included
    loss_mask: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return Batch(*(tensor.to(device) for tensor in vars(self).values()))


def tokenize_exchanges(
    tokenizer: Any, rows: Sequence[dict[str, str]], *, max_length: int
) -> tuple[Dataset, int]:
    """Return the exchanges as ids with a loss mask, and how many were too long.

    ``rows`` have keys ``prompt`` and ``reply``. The loss mask covers the reply and
    its end marker; the template's headers carry no loss. A sample longer than
    ``max_length`` is dropped and counted.
    """
    special_token_id(tokenizer, "eos_token")

    def encode(row: dict[str, str]) -> dict[str, list[int]]:
        messages = [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False, tokenize=False
        )
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        reply = row["reply"] + tokenizer.eos_token
        reply_ids = tokenizer(reply, add_special_tokens=False)["input_ids"]
        mask = [0] * len(prompt_ids) + [1] * len(reply_ids)
        return {"input_ids": prompt_ids + reply_ids, "loss_mask": mask}

    samples = [encode(row) for row in rows]
    fitting = [row for row in samples if len(row["input_ids"]) <= max_length]
    if not fitting:
        got = f"{len(samples)} samples, all longer or none at all"
        expected = f"a sample of at most {max_length} tokens"
        raise problem("training data", "hold something to train on", expected, got)
    return Dataset.from_list(fitting), len(samples) - len(fitting)


def special_token_id(tokenizer: Any, name: str) -> int:
    """Return the id of a tokenizer's ``pad_token`` or ``eos_token``, or name it."""
    found = getattr(tokenizer, f"{name}_id", None)
    if found is None:
        got = "no tokenizer" if tokenizer is None else "none"
        hint = f"Set tokenizer.{name}." if tokenizer is not None else ""
        raise problem(f"tokenizer's {name}", "be there", "a token", got, hint)
    return found


def tokens_to_learn(samples: Dataset) -> int:
    """Return how many tokens of the samples carry loss."""
    return sum(sum(mask) for mask in samples["loss_mask"])


def collate(samples: Sequence[dict[str, list[int]]], pad_token_id: int) -> Batch:
    """Pad samples to the longest of them.

    >>> rows = [{"input_ids": [5, 6], "loss_mask": [0, 1]},
    ...         {"input_ids": [7], "loss_mask": [1]}]
    >>> collate(rows, pad_token_id=0).input_ids.tolist()
    [[5, 6], [7, 0]]
    """
    length = max(len(sample["input_ids"]) for sample in samples)

    def padded(key: str, fill: int) -> Tensor:
        rows = [row[key] + [fill] * (length - len(row[key])) for row in samples]
        return torch.tensor(rows)  # [B, S]

    real = [{"attention": [1] * len(row["input_ids"])} for row in samples]
    rows = [row["attention"] + [0] * (length - len(row["attention"])) for row in real]
    attention_mask = torch.tensor(rows)
    return Batch(
        padded("input_ids", pad_token_id), attention_mask, padded("loss_mask", 0)
    )


class BatchOrder:
    """Which samples make up the batch of a step: a function of (seed, step) alone.

    Each epoch is shuffled anew. Samples of like length share a batch, so that little
    is padding: runs of ``16 * batch_size`` shuffled samples are sorted by length and
    cut into batches, and the batches are shuffled again.

    >>> order = BatchOrder(lengths=[3, 1, 2, 3], batch_size=2, seed=0)
    >>> sorted(order.batch(0) + order.batch(1))
    [0, 1, 2, 3]
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        check_range("batch_size", batch_size, 1, len(lengths), integer=True)
        self.lengths, self.batch_size, self.seed = list(lengths), batch_size, seed
        self.batches_per_epoch = len(lengths) // batch_size
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    @classmethod
    def of(cls, samples: Dataset, batch_size: int, seed: int) -> "BatchOrder":
        """Return the order of tokenised samples."""
        return cls([len(ids) for ids in samples["input_ids"]], batch_size, seed)

    def batch(self, step: int) -> list[int]:
        """Return the sample indices of one step."""
        epoch, place = divmod(step, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch))
        return self._epoch[1][place]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        generator = seeded(self.seed, epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        size = self.batch_size
        batches = []
        for start in range(0, len(order), 16 * size):
            run = sorted(order[start : start + 16 * size], key=self.lengths.__getitem__)
            batches += [run[i : i + size] for i in range(0, len(run) - size + 1, size)]
        shuffle = torch.randperm(len(batches), generator=generator).tolist()
        return [batches[i] for i in shuffle]


def seeded(*numbers: int) -> torch.Generator:
    """Return a CPU generator that depends on all the numbers.

    >>> int(torch.randint(100, (), generator=seeded(1, 2))) == int(
    ...     torch.randint(100, (), generator=seeded(1, 2)))
    True
    """
    seed = 0
    for number in numbers:  # a mixing step of the splitmix kind
        seed = (seed * 6364136223846793005 + number + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(seed)


def sample_anchors(
    loss_mask: Mask, num_anchors: int, *, generator: torch.Generator | None = None
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Draw anchors without replacement from the eligible positions of each row.

    Position a is eligible when a and a+1 carry loss. Returns the anchors in order
    and a mask that is False where a row had fewer eligible positions than N. There
    is at least one column, also where sequences of one token have no anchor.

    >>> anchors, keep = sample_anchors(torch.tensor([[0, 1, 1, 1, 0]]), 3)
    >>> anchors[keep].tolist()
    [1, 2]
    """
    check_range("num_anchors", num_anchors, 1, integer=True)
    carries = loss_mask.cpu() != 0
    eligible = carries[:, :-1] & carries[:, 1:]  # [B, S-1]
    if not eligible.shape[1]:
        eligible = torch.zeros_like(carries)  # [B, 1]
    scores = torch.rand(eligible.shape, generator=generator)
    scores = scores.masked_fill(~eligible, -1.0)
    width = min(num_anchors, scores.shape[1])
    values, anchors = scores.topk(width, dim=-1)
    anchors, order = anchors.sort(dim=-1)
    keep = (values >= 0).gather(1, order)
    return anchors.to(loss_mask.device), keep.to(loss_mask.device)


def regenerate(
    target: Target,
    prompts: Sequence[str],
    path: Path,
    *,
    max_new_tokens: int = 128,
    batch_size: int = 128,
    seed: int = 0,
) -> list[dict[str, str]]:
    """Let the target answer every prompt at temperature 1; return prompt and reply.

    A drafter must learn what its target says, not what the corpus says. Replies are
    appended to ``path`` batch by batch, a line of JSON each, so an interrupted run
    goes on with the next batch and ends with the same file. Its first line says which
    target answered which prompts, and how: a file of another run is refused. A reply
    cut off by ``max_new_tokens`` is written as null and left out: its end was never
    seen, so no end marker may be taught.
    """
    check_range("max_new_tokens", max_new_tokens, 1, integer=True)
    check_range("batch_size", batch_size, 1, integer=True)
    check_range("seed", seed, 0, integer=True)
    for token in ("pad_token", "eos_token"):
        special_token_id(target.tokenizer, token)
    run = {
        "target": fingerprint_weights(target.model),
        "prompts": fingerprint_texts(prompts),
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
        "seed": seed,
    }
    starts = range(0, len(prompts), batch_size)
    chunks = [list(prompts[start : start + batch_size]) for start in starts]
    rows = _complete_batches(path, run)
    missing = range(len(rows), len(chunks))
    with path.open("a", encoding="utf-8") as file:
        for number in tqdm(missing, desc="regenerate", unit="batch", disable=None):
            chunk = chunks[number]
            drawn_from = (seed, number * batch_size)
            replies = _sampled_replies(target, chunk, max_new_tokens, drawn_from)
            pairs = zip(chunk, replies, strict=True)
            rows.append([{"prompt": p, "reply": reply} for p, reply in pairs])
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    return [row for batch in rows for row in batch if row["reply"] is not None]


def _complete_batches(path: Path, run: dict[str, Any]) -> list[list[dict]]:
    """Return the batches already on disk; a half-written last line is cut off.

    A file that is not there yet, or died within its first line, is begun.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(run) + "\n")
        return []
    hint = "Delete it to begin again."
    try:
        found, *rows = map(json.loads, whole)
    except ValueError as error:
        expected = "a line of JSON per batch"
        raise problem(str(path), "be readable", expected, error, hint) from None
    if found != run:
        expected, got = "replies of this target to its prompts", "those of another run"
        raise problem(str(path), "belong to this run", expected, got, hint)
    with path.open("r+b") as file:
        file.truncate(sum(map(len, whole)))
    return rows


@torch.no_grad()
def _sampled_replies(
    target: Target, prompts: list[str], max_new_tokens: int, seed: tuple[int, int]
) -> list[str | None]:
    """Sample one reply per prompt with Hugging Face ``generate``; None: cut off."""
    encoded = [target.encode(prompt) for prompt in prompts]
    width = max(len(ids) for ids in encoded)
    pad = target.tokenizer.pad_token_id
    padded = [[pad] * (width - len(ids)) + ids for ids in encoded]
    real = [[0] * (width - len(ids)) + [1] * len(ids) for ids in encoded]
    # generate reads the global stream
    with torch.random.fork_rng(), target.plain_generation():
        torch.manual_seed(seeded(*seed).initial_seed())
        output = target.model.generate(
            torch.tensor(padded, device=target.device),
            attention_mask=torch.tensor(real, device=target.device),
            max_new_tokens=max_new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=pad,
        )
    return [_until_stop(target, row) for row in output[:, width:].tolist()]


def _until_stop(target: Target, ids: list[int]) -> str | None:
    stops = [ids.index(stop) for stop in target.stop_token_ids if stop in ids]
    return target.decode(ids[: min(stops)]) if stops else None


def read_exchanges(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
