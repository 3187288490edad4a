"""`permutohedral reproduce ...`: a command for each experiment of the registry, all with the same options."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from permutohedral.cli.shared import explained
from permutohedral.experiments.experiment import REGISTRY, Entry, with_seeds

if TYPE_CHECKING:
    from permutohedral.experiments.experiment import Experiment
    from permutohedral.experiments.result import Result
    from permutohedral.experiments.training import RunOptions

Rows = Annotated[
    list[str] | None,
    typer.Option("--row", metavar="NAME", help="Only this row; may be repeated. A wrong name tells the right ones."),
]
Configs = Annotated[
    list[Path] | None, typer.Option("--config", metavar="FILE", help="A row of your own, as YAML; may be repeated.")
]
Smoke = Annotated[bool, typer.Option("--smoke", help="The whole way on little data, under a minute.")]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, metavar="NUMBER", help="How often to train each row.", show_default="3 or 1, 1 with --smoke"),
]
Jobs = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="How many trainings run side by side.")]
ReportOnly = Annotated[bool, typer.Option("--report-only", help="Train nothing, report what the output folder holds.")]
Output = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for all results.", show_default="out/...")]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder of the datasets; without it they are downloaded.", envvar="PERMUTOHEDRAL_DATA"
    ),
]
Accelerator = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or gpu.")]
Devices = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="How many to train on.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep rows that are done, go on with the rest.")]


def add_to(application: typer.Typer) -> None:
    """Add `reproduce` with all experiments."""
    experiments = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for entry in REGISTRY:
        example = f"Example: permutohedral reproduce {entry.name} --smoke"
        help_text = f"{entry.summary}\n\n{entry.details}\n\n{example}"
        experiments.command(entry.name, help=help_text)(_make_command(entry))
    names = "|".join(entry.name for entry in REGISTRY)
    application.add_typer(
        experiments,
        name="reproduce",
        help="Train and evaluate the rows of an experiment, and report them beside the paper's.",
        short_help="Make the paper's tables anew, and ours beside them.",
        # so that the message about an unknown experiment names those that there are
        subcommand_metavar=f"{{{names}}} [OPTIONS]",
    )


def _make_command(entry: Entry) -> Callable[..., None]:
    """The function behind a command. Typer reads its signature, to which the flags of the experiment are added."""

    def reproduce(  # noqa: PLR0913 (one parameter for each option)
        row: Rows = None,
        config: Configs = None,
        smoke: Smoke = False,
        seeds: Seeds = None,
        jobs: Jobs = 1,
        report_only: ReportOnly = False,
        output: Output = None,
        data: Data = None,
        accelerator: Accelerator = "auto",
        devices: Devices = 1,
        resume: Resume = False,
        **flags: bool,
    ) -> None:
        with explained():
            from permutohedral.experiments.training import RunOptions

            folder = output_folder(output, entry.name, smoke)
            options = RunOptions(folder, data, accelerator, devices, resume, progress=sys.stderr.isatty())
            experiment = entry.load()
            if report_only:
                _report(experiment, experiment.read_results(folder), options)
                return
            configs = experiment.choose_rows(row or (), config or (), smoke)
            for flag in (flag for flag, wanted in flags.items() if wanted):
                configs = experiment.flags[flag](configs, options, tell)
            configs = with_seeds(configs, seeds or (1 if smoke else experiment.seeds))
            _reproduce(experiment, configs, options, jobs)

    signature = inspect.signature(reproduce, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "flags"]
    for flag, text in entry.flags.items():
        kind = Annotated[bool, typer.Option(f"--{flag.replace('_', '-')}", help=text)]
        parameters.append(inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind))
    reproduce.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    reproduce.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return reproduce


def _reproduce(experiment: Experiment[Any], configs: list[Any], options: RunOptions, jobs: int) -> None:
    from permutohedral.experiments.rows import run_rows

    order = list(dict.fromkeys(config.name for config in configs))
    known: list[Result] = []
    for result in run_rows(experiment, configs, options, tell, jobs):
        known = sorted([*known, result], key=lambda one: (order.index(one.name), one.seed))
        if experiment.report_on == "each row":
            # so an interrupted run leaves a report
            experiment.write_report(known, options, command_line())
    # only the first process of a training on several devices has results
    if known:
        whole = experiment.report_on == "folder"
        _report(experiment, experiment.read_results(options.output) if whole else known, options)


def _report(experiment: Experiment[Any], results: list[Result], options: RunOptions) -> None:
    paths = experiment.write_report(results, options, command_line())
    typer.echo(experiment.tables(results))
    typer.echo(f"wrote {', '.join(map(str, paths))}", err=True)


def output_folder(output: Path | None, experiment: str, smoke: bool) -> Path:
    """Where the results go if no folder is given.

    >>> output_folder(None, "mnist", smoke=True).as_posix()
    'out/mnist-smoke'
    """
    return output or Path("out") / (experiment + ("-smoke" if smoke else ""))


def tell(line: str) -> None:
    """Print a line about the progress on stderr, from the process that evaluates and writes."""
    from permutohedral.experiments.training import is_first_process

    if is_first_process():
        typer.echo(line, err=True)


def command_line() -> str:
    """The command that reproduces what is reported."""
    return shlex.join(["permutohedral", *(word for word in sys.argv[1:] if word not in ("--resume", "--report-only"))])
