"""Reports of all experiments: tables of columns, and pages in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.markdown import markdown_table
from experiments.provenance import add_up_time, describe_machine, short_commit
from experiments.results import Result, write_bytes

__all__ = ["Column", "Lines", "Page", "Table", "by_row", "mean_of", "write_page"]

_SMOKE = "**Smoke run**: shortened rows. These are no results."


@dataclass(frozen=True)
class Column:
    """One column of a table: means over the seeds of a row.

    Attributes:
        title: heading.
        path: where the value is in a `Result`, such as "metrics/psnr". Several paths fill one cell.
        format: of the values; a cell whose value is missing, None or 0 weights stays empty.
        spread: format of the sample standard deviation over the seeds, such as " ± {:.4f}".
        paper: path of the value that the paper reports, shown in parentheses.
        factor: multiplies the values, such as 100 for percentages.
    """

    title: str
    path: str | tuple[str, ...]
    format: str = "{:.2f}"
    spread: str = ""
    paper: str = ""
    factor: float = 1

    def cell(self, runs: Sequence[Result]) -> str:
        """Return the text for a row, given its results."""
        paths = (self.path,) if isinstance(self.path, str) else self.path
        means = [mean_of(runs, path) for path in paths]
        if any(mean is None or (mean == 0 and "," in self.format) for mean in means):
            return ""
        text = self.format.format(*(mean if isinstance(mean, str) else self.factor * mean for mean in means))
        if self.spread and len(runs) > 1:
            deviation = statistics.stdev(_look_up(run, paths[0]) for run in runs)
            text += self.spread.format(self.factor * round(deviation, 6))
        paper = _look_up(runs[0], self.paper) if self.paper else None
        return text if paper is None else f"{text} ({self.format.format(paper)})"


TITLE = Column("", "config/title", "{}")
WEIGHTS = Column("Weights", "metrics/weights", "{:,}")


@dataclass(frozen=True)
class Table:
    """A table with a line for each row of `results`, which is its key.

    >>> results = [Result("a", "b", {"title": "B"}, {"psnr": value}, seed) for seed, value in enumerate((1.0, 2.0))]
    >>> print(Table([TITLE, Column("dB", "metrics/psnr", spread=" ± {:.1f}")], results))
    |  | dB |
    | --- | ---: |
    | B | 1.50 ± 0.7 |
    """

    columns: Sequence[Column]
    results: Sequence[Result]
    caption: str = ""
    heading: str = ""

    def markdown(self, keys: Sequence[str] | None = None) -> str:
        """Return the lines with these keys, in this order. Default: all."""
        rows = by_row(self.results)
        cells = [[column.cell(rows[key]) for column in self.columns] for key in (rows if keys is None else keys)]
        return markdown_table([column.title for column in self.columns], cells)

    def __str__(self) -> str:
        return _with_heading(self)


@dataclass(frozen=True)
class Lines:
    """A table of texts, with a key for each line.

    >>> print(Lines(["", "dB"], {"a": ["A", "1.5"], "b": ["B", "2.5"]}).markdown(["b"]))
    |  | dB |
    | --- | ---: |
    | B | 2.5 |
    """

    titles: Sequence[str]
    lines: Mapping[str, Sequence[str]]
    caption: str = ""
    heading: str = ""
    text_columns: Sequence[int] = (0,)
    results: Sequence[Result] = ()

    def markdown(self, keys: Sequence[str] | None = None) -> str:
        """Return the lines with these keys, in this order. Default: all."""
        chosen = [self.lines[key] for key in (self.lines if keys is None else keys)]
        return markdown_table(self.titles, chosen, self.text_columns)

    def __str__(self) -> str:
        return _with_heading(self)


def _with_heading(table: Table | Lines) -> str:
    heading = f"## {table.heading}" if table.heading else ""
    return "\n\n".join(part for part in (heading, table.caption, table.markdown()) if part)


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title: heading.
        text: what was measured.
        tables: of the results.
        notes: further paragraphs.
        name: of the experiment.
    """

    title: str
    text: str
    tables: Sequence[Table | Lines]
    notes: Sequence[str] = ()
    name: str = ""

    def label_smoke(self) -> Page:
        """Return the page with title and captions that say that rows were shortened."""
        tables = [replace(table, caption=f"{_SMOKE} {table.caption}".strip()) for table in self.tables]
        return replace(self, title=f"{self.title} (smoke run)", tables=tables)


def write_page(page: Page, folder: Path) -> Path:
    """Write `NAME.md` into `folder`, with the command that reproduces it, times, machines and commits."""
    results = list({result.key: result for table in page.tables for result in table.results}.values())
    times = add_up_time((sum(run.seconds.values()), describe_machine(run.environment)) for run in results)
    paragraphs = [
        f"# {page.title}",
        page.text,
        *map(str, page.tables),
        *page.notes,
        f"Made with `python -m experiments {page.name}` in {times}. The settings of every row are in "
        f"`{page.name}.yaml`.",
        provenance_table(results),
    ]
    path = folder / f"{page.name}.md"
    write_bytes(path, ("\n\n".join(paragraphs) + "\n").encode())
    return path


def provenance_table(results: Sequence[Result]) -> str:
    """Return a table of time, machine and commit of every row."""
    lines = []
    for name, runs in by_row(results).items():
        machines = dict.fromkeys(describe_machine(run.environment) for run in runs)
        commits = dict.fromkeys(f"`{short_commit(run.environment['commit'])}`" for run in runs)
        seconds = statistics.mean(sum(run.seconds.values()) for run in runs)
        steps = mean_of(runs, "metrics/steps") or mean_of(runs, "config/training/steps")
        counts = [str(len({run.seed for run in runs})), f"{steps:,.0f}" if steps else "", f"{seconds:,.0f}"]
        lines.append([name, *counts, " and ".join(machines), " and ".join(commits)])
    return markdown_table(["Row", "Seeds", "Steps", "Seconds", "Machine", "Commit"], lines, text_columns=(0, 4, 5))


def by_row(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results of each row, sorted by seed, in the order of the rows."""
    rows: dict[str, dict[int, Result]] = {}
    for result in results:
        rows.setdefault(result.name, {})[result.seed] = result
    return {name: [runs[seed] for seed in sorted(runs)] for name, runs in rows.items()}


def mean_of(runs: Sequence[Result], path: str) -> Any:
    """Return the mean over the seeds of the value at `path`; a text, or None if it is missing, as it is."""
    values = [_look_up(run, path) for run in runs]
    if any(value is None or isinstance(value, str) for value in values):
        return values[0]
    return values[0] if all(value == values[0] for value in values) else statistics.mean(values)


def _look_up(result: Result, path: str) -> Any:
    attribute, *names = path.split("/")
    place: Any = getattr(result, attribute)
    for name in names:
        if place is not None:
            place = place.get(name) if isinstance(place, Mapping) else place[int(name)]
    return place
