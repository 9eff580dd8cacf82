"""Records hold what happened, truncated ones are refused, repairs are held out."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_models import random_ids, tiny_drafter, tiny_target

from dsparkref import CycleTrace, FixedLength, Verdict, decode_cycles, load_drafter
from dsparkref.analysis import calibration_report as reporting
from dsparkref.analysis.calibrate import (
    CALIBRATORS,
    constant_scores,
    isotonic_scores,
    raw_scores,
)
from dsparkref.analysis.calibration_records import (
    CalibrationRecords,
    calibration_records,
    gather_records,
    read_records,
    split_records,
    write_records,
)
from dsparkref.analysis.calibration_report import (
    calibration_report,
    noise_floor,
    prompt_interval,
    verdict,
)
from dsparkref.checkpoints.io import save_drafter
from dsparkref.verify.calibration import fit_sts

PROMPTS = [random_ids(5 + n, seed=n).tolist() for n in range(4)]
STOP = 9


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def cycle(judged, *, confidence=(0.5, 0.75, 0.25), drafts=(4, 5, 6), **changes):
    """A whole cycle whose verifier kept ``judged`` drafts."""
    found = Verdict(torch.tensor([judged]), torch.tensor([8]))
    trace = CycleTrace(
        index=3,
        context_len=9,
        anchor=1,
        drafts=list(drafts),
        confidence=None if confidence is None else list(confidence),
        verify_len=len(drafts),
        num_accepted=judged,
        next_token=8,
        emitted=[*drafts[:judged], 8],
        draft_seconds=0.0,
        verify_seconds=0.0,
        verdict=found,
    )
    return replace(trace, **changes)


def records(scale: float, *, prompts: int = 60, seed: int = 0) -> CalibrationRecords:
    """Twenty cycles a prompt; the head says ``scale`` times the true logit."""
    generator = torch.Generator().manual_seed(seed)
    shape = (20 * prompts, 3)
    logits = 1 + 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    drawn = torch.rand(shape, generator=generator) < logits.sigmoid()
    return CalibrationRecords(
        logits=scale * logits,
        accepted=drawn.double().cumprod(dim=1),
        counted=torch.ones(shape, dtype=torch.bool),
        prompt=torch.arange(prompts).repeat_interleave(20),
    )


# --- records ----------------------------------------------------------------------


def test_a_record_is_a_cycle():
    found = calibration_records([[cycle(1), cycle(3)], [], [cycle(0)]])
    assert found.accepted.tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert found.prompt.tolist() == [0, 0, 2] and len(found) == 3
    confidence = torch.tensor([0.5, 0.75, 0.25], dtype=torch.float64)
    torch.testing.assert_close(found.logits, confidence.logit().expand(3, 3))
    assert found.reached.tolist() == [
        [True, True, False],
        [True, True, True],
        [True, False, False],
    ]


def test_what_the_verifier_decided_counts_where_the_cap_cut_the_reply():
    cut = cycle(3, num_accepted=1, next_token=None, emitted=[4])
    assert calibration_records([[cut]]).accepted.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("num_accepted", [0, 1, 3])
def test_behind_a_drafted_stop_nothing_counts_kept_or_not(num_accepted):
    found = calibration_records([[cycle(num_accepted, drafts=(4, STOP, 6))]], [STOP])
    assert found.counted.tolist() == [[True, True, False]]
    assert not found.reached[0, 2]


def test_a_confidence_rounded_to_one_stays_finite():
    found = calibration_records([[cycle(3, confidence=(1.0, 0.0, 0.5))]])
    assert found.logits.isfinite().all() and found.logits[0, 0] > 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verify_len": 2}, "cycles must be verified to the end: expected 3 .*got 2"),
        ({"confidence": None}, "confidence head"),
        ({"verdict": None}, "verdict.*keep_tensors=True"),
    ],
)
def test_cycles_that_tell_too_little_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        calibration_records([[cycle(2), cycle(2, **changes)]])


def test_no_cycle_is_no_record():
    with pytest.raises(ValueError, match="replies must hold cycles"):
        calibration_records([[], []])


def test_truncated_decoding_is_refused(target):
    """E6, by real decoding under a policy."""
    options = {"max_new_tokens": 12, "policy": FixedLength(2), "keep_tensors": True}
    cycles = decode_cycles(target, tiny_drafter(target), PROMPTS[0], **options)
    with pytest.raises(ValueError, match="cycles must be verified to the end"):
        calibration_records([cycles])


def test_gathering_is_decoding(target):
    drafter = tiny_drafter(target)
    options = {"max_new_tokens": 12, "temperature": 1.0}
    found = gather_records(target, drafter, PROMPTS, generator=0, **options)
    generator, index = torch.Generator().manual_seed(0), 0
    for number, prompt in enumerate(PROMPTS):
        cycles = decode_cycles(
            target, drafter, prompt, generator=generator, keep_tensors=True, **options
        )
        for trace in cycles:
            assert found.prompt[index] == number
            assert found.accepted[index].sum() == trace.verdict.num_accepted.item()
            said = found.logits[index].sigmoid()
            torch.testing.assert_close(said.float(), torch.tensor(trace.confidence))
            index += 1
    assert index == len(found)


def test_temperatures_of_before_are_put_aside(target):
    drafter = tiny_drafter(target)
    scaled = drafter.with_temperatures([2.0, 0.5, 3.0, 1.5])
    options = {"max_new_tokens": 8, "generator": 0}
    plain = gather_records(target, drafter, PROMPTS, **options)
    again = gather_records(target, scaled, PROMPTS, **options)
    assert again.logits.equal(plain.logits)
    assert drafter.spec.confidence_temperatures is None
    assert scaled.backbone is drafter.backbone


def test_fitted_temperatures_travel_with_the_drafter(target, tmp_path):
    drafter = tiny_drafter(target)
    found = gather_records(target, drafter, PROMPTS, max_new_tokens=12, generator=0)
    temperatures = fit_sts(found.logits, found.accepted, counted=found.counted)
    save_drafter(drafter.with_temperatures(temperatures.tolist()), tmp_path / "fitted")
    loaded = load_drafter(tmp_path / "fitted", target)
    assert loaded.spec.confidence_temperatures == tuple(temperatures.tolist())


def test_more_replies_are_more_records_of_the_same_prompts(target):
    options = {"max_new_tokens": 8, "generator": 0, "replies": 3}
    found = gather_records(target, tiny_drafter(target), PROMPTS, **options)
    assert found.prompt.unique().tolist() == [0, 1, 2, 3]
    doubled = [prompt for prompt in PROMPTS for _ in range(3)]
    plain = gather_records(
        target, tiny_drafter(target), doubled, max_new_tokens=8, generator=0
    )
    assert found.logits.equal(plain.logits)
    assert found.prompt.equal(plain.prompt // 3)


def test_records_are_read_as_written(tmp_path):
    found = calibration_records([[cycle(1), cycle(3, drafts=(4, STOP, 6))]], [STOP])
    write_records(found, tmp_path / "records", {"seed": 5})
    again, settings = read_records(tmp_path / "records")
    assert settings == {"seed": 5}
    torch.testing.assert_close(again.logits, found.logits, rtol=1e-6, atol=0)
    for name in "accepted", "counted", "prompt":
        assert getattr(again, name).equal(getattr(found, name))
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_what_is_no_record_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="calibrate --records"):
        read_records(tmp_path / "none")
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(ValueError, match="records must be recorded cycles"):
        read_records(tmp_path / "text")


def test_the_split_is_by_prompt():
    fit, held_out = split_records(records(1.0, prompts=5))
    assert fit.prompt.unique().tolist() == [0, 2, 4]
    assert held_out.prompt.unique().tolist() == [1, 3]
    assert len(fit) + len(held_out) == 100


# --- calibrators ------------------------------------------------------------------


def test_the_constant_is_the_acceptance_of_those_that_came_so_far():
    fit = calibration_records([[cycle(1), cycle(3), cycle(0), cycle(1)]])
    found = constant_scores(fit, fit)
    assert found[0].tolist() == pytest.approx([3 / 4, 1 / 3, 1.0])
    assert (found == found[0]).all()


def test_isotonic_pools_neighbours_that_contradict_each_other():
    """Kept 0, 1, 0, 1 by rising score: the two in the middle are pooled to 1/2."""
    cycles = [cycle(n, confidence=(c, 0.5, 0.5)) for n, c in zip(
        (0, 1, 0, 1), (0.2, 0.4, 0.6, 0.8), strict=True)]  # fmt: skip
    fit = calibration_records([cycles])
    found = isotonic_scores(fit, fit)[:, 0]
    assert found.tolist() == pytest.approx([0.0, 0.5, 0.5, 1.0])


@pytest.mark.parametrize("find", [constant_scores, isotonic_scores])
def test_a_position_never_reached_keeps_its_score(find):
    fit = calibration_records([[cycle(0), cycle(0)]])
    assert find(fit, fit)[:, 1:].equal(raw_scores(fit, fit)[:, 1:])
    assert (find(fit, fit)[:, 0] == 0).all()


# --- the comparison ---------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(reporting, "RESAMPLES", 20)


def test_an_overconfident_head_is_helped(quick):
    report = calibration_report(records(3.0, prompts=200))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert min(report["temperatures"]) > 1.5
    for view in report["views"].values():
        assert list(view) == list(CALIBRATORS)
        for k in range(3):
            assert (
                sum(found["count"] for found in view["sts"][k]["bins"])
                == (view["sts"][k]["records"])
            )
            assert "verdict" not in view["raw"][k]
    survival = report["views"]["survival"]  # what the fit is after
    for k in range(3):
        raw, sts = survival["raw"][k], survival["sts"][k]
        assert sts["verdict"] == "helps" and sts["ece_change"]["high"] < 0
        assert sts["ece"]["value"] < raw["ece"]["value"] / 2
        assert sts["brier"]["value"] < raw["brier"]["value"]
    conditional = report["views"]["conditional"]
    for k in range(3):
        # a temperature keeps the order, a constant has none
        order = {name: conditional[name][k]["auroc"]["value"] for name in conditional}
        assert order["sts"] == pytest.approx(order["raw"])
        assert order["constant"] == 0.5 < order["raw"]


def test_a_head_that_is_right_is_not_said_to_be_helped(quick):
    report = calibration_report(records(1.0, prompts=120, seed=1))
    for view in report["views"].values():
        assert {place["verdict"] for place in view["sts"]} <= {
            "no clear difference",
            "hurts",
        }


def test_the_comparison_is_held_out(quick):
    """The fit half turned round: what is fitted to it must hurt the other half."""
    honest = records(1.0, seed=2)
    even = (honest.prompt % 2 == 0)[:, None]
    flipped = torch.where(even, 1 - honest.accepted, honest.accepted)
    report = calibration_report(replace(honest, accepted=flipped.cumprod(dim=1)))
    assert report["fit_records"] == report["held_out_records"] == 600
    constant = report["views"]["conditional"]["constant"][0]
    assert constant["verdict"] == "hurts"
    assert constant["ece"]["value"] > 0.2


def test_positions_nobody_came_to_are_known_as_such(quick):
    none = calibration_records([[cycle(0)], [cycle(0)]])
    report = calibration_report(none)
    assert report["views"]["conditional"]["sts"][2]["records"] == 0
    assert report["views"]["conditional"]["sts"][2]["ece"] is None
    assert report["views"]["survival"]["sts"][2]["auroc"]["value"] is None


def test_one_prompt_cannot_be_split():
    with pytest.raises(ValueError, match="records must come from prompts"):
        calibration_report(calibration_records([[cycle(0), cycle(1)]]))


def test_the_floor_is_what_chance_alone_makes():
    """One bin, p = 1/2: the mean of |binomial mean - 1/2| is sqrt(1 / (2 pi n))."""
    found = noise_floor(torch.full((400,), 0.5), draws=400)
    assert found == pytest.approx((1 / (2 * torch.pi * 400)) ** 0.5, rel=0.1)
    assert noise_floor(torch.tensor([0.0, 1.0, 1.0])) == 0


def test_an_interval_draws_prompts_and_not_records(quick):
    """Two prompts, one all kept, one all lost: a resample has 0, 1 or 2 of each."""
    prompt = torch.tensor([0] * 50 + [1] * 50)
    kept = (prompt == 0).double()
    shares = []

    def measure(rows):
        shares.append(kept[rows].mean().item())
        return shares[-1]

    found = prompt_interval(measure, prompt)
    assert found["value"] == 0.5 and {*shares} == {0.0, 0.5, 1.0}
    assert (found["low"], found["high"]) == (0.0, 1.0)


def test_verdicts():
    assert [verdict(-2, -1), verdict(-1, 1), verdict(1, 2)] == [
        "helps",
        "no clear difference",
        "hurts",
    ]
