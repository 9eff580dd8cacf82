"""The shipped tiny pair: whole, small, greedy-exact, and decaying as it should."""

import hashlib
import re

import pytest
import torch

from dsparkref import generate, load_drafter, load_pair, load_target
from dsparkref.analysis.lossless import check_lossless
from dsparkref.checkpoints.files import data_folder
from dsparkref.train.data import read_exchanges
from dsparkref.train.tiny import DRAFTERS

DATA = data_folder()


@pytest.fixture(scope="module")
def target():
    return load_target("tiny")


def prompts(domain, count):
    rows = read_exchanges(DATA / "eval" / f"{domain}.jsonl")
    return [row["prompt"] for row, _ in zip(rows, range(count), strict=False)]


def transformers_greedy(target, prompt, count):
    ids = torch.tensor([prompt])
    output = target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_decoding_equals_transformers(name, target):
    drafter = load_drafter(f"tiny/{name}", target)
    for domain in ("math", "code", "chat"):
        for text in prompts(domain, 2):
            prompt = target.encode(text)
            expected = transformers_greedy(target, prompt, 100)
            got = generate(target, drafter, prompt, max_new_tokens=100)
            assert got.tokens == expected
            assert got.finish_reason == "stop"
            assert got.accepted_length > 2  # it did draft


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_decoding_is_lossless(name, target):
    """50 prompts of 64 tokens, greedy and sampled: not even a tie."""
    drafter = load_drafter(f"tiny/{name}", target)
    texts = [
        text for domain in ("math", "code", "chat") for text in prompts(domain, 17)
    ]
    report = check_lossless(target, drafter, [target.encode(x) for x in texts[:50]])
    assert report.answer == "pass", report.findings


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_parts_at_ties_alone(dtype):
    target = load_target("tiny", dtype=dtype)
    drafter = load_drafter("tiny/rnn", target)
    texts = [text for domain in ("math", "code", "chat") for text in prompts(domain, 4)]
    report = check_lossless(target, drafter, [target.encode(x) for x in texts])
    assert report.answer in ("pass", "tie"), report.findings


def test_every_file_has_its_line_with_its_hash():
    text = (DATA / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"\| `([^`]+)` \|.*\| `([0-9a-f]{16})` \|", text))
    found = {
        path.relative_to(DATA).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in DATA.rglob("*.*")
        if path.parent != DATA
    }
    assert {name: digest[:16] for name, digest in found.items()} == rows


def test_the_data_is_small():
    size = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    assert size < 30e6


@pytest.mark.parametrize("domain", ["math", "code", "chat"])
def test_there_are_a_hundred_prompts_or_more(domain):
    rows = list(read_exchanges(DATA / "eval" / f"{domain}.jsonl"))
    assert len(rows) >= 100
    assert all(row["prompt"] and row["check"] for row in rows)


def test_a_pair_goes_by_name(monkeypatch):
    monkeypatch.delenv("DSPARKREF_PAIR", raising=False)
    assert load_pair().drafter.head_type == "markov"
    assert load_pair("tiny", "domino").drafter.head_type == "domino"
    folders = [DATA / "tiny" / "target", DATA / "tiny" / "drafters" / "rnn"]
    monkeypatch.setenv("DSPARKREF_PAIR", ",".join(map(str, folders)))
    assert load_pair().drafter.head_type == "rnn"


def test_a_pair_that_is_none_is_refused(no_shape_checks):
    with pytest.raises(ValueError, match="pair must name a target and a drafter"):
        load_pair("tiny,")
    with pytest.raises(FileNotFoundError, match=r"expected one of .*markov"):
        load_pair("tiny", "mamba")
