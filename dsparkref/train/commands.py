"""``python -m dsparkref train target | drafter | tiny``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dsparkref.checkpoints.files import (
    as_path,
    find_folder,
    restore_folder,
    write_json,
)
from dsparkref.checkpoints.io import load_target
from dsparkref.checkpoints.targets import resolve_device
from dsparkref.draft.spec import HEADS
from dsparkref.shapes import check_known, check_range, problem
from dsparkref.train.curves import record_curves
from dsparkref.train.publish import check_publishable
from dsparkref.train.tiny import (
    SCALES,
    make_drafter,
    make_replies,
    make_target,
    make_tiny,
    run_folder,
)
from dsparkref.train.trainer import processes

app = typer.Typer(
    help="Train the tiny pair, or parts of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ScaleOption = Annotated[str, typer.Option(help="full, or smoke: a test of seconds.")]
SeedOption = Annotated[int, typer.Option(help="Of data, weights and sampling.")]


@app.command()
def target(
    out: Annotated[Path, typer.Option(help="Folder for the trained target.")],
    scale: ScaleOption = "full",
    seed: SeedOption = 0,
) -> None:
    """Train a small Qwen3 from scratch, tokenizer included."""
    _check(scale, seed)
    out = _new_folder(out)
    with _resumable(run_folder(out)):
        target = make_target(out, scale=scale, seed=seed)
    processes(target.device).print(f"target written to {out}")


@app.command()
def drafter(
    out: Annotated[Path, typer.Option(help="Folder for the trained drafter.")],
    head: Annotated[str, typer.Option(help=f"One of {', '.join(HEADS)}.")] = "markov",
    block_size: Annotated[int, typer.Option(help="Drafts per cycle, K.")] = 7,
    target: Annotated[str, typer.Option(help="tiny, a folder or a Hub id.")] = "tiny",
    scale: ScaleOption = "full",
    seed: SeedOption = 0,
) -> None:
    """Train a drafter on its target's own replies.

    The replies stay beside the drafter, in OUT.replies.jsonl.
    """
    _check(scale, seed)
    check_known("head", head, HEADS)
    check_range("block_size", block_size, 1, integer=True)
    out = _new_folder(out)
    state = processes(resolve_device("auto"))  # each process takes its own GPU
    loaded = load_target(find_folder(target, "target"), dtype="float32")
    replies_file = out.with_name(f"{out.name}.replies.jsonl")
    with _resumable(replies_file, run_folder(out)):
        replies = make_replies(loaded, replies_file, scale=scale, seed=seed)
        make_drafter(
            loaded,
            replies,
            out,
            head=head,
            block_size=block_size,
            scale=scale,
            seed=seed,
        )
    state.print(f"drafter written to {out}")


@app.command()
def tiny(
    out: Annotated[
        Path | None, typer.Option(help="Where the finished pair goes. \\[data/]")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Unfinished stages. \\[runs/tiny-SCALE]")
    ] = None,
    scale: ScaleOption = "full",
    seed: SeedOption = 0,
) -> None:
    """Make the whole tiny pair again: target, replies, nine drafters, prompts.

    An interrupted run goes on where it stopped. At full scale the finished pair
    replaces data/; at smoke scale it stays in the work folder unless --out is given.
    """
    _check(scale, seed)
    work = as_path(work or Path("runs") / f"tiny-{scale}")
    if out is None and scale == "full":
        out = Path("data")
    if out is not None:
        out = as_path(out)
        check_publishable(out)
    with _resumable(work):
        make_tiny(work, out, scale=scale, seed=seed)
    processes(resolve_device("auto")).print(f"tiny pair written to {out or work}")


def _check(scale: str, seed: int) -> None:
    check_known("scale", scale, tuple(SCALES))
    check_range("seed", seed, 0, integer=True)


@app.command()
def curves(
    out: Annotated[Path, typer.Option(help="The curves, JSON.")],
    work: Annotated[Path, typer.Option(help="Finished runs.")] = Path("runs/curves"),
    target: Annotated[str, typer.Option(help="tiny, a folder or a Hub id.")] = "tiny",
    scale: ScaleOption = "full",
    seed: SeedOption = 0,
) -> None:
    """Compare losses and curricula: small runs of each, watched on held-out replies.

    An interrupted run goes on where it stopped.
    """
    _check(scale, seed)
    out, work = as_path(out), as_path(work)
    if not out.absolute().parent.is_dir() or out.is_dir():
        rule, expected = "be a file in a folder", "a file's name in an existing folder"
        raise problem("out", rule, expected, out)
    loaded = load_target(find_folder(target, "target"), dtype="float32")
    with _resumable(work):
        found = record_curves(loaded, work, study=scale, seed=seed)
    write_json(out, found)
    typer.echo(f"curves written to {out}")


def _new_folder(folder: Path) -> Path:
    """Return the folder that will be made; one that is there is refused."""
    folder = as_path(folder)
    restore_folder(folder)
    if folder.exists():
        hint = "Choose another folder, or delete it first."
        raise problem("out", "be new", "a folder that is not there", folder, hint)
    return folder


@contextmanager
def _resumable(*places: Path) -> Iterator[None]:
    """Say after Ctrl-C what is saved, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        saved = [str(place) for place in places if place.exists()]
        words = "Nothing is saved yet: the same command begins again."
        if saved:
            words = f"Saved in {' and '.join(saved)}: all up to the last checkpoint. "
            words += "The same command goes on from there."
        if processes(resolve_device("auto")).is_main_process:
            typer.echo(f"\nstopped. {words}", err=True)
        raise typer.Exit(130) from None  # what a shell calls stopped by Ctrl-C
