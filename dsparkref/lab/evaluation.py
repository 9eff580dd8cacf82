"""What ``python -m dsparkref evaluate`` does: load, measure, print, write."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dsparkref.analysis.evaluate import read_prompts
from dsparkref.analysis.report import Report, evaluation_report
from dsparkref.checkpoints import files
from dsparkref.checkpoints.io import load_drafter, load_target
from dsparkref.draft.spec import HEADS
from dsparkref.lab.tables import report_tables
from dsparkref.shapes import problem
from dsparkref.train.corpus import DOMAINS, answer_is_right, memory_positions


def run_evaluation(
    console: Console,
    *,
    target_source: str = "tiny",
    drafter_names: Sequence[str] | None = None,
    num_prompts: int = 100,
    temperature: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 128,
    json_file: Path | None = None,
) -> Report:
    """Evaluate a target with its drafters; None takes all that tiny has."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        expected, got = "an existing folder", json_file.parent
        raise problem("json", "lie in a folder", expected, got, "", FileNotFoundError)
    target = load_target(target_source)
    names = tiny_drafters() if drafter_names is None else drafter_names
    drafters = {name: load_drafter(_source(name), target) for name in names}
    folder = files.data_folder() / "eval"
    prompts = {
        domain: read_prompts(folder / f"{domain}.jsonl", target, num_prompts)
        for domain in DOMAINS
    }
    with console.status("") as status:  # silent where the output is no terminal
        report = evaluation_report(
            target,
            drafters,
            prompts,
            answer_is_right=answer_is_right,
            memory_positions=memory_positions,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            progress=status.update,
        )
    for table in report_tables(report):
        console.print(table)
    if json_file is not None:
        files.write_json(json_file, report)
        console.print(f"numbers: {json_file}", soft_wrap=True)
    return report


def tiny_drafters() -> list[str]:
    """Return the names of the tiny pair's drafters, short blocks first."""
    folder = files.data_folder() / "tiny" / "drafters"
    names = [path.name for path in folder.glob("[!.]*") if path.is_dir()]
    if not names:
        hint = "Make them with: python -m dsparkref train tiny"
        rule, expected = "be there", f"folders in {folder}"
        raise problem("drafters", rule, expected, "none", hint, FileNotFoundError)
    rank = {head: place for place, head in enumerate(HEADS)}

    def order(name: str) -> tuple[bool, int]:
        head, _, long_block = name.partition("-")
        return bool(long_block), rank.get(head, len(HEADS))

    return sorted(names, key=order)


def _source(name: str) -> str:
    """A bare name is one of tiny's drafters; anything with a slash, a folder or id."""
    name = name.strip()
    return name if "/" in name or Path(name).is_dir() else f"tiny/{name}"
