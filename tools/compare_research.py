"""Compare two output folders of an experiment: `python tools/compare_research.py BASE NEW`.

Compares the metrics of each row, apart from times, and the weights to the bit. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def flatten(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries and lists with their paths, except times.

    >>> list(flatten({"psnr": [20.0], "median_seconds": 3.0}))
    [('/psnr/0', 20.0)]
    """
    if isinstance(content, (dict, list)):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            if not str(key).endswith("seconds"):
                yield from flatten(value, f"{path}/{key}")
    else:
        yield path, content


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the metrics of each row, and the bytes of each file of weights; names are without the seed 0."""
    found: dict[str, dict[str, Any]] = {}
    for path in folder.rglob("*"):
        name = path.name.replace("-0", "")
        if path.suffix == ".safetensors":
            found[name] = {"": path.read_bytes()}
        elif path.suffix == ".json":
            content = json.loads(path.read_text())
            if "metrics" in content:
                found[name] = dict(flatten(content["metrics"]))
    return found


def main(base: Path, new: Path) -> int:
    """Print each difference."""
    left, right = read(base), read(new)
    lines = [f"{name}: only in {base if name in left else new}" for name in sorted(left.keys() ^ right.keys())]
    for name in sorted(left.keys() & right.keys()):
        for path in left[name].keys() | right[name].keys():
            values = left[name].get(path), right[name].get(path)
            if values[0] != values[1]:
                lines.append(f"{name}{path}: " + ("bytes differ" if isinstance(values[0], bytes) else str(values)))
    print("\n".join([*lines, f"{len(left.keys() & right.keys())} files compared, {len(lines)} differences"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
