"""The default path: no network, no files but those asked for, no warnings, one result.

Each program runs in a process of its own, as a user's would: pytest's settings, its
warning filters and its offline switch are not there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Before anything of ours: a socket that is opened ends the program, and so does a file
# that is opened for writing outside the folder it was told to write to.
GUARD = """
import os, socket, sys
allowed = os.path.realpath(sys.argv.pop(1))

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise SystemExit(f"the network was asked for: {event} {arguments}")
    if event in ("os.mkdir", "os.rename", "os.remove"):
        written(arguments[0])
    if event == "open":
        path, mode, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and isinstance(path, str):
            written(path)

def written(path):
    path = os.path.realpath(os.fspath(path))
    caches = (os.environ["XDG_CACHE_HOME"], "/dev/", "/proc/")
    if not path.startswith((allowed, *caches)) and "__pycache__" not in path:
        raise SystemExit(f"written outside: {path}")

sys.addaudithook(watch)
"""


def run(program: str, folder: Path, *arguments: str) -> str:
    """Run a guarded program in ``folder``; return what it printed."""
    hidden = ("HF_HUB_OFFLINE", "DSPARKREF_PAIR", "PYTHONWARNINGS", "MPLBACKEND")
    kept = {name: x for name, x in os.environ.items() if name not in hidden}
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        kept.pop(name, None)  # torch leaves them in this process; they name a place
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)  # torch and tempfile look for a place to write, too
    places = {"XDG_CACHE_HOME": str(cache), "TMPDIR": str(cache)}
    # matplotlib makes a folder for its settings wherever it is used.
    places |= {"PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(cache)}
    found = subprocess.run(
        [sys.executable, "-c", GUARD + program, str(folder), *arguments],
        cwd=folder,
        env=kept | places,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stderr == "", found.stderr
    return found.stdout


COMMAND = "from dsparkref.cli import app\napp()"


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        (("evaluate", "--drafters", "markov", "--prompts", "1", "--max-new-tokens",
          "4", "--json", "n.json"), ["n.json"]),
        (("profile", "--repeats", "1", "--context", "4"), ["profile.json"]),
    ],
    ids=["evaluate", "profile"],
)  # fmt: skip
def test_a_command_opens_no_socket_and_writes_where_it_is_told(
    arguments, made, tmp_path
):
    assert run(COMMAND, tmp_path, *arguments)
    assert sorted({path.name for path in tmp_path.iterdir()} - {"cache"}) == made


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--rounds", "1", "--prompts", "1"),
        ("calibrate", "--prompts", "2", "--max-new-tokens", "8", "--save", "made"),
        ("train", "drafter", "--scale", "smoke", "--out", "made"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_longer_commands_do_too(arguments, tmp_path):
    assert run(COMMAND, tmp_path, *arguments)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("open('/x', 'w')", "written outside"),
        ("import os; os.mkdir('/x')", "written outside"),
        ("socket.create_connection(('127.0.0.1', 9))", "network was asked for"),
    ],
)
def test_the_guard_sees_what_it_should(program, words, tmp_path):
    with pytest.raises(AssertionError, match=words):
        run(program, tmp_path)


# --- the same tokens, whatever the machine is busy with ------------------------------

TOKENS = """
import torch
from dsparkref import autoregressive, generate, generate_batch, load_pair
pair = load_pair("tiny", head="rnn")
models = pair.target, pair.drafter
prompts = [pair.target.encode(x) for x in ("What is 12 + 30?", "I start yoga today.")]

def greedy(size=12):
    alone = [generate(*models, x, max_new_tokens=size).tokens for x in prompts]
    batch = generate_batch(*models, prompts, max_new_tokens=size)
    return alone, [reply.tokens for reply in batch]

def seeded():
    options = {"max_new_tokens": 12, "temperature": 1.0}
    batch = generate_batch(*models, prompts, generators=[1, 2], **options)
    return [
        generate(*models, prompts[1], generator=7, **options).tokens,
        autoregressive(pair.target, prompts[1], generator=7, **options).tokens,
        *(reply.tokens for reply in batch),
    ]

torch.set_num_threads(1)
first = greedy(), seeded()
assert seeded() == first[1], "another sample for the same seed"
torch.set_num_threads(2)
assert greedy() == first[0], "another greedy reply with two threads"
assert seeded() == seeded()
print(first)
"""


def test_the_same_tokens_with_one_thread_and_with_two(tmp_path):
    """Greedy ones whatever the threads; seeded ones on the same machine, each time.

    And in another process: nothing hangs on what ran before.
    """
    one, two = (run(TOKENS, tmp_path) for _ in range(2))
    assert one == two and one.count("[") > 6
