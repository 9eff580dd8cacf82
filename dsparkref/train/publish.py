"""The finished tiny pair to its place, each file with its hash."""

import hashlib
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from dsparkref.checkpoints.files import replaced_folder, write_text
from dsparkref.checkpoints.io import load_drafter, load_target
from dsparkref.shapes import problem
from dsparkref.train.corpus import DOMAINS, EVALUATION_SEED, evaluation_examples
from dsparkref.train.scales import DRAFTERS, SCALES

HEADING = "# data\n\nMade by `python -m dsparkref train tiny"
REPLACED = {
    "tiny": ("target", "drafters"),
    "eval": tuple(f"{domain}.jsonl" for domain in DOMAINS),
}


def check_publishable(data: Path) -> None:
    """Refuse a folder whose tiny/, eval/ or README.md hold what is not ours."""
    lost = [
        path.relative_to(data).as_posix()
        for name, known in REPLACED.items()
        for path in sorted((data / name).glob("*"))
        if path.name not in known
    ]
    readme = data / "README.md"
    if readme.is_file() and not readme.read_bytes().startswith(HEADING.encode()):
        lost.append(readme.name)
    if lost:
        rule, expected = "be free for the pair", "a new folder, or one made by it"
        got = f"{data} with {', '.join(lost[:3])}"
        raise problem("out", rule, expected, got, "That would be lost.")


def publish_tiny(work: Path, data: Path, *, scale: str, seed: int) -> None:
    """Write the finished pair, the evaluation prompts and their description."""
    check_publishable(data)
    load_drafter_of = partial(load_drafter, target=load_target(work / "target"))
    for name in DRAFTERS:  # nothing that does not load is published
        load_drafter_of(work / "drafters" / name)
    with replaced_folder(data / "tiny") as fresh:
        for path in sorted(_finished_files(work)):
            copy = fresh / path.relative_to(work)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    with replaced_folder(data / "eval") as fresh:
        for domain in DOMAINS:
            rows = evaluation_examples(domain, SCALES[scale].evaluation)
            lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows]
            (fresh / f"{domain}.jsonl").write_text("".join(lines), encoding="utf-8")
    write_text(data / "README.md", _description(data, scale, seed))


def _finished_files(work: Path) -> list[Path]:
    folders = [work / "target", *(work / "drafters" / name for name in DRAFTERS)]
    return [path for folder in folders for path in folder.iterdir() if path.is_file()]


def _description(data: Path, scale: str, seed: int) -> str:
    """Return ``data/README.md``: each file with how it was made and its hash."""
    lines = [
        f"{HEADING} --scale {scale} --seed {seed}`; seed {seed}, weights in bfloat16.",
        "",
        "| file | how made | bytes | sha256 (first 16) |",
        "| --- | --- | --- | --- |",
    ]
    for path in sorted(data.rglob("*.*")):
        if path.parent == data:  # this description itself
            continue
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        name = path.relative_to(data)
        made = next((how for part, how in HOW.items() if part in name.parts), "")
        lines.append(f"| `{name.as_posix()}` | {made} | {len(content)} | `{digest}` |")
    return "\n".join(lines) + "\n"


HOW = {
    "target": "`train target`",
    "drafters": "`train drafter`",
    "eval": f"`evaluation_examples`, seed {EVALUATION_SEED}",
    "figures": "`evaluate --figure`",
    "confidence.safetensors": "`calibrate --prompts 120 --replies 3 --records`, seed 0",
    "training_curves.json": "`train curves`, seeds 0, 1, 2",
    "measured": "`profile --rows 1,2,4,8,16,32,64`",
}
