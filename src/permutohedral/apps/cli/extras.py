"""The extra of the package that a command needs."""

from __future__ import annotations

import sys

_EXTRA_OF_GROUP = {"cloud": "clouds", "array": "dask", "playground": "playground"}


def extra_of_command() -> str:
    """Return the one extra that is enough for the command of this process."""
    return _EXTRA_OF_GROUP.get(sys.argv[1] if len(sys.argv) > 1 else "", "images")
