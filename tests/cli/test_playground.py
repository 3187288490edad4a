"""The command `playground` checks its photo before it serves a page."""

from __future__ import annotations

from typer.testing import CliRunner

from permutohedral.cli.application import application


def test_rejects_missing_photos() -> None:
    result = CliRunner().invoke(application, ["playground", "none.jpg"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'none.jpg' does not exist" in result.stderr
