"""The tiny pair, from nothing: corpus, tokenizer, target, replies, nine drafters.

Everything is made in a work folder, stage by stage; a stage that is there already is
not made again, so an interrupted run goes on where it stopped. Only the finished
whole is published.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from datasets import Dataset

from dsparkref.checkpoints.files import (
    replaced_folder,
    restore_folder,
    write_json,
)
from dsparkref.checkpoints.io import (
    load_target,
    new_drafter,
    save_drafter,
)
from dsparkref.checkpoints.targets import resolve_device
from dsparkref.decode.target import Target
from dsparkref.shapes import check_known, check_range, problem
from dsparkref.train.corpus import (
    build_tokenizer,
    training_examples,
)
from dsparkref.train.data import (
    regenerate,
    seeded,
    tokenize_exchanges,
    tokens_to_learn,
)
from dsparkref.train.publish import publish_tiny
from dsparkref.train.scales import DRAFTERS, SCALES, Scale
from dsparkref.train.teacher import RecordedTeacher
from dsparkref.train.train_drafter import Recipe, train_drafter
from dsparkref.train.train_target import new_target, save_target, train_target
from dsparkref.train.trainer import TrainConfig, clear_checkpoint, processes

MAX_LENGTH = 160
SHIPPED_DTYPE = torch.bfloat16
TARGET_LAYER_IDS = (0, 2, 4)
# gamma of the position weights, by block size
LOSS_DECAY = {7: 4.0, 15: 7.0}


def make_tiny(
    work: Path, publish: Path | None = None, *, scale: str = "full", seed: int = 0
) -> None:
    """Make the tiny pair in ``work``; copy the whole to ``publish`` when it is done."""
    check_known("scale", scale, tuple(SCALES))
    work = Path(work)
    check_work_folder(work, scale, seed)
    target = make_target(work / "target", scale=scale, seed=seed)
    replies = make_replies(target, work / "replies.jsonl", scale=scale, seed=seed)
    teacher = work / "teacher"
    for name, (head, block_size) in DRAFTERS.items():
        make_drafter(
            target,
            replies,
            work / "drafters" / name,
            head=head,
            block_size=block_size,
            scale=scale,
            seed=seed,
            teacher_folder=teacher,
        )
    if processes(target.device).is_main_process:
        shutil.rmtree(teacher, ignore_errors=True)  # gigabytes
        if publish is not None:
            publish_tiny(work, Path(publish), scale=scale, seed=seed)


def make_target(folder: Path, *, scale: str = "full", seed: int = 0) -> Target:
    """Train the target and its tokenizer, unless the folder is there already.

    It is read back as shipped, rounded to bfloat16: that is what drafters must match.
    """
    check_known("scale", scale, tuple(SCALES))
    if not _is_made(folder):
        sizes = SCALES[scale]
        examples = training_examples(sizes.examples, seed)
        tokenizer = build_tokenizer(examples)
        samples, dropped = tokenize_exchanges(
            tokenizer, [asdict(example) for example in examples], max_length=MAX_LENGTH
        )
        target = new_target(tokenizer, seed=seed, **sizes.target_sizes)
        target.model.to(resolve_device("auto"))
        state = processes(target.device)
        state.print(_learnt("target", samples, dropped))
        run = run_folder(folder)
        config = _seeded_config(sizes.target, seed)
        history = train_target(target, samples, config, folder=run)
        if state.is_main_process:
            with replaced_folder(folder) as fresh:
                save_target(target, fresh, SHIPPED_DTYPE)
                write_json(fresh / "history.json", history)
            clear_checkpoint(run)
        state.wait_for_everyone()
    return load_target(folder, dtype="float32")


def make_replies(
    target: Target, path: Path, *, scale: str = "full", seed: int = 0
) -> list[dict[str, str]]:
    """Let the target answer fresh training prompts at temperature 1."""
    check_known("scale", scale, tuple(SCALES))
    examples = training_examples(SCALES[scale].replies, seed + 1)
    prompts = [example.prompt for example in examples]
    state = processes(target.device)
    with state.main_process_first():
        replies = regenerate(target, prompts, path, seed=seed)
    state.print(f"replies: {len(replies)} of {len(prompts)} ended within the cap")
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
    teacher_folder: Path | None = None,
) -> None:
    """Train one drafter by the recipe they all share, unless it is there already.

    0.1 CE + 0.9 TV + 1.0 confidence, the same data, steps and seed for every head, so
    that the head is the only difference. Domino adds its base-anchored term.
    ``teacher_folder`` holds the target's view of the replies for the next drafter;
    None: beside this one, while it is trained.
    """
    check_known("scale", scale, tuple(SCALES))
    if _is_made(folder):
        return
    sizes, state = SCALES[scale], processes(target.device)
    samples, dropped = tokenize_exchanges(
        target.tokenizer, replies, max_length=MAX_LENGTH
    )
    state.print(_learnt(folder.name, samples, dropped))
    records = teacher_folder or folder.with_name(f"{folder.name}.teacher")
    with state.main_process_first():
        teacher = RecordedTeacher.record(target, TARGET_LAYER_IDS, samples, records)
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
    run = run_folder(folder)
    config = _seeded_config(sizes.drafter, seed)
    history = train_drafter(
        target, drafter, samples, config, recipe, folder=run, teacher=teacher
    )
    if state.is_main_process:
        with replaced_folder(folder) as fresh:
            save_drafter(drafter.to(dtype=SHIPPED_DTYPE), fresh)
            write_json(fresh / "history.json", history)
        clear_checkpoint(run)
        if teacher_folder is None:
            shutil.rmtree(records, ignore_errors=True)
    state.wait_for_everyone()


def _is_made(folder: Path) -> bool:
    """Whether a stage is there, also after a run that died in its last moments."""
    restore_folder(folder)
    if folder.exists():
        clear_checkpoint(run_folder(folder))
    return folder.exists()


def run_folder(folder: Path) -> Path:
    """Return where the checkpoints of a stage are kept while it is made."""
    return folder.with_name(f"{folder.name}.run")


def _learnt(name: str, samples: Dataset, dropped: int) -> str:
    """Say what is learnt from."""
    count = tokens_to_learn(samples)
    found = f"{len(samples)} exchanges, {count:,} tokens to learn"
    return f"{name}: {found}, {dropped} too long"


def _seeded_config(config: TrainConfig, seed: int) -> TrainConfig:
    return TrainConfig(**(asdict(config) | {"seed": seed}))


def check_work_folder(work: Path, scale: str, seed: int) -> None:
    """Refuse to mix stages of different runs."""
    check_range("seed", seed, 0, integer=True)
    wanted = {"scale": scale, "seed": seed, **_plain(SCALES[scale])}
    path, name = work / "run.json", f"work folder {work}"
    hint = "Delete the folder to begin again, or choose another."
    with processes(resolve_device("auto")).main_process_first():
        if not path.exists():
            work.mkdir(parents=True, exist_ok=True)
            write_json(path, wanted)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise problem(name, "be readable", "JSON", error, hint) from None
    if found != wanted:
        expected = f"scale {scale!r}, seed {seed} and its settings"
        raise problem(name, "belong to this run", expected, "another run", hint)


def _plain(scale: Scale) -> dict:
    return json.loads(json.dumps(asdict(scale)))
