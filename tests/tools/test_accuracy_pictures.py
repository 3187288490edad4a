"""Which goals the rows of the accuracy page miss."""

from __future__ import annotations

from typing import Any

import pytest
from accuracy_pictures import missed, summarize


def measured(milliseconds: float, worst: float) -> dict[str, Any]:
    """Return the figures of one image, whose lattice takes 10 ms."""
    auto = {"error": 0.001, "worst": worst, "milliseconds": milliseconds}
    lattice = {"error": 0.001, "worst": 0.1, "milliseconds": 10.0}
    return {"chosen": "grid", "auto": auto, "lattice": lattice}


@pytest.mark.parametrize(
    ("milliseconds", "worst", "misses"),
    [(14.0, 0.02, ""), (16.0, 0.02, "time"), (14.0, 0.04, "worst pixel"), (16.0, 0.04, "worst pixel, time")],
)
def test_rows_name_the_goals_that_they_miss(milliseconds: float, worst: float, misses: str) -> None:
    row = summarize([measured(milliseconds, worst)] * 3)
    assert row["chosen"] == ["grid"]
    assert row["time_ratio"] == pytest.approx(milliseconds / 10)
    assert missed(row) == misses
