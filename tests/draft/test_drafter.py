"""What must hold for every drafter, whatever its weights are."""

from dataclasses import replace

import pytest
import torch
from tiny_models import HEADS, MASK, random_ids, tiny_drafter, tiny_target
from torch.nn.functional import one_hot

from dsparkref.draft import backbone as backbone_module
from dsparkref.draft.drafter import Drafter

EVERY_HEAD = pytest.mark.parametrize("head", HEADS)
EVERY_LAYOUT = pytest.mark.parametrize("anchor_predicts", [True, False])


def features(drafter, length, batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, length, drafter.spec.feature_size)
    return torch.randn(shape, generator=generator)


def make(head="markov", **changes):
    """A drafter and twelve rows of features for it."""
    drafter = tiny_drafter(tiny_target(), head, **changes)
    return drafter, features(drafter, 12)


def close(got, want, tolerance=1e-5):
    return (got - want).abs().max().item() < tolerance


# --- propose --------------------------------------------------------------------


@EVERY_LAYOUT
@EVERY_HEAD
def test_propose_equals_teacher_forced_on_its_own_tokens(head, anchor_predicts):
    drafter, rows = make(head, anchor_predicts=anchor_predicts)
    anchor = torch.tensor([7])
    drafted = drafter.propose(rows, anchor, temperature=0.7, generator=0)
    prev_tokens = torch.cat([anchor[None], drafted.tokens[:, :-1]], dim=1)
    forced = drafter.teacher_forced(rows, prev_tokens)
    assert close(drafted.hidden, forced.hidden)
    assert close(drafted.base_logits, forced.base_logits)
    assert close(drafted.draft_logits, forced.draft_logits)
    assert close(drafted.confidence, forced.confidence_logits.sigmoid())


@EVERY_HEAD
def test_p_draft_is_the_law_that_tokens_are_drawn_from(head):
    """One number per slot, all drawn at once; each picks from its row's CDF."""
    drafter, rows = make(head)
    for seed in range(5):
        options = {"temperature": 1.5, "generator": seed}
        drafted = drafter.propose(rows, torch.tensor([7]), **options)
        want = (drafted.draft_logits / 1.5).softmax(dim=-1)
        assert close(drafted.p_draft, want, 1e-6)
        numbers = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        for k, number in enumerate(numbers):
            cdf = want[0, k].double().cumsum(0)
            assert drafted.tokens[0, k] == int((cdf <= number).sum())


def test_greedy_draft_has_a_one_hot_law():
    drafter, rows = make("gated")
    drafted = drafter.propose(rows, torch.tensor([7]))
    assert drafted.tokens.equal(drafted.draft_logits.argmax(-1))
    assert drafted.p_draft.equal(one_hot(drafted.tokens, 31).float())


def test_top_k_and_top_p_cut_the_draft_law():
    drafter, rows = make()
    anchor = torch.tensor([7])
    drafted = drafter.propose(rows, anchor, temperature=1.0, top_k=3, generator=0)
    assert ((drafted.p_draft > 0).sum(-1) == 3).all()
    drafted = drafter.propose(rows, anchor, temperature=1.0, top_p=1e-6, generator=0)
    assert ((drafted.p_draft > 0).sum(-1) == 1).all()


def test_confidence_temperatures_divide_the_logits():
    drafter, rows = make("rnn")
    plain = drafter.propose(rows, torch.tensor([7]))
    temperatures = (0.5, 1.0, 2.0, 4.0)
    drafter.spec = replace(drafter.spec, confidence_temperatures=temperatures)
    scaled = drafter.propose(rows, torch.tensor([7]))
    want = plain.confidence.logit() / torch.tensor(temperatures)
    assert close(scaled.confidence.logit(), want[0], 1e-4)
    assert scaled.tokens.equal(plain.tokens)


def test_temperatures_that_cannot_divide_are_refused_when_they_are_set():
    """1e-50 is 0 in float32, in which confidences are computed."""
    drafter, _ = make("rnn")
    for temperature in (0.0, 1e-50, 1e50):
        with pytest.raises(ValueError, match="confidence_temperatures must be in rang"):
            drafter.with_temperatures([temperature] * drafter.block_size)


# --- the block and its context --------------------------------------------------


def test_block_sees_itself_both_ways():
    """B7: another embedding in the last slot must change slot 1."""
    drafter, rows = make("dflash")
    embedded = drafter.embed(torch.tensor([[7, MASK, MASK, MASK]]))
    changed = embedded.clone()
    changed[:, -1] += 1
    positions = torch.arange(12, 16)[None]
    with torch.no_grad():
        context = drafter.backbone.context(rows)
        first, second = (
            drafter.backbone(block, context, positions) for block in (embedded, changed)
        )
    assert not close(first[:, 1], second[:, 1], 1e-3)


@pytest.mark.parametrize("chunks", [(5,), (3, 2), (1, 1, 1, 1, 1)])
@EVERY_LAYOUT
def test_positions_of_queries_and_keys(monkeypatch, anchor_predicts, chunks):
    """B16: context 5, block 4: keys at 0..8, queries at 5..8, cache or not."""
    drafter, rows = make("dflash", anchor_predicts=anchor_predicts)
    seen = []

    def record(positions, head_dim, theta):
        seen.extend(positions.flatten().tolist())
        return real(positions, head_dim, theta)

    real = backbone_module.rotary
    monkeypatch.setattr(backbone_module, "rotary", record)
    cache = drafter.new_cache()
    for chunk in rows[:, :5].split(chunks, dim=1):
        seen = [position for position in seen if position < cache.length]
        drafter.propose(chunk, torch.tensor([7]), cache=cache)
    slots = 4 if anchor_predicts else 5
    assert seen == list(range(5 + slots))
    assert cache.length == 5


@EVERY_LAYOUT
@EVERY_HEAD
def test_cache_changes_nothing(head, anchor_predicts):
    drafter, rows = make(head, anchor_predicts=anchor_predicts)
    cache, end = drafter.new_cache(), 0
    for new, token in zip((5, 1, 4, 2), (7, 3, 9, 1), strict=True):
        chunk, end = rows[:, end : end + new], end + new
        anchor = torch.tensor([token])
        cached = drafter.propose(chunk, anchor, cache=cache)
        fresh = drafter.propose(rows[:, :end], anchor)
        assert cache.length == end
        assert cached.tokens.equal(fresh.tokens)
        assert close(cached.draft_logits, fresh.draft_logits)
        assert close(cached.confidence, fresh.confidence)


def test_every_context_row_counts():
    drafter, rows = make("dflash")
    want = drafter.propose(rows, torch.tensor([7])).hidden
    for position in (0, 5, 11):
        changed = rows.clone()
        changed[:, position] += 1
        got = drafter.propose(changed, torch.tensor([7])).hidden
        assert not close(got, want, 1e-4)


# --- training -------------------------------------------------------------------


@EVERY_LAYOUT
@EVERY_HEAD
def test_training_equals_teacher_forcing_block_by_block(head, anchor_predicts):
    prefix = {"pure_draft_prefix_len": 1} if head == "domino" else {}
    drafter, _ = make(head, anchor_predicts=anchor_predicts, **prefix)
    ids, rows = random_ids(2, 12, seed=4), features(drafter, 12, batch=2)
    anchors = torch.tensor([[0, 3, 11], [7, 1, 9]])  # 9 and 11 run past the end
    with torch.no_grad():
        output = drafter.training_forward(ids, rows, anchors)
    for b in range(2):
        for n, anchor in enumerate(anchors[b].tolist()):
            inside = min(4, 12 - anchor)
            prev_tokens = torch.zeros(1, 4, dtype=torch.long)
            prev_tokens[0, :inside] = ids[b, anchor : anchor + 4]
            with torch.no_grad():
                alone = drafter.teacher_forced(rows[b : b + 1, :anchor], prev_tokens)
            for name in ("base_logits", "draft_logits", "confidence_logits"):
                got = getattr(output, name)[b, n, :inside]
                assert close(got, getattr(alone, name)[0, :inside], 2e-5)
            labels = ids[b, anchor + 1 : anchor + 5]
            assert output.labels[b, n, : len(labels)].equal(labels)


@EVERY_LAYOUT
def test_block_sees_strictly_before_its_anchor(anchor_predicts):
    drafter, rows = make("domino", anchor_predicts=anchor_predicts)
    ids, anchors = random_ids(1, 12), torch.tensor([[6, 2]])

    def outputs(changed):
        with torch.no_grad():
            return drafter.training_forward(ids, changed, anchors).draft_logits[0]

    want = outputs(rows)
    at_and_after = rows.clone()
    at_and_after[:, 6:] += 10
    assert outputs(at_and_after)[0].equal(want[0])
    before = rows.clone()
    before[:, 5] += 1
    assert not close(outputs(before)[0], want[0], 1e-4)
    assert outputs(before)[1].equal(want[1])


def test_blocks_do_not_see_each_other():
    drafter, rows = make("rnn")
    ids = random_ids(1, 12)
    with torch.no_grad():
        one = drafter.training_forward(ids, rows, torch.tensor([[6, 2]]))
        other = drafter.training_forward(ids, rows, torch.tensor([[6, 8]]))
    assert close(one.draft_logits[0, 0], other.draft_logits[0, 0])
    assert not close(one.draft_logits[0, 1], other.draft_logits[0, 1], 1e-3)


@EVERY_HEAD
def test_confidence_gradient_stops_at_its_input(head):
    """D7: backward of the confidence alone moves the confidence head alone."""
    drafter, rows = make(head)
    ids, anchors = random_ids(1, 12), torch.tensor([[6, 2]])
    output = drafter.training_forward(ids, rows, anchors)
    output.confidence_logits.sum().backward()
    moved = {n for n, p in drafter.named_parameters() if p.grad is not None}
    assert moved == {"confidence.proj.weight", "confidence.proj.bias"}


@EVERY_HEAD
def test_draft_gradient_reaches_every_other_parameter(head):
    drafter, rows = make(head)
    ids, anchors = random_ids(1, 12), torch.tensor([[6, 2]])
    output = drafter.training_forward(ids, rows, anchors)
    output.draft_logits.square().sum().backward()
    still = {n for n, p in drafter.named_parameters() if p.grad is None}
    assert still == {"confidence.proj.weight", "confidence.proj.bias"}
    assert all(
        p.grad.abs().sum() > 0
        for _, p in drafter.named_parameters()
        if p.grad is not None
    )


# --- Domino ---------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_domino_prefix_keeps_base_logits_to_the_bit(prefix):
    """C21: and the GRU reads the prefix's tokens all the same, in order."""
    drafter, rows = make("domino", pure_draft_prefix_len=prefix)
    read = []
    drafter.head.gru.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    drafted = drafter.propose(rows, torch.tensor([7]))
    assert drafted.draft_logits[:, :prefix].equal(drafted.base_logits[:, :prefix])
    corrected = (drafted.draft_logits != drafted.base_logits)[0, prefix:].any(-1)
    assert corrected.all()
    tokens = torch.tensor([7, *drafted.tokens[0, :-1]])
    assert torch.cat(read).equal(drafter.embed(tokens))


# --- borrowed and owned weights --------------------------------------------------


def test_embedding_and_lm_head_are_the_targets_own():
    """C12: same storage, not saved, not trained, and not moved by the drafter."""
    target = tiny_target()
    drafter = tiny_drafter(target, "domino")
    assert not any(name.startswith("own_") for name in drafter.state_dict())
    assert drafter.embed(torch.tensor(5)).equal(target.embedding[5])
    with torch.no_grad():
        target.model.get_input_embeddings().weight[5] = 9.0
        target.model.get_output_embeddings().weight[:] = 0.0
    assert (drafter.embed(torch.tensor(5)) == 9).all()
    assert (drafter.unembed(torch.ones(24)) == 0).all()


def test_owned_weights_are_used_instead():
    target = tiny_target()
    drafter = tiny_drafter(target, owns_embedding=True, owns_lm_head=True)
    assert drafter.embed(torch.tensor(5)).equal(drafter.own_embedding[5])
    hidden = torch.ones(24)
    assert close(drafter.unembed(hidden), drafter.own_lm_head @ hidden)
    assert not drafter.own_embedding.requires_grad
    assert not drafter.own_lm_head.requires_grad


def test_no_markov_part_means_plain_dflash():
    """C17: logits with rank 0 are the base logits to the bit."""
    drafter, rows = make("dflash")
    drafted = drafter.propose(rows, torch.tensor([7]))
    assert drafted.draft_logits.equal(drafted.base_logits)


# --- dtypes ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@EVERY_HEAD
def test_laws_are_wide_whatever_the_weights_are(head, dtype):
    """H4: half precision works on a CPU; what is divided is float32 or wider."""
    target = tiny_target(dtype=dtype)
    drafter = tiny_drafter(target, head)
    rows = features(drafter, 6).to(dtype)
    drafted = drafter.propose(rows, torch.tensor([7]), temperature=1.0, generator=0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert drafted.p_draft.dtype == wide
    assert drafted.confidence.dtype == wide
    output = drafter.training_forward(random_ids(1, 6), rows, torch.tensor([[2]]))
    assert output.draft_logits.isfinite().all()


def test_float32_drafter_on_a_half_target():
    target = tiny_target(dtype=torch.bfloat16)
    drafter = Drafter(tiny_drafter(target).spec, target.embedding, target.lm_head)
    rows = features(drafter, 6).to(torch.bfloat16)
    drafted = drafter.propose(rows, torch.tensor([7]))
    assert drafter.dtype == torch.float32
    assert drafted.hidden.dtype == torch.float32
