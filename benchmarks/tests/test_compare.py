"""Comparison of two versions: processes, turns, table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import compare, trees
from benchmarks.inputs import Inputs
from benchmarks.registry import Prepared, Workload
from permutohedral.errors import InputError

# `STEP` seconds of the package; two workloads that both have, and one of its own for each tree
_RUNNER = """
import time
from types import SimpleNamespace
import permutohedral

def wait(inputs, share=1.0):
    ours = SimpleNamespace(before=None, run=lambda number: time.sleep(share * permutohedral.STEP))
    return SimpleNamespace(ours=ours, per_second=1e3, num_inputs=1)

def fail(inputs):
    raise MemoryError(permutohedral.STEP)

WORKLOADS = [SimpleNamespace(name=name, prepare=prepare) for name, prepare in {workloads}]
"""


def _write_tree(folder: Path, step: float, workloads: str) -> trees.Tree:
    (folder / "src" / "permutohedral").mkdir(parents=True)
    (folder / "src" / "permutohedral" / "__init__.py").write_text(f"STEP = {step}")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "runner.py").write_text(_RUNNER.replace("{workloads}", workloads))
    (folder / "benchmarks" / "inputs.py").write_text("class Inputs:\n    def __init__(self, *given): pass")
    (folder / "benchmarks" / "peers.py").write_text("def set_threads(count): pass")
    return trees.Tree(folder, folder.name)


def _prepare(inputs: Inputs) -> Prepared:
    raise AssertionError("runs in other processes only")


def test_compares_the_packages_of_two_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RENAMED", {"same": "earlier"})
    base = _write_tree(tmp_path / "old", 0.004, '[("earlier", wait), ("gone", wait), ("broken", wait)]')
    here = _write_tree(tmp_path / "new", 0.016, '[("same", wait), ("new", wait), ("broken", fail)]')
    workloads = [Workload(name, "", "cpu", "", _prepare) for name in ("broken", "same", "new")]
    rows, names = compare.compare(base, here, workloads, compare.Options(threads=1, seconds=0.2))
    assert names == ["earlier", "gone", "broken"]
    broken, *both = rows
    assert broken.failures == {"here": "MemoryError: 0.016"}
    # the renamed workload, and the one that the base does not have, ran on the package of the base
    for row in both:
        assert row.ratio == pytest.approx(4, rel=0.5)
        assert len(row.samples["base"]["quiet"]) == len(row.samples["here"]["quiet"]) >= 4
        assert row.megabytes["here"] is not None
    text = compare.format_rows(rows, ["gone"], "old")
    assert text.index("same") < text.index("within 5 %")
    assert "failed (here): broken: MemoryError" in text
    assert "only in old: gone" in text


def test_changed_rows_come_first() -> None:
    def row(name: str, base: float, here: float) -> compare.Row:
        samples = {"base": {"quiet": [base] * 3, "busy": [2 * base]}, "here": {"quiet": [here] * 3, "busy": [3 * here]}}
        return compare.Row(name, "ms", samples)

    text = compare.format_rows([row("equal", 1, 1.04), row("faster", 1, 0.5), row("slower", 1, 2)], [], "old")
    lines = [line.split()[0] for line in text.splitlines()[1:5]]
    assert lines == ["slower", "faster", "within", "equal"]
    assert "above 2.5: slower, equal, faster" in text


def test_finds_commits_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a folder nor a commit"):
        trees.find_tree("no-such-commit")
    with pytest.raises(InputError, match="no src/permutohedral"):
        trees.find_tree(str(tmp_path))
    assert trees.find_tree(str(trees.ROOT)).folder == trees.ROOT


def test_does_not_measure_an_installed_package(tmp_path: Path) -> None:
    (tmp_path / "empty" / "src").mkdir(parents=True)
    workloads = _write_tree(tmp_path / "new", 0.0, "[]").folder
    with pytest.raises(trees.WorkerError, match="not from"):
        trees.Process(tmp_path / "empty", workloads, None, "cpu", 1, None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_busy_needs_two_cores(tmp_path: Path) -> None:
    tree = trees.Tree(tmp_path, "here")
    with pytest.raises(InputError, match="busy"):
        compare.compare(tree, tree, [], compare.Options(device="cuda", busy=True))
