"""Times are judged by the lattice of the other installation, which answers one picture after another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accuracy_pictures import Earlier, missed, summarize

from permutohedral.reporting.provenance import find_commit


def found(auto: float, before: float | None, opencv: float | None) -> dict[str, Any]:
    """One picture, whose lattice takes 10 ms today."""
    quality = {"error": 0.001, "worst": 0.01}
    times = {"before": before, "opencv": opencv, "opencv_narrow": None}
    lattice = {**quality, "milliseconds": 10.0}
    return {"explained": "grid: why", "auto": {**quality, "milliseconds": auto}, "separable": lattice, **times}


@pytest.mark.parametrize(
    ("auto", "before", "opencv", "misses", "misses_now"),
    [
        (16.0, 15.0, None, "", "time"),
        (21.0, 15.0, None, "time", "time"),
        (16.0, 15.0, 8.0, "time", "time"),
        (13.0, None, None, "", ""),
        (14.0, None, 20.0, "time", "time"),
    ],
)
def test_the_faster_of_the_earlier_lattice_and_opencv_judges(
    auto: float, before: float | None, opencv: float | None, misses: str, misses_now: str
) -> None:
    row = summarize([found(auto, before, opencv)] * 3)
    assert missed(row) == misses
    assert missed(row, "over_now") == misses_now
    assert row["over_separable"] == pytest.approx(auto / 10)


def test_another_installation_answers_one_picture_after_another() -> None:
    earlier = Earlier(Path(sys.executable))
    assert earlier.commit == find_commit()
    # not in one piece, and with a line break among the bytes
    pictures = [torch.rand(3, 8, 9).mT, torch.full((3, 5, 6), 6.3e-10)]
    assert all(earlier.milliseconds(picture, 2.0, 0.1) > 0 for picture in pictures)


def test_one_that_cannot_start_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match="ended"):
        Earlier(python)
