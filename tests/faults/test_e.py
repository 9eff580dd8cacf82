"""Section E of tests/FAULTS.md: what the tests of measuring do not show already."""

import pytest
import torch
from rich.console import Console
from tiny_models import oracle, tiny_target

from dsparkref import ConfidenceThreshold, survival
from dsparkref.analysis.evaluate import EvalPrompt
from dsparkref.analysis.speed import measure_speed
from dsparkref.lab import speed
from dsparkref.verify.scheduler import fill_budget


def test_conditional_and_survival_thresholds_are_two_options():
    """E5: c = .9 .8 .5."""
    confidence = torch.tensor([[0.9, 0.8, 0.5]])
    assert survival(confidence)[0].tolist() == pytest.approx([0.9, 0.72, 0.36])
    lengths = [
        ConfidenceThreshold(0.75, on=on).verify_lengths(confidence, block_size=3).item()
        for on in ("conditional", "survival")
    ]
    assert lengths == [2, 1]


def test_a_budget_goes_to_the_likeliest_and_ties_to_the_lower():
    """E8."""
    chances = torch.tensor([[0.9, 0.81, 0.2], [0.5, 0.1, 0.05]])
    assert fill_budget(chances, 3).tolist() == [2, 1]
    assert fill_budget(torch.full((2, 1), 0.5), 1).tolist() == [1, 0]


class Breaks:
    """Right for a while, then an exception, as when memory runs out."""

    def __init__(self, target, prompt):
        self.drafter = oracle(target, prompt, count=12)
        self.block_size, self.left = self.drafter.block_size, 3

    def propose(self, *arguments, **options):
        self.left -= 1
        if self.left < 0:
            raise MemoryError("out of memory")
        return self.drafter.propose(*arguments, **options)


def test_a_crash_is_no_slow_run(tmp_path, monkeypatch):
    """E13: the error comes out as itself; no speed is shown, nothing is written."""
    target, prompt = tiny_target(), [3, 14, 15]
    with pytest.raises(MemoryError, match="out of memory"):
        measure_speed(
            target, {"x": Breaks(target, prompt)}, [prompt], rounds=1, max_new_tokens=8
        )
    monkeypatch.setattr(speed, "open_target", lambda source: target)
    monkeypatch.setattr(
        speed, "open_drafters", lambda *_: ({"x": Breaks(target, prompt)}, None)
    )
    example = EvalPrompt("", prompt, [], "", {})
    monkeypatch.setattr(speed, "evaluation_prompts", lambda *_: {"math": [example]})
    console = Console(file=(tmp_path / "said").open("w"))
    with pytest.raises(MemoryError):
        speed.run_speed(
            console,
            drafter_names=["x"],
            rounds=1,
            max_new_tokens=8,
            json_file=tmp_path / "n.json",
        )
    console.file.close()
    assert not (tmp_path / "n.json").exists()
    assert "tokens/s" not in (tmp_path / "said").read_text()


def test_slower_is_said_as_slower():
    assert speed.times(0.8) == "0.80x slower" and speed.times(2.5) == "2.50x"
