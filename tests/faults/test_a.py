"""A: what lossless sampling needs of the loop, beside the exact laws held elsewhere."""

import ast
from pathlib import Path

import pytest
import torch
from exact_laws import CUTS
from tiny_models import HEADS, tiny_drafter, tiny_target
from toy_models import WorldDrafter, world_target

import dsparkref
from dsparkref import MarkovWorld, decode_cycles, generate, generate_batch
from dsparkref.verify.rejection import VERIFIERS, verify_block
from dsparkref.verify.sampling import invert_cdf

PACKAGE = Path(dsparkref.__file__).parent
PROMPT = [3, 1, 2, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head", HEADS)
def test_the_law_drawn_from_is_the_law_divided_by(head, dtype, monkeypatch):
    """A1: draft in half precision; both tensors are one, and float32."""
    target = tiny_target(dtype=dtype)
    drawn, divided = [], []

    def draw(probs, uniforms):
        drawn.append(probs)
        return invert_cdf(probs, uniforms)

    def judge(tokens, p_draft, p_target, uniforms, **options):
        divided.append(p_draft)
        return verify_block(tokens, p_draft, p_target, uniforms, **options)

    monkeypatch.setattr("dsparkref.draft.drafter.invert_cdf", draw)
    monkeypatch.setitem(VERIFIERS, "rejection", judge)
    options = {"max_new_tokens": 8, "temperature": 0.8, "generator": 0}
    generate(target, tiny_drafter(target, head), PROMPT, **options)
    drawn = torch.stack(drawn, dim=1)  # [1, cycles * K, V]
    assert torch.equal(drawn, torch.cat(divided, dim=1))
    assert drawn.dtype == divided[0].dtype == torch.float32


def names_in(node: ast.AST) -> set[str]:
    """Return the bare and the dotted names in an expression."""
    found = ast.walk(node)
    return {getattr(x, "id", None) or getattr(x, "attr", "") for x in found}


def decisions(source: str, name: str) -> int:
    """Count the comparisons and truth tests of a name in some source."""
    nodes = list(ast.walk(ast.parse(source)))
    tests = [node for node in nodes if isinstance(node, ast.Compare)]
    branches = [x.test for x in nodes if isinstance(x, ast.If | ast.IfExp | ast.While)]
    branches += [x.operand for x in nodes if isinstance(x, ast.UnaryOp)]
    branches += [
        value for x in nodes if isinstance(x, ast.BoolOp) for value in x.values
    ]
    bare = [x for x in branches if isinstance(x, ast.Name | ast.Attribute)]
    return sum(name in names_in(node) for node in tests + bare)


def test_greedy_is_decided_in_one_place():
    """A5: no second spelling of "temperature 0" anywhere in the package."""
    mutants = ["temperature < 1e-5", "1 if temperature else 2", "not self.temperature"]
    mutants += ["temperature or 1.0", "temperature == 0"]
    assert [decisions(source, "temperature") for source in mutants] == [1] * 5
    found = {
        path.relative_to(PACKAGE).as_posix(): count
        for path in PACKAGE.rglob("*.py")
        if (count := decisions(path.read_text("utf-8"), "temperature"))
    }
    assert found == {"verify/sampling.py": 1}


def test_tokens_are_drawn_in_one_way():
    """A21: by the inverse CDF of `sampling.py`; by no sampler of torch's."""
    others = {"multinomial", "Categorical", "exponential_", "gumbel_softmax"}
    for path in PACKAGE.rglob("*.py"):
        assert not names_in(ast.parse(path.read_text("utf-8"))) & others, path


LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5], dtype=torch.float64)
KNOWN = {0.5: [0.6439, 0.2369, 0.0871, 0.0321], 1.0: [0.4551, 0.2760, 0.1674, 0.1015]}


@pytest.mark.parametrize("cut", [*CUTS.values(), {"temperature": 0.5}], ids=str)
def test_a_drafter_that_is_the_target_is_never_rejected(cut):
    """A17: temperature and filters reach both sides, whatever they are."""
    world = MarkovWorld(LOGITS.softmax(-1))
    drafter = WorldDrafter(world, 4, None)
    options = {"max_new_tokens": 41, "generator": 0, "keep_tensors": True, **cut}
    cycles = list(decode_cycles(world_target(world), drafter, PROMPT, **options))
    assert [cycle.num_accepted for cycle in cycles] == [4] * 8
    for law in (cycles[0].p_draft[0], cycles[0].p_target[0]):
        if len(cut) == 1 and cut["temperature"] in KNOWN:
            assert law.tolist() == pytest.approx(KNOWN[cut["temperature"]], abs=5e-5)


def indifferent_pair():
    """A target to which four tokens are one as good as the other."""
    target = tiny_target(vocab_size=4)
    with torch.no_grad():
        target.model.get_output_embeddings().weight.zero_()
    return target, tiny_drafter(target)


def test_temperature_is_heard_where_logits_are_equal(no_shape_checks):
    """A15: 4000 draws at temperature 1; each id comes 1000 times, give or take 120."""
    options = {"max_new_tokens": 100, "temperature": 1.0, "generators": range(40)}
    replies = generate_batch(*indifferent_pair(), [PROMPT] * 40, **options)
    drawn = torch.tensor([reply.tokens for reply in replies]).flatten()
    assert drawn.numel() == 4000
    assert (drawn.bincount(minlength=4) - 1000).abs().max() <= 120


def test_requests_without_a_seed_do_not_repeat_each_other(no_shape_checks):
    """A20: side by side or one after the other; with seeds torch's stream rests."""
    pair = indifferent_pair()

    def replies(generators):
        options = {"max_new_tokens": 32, "temperature": 1.0, "generators": generators}
        found = generate_batch(*pair, [PROMPT] * 3, **options)
        return [tuple(reply.tokens) for reply in found]

    assert len({*replies(None), *replies(None)}) == 6
    before = torch.get_rng_state()
    assert replies(range(3)) == replies(range(3))
    assert len({reply for seed in range(4) for reply in replies([seed] * 3)}) == 4
    assert torch.get_rng_state().equal(before)
