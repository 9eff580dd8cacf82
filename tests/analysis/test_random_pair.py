"""A random pair has the released sizes; the device check finds where replies part."""

import pytest
import torch
from tiny_models import random_ids, tiny_target

from dsparkref.analysis.device_check import DeviceCheck, check_device, gap_at_parting
from dsparkref.analysis.random_pair import SIZES, random_pair
from dsparkref.checkpoints import files
from dsparkref.draft.spec import HEADS


def parameters(module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("head", HEADS)
def test_the_released_size_counted_by_hand(head):
    """On the meta device: shapes alone, 9 GB of nothing."""
    pair = random_pair("qwen3-4b", head, device="meta", dtype=torch.bfloat16)
    hidden, wide, vocab = 2560, 9728, 151_936
    layer = hidden * 128 * (32 + 8 + 8 + 32) + 3 * hidden * wide + 2 * hidden + 2 * 128
    assert parameters(pair.target.model) == vocab * hidden + 36 * layer + hidden
    assert pair.target.dtype == torch.bfloat16 and pair.target.device.type == "meta"
    backbone = 5 * layer + 5 * hidden * hidden + 2 * hidden
    assert parameters(pair.drafter.backbone) == backbone
    assert (pair.drafter.block_size, pair.drafter.head_type) == (7, head)
    assert pair.drafter.device.type == "meta" and pair.drafter.dtype == torch.bfloat16
    tables = {"markov": 2 * vocab * 256, "domino": 256 * (vocab + hidden + 1024)}
    if head in tables:
        gru = 3 * 1024 * (hidden + 1024) if head == "domino" else 0
        assert parameters(pair.drafter.head) == tables[head] + gru


def test_a_random_pair_draws_numbers():
    target, drafter = vars(random_pair("smoke", "rnn", device="cpu")).values()
    assert target.dtype == torch.float32
    rows = target.forward(random_ids(1, 5), drafter.spec.target_layer_ids).hidden
    proposal = drafter.propose(rows.detach(), torch.tensor([3]))
    assert proposal.draft_logits.isfinite().all()
    with pytest.raises(ValueError, match=r"random must be a known name: .*qwen3-4b"):
        random_pair("qwen3-400b")
    assert set(SIZES) == {"qwen3-4b", "smoke"}


def test_where_replies_part_the_tie_is_looked_up():
    target, prompt, want = tiny_target(), [1, 2, 3], [4, 5, 6]
    for got, shared in ([4, 9, 6], [4]), ([4, 5], [4, 5]), ([7, 5, 6], []):
        ids = torch.tensor([prompt + shared])
        with torch.no_grad():
            best = target.model(ids).logits[0, -1].sort(descending=True).values
        gap = gap_at_parting(target, prompt, want, got)
        assert gap == pytest.approx((best[0] - best[1]).item(), abs=1e-5)


def test_a_check_passes_at_near_ties_alone():
    assert DeviceCheck("cuda", 3, 3).passed
    near, far = DeviceCheck("cuda", 3, 2, (1e-5,)), DeviceCheck("cuda", 3, 2, (0.2,))
    assert near.passed and not far.passed
    assert str(near) == (
        "2 of 3 greedy float32 replies on cuda equal the CPU's; "
        "the others part at near ties: 1.0e-05"
    )
    assert "NO near ties: 2.0e-01" in str(far)


def test_a_device_that_computes_something_else_is_caught(tmp_path, monkeypatch):
    """The second target is another model: its replies part, and far from a tie."""
    from tiny_pair import random_target, write_tiny_pair

    from dsparkref.analysis import device_check

    write_tiny_pair(tmp_path, {"rnn": ("rnn", 7)}, prompts=1)
    monkeypatch.setattr(files, "data_folder", lambda: tmp_path)
    options = {"heads": ["rnn"], "max_new_tokens": 6}
    same = check_device(torch.device("cpu"), ["Hello", "Why?"], **options)
    assert (same.replies, same.equal, same.passed) == (2, 2, True)
    load = device_check.load_target
    loaded = []

    def other(source, **places):
        loaded.append(load(source, **places))
        wrong = random_target(loaded[0].tokenizer, seed=1)
        return wrong if len(loaded) == 2 else loaded[0]

    monkeypatch.setattr(device_check, "load_target", other)
    found = check_device(torch.device("cpu"), ["Hello", "Why?"], **options)
    assert found.equal < 2 and not found.passed
