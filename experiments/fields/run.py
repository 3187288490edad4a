"""Neural fields behind three encodings, with equal parameters and equal networks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import permutohedral as ph
from experiments.experiment import Experiment
from experiments.fields.encodings import Field, FrequencyEncoding, HashGrid, level_resolutions, permutohedral_encoding
from experiments.fields.tasks import Image, LightField, Surface, Task, Waves
from experiments.report import TITLE, Column, Page, Table, by_row, new_figure
from experiments.results import FORBID_EXTRA, Result, replacing, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

TaskName = Literal["image", "surface", "light", "waves"]
EncodingName = Literal["permutohedral", "grid", "frequency"]

# scores during a training, before the last one
_MARKS = 7
CAPTIONS = {
    "image": "A mosaic of photographs, 20 megapixels: PSNR in dB.",
    "surface": "A signed distance from points with normals. Errors are 1/1000 of the extent of the cube.",
    "light": "A light field that changes with time: PSNR in dB.",
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
        hidden: channels of the two hidden layers of the network.
        photographs: of the mosaic.
        test_points: positions to evaluate on.
        backend: of our encoding; "reference" is plain torch.
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
    hidden: int = 64
    photographs: int = 132
    test_points: int = 2**17
    backend: Literal["auto", "reference"] = "auto"
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
        return Image(options.device, config.photographs, options.data)
    if config.task == "surface":
        return Surface(options.device, cloud=2**18)
    return (LightField if config.task == "light" else Waves)(d, options.device)


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
    metrics: dict[str, Any] = {}
    with nullcontext() if config.backend == "auto" else ph.backends.use(config.backend):
        for d in config.dimensions:
            for power in config.table_sizes:
                task = make_task(config, d, options)
                field = build_field(config, d, 2**power, task).to(options.device)
                metrics[f"{d}, {power}"] = train(field, task, config, options, f"-{d}-{power}")
        examples = {"truth": task.draw(None), "field": task.draw(field)} if config.task != "waves" else {}
    with replacing(_examples_path(config.name, config.seed, options)) as partial:
        pictures = {name: (255 * picture).round().byte().cpu().numpy() for name, picture in examples.items()}
        np.savez_compressed(partial, **pictures)
    return metrics, {"all": time.perf_counter() - started}


class _Marked(nn.Module):
    """A field in training with its scores so far, which its checkpoints hold, too."""

    curve: Tensor

    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field
        self.register_buffer("curve", torch.zeros(_MARKS, dtype=torch.float64))


def train(field: Field, task: Task, config: FieldsConfig, options: RunOptions, suffix: str) -> dict[str, Any]:
    """Train a field; return its scores, those on the way, and seconds of training without batches and scores.

    Without a GPU, seconds are processor time.
    """
    settings, marked, others = config.training, _Marked(field), 0.0
    every = max(1, settings.steps // (_MARKS + 1))

    def clock() -> float:
        if options.device.type != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def batch(step: int) -> tuple[Tensor, ...]:
        nonlocal others
        started = clock()
        mark, rest = divmod(step, every)
        if rest == 0 and 0 < mark <= _MARKS:
            marked.curve[mark - 1] = task.evaluate(field, config.test_points // 8)[task.score]
        drawn = task.batch(settings.batch_size, config.seed * 1_000_003 + step)
        others += clock() - started
        return drawn

    # as in Instant-NGP: rows of the table that few positions reach take steps of full length
    groups = [{"params": list(field.parameters()), "betas": (0.9, 0.99), "eps": 1e-15}]
    started = clock()
    steps = fit(
        marked,
        lambda *drawn: task.loss(field, *drawn),
        settings,
        options,
        checkpoint_folder(config, options, suffix),
        batch=batch,
        groups=groups,
        capture=options.device.type == "cuda",
    )
    step_seconds = (clock() - started - others) / max(1, steps)
    write_weights(weights_path(config, options.output, suffix), field)
    scores = task.evaluate(field.eval(), config.test_points)
    return {
        **scores,
        "curve": [round(value, 6) for value in [*marked.curve.tolist(), scores[task.score]]],
        "weights": count_weights(field),
        "step_milliseconds": round(1000 * step_seconds, 2),
        "training_seconds": round(step_seconds * settings.steps, 2),
    }


def _examples_path(name: str, seed: int, options: RunOptions) -> Path:
    return options.output / "examples" / f"{name}-{seed}.npz"


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report a table for each task, pictures, and scores over time."""
    tasks = {name: [result for result in results if result.config["task"] == name] for name in CAPTIONS}
    tables = [make_table(name, rows) for name, rows in tasks.items() if rows]
    drawn = {name: draw_pictures(rows, options) for name, rows in tasks.items() if rows and name != "waves"}
    figures = {f"{name}.png": (CAPTIONS[name], figure) for name, figure in drawn.items() if figure is not None}
    figures["curves.png"] = ("Scores over the time of training", draw_curves(tasks))
    text = (
        "Fields behind the same network of two hidden layers. Tables have equal levels, rows and features, and as many "
        "lattice points as grid points per volume. Milliseconds are those of a step: loss, gradients and update, "
        "without drawing the batch; without a GPU they are processor time. Learning rates and finest levels were "
        "chosen for each encoding on shorter trainings."
    )
    return [Page("Neural fields", text, tables, figures=figures)]


def make_table(task: str, rows: Sequence[Result]) -> Table:
    """Return the table of a task.

    >>> metrics = {"5, 14": {"psnr": 30.0, "step_milliseconds": 20.0, "weights": 7000}}
    >>> print(str(make_table("light", [Result("fields", "a", {"title": "A"}, metrics, 0)])).splitlines()[-1])
    | A | 30.00 | 20 | 7,000 |
    """
    keys = sorted({key for row in rows for key in row.metrics}, key=lambda key: tuple(map(int, key.split(", "))))
    columns = [TITLE]
    if task == "waves":
        for key in keys:
            paths = f"metrics/{key}/psnr", f"metrics/{key}/step_milliseconds"
            columns.append(Column(f"d = {key.split(', ')[0]}", paths, "{:.1f} ({:.0f})"))
        return Table(columns, rows, CAPTIONS[task], task)
    for key in keys:
        d, power = key.split(", ")
        if task == "surface":
            columns += [
                Column("near", f"metrics/{key}/near", factor=1000),
                Column("anywhere", f"metrics/{key}/anywhere", factor=1000),
                Column("normals, degrees", f"metrics/{key}/degrees"),
            ]
        else:
            columns.append(Column(f"d = {d}, 2^{power}", f"metrics/{key}/psnr"))
    columns.append(Column("ms", f"metrics/{keys[-1]}/step_milliseconds", "{:.0f}"))
    columns.append(Column("weights", f"metrics/{keys[-1]}/weights", "{:,}"))
    return Table(columns, rows, CAPTIONS[task], task)


def draw_pictures(results: Sequence[Result], options: RunOptions) -> Any:
    """Draw the truth and the last field of every row; None if no row left a picture."""
    pictures: dict[str, Any] = {}
    for runs in by_row(results).values():
        path = _examples_path(runs[0].name, runs[0].seed, options)
        if path.is_file():
            with np.load(path) as content:
                pictures |= {"truth": content["truth"], runs[0].config["title"]: content["field"]}
    if not pictures:
        return None
    figure = new_figure(2.2 * len(pictures), 2.45)
    for axis, (title, picture) in zip(
        figure.subplots(1, len(pictures), squeeze=False)[0], pictures.items(), strict=True
    ):
        axis.imshow(picture, interpolation="nearest")
        axis.set_title(title, fontsize=8)
        axis.set(xticks=[], yticks=[])
    return figure


def draw_curves(tasks: Mapping[str, Sequence[Result]]) -> Any:
    """Draw the scores of the largest tables over the seconds of training."""
    shown = {task: rows for task, rows in tasks.items() if rows and task != "waves"}
    figure = new_figure(3.6 * max(1, len(shown)), 2.8)
    for axis, (task, rows) in zip(
        figure.subplots(1, max(1, len(shown)), squeeze=False)[0], shown.items(), strict=False
    ):
        for row in rows:
            metrics = list(row.metrics.values())[-1]
            curve = metrics["curve"]
            seconds = [metrics["training_seconds"] * (mark + 1) / len(curve) for mark in range(len(curve))]
            axis.plot(seconds, curve, marker=".", label=row.config["title"])
        axis.set(xlabel="seconds of training", ylabel="error" if task == "surface" else "PSNR, dB", title=task)
        if task == "surface":
            axis.set_yscale("log")
        axis.legend(fontsize=6)
    return figure


EXPERIMENTS = {"fields": Experiment("fields", FieldsConfig, run, report)}
