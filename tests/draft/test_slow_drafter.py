"""Parity with a second drafter, written from the equations in plain loops.

One token, one head, one query at a time, with softmax and rotation spelt out. The
slow version takes a ``mutant``: a mistake seen in the wild, which the comparison must
catch; so each line that a mutant bends is known to be held by these tests.
"""

import math

import pytest
import torch
from tiny_models import HEADS, random_ids, tiny_drafter, tiny_target
from torch import sigmoid, tanh

CONTEXT = 5


class SlowDrafter:
    """Eq. 2-7 for one block; weights by name, everything else by hand."""

    def __init__(self, drafter, target, mutant=None):
        self.spec, self.mutant = drafter.spec, mutant
        self.w = {k: v.double() for k, v in drafter.state_dict().items()}
        self.embedding = target.embedding.double()
        self.lm_head = target.lm_head.double()

    def norm(self, x, name):
        scale = torch.sqrt((x * x).mean() + self.spec.rms_norm_eps)
        return x / scale * self.w[f"{name}.weight"]

    def rope(self, x, position):
        half = len(x) // 2
        out = torch.empty_like(x)
        for i in range(half):
            angle = position * self.spec.rope_theta ** (-2 * i / len(x))
            c, s = math.cos(angle), math.sin(angle)
            out[i] = c * x[i] - s * x[i + half]
            out[i + half] = s * x[i] + c * x[i + half]
        return out

    def head_of(self, projected, index):
        return projected[index * self.spec.head_dim : (index + 1) * self.spec.head_dim]

    def attention(self, layer, block, context):
        """``block`` and ``context`` are lists of (vector, position)."""
        name = f"backbone.layers.{layer}.attention"
        w = {p: self.w[f"{name}.{p}_proj.weight"] for p in "qkvo"}
        group = self.spec.num_heads // self.spec.num_kv_heads
        outputs = []
        for slot, (x, position) in enumerate(block):
            seen = [known for known in context if self.sees(layer, known[1], position)]
            own = block[: slot + 1] if self.causal(layer) else block
            visible = seen + [o for o in own if self.sees_own(layer, o[1], position)]
            pieces = []
            for h in range(self.spec.num_heads):
                query = self.norm(self.head_of(w["q"] @ x, h), f"{name}.q_norm")
                query = self.rope(query, position)
                scores, values = [], []
                for y, where in visible:
                    key = self.head_of(w["k"] @ y, h // group)
                    key = self.rope(self.norm(key, f"{name}.k_norm"), where)
                    scores.append(query @ key / math.sqrt(self.spec.head_dim))
                    values.append(self.head_of(w["v"] @ y, h // group))
                weights = torch.stack(scores).softmax(0)
                pieces.append(sum(a * v for a, v in zip(weights, values, strict=True)))
            outputs.append(w["o"] @ torch.cat(pieces))
        return outputs

    def causal(self, layer):
        return self.is_("causal") or layer in self.spec.causal_layers

    def sees(self, layer, key, query):
        """Whether a query's window reaches back to the context position ``key``."""
        if layer not in self.spec.window_layers:
            return True
        if self.spec.window_rule == "anchor":  # the anchor stands right after
            return key >= CONTEXT - self.spec.window
        return query - key < self.spec.window + self.is_("window one too long")

    def sees_own(self, layer, key, query):
        narrow = self.spec.window_rule == "slot, block too"
        if layer not in self.spec.window_layers or not narrow:
            return True
        return abs(query - key) < self.spec.window

    def mlp(self, layer, x):
        name = f"backbone.layers.{layer}.mlp"
        gate = self.w[f"{name}.gate_proj.weight"] @ x
        up = self.w[f"{name}.up_proj.weight"] @ x
        return self.w[f"{name}.down_proj.weight"] @ (gate * sigmoid(gate) * up)

    def backbone(self, target_hidden, anchor):
        context = []
        for position, row in enumerate(target_hidden.double()):
            projected = self.w["backbone.context_proj.weight"] @ row
            if not self.is_("no context norm"):
                projected = self.norm(projected, "backbone.context_norm")
            context.append((projected, position))
        first = len(context) - self.is_("block one position early")
        tokens = [anchor] + [self.spec.mask_token_id] * (self.spec.num_slots - 1)
        xs = [self.embedding[token] for token in tokens]
        for layer in range(self.spec.num_layers):
            name = f"backbone.layers.{layer}"
            block = [
                (self.norm(x, f"{name}.input_norm"), first + slot)
                for slot, x in enumerate(xs)
            ]
            seen = context
            if self.is_("context through the input norm"):
                seen = [(self.norm(c, f"{name}.input_norm"), p) for c, p in context]
            attended = self.attention(layer, block, seen)
            xs = [x + a for x, a in zip(xs, attended, strict=True)]
            xs = [x + self.mlp(layer, self.norm(x, f"{name}.mlp_norm")) for x in xs]
        hidden = [self.norm(x, "backbone.norm") for x in xs]
        if self.is_("slots read one off"):
            hidden = hidden[1:] + hidden[:1]
        return hidden

    def bias(self, k, h, prev, memory):
        """B_k and what the confidence head reads beside h_k; ``memory`` is mutable."""
        if self.spec.head == "dflash":
            return torch.zeros(self.spec.vocab_size), h[:0]
        if self.spec.head == "domino":
            return self.domino_bias(k, h, prev, memory)
        embedded = self.w["head.prev_embed.weight"][prev]
        w2 = self.w["head.bias_proj.weight"]
        if self.spec.head == "markov":
            return w2 @ embedded, embedded
        if self.spec.head == "gated":
            read = [embedded, h] if self.is_("gate reads [x ; h]") else [h, embedded]
            gate = self.linear("head.gate_proj", torch.cat(read))
            return w2 @ (sigmoid(gate) * embedded), embedded
        r = self.spec.rank
        s = memory.setdefault("s", torch.zeros(r))
        z = self.linear("head.joint_proj", torch.cat([s, embedded, h]))
        gate, candidate, output = sigmoid(z[:r]), tanh(z[r : 2 * r]), z[2 * r :]
        memory["s"] = gate * s + (1 - gate) * candidate
        if self.is_("gate swapped"):
            memory["s"] = (1 - gate) * s + gate * candidate
        if self.is_("output from s_k"):
            again = torch.cat([memory["s"], embedded, h])
            output = self.linear("head.joint_proj", again)[2 * r :]
        return w2 @ tanh(output), embedded

    def domino_bias(self, k, h, prev, memory):
        g = self.spec.gru_size
        state = memory.setdefault("g", torch.zeros(g))
        in_prefix = k < self.spec.pure_draft_prefix_len
        if not (in_prefix and self.is_("GRU skips the prefix")):
            a = self.w["head.gru.weight_ih"] @ self.embedding[prev]
            b = self.w["head.gru.weight_hh"] @ state
            reset, update = sigmoid(a[:g] + b[:g]), sigmoid(a[g : 2 * g] + b[g : 2 * g])
            if self.is_("GRU gates z, r"):
                reset, update = update, reset
            new = tanh(a[2 * g :] + reset * b[2 * g :])
            state = memory["g"] = (1 - update) * new + update * state
        if in_prefix:
            return torch.zeros(self.spec.vocab_size), state
        inner = self.w["head.inner_proj.weight"] @ torch.cat([h, state])
        return self.w["head.bias_proj.weight"] @ (inner * sigmoid(inner)), state

    def linear(self, name, x):
        return self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]

    def block(self, target_hidden, prev_tokens):
        hidden = self.backbone(target_hidden, prev_tokens[0])
        memory = {}
        if not self.spec.anchor_predicts:
            dropped, *hidden = hidden
            if self.spec.head == "rnn" and not self.is_("rnn skips slot 0"):
                self.bias(0, dropped, prev_tokens[0], memory)
        rows = {"hidden": hidden, "base_logits": [], "draft_logits": []}
        rows["confidence_logits"] = []
        for k, (h, prev) in enumerate(zip(hidden, prev_tokens, strict=True)):
            base = self.lm_head @ h
            bias, lent = self.bias(k, h, prev, memory)
            rows["base_logits"].append(base)
            rows["draft_logits"].append(base + bias)
            if self.spec.confidence:
                read = [h, lent] if "head" in self.spec.confidence_input else [h]
                logit = self.linear("confidence.proj", torch.cat(read))
                rows["confidence_logits"].append(logit[0])
        return {name: torch.stack(row) for name, row in rows.items() if row}

    def is_(self, mutant):
        return self.mutant == mutant


@pytest.fixture(autouse=True)
def doubles():
    """The slow version computes in float64 throughout."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def both(head, mutant=None, **changes):
    """Largest difference of each output between the package and the slow version."""
    target = tiny_target(dtype=torch.float64)
    drafter = tiny_drafter(target, head, seed=3, **changes)
    shape, generator = (1, CONTEXT, drafter.spec.feature_size), torch.Generator()
    target_hidden = torch.randn(shape, generator=generator.manual_seed(0))
    prev_tokens = random_ids(1, drafter.block_size, seed=1)
    with torch.no_grad():
        got = vars(drafter.teacher_forced(target_hidden, prev_tokens))
    slow = SlowDrafter(drafter, target, mutant)
    want = slow.block(target_hidden[0], prev_tokens[0].tolist())
    assert want.keys() == {name for name, value in got.items() if value is not None}
    return {name: (got[name][0] - row).abs().max().item() for name, row in want.items()}


@pytest.mark.parametrize("anchor_predicts", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_package_equals_slow_version(head, anchor_predicts):
    prefix = {"pure_draft_prefix_len": 1} if head == "domino" else {}
    difference = both(head, anchor_predicts=anchor_predicts, **prefix)
    assert max(difference.values()) < 1e-5
    assert len(difference) == 4


@pytest.mark.parametrize("head", HEADS)
def test_confidence_of_the_hidden_state_alone(head):
    difference = both(head, confidence_input="hidden")
    assert difference["confidence_logits"] < 1e-5


@pytest.mark.parametrize("prefix", [0, 3, 4])
def test_domino_prefix(prefix):
    assert max(both("domino", pure_draft_prefix_len=prefix).values()) < 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {"causal_layers": (0, 1)},
        {"causal_layers": (1,)},
        {"window_layers": (0,), "window": 3, "window_rule": "anchor"},
        {"window_layers": (0, 1), "window": 3, "causal_layers": (0,)},
        {"window_layers": (1,), "window": 2, "window_rule": "slot, block too"},
    ],
    ids=str,
)
@pytest.mark.parametrize("anchor_predicts", [True, False])
def test_causal_blocks_and_windows(changes, anchor_predicts):
    difference = both("gated", anchor_predicts=anchor_predicts, **changes)
    assert max(difference.values()) < 1e-5
    assert both("gated", **changes | {"causal_layers": ()})["hidden"] < 1e-5
    mutant = "causal" if "window" not in changes else None
    if mutant and len(changes["causal_layers"]) == 1:
        assert both("gated", mutant, **changes)["hidden"] > 1e-2


def test_window_and_slot_0_mutants_are_caught():
    window = {"window_layers": (0, 1), "window": 3}
    assert both("dflash", "window one too long", **window)["hidden"] > 1e-2
    difference = both("rnn", "rnn skips slot 0", anchor_predicts=False)
    assert difference["base_logits"] < 1e-5
    assert difference["draft_logits"] > 1e-2


@pytest.mark.parametrize(
    ("head", "mutant", "field"),
    [
        ("dflash", "causal", "hidden"),
        ("dflash", "no context norm", "hidden"),
        ("dflash", "context through the input norm", "hidden"),
        ("dflash", "block one position early", "hidden"),
        ("dflash", "slots read one off", "hidden"),
        ("gated", "gate reads [x ; h]", "draft_logits"),
        ("rnn", "gate swapped", "draft_logits"),
        ("rnn", "output from s_k", "draft_logits"),
        ("domino", "GRU gates z, r", "draft_logits"),
        ("domino", "GRU skips the prefix", "draft_logits"),
    ],
)
def test_mutants_are_caught(head, mutant, field):
    prefix = {"pure_draft_prefix_len": 2} if head == "domino" else {}
    difference = both(head, mutant, **prefix)
    assert difference[field] > 1e-2
    if field != "hidden":
        assert difference["base_logits"] < 1e-5
