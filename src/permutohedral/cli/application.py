"""The `permutohedral` command: its groups of commands, in order.

Torch and everything that draws is imported by the command that needs it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from permutohedral.cli import backends, benchmark, clouds, figures, guided, pictures, playground, reproduce
from permutohedral.version import __version__

# as a reader of the help meets them: what one came for first, what explains it last
_ORDER = (
    *("filter", "denoise", "segment", "upsample", "solve", "colorize", "smooth-points", "segment-points"),
    *("train-points", "demo", "playground", "figure", "reproduce", "benchmark", "backends"),
)


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
    """Collect the options that stand before every command."""


application.command("filter")(pictures.filter_pictures)
application.command()(pictures.denoise)
application.command()(pictures.segment)
application.command()(guided.upsample)
application.command()(guided.solve)
application.command()(guided.colorize)
application.command("smooth-points")(clouds.smooth_points)
application.command("segment-points")(clouds.segment_points)
application.command("train-points")(clouds.train_points)
application.command()(pictures.demo)
application.command()(playground.playground)
figures.add_to(application)
reproduce.add_to(application)
application.command()(benchmark.benchmark)
application.command()(backends.backends)
