"""Exercises of notebook 12: a reduced vocabulary, a head's cost, a layout's marks.

Each is checked against the package's own function. The wrong functions are what
learners write; their hints say what went wrong, and not how to mend it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsparkref.checkpoints.formats import recognise
from dsparkref.checkpoints.formats.speculators import token_ids
from dsparkref.draft.describe import head_cost
from dsparkref.draft.spec import DrafterSpec
from dsparkref.lab.checks import Exercise

Config = dict[str, Any]

# -- warm-up: the tokens of a reduced vocabulary ---------------------------------------


def _maps(ids: list[int], vocab_size: int) -> tuple[Tensor, Tensor, int]:
    """Return d2t and t2d of drafted tokens, row by row, as a file stores them."""
    offsets = torch.tensor(ids) - torch.arange(len(ids))
    drafted = torch.zeros(vocab_size, dtype=torch.bool)
    drafted[ids] = True
    return offsets, drafted, vocab_size


def _one_too_many(offsets: Tensor, drafted: Tensor, vocab_size: int) -> Tensor:
    return offsets + torch.arange(1, len(offsets) + 1)


REDUCED = Exercise(
    name="drafted_tokens",
    reference=token_ids,
    cases=[_maps([1, 3], 4), _maps([2, 3, 11, 29], 31), _maps([5, 0, 2], 6)],
    mistakes={
        "These are the offsets as stored. Row i stands for token i + d2t[i].": (
            lambda offsets, drafted, vocab_size: offsets
        ),
        "The offsets are not gaps between neighbours, to be added up: each counts "
        "from its own row.": lambda offsets, drafted, vocab_size: offsets.cumsum(0),
        "These are the right tokens in the order of the vocabulary. The rows of the "
        "file have an order of their own.": (
            lambda offsets, drafted, vocab_size: drafted.nonzero()[:, 0]
        ),
        "Off by one: rows count from 0.": _one_too_many,
        "This says which tokens can be drafted, and not which row is which.": (
            lambda offsets, drafted, vocab_size: drafted
        ),
    },
)

# -- core: what one step of a head costs -----------------------------------------------


def _spec(head: str, **widths: Any) -> DrafterSpec:
    return DrafterSpec(
        head=head,
        block_size=5,
        target_layer_ids=(1, 3),
        mask_token_id=95,
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        **widths,
    )


def _cost(
    spec: DrafterSpec, *, lookup: bool = False, thirds: int = 3, state: bool = True
) -> tuple[int, int]:
    """Count a step from the equations, with one misreading or none."""
    rank, hidden, vocab = spec.rank, spec.hidden_size, spec.vocab_size
    total, carried = vocab * rank, 0
    if spec.head == "gated":
        total += rank * (hidden + rank)
    if spec.head == "rnn":
        total += thirds * rank * (2 * rank + hidden)
        carried = rank
    if spec.head == "domino":
        gru, inner = spec.gru_size, spec.inner_size
        total = inner * (hidden + gru) + vocab * inner + thirds * gru * (hidden + gru)
        carried = gru
    total += vocab * rank if lookup else 0
    return total, carried if state else 0


def _without_the_vocabulary(spec: DrafterSpec) -> tuple[int, int]:
    total, carried = _cost(spec)
    return total - spec.vocab_size * (spec.rank or spec.inner_size), carried


COST = Exercise(
    name="step_cost",
    reference=head_cost,
    cases=[
        (_spec("markov", rank=8),),
        (_spec("gated", rank=8),),
        (_spec("rnn", rank=8),),
        (_spec("domino", gru_size=12, inner_size=10),),
        (_spec("dflash"),),
    ],
    mistakes={
        "W_1 is a lookup: one row is read, and nothing is multiplied.": (
            lambda spec: _cost(spec, lookup=True)
        ),
        "The rnn's joint projection and the GRU have three parts each: gate, "
        "candidate, output; reset, update, new.": lambda spec: _cost(spec, thirds=1),
        "The multiply-adds are right. Two of the heads also carry a state to the "
        "next step: how many numbers?": lambda spec: _cost(spec, state=False),
        "The last matrix is missing, from the rank to the whole vocabulary: the "
        "dearest of all.": _without_the_vocabulary,
        "This is the cost alone. Return two numbers: cost, and numbers carried.": (
            lambda spec: _cost(spec)[0]
        ),
    },
)

# -- stretch: which layout is it? ------------------------------------------------------


def _by_architecture(config: Config, names: Sequence[str]) -> str:
    known = {
        "Qwen3DSparkModel": "deepspec",
        "DFlashDraftModel": "z-lab",
        "DominoDraftModel": "domino",
        "DSparkDraftModel": "specforge",
    }
    return known[config["architectures"][0]]


def _by_tensor_names(config: Config, names: Sequence[str]) -> str:
    starts = {name.partition(".")[0] for name in names}
    if "prefix_gru" in starts:
        return "domino"
    if "markov_w1" in starts:
        return "modelopt"
    return "deepspec" if "markov_head" in starts else "z-lab"


def _speculators_forgotten(config: Config, names: Sequence[str]) -> str:
    found = recognise(config, names)
    return "specforge" if found == "speculators" else found


def _modelopts_domino_forgotten(config: Config, names: Sequence[str]) -> str:
    inner = config.get("dflash_config", {})
    is_domino = inner.get("projector_type") == "domino"
    return "domino" if is_domino else recognise(config, names)


def _case(
    architecture: str, names: list[str], inner: Config | None = None, **keys: Any
) -> tuple[Config, list[str]]:
    config = {"architectures": [architecture], **keys}
    if inner is not None:
        config["dflash_config"] = inner
    return config, ["fc.weight", "norm.weight", *names]


LAYOUT = Exercise(
    name="layout_of",
    reference=recognise,
    cases=[
        _case("DFlashDraftModel", [], {"mask_token_id": 9}),
        _case("Qwen3DSparkModel", ["markov_head.markov_w1.weight"], markov_rank=8),
        _case("Qwen3DSparkModel", [], markov_rank=0),
        _case("DominoDraftModel", ["prefix_gru.weight_ih_l0"], {"emb_dim": 8}),
        _case(
            "DFlashDraftModel",
            ["prefix_gru.weight_ih_l0"],
            {"projector_type": "domino", "causal": False},
        ),
        _case(
            "DSparkDraftModel",
            ["markov_head.markov_w1.weight"],
            {"projector_type": "dspark"},
        ),
        _case("DFlashDraftModel", ["markov_w1.weight"], {"projector_type": "dspark"}),
        _case(
            "DSparkDraftModel",
            ["markov_head.markov_w1.weight"],
            speculators_model_type="dspark",
        ),
        _case("DFlashDraftModel", [], speculators_model_type="dflash"),
    ],
    mistakes={
        "The architecture alone does not decide: two of its names stand for three "
        "layouts each. Look at the keys beside it.": _by_architecture,
        "The names of the tensors alone do not decide: three layouts spell the head "
        "alike, and without a head there is nothing to see.": _by_tensor_names,
        "One layout says what it is in a key of its own. Ask for that first.": (
            _speculators_forgotten
        ),
        "projector_type 'domino' is written by two exporters. One of them always "
        "writes `causal` as well.": _modelopts_domino_forgotten,
    },
)

EXERCISES = {exercise.name: exercise for exercise in (REDUCED, COST, LAYOUT)}
