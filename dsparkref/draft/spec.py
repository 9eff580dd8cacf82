"""Everything that tells one drafter from another, in neutral words.

Published checkpoints spell the same facts in several dialects. They are translated
to this one record in ``checkpoints/formats/``, and nothing else reads a dialect.
"""

from dataclasses import dataclass

from dsparkref.shapes import (
    check_flag,
    check_known,
    check_range,
    check_sequence,
    problem,
)

HEADS = ("dflash", "markov", "gated", "rnn", "domino")
# the positive numbers of float32, in which logits are divided by a temperature
TEMPERATURES = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
CONFIDENCE_INPUTS = ("hidden", "hidden+head")
# What a window of W positions hides: context more than W before the anchor (for all
# slots alike); context W or more before the slot itself; and, last, block slots too.
WINDOW_RULES = ("anchor", "slot", "slot, block too")
# Of a block's drafts and of draft layers: far beyond any that was published (15 and 5),
# and a config with a slip in it cannot ask for a list that fills the memory.
MOST = 1000


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """A drafter's architecture.

    >>> spec = DrafterSpec(
    ...     head="markov", block_size=7, target_layer_ids=(1, 3), mask_token_id=95,
    ...     vocab_size=97, hidden_size=32, intermediate_size=48, num_layers=2,
    ...     num_heads=4, num_kv_heads=2, head_dim=16, rank=8,
    ... )
    >>> spec.num_slots, spec.feature_size
    (7, 64)
    """

    # one of HEADS; "dflash" has no head
    head: str
    # drafts per cycle K; the anchor is not counted
    block_size: int
    # True: slot k predicts anchor+k+1 (K slots). False: slot 0 is dropped (K+1 slots)
    anchor_predicts: bool = True
    # tapped target layers; id i is hidden_states[i+1], -1 is the embedding output
    target_layer_ids: tuple[int, ...]
    # layers of the target it was made for; None: not known
    num_target_layers: int | None = None
    # id whose embedding fills the slots after the anchor
    mask_token_id: int

    # the backbone; hidden_size and vocab_size are the target's
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 32768
    attention_bias: bool = False

    # draft layers whose block is causal; the papers' are bidirectional in all layers
    causal_layers: tuple[int, ...] = ()
    # draft layers with a sliding window
    window_layers: tuple[int, ...] = ()
    # W in positions; 0: no windows
    window: int = 0
    # one of WINDOW_RULES
    window_rule: str = "slot"

    # r: width of the Markov tables (markov, gated, rnn)
    rank: int = 0
    # width of Domino's GRU state
    gru_size: int = 0
    # width inside Domino's correction
    inner_size: int = 0
    # Domino: how many first drafts keep their base logits
    pure_draft_prefix_len: int = 0

    confidence: bool = False
    # "hidden": h_k alone; "hidden+head": h_k with W_1[x_{k-1}] or Domino's GRU state
    confidence_input: str = "hidden"
    # K temperatures of the calibrated confidence logits; None: all 1
    confidence_temperatures: tuple[float, ...] | None = None

    # whether the drafter carries these weights itself or borrows the target's
    owns_embedding: bool = False
    owns_lm_head: bool = False
    # rows of a reduced draft vocabulary, with an LM head of its own; None: all tokens
    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        check_known("head", self.head, HEADS)
        check_known("confidence_input", self.confidence_input, CONFIDENCE_INPUTS)
        self._check_sizes()
        self._check_attention()
        self._check_vocabulary()
        self._check_head()
        self._check_confidence()

    @property
    def num_slots(self) -> int:
        """Inputs of one block: the anchor and its mask tokens."""
        return self.block_size if self.anchor_predicts else self.block_size + 1

    @property
    def feature_size(self) -> int:
        """Width of the concatenated target features, L*D."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def num_draftable(self) -> int:
        """Tokens that can be drafted: rows of the LM head."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def head_feature_size(self) -> int:
        """Width of what the head lends to the confidence head."""
        return self.gru_size if self.head == "domino" else self.rank

    @property
    def confidence_size(self) -> int:
        """Width of the confidence head's input."""
        lent = self.head_feature_size if self.confidence_input == "hidden+head" else 0
        return self.hidden_size + lent

    def _check_sizes(self) -> None:
        for name in (
            "anchor_predicts", "attention_bias", "confidence",
            "owns_embedding", "owns_lm_head",
        ):  # fmt: skip
            check_flag(name, getattr(self, name))
        for name in (
            "vocab_size", "hidden_size", "intermediate_size",
            "num_heads", "num_kv_heads", "head_dim", "max_position_embeddings",
        ):  # fmt: skip
            check_range(name, getattr(self, name), 1, integer=True)
        for name in ("block_size", "num_layers"):
            check_range(name, getattr(self, name), 1, MOST, integer=True)
        for name in ("rank", "gru_size", "inner_size", "window"):
            check_range(name, getattr(self, name), 0, integer=True)
        check_range("rope_theta", self.rope_theta, 0.0, open_low=True)
        check_range("rms_norm_eps", self.rms_norm_eps, 0.0)
        if self.num_heads % self.num_kv_heads:
            rule, expected = "divide num_heads", f"a divisor of {self.num_heads}"
            raise problem("num_kv_heads", rule, expected, self.num_kv_heads)
        if self.head_dim % 2:
            raise problem("head_dim", "be even", "pairs to rotate", self.head_dim)
        if self.num_target_layers is not None:
            check_range("num_target_layers", self.num_target_layers, 1, integer=True)
        check_sequence("target_layer_ids", self.target_layer_ids)
        if not self.target_layer_ids:
            raise problem("target_layer_ids", "name layers", "at least one id", "none")
        for layer_id in self.target_layer_ids:
            check_range("target_layer_ids", layer_id, -1, integer=True)

    def _check_attention(self) -> None:
        for name in ("causal_layers", "window_layers"):
            check_sequence(name, getattr(self, name))
            for layer in getattr(self, name):
                check_range(name, layer, 0, self.num_layers - 1, integer=True)
        check_known("window_rule", self.window_rule, WINDOW_RULES)
        if self.window_layers:
            check_range("window", self.window, 1, integer=True)
        else:
            check_range("window", self.window, 0, 0, integer=True)

    def _check_vocabulary(self) -> None:
        check_range("mask_token_id", self.mask_token_id, 0, integer=True)
        if self.mask_token_id >= self.vocab_size:
            expected = f"an id below the embedding's {self.vocab_size} rows"
            rule = "be in the vocabulary"
            raise problem("mask_token_id", rule, expected, self.mask_token_id)
        rows = self.draft_vocab_size
        if rows is not None:
            check_range("draft_vocab_size", rows, 1, self.vocab_size, integer=True)
            if not self.owns_lm_head:
                rule, expected = "have its own LM head", "owns_lm_head True"
                raise problem("reduced draft vocabulary", rule, expected, False)

    def _check_head(self) -> None:
        needs = {"dflash": [], "domino": ["gru_size", "inner_size"]}
        needed = needs.get(self.head, ["rank"])
        for name in ("rank", "gru_size", "inner_size"):
            value = getattr(self, name)
            if (name in needed) != (value > 0):
                expected = "an integer >= 1" if name in needed else "0"
                rule = f"fit head {self.head!r}"
                raise problem(name, rule, expected, value)
        top = self.block_size if self.head == "domino" else 0
        name = "pure_draft_prefix_len"
        check_range(name, self.pure_draft_prefix_len, 0, top, integer=True)

    def _check_confidence(self) -> None:
        if self.head == "dflash" and self.confidence_input != "hidden":
            hint = "Without a head there is nothing else to read."
            rule = "fit head 'dflash'"
            got = repr(self.confidence_input)
            raise problem("confidence_input", rule, "'hidden'", got, hint)
        temperatures = self.confidence_temperatures
        if temperatures is None:
            return
        check_sequence("confidence_temperatures", temperatures)
        if len(temperatures) != self.block_size:
            rule, expected = "cover the block", f"{self.block_size} values"
            raise problem("confidence_temperatures", rule, expected, len(temperatures))
        for value in temperatures:
            check_range("confidence_temperatures", value, *TEMPERATURES)
