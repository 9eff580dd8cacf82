"""All drafters on all domains; and the pair that is used only where it is at hand."""

import huggingface_hub
import pytest
import torch

from dsparkref import load_pair, load_target
from dsparkref.checkpoints.hub import held_copy
from dsparkref.lab import course, side_by_side
from dsparkref.lab import full_decoding_figures as figures
from dsparkref.train.corpus import DOMAINS


@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny", head="dflash")


@pytest.fixture(scope="module")
def examples(pair):
    return course.evaluation_examples(pair, per_domain=1)


@pytest.fixture(scope="module")
def decoded(pair, examples):
    drafters = {"dflash": pair.drafter, "again": pair.drafter}
    return side_by_side.decode_domains(
        pair.target, drafters, examples, max_new_tokens=12
    )


def test_each_domain_decodes_its_own_prompts(pair, examples, decoded):
    assert list(decoded["dflash"]) == [*DOMAINS, "all"]
    for number, domain in enumerate(DOMAINS):
        (alone,) = side_by_side.evaluate_drafter(
            pair.target,
            pair.drafter,
            [examples[number].prompt],
            max_new_tokens=12,
            generator=0,
        ).replies
        (reply,) = decoded["dflash"][domain].replies
        assert reply.tokens == alone.tokens
    assert len(decoded["dflash"]["all"].replies) == len(DOMAINS)


def test_a_drafter_gains_nothing_over_itself(pair, decoded):
    drafters = {"dflash": pair.drafter, "again": pair.drafter}
    drafters["again"] = course.drafters_here(pair.target, {"x": "tiny/markov"})["x"]
    gains = side_by_side.gains_over_dflash(drafters, decoded)
    assert list(gains) == ["again"]  # dflash is what the others are compared with
    assert gains["again"] == side_by_side.Gain("dflash", 0.0, 0.0, 0.0)


def test_the_picture_says_the_numbers(decoded):
    low, high = side_by_side.length_interval(decoded["dflash"]["all"])
    length = decoded["dflash"]["all"].accepted_length
    assert low <= length <= high
    assert side_by_side.lengths(decoded, "all") == {"dflash": length, "again": length}
    gains = {"again": side_by_side.Gain("dflash", 0.25, -0.1, 0.5)}
    text = figures.side_by_side_picture(decoded, gains, "a note").text
    assert text.startswith("again adds 25 % to dflash's tokens per cycle\n")
    assert "again: +25 % over dflash (95 %: -10 to +50)" in text
    assert f"{length:.1f}" in text
    assert figures.side_by_side_picture(decoded, {}, "").text.startswith(
        f"dflash: {length:.1f} tokens per cycle\n"
    )


@pytest.fixture
def no_network(monkeypatch):
    """Whoever would fetch anything fails; asking what is here stays allowed."""
    ask = huggingface_hub.snapshot_download

    def snapshot_download(*arguments, local_files_only=False, **options):
        assert local_files_only, "this would have been a download"
        return ask(*arguments, local_files_only=True, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


@pytest.mark.usefixtures("no_network")
def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert side_by_side.qwen3_4b_here() is None
    assert capsys.readouterr().out == "Skipped: there is no GPU here.\n"


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("here", "said"),
    [([], "example/target is not"), (["example/target"], "none of example/target's")],
)
def test_a_gpu_alone_fetches_nothing(monkeypatch, capsys, here, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(side_by_side, "QWEN3_4B", "example/target")
    monkeypatch.setattr(side_by_side, "QWEN3_4B_DRAFTERS", {"dflash": "example/not"})
    monkeypatch.setattr(
        side_by_side, "held_copy", lambda name: name if name in here else None
    )
    assert side_by_side.qwen3_4b_here() is None
    out = capsys.readouterr().out
    assert out.startswith(f"Skipped: {said}") and out.count("\n") == 1


@pytest.mark.usefixtures("no_network")
def test_where_all_is_here_the_pair_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    drafters = {"markov": "tiny/markov", "dflash": "example/not-here"}
    monkeypatch.setattr(side_by_side, "QWEN3_4B_DRAFTERS", drafters)
    monkeypatch.setattr(side_by_side, "held_copy", lambda name: name)
    monkeypatch.setattr(
        side_by_side, "load_target", lambda name: load_target("tiny", device="cpu")
    )
    target, found = side_by_side.qwen3_4b_here()
    assert list(found) == ["markov"] and found["markov"].device == target.device
    assert "example/not-here is not on this machine" in capsys.readouterr().out


def test_a_copy_without_all_its_weights_is_no_copy(monkeypatch, tmp_path):
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path)
    )
    (tmp_path / "config.json").write_text("{}")
    assert held_copy("example/partial") is None
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert held_copy("example/whole") == tmp_path
