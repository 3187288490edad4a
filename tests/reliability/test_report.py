"""The pages show what is in results/reliability."""

from __future__ import annotations

from pathlib import Path

import pytest
from reliability.report import pages


@pytest.mark.parametrize("name", ["reliability.md", "scaling.md", "determinism.md"])
def test_pages_show_the_measured_figures(name: str) -> None:
    [(path, content)] = [(path, content) for path, content in pages().items() if path.name == name]
    assert Path(path).read_text() == content
