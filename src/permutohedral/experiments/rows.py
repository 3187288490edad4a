"""Runs the rows of an experiment, one after another or side by side, and keeps those that are done."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import torch

from permutohedral.errors import InputError, PermutohedralError
from permutohedral.experiments.config import parse_config
from permutohedral.experiments.experiment import Config, Experiment, Tell
from permutohedral.experiments.result import Result, read_result, write_result
from permutohedral.experiments.training import RunOptions

Run = Callable[[Config, RunOptions], Result | None]


def run_rows(
    experiment: Experiment[Config], configs: Sequence[Config], options: RunOptions, tell: Tell, jobs: int = 1
) -> Iterator[Result]:
    """Run every configuration, write its result, and yield it.

    Args:
        experiment: whose rows they are.
        configs: rows with their seeds, the most important first.
        options: where and on what.
        tell: called with a line about every row that ends.
        jobs: processes that train side by side, on one device.

    Raises:
        PermutohedralError: rows that ran side by side failed; after all others have ended.
    """
    if jobs > 1 and options.devices > 1:
        raise InputError("train on several devices or with several jobs, not both")
    waiting: list[tuple[Config, Path]] = []
    for config in configs:
        path = experiment.result_path(config, options.output)
        kept = _read_if_done(config, path) if options.resume else None
        if kept is None:
            waiting.append((config, path))
            continue
        tell(f"{config.title}, seed {config.seed}: kept")
        yield kept
    run = experiment.run
    finished = _side_by_side(waiting, run, options, jobs) if jobs > 1 else _one_by_one(waiting, run, options)
    failed = []
    for number, (config, outcome) in enumerate(finished, start=1):
        place = f"{number} of {len(waiting)}: {config.title}, seed {config.seed}"
        if isinstance(outcome, str):
            failed.append(f"{config.name} with seed {config.seed}: {outcome}")
            tell(f"{place}: failed")
        elif outcome is not None:
            tell(f"{place}: {experiment.headline(outcome)} in {sum(outcome.seconds.values()):.0f} s")
            yield outcome
    if failed:
        raise PermutohedralError("; ".join(failed))


def _read_if_done(config: Config, path: Path) -> Result | None:
    """The result of an earlier run with this very configuration."""
    if not path.is_file():
        return None
    result = read_result(path)
    try:
        # settings added since the result was written had their default then
        same = parse_config(type(config), result.config) == config
    except InputError:
        return None
    return result if same else None


def _run_and_write(config: Config, path: Path, run: Run[Config], options: RunOptions) -> Result | None:
    result = run(config, options)
    if result is not None:
        write_result(result, path)
    return result


def _one_by_one(
    waiting: Sequence[tuple[Config, Path]], run: Run[Config], options: RunOptions
) -> Iterator[tuple[Config, Result | str | None]]:
    for config, path in waiting:
        yield config, _run_and_write(config, path, run, options)


def _side_by_side(
    waiting: Sequence[tuple[Config, Path]], run: Run[Config], options: RunOptions, jobs: int
) -> Iterator[tuple[Config, Result | str | None]]:
    """A row that fails becomes the text of its error, and the others go on."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # a copy of this process could not use CUDA; copies of one that has loaded the libraries and nothing more can
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__, run.__module__])
    quiet = replace(options, progress=False)
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (threads,)) as pool:
        running = {pool.submit(_run_and_write, config, path, run, quiet): config for config, path in waiting}
        try:
            for future in as_completed(running):
                error = future.exception()
                yield running[future], future.result() if error is None else f"{type(error).__name__}: {error}"
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
