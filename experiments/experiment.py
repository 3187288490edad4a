"""Definition of an experiment, and the runner of its rows."""

from __future__ import annotations

import fnmatch
import inspect
import multiprocessing
import os
import signal
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from pydantic.dataclasses import dataclass as checked_dataclass

from experiments.report import Page
from experiments.results import FORBID_EXTRA, Result, describe_environment, parse_config, read_table, write_table
from experiments.training import RunOptions, seed_everything
from permutohedral.errors import InputError, PermutohedralError

# `Row` with the settings of an experiment
Config = TypeVar("Config", bound=Any)

# metrics, possibly nested by name, and seconds by stage
Outcome = tuple[dict[str, Any], dict[str, float]]

Log = Callable[[str], None]


@checked_dataclass(frozen=True, config=FORBID_EXTRA)
class Row:
    """Settings that the rows of all experiments have. Experiments add theirs.

    Attributes:
        name: of the row and its files.
        title: in the table.
        seed: of everything random.
    """

    name: str
    title: str
    seed: int = field(default=0, kw_only=True)


def try_out(build: Callable[[Config], object], config: Config) -> None:
    """Raise what `build` raises for a row, without changing the random numbers of the caller."""
    with torch.random.fork_rng(devices=[]):
        build(config)


@dataclass(frozen=True)
class Experiment(Generic[Config]):
    """An experiment: its rows, how one is run, and how results are reported.

    `NAME.yaml` next to the module of `config` lists the rows: `rows` run by default, `more_rows` only by name. `smoke`
    has the upper limits of `--smoke`, and `quick` the rows that the tests run. All results are in `NAME.csv`, their
    settings in `NAME.yaml`.

    Attributes:
        name: as in the registry.
        config: dataclass of a row.
        run: trains and evaluates one row.
        report: makes pages from results of any rows.
        seeds: trainings of each row by default.
        group: rows that it maps to one value are run by one call of `run_group`. Default: each row by itself.
        run_group: trains and evaluates such rows.
    """

    name: str
    config: type[Config]
    run: Callable[[Config, RunOptions], Outcome]
    report: Callable[[Sequence[Result], RunOptions], list[Page]]
    seeds: int = 1
    group: Callable[[Config], Hashable] | None = None
    run_group: Callable[[list[Config], RunOptions], list[Outcome]] | None = None

    def read_rows(self) -> dict[str, Any]:
        """Return the content of `NAME.yaml`."""
        return _read_yaml(Path(inspect.getfile(self.config)).with_name(f"{self.name}.yaml"))

    def choose_rows(self, names: Sequence[str] = (), files: Sequence[Path] = (), smoke: bool = False) -> list[Config]:
        """Return the configurations of rows and of files with one row each. Default: all rows that run by default.

        A name may be a pattern such as "scale_*".

        Raises:
            InputError: there is no such row or file, or it does not fit.
        """
        content = self.read_rows()
        known = content["rows"] | content.get("more_rows", {})
        if not names and not files:
            names = list(content["rows"])
        matches = {pattern: fnmatch.filter(known, pattern) for pattern in names}
        unknown = [pattern for pattern, found in matches.items() if not found]
        if unknown:
            raise InputError(f"row: there is no {unknown[0]!r}; choose from {', '.join(known)}")
        chosen = [{"name": name} | known[name] for found in matches.values() for name in found]
        configs = [parse_config(self.config, row) for row in [*chosen, *map(_read_yaml, files)]]
        return [shorten(config, content["smoke"]) for config in configs] if smoke else configs

    def read_results(self, folder: Path) -> list[Result]:
        """Read all results in `folder`, in the order of the table.

        Raises:
            InputError: one cannot be read.
        """
        table = folder / f"{self.name}.csv"
        return self._sort(read_table(table) if table.exists() else [])

    def is_smoke(self, result: Result) -> bool:
        """Return whether a result has the settings of a row that `--smoke` shortened, and not those of the row."""
        try:
            whole, short = (self.choose_rows([result.name], smoke=smoke)[0] for smoke in (False, True))
        except InputError:
            return False
        return not is_result_of(result, replace(whole, seed=result.seed)) and is_result_of(
            result, replace(short, seed=result.seed)
        )

    def _sort(self, results: Sequence[Result]) -> list[Result]:
        content = self.read_rows()
        names = dict.fromkeys([*content["rows"], *content.get("more_rows", {}), *(result.name for result in results)])
        order = {name: place for place, name in enumerate(names)}
        return sorted(results, key=lambda result: (order[result.name], result.split, result.seed))

    def write_results(self, results: Sequence[Result], folder: Path) -> None:
        """Write results among those in `folder`; they replace those of the same row, split and seed."""
        keys = {result.key for result in results}
        others = [other for other in self.read_results(folder) if other.key not in keys]
        write_table(folder / f"{self.name}.csv", self._sort([*others, *results]))


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"config: cannot read {path}: {error}; pass a YAML file") from error
    if not isinstance(content, dict):
        raise InputError(f"config: {path} holds {content!r}; pass a mapping of names to values")
    return content


def shorten(config: Config, limits: Mapping[str, Any]) -> Config:
    """Lower every number to the one of the same name in `limits`, and replace None and texts by it."""
    changes: dict[str, Any] = {}
    for name, given in limits.items():
        # YAML has lists where configurations have tuples
        own, limit = getattr(config, name), tuple(given) if isinstance(given, list) else given
        if isinstance(limit, Mapping):
            # a row that is not trained has no training to shorten
            changes[name] = None if own is None else shorten(own, limit)
        else:
            changes[name] = limit if own is None or isinstance(own, str) else min(own, limit)
    return replace(config, **changes)


def with_seeds(configs: Sequence[Config], number: int) -> list[Config]:
    """Repeat all rows with `number` seeds, so that an interrupted run has something of every row."""
    return [replace(config, seed=config.seed + offset) for offset in range(number) for config in configs]


def run_rows(
    experiment: Experiment[Config], configs: Sequence[Config], options: RunOptions, log: Log, jobs: int = 1
) -> Iterator[Result]:
    """Run rows, write each result, and yield it.

    Args:
        experiment: of the rows.
        configs: rows with their seeds.
        options: where to run. With `resume`, finished rows are kept.
        log: called with a line for every row.
        jobs: processes that run rows in parallel on one device.

    Raises:
        PermutohedralError: a row failed; with several jobs after all others have ended.
    """
    waiting = []
    finished_before = experiment.read_results(options.output) if options.resume else []
    for config in configs:
        kept = next((result for result in finished_before if is_result_of(result, config)), None)
        if kept is None:
            waiting.append(config)
        else:
            log(f"{config.title}, seed {config.seed}: kept")
            yield kept
    groups: dict[Hashable, list[Config]] = {}
    for place, config in enumerate(waiting):
        groups.setdefault(experiment.group(config) if experiment.group else place, []).append(config)
    units = list(groups.values())
    run = _run_in_parallel(experiment, units, options, jobs) if jobs > 1 else _run_in_turn(experiment, units, options)
    failed, number = [], 0
    for unit, results in run:
        if not isinstance(results, str):
            experiment.write_results(results, options.output)
        for place, config in enumerate(unit):
            number += 1
            line = f"{number} of {len(waiting)}: {config.title}, seed {config.seed}"
            if isinstance(results, str):
                failed.append(f"{config.name} with seed {config.seed}: {results}")
                log(f"{line}: failed")
            else:
                log(f"{line}: done in {sum(results[place].seconds.values()):.0f} s")
                yield results[place]
    if failed:
        raise PermutohedralError("; ".join(failed))


def is_result_of(result: Result, config: Any) -> bool:
    """Return whether a result has the settings of a row, its seed included."""
    try:
        # settings added after the result was written had their default then
        is_same_row = (result.name, result.seed) == (config.name, config.seed)
        return is_same_row and bool(parse_config(type(config), result.config) == config)
    except InputError:
        return False


def run_rows_together(experiment: Experiment[Config], configs: Sequence[Config], options: RunOptions) -> list[Result]:
    """Run rows that belong together: one, or those of a group."""
    seed_everything(configs[0].seed)
    if experiment.run_group is None:
        outcomes = [experiment.run(config, options) for config in configs]
    else:
        outcomes = experiment.run_group(list(configs), options)
    environment = describe_environment(options.device)
    return [
        Result(experiment.name, config.name, asdict(config), metrics, config.seed, seconds, environment)
        for config, (metrics, seconds) in zip(configs, outcomes, strict=True)
    ]


def run_row(experiment: Experiment[Config], config: Config, options: RunOptions) -> Result:
    """Run one row."""
    return run_rows_together(experiment, [config], options)[0]


def _run_in_turn(
    experiment: Experiment[Config], units: Sequence[list[Config]], options: RunOptions
) -> Iterator[tuple[list[Config], list[Result] | str]]:
    for unit in units:
        yield unit, run_rows_together(experiment, unit, options)


def _run_by_name(name: str, configs: list[Any], options: RunOptions) -> list[Result]:
    from experiments.registry import load_experiment

    return run_rows_together(load_experiment(name), configs, options)


def _run_in_parallel(
    experiment: Experiment[Config], units: Sequence[list[Config]], options: RunOptions, jobs: int
) -> Iterator[tuple[list[Config], list[Result] | str]]:
    """Yield the text of the error for rows that fail, and continue with the others."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # a forked process could not use CUDA
    context, quiet = multiprocessing.get_context("spawn"), replace(options, progress=False)
    with ProcessPoolExecutor(jobs, context, _start_worker, (threads,)) as pool:
        running = {pool.submit(_run_by_name, experiment.name, unit, quiet): unit for unit in units}
        try:
            for future in as_completed(running):
                error = future.exception()
                yield running[future], future.result() if error is None else f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(threads: int) -> None:
    # Ctrl-C reaches all processes of a terminal; the first one ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
