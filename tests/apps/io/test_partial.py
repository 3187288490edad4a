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

from permutohedral.apps.io.partial import PartialStore
from permutohedral.errors import InputError

SETTINGS = {"sigma": 1.0}


def begin(target: Path) -> PartialStore:
    """Begin a store of one part, and write that."""
    store = PartialStore(target)
    assert store.begin(SETTINGS, resume=False) is None
    store.record(SETTINGS, [8])
    with store.writing((0,)):
        (store.folder / "data").write_text("new")
    return store


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("replaces", [False, True])
def test_interruption_while_finishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, replaces: bool, resume: bool
) -> None:
    """The store is complete, or can be resumed; if it is begun again, the previous one is back until it is replaced."""
    target = tmp_path / "out.zarr"
    if replaces:
        target.mkdir()
        (target / "data").write_text("old")
        with pytest.warns(UserWarning, match="exists, and is replaced"):
            store = begin(target)
    else:
        store = begin(target)
    calls = 0

    def interrupt(module: Any, name: str) -> None:
        real = getattr(module, name)

        def run(*arguments: object, **options: object) -> None:
            nonlocal calls
            calls += 1
            if calls == number:
                raise KeyboardInterrupt
            real(*arguments, **options)

        monkeypatch.setattr(module, name, run)

    interrupt(os, "replace")
    interrupt(shutil, "rmtree")
    with suppress(KeyboardInterrupt):
        store.finish()
    monkeypatch.undo()
    if store.folder.exists():
        if resume:
            assert store.begin(SETTINGS, resume=True) == [8]
            assert store.is_done((0,))
        else:
            with pytest.warns(UserWarning, match=r"left by an interrupted call, is deleted"):
                begin(target)
            assert not replaces or (target / "data").read_text() == "old"
        store.finish()
    else:
        with pytest.warns(UserWarning, match="is complete"):
            assert store.is_complete(lambda path: SETTINGS, SETTINGS)
    assert (target / "data").read_text() == "new"
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["out.zarr", "out.zarr/data"]


def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    """The previous store was being deleted; in containers, all processes have the same number."""
    target = tmp_path / "out.zarr"
    target.mkdir()
    with pytest.warns(UserWarning, match="exists, and is replaced"):
        store = begin(target)
    for left in (tmp_path / f"out.zarr.replaced.{os.getpid()}", store.folder / ".permutohedral" / "previous"):
        left.mkdir()
        (left / "data").write_text("old")
    store.finish()
    assert (target / "data").read_text() == "new"
    assert [path.name for path in target.iterdir()] == ["data"]


def test_starts_again_without_settings(tmp_path: Path) -> None:
    store = PartialStore(tmp_path / "out.zarr")
    store.begin(SETTINGS, resume=False)
    assert store.begin(SETTINGS, resume=True) is None


def test_rejects_a_lock_of_the_user(tmp_path: Path) -> None:
    notes = tmp_path / "out.zarr.lock"
    notes.write_text("notes")
    with pytest.raises(InputError, match=r"out.zarr.lock, which was not created by permutohedral"):
        PartialStore(tmp_path / "out.zarr").locked().__enter__()
    assert notes.read_text() == "notes"


@pytest.mark.process
def test_lock_excludes_others_but_not_after_a_kill(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.zarr"
    with PartialStore(target).locked():
        with pytest.raises(InputError, match="being written by another process"), PartialStore(target).locked():
            pass
        with PartialStore(tmp_path / "other.zarr").locked():
            pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    dies = "import os, sys; from pathlib import Path; from permutohedral.apps.io.partial import PartialStore\n"
    dies += "with PartialStore(Path(sys.argv[1])).locked(): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", dies, str(target)], check=False).returncode == -9
    assert target.with_name("out.zarr.lock").exists()
    with PartialStore(target).locked():
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
