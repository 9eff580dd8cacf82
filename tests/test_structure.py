"""The rules about the project as a whole: who imports whom, what it needs and names."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dsparkref"

# Imports run one way: each part may import those to its left, and itself.
ORDER = ["shapes", "records", "verify", "draft", "decode", "checkpoints", "analysis"]
ORDER += ["train", "lab", "cli", "__main__"]


# -- who imports whom ------------------------------------------------------------


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(dotted: str) -> str:
    """Return the part of the package that holds a module: dsparkref.verify.x, verify.

    The package itself, whose ``__init__`` imports everything, is part "".
    """
    return dotted.partition(".")[2].partition(".")[0]


def dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(source: str, name: str, is_package: bool) -> Iterator[str]:
    """Yield the dotted name of each thing a module imports, at whatever depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - is_package
                parents = name.split(".")
                parents = parents[: len(parents) - up] if up else parents
                base = ".".join([*parents, base]).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def wrong_imports(source: str, name: str, is_package: bool = False) -> list[str]:
    """Return what a module of ours imports from the right of its own place."""
    place = ORDER.index(part_of(name))
    allowed = ORDER[: place + 1]
    ours = (
        dotted
        for dotted in imported_modules(source, name, is_package)
        if dotted.split(".")[0] == "dsparkref"
    )
    if place >= ORDER.index("lab"):
        # The last ones may also use the public names, as a user does.
        ours = (dotted for dotted in ours if part_of(dotted) in ORDER)
    return [dotted for dotted in ours if part_of(dotted) not in allowed]


@pytest.mark.parametrize(
    ("source", "name", "found"),
    [
        ("from dsparkref.records import Verdict", "dsparkref.verify.x", []),
        ("from .sampling import f", "dsparkref.verify.x", []),
        ("from ..records import Verdict", "dsparkref.verify.x", []),
        ("import torch, dsparkref.shapes", "dsparkref.records", []),
        ("import dsparkref.draft", "dsparkref.verify.x", ["dsparkref.draft"]),
        ("from ..draft import x", "dsparkref.verify.x", ["dsparkref.draft.x"]),
        ("from dsparkref import x", "dsparkref.verify.y", ["dsparkref.x"]),
        ("from dsparkref import generate", "dsparkref.cli", []),
        ("from dsparkref import cli", "dsparkref.lab.x", ["dsparkref.cli"]),
        ("from . import cli", "dsparkref.shapes", ["dsparkref.cli"]),
        ("def f():\n  import dsparkref.lab", "dsparkref.train", ["dsparkref.lab"]),
    ],
)
def test_wrong_imports_are_found(source: str, name: str, found: list[str]) -> None:
    assert wrong_imports(source, name, is_package=name == "dsparkref.train") == found


def test_every_part_has_a_place_in_the_order() -> None:
    parts = {part_of(dotted_name(path)) for path in modules()} - {""}
    assert parts
    assert parts <= set(ORDER)


@pytest.mark.parametrize("path", modules(), ids=dotted_name)
def test_imports_run_one_way(path: Path) -> None:
    name = dotted_name(path)
    if name == "dsparkref":
        return  # the public names: it may import from everywhere
    wrong = wrong_imports(path.read_text("utf-8"), name, path.stem == "__init__")
    assert not wrong, f"{name} imports from the right of its place: {wrong}"


def test_the_verifier_holds_no_neural_network() -> None:
    for path in [*PACKAGE.glob("verify/*.py"), *PACKAGE.glob("analysis/toy.py")]:
        name = dotted_name(path)
        imported = imported_modules(path.read_text("utf-8"), name, False)
        bad = [x for x in imported if x.startswith(("torch.nn.Module", "transformers"))]
        assert not bad, f"{name} imports {bad}"


# -- what it needs ---------------------------------------------------------------

IMPORT_WITHOUT_EXTRAS = """
import sys

HIDDEN = set(sys.argv[1].split(","))


class Hide:
    # A finder that finds what the other finds, less HIDDEN. (To raise instead of
    # returning None would break transformers, which asks "is there an accelerate?".)
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
try:
    import matplotlib
except ModuleNotFoundError:
    pass
else:
    sys.exit("matplotlib is not hidden")

import dsparkref
import dsparkref.cli

missing = [name for name in dsparkref.__all__ if name not in dir(dsparkref)]
sys.exit(f"dsparkref lacks {missing}" if missing else 0)
"""

EXTRAS = (
    "matplotlib,datasets,accelerate,sklearn,scipy,pandas,ipywidgets,jupyter,jupyterlab,"
    "jupyter_core,jupytext,IPython,ipykernel,nbclient,nbformat,nbval,pytest,_pytest,"
    "xdist,hypothesis,beartype,mypy,ruff,hatchling"
)


def test_the_core_alone_is_enough_to_import() -> None:
    run_python(["-c", IMPORT_WITHOUT_EXTRAS, EXTRAS], ROOT)


def test_the_core_alone_is_enough_to_profile(tmp_path: Path) -> None:
    """A machine with an accelerator and no network has the core packages only."""
    hidden, _, _ = IMPORT_WITHOUT_EXTRAS.partition("import dsparkref")
    program = hidden + "sys.argv[1:2] = []\nfrom dsparkref.cli import app\napp()\n"
    arguments = ["profile", "--random", "smoke", "--repeats", "1", "--out", "p.json"]
    found = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run_python(["-c", program, EXTRAS, *arguments], tmp_path, **found)
    assert (tmp_path / "p.json").is_file()


def run_python(arguments: list[str | Path], folder: Path, **environment: str) -> None:
    run = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def ranges_of_pyproject() -> dict[str, str]:
    """Return name -> range over the core and all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += [line for line in extra if not line.startswith("dsparkref[")]
    lines.append("python" + project["requires-python"])
    return dict(split_range(line) for line in lines)


def split_range(line: str) -> tuple[str, str]:
    name, limits = re.fullmatch(r"([A-Za-z0-9_-]+)(.*)", line).groups()
    return name, limits.replace(" ", "")


def test_conda_users_get_the_same_ranges() -> None:
    text = (ROOT / "environment.yml").read_text("utf-8")
    listed = re.search(r"^dependencies:\n(.*)", text, re.M | re.S).group(1)
    conda = dict(split_range(x) for x in re.findall(r"^  - (.+)$", listed, re.M))
    assert conda.pop("pip") == ""
    conda["torch"] = conda.pop("pytorch")  # their names on conda-forge
    conda["playwright"] = conda.pop("playwright-python")
    assert conda == ranges_of_pyproject()


def test_the_makefile_asks_for_a_torch_in_range() -> None:
    version = re.search(r"torch==(\d+)\.(\d+)", (ROOT / "Makefile").read_text("utf-8"))
    low, high = re.fullmatch(
        r">=2\.(\d+),<(\d+)", ranges_of_pyproject()["torch"]
    ).groups()
    major, minor = map(int, version.groups())
    assert 2 <= major < int(high) and (major > 2 or minor >= int(low))


@pytest.mark.slow
def test_a_built_wheel_carries_the_data(tmp_path: Path) -> None:
    # --no-build-isolation: hatchling is in [dev], so that nothing is fetched here.
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    run_python(["-m", "pip", *build, str(ROOT)], tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if "/data/" in name}
    data = (path.relative_to(ROOT).as_posix() for path in files_under_version_control())
    assert packed == {f"dsparkref/{name}" for name in data if name.startswith("data/")}

    site = tmp_path / "site"
    run_python(["-m", "pip", "install", "--no-deps", "-t", site, wheel], tmp_path)
    program = (
        "import sys, dsparkref\n"
        "assert dsparkref.__file__.startswith(sys.argv[1]), dsparkref.__file__\n"
        "dsparkref.load_pair('tiny')"
    )
    run_python(["-c", program, site], tmp_path, PYTHONPATH=str(site))


# -- shape checks: switched on in pyproject.toml, off by a fixture of conftest.py -----


def test_shape_checks_are_on() -> None:
    import dsparkref

    with pytest.raises(jaxtyping.TypeCheckError):
        dsparkref.survival("not a tensor")


def test_shape_checks_can_be_switched_off(no_shape_checks: None) -> None:
    import dsparkref

    with pytest.raises(TypeError, match="confidence must be a tensor") as caught:
        dsparkref.survival("not a tensor")
    assert not isinstance(caught.value, jaxtyping.TypeCheckError)


# -- what it names -----------------------------------------------------------------

# The one package index that may be named is PyTorch's, for its CPU build.
INDEX = "https://download.pytorch.org/whl/cpu"
# Every other host is a place that somebody reads, not one that a program fetches from.
HOSTS = {"download.pytorch.org", "arxiv.org", "github.com", "example.org"}
HOSTS |= {"localhost"}
HOST = re.compile(r"https?://([\w.-]+\w)")
INDEX_OPTION = re.compile(r"--(?:extra-)?index-url[ =]+([^\s`\"')]+)")
# A folder of somebody's own machine, as outputs of notebooks like to hold.
OWN_FOLDER = re.compile(r"(?<![\w.}/])/(?:root|home|Users|opt)/[\w.]+")


def forbidden_names(text: str) -> list[str]:
    found = [host for host in HOST.findall(text) if host not in HOSTS]
    found += OWN_FOLDER.findall(text)
    urls = [url for url in INDEX_OPTION.findall(text) if "//" in url]
    urls += re.findall(r"https?://download\.pytorch\.org\S*?(?=[\s`\"')]|$)", text)
    return found + [url for url in urls if url.rstrip("/.,") != INDEX]


def test_forbidden_names_are_found() -> None:
    # "~" stands for nothing: this file is searched, too.
    bad = [
        "https~://index.example.com/simple",
        "saved in /ho~me/ada/x",
        "/ro~ot/.cache",
    ]
    bad += ["pip install --index~-url https~://example.org/simple torch"]
    bad += ["pip install --extra-index~-url=https~://example.org/simple torch"]
    bad += ["from https~://download.pytorch.org/whl/cu126 it"]
    assert [text for text in bad if not forbidden_names(text.replace("~", ""))] == []
    fine = [f"pip install torch --extra-index-url {INDEX}", "/usr/bin/env", "a/opt/b"]
    fine += ["--extra-index-url $(TORCH_INDEX)", "https://arxiv.org/abs/1"]
    assert [text for text in fine if forbidden_names(text)] == []


def files_under_version_control() -> list[Path]:
    """Return them, and those that are about to be: new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True)
    if run.returncode:
        pytest.skip("not a git checkout")
    paths = (ROOT / os.fsdecode(name) for name in run.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def test_no_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    found = {}
    for path in files_under_version_control():
        try:
            names = forbidden_names(path.read_text("utf-8"))
        except UnicodeDecodeError:
            continue  # weights and pictures
        if names:
            found[str(path.relative_to(ROOT))] = names
    assert not found
