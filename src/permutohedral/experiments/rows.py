"""Runs rows of a table with several seeds, one after another or side by side, and gathers the results."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from permutohedral.errors import InputError, PermutohedralError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.result import Result, read_result, write_result
from permutohedral.experiments.training import RunOptions

# a frozen dataclass with name, title and seed
Config = TypeVar("Config", bound=Any)

Report = Callable[[str], None]
Run = Callable[[Config, RunOptions], Result | None]


def choose_configs(
    kind: type[Config], experiment: str, names: Sequence[str], files: Sequence[Path], default: Sequence[str]
) -> list[Config]:
    """The configurations of the rows with these names and in these files; `default` without any."""
    shipped = shipped_configs(experiment)
    if not names and not files:
        names = default
    unknown = [name for name in names if name not in shipped]
    if unknown:
        raise InputError(f"there is no row {unknown[0]!r}; there are {', '.join(shipped)}")
    return [read_config(kind, path) for path in [*(shipped[name] for name in names), *files]]


def with_seeds(configs: Sequence[Config], number: int) -> list[Config]:
    """Every row with `number` seeds: all rows with the first seed, then all with the next.

    An interrupted run then has something of every row.
    """
    return [replace(config, seed=config.seed + offset) for offset in range(number) for config in configs]


def result_path(config: Any, folder: Path) -> Path:
    """Where the result of a row with its seed goes."""
    return folder / "runs" / f"{config.name}-{config.seed}.json"


def read_results(folder: Path, known: Sequence[str]) -> list[Result]:
    """All results that runs have left in `folder`, in the order of the `known` rows, others after them."""
    results = [read_result(path) for path in sorted((folder / "runs").glob("*.json"))]
    if not results:
        raise InputError(f"there are no results in {folder / 'runs'}")
    order = {name: place for place, name in enumerate([*known, *(result.name for result in results)][::-1])}
    return sorted(results, key=lambda result: (-order[result.name], result.seed))


def run_rows(
    configs: Sequence[Config], run: Run[Config], options: RunOptions, jobs: int, report: Report
) -> Iterator[Result]:
    """Run every configuration, write its result, and yield it.

    Args:
        configs: rows with their seeds, the most important first.
        run: trains and evaluates one; if its metrics have "accuracy" by column, that is reported.
        options: where and on what.
        jobs: processes that train side by side, on one device.
        report: told of every row that ends.
    """
    if jobs > 1 and options.devices > 1:
        raise InputError("train on several devices or with several jobs, not both")
    waiting = []
    for config in configs:
        kept = _done(config, options.output) if options.resume else None
        if kept is None:
            waiting.append(config)
            continue
        report(f"{config.title}, seed {config.seed}: kept")
        yield kept
    finished = _side_by_side(waiting, run, options, jobs) if jobs > 1 else _one_by_one(waiting, run, options)
    failed = []
    for number, (config, outcome) in enumerate(finished, start=1):
        place = f"{number} of {len(waiting)}: {config.title}, seed {config.seed}"
        if isinstance(outcome, str):
            failed.append(f"{config.name} with seed {config.seed}: {outcome}")
            report(f"{place}: failed")
        elif outcome is not None:
            accuracy = " ".join(f"{share:.4f}" for share in outcome.metrics.get("accuracy", {}).values())
            report(f"{place}: {accuracy or 'done'} in {sum(outcome.seconds.values()):.0f} s")
            yield outcome
    if failed:
        raise PermutohedralError("; ".join(failed))


def _done(config: Any, folder: Path) -> Result | None:
    """The result of an earlier run with this very configuration."""
    path = result_path(config, folder)
    if not path.is_file():
        return None
    result = read_result(path)
    return result if result.config == json.loads(json.dumps(asdict(config))) else None


def _run_and_write(config: Config, run: Run[Config], options: RunOptions) -> Result | None:
    result = run(config, options)
    if result is not None:
        write_result(result, result_path(config, options.output))
    return result


def _one_by_one(
    configs: Sequence[Config], run: Run[Config], options: RunOptions
) -> Iterator[tuple[Config, Result | str | None]]:
    for config in configs:
        yield config, _run_and_write(config, run, options)


def _side_by_side(
    configs: Sequence[Config], run: Run[Config], options: RunOptions, jobs: int
) -> Iterator[tuple[Config, Result | str | None]]:
    """A row that fails becomes the text of its error, and the others go on."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # a forked process cannot use CUDA
    context = multiprocessing.get_context("spawn")
    quiet = replace(options, progress=False)
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (threads,)) as pool:
        running = {pool.submit(_run_and_write, config, run, quiet): config for config in configs}
        try:
            for future in as_completed(running):
                error = future.exception()
                yield running[future], future.result() if error is None else f"{type(error).__name__}: {error}"
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
