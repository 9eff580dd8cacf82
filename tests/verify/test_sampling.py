"""Logits to laws, laws to tokens: against transformers, and by exact arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dsparkref.verify.sampling import (
    as_generator,
    draw_uniforms,
    probabilities,
    sample,
)

NAN, INF = float("nan"), float("inf")
BELOW_ONE = 1 - 2**-24  # the largest number torch.rand gives in float32

weights = st.lists(st.integers(0, 16), min_size=1, max_size=8).filter(any)


def law_of(counts: list[int]) -> torch.Tensor:
    counts = torch.tensor(counts, dtype=torch.float64)
    return counts / counts.sum()


# --- probabilities -------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 5, 50, 99])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.6, 0.95])
def test_parity_with_transformers(temperature, top_k, top_p):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20, 50, generator=generator)
    warped = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        warped = TopKLogitsWarper(top_k)(None, warped)
    if top_p is not None:
        warped = TopPLogitsWarper(top_p)(None, warped)
    found = probabilities(logits, temperature, top_k, top_p)
    expected = warped.softmax(-1)
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
def test_ties_with_the_kth_are_kept_as_transformers_does(top_k):
    logits = torch.tensor([[1.0, 2.0, 1.0, 3.0, 1.0, 0.0]])
    expected = TopKLogitsWarper(top_k)(None, logits).softmax(-1)
    torch.testing.assert_close(probabilities(logits, 1.0, top_k), expected)


def test_sampling_parameters_on_both_sides():
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5])
    cold = torch.tensor([0.6439, 0.2369, 0.0871, 0.0321])
    plain = torch.tensor([0.4551, 0.2760, 0.1674, 0.1015])
    for temperature, expected in (0.5, cold), (1.0, plain):
        found = probabilities(logits, temperature)
        torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-5, 1e-8, 1e-30, 1e-300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_tiny_temperatures_are_finite_and_greedy(temperature, dtype):
    logits = torch.tensor([[5.0, -INF, 5.25, -80.0], [-9.0, -9.5, -INF, -INF]])
    found = probabilities(logits.to(dtype), temperature)
    assert found.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]


def test_greedy_takes_the_lowest_id_and_no_other():
    tied = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert probabilities(tied, 0.0).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert probabilities(tied, 0.0, 2, 0.9).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_huge_temperature_is_uniform_on_what_is_possible():
    found = probabilities(torch.tensor([7.0, -INF, -7.0]), 1e308)
    assert found.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("bad", [-1, -1e-9, NAN, INF])
def test_bad_temperature_is_named(bad):
    with pytest.raises(ValueError, match="temperature"):
        probabilities(torch.zeros(3), float(bad))


BAD_CUTS = {"top_k": [0, -1, 1.5, True], "top_p": [0.0, -0.1, 1.1, NAN]}


@pytest.mark.parametrize(
    "name, bad", [(n, b) for n, bs in BAD_CUTS.items() for b in bs]
)
@pytest.mark.usefixtures("no_shape_checks")
def test_bad_cuts_are_named(name, bad):
    with pytest.raises((ValueError, TypeError), match=name):
        probabilities(torch.zeros(3), 1.0, **{name: bad})


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("side", ["target logits", "draft logits"])
def test_logits_that_are_no_numbers_name_model_and_position(bad, temperature, side):
    logits = torch.zeros(1, 4, 5)
    logits[0, 2, 3] = bad
    with pytest.raises(ValueError, match=rf"{side} .*position 2"):
        probabilities(logits, temperature, name=side)


def test_top_p_prefers_the_lower_id_on_ties_and_keeps_one():
    flat = torch.zeros(4)
    assert probabilities(flat, 1.0, None, 0.5).tolist() == [0.5, 0.5, 0, 0]
    assert probabilities(flat, 1.0, None, 0.51)[:3].gt(0).all()
    assert probabilities(flat, 1.0, None, 1e-9).tolist() == [1, 0, 0, 0]


def test_top_p_that_rounds_to_nothing_keeps_the_likeliest():
    """1e-300 is 0 in float32, and no mass lies below it."""
    for logits in (torch.tensor([0.5, 0.3, 0.2]).log(), torch.zeros(3)):
        assert probabilities(logits, 1.0, None, 1e-300).tolist() == [1.0, 0.0, 0.0]


def test_top_p_of_one_cuts_nothing():
    logits = torch.tensor([30.0, *[0.0] * 9])  # float32 sums reach 1 at the first
    assert (probabilities(logits, 1.0, None, 1.0) > 0).all()


def test_top_p_sees_the_law_that_top_k_left():
    law = torch.tensor([0.4, 0.3, 0.2, 0.1])  # after top-2: 4/7, 3/7
    assert probabilities(law.log(), 1.0, 2, 0.5).tolist() == [1, 0, 0, 0]
    assert (probabilities(law.log(), 1.0, None, 0.5) > 0).sum() == 2


@settings(deadline=None)
@given(weights, st.integers(1, 64))
def test_top_p_is_the_smallest_set(counts, slices):
    """Dyadic numbers throughout, so that "reaches" has one meaning."""
    top_p, padded = slices / 64, [*counts, 256 - sum(counts)]
    found = probabilities(law_of(padded).log(), 1.0, None, top_p)
    order = sorted(range(len(padded)), key=lambda x: (-padded[x], x))
    mass = [Fraction(sum(padded[y] for y in order[:i]), 256) for i in range(len(order))]
    near = any(abs(m - Fraction(slices, 64)) < Fraction(1, 512) for m in mass)
    kept = {x for x, m in zip(order, mass, strict=True) if m < Fraction(slices, 64)}
    if not near:  # at an exact tie softmax(log) may round to either side
        kept = {x for x in kept if padded[x] > 0}
        assert set(found.nonzero()[:, 0].tolist()) == kept


def test_half_precision_is_raised_and_double_stays():
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    for half in torch.bfloat16, torch.float16:
        found = probabilities(logits.to(half), 0.7, 4, 0.9)
        assert found.dtype == torch.float32
        # one function makes the law that is drawn from and the law divided by
        assert torch.equal(found, probabilities(logits.to(half).float(), 0.7, 4, 0.9))
    assert probabilities(logits.double()).dtype == torch.float64


@settings(deadline=None)
@given(weights, st.floats(0, 5), st.integers(1, 9), st.floats(0.01, 1))
def test_always_a_law_and_never_a_new_token(counts, temperature, top_k, top_p):
    logits = law_of(counts).log()
    found = probabilities(logits, temperature, top_k, top_p)
    assert found.sum().item() == pytest.approx(1, abs=1e-12)
    assert (found[logits == -INF] == 0).all()
    assert found[logits.argmax()] == found.max()


# --- sample --------------------------------------------------------------------


@settings(deadline=None)
@given(weights, st.floats(0, 1, exclude_max=True))
def test_sample_inverts_the_cdf(counts, u):
    """Against exact fractions; the two may differ where u meets a step."""
    total, u = sum(counts), Fraction(u)
    steps = [Fraction(sum(counts[: x + 1]), total) for x in range(len(counts))]
    exact = next(x for x, step in enumerate(steps) if step > u)
    found = sample(law_of(counts), torch.tensor(float(u), dtype=torch.float64)).item()
    assert counts[found] > 0
    if min(abs(step - u) for step in steps) > 1e-12:
        assert found == exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("u", [0.0, 0.25, 0.5, 0.75, BELOW_ONE])
def test_zero_probability_is_never_drawn(u, dtype):
    law = torch.tensor([0.0, 0.25, 0.0, 0.25, 0.5, 0.0], dtype=dtype)
    expected = {0.0: 1, 0.25: 3, 0.5: 4, 0.75: 4, BELOW_ONE: 4}[u]
    assert sample(law, torch.tensor(u)).item() == expected


def test_rounding_at_the_end_stays_in_the_support():
    """Sums a little off 1, u at its largest: u * total must not round to total."""
    generator = torch.Generator().manual_seed(0)
    for total in 0.9995, 1.0, 1.0005:
        laws = torch.rand(200, 1000, generator=generator)
        laws[:, :100] = laws[:, 700:] = 0
        laws = total * laws / laws.sum(-1, keepdim=True)
        for u in 0.0, 0.999999, BELOW_ONE:
            ids = sample(laws, torch.full((200,), u))
            assert (laws.gather(1, ids[:, None]) > 0).all()


def test_a_sum_a_little_off_one_is_divided_out():
    law = torch.tensor([0.4995, 0.5])  # the first holds .49975 of the whole
    assert sample(law.expand(2, 2), torch.tensor([0.4997, 0.4998])).tolist() == [0, 1]


@pytest.mark.parametrize(
    "law, cdf, u, expected",
    [
        ([0.5, 0.0, 0.5], [0.5, 0.5 + 1e-7, 1.0], 0.5, 2),
        ([0.5, 0.5, 0.0], [0.5, 1 - 2e-7, 1.0], BELOW_ONE, 1),
    ],
)
def test_a_parallel_cumsum_cannot_lend_mass(monkeypatch, law, cdf, u, expected):
    """On a GPU neighbours may be summed in another order and differ by rounding."""
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda self, dim: torch.tensor(cdf))
    assert sample(torch.tensor(law), torch.tensor(u)).item() == expected


def test_a_peak_in_a_large_vocabulary():
    logits = torch.zeros(151_936)
    logits[77_777] = 200.0
    uniforms = torch.tensor([0.0, 0.3, BELOW_ONE])
    for options in {}, {"top_k": 1}, {"temperature": 0.0}:
        law = probabilities(logits, **options)
        ids = sample(law.expand(3, -1), uniforms)
        assert (law[ids] > 0).all()
    assert ids.tolist() == [77_777] * 3


def test_a_fine_grid_of_uniforms_gives_the_law_back():
    law = torch.tensor([0.125, 0.0, 0.5, 0.375])
    grid = torch.arange(64) / 64
    counts = sample(law.expand(64, 4), grid).bincount(minlength=4)
    assert torch.equal(counts / 64, law)


def test_sample_keeps_leading_dimensions():
    law = torch.tensor([0.5, 0.5]).expand(2, 3, 2)
    ids = sample(law, torch.tensor([[0.1, 0.6, 0.1], [0.6, 0.6, 0.1]]))
    assert ids.tolist() == [[0, 1, 0], [1, 1, 0]] and ids.dtype == torch.long
    assert sample(torch.zeros(2, 0, 5), torch.zeros(2, 0)).shape == (2, 0)


@pytest.mark.parametrize(
    "probs, uniforms, match",
    [
        ([0.5, 0.4], 0.0, "probs must sum to 1"),
        ([NAN, 1.0], 0.0, "probs must hold probabilities"),
        ([1.5, -0.5], 0.0, "probs must hold probabilities"),
        ([0.5, 0.5], 1.0, "uniforms must lie in"),
        ([0.5, 0.5], -0.1, "uniforms must lie in"),
        ([0.5, 0.5], NAN, "uniforms must lie in"),
    ],
)
def test_sample_refuses(probs, uniforms, match):
    with pytest.raises(ValueError, match=match):
        sample(torch.tensor(probs), torch.tensor(uniforms))


@pytest.mark.usefixtures("no_shape_checks")
def test_sample_needs_one_uniform_per_law():
    with pytest.raises((ValueError, TypeError), match="uniforms"):
        sample(torch.full((2, 2), 0.5), torch.zeros(3))


# --- the random stream ---------------------------------------------------------


def test_same_seed_same_numbers_and_the_global_stream_untouched():
    before = torch.get_rng_state()
    first, second = (
        draw_uniforms((4, 5), generator=as_generator(3), device="cpu") for _ in range(2)
    )
    assert torch.equal(first, second)
    assert first.dtype == torch.float32 and (first >= 0).all() and (first < 1).all()
    other = draw_uniforms((4, 5), generator=as_generator(4), device="cpu")
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_without_a_generator_it_is_torchs_stream():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = draw_uniforms((3,), generator=None, device="cpu")
        second = draw_uniforms((3,), generator=None, device="cpu")
        torch.manual_seed(0)
        assert torch.equal(first, torch.rand(3))
    assert not torch.equal(first, second)


def test_a_generator_of_another_device_draws_there_and_the_numbers_move(monkeypatch):
    rand, devices = torch.rand, []

    def spy(*shape, device, **options):
        devices.append(torch.device(device).type)
        return rand(*shape, device=device, **options)

    monkeypatch.setattr(torch, "rand", spy)
    drawn = draw_uniforms((2, 3), generator=as_generator(0), device="meta")
    assert devices == ["cpu"] and drawn.device.type == "meta"


def test_uniforms_in_double_and_never_in_half():
    drawn = draw_uniforms((3,), generator=None, device="cpu", dtype=torch.float64)
    assert drawn.dtype == torch.float64
    with pytest.raises(ValueError, match="dtype"):
        draw_uniforms((3,), generator=None, device="cpu", dtype=torch.bfloat16)


def test_a_seed_makes_a_generator_and_a_generator_passes_through():
    generator = torch.Generator()
    assert as_generator(generator) is generator
    assert as_generator(None) is None
    assert as_generator(11).initial_seed() == 11


@pytest.mark.parametrize("bad", [1.0, True, "7", [7], math])
@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_generators_are_named(bad):
    with pytest.raises(TypeError, match="generator must be a generator"):
        as_generator(bad)


@pytest.mark.usefixtures("no_shape_checks")
def test_numpy_generators_are_refused():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="generator"):
        as_generator(numpy.random.default_rng(0))


def test_negative_seed_is_named():
    with pytest.raises(ValueError, match="generator"):
        as_generator(-1)
