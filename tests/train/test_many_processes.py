"""Two processes train what one would have trained (Accelerate, on the CPU, gloo)."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def train(folder, name: str, *launcher: str) -> list[dict]:
    """Train a drafter of the tiny target at smoke scale; return its history."""
    command = ["train", "drafter", "--scale", "smoke", "--head", "domino"]
    program = [sys.executable, "-m", *launcher, "dsparkref", *command, "--out", name]
    run = subprocess.run(
        program,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert run.stdout.count("drafter written to") == 1  # by the first process alone
    return json.loads((folder / name / "history.json").read_text())


def test_two_processes_train_what_one_does(tmp_path):
    """The same batches, shared out: the same loss, and the same weights."""
    alone = train(tmp_path, "one")
    shutil.copy(tmp_path / "one.replies.jsonl", tmp_path / "two.replies.jsonl")
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no"]
    launcher += ["--dynamo_backend", "no", "--main_process_port", str(free_port())]
    shared = train(tmp_path, "two", *launcher, "-m")
    assert len(alone) == len(shared)
    for ours, theirs in zip(shared, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    one, two = (load_file(tmp_path / x / "model.safetensors") for x in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:  # both rounded to bfloat16: a step of it, 2^-8, may part them
        torch.testing.assert_close(two[name], one[name], rtol=2**-7, atol=1e-4)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"one", "two", "one.replies.jsonl", "two.replies.jsonl"}
