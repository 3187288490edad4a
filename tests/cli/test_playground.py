"""The command `playground` checks its photo before it serves a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from permutohedral.cli.application import application


@pytest.mark.parametrize(
    ("name", "message"), [("none.jpg", "there is no file"), ("text.jpg", "not an image that can be")]
)
def test_rejects_files_that_are_not_images(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("text")
    result = CliRunner().invoke(application, ["playground", str(tmp_path / name)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert name in result.stderr
