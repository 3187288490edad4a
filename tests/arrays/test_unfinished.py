"""Stores that are being written: whatever interrupts it, what was done is not lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from permutohedral.arrays.unfinished import Unfinished
from permutohedral.errors import InputError

SETTINGS = {"sigma": 1.0}


def begin(target: Path) -> Unfinished:
    """A store of one tile, which is written."""
    begun = Unfinished(target)
    assert begun.begin(SETTINGS, resume=False) is None
    begun.note(SETTINGS, [8])
    with begun.writing((0,)):
        (begun.folder / "data").write_text("new")
    return begun


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("replaces", [False, True])
def test_an_interruption_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, replaces: bool
) -> None:
    """The store is whole, or can be taken up."""
    target = tmp_path / "out.zarr"
    if replaces:
        target.mkdir()
        (target / "data").write_text("old")
    begun, calls = begin(target), 0

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
        begun.finish()
    monkeypatch.undo()
    if begun.folder.exists():
        assert begun.begin(SETTINGS, resume=True) == [8]
        assert begun.is_done((0,))
        begun.finish()
    assert (target / "data").read_text() == "new"
    assert not begun.folder.exists()


def test_settings_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Unfinished(tmp_path / "out.zarr")
    begun.begin(SETTINGS, resume=False)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begun.note(SETTINGS, [8])
    monkeypatch.undo()
    # nothing to take up: it begins anew
    assert begun.begin(SETTINGS, resume=True) is None


def test_two_commands_with_one_target(tmp_path: Path) -> None:
    """The second is refused while the first runs; one that was killed is in nobody's way."""
    target = tmp_path / "new" / "out.zarr"
    with Unfinished(target).claimed():
        with pytest.raises(InputError, match="another command is writing"), Unfinished(target).claimed():
            pass
        with Unfinished(tmp_path / "other.zarr").claimed():
            pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    dies = "import os, sys; from pathlib import Path; from permutohedral.arrays.unfinished import Unfinished\n"
    dies += "with Unfinished(Path(sys.argv[1])).claimed(): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", dies, str(target)], check=False).returncode == -9
    assert target.with_name("out.zarr.lock").exists()
    with Unfinished(target).claimed():
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
