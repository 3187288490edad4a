"""`permutohedral reproduce ...`: a command for each experiment, each in its own file with its own options."""

from __future__ import annotations

import typer

from permutohedral.reproduce_commands import denoising, invariance, mnist, mri, points
from permutohedral.reproduce_commands.options import Explained

# in the order of the help
_EXPERIMENTS = (denoising, mnist, invariance, mri, points)


def register(application: typer.Typer, explained: Explained) -> None:
    """Add `reproduce` with all experiments; `explained` turns errors into messages."""
    experiments = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for module in _EXPERIMENTS:
        module.register(experiments, explained)
    names = "|".join(command.name or "" for command in experiments.registered_commands)
    application.add_typer(
        experiments,
        name="reproduce",
        help="Train and evaluate the rows of an experiment, and report them beside the paper's.",
        short_help="Make the paper's tables anew, and ours beside them.",
        # so that the message about an unknown experiment names those that there are
        subcommand_metavar=f"{{{names}}} [OPTIONS]",
    )
