"""The command line on a tiny pair of random weights: what it prints, and its errors."""

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console
from tiny_pair import write_tiny_pair
from typer.testing import CliRunner

from dsparkref import cli, load_drafter, load_pair
from dsparkref.analysis.calibration_records import read_records
from dsparkref.analysis.evaluate import read_prompts
from dsparkref.analysis.profile import read_profile, write_profile
from dsparkref.checkpoints import files
from dsparkref.draft.spec import HEADS
from dsparkref.lab import demo, profiling, terminal
from dsparkref.records import CycleTrace


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    names = {head: (head, 7) for head in HEADS}
    names |= {"dflash-k15": ("dflash", 15), "rnn-k15": ("rnn", 15)}
    write_tiny_pair(folder, names, prompts=2)
    return folder


@pytest.fixture
def run(data, monkeypatch, tmp_path):
    monkeypatch.setattr(files, "data_folder", lambda: data)
    monkeypatch.setattr(demo, "MAX_NEW_TOKENS", 5)
    monkeypatch.delenv("DSPARKREF_PAIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, list(arguments))


# --- demo -------------------------------------------------------------------------


def test_demo_shows_everything_and_writes_the_figure(run, tmp_path):
    result = run("demo", "--rounds", "1", "--prompts", "1")
    assert result.exit_code == 0, result.output
    for head in HEADS:
        assert f"\n{head}: " in result.output  # a table of its own
    assert result.output.count("conditional acceptance") == 5
    assert result.output.count("prefix survival") == 5
    for words in ("math", "code", "chat", "tokens/s", "1.00x", "bound by overhead"):
        assert words in result.output
    assert "\x1b" not in result.output  # no terminal, no colour, but marks:
    assert "+draft accepted" in result.output
    assert (tmp_path / "suffix_decay.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["suffix_decay.png"]


def test_demo_goes_on_without_matplotlib(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("demo", "--rounds", "1", "--prompts", "1", "--out", "x.png")
    assert result.exit_code == 0, result.output
    (line,) = [row for row in result.output.splitlines() if "matplotlib" in row]
    assert line.startswith("No figure")
    assert list(tmp_path.iterdir()) == []


# --- the cycle view ---------------------------------------------------------------


def trace(num_accepted, verify_len, next_token):
    drafts, kept = [4, 5, 6], [4, 5, 6][:num_accepted]
    return CycleTrace(
        0, 9, 1, drafts, None, verify_len, num_accepted, next_token, kept, 0.0, 0.0
    )


@pytest.mark.parametrize(
    ("cycle", "marks"),
    [
        (trace(3, 3, 8), "@1 +4 +5 +6 *8"),
        (trace(1, 3, 8), "@1 +4 -5 ~6 >8"),
        (trace(0, 0, 8), "@1 ~4 ~5 ~6 *8"),  # nothing was asked, so nothing refused
        (trace(2, 2, 8), "@1 +4 +5 ~6 *8"),
        (trace(2, 3, None), "@1 +4 +5 ~6"),  # a stop token: the rest is moot
    ],
)
def test_marks_tell_apart_what_became_of_each_token(cycle, marks, no_shape_checks):
    target = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids: str(ids[0])))
    line = terminal.cycle_line(target, cycle, colour=False).plain
    assert line.split("  ", 3)[-1].strip() == marks
    coloured = terminal.cycle_line(target, cycle, colour=True)
    kinds = [kind for kind, _ in terminal.cycle_pieces(cycle)]
    styles = [span.style for span in coloured.spans]
    assert styles == [terminal.KINDS[kind].style for kind in kinds]
    assert not set("@+-~>*") & set(coloured.plain)


def test_kinds_differ_in_mark_and_in_style():
    for look in ("mark", "style", "label"):
        looks = {getattr(kind, look) for kind in terminal.KINDS.values()}
        assert len(looks) == len(terminal.KINDS)


def test_no_color_means_marks(monkeypatch):
    assert terminal.has_colour(Console(force_terminal=True, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.has_colour(Console(force_terminal=True))
    assert not terminal.has_colour(Console(file=sys.__stdout__, force_terminal=False))


@pytest.mark.parametrize(
    ("text", "shown"), [(" so\n", " so\\n"), ("\ufffd", "<7>"), ("é", "é")]
)
def test_a_token_fits_on_its_line(text, shown, no_shape_checks):
    target = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids: text))
    assert terminal.token_text(target, 7) == shown


# --- generate ---------------------------------------------------------------------


def test_generate_answers_as_the_library_does(run):
    result = run("generate", "Hello", "--head", "rnn", "--max-new-tokens", "6")
    assert result.exit_code == 0, result.output
    target, drafter = vars(load_pair("tiny", "rnn")).values()
    from dsparkref import generate

    reply = generate(target, drafter, target.encode("Hello"), max_new_tokens=6)
    assert result.stdout.split() == target.decode(reply.tokens).split()
    assert result.stderr.startswith("[6 tokens, ")


def test_generate_shows_cycles_when_asked(run):
    result = run("generate", "Hello", "--max-new-tokens", "6", "--cycles")
    assert "+draft accepted" in result.stdout and "\n  1  " in result.stdout


# --- evaluate ---------------------------------------------------------------------


def test_evaluate_prints_and_writes_the_numbers(run, tmp_path):
    options = ("--prompts", "2", "--max-new-tokens", "4", "--json", "numbers.json")
    result = run("evaluate", *options)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "numbers.json").read_text())
    names = ["autoregressive", *HEADS, "dflash-k15", "rnn-k15"]
    assert list(report["decoding"]) == names
    assert set(report["decoding"]["rnn"]) == {"math", "code", "chat", "all"}
    assert len(report["decoding"]["rnn-k15"]["all"]["prefix_survival"]) == 15
    assert set(report["target"]) == {"math", "code", "chat"}
    assert set(report["gains"]) == {"markov", "gated", "rnn", "domino", "rnn-k15"}
    assert report["settings"]["prompt_style"] == "chat template, thinking off"  # C19
    assert "prompts: chat template, thinking off" in result.output
    place = report["memory"]["places"][0]
    assert {"before", "token", "count", "accept_rate"} == set(place)
    assert set(place["accept_rate"]) == set(names[1:])
    for words in (f"{place['before']} -> {place['token']}", "perplexity", "last/first"):
        assert words in result.output
    assert all(goal["claim"] in result.output for goal in report["goals"])
    assert max(map(len, result.output.splitlines())) <= 80  # nothing is cut off
    assert "…" not in result.output


def test_evaluate_takes_chosen_drafters(run, tmp_path):
    options = ("--prompts", "1", "--max-new-tokens", "3", "--json", "numbers.json")
    result = run("evaluate", "--drafters", "markov,dflash", *options)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "numbers.json").read_text())
    assert list(report["decoding"]) == ["autoregressive", "markov", "dflash"]
    assert any("chat below math" in goal["claim"] for goal in report["goals"])
    for quality in report["target"].values():  # three tokens are no whole reply
        assert (quality["accuracy"], quality["cut"]) == (None, 1)
    assert "cut, not judged" in result.output


@pytest.mark.parametrize("whose", ["target", "drafter"])
def test_goals_are_those_of_the_shipped_pair_alone(run, data, tmp_path, whose):
    """The same weights, as a reader's own folders."""
    options = ("--prompts", "1", "--max-new-tokens", "3", "--json", "numbers.json")
    own = {
        "target": ("--target", str(data / "tiny" / "target"), "--drafters", "dflash"),
        "drafter": ("--drafters", f"dflash,{data / 'tiny' / 'drafters' / 'rnn'}"),
    }
    result = run("evaluate", *own[whose], *options)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "numbers.json").read_text())["goals"] == []
    assert "goals" not in result.output and "wanted" not in result.output


@pytest.mark.parametrize("source", ["tiny", "rnn", "folders"])
def test_lossless_gives_its_answer(run, data, tmp_path, source):
    if source == "folders":
        places = [data / "tiny" / "target", data / "tiny" / "drafters" / "gated"]
        source = ",".join(map(str, places))
    options = ("--prompts", "1", "--max-new-tokens", "6", "--json", "found.json")
    result = run("evaluate", "--lossless", source, *options)
    report = json.loads((tmp_path / "found.json").read_text())
    kept = report["findings"][0]["detail"].split(" and ")[1]
    answer = "inconclusive" if kept.startswith("0 ") else "pass"
    assert report["answer"] == answer, report
    assert result.exit_code == (answer != "pass")
    assert f"{answer}: " in result.output
    assert len(report["findings"]) == 6 and report["rounding"]["positions"] == 18
    assert max(map(len, result.output.splitlines())) <= 80


# --- calibrate, profile -----------------------------------------------------------

QUICK = ("--prompts", "2", "--max-new-tokens", "5")


def test_calibrate_prints_saves_and_writes(run, tmp_path):
    options = (*QUICK, "--thresholds", "0,0.5", "--on", "survival")
    options += ("--replies", "2", "--records", "cycles.safetensors")
    result = run("calibrate", *options, "--json", "n.json", "--save", "fitted")
    assert result.exit_code == 0, result.output
    records, settings = read_records(tmp_path / "cycles.safetensors")
    assert settings["replies"] == 2 and records.prompt.unique().tolist() == [*range(6)]
    report = json.loads((tmp_path / "n.json").read_text())
    temperatures = report["calibration"]["temperatures"]
    saved = load_drafter(tmp_path / "fitted", load_pair("tiny").target)
    assert saved.spec.confidence_temperatures == tuple(temperatures)
    assert len(temperatures) == 7
    assert report["sweep"]["on"] == "survival" and len(report["sweep"]["rows"]) == 8
    assert report["settings"]["drafter"] == "markov"
    for words in ("20 equal-width bins", "Brier", "AUROC", "isotonic", "so it"):
        assert words in result.output
    for domain in ("math", "code", "chat", "all"):
        assert f"0.5 {domain}" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "…" not in result.output


def test_calibrate_a_long_block_without_a_sweep(run):
    result = run("calibrate", *QUICK, "--head", "rnn-k15", "--thresholds", "")
    assert result.exit_code == 0, result.output
    assert "threshold" not in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "…" not in result.output


def test_profile_writes_a_table_that_a_scheduler_takes(run, tmp_path):
    result = run("profile", "--out", "cpu.json", "--context", "5", "--repeats", "1")
    assert result.exit_code == 0, result.output
    found = read_profile(tmp_path / "cpu.json")
    assert found.steps_per_second(1).capacity == 8
    assert found.model == "tiny, markov, K = 7"
    assert "1 x 8" in result.output and "SPS(B)" in result.output


def test_profile_of_random_weights_on_this_device(run, data, tmp_path, monkeypatch):
    """The GPU's script on a CPU: the check, the table, where it is kept."""
    monkeypatch.setattr(profiling, "CHECK_TOKENS", 4)
    options = ("--random", "smoke", "--rows", "1,2", "--repeats", "1")
    (data / "measured").mkdir(exist_ok=True)
    result = run("profile", *options)
    assert result.exit_code == 0, result.output
    (path,) = (data / "measured").iterdir()
    assert path.name.startswith("cpu-")
    found = read_profile(path)
    assert found.model == "random smoke, markov, K = 3"
    assert found.steps_per_second(2).capacity == 8
    assert found.check == "15 of 15 greedy float32 replies on cpu equal the CPU's"
    assert found.context == 16 and found.peak_bytes is None
    assert "after 16 tokens" in result.output and "2 x 4" in result.output
    again = run("profile", *options, "--head", "domino", "--tokens", "1,2")
    assert again.exit_code == 0, again.output
    assert read_profile(path).model == "random smoke, domino, K = 3"
    shipped = replace(found, model="tiny, markov, K = 7")
    write_profile(shipped, path)
    refused = run("profile", *options)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: --out must be free to replace")
    assert read_profile(path) == shipped
    path.unlink()


# --- errors -----------------------------------------------------------------------


SERVE = ("serve-sim", "--prompts", "1", "--requests", "4", "--max-new-tokens", "4")
SERVE += ("--concurrency", "1,3", "--fixed", "2,7")


@pytest.mark.parametrize("clock", ["replay", "real"])
def test_serve_sim_prints_draws_and_writes(run, tmp_path, clock, no_shape_checks):
    """A made-up table is called so in every table, in the file and in the figure."""
    arguments = ("--table", "staircase", "--figure", "x.png", "--json", "x.json")
    result = run(*SERVE, "--clock", clock, *arguments)
    assert result.exit_code == 0, result.output
    assert result.output.count("MADE UP, not measured: staircase") == 4  # each table
    for words in ("tokens verified per request", "best fixed", "lagged", "early stop"):
        assert words in result.output
    found = json.loads((tmp_path / "x.json").read_text())
    assert "MADE UP" in found["timed_by"]
    assert (clock == "real") == ("this machine" in found["timed_by"])
    policies = {row["policy"] for row in found["rows"]}
    assert {"autoregressive", "fixed 2", "fixed 7", "threshold", "lagged"} < policies
    assert {row["concurrency"] for row in found["rows"]} == {1, 3}
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_serve_sim_takes_a_table_that_profile_wrote(run, tmp_path, no_shape_checks):
    options = ("--repeats", "1", "--context", "4", "--rows", "1,2", "--out", "p.json")
    assert run("profile", *options).exit_code == 0
    result = run(*SERVE[:-4], "--concurrency", "2", "--fixed", "7", "--table", "p.json")
    assert result.exit_code == 0, result.output
    assert "MADE UP" not in result.output
    device = read_profile(tmp_path / "p.json").device
    assert result.output.count(device) == 4
    short = run(*SERVE, "--head", "rnn-k15", "--table", "p.json")
    assert short.stderr.startswith("error: --table must know whole blocks")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "Hi", "--temperature", "-1"), "--temperature must be in range"),
        (("generate", "Hi", "--head", "medusa"), "--head must exist"),
        (("generate", "Hi", "--pair", "no/such/pair"), "--pair must name"),
        (("generate", "Hi", "--top-p", "2"), "--top-p must be in range"),
        (("generate", "Hi", "--max-new-tokens", "-1"), "--max-new-tokens must"),
        (("evaluate", "--prompts", "99"), "--prompts must be in the file"),
        (("evaluate", "--drafters", "eagle"), "--drafters must exist"),
        (("evaluate", "--lossless", "tiny", "--speed"), "--lossless must stand alone"),
        (("evaluate", "--lossless", "eagle"), "--lossless must exist"),
        (("evaluate", "--speed", "--figure", "x.png"), "--figure must be left out"),
        (("evaluate", "--speed", "--temperature", "1"), "--temperature must be left"),
        (("evaluate", "--speed", "--seed", "0"), "--seed must be left out"),
        (("evaluate", "--lossless", "rnn", "--max-new-tokens", "1"), "--prompts must"),
        (("evaluate", "--json", "no/such/x.json"), "--json must lie in a folder"),
        (("demo", "--rounds", "3", "--prompts", "9"), "--prompts must be in the file"),
        (("calibrate", "--thresholds", "0,x"), "--thresholds must be numbers"),
        (("calibrate", "--thresholds", "2"), "--thresholds must be in range"),
        (("calibrate", "--on", "joint"), "--on must be a known name"),
        (("calibrate", "--save", "no/such/x"), "--save must lie in a folder"),
        (("profile", "--out", "no/such/x.json"), "--out must lie in a folder"),
        (("profile", "--rows", "one"), "--rows must be integers"),
        (("profile", "--random", "qwen3-400b"), "--random must be a known name"),
        (("profile", "--random", "smoke", "--pair", "tiny"), "profile must be told"),
        (("serve-sim", "--clock", "moon"), "--clock must be a known name"),
        (("serve-sim", "--table", "abacus"), "--table must be a known name"),
        (("serve-sim", "--rate", "0"), "--rate must be in range"),
        (("serve-sim", "--concurrency", "0"), "--concurrency must be in range"),
        (
            ("serve-sim", "--fixed", "9", "--table", "roofline"),
            "--fixed must be in range",
        ),
        (("serve-sim", "--figure", "no/such/x.png"), "--figure must lie in a folder"),
        (("profile", "--rows", "0"), "--rows must be in range"),
        (("profile", "--tokens", "a"), "--tokens must be integers"),
        (("profile", "--out", "."), "--out must be a file"),
        (("evaluate", "--json", "."), "--json must be a file"),
        (("evaluate", "--figure", "x.xyz"), "--figure must be of a known kind"),
        (("evaluate", "--figure", "no/such/x.png"), "--figure must lie in a folder"),
        (("evaluate", "--target", "no/such/folder"), "--target must exist"),
        (("evaluate", "--temperature", "nan"), "--temperature must be in range"),
        (("evaluate", "--seed", "-1"), "--seed must be in range"),
        (("evaluate", "--speed", "--json", "no/such/x"), "--json must lie in a folder"),
        (("demo", "--out", "no/such/x.png"), "--out must lie in a folder"),
        (("demo", "--temperature", "-1"), "--temperature must be in range"),
        (("calibrate", "--seed", "-1"), "--seed must be in range"),
        (("demo", "--out", "x.xyz"), "--out must be of a known kind"),
        (("inspect", "no/such/folder"), "SOURCE must exist"),
        (("inspect", "."), "checkpoint must be whole"),
        (("inspect", "a", "b", "c"), "sources must fit side by side"),
        (("inspect", ".", "--layout", "gguf"), "checkpoint must be whole"),
        (("generate", "Hi", "--seed", "-1"), "--seed must be in range"),
        (("generate", "Hi", "--pair", "x,y"), "--pair's target must exist"),
        (("generate", "Hi", "--pair", "tiny,y"), "--pair's drafter must exist"),
        (
            ("generate", "Hi", "--pair", "tiny,tiny/rnn", "--head", "gated"),
            "--head must be that of the pair's drafter",
        ),
        (
            ("calibrate", "--pair", "tiny,tiny/rnn", "--head", "eagle"),
            "--head must be that of the pair's drafter",
        ),
        (("evaluate", "--drafters", ""), "--drafters must exist"),
        (("evaluate", "--drafters", "rnn,,gated"), "--drafters must exist"),
        (("evaluate", "--lossless", "rnn", "--seed", "-1"), "--seed must be in range"),
        (("serve-sim", "--seed", "-1"), "--seed must be in range"),
        (("serve-sim", "--temperature", "nan"), "--temperature must be in range"),
        (("serve-sim", "--threshold", "2"), "--threshold must be in range"),
        (("serve-sim", "--concurrency", "1,x"), "--concurrency must be integers"),
        (("calibrate", "--thresholds", "nan"), "--thresholds must be in range"),
        (("inspect", "eagle"), "SOURCE must exist"),
        (("inspect", "rnn", "tiny"), "SOURCE must be a drafter"),
        (("train", "curves", "--out", "no/x.json"), "--out must be a file in a folder"),
        (("train", "curves", "--out", "x", "--target", "no"), "--target must exist"),
        (("train", "curves", "--out", "x", "--seed", "-1"), "--seed must be in range"),
        (
            ("train", "target", "--out", "t", "--scale", "huge"),
            "--scale must be a known",
        ),
        (("train", "target", "--out", "t", "--seed", "-1"), "--seed must be in range"),
        (("train", "target", "--out", "."), "--out must be new"),
        (
            ("train", "drafter", "--out", "d", "--head", "eagle"),
            "--head must be a known",
        ),
        (
            ("train", "drafter", "--out", "d", "--block-size", "0"),
            "--block-size must be",
        ),
        (("train", "drafter", "--out", "d", "--target", "none"), "--target must exist"),
        (("train", "drafter", "--out", "."), "--out must be new"),
        (("train", "tiny", "--scale", "huge"), "--scale must be a known name"),
        (("train", "tiny", "--seed", "-1"), "--seed must be in range"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, arguments, words, no_shape_checks):
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {words}")
    assert ": expected " in line and ", got " in line
    assert list(tmp_path.iterdir()) == []


def test_a_head_beside_a_pair_of_folders_may_be_its_own(run, monkeypatch):
    """By option or by environment: what names a drafter names its head."""
    options = ("--max-new-tokens", "3")
    for head in ((), ("--head", "rnn")):
        result = run("generate", "Hi", "--pair", "tiny,tiny/rnn-k15", *head, *options)
        assert result.exit_code == 0, result.output
        assert result.stderr.endswith("drafter: rnn]\n")
    monkeypatch.setenv("DSPARKREF_PAIR", "tiny,tiny/rnn")
    result = run("generate", "Hi", "--head", "gated", *options)
    assert result.stderr.startswith("error: --head must be that of the pair's drafter")
    monkeypatch.setenv("DSPARKREF_PAIR", "tiny,none")
    result = run("generate", "Hi", *options)
    assert result.stderr.startswith("error: DSPARKREF_PAIR's drafter must exist")


def test_inspect_takes_the_names_of_tiny(run):
    one = run("inspect", "rnn-k15")
    assert one.exit_code == 0 and "15 drafts per cycle" in one.output
    two = run("inspect", "gated", "tiny/rnn")
    assert two.exit_code == 0 and "differs" in two.output
    names = [*HEADS, "dflash-k15", "rnn-k15"]
    tiny = run("inspect", "tiny")
    assert tiny.exit_code == 0, tiny.output
    shown = [line.split()[0] for line in tiny.output.splitlines() if line.strip()]
    assert [name for name in shown if name in names] == names
    assert tiny.output.splitlines()[-1].endswith("inspect dflash markov")
    assert "z-lab/Qwen3-4B-DFlash-b16" in run("inspect", "qwen3-4b").output


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": "x"}', '"x"', "3"])
def test_a_broken_evaluation_file_is_named_by_its_line(run, data, tmp_path, line):
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    path = copy / "eval" / "math.jsonl"
    path.write_text(f"{path.read_text().splitlines()[0]}\n{line}\n")
    with pytest.raises(ValueError, match=r"prompts must be readable: .*jsonl, line 2"):
        read_prompts(path, load_pair("tiny").target, 2)


def test_a_target_without_a_tokenizer_answers_no_text(run, data, tmp_path):
    shutil.copytree(data / "tiny" / "target", tmp_path / "bare")
    for path in (tmp_path / "bare").glob("*token*"):
        path.unlink()
    result = run("evaluate", "--target", "bare", "--prompts", "1")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --target must have a tokenizer")


def test_without_data_the_error_says_how_to_make_it(run, monkeypatch, tmp_path):
    monkeypatch.setattr(files, "data_folder", lambda: tmp_path)
    result = run("evaluate", "--target", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_fault_of_our_own_keeps_its_traceback(run, monkeypatch):
    def broken(*arguments, **options):
        raise TypeError("unsupported operand type(s) for +")

    monkeypatch.setattr(demo, "run_demo", broken)
    result = run("demo")
    assert isinstance(result.exception, TypeError)
    assert "error: " not in result.stderr


def test_an_unknown_option_is_refused(run):
    result = run("evaluate", "--promts", "3")
    assert result.exit_code == 2 and "--promts" in result.stderr


# --- the lazy part ----------------------------------------------------------------


def test_train_is_imported_when_it_is_asked_for(run, monkeypatch):
    train = typer.Typer()

    @train.command()
    def target():
        raise ValueError("steps must be in range: expected 1, got 0.")

    @train.command()
    def tiny():
        typer.echo("made")

    monkeypatch.setitem(cli.LAZY, "train", "planted_commands")
    assert run("generate", "--help").exit_code == 0  # not even looked for
    planted = SimpleNamespace(app=train)
    monkeypatch.setitem(sys.modules, "planted_commands", planted)
    assert run("train", "tiny").stdout == "made\n"
    assert run("train", "target").stderr.startswith("error: steps must")
    assert "train" in run("--help").output


@pytest.mark.parametrize("lost", ["README.md", "tiny/thesis.tex", "eval/mine.jsonl"])
def test_a_folder_of_somebody_elses_is_no_place_for_the_pair(run, lost, tmp_path):
    """Said before the hour of work, and nothing of it is touched."""
    (tmp_path / lost).parent.mkdir(exist_ok=True)
    (tmp_path / lost).write_text("mine")
    options = "--work", str(tmp_path / "work"), "--out", str(tmp_path)
    refused = run("train", "tiny", "--scale", "smoke", *options)
    assert "--out must be free for the pair" in refused.stderr
    assert lost in refused.stderr and not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("generate", "[markov]"),
        ("evaluate", "[all of tiny]"),
        ("profile", "[profile.json; --random: data/measured/DEVICE.json]"),
        ("serve-sim", "[replay: 1 to K; real: K // 2 and K]"),
        ("train tiny", "[data/]"),
        ("train tiny", "[runs/tiny-SCALE]"),
    ],
)
def test_the_help_shows_the_defaults(run, monkeypatch, command, default):
    """Rich takes [words] for markup and drops them unless they are escaped."""
    monkeypatch.setenv("COLUMNS", "200")
    assert default in run(*command.split(), "--help").output
