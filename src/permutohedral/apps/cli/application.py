"""The `permutohedral` command. Each command imports torch and other heavy libraries when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from permutohedral.apps.cli import arrays, clouds, images, maps
from permutohedral.apps.cli.shared import Json, handle_errors
from permutohedral.version import __version__

_HELP = """Filters on the permutohedral lattice, for images, arrays and point clouds.

Start with 'permutohedral demo'; every command has --help. Results go to stdout, progress and errors to stderr. If
stdout is not a terminal, only requested output is printed.

Exit codes: 0 done; 1 failed, with the reason on stderr; 2 usage error; 130 interrupted with Ctrl-C; 143
terminated.
"""


class _Application(TyperGroup):
    """All commands; a command that is typed without its group raises an error that names the groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reject empty arguments, such as unset variables of a shell, which would name the current folder."""
        if any(argument == "" or (argument.startswith("--") and argument.endswith("=")) for argument in args):
            ctx.fail("An argument is empty. Is a variable of your shell unset?")
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that `args` begin with."""
        groups = [name for name, group in self.commands.items() if args[0] in getattr(group, "commands", ())]
        if groups and not ctx.resilient_parsing:
            names = " or ".join(f"'{name} {args[0]}'" for name in groups)
            ctx.fail(f"No such command {args[0]!r}. Did you mean {names}?")
        return super().resolve_command(ctx, args)


application = typer.Typer(
    cls=_Application,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"permutohedral {__version__}")
        raise typer.Exit


@application.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Declare the options before a command."""


def demo(
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Write the figure into this folder.")] = Path("out"),
    steps: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Set the number of training steps.")] = 150,
) -> None:
    """Filter a photo, train a filter, denoise.

    Takes less than a minute. The photos come with scikit-image. Needs the extra images.

    Example: permutohedral demo --output out
    """
    with handle_errors():
        from permutohedral.apps.cli.demo import run

        run(output, steps)


def playground(
    photo: Annotated[
        Path | None,
        typer.Argument(metavar="[PHOTO]", help="Photo to begin with.", show_default="one of scikit-image"),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen on this address; the default serves this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="NUMBER", help="Listen on this port; 0 chooses a free one.")
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Try filters on a page with sliders, in the browser.

    Filter, denoise, segment and upsample a photo. The page shows the Python code and the command that do the same, and
    loads nothing from the network. Its address, with an access token, is printed; Ctrl-C stops it. Needs the extra
    playground.

    Example: permutohedral playground photo.jpg
    """
    with handle_errors():
        from permutohedral.apps.playground.server import serve

        serve(photo, host, port, browser, typer.echo)


def backends(as_json: Json = False) -> None:
    """List the backends that run here, with reasons.

    Needs the extra cli.

    Example: permutohedral backends --json
    """
    with handle_errors():
        report = _describe_backends()
        if as_json:
            typer.echo(json.dumps(report, indent=2))
            return
        threads = f"{report['threads']} thread{'s' * (report['threads'] != 1)}"
        typer.echo(f"permutohedral {report['version']}, torch {report['torch']}, {threads}")
        for device, choices in report["devices"].items():
            typer.echo(f"\n{device}")
            for choice in choices:
                verdict = choice["reason"] or "chosen"
                typer.echo(f"  {choice['name']:<10} {verdict}")


def _describe_backends() -> dict[str, Any]:
    import torch

    import permutohedral as ph

    devices = {}
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        report = ph.backends.explain(torch.empty(0, device=device))
        others = [{"name": name, "chosen": False, "reason": reason} for name, reason in report.others.items()]
        devices[device] = [{"name": report.name, "chosen": True, "reason": None}, *others]
    return {
        "version": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "devices": devices,
    }


application.add_typer(images.image, name="image", help="Filter, denoise, segment and color images.")
application.add_typer(maps.map_, name="map", help="Upsample, solve and fill maps along the edges of photos.")
application.add_typer(clouds.cloud, name="cloud", help="Smooth and segment point clouds.")
application.add_typer(arrays.array, name="array", help="Filter arrays of any size.")
application.command()(playground)
application.command()(demo)
application.command()(backends)
