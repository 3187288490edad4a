"""Neural fields behind three encodings, with equal parameters and equal networks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import permutohedral as ph
from experiments.experiment import Experiment, Log
from experiments.fields.encodings import Field, FrequencyEncoding, HashGrid, level_resolutions, permutohedral_encoding
from experiments.fields.tasks import Image, LightField, Surface, Task, Waves
from experiments.report import TITLE, Column, Page, Table, by_row, new_figure
from experiments.results import FORBID_EXTRA, Result, replacing, weights_path, write_json, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

TaskName = Literal["image", "surface", "light", "waves"]
EncodingName = Literal["permutohedral", "grid", "frequency"]

# the settings of --first tune
LEARNING_RATES = {
    "permutohedral": (0.003, 0.01, 0.03),
    "grid": (0.003, 0.01, 0.03),
    "frequency": (0.001, 0.003, 0.01),
}
SETTINGS: dict[str, dict[str, tuple[float, ...]]] = {
    "image": {"finest": (512.0, 1024.0, 2048.0)},
    "surface": {
        "finest": (32.0, 64.0, 128.0),
        "normal_weight": (1.0, 3.0, 10.0),
        "eikonal_weight": (0.1, 0.3, 1.0),
        "volume_weight": (0.03, 0.1, 0.3),
        "window": (0.0, 0.3, 0.6),
    },
    "light": {"finest": (32.0, 64.0, 128.0)},
    "waves": {"finest": (8.0, 16.0, 32.0)},
}
# scores during a training, before the last one
_MARKS = 7
CAPTIONS = {
    "image": "A mosaic of photographs, 20 megapixels: PSNR in dB (milliseconds of a step).",
    "surface": "A signed distance from points with normals: errors in thousandths of the cube, and degrees of normals.",
    "light": "A light field that changes with time: PSNR in dB (milliseconds of a step).",
    "waves": "Waves of one length in d dimensions: PSNR in dB (milliseconds of a step).",
}


@dataclass(frozen=True, config=FORBID_EXTRA)
class FieldsConfig:
    """One row of a table: fields with one encoding, one for each dimension and table size.

    Attributes:
        name: of the row and its files.
        title: in the table.
        task: field to learn.
        encoding: of the positions.
        training: `batch_size` counts positions.
        dimensions: of the positions: 2 for "image", 3 for "surface", 4 or 5 for "light", any for "waves".
        table_sizes: rows of the table of each level, as powers of 2.
        levels: of the table.
        features: channels of the table.
        coarsest: resolution of the first level.
        finest: resolution of the last level.
        axes: factors of the resolution of each axis. Default: ones.
        window: part of the steps after which all levels are shown, coarse ones first. Default: all from the start.
        turned: rotate the solids of "surface".
        normal_weight, eikonal_weight, volume_weight: of the loss of "surface".
        hidden: channels of the two hidden layers of the network.
        photographs: of the mosaic.
        test_points: positions to evaluate on.
        backend: of our encoding; "reference" is plain torch.
        compiled: train with `torch.compile`, which has no second derivatives for "surface".
        validation: learn another field of the same kind, to choose settings on.
        seed: of weights, shifts and batches.
    """

    name: str
    title: str
    task: TaskName
    encoding: EncodingName
    training: TrainingSettings
    dimensions: tuple[int, ...]
    table_sizes: tuple[int, ...]
    levels: int = 12
    features: int = 2
    coarsest: float = 8.0
    finest: float = 512.0
    axes: tuple[float, ...] | None = None
    window: float = 0.0
    turned: bool = False
    normal_weight: float = 1.0
    eikonal_weight: float = 1.0
    volume_weight: float = 0.1
    hidden: int = 64
    photographs: int = 132
    test_points: int = 2**17
    backend: Literal["auto", "reference"] = "auto"
    compiled: bool = False
    validation: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        fitting = {"image": (2,), "surface": (3,), "light": (4, 5), "waves": range(1, 8)}[self.task]
        if not self.dimensions or any(d not in fitting for d in self.dimensions):
            raise InputError(f"dimensions must be in {tuple(fitting)} for the task {self.task}, got {self.dimensions}")
        if self.axes is not None and any(len(self.axes) != d for d in self.dimensions):
            raise InputError(f"axes must have a factor for each of {self.dimensions} dimensions, got {self.axes}")


def make_task(config: FieldsConfig, d: int, options: RunOptions) -> Task:
    """Return the field to learn."""
    if config.task == "image":
        return Image(options.device, config.photographs, options.data, config.validation)
    if config.task == "surface":
        weights = config.normal_weight, config.eikonal_weight, config.volume_weight
        return Surface(options.device, 2**18, config.validation, config.turned, weights)
    return (LightField if config.task == "light" else Waves)(d, options.device, config.validation)


def build_field(config: FieldsConfig, d: int, table_size: int, task: Task) -> Field:
    """Build the field of a row on the CPU, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    axes = torch.ones(d) if config.axes is None else torch.tensor(config.axes)
    resolutions = level_resolutions(config.levels, config.coarsest, config.finest, axes)
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
        pictures = {"truth": task.draw(None), "field": task.draw(field)} if config.task != "waves" else {}
    examples: dict[str, Any] = {
        name: (255 * picture).round().byte().cpu().numpy() for name, picture in pictures.items()
    }
    if examples:
        with replacing(_examples_path(config.name, config.seed, options)) as unfinished:
            np.savez_compressed(unfinished, **examples)
    return {"fields": fields, "weights": count_weights(field)}, {"all": time.perf_counter() - started}


def train(field: Field, task: Task, config: FieldsConfig, options: RunOptions, suffix: str) -> dict[str, Any]:
    """Train a field; return its scores, those on the way, and the median time of a step without its batch.

    Without a GPU it is processor time.
    """
    settings, seconds, ended = config.training, list[float](), 0.0
    every = max(1, settings.steps // (_MARKS + 1))
    # a buffer is in the checkpoints
    field.register_buffer("curve", torch.zeros(_MARKS, dtype=torch.float64, device=options.device))

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
        mark, rest = divmod(step, every)
        if rest == 0 and 0 < mark <= _MARKS:
            field.curve[mark - 1] = task.evaluate(field, config.test_points // 8)[task.score]
        drawn = task.batch(settings.batch_size, config.seed * 1_000_003 + step)
        ended = clock()
        return drawn

    # as in Instant-NGP: rows of the table that few positions reach take steps of full length
    groups = [{"params": list(field.parameters()), "betas": (0.9, 0.99), "eps": 1e-15}]
    folder, capture = checkpoint_folder(config, options, suffix), options.device.type == "cuda"
    loss = partial(task.loss, torch.compile(field) if config.compiled else field)
    fit(field, loss, settings, options, folder, batch=batch, groups=groups, capture=capture)
    write_weights(weights_path(config, options.output, suffix), field)
    scores = task.evaluate(field, config.test_points)
    return {
        **scores,
        "curve": [round(value, 6) for value in [*field.curve.tolist(), scores[task.score]]],
        # the first one began before the training; a resumed training may have no step left
        "step_milliseconds": round(1000 * statistics.median(seconds[1:]), 2) if seconds[1:] else None,
    }


def tune(configs: list[FieldsConfig], options: RunOptions, log: Log) -> list[FieldsConfig]:
    """Choose the learning rate of each row, then its `SETTINGS`, on another field; write `tuning/ROW.json`.

    Settings are chosen one after the other, from the middle of all ranges. Trainings have all steps, the middle
    dimension and the smallest table.
    """
    return [_tune_row(config, options, log) for config in configs]


def _tune_row(config: FieldsConfig, options: RunOptions, log: Log) -> FieldsConfig:
    d, power = config.dimensions[len(config.dimensions) // 2], config.table_sizes[0]
    trial = replace(config, test_points=config.test_points // 8, validation=True, seed=1000)
    ranges = {"learning_rate": LEARNING_RATES[config.encoding], **SETTINGS[config.task]}
    chosen, scores = {name: values[1] for name, values in ranges.items()}, dict[str, float]()

    def configure(start: FieldsConfig) -> FieldsConfig:
        training = replace(start.training, learning_rate=chosen["learning_rate"])
        others: dict[str, Any] = {name: chosen[name] for name in SETTINGS[config.task]}
        return replace(start, training=training, **others)

    for name, values in ranges.items():
        found = dict[float, float]()
        for chosen[name] in values:
            key = ", ".join(f"{value:g}" for value in chosen.values())
            setting = configure(trial)
            task = make_task(setting, d, options)
            if key not in scores:
                field = build_field(setting, d, 2**power, task).to(options.device)
                with TemporaryDirectory() as folder:
                    result = train(field, task, setting, replace(options, output=Path(folder), resume=False), "")
                scores[key] = result[task.score]
                log(f"{config.name}: {', '.join(ranges)} = {key}: {task.score} {scores[key]:.5g}")
            found[chosen[name]] = scores[key]
        chosen[name] = (min if task.score == "error" else max)(found, key=found.__getitem__)
    content = {task.score: scores, "settings": list(ranges), "steps": config.training.steps}
    write_json(options.output / "tuning" / f"{config.name}.json", content)
    return configure(config)


def _examples_path(name: str, seed: int, options: RunOptions) -> Path:
    return options.output / "examples" / f"{name}-{seed}.npz"


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report a table and a figure for each task."""
    tasks = {name: [result for result in results if result.config["task"] == name] for name in CAPTIONS}
    drawn = {name: draw(name, rows, options) for name, rows in tasks.items() if rows and name != "waves"}
    figures = {f"{name}.jpg": (CAPTIONS[name], figure) for name, figure in drawn.items()}
    text = (
        "Fields behind the same network of two hidden layers. Tables have equal levels, rows and features, and as many "
        "lattice points as grid points per volume. Milliseconds are those of a step: loss, gradients and update, "
        "without drawing the batch; without a GPU they are processor time. Curves are scores over these times. "
        "Numbers of weights are in `runs/`; frequencies have no table."
    )
    tables = [make_table(name, rows) for name, rows in tasks.items() if rows]
    return [Page("Neural fields", text, tables, figures=figures)]


def make_table(task: str, rows: Sequence[Result]) -> Table:
    """Return the table of a task.

    >>> metrics = {"fields": {"d=5, 2^14": {"psnr": 30.0, "step_milliseconds": 20.0}}}
    >>> print(str(make_table("light", [Result("fields", "a", {"title": "A"}, metrics, 0)])).splitlines()[-1])
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


def draw(task: str, results: Sequence[Result], options: RunOptions) -> Any:
    """Draw the truth, the last field of every row but turned ones, and scores over the seconds of training."""
    pictures: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for runs in by_row([result for result in results if not result.config.get("turned")]).values():
        title, last = runs[0].config["title"], list(runs[0].metrics["fields"].values())[-1]
        each = (last["step_milliseconds"] or 0) / 1000 * runs[0].config["training"]["steps"] / (_MARKS + 1)
        curves[title] = [(each * (mark + 1), score) for mark, score in enumerate(last["curve"])]
        path = _examples_path(runs[0].name, runs[0].seed, options)
        if path.is_file():
            with np.load(path) as content:
                pictures |= {"truth": content["truth"], title: content["field"]}
    figure = new_figure(2.2 * len(pictures) + 3.2, 2.5)
    *axes, last_axis = figure.subplots(1, len(pictures) + 1, squeeze=False, width_ratios=[2.2] * len(pictures) + [3])[0]
    for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
        axis.imshow(picture, interpolation="nearest")
        axis.set_title(title, fontsize=8)
        axis.set(xticks=[], yticks=[])
    for title, curve in curves.items():
        last_axis.plot(*zip(*curve, strict=True), marker=".", label=title)
    last_axis.set(xlabel="seconds of training", ylabel="mean error" if task == "surface" else "PSNR, dB")
    last_axis.legend(fontsize=6)
    return figure


EXPERIMENTS = {"fields": Experiment("fields", FieldsConfig, run, report, actions={"tune": tune})}
