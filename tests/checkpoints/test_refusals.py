"""A checkpoint loads fully and rightly, or not at all, and says what is wrong."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from tiny_models import GOLDEN, edited_copy, tiny_drafter, tiny_target

from dsparkref import (
    FixedLength,
    describe,
    load_drafter,
    load_pair,
    load_target,
    new_drafter,
    save_drafter,
)
from dsparkref.checkpoints import io
from dsparkref.checkpoints.formats.speculators import token_ids

VOICE = r"(?s)\A\S.* must .+: expected .+, got .+\.( .+)?\Z"


@pytest.fixture
def target():
    return load_target(GOLDEN / "deepspec_vanilla" / "target")


def refuse(error, pattern, call, *args, **options):
    with pytest.raises(error, match=pattern) as caught:
        call(*args, **options)
    assert caught.match(VOICE)


def edited(tmp_path, golden="deepspec_vanilla", **edits):
    return edited_copy(GOLDEN / golden / "drafter", tmp_path / "drafter", **edits)


# --- names and shapes of tensors -------------------------------------------------


def rename_all(tensors):
    for name in list(tensors):
        tensors[f"model.{name}"] = tensors.pop(name)


def drop_markov(tensors):
    for name in [name for name in tensors if name.startswith("markov_head.")]:
        del tensors[name]


def rename_confidence(tensors):
    tensors["confidence_head.weight"] = tensors.pop("confidence_head.proj.weight")


@pytest.mark.parametrize(
    ("edit", "pattern"),
    [
        (rename_all, "missing: .*fc.weight.*unexpected: .*model.fc.weight"),
        (drop_markov, "missing: markov_head.markov_w1.*w2.*unexpected: none"),
        (lambda t: t.update(surprise=torch.ones(1)), "unexpected: surprise"),
        (
            rename_confidence,
            "missing: confidence_head.proj.*confidence_head.weight",
        ),
    ],
)
def test_names_must_match(edit, pattern, tmp_path, target):
    """C11: never a partly random model."""
    folder = edited(tmp_path, tensors=edit)
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_shapes_must_match(tmp_path, target):
    """C3: five layers' features for an fc of three."""
    folder = edited(tmp_path, config=lambda c: c.update(target_layer_ids=[0, 1, 2, 3]))
    pattern = r"fc.weight must match .* \[32, 128\], got \[32, 96\]"
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_target_must_be_whole(tmp_path):
    """C11 for the target: the library would fill the gap with random numbers."""
    name = "model.layers.1.self_attn.q_proj.weight"
    folder = edited_copy(
        GOLDEN / "deepspec_vanilla" / "target",
        tmp_path / "target",
        tensors=lambda tensors: tensors.pop(name),
    )
    refuse(ValueError, f"missing: {name}", load_target, folder)


# --- configs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["target_layer_ids", "mask_token_id", "block_size", "hidden_size"]
)
def test_keys_that_cannot_be_guessed(key, tmp_path, target):
    """C3, C7."""
    folder = edited(tmp_path, config=lambda config: config.pop(key))
    refuse(ValueError, f"{key} must be given", load_drafter, folder, target)


@pytest.mark.parametrize("golden", ["zlab_dflash", "domino"])
@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id"])
def test_keys_inside_dflash_config(key, golden, tmp_path):
    folder = edited(tmp_path, golden, config=lambda c: c["dflash_config"].pop(key))
    target = load_target(GOLDEN / golden / "target")
    pattern = f"{key} must be given in dflash_config"
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_mask_token_beyond_the_rows(tmp_path, target):
    folder = edited(tmp_path, config=lambda config: config.update(mask_token_id=97))
    pattern = "mask_token_id must be in the vocabulary: .* 97 rows, got 97"
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_mask_token_that_is_a_stop_token_warns(tmp_path, target):
    """C7: the pad-or-eos fallback."""
    target.model.generation_config.eos_token_id = 95
    with pytest.warns(UserWarning, match="mask_token_id 95 is a stop token"):
        load_drafter(GOLDEN / "deepspec_vanilla" / "drafter", target)


def test_markov_confidence_without_markov_head(tmp_path, target):
    """C17, first half."""
    folder = edited(tmp_path, config=lambda config: config.update(markov_rank=0))
    pattern = "confidence_input must fit head 'dflash'"
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_rank_0_is_plain_dflash(tmp_path, target):
    """C17, second half: the same weights without the head, bit-identical base."""

    def no_head(config):
        config.update(markov_rank=0, confidence_head_with_markov=False)
        config.update(enable_confidence_head=False)

    def no_weights(tensors):
        drop_markov(tensors)
        for name in [name for name in tensors if "confidence" in name]:
            del tensors[name]

    folder = edited(tmp_path, config=no_head, tensors=no_weights)
    plain = load_drafter(folder, target)
    full = load_drafter(GOLDEN / "deepspec_vanilla" / "drafter", target)
    assert plain.head_type == "dflash"
    rows, anchor = torch.ones(1, 4, plain.spec.feature_size), torch.tensor([5])
    got, want = plain.propose(rows, anchor), full.propose(rows, anchor)
    assert got.draft_logits.equal(want.base_logits)


@pytest.mark.parametrize(
    ("golden", "block_size", "anchor_predicts"),
    [("deepspec_dflash", 5, True), ("zlab_dflash", 5, False), ("domino", 6, True)],
)
def test_block_size_is_drafts(golden, block_size, anchor_predicts):
    """C5: z-lab's block of 6 counts the anchor; the two others' do not."""
    target = load_target(GOLDEN / golden / "target")
    spec = load_drafter(GOLDEN / golden / "drafter", target).spec
    assert (spec.block_size, spec.anchor_predicts) == (block_size, anchor_predicts)
    config = json.loads((GOLDEN / golden / "drafter" / "config.json").read_text())
    slots = config.get("block_size") or config["dflash_config"]["block_size"]
    assert spec.num_slots == slots


def test_domino_without_shift_label_drops_slot_0(tmp_path):
    def forget(config):
        del config["dflash_config"]["shift_label"]
        del config["dflash_config"]["pure_draft_prefix_len"]

    folder = edited(tmp_path, "domino", config=forget)
    spec = load_drafter(folder, load_target(GOLDEN / "domino" / "target")).spec
    assert (spec.block_size, spec.anchor_predicts, spec.num_slots) == (5, False, 6)
    assert spec.pure_draft_prefix_len == 0


def test_wrong_layout_forced(target):
    """C5: z-lab's file read as another layout stops, and so does the reverse."""
    zlab = GOLDEN / "zlab_dflash"
    its_target = load_target(zlab / "target")
    for layout in ("deepspec", "domino", "dsparkref"):
        with pytest.raises((ValueError, TypeError)):
            load_drafter(zlab / "drafter", its_target, layout=layout)
    folder = GOLDEN / "deepspec_dflash" / "drafter"
    refuse(ValueError, "dflash_config", load_drafter, folder, target, layout="z-lab")


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": None},
        {"architectures": ["DFlashDraftModel"], "shift_label": True},
        {"architectures": ["DFlashDraftModel"]},  # with the tensors of a Markov head
    ],
)
def test_unknown_layout_says_what_to_pass(change, tmp_path, target):
    folder = edited(tmp_path, config=lambda config: config.update(change))
    pattern = "checkpoint must be in a known layout: .*Pass layout= one of .*z-lab"
    refuse(ValueError, pattern, load_drafter, folder, target)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type"),
        (
            {"rope_parameters": {"rope_type": "default"}},
            "rope_theta must be given once",
        ),
        ({"rope_theta": 5e5}, r"rope_theta must .*\[500000.0, 1000000.0\]"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types must be full"),
        ({"hidden_act": "gelu"}, "hidden_act must be"),
        ({"markov_head_type": "typo"}, "markov_head_type must be a known name"),
        ({"target_layer_ids": [0, 2, 5]}, "target_layer_ids must .* got 5.*last layer"),
        ({"confidence_temperatures": [1.0]}, "confidence_temperatures must cover"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_configs_that_cannot_be_meant(change, pattern, tmp_path, target):
    folder = edited(tmp_path, config=lambda config: config.update(change))
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_other_rotary_base_changes_the_drafts(tmp_path, target):
    """A flat base of another value is read, not replaced by a default."""

    def flat(config):
        del config["rope_parameters"]
        config["rope_theta"] = 100.0

    other = load_drafter(edited(tmp_path, config=flat), target)
    usual = load_drafter(GOLDEN / "deepspec_vanilla" / "drafter", target)
    assert (other.spec.rope_theta, usual.spec.rope_theta) == (100.0, 1e6)
    rows, anchor = torch.ones(1, 9, usual.spec.feature_size), torch.tensor([5])
    assert not other.propose(rows, anchor).hidden.allclose(
        usual.propose(rows, anchor).hidden, atol=1e-3
    )


# --- the pair must fit -----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"hidden_size": 16}, "drafter's hidden_size must fit .* 16, got 32"),
        ({"vocab_size": 101}, "drafter's vocab_size must fit .* 101, got 97"),
        ({"num_hidden_layers": 5}, "drafter's num_target_layers must fit .* 5, got 6"),
    ],
)
def test_drafter_for_another_target(change, pattern):
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 6}
    other = tiny_target(**(sizes | change))
    folder = GOLDEN / "deepspec_vanilla" / "drafter"
    refuse(ValueError, pattern, load_drafter, folder, other)


# --- files -----------------------------------------------------------------------


def as_integers(tensors):
    tensors["fc.weight"] = tensors["fc.weight"].long()


def reshaped(tensors):
    tensors["norm.weight"] = tensors["norm.weight"][None].clone()


def emptied(tensors):
    tensors.clear()


MUTATIONS = [
    ({"block_size": "seven"}, None, "block_size must be in range"),
    ({"block_size": 0}, None, "block_size must be in range"),
    ({"block_size": True}, None, "block_size must be in range"),
    ({"target_layer_ids": 3}, None, "target_layer_ids must be a list"),
    ({"target_layer_ids": ["one"]}, None, "target_layer_ids must be in range"),
    ({"target_layer_ids": []}, None, "target_layer_ids must name layers"),
    ({"mask_token_id": -1}, None, "mask_token_id must be in range"),
    ({"enable_confidence_head": "false"}, None, "enable_confidence_head must be a fl"),
    ({"hidden_size": None}, None, "hidden_size must be given"),
    ({"num_attention_heads": 0}, None, "num_attention_heads must be in range"),
    ({"num_key_value_heads": 3}, None, "num_kv_heads must divide num_heads"),
    ({"markov_rank": 16}, None, "must match the config by shape"),
    ({"head_dim": 8}, None, "must match the config by shape"),
    ({"num_hidden_layers": 3}, None, "missing: layers.2.*unexpected: none"),
    ({"num_hidden_layers": 1}, None, "missing: none; unexpected: layers.1"),
    ({"num_hidden_layers": 10**12}, None, "num_hidden_layers must be in range"),
    ({"block_size": 10**12}, None, "block_size must be in range"),
    ({"hidden_size": 10**12}, None, "config.json must have sizes that a tensor"),
    ({"block_size": 7.0}, None, "block_size must be in range"),
    (
        {"rope_parameters": {"rope_type": None, "type": "yarn", "rope_theta": 1e6}},
        None,
        "rope_type must be the plain rotary",
    ),
    ({"confidence_head_with_markov": False}, None, "confidence_head.proj.weight must"),
    ({"confidence_temperatures": 2}, None, "confidence_temperatures must be a list"),
    ({"rope_parameters": {"rope_theta": "1e6"}}, None, "rope_theta must be in range"),
    ({"rope_parameters": [1e6]}, None, "rope_parameters must be an object"),
    ({"layer_types": "full"}, None, "layer_types must be a list"),
    ({"layer_types": ""}, None, "layer_types must be a list"),
    ({"head_dim": 0}, None, "head_dim must be in range"),
    ({"head_dim": "16"}, None, "head_dim must be in range"),
    ({"num_target_layers": 7}, None, "num_target_layers must fit"),
    ({"attention_sink_bias": True}, None, "attention_sink_bias must be what is comp"),
    ({}, as_integers, "fc.weight must have a fitting type"),
    ({}, reshaped, r"norm.weight must match .*\[32\], got \[1, 32\]"),
    ({}, emptied, "missing: .*fc.weight.*unexpected: none"),
]


@pytest.mark.parametrize(("config", "tensors", "pattern"), MUTATIONS)
def test_mutations_of_a_real_file(config, tensors, pattern, tmp_path, target):
    folder = edited(tmp_path, config=lambda c: c.update(config), tensors=tensors)
    error = TypeError if "must be in range" in pattern else ValueError
    with pytest.raises((ValueError, error), match=pattern) as caught:
        load_drafter(folder, target)
    assert caught.match(VOICE)


@pytest.mark.parametrize("key", ["num_hidden_layers", "block_size", "hidden_size"])
@pytest.mark.parametrize(
    "golden",
    ["zlab_dflash", "domino", "modelopt_vanilla", "speculators_dspark"],
)
def test_sizes_past_all_reason_are_refused_at_once(golden, key, tmp_path):
    """By the file's headers alone, in every layout; nothing as long is ever made."""

    def grow(config):
        for place in (config, *config.values()):
            if isinstance(place, dict) and key in place:
                place[key] = 10**12

    folder = edited(tmp_path, golden, config=grow)
    with pytest.raises(ValueError, match=VOICE):
        describe(folder)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "llama3"])
@pytest.mark.parametrize("name", ["rope_type", "type"])
def test_scaled_rotations_are_refused_by_name(name, kind, tmp_path, target):
    """Flat base and scaling beside it: the older spelling, and the newer."""

    def scaled(config):
        del config["rope_parameters"]
        config["rope_theta"] = 1e6
        config["rope_scaling"] = {name: kind, "factor": 4.0}

    pattern = f"rope_type must be the plain rotary: expected 'default', got '{kind}'"
    folder = edited(tmp_path, config=scaled)
    refuse(ValueError, pattern, load_drafter, folder, target)


@pytest.mark.parametrize("ids", [[1, 3, 5, 31], [1, 3, 5, -1], [1, 1, 5, 9]])
def test_ids_of_a_reduced_vocabulary_are_tokens_each_once(ids, tmp_path):
    """In our own layout, which stores them as they are; the others have two maps."""
    target = tiny_target()
    reduced = tiny_drafter(target, draft_vocab_size=4, owns_lm_head=True)
    reduced.vocabulary.ids.copy_(torch.tensor(ids))
    save_drafter(reduced, tmp_path / "d")
    pattern = "vocabulary.ids must name tokens of the target: expected 0..30, each once"
    refuse(ValueError, pattern, load_drafter, tmp_path / "d", target)


def surplus_map(tensors):
    tensors["t2d"] = torch.ones(97, dtype=torch.bool)


SPECULATORS = [
    ({"speculators_model_type": "eagle3"}, None, "speculators_model_type must be a"),
    ({"transformer_layer_config": None}, None, "transformer_layer_config must be giv"),
    ({"aux_hidden_state_layer_ids": None}, None, "aux_hidden_state_layer_ids must be"),
    ({"aux_hidden_state_layer_ids": [1, 3, 6]}, None, "target_layer_ids must .*got 5"),
    ({"target_hidden_size": 64}, None, "target_hidden_size must be what is computed"),
    ({"draft_vocab_size": 40}, None, "missing: .*d2t.*lm_head.weight"),
    ({"draft_vocab_size": 98}, None, "draft_vocab_size must be in range"),
    ({}, surplus_map, "draft vocabulary must have both maps"),
]


@pytest.mark.parametrize(("config", "tensors", "pattern"), SPECULATORS)
def test_mutations_of_a_speculators_file(config, tensors, pattern, tmp_path):
    golden = "speculators_dspark"
    folder = edited(
        tmp_path, golden, config=lambda c: c.update(config), tensors=tensors
    )
    target = load_target(GOLDEN / golden / "target")
    refuse(ValueError, pattern, load_drafter, folder, target)


@pytest.mark.parametrize(
    ("d2t", "t2d", "pattern"),
    [
        ([1, 2], [0, 1, 0, 1], None),
        ([1, 1], [0, 1, 0, 1], "d2t must agree with t2d"),
        ([1, 0], [0, 1, 0, 0], "d2t must agree with t2d"),
        ([1, 2], [0, 1, 0, 1, 0], "t2d must cover the vocabulary"),
        ([1.0, 2.0], [0, 1, 0, 1], "d2t must be a map"),
    ],
)
def test_maps_of_a_reduced_vocabulary(d2t, t2d, pattern):
    maps = torch.tensor(d2t), torch.tensor(t2d).bool()
    if pattern is None:
        assert token_ids(*maps, 4).tolist() == [1, 3]
    else:
        refuse(ValueError, pattern, token_ids, *maps, 4)


def test_a_domino_that_says_it_is_something_else(tmp_path):
    target = load_target(GOLDEN / "domino" / "target")

    def edit(config):
        config["architectures"] = ["DominoDraftModel"]
        config["dflash_config"]["projector_type"] = "linear"

    pattern = "projector_type must be what is computed here: expected 'domino'"
    folder = edited(tmp_path, "domino", config=edit)
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_a_key_at_two_places_must_agree(tmp_path):
    target = load_target(GOLDEN / "domino" / "target")
    folder = edited(tmp_path, "domino", config=lambda c: c.update(emb_dim=11))
    pattern = "emb_dim must agree at both places: .*got 11 and 10"
    refuse(ValueError, pattern, load_drafter, folder, target)


def test_a_tensor_in_two_files_is_refused(tmp_path, target):
    folder = edited(tmp_path)
    shutil.copy(folder / "model.safetensors", folder / "z.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    refuse(ValueError, "must stand in one file", load_drafter, folder, target)
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"x": "a.safetensors", "y": "z.safetensors"}}')
    refuse(ValueError, "must stand in one file", load_drafter, folder, target)


def test_weights_are_what_transformers_takes_for_them(tmp_path, target):
    """model.safetensors, else its index; hidden files and others are left aside."""
    folder = edited(tmp_path)
    weights = folder / "model.safetensors"
    (folder / "._model.safetensors").write_bytes(b"AppleDouble")
    (folder / "consolidated.safetensors").write_bytes(b"another form of the same")
    load_drafter(folder, target)
    weights.rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    for listed, problem in (
        ("../x.safetensors", "must list the files"),
        ("gone.safetensors", r"must be there: .*gone\.safetensors missing"),
    ):
        index.write_text(json.dumps({"weight_map": {"x": listed}}))
        with pytest.raises((ValueError, FileNotFoundError), match=problem):
            load_drafter(folder, target)
    names = {"weight_map": {"x": "model-00001-of-00001.safetensors"}}
    index.write_text(json.dumps(names))
    load_drafter(folder, target)


def test_a_byte_order_mark_is_no_part_of_a_config(tmp_path, target):
    folder = edited(tmp_path)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text, encoding="utf-8-sig")
    load_drafter(folder, target)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "drafter.pt", "x.pkl"])
def test_a_pickle_stays_shut_and_is_named(name, tmp_path, target):
    folder = edited(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": torch.ones(2)}, folder / name)
    pattern = f"weights must be there: .*got {name}. A pickle can run"
    refuse(FileNotFoundError, pattern, load_drafter, folder, target)
    (folder / name).rename(folder / "model.safetensors")
    refuse(ValueError, "weights must be readable", load_drafter, folder, target)


def test_missing_and_broken_files(tmp_path, target):
    folder = edited(tmp_path)
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole, text = weights.read_bytes(), config.read_text()
    for length in (len(whole) // 2, 4, 0):
        weights.write_bytes(whole[:length])
        refuse(ValueError, "weights must be readable", load_drafter, folder, target)
    weights.unlink()
    refuse(FileNotFoundError, "weights must be there", load_drafter, folder, target)
    weights.write_bytes(whole)
    config.write_text(text[:-5])
    refuse(ValueError, "config.json must be JSON", load_drafter, folder, target)
    config.write_text("[" * 200_000)
    refuse(ValueError, "config.json must be JSON", load_drafter, folder, target)
    config.write_text("[]")
    refuse(ValueError, "config.json must be JSON", load_drafter, folder, target)
    config.unlink()
    refuse(ValueError, "checkpoint must be whole", load_drafter, folder, target)
    config.write_text(text)
    load_drafter(folder, target)


def test_missing_and_broken_files_of_a_target(tmp_path):
    folder = edited_copy(GOLDEN / "domino" / "target", tmp_path / "target")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    refuse(ValueError, "weights must be readable", load_target, folder)
    weights.unlink()
    refuse(FileNotFoundError, "weights must be there", load_target, folder)
    (folder / "config.json").unlink()
    refuse(ValueError, "checkpoint must be whole", load_target, folder)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be in range"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers must be in"),
        ({"text_config": [1]}, "text_config must be a JSON object"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be in range"),
        ({"vocab_size": 10**9}, r"target must load: .* must match the config by shape"),
        ({"intermediate_size": 10**9}, "target must load: .* must match the config"),
        ({"hidden_size": 10**12}, "target must load"),
        ({"layer_types": 7}, "layer_types must be a list"),
    ],
    ids=str,
)
def test_sizes_of_a_target_that_are_not_its_files(change, pattern, tmp_path):
    """Refused by the headers, before memory for a single tensor is taken."""

    def edit(config):
        config.pop("layer_types", None)
        config.update(change)

    source = GOLDEN / "domino" / "target"
    folder = edited_copy(source, tmp_path / "target", config=edit)
    with pytest.raises((ValueError, TypeError), match=pattern) as caught:
        load_target(folder)
    assert caught.match(VOICE)


# --- sources ---------------------------------------------------------------------


def test_existing_folder_is_never_a_hub_id(tmp_path, monkeypatch):
    target = tiny_target()
    save_drafter(tiny_drafter(target), tmp_path / "owner" / "name")

    def contacted(*_, **__):
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", contacted)
    monkeypatch.chdir(tmp_path)
    assert load_drafter("owner/name", target).head_type == "markov"
    for source in (
        tmp_path / "none",
        str(tmp_path / "none"),
        "none",
        "./none",
        "a/b/c",
    ):
        refuse(FileNotFoundError, "source must exist", load_drafter, source, target)


def test_failed_download_speaks_with_our_voice(monkeypatch):
    def offline(*_, **__):
        raise OSError("no route to host\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    pattern = "source must be found: .*'owner/none'.*no route to host"
    refuse(OSError, pattern, load_target, "owner/none")


def test_a_download_is_announced_with_its_size(monkeypatch, tmp_path, capsys):
    """Before it begins; and what is whole on this machine is not asked for again."""
    source = GOLDEN / "domino" / "target"
    asked = []

    def download(repo_id, *, allow_patterns, dry_run=False, local_files_only=False):
        asked.append("local" if local_files_only else "plan" if dry_run else "fetch")
        assert not any(pattern.endswith((".py", ".bin")) for pattern in allow_patterns)
        if local_files_only:
            if "fetch" not in asked:
                raise FileNotFoundError("not here")
            return str(source)
        if dry_run:
            sizes = {"config.json": 1000, "model.safetensors": 2_500_000_000}
            return [
                SimpleNamespace(file_size=size, will_download=size > 1000)
                for size in sizes.values()
            ]
        assert "owner/name: downloading 1 files, 2.50 GB" in capsys.readouterr().err
        return str(source)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for _ in range(2):
        assert load_target("owner/name").vocab_size == 97
    assert asked == ["local", "plan", "fetch", "local"]
    assert capsys.readouterr().err == ""


def test_a_pair_that_is_not_here_is_named_before_anything_is_loaded(monkeypatch):
    """The target is on this machine, the drafter is not."""

    def offline(repo_id, **_):
        if repo_id == "Qwen/Qwen3-4B":
            return str(GOLDEN / "domino" / "target")
        raise OSError("no route to host")

    def loaded(*_, **__):
        raise AssertionError("something was loaded")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    monkeypatch.setattr(io, "load_target", loaded)
    pattern = r"head must be found: .*'z-lab/Qwen3-4B-DFlash-b16'.*no route to host"
    refuse(OSError, pattern, load_pair, "qwen3-4b", head="dflash-b16")


def test_pair_of_two_folders():
    folder = GOLDEN / "deepspec_vanilla"
    pair = load_pair(f"{folder / 'target'}, {folder / 'drafter'}")
    assert pair.drafter.head_type == "markov"
    assert pair.drafter.spec.vocab_size == pair.target.vocab_size


def test_pair_from_the_environment(monkeypatch):
    folder = GOLDEN / "domino"
    monkeypatch.setenv("DSPARKREF_PAIR", f"{folder / 'target'},{folder / 'drafter'}")
    assert load_pair().drafter.head_type == "domino"


# --- names and arguments ---------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float99", "int8", "cuda", torch.int8, None, 16])
def test_unknown_dtype(dtype, no_shape_checks):
    folder = GOLDEN / "domino" / "target"
    refuse(ValueError, "dtype must be known", load_target, folder, dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "cuda", "mps", "cpu:x", None])
def test_unknown_or_absent_device(device, no_shape_checks):
    if device in ("cuda", "mps") and getattr(torch, device).is_available():
        pytest.skip("it is here")
    folder = GOLDEN / "domino" / "target"
    refuse(ValueError, "device must be", load_target, folder, device=device)


@pytest.mark.parametrize(
    ("options", "error", "pattern"),
    [
        ({"head": "vanilla"}, ValueError, "head must be a known name"),
        ({"block_size": 0}, ValueError, "block_size must be in range"),
        ({"block_size": 2.5}, TypeError, "block_size must be in range"),
        ({"rank": 0}, ValueError, "rank must fit head 'markov'"),
        ({"mask_token_id": 31}, ValueError, "mask_token_id must be in the vocabulary"),
        ({"mask_token_id": None}, ValueError, "mask_token_id must be given"),
        ({"target_layer_ids": ()}, ValueError, "target_layer_ids must name layers"),
        ({"target_layer_ids": (3,)}, ValueError, "target_layer_ids must name usable"),
        ({"target_layer_ids": (-2,)}, ValueError, "target_layer_ids must be in range"),
        ({"generator": 1.5}, TypeError, "generator must be a generator"),
    ],
    ids=str,
)
def test_new_drafter_refuses(options, error, pattern, no_shape_checks):
    options = {"mask_token_id": 30} | options
    refuse(error, pattern, new_drafter, tiny_target(), **options)


def test_new_drafter_needs_layers_to_tap():
    small = tiny_target(num_hidden_layers=3)
    refuse(ValueError, "target layers must", new_drafter, small, mask_token_id=30)


def test_unknown_names_are_refused(tmp_path):
    target = tiny_target()
    drafter = tiny_drafter(target)
    refuse(ValueError, "layout", save_drafter, drafter, tmp_path / "d", layout="gguf")
    assert list(tmp_path.iterdir()) == []
    folder = GOLDEN / "domino" / "drafter"
    refuse(ValueError, "layout must be a", load_drafter, folder, target, layout="gguf")
    refuse(ValueError, "pair must name", load_pair, "one,two,three")
    refuse(ValueError, "head must be a known name", load_pair, "qwen3-4b", head="rnn")
    for call in (
        lambda: new_drafter(target, mask_token_id=30, shift_targts=True),
        lambda: load_target(GOLDEN, shift_targts=True),
        lambda: load_drafter(folder, target, shift_targts=True),
        lambda: save_drafter(drafter, tmp_path / "d", shift_targts=True),
        lambda: load_pair("tiny", shift_targts=True),
        lambda: replace(drafter.spec, shift_targts=True),
        lambda: FixedLength(1, shift_targts=True),
    ):
        with pytest.raises(TypeError, match="shift_targts"):
            call()


def test_same_seed_same_weights():
    target = tiny_target()
    options = {"mask_token_id": 30}
    drafters = [
        new_drafter(target, **options, generator=generator).state_dict()
        for generator in (4, torch.Generator().manual_seed(4), 5)
    ]
    name = "head.bias_proj.weight"
    assert drafters[0][name].equal(drafters[1][name])
    assert not drafters[0][name].equal(drafters[2][name])
