"""Evaluations add up, speak of real decoding, and meet slow twins."""

import json
import math

import pytest
import torch
from tiny_models import oracle, random_ids, tiny_drafter, tiny_target

from dsparkref import ConfidenceThreshold, Proposal, generate
from dsparkref.analysis.evaluate import (
    EvalPrompt,
    evaluate_drafter,
    evaluate_target,
    perplexity,
    read_prompts,
)

PROMPTS = [random_ids(5 + n, seed=n).tolist() for n in range(4)]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def evaluated(target, drafter, prompts=PROMPTS, **options):
    options = {"max_new_tokens": 12, "generator": 0} | options
    return evaluate_drafter(target, drafter, prompts, **options)


def example(prompt, reply, **check):
    return EvalPrompt("message", prompt, reply, "text", check)


# --- evaluations ------------------------------------------------------------------


def test_an_evaluation_is_what_generate_gives(target):
    drafter = tiny_drafter(target)
    found = evaluated(target, drafter)
    generator = torch.Generator().manual_seed(0)
    for prompt, reply in zip(PROMPTS, found.replies, strict=True):
        again = generate(
            target,
            drafter,
            prompt,
            max_new_tokens=12,
            temperature=1.0,
            generator=generator,
        )
        assert again.tokens == reply.tokens
    assert found.num_tokens == sum(len(reply.tokens) for reply in found.replies) == 48
    assert found.block_size == drafter.block_size
    assert len(found.seconds) == 4 and min(found.seconds) > 0
    assert found.tokens_per_second == 48 / sum(found.seconds)


def test_two_evaluations_add_up(target):
    drafter = tiny_drafter(target, "rnn")
    generator = torch.Generator().manual_seed(0)
    parts = [
        evaluated(target, drafter, part, generator=generator)
        for part in (PROMPTS[:1], PROMPTS[1:])
    ]
    both, whole = parts[0] + parts[1], evaluated(target, drafter)
    assert both.accepted_length == whole.accepted_length
    assert torch.equal(both.conditional.nan_to_num(), whole.conditional.nan_to_num())
    assert [r.tokens for r in both.replies] == [r.tokens for r in whole.replies]
    assert whole.mean_length(torch.arange(4)) == whole.accepted_length
    assert whole.mean_length(torch.tensor([0, 0])) == parts[0].accepted_length


def test_evaluations_of_unlike_blocks_do_not_add_up(target):
    drafter = tiny_drafter(target)
    with pytest.raises(ValueError, match="evaluations must have one block size"):
        evaluated(target, drafter) + evaluated(target, None)


@pytest.mark.parametrize("size", [7, 15])
def test_an_oracle_is_right_at_every_position(target, size):
    prompt = PROMPTS[0]
    count = 1 + 3 * (size + 1)
    drafter = oracle(target, prompt, count=count + size, block_size=size)
    found = evaluated(target, drafter, [prompt], max_new_tokens=count, temperature=0.0)
    assert found.conditional.tolist() == found.survival.tolist() == [1.0] * size
    assert (found.accepted_length, found.accepted_drafts) == (size + 1, size)
    # a cap inside a block takes no position of the statistics down
    drafter = oracle(target, prompt, count=count + size, block_size=size)
    cut = evaluated(
        target, drafter, [prompt], max_new_tokens=count - 2, temperature=0.0
    )
    assert cut.conditional.tolist() == [1.0] * size


class Hesitant:
    """Drafts token 0, with one confidence for every draft."""

    block_size = 4

    def __init__(self, confidence, vocab_size):
        self.confidence, self.vocab_size = confidence, vocab_size

    def propose(self, target_hidden, anchor, **_):
        tokens = torch.zeros(1, 4, dtype=torch.long)
        p_draft = torch.nn.functional.one_hot(tokens, self.vocab_size).float()
        confidence = torch.full((1, 4), self.confidence)
        return Proposal(tokens=tokens, p_draft=p_draft, confidence=confidence)


def test_a_threshold_nothing_passes_gives_one_token_a_round(target):
    drafter, policy = Hesitant(0.99, target.vocab_size), ConfidenceThreshold(1.0)
    options = {"max_new_tokens": 32, "temperature": 0.0}
    found = evaluated(target, drafter, PROMPTS[:1], policy=policy, **options)
    plain = evaluated(target, None, PROMPTS[:1], **options)
    assert found.replies[0].tokens == plain.replies[0].tokens
    assert found.num_tokens == 32 and len(found.cycles) == 31
    summary = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert summary["accepted_over_verified"] is None
    assert summary["conditional_acceptance"] == [None] * 4
    assert summary["accepted_length"] == 1.0
    assert summary["draft_seconds"] > 0
    certain = Hesitant(1.0, target.vocab_size)  # 1.0 passes: the test is >=
    found = evaluated(target, certain, PROMPTS[:1], policy=policy, **options)
    assert all(cycle.verify_len == 4 for cycle in found.cycles)


def test_the_baseline_has_no_cycles(target):
    found = evaluated(target, None)
    assert found.accepted_length is None and found.cycles == []
    assert math.isnan(found.mean_length(torch.tensor([0])))
    assert set(found.summary()) == {
        "prompts", "tokens", "cycles", "seconds", "tokens_per_second",
    }  # fmt: skip


def test_no_prompts_are_refused(target):
    with pytest.raises(ValueError, match="prompts must not be empty: expected"):
        evaluated(target, None, [])


# --- the target ---------------------------------------------------------------------


def test_perplexity_equals_its_slow_twin(target):
    examples = [example(prompt, [3, 7, 1, n]) for n, prompt in enumerate(PROMPTS)]
    losses = []
    for item in examples:
        for place, token in enumerate(item.reply):
            ids = torch.tensor([item.prompt + item.reply[:place]])
            with torch.no_grad():
                law = target.model(ids).logits[0, -1].double().softmax(-1)
            losses.append(-law[token].log().item())
    expected = math.exp(sum(losses) / len(losses))
    assert perplexity(target, examples) == pytest.approx(expected, rel=1e-5)


def test_perplexity_of_a_target_that_knows_nothing_is_its_vocabulary():
    target = tiny_target()
    with torch.no_grad():
        target.model.get_output_embeddings().weight.zero_()
    examples = [example([1, 2], [3]), example([1], [4, 5, 6])]
    assert perplexity(target, examples) == pytest.approx(target.vocab_size, rel=1e-6)


class Words:
    """A tokenizer that spells ids."""

    def decode(self, ids, skip_special_tokens=False):
        return " ".join(map(str, ids))


def is_right(check, domain, reply):
    return domain == "math" and check["want"] == reply


def judged(target, max_new_tokens, wrong=()):
    """Every greedy reply is what its check wants, but for those by index."""
    greedy = evaluated(target, None, temperature=0.0).replies
    texts = [" ".join(map(str, reply.tokens)) for reply in greedy]
    examples = [
        example(prompt, [1], want="nothing" if number in wrong else text)
        for number, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True))
    ]
    return examples, evaluate_target(
        target, "math", examples, is_right, max_new_tokens=max_new_tokens
    )


def test_accuracy_is_the_share_of_whole_greedy_replies_that_pass():
    target = tiny_target()
    target.tokenizer, target.stop_token_ids = Words(), [17]  # replies 0, 1 and 2 stop
    ends = [len(r.tokens) for r in evaluated(target, None, temperature=0.0).replies]
    assert ends == [5, 2, 1, 12]
    examples, found = judged(target, 12, wrong=[1])
    assert (found.accuracy, found.cut) == (2 / 3, 1)  # the fourth is not judged
    assert found.perplexity == perplexity(target, examples)
    _, found = judged(target, 2)
    assert (found.accuracy, found.cut) == (1.0, 2)  # nor called wrong for a small cap
    target.stop_token_ids = []
    _, found = judged(target, 12)
    assert (found.accuracy, found.cut) == (None, 4)


def test_a_short_evaluation_file_is_refused(target, tmp_path):
    path = tmp_path / "math.jsonl"
    with pytest.raises(
        FileNotFoundError, match=r"prompts must be there: .*math\.jsonl"
    ):
        read_prompts(path, target, 1)
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(ValueError, match=r"expected at most 1 of math\.jsonl, got 2"):
        read_prompts(path, target, 2)
