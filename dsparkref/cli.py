"""The command line: ``python -m dsparkref COMMAND``.

Bad input ends with one line, ``error: ...``, that names the option, and exit code 2,
as an unknown option does. A fault of our own keeps its traceback.
"""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from dsparkref.shapes import problem

# Sub-apps that are imported when they are asked for: their packages are large.
LAZY = {"train": "dsparkref.train.commands"}


class Commands(TyperGroup):
    """A command group with lazy sub-apps and one-line errors."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, the lazy ones last."""
        return [*super().list_commands(ctx), *LAZY]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, importing its module if it is a lazy one."""
        if cmd_name not in LAZY:
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(importlib.import_module(LAZY[cmd_name]).app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command; turn an error about the input into one line."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # such as `| head`: not worth a word
            raise
        except (ValueError, TypeError, OSError) as error:
            if not is_about_input(error):
                raise
            options = option_names(self.get_command(ctx, ctx.invoked_subcommand))
            message = with_options(" ".join(str(error).split()), options)
            typer.echo(f"error: {message}", err=True)
            raise typer.Exit(2) from None


def is_about_input(error: Exception) -> bool:
    """Whether an error speaks in our voice, or comes from the file system.

    >>> is_about_input(ValueError("top_k must be at least 1: expected 1, got 0."))
    True
    >>> is_about_input(TypeError("unsupported operand type(s)"))
    False
    """
    message = str(error)
    ours = " must " in message and ": expected " in message
    return ours or isinstance(error, OSError)


def option_names(command: Any) -> dict[str, str]:
    """Return what the user types for each of a command's parameters, by its name."""
    found = {}
    for part in [command, *getattr(command, "commands", {}).values()]:
        for parameter in part.params:
            typed = parameter.opts[0]
            if parameter.param_type_name == "argument":
                typed = typed.upper()
            found[parameter.name] = found[typed.lstrip("-").replace("-", "_")] = typed
    return found


def with_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message with what the user typed in place of our name for it.

    >>> options = {"top_k": "--top-k", "pair": "--pair"}
    >>> with_options("top_k must be at least 1: expected 1, got 0.", options)
    '--top-k must be at least 1: expected 1, got 0.'
    >>> with_options("pair's target must exist: expected a folder, got 'x'.", options)
    "--pair's target must exist: expected a folder, got 'x'."
    """
    return re.sub(
        r"^\w+(?=('s \w+)? must )", lambda name: options.get(name[0], name[0]), message
    )


app = typer.Typer(
    cls=Commands,
    help="Block-parallel speculative decoding, to read and to run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Of the sampling.")]
Head = Annotated[
    str | None, typer.Option(help=r"Which drafter of tiny or qwen3-4b. \[markov]")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The figure.")] = Path("suffix_decay.png"),
    rounds: Annotated[int, typer.Option(min=1, help="Of measuring speed.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, help="Per domain and round.")] = 3,
    temperature: Temperature = 1.0,
    seed: Seed = 0,
) -> None:
    """Decode math, code and chat with every drafter of the tiny pair."""
    from dsparkref.lab.demo import run_demo

    run_demo(
        Console(highlight=False),
        out=out,
        rounds=rounds,
        prompts_per_domain=prompts,
        temperature=temperature,
        seed=seed,
    )


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="One user message.")],
    pair: Annotated[
        str | None,
        typer.Option(help="tiny, qwen3-4b or TARGET,DRAFTER. [DSPARKREF_PAIR or tiny]"),
    ] = None,
    head: Head = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Most tokens of the reply.")
    ] = 128,
    temperature: Temperature = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep this mass.")] = None,
    seed: Seed = 0,
    cycles: Annotated[bool, typer.Option("--cycles", help="Show each cycle.")] = False,
) -> None:
    """Answer one prompt speculatively."""
    from dsparkref import generate as decode
    from dsparkref.lab.options import check_sampling
    from dsparkref.lab.sources import open_pair
    from dsparkref.lab.terminal import show_cycles

    check_sampling(temperature, seed, top_k, top_p)
    console = Console(highlight=False)
    loaded = open_pair(pair, head)
    target = loaded.target
    reply = decode(
        target,
        loaded.drafter,
        target.encode(prompt),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        generator=seed,
    )
    if cycles:
        show_cycles(console, target, reply.cycles)
    console.print(target.decode(reply.tokens), markup=False)
    length = reply.accepted_length
    shown = "no cycle" if length is None else f"{length:.2f} tokens per cycle"
    said = f"{len(reply.tokens)} tokens, {shown}, {reply.finish_reason}"
    typer.echo(f"[{said}; drafter: {loaded.drafter.head_type}]", err=True)


@app.command()
def evaluate(
    target: Annotated[str, typer.Option(help="tiny, a folder or a Hub id.")] = "tiny",
    drafters: Annotated[
        str | None,
        typer.Option(help=r"Names such as markov,rnn-k15, or folders. \[all of tiny]"),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Per domain. [100; 8 to time or check]")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. [1]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling. [0]")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Per prompt.")] = 128,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all numbers here.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the suffix decay of K = 7 here.")
    ] = None,
    speed: Annotated[
        bool,
        typer.Option("--speed", help="Time everything instead, greedily, in rounds."),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Of --speed.")] = 5,
    lossless: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Check instead that this pair (tiny, qwen3-4b or TARGET,DRAFTER), or "
            "this drafter of --target, changes nothing: pass, tie, fail or "
            "inconclusive. Exit code 0 for pass and tie.",
        ),
    ] = None,
) -> None:
    """Measure the target, and every drafter by real decoding."""
    given = {"temperature": temperature, "seed": seed}
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 0}
    sampling |= {name: value for name, value in given.items() if value is not None}
    if lossless is not None:
        if drafters is not None or speed or figure:
            got = "--drafters, --speed or --figure beside it"
            raise problem("lossless", "stand alone", "one source", got)
        from dsparkref.lab.lossless import run_lossless

        found = run_lossless(
            Console(highlight=False),
            lossless,
            target_source=target,
            prompts_per_domain=prompts or 8,
            max_new_tokens=max_new_tokens,
            **sampling,
            json_file=json_file,
        )
        raise typer.Exit(0 if found.answer in ("pass", "tie") else 1)
    names = None if drafters is None else drafters.split(",")
    if speed:
        for name, value in {"figure": figure, **given}.items():
            if value is not None:
                rule = "be left out with --speed"
                raise problem(name, rule, "none: it times greedy decoding", value)
        from dsparkref.lab.speed import run_speed

        run_speed(
            Console(highlight=False),
            target_source=target,
            drafter_names=names,
            prompts_per_domain=prompts or 8,
            rounds=rounds,
            max_new_tokens=max_new_tokens,
            json_file=json_file,
        )
        return
    from dsparkref.lab.evaluation import run_evaluation

    run_evaluation(
        Console(highlight=False),
        target_source=target,
        drafter_names=names,
        num_prompts=prompts or 100,
        **sampling,
        max_new_tokens=max_new_tokens,
        json_file=json_file,
        figure_file=figure,
    )


@app.command()
def calibrate(
    pair: Annotated[
        str | None,
        typer.Option(help="tiny, qwen3-4b or TARGET,DRAFTER. [DSPARKREF_PAIR or tiny]"),
    ] = None,
    head: Head = None,
    prompts: Annotated[int, typer.Option(min=2, help="Per domain.")] = 100,
    replies: Annotated[int, typer.Option(min=1, help="Recorded per prompt.")] = 1,
    thresholds: Annotated[
        str, typer.Option(help="Of the sweep, comma between them; '' for none.")
    ] = "0,0.2,0.4,0.6,0.8,0.9,0.95",
    on: Annotated[
        str, typer.Option(help="conditional or survival: what is held against them.")
    ] = "conditional",
    bins: Annotated[int, typer.Option(min=1, help="Of ECE, equal width.")] = 20,
    temperature: Temperature = 1.0,
    seed: Seed = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Per prompt.")] = 128,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the drafter with its temperatures to this folder."),
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Write the recorded cycles to this file.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all numbers here.")
    ] = None,
) -> None:
    """Calibrate a drafter's confidence, and sweep thresholds over it."""
    from dsparkref.lab.calibration import run_calibration

    run_calibration(
        Console(highlight=False),
        pair=pair,
        head=head,
        num_prompts=prompts,
        replies=replies,
        thresholds=[part for part in thresholds.split(",") if part.strip()],
        on=on,
        bins=bins,
        temperature=temperature,
        seed=seed,
        max_new_tokens=max_new_tokens,
        save_folder=save,
        records_file=records,
        json_file=json_file,
    )


@app.command()
def profile(
    out: Annotated[
        Path | None,
        typer.Option(
            help=r"The table. \[profile.json; --random: data/measured/DEVICE.json]"
        ),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(help="tiny, qwen3-4b or TARGET,DRAFTER. [DSPARKREF_PAIR or tiny]"),
    ] = None,
    random: Annotated[
        str | None,
        typer.Option(help="Random weights of a known size: qwen3-4b or smoke."),
    ] = None,
    head: Head = None,
    rows: Annotated[
        str | None,
        typer.Option(help="Requests, comma between them. [1; --random: up to 128]"),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens per row, anchor included. [1 to K + 1]")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens before the step. [64; --random: 512]"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes.")] = 9,
) -> None:
    """Measure T_draft, T_verify and SPS(B) of a pair on this machine."""
    from dsparkref.lab.profiling import run_profile, run_random_profile

    options: dict[str, Any] = {"out": out, "rows": rows, "tokens": tokens}
    options |= {"context": context, "repeats": repeats}
    console = Console(highlight=False)
    if random is None:
        run_profile(console, pair=pair, head=head, **options)
    elif pair is None:
        run_random_profile(console, random, head=head or "markov", **options)
    else:
        expected, got = "one of --pair and --random", "both"
        raise problem("profile", "be told one pair", expected, got)


@app.command()
def serve_sim(
    clock: Annotated[
        str, typer.Option(help="replay: by a table; real: this machine.")
    ] = "replay",
    table: Annotated[
        str,
        typer.Option(help="Of data/measured, a .json, or made up: staircase, roofline"),
    ] = "cpu-x86_64",
    pair: Annotated[
        str | None,
        typer.Option(help="tiny, qwen3-4b or TARGET,DRAFTER. [DSPARKREF_PAIR or tiny]"),
    ] = None,
    head: Head = None,
    rate: Annotated[
        float, typer.Option(help="Arrivals per second; inf: all at once.")
    ] = float("inf"),
    concurrency: Annotated[
        str, typer.Option(help="Requests served at once, comma between them.")
    ] = "1,2,4,8,16,32,64",
    fixed: Annotated[
        str | None,
        typer.Option(help=r"Fixed lengths. \[replay: 1 to K; real: K // 2 and K]"),
    ] = None,
    threshold: Annotated[float, typer.Option(help="On the survival.")] = 0.5,
    padded: Annotated[
        bool, typer.Option("--padded", help="Replay an engine that pads its rows.")
    ] = False,
    prompts: Annotated[int, typer.Option(min=1, help="Per domain.")] = 30,
    requests: Annotated[
        int | None, typer.Option(min=1, help="In all. [12 a place, 36 or more]")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of each reply.")] = 64,
    temperature: Temperature = 1.0,
    seed: Seed = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Draw throughput and budget here.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all numbers here.")
    ] = None,
) -> None:
    """Serve many requests under a load, with every policy."""
    from dsparkref.lab.profiling import numbers_of
    from dsparkref.lab.serving import Load, run_serve_sim

    run_serve_sim(
        Console(highlight=False),
        Load(rate, prompts, requests, max_new_tokens, temperature, seed),
        clock=clock,
        table=table,
        pair=pair,
        head=head,
        concurrency=numbers_of("concurrency", concurrency),
        fixed=None if fixed is None else numbers_of("fixed", fixed),
        threshold=threshold,
        padded=padded,
        figure_file=figure,
        json_file=json_file,
    )


@app.command()
def inspect(
    source: Annotated[
        list[str],
        typer.Argument(
            help="A folder, a Hub id or one of tiny's (rnn, rnn-k15); two: side by "
            "side. tiny and qwen3-4b say which they have."
        ),
    ],
    layout: Annotated[
        str | None,
        typer.Option(
            help="Where the checkpoint leaves it open: dsparkref, deepspec, z-lab, "
            "domino, specforge, modelopt or speculators."
        ),
    ] = None,
) -> None:
    """Say what is in a drafter's checkpoint, from its config and headers alone."""
    from dsparkref.lab.inspection import run_inspect

    if len(source) > 2:
        got = f"{len(source)} sources"
        raise problem("sources", "fit side by side", "one or two", got)
    run_inspect(Console(highlight=False), source, layout=layout)
