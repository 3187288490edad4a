"""What `permutohedral benchmark` does with its options."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from permutohedral.benchmarks import chart, environment, report, runner
from permutohedral.benchmarks.inputs import PHOTO
from permutohedral.errors import InputError
from permutohedral.reporting.figure import check_ending


def main(options: runner.Options, json_file: Path | None, csv_file: Path | None, charts: Sequence[Path]) -> int:
    """Run, print the table, write the files; the exit code is 1 if an operator was refused."""
    for path in charts:
        check_ending(path)
    with _progress() as say:
        found = runner.run(options, say)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    report.print_table(found, sys.stdout, columns)
    if json_file is not None:
        report.write_json(found, json_file)
    if csv_file is not None:
        report.write_csv(found, csv_file)
    if charts:
        chart.draw(found, list(charts))
    refused = [result for result in found["results"] if "refused" in result]
    for result in refused:
        print(f"refused: {result['workload']}: {result['refused']}", file=sys.stderr)
    return 1 if refused else 0


def parse_threads(text: str | None) -> tuple[int, ...]:
    """Thread counts out of "1,2"; None stands for one and for all cores."""
    if text is None:
        return tuple(sorted({1, environment.cores()}))
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"threads must be whole numbers with commas between them, got {text!r}") from None


def data_folder(given: Path | None) -> Path | None:
    """The folder of the data sets, if one was given."""
    if given is not None and not given.is_dir():
        raise InputError(f"there is no folder {given}; it should hold bsds500/test/{PHOTO}")
    return given


@contextmanager
def _progress() -> Iterator[runner.Say]:
    """Shows the current step on a terminal where rich is installed, else prints each step to stderr."""
    try:
        from rich.console import Console
    except ImportError:
        console = None
    else:
        console = Console(stderr=True, highlight=False)
    if console is None or not console.is_terminal:
        yield lambda message: print(message, file=sys.stderr, flush=True)
        return
    with console.status("starting") as status:
        yield status.update
