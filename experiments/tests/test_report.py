"""Tables and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.report import TITLE, WEIGHTS, Column, Page, Table, write_page
from experiments.results import Result, read_result, write_json
from permutohedral.errors import InputError


def result(name: str = "row", seed: int = 0, **metrics: object) -> Result:
    environment = {"commit": "0" * 40, "hardware": {"processor": "P", "cores": 2}, "threads": 1}
    config = {"title": name.title(), "paper": [0.5, None], "training": {"steps": 1500}}
    return Result("made", name, config, metrics, seed, {"training": 2.0}, environment)


RUNS = [result(seed=0, a=1.0, weights=1234), result(seed=1, a=3.0, weights=1234)]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (TITLE, "Row"),
        (WEIGHTS, "1,234"),
        (Column("", "metrics/a"), "2.00"),
        (Column("", "metrics/a", "{:.1f}", " ± {:.1f}"), "2.0 ± 1.4"),
        (Column("", "metrics/a", "{:.1f}", paper="config/paper/0"), "2.0 (0.5)"),
        (Column("", "metrics/a", "{:.1f}", paper="config/paper/1"), "2.0"),
        (Column("", "metrics/a", "{:.0f}", factor=100), "200"),
        (Column("", ("metrics/a", "metrics/weights"), "{:.0f} / {}"), "2 / 1234"),
        (Column("", "metrics/absent"), ""),
        (Column("", "config/training/steps", "{:,}"), "1,500"),
    ],
)
def test_cells(column: Column, text: str) -> None:
    assert column.cell(RUNS) == text


def test_models_without_weights_have_an_empty_cell() -> None:
    assert WEIGHTS.cell([result(weights=0)]) == ""


def test_pages_name_rows_command_machine_and_commit(tmp_path: Path) -> None:
    table = Table([TITLE, Column("A", "metrics/a")], [*RUNS, result("other", a=5.0)], "Caption", "part")
    path = write_page(Page("Made", "Text.", [table], notes=["A note."]), tmp_path, "python -m experiments made")
    text = path.read_text()
    for part in ("# Made", "Text.", "## part", "Caption", "| Row | 2.00 |", "| Other | 5.00 |", "A note."):
        assert part in text
    assert "`python -m experiments made`" in text
    assert "| row | 2 | 1,500 | 2 | P, 2 cores, 1 thread(s) | `000000000` |" in text


def test_results_are_read_as_written(tmp_path: Path) -> None:
    write_json(tmp_path / "row.json", RUNS[0])
    assert read_result(tmp_path / "row.json") == RUNS[0]
    for content in ("", "[]", "{}"):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(InputError, match="not a result"):
            read_result(tmp_path / "other.json")
