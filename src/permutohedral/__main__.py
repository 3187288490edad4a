"""`permutohedral` and `python -m permutohedral`: start the command line, or say what it lacks."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        import typer  # noqa: F401  (only asked whether it is there)
    except ModuleNotFoundError:
        sys.exit("permutohedral: the command line needs an extra: pip install 'permutohedral[cli,images]'")
    from permutohedral.cli.application import application

    application(prog_name="permutohedral")


if __name__ == "__main__":
    main()
