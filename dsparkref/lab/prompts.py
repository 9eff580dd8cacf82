"""The evaluation prompts of ``data/eval``, read for a target."""

from collections.abc import Mapping, Sequence

from dsparkref.analysis.evaluate import EvalPrompt, read_prompts
from dsparkref.checkpoints import files
from dsparkref.decode.target import Target
from dsparkref.train.corpus import DOMAINS

ByDomain = Mapping[str, Sequence[EvalPrompt]]


def evaluation_prompts(
    target: Target, per_domain: int, domains: Sequence[str] = DOMAINS
) -> dict[str, list[EvalPrompt]]:
    """Return domain -> its first prompts, encoded, with what is known of them.

    Raises:
        FileNotFoundError, ValueError: as ``read_prompts``.
    """
    folder = files.data_folder() / "eval"
    return {
        domain: read_prompts(folder / f"{domain}.jsonl", target, per_domain)
        for domain in domains
    }


def in_turn(prompts: ByDomain) -> list[EvalPrompt]:
    """Return one of each domain, then the second of each, and so on."""
    return [example for turn in zip(*prompts.values(), strict=True) for example in turn]


def ids_of(prompts: ByDomain) -> list[list[int]]:
    """Return what the target reads of all prompts, domain after domain."""
    return [example.prompt for found in prompts.values() for example in found]
