"""The whole way once, at smoke scale: one command makes a pair that decodes."""

import hashlib

import pytest

from dsparkref import generate, load_drafter, load_target
from dsparkref.train import tiny
from dsparkref.train.data import read_exchanges

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    tiny.make_tiny(root / "work", root / "data", scale="smoke")
    return root


def digests(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_drafter_loads_and_decodes(made):
    data = made / "data"
    target = load_target(data / "tiny" / "target")
    row = next(read_exchanges(data / "eval" / "chat.jsonl"))
    prompt = target.encode(row["prompt"])
    expected = None
    for name, (head, block_size) in tiny.DRAFTERS.items():
        drafter = load_drafter(data / "tiny" / "drafters" / name, target)
        assert (drafter.head_type, drafter.block_size) == (head, block_size)
        assert drafter.spec.confidence
        tokens = generate(target, drafter, prompt, max_new_tokens=20).tokens
        expected = expected or tokens
        assert tokens == expected


def test_each_file_has_its_line_with_its_hash(made):
    text = (made / "data" / "README.md").read_text()
    found = digests(made / "data")
    del found["README.md"]
    assert found
    for name, digest in found.items():
        assert f"`{name}`" in text
        assert digest[:16] in text


def test_nothing_unfinished_stays_behind(made):
    names = [path.name for path in made.rglob("*")]
    assert not [n for n in names if n.endswith((".run", ".writing", ".old"))]


def test_made_twice_it_is_the_same_and_a_lost_stage_is_made_again(made, tmp_path):
    tiny.make_tiny(tmp_path / "work", tmp_path / "data", scale="smoke")
    assert digests(tmp_path / "data") == digests(made / "data")
    lost = made / "work" / "drafters" / "rnn" / "model.safetensors"
    before = lost.read_bytes()
    for path in lost.parent.iterdir():
        path.unlink()
    lost.parent.rmdir()
    tiny.make_tiny(made / "work", scale="smoke")
    assert lost.read_bytes() == before


def test_a_work_folder_of_another_run_is_refused(made, no_shape_checks):
    with pytest.raises(ValueError, match="must belong to this run"):
        tiny.make_tiny(made / "work", scale="smoke", seed=1)
    with pytest.raises(ValueError, match="scale must be a known name"):
        tiny.make_tiny(made / "work", scale="huge")
