"""One drafter under every layout's names computes one thing, and says what it is."""

from dataclasses import replace

import pytest
import torch
from layout_models import write_as
from tiny_models import random_ids, tiny_drafter, tiny_target

from dsparkref import describe, generate, load_drafter
from dsparkref.checkpoints.formats import recognise
from dsparkref.checkpoints.inspect import inspect_source

TARGET = tiny_target()
DSPARK = ("deepspec", "specforge", "modelopt", "speculators")
MARKOV = ("markov", "gated", "rnn")
KEPT = (2, 3, 11, 29)


def block(drafter):
    """All that a drafter computes for one context, prefix and block."""
    rows = TARGET.forward(random_ids(1, 7), drafter.spec.target_layer_ids).hidden
    prev = random_ids(1, drafter.block_size, seed=5)
    with torch.no_grad():
        output = drafter.teacher_forced(rows.detach(), prev)
    return [value for value in vars(output).values() if value is not None]


def same(got, want):
    assert replace(got.spec, num_target_layers=4) == want.spec
    pairs = zip(block(got), block(want), strict=True)
    assert all(a.equal(b) for a, b in pairs)


def load(layout, drafter, folder, **edits):
    folder = write_as(layout, drafter, folder, **edits)
    loaded = load_drafter(folder, TARGET)
    assert f"layout: {layout}\n" in describe(folder)
    return loaded


@pytest.mark.parametrize("head", MARKOV)
@pytest.mark.parametrize("layout", DSPARK)
def test_dspark_heads(layout, head, tmp_path):
    drafter = tiny_drafter(TARGET, head)
    same(load(layout, drafter, tmp_path / "d"), drafter)


@pytest.mark.parametrize("layout", ["deepspec", "specforge", "speculators"])
def test_confidence_that_reads_the_hidden_state_alone(layout, tmp_path):
    drafter = tiny_drafter(TARGET, "markov", confidence_input="hidden")
    same(load(layout, drafter, tmp_path / "d"), drafter)


@pytest.mark.parametrize("layout", DSPARK)
def test_no_confidence_and_own_tables(layout, tmp_path):
    """Own embedding and LM head win over the target's, whatever the layout."""
    owned = {"owns_embedding": True, "owns_lm_head": True}
    plain = {"confidence": False, "confidence_input": "hidden"}
    drafter = tiny_drafter(TARGET, "markov", **owned, **plain)
    loaded = load(layout, drafter, tmp_path / "d")
    same(loaded, drafter)
    assert not block(loaded)[1].equal(block(tiny_drafter(TARGET, "markov", **plain))[1])


@pytest.mark.parametrize("layout", ["deepspec", "specforge", "speculators"])
def test_rank_0_with_a_confidence_head(layout, tmp_path):
    drafter = tiny_drafter(TARGET, "dflash")
    same(load(layout, drafter, tmp_path / "d"), drafter)


@pytest.mark.parametrize("layout", ["z-lab", "speculators"])
def test_plain_dflash_drops_slot_0(layout, tmp_path):
    drafter = tiny_drafter(TARGET, "dflash", confidence=False, anchor_predicts=False)
    loaded = load(layout, drafter, tmp_path / "d")
    same(loaded, drafter)
    assert (loaded.block_size, loaded.spec.num_slots) == (4, 5)


@pytest.mark.parametrize("anchor_predicts", [True, False])
@pytest.mark.parametrize("head", ["dflash", *MARKOV])
def test_sample_from_anchor(head, anchor_predicts, tmp_path):
    drafter = tiny_drafter(TARGET, head, anchor_predicts=anchor_predicts)
    same(load("speculators", drafter, tmp_path / "d"), drafter)


@pytest.mark.parametrize("prefix", [0, 1, 4])
@pytest.mark.parametrize("anchor_predicts", [True, False])
def test_domino(anchor_predicts, prefix, tmp_path):
    parts = {"confidence": False, "confidence_input": "hidden"}
    parts |= {"pure_draft_prefix_len": prefix, "anchor_predicts": anchor_predicts}
    drafter = tiny_drafter(TARGET, "domino", **parts)
    same(load("domino", drafter, tmp_path / "d"), drafter)


def reduced(head, **changes):
    """A drafter with an LM head of its own, over the tokens ``KEPT`` alone."""
    changes |= {"draft_vocab_size": len(KEPT), "owns_lm_head": True}
    drafter = tiny_drafter(TARGET, head, **changes)
    drafter.vocabulary.ids.copy_(torch.tensor(KEPT))
    return drafter


@pytest.mark.parametrize("head", ["dflash", *MARKOV])
def test_reduced_vocabulary(head, tmp_path):
    drafter = reduced(head)
    loaded = load("speculators", drafter, tmp_path / "d")
    same(loaded, drafter)
    logits = block(loaded)[2]
    outside = [token for token in range(31) if token not in KEPT]
    assert logits.shape[-1] == 31
    assert (logits[..., outside] == -torch.inf).all()
    assert logits[..., list(KEPT)].isfinite().all()
    rows = torch.zeros(1, 3, drafter.spec.feature_size)
    proposal = loaded.propose(rows, torch.tensor([7]), temperature=1.0, generator=0)
    assert torch.isin(proposal.tokens, torch.tensor(KEPT)).all()
    assert proposal.p_draft.sum(-1).allclose(torch.ones(1, 4))
    assert (proposal.p_draft[..., outside] == 0).all()


def test_reduced_vocabulary_against_the_full_one():
    """Rows W_1 by target id, rows of W_2 and of the LM head by draft id (C10)."""
    small, full = reduced("markov"), tiny_drafter(TARGET, "markov", owns_lm_head=True)
    rows = torch.tensor(KEPT)
    for name, value in full.state_dict().items():
        part = name in ("own_lm_head", "head.bias_proj.weight")
        small.state_dict()[name].copy_(value[rows] if part else value)
    for got, want in zip(block(small)[1:3], block(full)[1:3], strict=True):
        assert got[..., rows].allclose(want[..., rows], atol=1e-5)


def test_reduced_vocabulary_decodes_losslessly():
    """Tokens that can never be drafted still come out: greedy equals the target."""
    drafter = reduced("gated")
    plain = tiny_drafter(TARGET, "dflash")
    reply = [
        generate(TARGET, d, [1, 2, 3], max_new_tokens=24) for d in (drafter, plain)
    ]
    assert reply[0].tokens == reply[1].tokens
    assert set(reply[0].tokens) - set(KEPT)


# --- defaults of absent keys, old names, places -------------------------------------


def without(*names, inner=True):
    def edit(config):
        place = config["dflash_config"] if inner else config
        for name in names:
            del place[name]

    return edit


def test_absent_keys_take_their_layouts_own_defaults(tmp_path):
    hidden = {"confidence_input": "hidden"}
    drafter = tiny_drafter(TARGET, "markov", **hidden)
    edit = without("confidence_head_with_markov", "markov_head_type")
    same(load("specforge", drafter, tmp_path / "a", config=edit), drafter)
    drafter = tiny_drafter(TARGET, "markov")
    edit = without(
        "confidence_head_with_markov",
        "markov_head_type",
        "enable_confidence_head",
        "sample_from_anchor",
        inner=False,
    )
    same(load("speculators", drafter, tmp_path / "b", config=edit), drafter)
    edit = without("markov_head_type", "causal", "shift_label")
    same(load("modelopt", drafter, tmp_path / "c", config=edit), drafter)
    plain = tiny_drafter(TARGET, "dflash", confidence=False, anchor_predicts=False)
    edit = without("sample_from_anchor", inner=False)
    same(load("speculators", plain, tmp_path / "d", config=edit), plain)


def test_specforge_confidence_follows_its_loss_weight(tmp_path):
    def alpha(config):
        del config["dflash_config"]["enable_confidence_head"]
        config["dflash_config"]["confidence_head_alpha"] = 1.0

    drafter = tiny_drafter(TARGET, "markov")
    same(load("specforge", drafter, tmp_path / "d", config=alpha), drafter)


@pytest.mark.parametrize(
    ("layout", "shift", "prefix"), [("domino", False, 0), ("modelopt", True, 1)]
)
def test_domino_defaults_differ(layout, shift, prefix, tmp_path):
    parts = {"confidence": False, "confidence_input": "hidden"}
    drafter = tiny_drafter(TARGET, "domino", **parts)

    def edit(config):
        without("shift_label", "pure_draft_prefix_len")(config)
        if layout == "modelopt":  # its mark: it always writes ``causal``
            config["architectures"] = ["DFlashDraftModel"]
            config["dflash_config"]["causal"] = False

    folder = write_as("domino", drafter, tmp_path / "d", config=edit)
    spec = load_drafter(folder, TARGET).spec
    assert (spec.anchor_predicts, spec.pure_draft_prefix_len) == (shift, prefix)
    assert spec.block_size == (4 if shift else 3)
    assert inspect_source(folder)["layout"] == layout


@pytest.mark.parametrize("layout", ["specforge", "domino"])
def test_old_specforge_names(layout, tmp_path):
    def old(tensors):
        for name in [n for n in tensors if n.split(".")[0] in OLD]:
            tensors[f"logit_head.{name}"] = tensors.pop(name)

    head = "domino" if layout == "domino" else "gated"
    parts = {"confidence": layout != "domino"}
    if layout == "domino":
        parts["confidence_input"] = "hidden"
    drafter = tiny_drafter(TARGET, head, **parts)
    same(load(layout, drafter, tmp_path / "d", tensors=old), drafter)


OLD = ("markov_head", "confidence_head", "prefix_gru", "embed_proj")


def test_block_size_may_stand_inside(tmp_path):
    def inside(config):
        config["dflash_config"]["block_size"] = config.pop("block_size")

    drafter = tiny_drafter(TARGET, "dflash", confidence=False, anchor_predicts=False)
    same(load("z-lab", drafter, tmp_path / "d", config=inside), drafter)


@pytest.mark.parametrize("layout", ["deepspec", "modelopt", "speculators"])
@pytest.mark.parametrize("spelling", ["flat", "nested", "both", "scaling"])
def test_every_spelling_of_the_rotary_base(layout, spelling, tmp_path):
    def spell(config):
        place = config.get("transformer_layer_config", config)
        for name in ("rope_parameters", "rope_theta", "rope_scaling"):
            place.pop(name, None)
        if spelling in ("flat", "both"):
            place["rope_theta"] = 500
        if spelling in ("nested", "both"):
            place["rope_parameters"] = {"rope_theta": 500.0, "rope_type": "default"}
        if spelling == "scaling":
            place["rope_scaling"] = {"rope_theta": 500.0, "type": "default"}

    drafter = tiny_drafter(TARGET, "markov", rope_theta=500.0)
    same(load(layout, drafter, tmp_path / "d", config=spell), drafter)
    other = tiny_drafter(TARGET, "markov", rope_theta=1e4)
    assert not block(drafter)[0].allclose(block(other)[0], atol=1e-3)


# --- windows and causal blocks ------------------------------------------------------


def sliding(place, window=3):
    place["layer_types"] = ["full_attention", "sliding_attention"]
    place["sliding_window"] = window


@pytest.mark.parametrize("non_causal", [True, False])
def test_speculators_windows_count_from_the_anchor(non_causal, tmp_path):
    def edit(config):
        sliding(config["transformer_layer_config"])
        config["sliding_window_non_causal"] = non_causal

    window = {"window_layers": (1,), "window": 3, "window_rule": "anchor"}
    window["causal_layers"] = () if non_causal else (1,)
    drafter = tiny_drafter(TARGET, "markov", **window)
    plain = tiny_drafter(TARGET, "markov")
    same(load("speculators", drafter, tmp_path / "d", config=edit), drafter)
    assert not block(drafter)[0].allclose(block(plain)[0], atol=1e-3)


@pytest.mark.parametrize("layout", ["specforge", "z-lab"])
def test_windows_make_the_block_causal(layout, tmp_path):
    """A window of 3 is shorter than the block; z-lab's alone cuts into it."""
    window = {"window_layers": (1,), "window": 3, "causal_layers": (1,)}
    if layout == "z-lab":
        parts = {"confidence": False, "anchor_predicts": False}
        parts["window_rule"] = "slot, block too"
        drafter = tiny_drafter(TARGET, "dflash", **window, **parts)
    else:
        drafter = tiny_drafter(TARGET, "markov", **window, window_rule="slot")
    same(load(layout, drafter, tmp_path / "d", config=sliding), drafter)


@pytest.mark.parametrize("causal", [True, False])
def test_modelopt_says_windows_for_all_layers(causal, tmp_path):
    def edit(config):
        config["sliding_window"] = 6
        swa = {"use_swa": True, "swa_window_size": 6, "causal": causal}
        config["dflash_config"] |= swa

    window = {"window_layers": (0, 1), "window": 6, "window_rule": "slot"}
    window["causal_layers"] = (0, 1) if causal else ()
    drafter = tiny_drafter(TARGET, "markov", **window)
    same(load("modelopt", drafter, tmp_path / "d", config=edit), drafter)


def test_modelopt_causal_without_a_window(tmp_path):
    def edit(config):
        config["dflash_config"]["causal"] = True

    drafter = tiny_drafter(TARGET, "rnn", causal_layers=(0, 1))
    same(load("modelopt", drafter, tmp_path / "d", config=edit), drafter)
    facts = inspect_source(tmp_path / "d")
    assert "causal block in draft layers 0, 1" in facts["attention"]
    assert "causal blocks" in facts["unlike the papers"]


# --- recognition ---------------------------------------------------------------------


def test_plain_dflash_of_modelopt_is_in_z_labs_layout(tmp_path):
    def exported(config):
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["dflash_config"]["causal"] = False
        config |= {"rope_scaling": None, "torch_dtype": "None"}

    drafter = tiny_drafter(TARGET, "dflash", confidence=False, anchor_predicts=False)
    loaded = load("z-lab", drafter, tmp_path / "d", config=exported)
    assert (loaded.block_size, loaded.spec.num_slots) == (4, 5)


def test_a_slot_key_leaves_plain_dflash_open_until_the_layout_is_passed(tmp_path):
    def edit(config):
        config["dflash_config"]["shift_label"] = True

    drafter = tiny_drafter(TARGET, "dflash", confidence=False)
    folder = write_as("z-lab", drafter, tmp_path / "d", config=edit)
    with pytest.raises(ValueError, match=r"shift_label True\. Pass layout="):
        load_drafter(folder, TARGET)
    with pytest.raises(ValueError, match=r"shift_label True\. Pass layout="):
        describe(folder)
    spec = load_drafter(folder, TARGET, layout="z-lab").spec
    assert (spec.block_size, spec.anchor_predicts) == (4, True)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"architectures": ["DSparkDraftModel"]}, ["markov_head.markov_w1.weight"]),
        ({"architectures": "DFlashDraftModel"}, []),
        ({"architectures": ["DSparkDraftModel"], "dflash_config": []}, []),
        (
            {"architectures": ["DSparkDraftModel"], "dflash_config": {}},
            ["markov_w1.weight"],
        ),
        (
            {"architectures": ["DFlashDraftModel"], "dflash_config": {}},
            ["prefix_gru.weight_ih_l0"],
        ),
    ],
)
def test_what_is_left_open_stops(config, names):
    with pytest.raises(ValueError, match="checkpoint must be in a known layout"):
        recognise(config, names)
