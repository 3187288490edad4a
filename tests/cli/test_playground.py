"""`permutohedral playground` with what is no picture: told at once, before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from permutohedral.cli.application import application


@pytest.mark.parametrize(("name", "told"), [("none.jpg", "there is no file"), ("text.jpg", "no picture that can be")])
def test_what_is_no_picture_is_refused(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    result = CliRunner().invoke(application, ["playground", str(tmp_path / name)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr
    assert name in result.stderr
