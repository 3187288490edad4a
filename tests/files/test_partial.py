"""Outputs under construction: interruptions lose no finished parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from permutohedral.errors import InputError
from permutohedral.files.partial import PartialStore

SETTINGS = {"sigma": 1.0}


def begin(target: Path) -> PartialStore:
    """Begin a store of one part, and write that."""
    store = PartialStore(target)
    assert store.begin(SETTINGS, resume=False) is None
    store.record(SETTINGS, [8])
    with store.writing((0,)):
        (store.folder / "data").write_text("new")
    return store


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("replaces", [False, True])
def test_interruption_while_finishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, replaces: bool
) -> None:
    """The store is complete, or can be resumed."""
    target = tmp_path / "out.zarr"
    if replaces:
        target.mkdir()
        (target / "data").write_text("old")
    store, calls = begin(target), 0

    def interrupt(module: Any, name: str) -> None:
        real = getattr(module, name)

        def run(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls == number:
                raise KeyboardInterrupt
            real(*arguments)

        monkeypatch.setattr(module, name, run)

    interrupt(os, "rename")
    interrupt(shutil, "rmtree")
    with suppress(KeyboardInterrupt):
        store.finish()
    monkeypatch.undo()
    if store.folder.exists():
        assert store.begin(SETTINGS, resume=True) == [8]
        assert store.is_done((0,))
        store.finish()
    assert (target / "data").read_text() == "new"
    assert not store.folder.exists()


def test_starts_again_without_settings(tmp_path: Path) -> None:
    store = PartialStore(tmp_path / "out.zarr")
    store.begin(SETTINGS, resume=False)
    assert store.begin(SETTINGS, resume=True) is None


@pytest.mark.process
def test_lock_excludes_others_but_not_after_a_kill(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.zarr"
    with PartialStore(target).locked():
        with pytest.raises(InputError, match="being written by another process"), PartialStore(target).locked():
            pass
        with PartialStore(tmp_path / "other.zarr").locked():
            pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    dies = "import os, sys; from pathlib import Path; from permutohedral.files.partial import PartialStore\n"
    dies += "with PartialStore(Path(sys.argv[1])).locked(): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", dies, str(target)], check=False).returncode == -9
    assert target.with_name("out.zarr.lock").exists()
    with PartialStore(target).locked():
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
