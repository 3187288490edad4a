"""The `permutohedral` command.

Torch and everything that draws is imported by the command that needs it.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from permutohedral import experiment_commands, figure_commands, filter_command
from permutohedral.errors import InputError, PermutohedralError
from permutohedral.version import __version__

# as a reader of the help meets them: what one came for first, what explains it last
_ORDER = ("filter", "denoise", "demo", "figure", "reproduce", "benchmark", "backends")


class _Ordered(TyperGroup):
    """Lists the commands in the order above, wherever they were added."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(
            super().list_commands(ctx), key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)
        )


_HELP = """Filters on the permutohedral lattice: edge-aware, learned, at any points.

Start with 'permutohedral demo'; every command explains itself with --help. Results go to stdout, progress and
errors to stderr, and where stdout is not a terminal only what was asked for is printed.

Exit codes: 0 done; 1 the request cannot be fulfilled, and a message says why; 2 the command line makes no sense;
130 interrupted with Ctrl-C.
"""

application = typer.Typer(
    cls=_Ordered,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXTRA_OF_MODULE = {
    **dict.fromkeys(("PIL", "skimage", "matplotlib", "safetensors"), "images"),
    **dict.fromkeys(("pytorch_lightning", "pooch", "yaml"), "experiments"),
    "rich": "cli",
}


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what a user can mend into one line on stderr and exit code 1."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _fail(f"this needs the module {error.name}: pip install 'permutohedral[{extra}]'")
    except PermutohedralError as error:
        # what is wrong with a file or an option needs no page to explain it
        _fail(error.message if type(error) is InputError else str(error))


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"permutohedral {__version__}")
        raise typer.Exit


Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@application.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Collect the options that stand before every command."""


@application.command()
def backends(as_json: Json = False) -> None:
    """Tell which backends run here, and why.

    Example: permutohedral backends --json
    """
    with _explained():
        report = _describe_backends()
        if as_json:
            typer.echo(json.dumps(report, indent=2))
            return
        threads = f"{report['threads']} thread{'s' * (report['threads'] != 1)}"
        typer.echo(f"permutohedral {report['version']}, torch {report['torch']}, {threads}")
        for device, choices in report["devices"].items():
            typer.echo(f"\n{device}")
            for choice in choices:
                verdict = "chosen" if choice["chosen"] else choice["reason"] or "runs here, not chosen"
                typer.echo(_hanging(f"  {choice['name']:<10} ", verdict))


def _hanging(start: str, text: str) -> str:
    """`text` beside `start`, wrapped on a terminal and in one line elsewhere."""
    if not sys.stdout.isatty():
        return start + text
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, initial_indent=start, subsequent_indent=" " * len(start))


def _describe_backends() -> dict[str, Any]:
    import torch

    from permutohedral.ops.dispatch import all_backends, choose_backend

    present = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    devices = {}
    for device in present:
        chosen = choose_backend(device).name
        devices[device] = [
            {"name": backend.name, "chosen": backend.name == chosen, "reason": backend.refusal(device)}
            for backend in all_backends()
        ]
    return {
        "version": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "devices": devices,
    }


@application.command()
def demo(
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the figure.")] = Path("out"),
    steps: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Training steps.")] = 150,
) -> None:
    """Filter a picture, train a filter, try every denoiser.

    Takes under a minute and downloads nothing: the pictures come with scikit-image.

    Example: permutohedral demo --output out
    """
    with _explained():
        from permutohedral.demo import run

        run(output, steps)


@application.command()
def benchmark(  # noqa: PLR0913 (one parameter for each option)
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Names of workloads with commas between them.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    threads: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Thread counts, such as 1,2.", show_default="1, all cores")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Rounds of repetitions.")] = 7,
    peers: Annotated[bool, typer.Option(help="Also run the other libraries that are installed.")] = True,
    tests: Annotated[bool, typer.Option("--tests", help="Run the operators' tests first.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with bsds500/test.", envvar="PERMUTOHEDRAL_DATA", show_envvar=True),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything here.")] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write one line for each figure here.")
    ] = None,
    chart: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Draw a chart here; may be repeated.")
    ] = None,
) -> None:
    """Time the operators beside their peers, with the error of each.

    An operator whose result disagrees with the reference is not timed, and the exit code is 1.

    Example: permutohedral benchmark --only W1,W2 --threads 1,2 --json benchmark.json --chart benchmark.svg
    """
    with _explained():
        from permutohedral.benchmarks import command, runner

        options = runner.Options(
            only=None if only is None else only.split(","),
            device=device,
            threads=command.parse_threads(threads),
            repeats=repeats,
            with_peers=peers,
            data=command.data_folder(data),
            tests=tests,
        )
        code = command.main(options, json_file, csv_file, chart or [])
    if code:
        raise typer.Exit(code)


for commands in (filter_command, figure_commands, experiment_commands):
    commands.register(application, _explained)
