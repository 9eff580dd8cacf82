"""From logits to a law, from a law and a uniform number to a token.

Every token of this project (drafts, replacements, bonus tokens, the target's own)
is drawn by `invert_cdf` from a law made by `make_law`, so that the law a token was
drawn from and the law the verifier divides by can be one and the same tensor. `sample`
and `probabilities` are the same two with their input checked.
"""

from collections.abc import Sequence
from numbers import Integral

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from dsparkref.shapes import check_logits, check_range, problem
from dsparkref.verify.inputs import check_uniforms, widen, widen_laws


def probabilities(
    logits: Float[Tensor, "*rows V"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    *,
    name: str = "logits",
) -> Float[Tensor, "*rows V"]:
    """Return the law that decoding samples from: softmax(logits / temperature), cut.

    The order is temperature, then top-k, then top-p on what top-k left.

    Args:
        logits: [..., V], finite or -inf (probability 0: a token never drawn).
        temperature: >= 0; 0 is an exact one-hot of the largest logit (the lowest
            id on ties), and this is the only place where it is treated apart.
        top_k: >= 1, keep the k most likely tokens and all that tie with the k-th.
        top_p: in (0, 1], keep the smallest set of most likely tokens whose mass
            reaches top_p, at least one; ties go to the lower id.
        name: what an error calls the logits, such as "draft logits".

    Returns:
        [..., V], each row sums to 1; float32, or float64 where the logits are.

    Raises:
        ValueError: an option out of its range, NaN or +inf logits.

    >>> probabilities(torch.tensor([2.0, 2.0, 1.0]), temperature=0.0)
    tensor([1., 0., 0.])
    >>> law = torch.tensor([0.5, 0.3, 0.2])
    >>> probabilities(law.log(), top_p=0.7)  # .5 is short of .7, .5 + .3 is not
    tensor([0.6250, 0.3750, 0.0000])

    Differs: transformers' top-p leaves ties to an unstable sort.
    """
    check_settings(temperature, top_k, top_p)
    logits = widen(logits, name)
    check_logits(name, logits)
    return make_law(logits, temperature, top_k, top_p)


def check_settings(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Check what shapes a law: ranges as in `probabilities`."""
    check_range("temperature", temperature, 0.0)
    if top_k is not None:
        check_range("top_k", top_k, 1, integer=True)
    if top_p is not None:
        check_range("top_p", top_p, 0.0, 1.0, open_low=True)


def make_law(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> Tensor:
    """Do what `probabilities` does, unchecked, on float32 or wider.

    For loops over single positions, which check their input once.
    """
    if temperature == 0:
        greedy = logits.argmax(dim=-1, keepdim=True)  # [..., 1], the first of equals
        return torch.zeros_like(logits).scatter_(-1, greedy, 1.0)  # [..., V]
    # The best logit becomes 0 before the division: 1e-30 then sends the others to
    # -inf and gives no inf - inf. The clamp keeps the number one of this dtype.
    limits = torch.finfo(logits.dtype)
    divisor = min(max(float(temperature), limits.tiny), limits.max)
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / divisor
    if top_k is not None:
        logits = _keep_top_k(logits, top_k)
    if top_p is not None and top_p < 1:  # at 1 a rounded sum could cut the tail off
        logits = _keep_top_p(logits, top_p)
    return logits.softmax(dim=-1)


def sample(
    probs: Float[Tensor, "*rows V"], uniforms: Float[Tensor, "*rows"]
) -> Int[Tensor, "*rows"]:
    """Draw one id per row by the inverse CDF: the first x with F(x) > u F(V-1).

    Args:
        probs: [..., V], laws.
        uniforms: [...], one number in [0, 1) for each law.

    Returns:
        [...], ids in [0, V), never one of probability 0.

    Raises:
        ValueError: rows that are no laws, uniforms outside [0, 1), unlike shapes.

    >>> law = torch.tensor([0.5, 0.0, 0.5])  # CDF .5 .5 1
    >>> sample(law.expand(3, 3), torch.tensor([0.0, 0.4, 0.5]))
    tensor([0, 0, 2])

    Differs: released code calls torch.multinomial, which consumes a number of
    draws that nobody can set by hand or enumerate.
    """
    probs = widen_laws("probs", probs)
    check_uniforms("uniforms", uniforms, probs.shape[:-1])
    return invert_cdf(probs, uniforms)


def invert_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Do what `sample` does, unchecked, on float32 or wider."""
    # A parallel cumsum may give an id of probability 0 another rounding than its
    # neighbour. A CDF of 0 there keeps it from ever being the first one above u.
    cdf = probs.cumsum(dim=-1).masked_fill(probs == 0, 0.0)
    total = cdf.amax(dim=-1, keepdim=True)  # [..., 1]
    # u < 1 keeps the rounded u * total below total, so that one id is always above:
    # t - t/2^p lies half a step or more below t, and on a number where it is half.
    above = cdf > uniforms[..., None] * total
    return above.int().argmax(dim=-1)  # [...], the first id above


def draw_uniforms(
    shape: Sequence[int],
    *,
    generator: torch.Generator | None,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "..."]:
    """Draw numbers in [0, 1): the whole randomness of decoding, as one tensor.

    A generator of another device draws there and the numbers move, so that one CPU
    seed gives the same numbers on every machine. None is torch's global stream.

    Args:
        shape: any.
        generator: on any device, or None.
        device: where the numbers are wanted.
        dtype: float32 (steps of 2^-24) or float64; coarser steps would bend the law.

    >>> seed = torch.Generator().manual_seed(0)
    >>> draw_uniforms((2,), generator=seed, device="cpu")
    tensor([0.4963, 0.7682])
    """
    if dtype not in (torch.float32, torch.float64):
        raise problem("dtype", "be fine enough", "float32 or float64", dtype)
    source = device if generator is None else generator.device
    drawn = torch.rand(tuple(shape), generator=generator, device=source, dtype=dtype)
    return drawn.to(device)


def as_generator(generator: torch.Generator | int | None) -> torch.Generator | None:
    """Turn a seed into a CPU generator; hand a generator or None through.

    >>> as_generator(7).initial_seed()
    7
    >>> as_generator(None) is None
    True

    Raises:
        TypeError: anything else, such as a float, a bool or a NumPy generator.
        ValueError: a seed outside 0..2^64-1.
    """
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    if isinstance(generator, bool) or not isinstance(generator, Integral):
        expected = "a torch.Generator, an int seed or None"
        got = type(generator).__name__
        raise problem("generator", "be a generator", expected, got, error=TypeError)
    check_range("generator", generator, 0, 2**64 - 1, integer=True)
    return torch.Generator().manual_seed(int(generator))


def _keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Send all below the k-th largest logit to -inf."""
    best = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values  # [..., k]
    return logits.masked_fill(logits < best[..., -1:], float("-inf"))  # [..., V]


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Send a token to -inf where the more likely ones already hold top_p."""
    probs, ids = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    mass_before = F.pad(probs.cumsum(dim=-1)[..., :-1], (1, 0))  # of the likelier ones
    cut = (mass_before >= top_p) & (mass_before > 0)  # top_p may round to 0: keep one
    return logits.masked_fill(cut.scatter(-1, ids, cut), float("-inf"))
