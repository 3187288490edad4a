"""Surfaces and waves learned behind three encodings, with equal parameters and equal networks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import permutohedral as ph
from experiments.experiment import Experiment, Row
from experiments.fields.encodings import Field, FrequencyEncoding, HashGrid, level_resolutions, permutohedral_encoding
from experiments.fields.tasks import Surface, Task, Waves
from experiments.report import TITLE, Column, Page, Table
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

TaskName = Literal["surface", "waves"]
EncodingName = Literal["permutohedral", "grid", "frequency"]

CAPTIONS = {
    "surface": "A signed distance from points with normals: errors in thousandths of the cube, and degrees of normals.",
    "waves": "Waves of one length in d dimensions: PSNR in dB (milliseconds of a step).",
}


@dataclass(frozen=True, config=FORBID_EXTRA)
class FieldsConfig(Row):
    """One row of a table: fields with one encoding, one for each dimension and table size.

    Attributes:
        task: field to learn.
        encoding: of the positions.
        training: `batch_size` counts positions.
        dimensions: of the positions: 3 for "surface", any for "waves".
        table_sizes: rows of the table of each level, as powers of 2.
        levels: of the table.
        features: channels of the table.
        coarsest: resolution of the first level.
        finest: resolution of the last level.
        window: part of the steps after which all levels are shown, coarse ones first. Default: all from the start.
        normal_weight, eikonal_weight, volume_weight: of the loss of "surface".
        hidden: channels of the two hidden layers of the network.
        test_points: positions to evaluate on.
        backend: of our encoding; "reference" is plain torch.
    """

    task: TaskName
    encoding: EncodingName
    training: TrainingSettings
    dimensions: tuple[int, ...]
    table_sizes: tuple[int, ...]
    levels: int = 12
    features: int = 2
    coarsest: float = 8.0
    finest: float = 512.0
    window: float = 0.0
    normal_weight: float = 1.0
    eikonal_weight: float = 1.0
    volume_weight: float = 0.1
    hidden: int = 64
    test_points: int = 2**17
    backend: Literal["auto", "reference"] = "auto"

    def __post_init__(self) -> None:
        fitting = (3,) if self.task == "surface" else range(1, 8)
        if not self.dimensions or any(d not in fitting for d in self.dimensions):
            raise InputError(f"dimensions must be in {tuple(fitting)} for the task {self.task}, got {self.dimensions}")


def make_task(config: FieldsConfig, d: int, options: RunOptions) -> Task:
    """Return the field to learn."""
    if config.task == "waves":
        return Waves(d, options.device)
    weights = config.normal_weight, config.eikonal_weight, config.volume_weight
    return Surface(options.device, 2**18, weights)


def build_field(config: FieldsConfig, d: int, table_size: int, task: Task) -> Field:
    """Build the field of a row on the CPU, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    resolutions = level_resolutions(config.levels, config.coarsest, config.finest, torch.ones(d))
    encoding: nn.Module
    if config.encoding == "frequency":
        encoding = FrequencyEncoding(resolutions)
    else:
        kind = HashGrid if config.encoding == "grid" else permutohedral_encoding
        encoding = kind(resolutions, config.features, table_size)
    return Field(encoding, d, task.channels, config.hidden, task.smooth)


def run(config: FieldsConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train and evaluate the fields of one row."""
    started = time.perf_counter()
    fields: dict[str, Any] = {}
    with nullcontext() if config.backend == "auto" else ph.backends.use(config.backend):
        for d in config.dimensions:
            for power in config.table_sizes:
                task = make_task(config, d, options)
                field = build_field(config, d, 2**power, task).to(options.device)
                fields[f"d={d}, 2^{power}"] = train(field, task, config, options, f"-{d}-{power}")
    return {"fields": fields, "weights": count_weights(field)}, {"all": time.perf_counter() - started}


def train(field: Field, task: Task, config: FieldsConfig, options: RunOptions, suffix: str) -> dict[str, Any]:
    """Train a field; return its scores and the median time of a step without its batch.

    Without a GPU it is processor time.
    """
    settings, seconds, ended = config.training, list[float](), 0.0

    def clock() -> float:
        if options.device.type != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def batch(step: int) -> tuple[Tensor, ...]:
        nonlocal ended
        seconds.append(clock() - ended)
        if config.window:
            # from 0.3, as in PermutoSDF
            field.show_levels(min(1.0, 0.3 + 0.7 * step / (config.window * settings.steps)))
        drawn = task.batch(settings.batch_size, config.seed * 1_000_003 + step)
        ended = clock()
        return drawn

    # as in Instant-NGP: rows of the table that few positions reach take steps of full length
    groups = [{"params": list(field.parameters()), "betas": (0.9, 0.99), "eps": 1e-15}]
    folder, capture = checkpoint_folder(config, options, suffix), options.device.type == "cuda"
    fit(field, partial(task.loss, field), settings, options, folder, batch=batch, groups=groups, capture=capture)
    write_weights(weights_path(config, options.output, suffix), field)
    scores: dict[str, Any] = task.evaluate(field, config.test_points)
    # the first one began before the training; a resumed training may have no step left
    return scores | ({"step_milliseconds": 1000 * statistics.median(seconds[1:])} if seconds[1:] else {})


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report a table for each task."""
    tasks = {name: [result for result in results if result.config["task"] == name] for name in CAPTIONS}
    text = (
        "Fields behind the same network of two hidden layers. Tables have equal levels, rows and features, and as many "
        "lattice points as grid points per volume. Milliseconds are those of a step: loss, gradients and update, "
        "without drawing the batch; without a GPU they are processor time. Frequencies have no table."
    )
    tables = [make_table(name, rows) for name, rows in tasks.items() if rows]
    return [Page("Neural fields", text, tables, name="fields")]


def make_table(task: str, rows: Sequence[Result]) -> Table:
    """Return the table of a task.

    >>> metrics = {"fields": {"d=5, 2^14": {"psnr": 30.0, "step_milliseconds": 20.0}}}
    >>> print(str(make_table("waves", [Result("fields", "a", {"title": "A"}, metrics, 0)])).splitlines()[-1])
    | A | 30.00 (20) |
    """
    columns = [TITLE]
    for key in dict.fromkeys(key for row in rows for key in row.metrics["fields"]):
        place = f"metrics/fields/{key}"
        if task == "surface":
            columns += [Column(name, f"{place}/{name}", factor=1000) for name in ("near", "anywhere")]
            columns += [Column(name, f"{place}/{name}") for name in ("degrees", "smoothed")]
            columns.append(Column("ms", f"{place}/step_milliseconds", "{:.0f}"))
        else:
            columns.append(Column(key, (f"{place}/psnr", f"{place}/step_milliseconds"), "{:.2f} ({:.0f})"))
    return Table(columns, rows, CAPTIONS[task], task)


EXPERIMENTS = {"fields": Experiment("fields", FieldsConfig, run, report)}
