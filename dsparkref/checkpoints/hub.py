"""The Hugging Face Hub: configs, tokenizers and safetensors; no code, no pickles."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsparkref.shapes import problem

PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.jinja"]


def download(repo_id: str, name: str = "source") -> Path:
    """Return a repository's local copy; what is fetched is announced before it is."""
    from huggingface_hub import snapshot_download

    with hub_errors(repo_id, name):
        held = held_copy(repo_id)
        if held is not None:
            return held
        plan = snapshot_download(repo_id, allow_patterns=PATTERNS, dry_run=True)
        missing = [file for file in plan if file.will_download]
        size = sum(file.file_size or 0 for file in missing) / 1e9
        print(
            f"{repo_id}: downloading {len(missing)} files, {size:.2f} GB",
            file=sys.stderr,
        )
        return Path(snapshot_download(repo_id, allow_patterns=PATTERNS))


def held_copy(repo_id: str) -> Path | None:
    """Return a repository's copy on this machine if it is whole; asks no network."""
    from huggingface_hub import snapshot_download

    try:
        held = Path(
            snapshot_download(repo_id, allow_patterns=PATTERNS, local_files_only=True)
        )
    except (OSError, ValueError):  # nothing of it is here
        return None
    return held if _is_whole(held) else None


def _is_whole(folder: Path) -> bool:
    """Whether a local copy has its config and all the weights that it lists."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return all((folder / name).is_file() for name in set(listed))


@contextmanager
def hub_errors(repo_id: str, name: str = "source") -> Iterator[None]:
    """Say in one line what could not be fetched, by its ``name``, and why."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:  # the hub's are OSErrors
        expected = "a folder, or a repository on the Hugging Face Hub"
        hint = f"The download failed: {(str(error) or repr(error)).splitlines()[0]}"
        rule = "be found"
        raise problem(name, rule, expected, repr(repo_id), hint, OSError) from error
