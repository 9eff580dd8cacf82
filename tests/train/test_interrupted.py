"""Killed at any moment: what was complete is intact, and the next run goes on.

kill -9 leaves no chance to clean up, so all that counts is the order of writes. The
fast half cuts a replacement at each of its steps; the slow half kills real runs.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsparkref import cli, load_drafter, load_pair, load_target, save_drafter
from dsparkref.analysis.calibration_records import read_records
from dsparkref.checkpoints.files import replaced_folder, restore_folder, write_text
from dsparkref.train import commands
from tests.tiny_models import tiny_drafter, tiny_target

ROOT = Path(__file__).resolve().parents[2]


class Killed(BaseException):
    """Nothing catches it, and what comes after is not run: as if the process died."""


def replaced(folder: Path, text: str) -> None:
    with replaced_folder(folder) as fresh:
        write_text(fresh / "config.json", text)


def kill_after(monkeypatch, count: int) -> None:
    """Let the ``count``-th change to the file system be the last one that happens."""
    made = [0]

    def counted(change):
        def dying(*arguments, **options):
            if made[0] >= count:
                raise Killed
            made[0] += 1
            return change(*arguments, **options)

        return dying

    for owner, name in ((Path, "mkdir"), (Path, "rename"), (Path, "replace")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))


@pytest.mark.parametrize("moment", range(8))
def test_a_replacement_cut_at_any_step_leaves_old_or_new(moment, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    replaced(folder, "old")
    with monkeypatch.context() as patch:
        kill_after(patch, moment)
        with suppress(Killed):
            replaced(folder, "new")
    restore_folder(folder)
    assert (folder / "config.json").read_text() in ("old", "new")
    replaced(folder, "newest")  # and the next run is not in its way
    assert (folder / "config.json").read_text() == "newest"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_reader_finds_what_stood_between_two_renames(tmp_path):
    """It reads the old folder where it lies, and moves nothing: the writer may live."""
    target = tiny_target()
    save_drafter(tiny_drafter(target), tmp_path / "drafter")
    (tmp_path / "drafter").rename(tmp_path / ".drafter.old")
    assert load_drafter(tmp_path / "drafter", target).head_type == "markov"
    assert [path.name for path in tmp_path.iterdir()] == [".drafter.old"]


@pytest.mark.parametrize(
    "saved", [(), ("out.replies.jsonl",), ("out.replies.jsonl", "out.run")]
)
def test_ctrl_c_says_what_is_saved_and_how_to_go_on(saved, tmp_path, monkeypatch):
    def stopped(*_, **__):
        for name in saved:
            (tmp_path / name).touch()
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "load_target", lambda *_, **__: None)
    monkeypatch.setattr(commands, "make_replies", stopped)
    result = CliRunner().invoke(cli.app, ["train", "drafter", "--out", "out"])
    assert result.exit_code == 130
    (line,) = result.stderr.strip().splitlines()
    goes_on = "The same command goes on" if saved else "the same command begins again"
    assert line.startswith("stopped. ") and goes_on in line
    assert all(name in line for name in saved)
    assert ("out.run" in line) == ("out.run" in saved)


# --- real runs, really killed --------------------------------------------------------

LANES = {
    "training": ("train", "drafter", "--scale", "smoke", "--head", "rnn"),
    "regeneration": ("train", "drafter", "--scale", "smoke", "--head", "dflash"),
    "calibration": ("calibrate", "--prompts", "2", "--max-new-tokens", "24",
                    "--thresholds", ""),
}  # fmt: skip
MOMENTS = 5  # of each, and of saving: 20 in all
SAVER = """
from dsparkref import load_pair, save_drafter
drafter = load_pair("tiny").drafter
save_drafter(drafter, "made")
print("ready", flush=True)
while True:
    save_drafter(drafter, "made")
"""


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def command(lane: str) -> list[str]:
    out = {
        "train": ["--out", "made"],
        "calibrate": ["--save", "made", "--json", "n", "--records", "cycles"],
    }
    program = "from dsparkref.train import trainer; trainer.CHECKPOINT_SECONDS = 0.0; "
    program += "from dsparkref.cli import app; app()"  # a checkpoint after every step
    return [sys.executable, "-c", program, *LANES[lane], *out[LANES[lane][0]]]


def run(lane: str, folder: Path, seconds: float | None = None) -> float:
    """Run a lane to its end, or kill it after ``seconds``; return how long it took."""
    start = time.monotonic()
    process = subprocess.Popen(
        command(lane),
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=seconds)
        assert process.returncode == 0, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize("lane", LANES)
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(lane, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    seconds = run(lane, whole)
    expected = digests(whole)
    moments = random.Random(lane)
    for _ in range(MOMENTS):
        run(lane, cut, moments.uniform(0.3, 1.0) * seconds)
        check_complete(cut)
        if (cut / "made").exists():  # done: let the next one begin again
            shutil.rmtree(cut / "made")
    run(lane, cut)
    assert digests(cut) == expected


def check_complete(folder: Path) -> None:
    """What stands at its place is whole; what is unfinished has another name."""
    if (folder / "made").exists():
        load_drafter(folder / "made", load_target("tiny"))
    if (folder / "n").exists():
        json.loads((folder / "n").read_text())
    if (folder / "cycles").exists():
        records, _ = read_records(folder / "cycles")
        assert len(records) > 0


@pytest.mark.slow
def test_killed_while_it_saves_the_drafter_is_there_whole(tmp_path):
    """The process does nothing but save, so that any moment falls into it."""
    folder, moments = tmp_path / "made", random.Random("saving")
    expected = None
    for _ in range(MOMENTS):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.0, 0.3))
        process.kill()
        process.communicate()
        load_drafter(folder, load_target("tiny"))  # also between two renames
        restore_folder(folder)
        expected = expected or digests(folder)
        assert digests(folder) == expected
    save_drafter(load_pair("tiny").drafter, folder)  # and nothing is left behind
    assert digests(tmp_path) == {f"made/{name}": d for name, d in expected.items()}
