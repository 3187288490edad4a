"""Tables and pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.report import TITLE, WEIGHTS, Column, Page, Table, provenance_table, write_page
from experiments.results import Result, read_table, write_table
from permutohedral.errors import InputError


def result(name: str = "row", seed: int = 0, **metrics: object) -> Result:
    environment = {"commit": "0" * 40, "hardware": {"processor": "P", "cores": 2}, "threads": 1}
    config = {"name": name, "title": name.title(), "paper": [0.5, None], "training": {"steps": 1500}}
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
    path = write_page(Page("Made", "Text.", [table], notes=["A note."], name="made"), tmp_path)
    text = path.read_text()
    for part in ("# Made", "Text.", "## part", "Caption", "| Row | 2.00 |", "| Other | 5.00 |", "A note."):
        assert part in text
    assert path == tmp_path / "made.md"
    assert "Made with `python -m experiments made` in 6 s (P, 2 cores, 1 thread(s))" in text
    assert "| row | 2 | 1,500 | 2 | P, 2 cores, 1 thread(s) | `000000000` |" in text


def test_a_table_of_results_is_read_as_written(tmp_path: Path) -> None:
    runs = [result(seed=1, error={"a, b": 1 / 3, "deep": {"c": 2}}, weights=3), result("other", error=1e-9)]
    runs.append(replace(runs[0], config=dict(runs[0].config) | {"split": "validation"}))
    write_table(tmp_path / "made.csv", runs)
    read = read_table(tmp_path / "made.csv")
    assert [each.key for each in read] == [("row", "test", 1), ("other", "test", 0), ("row", "validation", 1)]
    assert read[0].metrics == {"error": {"a, b": 0.3333333, "deep": {"c": 2}}, "weights": 3}
    assert read[0].config == {**runs[0].config, "seed": 1}
    assert provenance_table(read) == provenance_table(runs)
    lines = (tmp_path / "made.csv").read_text().splitlines()
    assert lines[0] == "row,seed,split,metric,value,seconds,commit,machine,settings"
    assert lines[1].startswith('row,1,test,"error/a, b",0.3333333,2.0,000000000,"P, 2 cores, 1 thread(s)",')
    for kind in ("csv", "yaml"):
        content = (tmp_path / f"made.{kind}").read_text()
        (tmp_path / f"made.{kind}").write_text(content.replace(lines[1][-8:], "?" * 8))
        with pytest.raises(InputError, match="not a table of results"):
            read_table(tmp_path / "made.csv")
        (tmp_path / f"made.{kind}").write_text(content)


def test_tables_choose_rows_by_name() -> None:
    table = Table([TITLE], [*RUNS, result("other", a=5.0)])
    assert table.markdown(["other", "row"]).splitlines()[2:] == ["| Other |", "| Row |"]
