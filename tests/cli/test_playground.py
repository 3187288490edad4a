"""The command `playground` checks its photo before it serves a page, and deletes its files at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from permutohedral.cli.application import application

pytest.importorskip("nicegui", reason="NiceGUI is not installed")


@pytest.mark.parametrize(("name", "reason"), [("none.jpg", "No such file"), ("bad.jpg", "is not an image")])
def test_rejects_photos_that_cannot_be_read(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jpg").write_text("no image")
    result = CliRunner().invoke(application, ["playground", "--no-browser", name])
    assert (result.exit_code, result.stdout) == (1, "")
    assert name in result.stderr
    assert reason in result.stderr


@pytest.mark.process
def test_sigterm_deletes_files(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "permutohedral", "playground", "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        with urllib.request.urlopen(server.stdout.readline().strip()) as response:
            assert response.status == 200
        assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["permutohedral"]
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
    finally:
        server.kill()
    assert (server.returncode, errors) == (128 + signal.SIGTERM, "")
    assert list(tmp_path.iterdir()) == []
