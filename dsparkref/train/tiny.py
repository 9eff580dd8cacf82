"""The tiny pair, from nothing: corpus, tokenizer, target, replies, nine drafters.

Everything is made in a work folder, stage by stage; a stage that is there already is
not made again, so an interrupted run goes on where it stopped. Only the finished
whole is published.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from dsparkref.checkpoints.files import replaced_folder, write_json, write_text
from dsparkref.checkpoints.io import (
    load_drafter,
    load_target,
    new_drafter,
    save_drafter,
)
from dsparkref.decode.target import Target
from dsparkref.shapes import check_known, problem
from dsparkref.train.corpus import (
    DOMAINS,
    EVALUATION_SEED,
    build_tokenizer,
    evaluation_examples,
    training_examples,
)
from dsparkref.train.data import regenerate, seeded, tokenize_exchanges
from dsparkref.train.teacher import RecordedTeacher
from dsparkref.train.train_drafter import Recipe, train_drafter
from dsparkref.train.train_target import new_target, save_target, train_target
from dsparkref.train.trainer import TrainConfig, clear_checkpoint

MAX_LENGTH = 160
SHIPPED_DTYPE = torch.bfloat16
TARGET_LAYER_IDS = (0, 2, 4)
# gamma of the position weights, by block size
LOSS_DECAY = {7: 4.0, 15: 7.0}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of everything; the same code makes both."""

    # exchanges the target learns from
    examples: int
    # prompts the target answers for the drafters
    replies: int
    target: TrainConfig
    drafter: TrainConfig
    # overrides of the target's sizes
    target_sizes: dict[str, int]
    # evaluation prompts per domain
    evaluation: int


SCALES = {
    "full": Scale(
        examples=60_000,
        replies=12_000,
        target=TrainConfig(
            steps=3_000,
            batch_size=32,
            learning_rate=2e-3,
            weight_decay=0.1,
            precision="bf16",
        ),
        drafter=TrainConfig(
            steps=1_200, batch_size=24, learning_rate=3e-3, precision="bf16"
        ),
        target_sizes={},
        evaluation=120,
    ),
    "smoke": Scale(
        examples=600,
        replies=64,
        target=TrainConfig(steps=20, batch_size=8, learning_rate=2e-3),
        drafter=TrainConfig(steps=6, batch_size=4, learning_rate=1.5e-3),
        target_sizes={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        evaluation=8,
    ),
}

# name -> (head, block size)
DRAFTERS = {
    "dflash": ("dflash", 7),
    "markov": ("markov", 7),
    "gated": ("gated", 7),
    "rnn": ("rnn", 7),
    "domino": ("domino", 7),
    "dflash-k15": ("dflash", 15),
    "markov-k15": ("markov", 15),
    "rnn-k15": ("rnn", 15),
    "domino-k15": ("domino", 15),
}


def make_tiny(
    work: Path, publish: Path | None = None, *, scale: str = "full", seed: int = 0
) -> None:
    """Make the tiny pair in ``work``; copy the whole to ``publish`` when it is done."""
    check_known("scale", scale, tuple(SCALES))
    work = Path(work)
    _check_work_folder(work, scale, seed)
    target = make_target(work / "target", scale=scale, seed=seed)
    replies = make_replies(target, work / "replies.jsonl", scale=scale, seed=seed)
    for name, (head, block_size) in DRAFTERS.items():
        make_drafter(
            target,
            replies,
            work / "drafters" / name,
            head=head,
            block_size=block_size,
            scale=scale,
            seed=seed,
        )
    shutil.rmtree(work / "teacher", ignore_errors=True)  # gigabytes
    if publish is not None:
        publish_tiny(work, Path(publish), scale=scale, seed=seed)


def make_target(folder: Path, *, scale: str = "full", seed: int = 0) -> Target:
    """Train the target and its tokenizer, unless the folder is there already.

    It is read back as shipped, rounded to bfloat16: that is what drafters must match.
    """
    check_known("scale", scale, tuple(SCALES))
    if not folder.exists():
        sizes = SCALES[scale]
        examples = training_examples(sizes.examples, seed)
        tokenizer = build_tokenizer(examples)
        samples, dropped = tokenize_exchanges(
            tokenizer, [asdict(example) for example in examples], max_length=MAX_LENGTH
        )
        print(f"target: {len(samples)} exchanges, {dropped} too long")
        target = new_target(tokenizer, seed=seed, **sizes.target_sizes)
        run = folder.with_name(f"{folder.name}.run")
        config = _seeded_config(sizes.target, seed)
        history = train_target(target, samples, config, folder=run)
        save_target(target, folder, SHIPPED_DTYPE)
        write_json(folder / "history.json", history)
        clear_checkpoint(run)
    return load_target(folder, dtype="float32")


def make_replies(
    target: Target, path: Path, *, scale: str = "full", seed: int = 0
) -> list[dict[str, str]]:
    """Let the target answer fresh training prompts at temperature 1."""
    examples = training_examples(SCALES[scale].replies, seed + 1)
    prompts = [example.prompt for example in examples]
    replies = regenerate(target, prompts, path, seed=seed)
    print(f"replies: {len(replies)} of {len(prompts)} ended within the cap")
    return replies


def make_drafter(
    target: Target,
    replies: list[dict[str, str]],
    folder: Path,
    *,
    head: str,
    block_size: int,
    scale: str = "full",
    seed: int = 0,
) -> None:
    """Train one drafter by the recipe they all share, unless it is there already.

    0.1 CE + 0.9 TV + 1.0 confidence, the same data, steps and seed for every head, so
    that the head is the only difference. Domino adds its base-anchored term.
    """
    check_known("scale", scale, tuple(SCALES))
    if folder.exists():
        return
    sizes = SCALES[scale]
    samples, _ = tokenize_exchanges(target.tokenizer, replies, max_length=MAX_LENGTH)
    teacher = RecordedTeacher.record(
        target, TARGET_LAYER_IDS, samples, folder.parent.with_name("teacher")
    )
    drafter = new_drafter(
        target,
        head=head,
        block_size=block_size,
        target_layer_ids=TARGET_LAYER_IDS,
        generator=seeded(seed, 2),
    )
    recipe = Recipe(
        loss_decay=LOSS_DECAY.get(block_size, block_size / 2),
        base_curriculum=1.0 if head == "domino" else 0.0,
    )
    run = folder.with_name(f"{folder.name}.run")
    config = _seeded_config(sizes.drafter, seed)
    history = train_drafter(
        target, drafter, samples, config, recipe, folder=run, teacher=teacher
    )
    save_drafter(drafter.to(dtype=SHIPPED_DTYPE), folder)
    write_json(folder / "history.json", history)
    clear_checkpoint(run)


def publish_tiny(work: Path, data: Path, *, scale: str, seed: int) -> None:
    """Write the finished pair, the evaluation prompts and their description."""
    load_drafter_of = partial(load_drafter, target=load_target(work / "target"))
    for name in DRAFTERS:  # nothing that does not load is published
        load_drafter_of(work / "drafters" / name)
    with replaced_folder(data / "tiny") as fresh:
        for path in sorted(_finished_files(work)):
            copy = fresh / path.relative_to(work)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    with replaced_folder(data / "eval") as fresh:
        for domain in DOMAINS:
            rows = evaluation_examples(domain, SCALES[scale].evaluation)
            lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows]
            (fresh / f"{domain}.jsonl").write_text("".join(lines), encoding="utf-8")
    write_text(data / "README.md", _description(data, scale, seed))


def _finished_files(work: Path) -> list[Path]:
    folders = [work / "target", *(work / "drafters" / name for name in DRAFTERS)]
    return [path for folder in folders for path in folder.iterdir() if path.is_file()]


def _description(data: Path, scale: str, seed: int) -> str:
    """Return ``data/README.md``: each file with how it was made and its hash."""
    command = f"python -m dsparkref train tiny --scale {scale} --seed {seed}"
    lines = [
        "# data",
        "",
        f"Made by `{command}`; seed {seed}, weights in bfloat16.",
        "",
        "| file | how made | bytes | sha256 (first 16) |",
        "| --- | --- | --- | --- |",
    ]
    for path in sorted(data.rglob("*.*")):
        if path.parent == data:  # this description itself
            continue
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        name = path.relative_to(data)
        made = next(how for part, how in HOW.items() if part in name.parts)
        lines.append(f"| `{name.as_posix()}` | {made} | {len(content)} | `{digest}` |")
    return "\n".join(lines) + "\n"


HOW = {
    "target": "`train target`",
    "drafters": "`train drafter`",
    "eval": f"`evaluation_examples`, seed {EVALUATION_SEED}",
    "figures": "`evaluate --figure`",
    "confidence.safetensors": "`calibrate --prompts 120 --replies 3 --records`, seed 0",
    "training_curves.json": "`train curves`, seeds 0, 1, 2",
    "measured": "`profile --rows 1,2,4,8,16,32,64`",
}


def _seeded_config(config: TrainConfig, seed: int) -> TrainConfig:
    return TrainConfig(**(asdict(config) | {"seed": seed}))


def _check_work_folder(work: Path, scale: str, seed: int) -> None:
    """Refuse to mix stages of different runs."""
    work.mkdir(parents=True, exist_ok=True)
    wanted = {"scale": scale, "seed": seed, **_plain(SCALES[scale])}
    path = work / "run.json"
    if not path.exists():
        write_json(path, wanted)
    elif json.loads(path.read_text(encoding="utf-8")) != wanted:
        hint = "Delete the folder to begin again, or choose another."
        rule = "belong to this run"
        expected = f"scale {scale!r}, seed {seed} and its settings"
        raise problem(f"work folder {work}", rule, expected, "another run", hint)


def _plain(scale: Scale) -> dict:
    return json.loads(json.dumps(asdict(scale)))
