"""The command `playground`: photos that cannot be read, its browser, large requests, and its files at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from permutohedral.apps.cli.application import application

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
def test_browser_gets_the_token_by_a_private_file(tmp_path: Path) -> None:
    """All users of a machine see the arguments of its processes."""
    (tmp_path / "browser").write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/arguments\n'
    )
    (tmp_path / "browser").chmod(0o755)
    (tmp_path / "files").mkdir()
    server = subprocess.Popen(
        [sys.executable, "-m", "permutohedral", "playground"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "files"), "BROWSER": f"{tmp_path}/browser %s"},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        deadline = time.monotonic() + 60
        while not (tmp_path / "arguments").exists():
            assert time.monotonic() < deadline, "no browser was started"
            time.sleep(0.05)
        opened = (tmp_path / "arguments").read_text().strip()
        assert opened.startswith("file://")
        page = Path(urlsplit(opened).path)
        assert address in page.read_text()
        assert page.parent.stat().st_mode & 0o077 == 0
        # the page limits uploads, and so does the server
        upload = urllib.request.Request(address, b"", {"content-length": str(129 << 20)}, method="POST")
        with pytest.raises(urllib.error.HTTPError, match="413"):
            urllib.request.urlopen(upload, timeout=30)
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    finally:
        server.kill()
    assert list((tmp_path / "files").iterdir()) == []


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
