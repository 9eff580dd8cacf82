"""What notebook 08 computes agrees with the package's slower ways."""

import math
from dataclasses import replace

import pytest
import torch

from dsparkref import CycleTrace, load_pair, survival
from dsparkref.analysis import calibration_report as reporting
from dsparkref.analysis.calibration_records import CalibrationRecords
from dsparkref.lab import confidence, reliability
from dsparkref.lab import confidence_figures as figures
from dsparkref.verify.calibration import (
    expected_calibration_error,
    fit_sts,
    reliability_bins,
)


@pytest.fixture(scope="module")
def records() -> CalibrationRecords:
    """Forty prompts of five cycles, three drafts; every fourth drafts a stop."""
    generator = torch.Generator().manual_seed(3)
    shape = (200, 3)
    logits = 1 + torch.randn(shape, generator=generator, dtype=torch.float64)
    drawn = torch.rand(shape, generator=generator) < logits.sigmoid()
    counted = torch.ones(shape, dtype=torch.bool)
    counted[::4, 2] = False
    prompt = torch.arange(40).repeat_interleave(5)
    return CalibrationRecords(logits, drawn.double().cumprod(dim=1), counted, prompt)


def scores(records: CalibrationRecords) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.sigmoid(2 * records.logits), torch.sigmoid(records.logits)


def test_a_change_and_its_interval_are_those_of_the_report(records):
    """The same resamples by index, one measure at a time."""
    before, after = scores(records)
    found = reliability.error_changes(records, before, after)
    for k in range(3):
        rows = records.counted[:, k]
        kept = records.accepted[rows, k]
        old, new = (survival(s)[rows, k] for s in (before, after))

        def change(some, kept=kept, old=old, new=new):
            errors = [
                expected_calibration_error(x[some], kept[some]) for x in (new, old)
            ]
            return errors[0] - errors[1]

        wanted = reporting.prompt_interval(change, records.prompt[rows])
        got = [found[name][k] for name in ("change", "low", "high")]
        assert got == pytest.approx(list(wanted.values()), abs=1e-12)


def test_reliability_is_the_packages(records):
    _, said = scores(records)
    found = reliability.reliability(records, said, 2)
    rows = records.counted[:, 2]
    bins = reliability_bins(survival(said)[rows, 2], records.accepted[rows, 2], 10)
    used = bins.count > 0
    assert found["count"] == bins.count[used].tolist()
    assert found["predicted"] == pytest.approx(bins.predicted[used].tolist())
    assert found["observed"] == pytest.approx(bins.observed[used].tolist())
    ends = zip(found["low"], found["high"], strict=True)
    assert all(0 <= low <= high <= 1 for low, high in ends)


def test_a_bins_interval_is_that_of_its_prompts(records):
    """A bin whose draft is always kept has no width, the others have."""
    sure = CalibrationRecords(
        records.logits,
        torch.ones_like(records.accepted),
        records.counted,
        records.prompt,
    )
    found = reliability.reliability(sure, scores(records)[1], 0)
    assert {*found["low"], *found["high"]} == {1.0}
    found = reliability.reliability(records, scores(records)[1], 0)
    assert found["low"][-1] < found["observed"][-1] < found["high"][-1]


def test_errors_have_a_floor(records):
    found = reliability.survival_errors(records, scores(records)[0])
    assert len(found["ece"]) == len(found["floor"]) == 3
    assert all(error > floor for error, floor in zip(*found.values(), strict=True))


def test_pairs_that_change_order():
    before = torch.tensor([0.1, 0.2, 0.3, 0.3])
    # of 6 pairs: 3 turn round; a tie before or after is no order
    after = torch.tensor([0.4, 0.2, 0.1, 0.2])
    turned = [(0, 1), (0, 2), (0, 3), (1, 2)]
    assert confidence.flipped_pairs(before, after) == pytest.approx(len(turned) / 6)
    assert confidence.flipped_pairs(before, before) == 0
    assert math.isnan(confidence.flipped_pairs(before[:1], before[:1]))


def test_scaling_keeps_the_order_of_one_position_only(records):
    temperatures = fit_sts(records.logits, records.accepted)
    found = confidence.order_changes(
        torch.sigmoid(records.logits), torch.sigmoid(records.logits / temperatures)
    )
    assert found["one position"] == [0, 0, 0]
    assert found["the product"][0] == 0 < max(found["the product"])


def test_a_thinned_log_in_numbers():
    """Four cycles keep 2, 2, 1, 0 of 2; the policy verifies 2, 1, 2, 0."""
    kept = torch.tensor([[1.0, 1], [1, 1], [1, 0], [0, 0]], dtype=torch.float64)
    everything = torch.ones(4, 2, dtype=torch.bool)
    records = CalibrationRecords(torch.zeros(4, 2), kept, everything, torch.arange(4))
    came, share = confidence.thinned(records, torch.tensor([2, 1, 2, 0]))
    assert came["the policy's log"] == pytest.approx([1.0, 1 / 2])
    assert came["all records"] == pytest.approx([3 / 4, 2 / 3])
    assert came["unasked = refused"] == pytest.approx([3 / 4, 1 / 3])
    assert share == pytest.approx([3 / 4, 2 / 3])


def test_said_and_came_count_only_what_was_reached():
    logits = torch.tensor([[0.75, 0.5], [0.25, 0.9]], dtype=torch.float64).logit()
    kept = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    everything = torch.ones(2, 2, dtype=torch.bool)
    found = confidence.said_and_came(
        CalibrationRecords(logits, kept, everything, torch.arange(2))
    )
    assert found["the head says"] == pytest.approx([0.5, 0.5])
    assert found["came true"] == pytest.approx([0.5, 0.0])
    assert found["too sure by"] == pytest.approx([0.0, 0.5])


def test_the_titles_follow_the_numbers(records):
    before, after = scores(records)
    table = reliability.reliability_table(records, {"raw": before})
    assert list(table) == [(1, "raw"), (2, "raw"), (3, "raw")]
    title = figures.reliability_picture(table[3, "raw"]).figure.get_suptitle()
    assert title.startswith("raw, draft 3: says") and "too sure by" in title
    errors = {
        name: reliability.survival_errors(records, s)
        for name, s in {"raw": before, "after STS": after}.items()
    }
    changes = {"change": [-0.1, 0.1, 0.0], "low": [-0.2, 0.05, -0.1]}
    changes["high"] = [-0.05, 0.2, 0.1]
    text = figures.error_picture(errors, changes).text
    assert text.startswith(
        "STS: clearly better at 1 of 3 positions, clearly worse at 1"
    )


def test_a_cycle_is_told_draft_by_draft_and_needs_a_head():
    target = load_pair("tiny").target
    a, b, c = target.encode("one")[:3]
    cycle = CycleTrace(0, 5, a, [a, b, c], [0.5, 0.5, 1.0], 3, 1, b, [a, b], 0.0, 0.0)
    lines = [
        line.split()[-3:] for line in confidence.cycle_lines(target, cycle).split("\n")
    ]
    assert lines[2] == ["0.50", "0.50", "kept"]
    assert lines[3] == ["0.50", "0.25", "rejected"]
    assert lines[4][1:] == ["not", "reached"]
    with pytest.raises(ValueError, match="drafter must have a confidence head"):
        confidence.cycle_lines(target, replace(cycle, confidence=None))


def test_the_recorded_cycles_are_those_of_the_tiny_markov(monkeypatch):
    monkeypatch.delenv("DSPARKREF_PAIR", raising=False)
    pair = load_pair()
    found, domain = confidence.confidence_records(pair)
    assert len(found) > 9000 and found.logits.shape[1] == pair.drafter.block_size
    assert domain.unique().tolist() == [0, 1, 2]
    assert found.prompt.unique().tolist() == list(range(360))


def test_another_pair_is_decoded_on_the_spot(monkeypatch):
    pair = load_pair("tiny", "rnn")
    monkeypatch.setenv("DSPARKREF_PAIR", "target,drafter")
    monkeypatch.setattr(confidence, "PROMPTS_PER_DOMAIN", 1)
    monkeypatch.setattr(confidence, "NEW_TOKENS", 6)
    found, domain = confidence.confidence_records(pair)
    assert domain.unique().tolist() == [0, 1, 2] and found.prompt.max() == 2
