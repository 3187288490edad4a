"""Results of the public functions, compared bit by bit with those of another version, on the CPU.

`python -m benchmarks bits BASE` runs the cases of `tests/public_cases.py`, with gradients, in a process for each tree,
and prints the results that differ, with their largest difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.trees import ROOT, Tree, build_core, find_tree, run_script
from permutohedral.errors import PermutohedralError


def difference(one: Tensor | None, other: Tensor | None) -> float | None:
    """Return None for equal bits, else the largest difference relative to the largest value; infinity for others.

    >>> difference(torch.tensor([2.0, torch.nan]), torch.tensor([2.0, torch.nan]))
    >>> difference(torch.tensor([2.0]), torch.tensor([1.0]))
    0.5
    """
    if one is None or other is None:
        return None if one is other else float("inf")
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if torch.equal(one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8)):
        return None
    return float((one.double() - other.double()).abs().max() / one.double().abs().max())


def _results(tree: Tree, only: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "results.pt")
        run_script(tree, build_core(tree.folder), Path(__file__).with_name("bits_worker.py"), str(path), only)
        found: dict[str, Any] = torch.load(path, weights_only=True)
    package = found.pop("package")
    if not Path(package).is_relative_to(tree.folder):
        raise PermutohedralError(f"imports permutohedral from {package}, not from {tree.folder}")
    return found


def main(arguments: list[str]) -> int:
    """Compare, and print the differences; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bits", description=__doc__)
    parser.add_argument("base", help="commit, or folder with the sources")
    parser.add_argument("--only", default="", help="part of the names of calls")
    given = parser.parse_args(arguments)
    try:
        base, here = _results(find_tree(given.base), given.only), _results(Tree(ROOT, "here"), given.only)
    except PermutohedralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    different = 0
    for name, results in here.items():
        if isinstance(results, str) or isinstance(base[name], str):
            if results != base[name]:
                different += 1
                print(f"{name}: {base[name] if isinstance(base[name], str) else 'a result'} became {results}")
            continue
        pairs = zip(base[name], results, strict=True)
        found = [each for each in (difference(*pair) for pair in pairs) if each is not None]
        if found:
            different += 1
            print(f"{name}: {len(found)} of {len(results)} tensors differ, by at most {max(found):.2g}")
    print(f"{len(here)} calls, {different} of them with other bits")
    return int(different > 0)
