"""The extras of the package that commands need."""

from __future__ import annotations

import sys

_EXTRA_OF_GROUP = {"image": "images", "cloud": "clouds", "array": "dask", "playground": "playground"}


def extra_of_command() -> str | None:
    """Return the extra of the command that this process runs, None if it is not known."""
    return _EXTRA_OF_GROUP.get(sys.argv[1]) if len(sys.argv) > 1 else None
