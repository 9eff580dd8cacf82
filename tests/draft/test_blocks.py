"""Training blocks against loops that say the rules one position at a time."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkref import aligned_target_logits, supervised_positions
from dsparkref.draft.blocks import block_tokens, gather_rows, training_mask

# No deadline: a busy machine is no fault of the code.
few = settings(max_examples=40, deadline=None)


@st.composite
def sequences(draw):
    """A loss mask [B, S], anchors [B, N] inside it, and a block size."""
    batch, length = draw(st.integers(1, 2)), draw(st.integers(1, 8))
    blocks = draw(st.integers(1, 3))
    bits = st.lists(st.booleans(), min_size=length, max_size=length)
    places = st.lists(st.integers(0, length - 1), min_size=blocks, max_size=blocks)
    mask = draw(st.lists(bits, min_size=batch, max_size=batch))
    anchors = draw(st.lists(places, min_size=batch, max_size=batch))
    return mask, anchors, draw(st.integers(1, 5))


@few
@given(sequences(), st.booleans())
def test_supervision_stops_at_the_first_gap(case, as_float):
    mask, anchors, block_size = case
    given_mask = torch.tensor(mask).float() if as_float else torch.tensor(mask)
    got = supervised_positions(given_mask, torch.tensor(anchors), block_size)
    for b, row in enumerate(mask):
        for n, anchor in enumerate(anchors[b]):
            for k in range(block_size):
                needed = range(anchor, anchor + k + 2)  # anchor .. label of draft k
                want = all(i < len(row) and row[i] for i in needed)
                assert got[b, n, k].item() == want


@few
@given(sequences())
def test_keep_drops_a_block_whole(case):
    mask, anchors, block_size = case
    mask, anchors = torch.tensor(mask), torch.tensor(anchors)
    keep = torch.zeros(anchors.shape, dtype=torch.bool)
    keep[:, 0] = True
    full = supervised_positions(mask, anchors, block_size)
    some = supervised_positions(mask, anchors, block_size, keep)
    assert some[:, 0].equal(full[:, 0])
    assert not some[:, 1:].any()


@few
@given(sequences(), st.integers(1, 3))
def test_mask_says_who_sees_whom(case, slots):
    mask, anchors, _ = case
    length = len(mask[0])
    got = training_mask(torch.tensor(anchors), slots, length)
    for b, places in enumerate(anchors):
        for query in range(len(places) * slots):
            block = query // slots
            for key in range(length + len(places) * slots):
                in_context = key < length
                before = in_context and key < places[block]
                own = not in_context and (key - length) // slots == block
                assert got[b, 0, query, key].item() == (before or own)


@few
@given(sequences())
def test_target_row_of_draft_k_is_anchor_plus_k(case):
    mask, anchors, block_size = case
    batch, length = len(mask), len(mask[0])
    logits = torch.arange(batch * length).view(batch, length, 1).float()
    got = aligned_target_logits(logits, torch.tensor(anchors), block_size)
    for b, places in enumerate(anchors):
        for n, anchor in enumerate(places):
            for k in range(block_size):
                row = min(anchor + k, length - 1)  # past the end nothing counts
                assert got[b, n, k, 0] == logits[b, row, 0]


def test_labels_are_not_shifted():
    """D1: where id = position, anchor 10 must label its drafts 11, 12, 13, 14."""
    ids = torch.arange(32)[None]
    anchor = torch.tensor([[10]])
    assert block_tokens(ids.gather(1, anchor), 4, 99).tolist() == [[[10, 99, 99, 99]]]
    positions = anchor[..., None] + torch.arange(1, 5)
    assert gather_rows(ids, positions).tolist() == [[[11, 12, 13, 14]]]
    rows = ids[..., None].float()
    assert aligned_target_logits(rows, anchor, 4).flatten().tolist() == [10, 11, 12, 13]
