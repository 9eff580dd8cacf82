"""Many requests at once give, row by row, what each gives alone."""

import itertools
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from tiny_models import (
    HEADS,
    ScriptedDrafter,
    greedy_reply,
    random_ids,
    tiny_drafter,
    tiny_target,
)

from dsparkref import (
    BatchDecoder,
    ConfidenceThreshold,
    Drafter,
    FixedLength,
    Target,
    generate,
    generate_batch,
)
from dsparkref.verify.policies import Policy

VOICE = r"(?s)\A\S.* must .+: expected .+, got .+\.( .+)?\Z"
TARGET = tiny_target()
PROMPTS = [random_ids(length, seed=length).tolist() for length in (7, 1, 12, 3)]
REPLIES = [greedy_reply(TARGET, prompt, 40) for prompt in PROMPTS]
NAN = float("nan")


def counts(generation):
    """Everything about a generation that must not depend on its neighbours."""
    kept = [
        replace(cycle, confidence=None, draft_seconds=0.0, verify_seconds=0.0)
        for cycle in generation.cycles
    ]
    return generation.tokens, generation.finish_reason, kept


def assert_same(got, want):
    assert counts(got) == counts(want)
    for some, other in zip(got.cycles, want.cycles, strict=True):
        if some.confidence is not None:
            assert some.confidence == pytest.approx(other.confidence, abs=1e-4)


class Library:
    """Scripted drafters, one for each request, told apart by their generators."""

    def __init__(self, rights, *, block_size=4, confidences=None):
        self.block_size = block_size
        self.generators = [torch.Generator().manual_seed(i) for i in range(len(rights))]
        self.confidences = confidences
        self.scripts = [
            ScriptedDrafter(prompt + reply, right, block_size=block_size)
            for prompt, reply, right in zip(PROMPTS, REPLIES, rights, strict=False)
        ]

    def propose(self, target_hidden, anchor, *, generator, **options):
        (number,) = (i for i, g in enumerate(self.generators) if g is generator)
        proposal = self.scripts[number].propose(target_hidden, anchor)
        if self.confidences is None:
            return proposal
        return replace(proposal, confidence=torch.tensor([self.confidences[number]]))


def alone(number, rights, *, count, policy=None, **library):
    drafter = Library(rights, **library)
    return generate(
        TARGET,
        drafter,
        PROMPTS[number],
        max_new_tokens=count,
        policy=policy,
        generator=drafter.generators[number],
    )


class Calls:
    """Shapes of what a module's forward passes are given."""

    def __init__(self, module, argument=0):
        self.shapes, self.argument = [], argument
        module.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _, args, keywords):
        given = args[self.argument] if args else keywords["input_ids"]
        self.shapes.append(tuple(given.shape))


# --- row by row ------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
def test_greedy_rows_equal_single_runs(head):
    drafter = tiny_drafter(TARGET, head)
    got = generate_batch(TARGET, drafter, PROMPTS, max_new_tokens=12)
    for generation, prompt, reply in zip(got, PROMPTS, REPLIES, strict=True):
        assert generation.tokens == reply[:12]
        assert_same(generation, generate(TARGET, drafter, prompt, max_new_tokens=12))


POLICIES = [
    FixedLength(0),
    FixedLength(2),
    ConfidenceThreshold(0.5),
    ConfidenceThreshold(0.3, on="survival"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_policy(policy):
    drafter = tiny_drafter(TARGET)
    options = {"max_new_tokens": 12, "policy": policy}
    got = generate_batch(TARGET, drafter, PROMPTS, **options)
    for generation, prompt, reply in zip(got, PROMPTS, REPLIES, strict=True):
        assert generation.tokens == reply[:12]
        assert_same(generation, generate(TARGET, drafter, prompt, **options))


@pytest.mark.parametrize("verifier", ["rejection", "token_match"])
@pytest.mark.parametrize("head", ["dflash", "markov", "domino"])
def test_seeded_rows_equal_single_runs(head, verifier):
    """The same numbers in the same order: in float64 the samples are the same."""
    target = tiny_target(dtype=torch.float64)
    drafter = tiny_drafter(target, head)
    options = {"max_new_tokens": 14, "temperature": 1.2, "verifier": verifier}
    options |= {"top_p": 0.95, "policy": ConfidenceThreshold(0.4)}
    got = generate_batch(target, drafter, PROMPTS, generators=[3, 1, 4, 1], **options)
    for generation, prompt, seed in zip(got, PROMPTS, [3, 1, 4, 1], strict=True):
        want = generate(target, drafter, prompt, generator=seed, **options)
        assert_same(generation, want)
    lengths = {cycle.verify_len for row in got for cycle in row.cycles}
    assert len(lengths) > 2  # ragged: rows were padded
    if verifier == "rejection":
        assert any(cycle.num_accepted for row in got for cycle in row.cycles)


def test_rows_accept_different_numbers():
    """F1: always right, never right, right every second time."""
    rights = [99, 0, (0, 99), (1, 3, 2)]
    drafter = Library(rights)
    got = generate_batch(
        TARGET, drafter, PROMPTS, max_new_tokens=17, generators=drafter.generators
    )
    for number, generation in enumerate(got):
        assert generation.tokens == REPLIES[number][:17]
        assert_same(generation, alone(number, rights, count=17))
    assert [len(row.cycles) for row in got] == [4, 16, 6, 6]
    assert [c.num_accepted for c in got[3].cycles[:4]] == [1, 3, 2, 1]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_order_and_neighbours_do_not_matter(order):
    """F3: rows with 0, 2 and all drafts verified in one step, in every order."""
    rights = [99, (0, 99), 99]
    confidences = [[0.1] * 4, [0.9, 0.9, 0.2, 0.9], [0.9] * 4]
    library = {"confidences": confidences}
    drafter = Library(rights, **library)
    policy = ConfidenceThreshold(0.5)
    got = generate_batch(
        TARGET,
        drafter,
        [PROMPTS[number] for number in order],
        max_new_tokens=9,
        policy=policy,
        generators=[drafter.generators[number] for number in order],
    )
    for number, generation in zip(order, got, strict=True):
        want = alone(number, rights, count=9, policy=policy, **library)
        assert_same(generation, want)
        assert {cycle.verify_len for cycle in generation.cycles} == {(0, 2, 4)[number]}


def test_sliding_window_target():
    """B4: a window counts slots, so that padding must not stand between tokens."""
    target = tiny_target(
        layer_types=["sliding_attention", "full_attention"] * 2,
        use_sliding_window=True,
        sliding_window=4,
    )
    drafter = tiny_drafter(target)
    got = generate_batch(target, drafter, PROMPTS, max_new_tokens=12)
    for generation, prompt in zip(got, PROMPTS, strict=True):
        assert_same(generation, generate(target, drafter, prompt, max_new_tokens=12))


def wrong_positions(change):
    def forward(self, *args, **options):
        if "position_ids" in options:
            options = change(options)
        return forward.real(self, *args, **options)

    forward.real = Target.forward
    return forward


MUTANTS = {
    "positions count the padding": (
        "dsparkref.decode.target.Target.forward",
        wrong_positions(lambda options: options | {"position_ids": None}),
    ),
    "padding is seen": (
        "dsparkref.decode.target.Target.forward",
        wrong_positions(lambda options: options | {"attention_mask": None}),
    ),
    "all rows as long as the longest": (
        "dsparkref.decode.cycle.check_lengths",
        lambda _, rows, size, **__: torch.full((rows,), size),
    ),
    "one stream for all": (
        "dsparkref.decode.cycle.Decoding._uniforms",
        lambda self, rows, lengths: [
            torch.rand(length + 1, generator=rows[0].generator) for length in lengths
        ],
    ),
    "the drafter sees its padding": (
        "dsparkref.draft.context.ContextBatch.mask",
        lambda *_: None,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_mutants_are_caught(mutant, monkeypatch, no_shape_checks):
    """Each makes some row differ from its single run, in a case the tests above see."""
    target = tiny_target(dtype=torch.float64)
    drafter = tiny_drafter(target)
    options = {"max_new_tokens": 10, "temperature": 1.0}
    options["policy"] = ConfidenceThreshold(0.4)
    want = [
        counts(generate(target, drafter, prompt, generator=seed, **options))
        for seed, prompt in enumerate(PROMPTS)
    ]

    def batch():
        seeds = range(len(PROMPTS))
        rows = generate_batch(target, drafter, PROMPTS, generators=seeds, **options)
        return [counts(row) for row in rows]

    assert batch() == want
    monkeypatch.setattr(*MUTANTS[mutant])
    assert batch() != want


# --- requests come and go --------------------------------------------------------


def test_a_request_may_join_between_cycles():
    drafter = tiny_drafter(TARGET)
    decoder = BatchDecoder(TARGET, drafter)
    caps = [9, 12, 5, 8]
    numbers = [decoder.add(PROMPTS[0], max_new_tokens=caps[0])]
    assert (decoder.waiting, decoder.running) == ([0], [])
    while decoder.step():
        if len(numbers) < len(PROMPTS):
            index = len(numbers)
            numbers.append(decoder.add(PROMPTS[index], max_new_tokens=caps[index]))
    done = decoder.finished()
    assert sorted(done) == numbers == [0, 1, 2, 3]
    for number, cap in enumerate(caps):
        want = generate(TARGET, drafter, PROMPTS[number], max_new_tokens=cap)
        assert_same(done[number], want)
    assert decoder.finished() == {}
    assert decoder.step() == {}


def test_own_stop_tokens_and_finished_rows_leave_the_batch():
    """F5: one ends on its first token, one inside a block; no pass sees them again."""
    target = tiny_target()
    rights = [99, 99, 99, 99]
    drafter = Library(rights)
    decoder, calls = BatchDecoder(target, drafter), Calls(target.model)
    stops = [[REPLIES[0][0]], [REPLIES[1][4]], [], []]
    ends = [1, 5, 11, 16]
    for number, stop in enumerate(stops):
        decoder.add(
            PROMPTS[number],
            max_new_tokens=(20, 20, 11, 16)[number],
            stop_token_ids=stop,
            generator=drafter.generators[number],
        )
    steps = [sorted(traces) for traces in iter(decoder.step, {})]
    assert steps == [[1, 2, 3], [2, 3], [3]]
    assert [shape[0] for shape in calls.shapes] == [1, 1, 1, 1, 3, 2, 1]
    done = decoder.finished()
    for number, end in enumerate(ends):
        assert done[number].tokens == REPLIES[number][:end]
    reasons = [done[number].finish_reason for number in range(4)]
    assert reasons == ["stop", "stop", "length", "length"]
    assert done[0].accepted_length is None


def test_a_request_for_nothing_meets_no_model():
    target = tiny_target()
    calls = Calls(target.model)
    got = generate_batch(target, tiny_drafter(TARGET), PROMPTS, max_new_tokens=0)
    assert [(row.tokens, row.finish_reason) for row in got] == [([], "length")] * 4
    assert calls.shapes == []


def test_a_cancelled_request_leaves_the_others_alone():
    drafter = tiny_drafter(TARGET)
    decoder = BatchDecoder(TARGET, drafter)
    numbers = [decoder.add(prompt, max_new_tokens=9) for prompt in PROMPTS]
    decoder.cancel(numbers[3])  # waits
    decoder.step()
    decoder.cancel(numbers[1])  # runs
    while decoder.step():
        pass
    done = decoder.finished()
    assert {number: row.tokens for number, row in done.items()} == {
        0: REPLIES[0][:9],
        2: REPLIES[2][:9],
    }
    with pytest.raises(ValueError, match="number must name a request in progress"):
        decoder.cancel(numbers[1])


# --- what it costs ---------------------------------------------------------------


def test_one_pass_of_each_model_per_step():
    target, drafter = tiny_target(), tiny_drafter(TARGET)
    decoder = BatchDecoder(target, drafter)
    for prompt in PROMPTS:
        decoder.add(prompt, max_new_tokens=20)
    passes, drafts = Calls(target.model), Calls(drafter.backbone)
    decoder.step()
    assert passes.shapes == [(1, 7), (1, 1), (1, 12), (1, 3), (4, 5)]
    assert drafts.shapes == [(4, 4, 24)]
    decoder.step()
    assert (passes.shapes[5:], drafts.shapes[1:]) == ([(4, 5)], [(4, 4, 24)])


def test_truncation_saves_the_target_tokens():
    """Fewer tokens enter the pass; both counts, with padding and without, are kept."""
    confidences = [[0.1] * 4, [0.9, 0.9, 0.2, 0.9], [0.9, 0.2, 0.9, 0.9]]
    found = {}
    for policy in (None, ConfidenceThreshold(0.5)):
        target = tiny_target()
        drafter = Library([99, 99, 99], confidences=confidences)
        decoder = BatchDecoder(target, drafter, policy=policy)
        for prompt, generator in zip(PROMPTS, drafter.generators, strict=False):
            decoder.add(prompt, max_new_tokens=30, generator=generator)
        calls = Calls(target.model)
        traces = decoder.step()
        assert decoder.verified_tokens == sum(1 + t.verify_len for t in traces.values())
        rows, columns = calls.shapes[-1]
        assert decoder.padded_tokens == rows * columns
        found[policy] = decoder.verified_tokens, decoder.padded_tokens
        decoder.step()
        assert decoder.padded_tokens == sum(r * c for r, c in calls.shapes[3:])
    assert list(found.values()) == [(15, 15), (1 + 3 + 2, 9)]


def test_unverified_drafts_never_reach_the_target():
    target, seen = tiny_target(), []
    drafter = Library([99, 99], confidences=[[0.1] * 4, [0.9] * 4])
    decoder = BatchDecoder(target, drafter, policy=ConfidenceThreshold(0.5))
    for prompt, generator in zip(PROMPTS, drafter.generators, strict=False):
        decoder.add(prompt, max_new_tokens=9, generator=generator)
    target.model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    decoder.step()
    (short, long) = seen[-1].tolist()
    assert short == [REPLIES[0][0], 0, 0, 0, 0]
    assert long == REPLIES[1][:5]


def test_caches_follow_the_committed_tokens():
    drafter = tiny_drafter(TARGET)
    decoder = BatchDecoder(TARGET, drafter)
    for prompt, cap in zip(PROMPTS, (6, 30, 4, 30), strict=True):
        decoder.add(prompt, max_new_tokens=cap)
    per_token = 2 * 4 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
    emitted = {}
    while traces := decoder.step():
        for number, trace in traces.items():
            emitted[number] = trace.context_len + 1 + trace.num_accepted
        running = decoder.running
        assert decoder.committed_tokens == sum(emitted[number] for number in running)
        held = 0
        for row in decoder._running.values():
            for layer in row.session._cache.layers:
                held += layer.keys.untyped_storage().nbytes()
                held += layer.values.untyped_storage().nbytes()
        rejected = 4 * len(running)  # a crop frees its rows at the next append
        assert held <= per_token * (decoder.committed_tokens + rejected)
    assert decoder.committed_tokens == 0


# --- what the drafter and the policy are asked -----------------------------------


class Noted(Drafter):
    """A drafter whose ``propose`` a lesson replaced."""

    def propose(self, *args, **options):
        self.calls = getattr(self, "calls", 0) + 1
        return super().propose(*args, **options)


def test_a_replaced_propose_is_asked_row_by_row():
    plain = tiny_drafter(TARGET)
    noted = Noted(plain.spec, TARGET.embedding, TARGET.lm_head)
    noted.load_state_dict(plain.state_dict())
    got = generate_batch(TARGET, noted, PROMPTS, max_new_tokens=9)
    assert [row.tokens for row in got] == [reply[:9] for reply in REPLIES]
    assert noted.calls == sum(len(row.cycles) for row in got)


def test_propose_batch_equals_propose():
    """All fields, with and without caches, for contexts of unlike lengths."""
    target = tiny_target(dtype=torch.float64)
    for head in HEADS:
        drafter = tiny_drafter(target, head)
        width = drafter.spec.feature_size
        rows = [torch.randn(1, n, width, dtype=torch.float64) for n in (5, 2, 9)]
        more = [torch.randn(1, n, width, dtype=torch.float64) for n in (1, 4, 2)]
        options = {"temperature": 0.9, "top_k": 20}
        caches = [drafter.new_cache() for _ in rows]
        single = [drafter.new_cache() for _ in rows]
        for features in (rows, more):
            anchors = torch.tensor([3, 1, 4])
            got = drafter.propose_batch(
                features, anchors, generators=[5, 6, 7], caches=caches, **options
            )
            for index, hidden in enumerate(features):
                want = drafter.propose(
                    hidden,
                    anchors[index : index + 1],
                    generator=5 + index,
                    cache=single[index],
                    **options,
                )
                for name, value in vars(want).items():
                    mine = getattr(got, name)[index : index + 1]
                    assert torch.allclose(mine, value, atol=1e-10), name
        assert [cache.length for cache in caches] == [6, 6, 11]


def test_propose_batch_wants_one_of_each_per_request(no_shape_checks):
    drafter = tiny_drafter(TARGET)
    rows = [torch.zeros(1, 3, drafter.spec.feature_size)] * 2
    anchors = torch.tensor([3, 4])
    for options, pattern in (
        ({"generators": [1]}, "generators must be one per request: expected 2, got 1"),
        ({"caches": [drafter.new_cache()]}, "caches must be one per request"),
        ({"anchors": anchors[:1]}, r"anchors must have shape \[R\]: expected \[2\]"),
        ({"target_hidden": [rows[0].expand(2, -1, -1)] * 2}, "target_hidden must have"),
    ):
        options = {"target_hidden": rows, "anchors": anchors} | options
        with pytest.raises(ValueError, match=pattern):
            drafter.propose_batch(**options)


class Shared(Policy):
    """A budget of drafts for all requests; remembers what it was shown."""

    def __init__(self, budget):
        self.budget, self.shown, self.starts = budget, [], 0

    def start(self):
        self.starts += 1
        return self

    def verify_lengths(self, confidence, *, block_size, num_requests=1):
        self.shown.append((tuple(confidence.shape), block_size, num_requests))
        lengths = torch.full((num_requests,), self.budget // num_requests)
        return lengths.clamp(max=block_size)


def test_the_policy_sees_all_running_requests_at_once():
    drafter, policy = tiny_drafter(TARGET), Shared(8)
    caps = (5, 9, 9)
    decoder = BatchDecoder(TARGET, drafter, policy=policy)
    for prompt, cap in zip(PROMPTS, caps, strict=False):
        decoder.add(prompt, max_new_tokens=cap)
    lengths, rows = [], []
    while traces := decoder.step():
        rows.append(len(traces))
        lengths.append({trace.verify_len for trace in traces.values()})
    assert policy.starts == 1
    assert policy.shown == [((n, 4), 4, n) for n in rows]
    assert lengths == [{min(8 // n, 4)} for n in rows]
    assert set(rows) >= {2, 3}
    done = decoder.finished()
    for number, cap in enumerate(caps):  # whatever is verified, greedy is greedy
        assert done[number].tokens == REPLIES[number][:cap]


# --- bad input -------------------------------------------------------------------

BAD = [
    ({"prompts": []}, ValueError, "prompts must not be empty"),
    ({"prompts": "hi"}, TypeError, "prompts must be a list: .* got str"),
    ({"prompts": None}, TypeError, "prompts must be a list: .* got NoneType"),
    ({"prompts": [[1], []]}, ValueError, r"prompts\[1\] must not be empty"),
    ({"prompts": [1, 2]}, TypeError, r"prompts\[0\] must hold ids"),
    ({"prompts": ["hi"]}, TypeError, r"prompts\[0\] must hold ids: .*target.encode"),
    ({"prompts": [[1], [2, 31]]}, ValueError, r"prompts\[1\] must be .* 30, got 31"),
    ({"prompts": [[1], [2.5]]}, TypeError, r"prompts\[1\] must be in range"),
    ({"generators": [1]}, ValueError, "generators must be one per prompt: .* 2, got 1"),
    ({"generators": 7}, TypeError, "generators must be a list: .* got int"),
    ({"generators": [1, 2.5]}, TypeError, "generator must be a generator"),
    ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be in range"),
    ({"temperature": NAN}, ValueError, "temperature must be in range"),
    ({"stop_token_ids": [31]}, ValueError, "stop_token_ids must be in range"),
    ({"verifier": "typical"}, ValueError, "verifier must be a known name"),
    ({"policy": 3}, TypeError, "policy must be a policy"),
    ({"drafter": None}, TypeError, "drafter must be a drafter"),
]


@pytest.mark.parametrize(("options", "error", "pattern"), BAD)
def test_bad_batches_are_refused_before_any_model_runs(
    options, error, pattern, no_shape_checks
):
    target = tiny_target()
    calls = Calls(target.model)
    drafter = tiny_drafter(target)
    options = {"prompts": [[1], [2]], "max_new_tokens": 3} | options
    drafter = options.pop("drafter", drafter)
    with pytest.raises(error, match=pattern) as caught:
        generate_batch(target, drafter, options.pop("prompts"), **options)
    assert caught.match(VOICE)
    assert calls.shapes == []


def test_unknown_keywords(no_shape_checks):
    drafter = tiny_drafter(TARGET)
    with pytest.raises(TypeError, match="unexpected keyword argument 'min_p'"):
        generate_batch(TARGET, drafter, PROMPTS, max_new_tokens=3, min_p=0.1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'generator'"):
        BatchDecoder(TARGET, drafter, generator=1)


def test_a_bad_prompt_among_good_ones_leaves_the_decoder_usable(no_shape_checks):
    decoder = BatchDecoder(TARGET, tiny_drafter(TARGET))
    first = decoder.add(PROMPTS[0], max_new_tokens=9)
    decoder.step()
    for bad in ([], [31], "hi"):
        with pytest.raises((ValueError, TypeError), match="prompt_ids must"):
            decoder.add(bad, max_new_tokens=9)
    second = decoder.add(PROMPTS[1], max_new_tokens=9)
    while decoder.step():
        pass
    done = decoder.finished()
    assert list(map(sorted, (done, [first, second]))) == [[first, second]] * 2
    assert [done[n].tokens for n in (first, second)] == [r[:9] for r in REPLIES[:2]]


def test_a_policy_that_answers_nonsense(no_shape_checks):
    class Odd(Shared):
        def verify_lengths(self, confidence, *, block_size, num_requests=1):
            return self.budget

    drafter = tiny_drafter(TARGET)
    for answer, error in (
        (torch.tensor([1, 2, 3]), ValueError),
        (torch.tensor([1, 5]), ValueError),
        (torch.tensor([1.0, 2.0]), TypeError),
    ):
        with pytest.raises(error, match="verify_len must"):
            generate_batch(
                TARGET, drafter, PROMPTS[:2], max_new_tokens=9, policy=Odd(answer)
            )


# --- what breaks off in the middle -----------------------------------------------


class Countdown(Policy):
    """Verifies one draft fewer with each step: it has a memory."""

    def __init__(self, left=4):
        self.left = left

    def start(self):
        return Countdown()

    def verify_lengths(self, confidence, *, block_size, num_requests=1):
        self.left = (self.left - 1) % 5
        return torch.full((num_requests,), self.left)


class Trip:
    """A forward hook that fails, or spoils what comes out, at its nth call."""

    def __init__(self, module, at, error=None):
        self.left, self.error = at, error
        module.register_forward_hook(self)

    def __call__(self, module, _, output):
        self.left -= 1
        if self.left != 0:
            return None
        if self.error is not None:
            raise self.error
        return torch.full_like(output, NAN)


def trips(target, drafter):
    """Where it breaks: (module, call, error); the prefills are calls 1 to 3."""
    layers = target.model.model.layers
    return {
        "NaN of the target": (target.model.lm_head, 5, None),
        "NaN of the drafter": (drafter.backbone.norm, 2, None),
        "Ctrl-C in a layer of the target": (layers[2].mlp, 5, KeyboardInterrupt()),
        "Ctrl-C in the drafter": (
            drafter.backbone.layers[0].mlp,
            2,
            KeyboardInterrupt(),
        ),
        "Ctrl-C in a prefill": (layers[2].mlp, 2, KeyboardInterrupt()),
        "error in the head": (drafter.head.bias_proj, 6, RuntimeError("out of ink")),
    }


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("where", trips(TARGET, tiny_drafter(TARGET)))
def test_a_broken_step_is_undone(where, requests, no_shape_checks):
    """The error arrives as itself; the next step goes on as if it had never been."""
    options = {"temperature": 1.0, "policy": Countdown()}

    def run(target, drafter, trip):
        decoder, broken = BatchDecoder(target, drafter, **options), []
        for seed, prompt in enumerate(PROMPTS[:requests]):
            decoder.add(prompt, max_new_tokens=10, generator=seed)
        while True:
            try:
                if not decoder.step():
                    done = decoder.finished()
                    return [counts(done[n]) for n in sorted(done)], broken
            except BaseException as error:
                broken.append(error)
                assert trip is not None and len(broken) == 1, error

    target = tiny_target(dtype=torch.float64)
    want, _ = run(target, tiny_drafter(target), None)
    drafter = tiny_drafter(target)
    module, at, error = trips(target, drafter)[where]
    at -= 3 - requests if at > 3 and "target" in where else 0
    if where == "Ctrl-C in a prefill" and requests == 1:
        at = 1
    trip = Trip(module, at, error)
    got, broken = run(target, drafter, trip)
    assert got == want
    assert len(broken) == 1
    if error is None:
        assert isinstance(broken[0], ValueError)
        assert "logits must be finite" in str(broken[0])
    else:
        assert broken[0] is error


BESIDE = [
    ("new_cache", 1),
    ("new_cache", 2),
    *(("clock", call) for call in range(1, 8)),
]


@pytest.mark.parametrize(("method", "call"), BESIDE)
def test_what_breaks_beside_the_models_is_undone(method, call, no_shape_checks):
    """Ctrl-C where a first token is drawn already, or a cycle committed."""
    target = tiny_target()
    drafter = tiny_drafter(target)

    def decoder():
        fresh = BatchDecoder(target, drafter, temperature=1.0, policy=Countdown())
        for seed, prompt in enumerate(PROMPTS[:2]):
            fresh.add(prompt, max_new_tokens=9, generator=seed)
        return fresh

    def finish(decoder):
        while decoder.step():
            pass
        done = decoder.finished()
        return [counts(done[number]) for number in sorted(done)]

    want, broken = finish(decoder()), decoder()
    owner = drafter if method == "new_cache" else target
    honest, calls = getattr(owner, method), itertools.count(1)

    def trips_once():
        if next(calls) == call:
            raise KeyboardInterrupt
        return honest()

    setattr(owner, method, trips_once)
    with pytest.raises(KeyboardInterrupt):
        finish(broken)
    assert finish(broken) == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_a_cpu(dtype):
    target = tiny_target(dtype=dtype)
    options = {"max_new_tokens": 6, "temperature": 1.0, "generators": [0, 1, 2, 3]}
    got = generate_batch(target, tiny_drafter(target), PROMPTS, **options)
    assert [len(row.tokens) for row in got] == [6] * 4
