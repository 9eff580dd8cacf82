"""The loss against a slow version written here, and the properties that FAULTS ask."""

import math

import pytest
import torch

from dsparkref import TrainingOutput, block_loss
from dsparkref.train.loss import l1_distance, position_weights


@pytest.fixture
def blocks():
    """Two sequences, two blocks, three drafts, vocabulary five; float64."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    output = TrainingOutput(
        base_logits=randn(2, 2, 3, 5).requires_grad_(),
        draft_logits=randn(2, 2, 3, 5).requires_grad_(),
        confidence_logits=randn(2, 2, 3).requires_grad_(),
        labels=torch.randint(0, 5, (2, 2, 3), generator=generator),
    )
    supervised = torch.tensor([[[1, 1, 1], [1, 0, 0]], [[1, 1, 0], [0, 0, 0]]]) == 1
    return output, randn(2, 2, 3, 5), supervised


def softmax(row):
    top = max(row)
    exps = [math.exp(x - top) for x in row]
    return [x / sum(exps) for x in exps]


def slow_loss(output, target_logits, supervised, weights, loss_decay, base_weight):
    """Eq. 9-12 by hand: one position after the other, lists and math alone."""
    sums = {"w": 0.0, "ce": 0.0, "base": 0.0, "tv": 0.0, "bce": 0.0}
    for index in supervised.nonzero().tolist():
        b, n, k = index
        w = math.exp(-k / loss_decay)
        p_d = softmax(output.draft_logits[b, n, k].tolist())
        p_b = softmax(output.base_logits[b, n, k].tolist())
        p_t = softmax(target_logits[b, n, k].tolist())
        label = int(output.labels[b, n, k])
        l1 = sum(abs(x - y) for x, y in zip(p_d, p_t, strict=True))
        c = 1 / (1 + math.exp(-output.confidence_logits[b, n, k].item()))
        keep = 1 - l1 / 2
        sums["w"] += w
        sums["ce"] -= w * math.log(p_d[label])
        sums["base"] -= w * math.log(p_b[label])
        sums["tv"] += w * l1
        sums["bce"] -= w * (keep * math.log(c) + (1 - keep) * math.log(1 - c))
    mean = {name: value / sums["w"] for name, value in sums.items()}
    ce = (1 - base_weight) * mean["ce"] + base_weight * mean["base"]
    total = weights[0] * ce + weights[1] * mean["tv"] + weights[2] * mean["bce"]
    return total, ce, mean["tv"], mean["bce"]


@pytest.mark.parametrize("base_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("loss_decay", [1.5, 4.0])
def test_the_loss_is_the_slow_one(blocks, loss_decay, base_weight):
    options = {"loss_decay": loss_decay, "base_weight": base_weight}
    weights = (0.2, 0.7, 1.3)
    terms = block_loss(*blocks, weights=weights, **options)
    expected = slow_loss(*blocks, weights, **options)
    found = (terms.total, terms.ce, terms.tv, terms.confidence)
    assert [x.item() for x in found] == pytest.approx(expected, abs=1e-12)


def test_weights_are_e_to_the_minus_k_over_gamma():
    found = position_weights(torch.ones(1, 1, 4, dtype=torch.bool), 2.0).flatten()
    expected = [1, math.exp(-0.5), math.exp(-1), math.exp(-1.5)]
    assert found.tolist() == pytest.approx(expected)


def test_acceptance_label_is_one_minus_half_the_distance():
    """D11: .6 for (.9, .1) against (.5, .5); 1 for equal laws; 0 for disjoint ones."""
    draft = torch.tensor([[0.9, 0.1], [0.3, 0.7], [1, 0]]).log()
    target = torch.tensor([[0.5, 0.5], [0.3, 0.7], [0, 1]]).log()
    label = 1 - l1_distance(draft, target) / 2
    assert label.tolist() == pytest.approx([0.6, 1.0, 0.0], abs=1e-6)


def test_a_perfect_predictor_has_the_labels_entropy(blocks):
    """D11: BCE against a soft label does not go to 0."""
    output, target_logits, supervised = blocks
    keep = 1 - l1_distance(output.draft_logits, target_logits).detach() / 2
    perfect = TrainingOutput(
        output.base_logits, output.draft_logits, torch.logit(keep), output.labels
    )
    terms = block_loss(perfect, target_logits, supervised)
    entropy = -(keep * keep.log() + (1 - keep) * (1 - keep).log())
    weights = position_weights(supervised, 4.0).double()
    assert terms.confidence.item() == pytest.approx(
        ((entropy * weights).sum() / weights.sum()).item()
    )
    assert terms.confidence > 0


def test_nothing_supervised_is_loss_zero_with_finite_zero_gradients(blocks):
    """D3."""
    output, target_logits, supervised = blocks
    terms = block_loss(output, target_logits, torch.zeros_like(supervised))
    terms.total.backward()
    assert terms.total.item() == 0.0
    for logits in (output.draft_logits, output.confidence_logits):
        assert logits.grad.abs().max() == 0


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (0.0, 0.9, 1.0)])
def test_labels_that_cannot_be_drafted_have_no_cross_entropy(blocks, weights):
    """C10, D9: of a reduced vocabulary; nor do unsupervised ones matter at all."""
    output, target_logits, supervised = blocks
    draft = output.draft_logits.detach().clone()
    draft[..., 4] = -torch.inf  # the last token is not in the draft vocabulary
    draft.requires_grad_()
    labels = torch.zeros_like(output.labels)
    labels[0, 0, 1] = 4  # supervised
    labels[1, 1, 0] = 4  # not
    reduced = TrainingOutput(draft, draft, output.confidence_logits, labels)
    options = {"weights": weights, "base_weight": 0.5}
    terms = block_loss(reduced, target_logits, supervised, **options)
    each = -draft.log_softmax(dim=-1)[..., 0] * (labels == 0)
    positions = position_weights(supervised, 4.0, dtype=torch.float64)
    kept = (each.nan_to_num(posinf=0.0) * positions).sum() / positions.sum()
    assert terms.ce.item() == pytest.approx(kept.item(), abs=1e-12)
    terms.total.backward()
    assert terms.total.isfinite() and draft.grad.isfinite().all()


def test_a_term_of_weight_zero_needs_no_input(blocks, no_shape_checks):
    """D9, both ways."""
    output, _, supervised = blocks
    alone = block_loss(output, None, supervised, weights=(1.0, 0.0, 0.0))
    assert alone.total.item() == alone.ce.item()
    for weights in ((1.0, 0.5, 0.0), (1.0, 0.0, 0.5)):
        with pytest.raises(ValueError, match="target_logits must be given"):
            block_loss(output, None, supervised, weights=weights)


def test_without_a_confidence_head_its_term_counts_zero(blocks):
    output, target_logits, supervised = blocks
    bare = TrainingOutput(output.base_logits, output.draft_logits, None, output.labels)
    assert block_loss(bare, target_logits, supervised).confidence.item() == 0.0
    block_loss(bare, None, supervised, weights=(1.0, 0.0, 1.0))


def test_base_weight_one_teaches_the_base_alone(blocks):
    """D10: with cross entropy alone, the correction gets no gradient at lambda 1."""
    output, target_logits, supervised = blocks
    options = {"weights": (1.0, 0.0, 0.0), "base_weight": 1.0}
    block_loss(output, target_logits, supervised, **options).total.backward()
    assert output.draft_logits.grad is None or output.draft_logits.grad.abs().max() == 0
    assert output.base_logits.grad.abs().max() > 0


def test_the_confidence_term_moves_the_confidence_alone(blocks):
    """D7: its label is detached, so it does not push the draft's law."""
    output, target_logits, supervised = blocks
    weights = (0.0, 0.0, 1.0)
    block_loss(output, target_logits, supervised, weights=weights).total.backward()
    assert output.draft_logits.grad is None or output.draft_logits.grad.abs().max() == 0
    assert output.confidence_logits.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_decay": 0.0}, "loss_decay must be in range"),
        ({"base_weight": 1.5}, "base_weight must be in range"),
        ({"weights": (-1.0, 0.0, 0.0)}, r"weights \(w_ce\) must be in range"),
    ],
)
def test_bad_options_are_refused(blocks, options, message, no_shape_checks):
    with pytest.raises(ValueError, match=message):
        block_loss(*blocks, **options)


def test_an_unknown_keyword_is_refused(blocks):
    """C18."""
    with pytest.raises(TypeError, match="shift_targts"):
        block_loss(*blocks, shift_targts=True)
