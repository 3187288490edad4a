"""Networks on point clouds: accuracy, other densities, shifts and turns, and cost. `PROTOCOL.md` has the rules."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import permutohedral as ph
from experiments.experiment import Experiment, Outcome, Row
from experiments.points.data import (
    UNKNOWN,
    Cloud,
    Split,
    Task,
    collate,
    load_digits,
    load_folder,
    load_lidar,
    thin_each,
    turn,
)
from experiments.points.grids import Grid
from experiments.points.networks import NetworkName, build_network
from experiments.report import TITLE, WEIGHTS, Column, Lines, Page, Table, by_row
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.apps.jobs.cloud_tiles import cut_tiles
from permutohedral.errors import InputError

# percent of the points of test clouds, and draws of those below 100; of many clouds one draw, and few are moved
SHARES, DRAWS, MANY_CLOUDS = (100, 50, 25, 10, 5), 3, 1000
MOVES = ("shift", "turn", "both")
# of tiles, in meters, and clouds that are classified together
_SIDE, _MARGIN, _BATCH = 40.0, 15.0, 64
# sites of other networks than the lattice, next to its own
_MATCH = 0.02


@dataclass(frozen=True, config=FORBID_EXTRA)
class PointsConfig(Row):
    """One row of a table.

    Attributes:
        data: "lidar", "digits", or the name of a folder of clouds, such as "parts".
        network: see `PROTOCOL.md`.
        widths: channels of its levels.
        cell: or step of the finest level, in units of the positions.
        inputs: what the network sees of the points.
        options: arguments of the network.
        training: how to train; the batch size counts clouds. None: measure time alone.
        shares: of the points of training clouds, log-uniform between these.
        points: numbers of points to measure time on.
        match: measure on cells with as many sites as a lattice of step `cell` has.
        precision: of the measured time.
        threads: of the CPU while time is measured. Default: all.
        repetitions: that are measured, after a quarter as many that are not.
        crop_points: largest number of points of a training crop of "lidar".
        limit: largest number of points of a test, or a hundred times that of clouds. Default: all.
        split: evaluate on "test", or on "validation" after training on a part.
    """

    data: str
    network: NetworkName
    widths: tuple[int, ...]
    cell: float
    inputs: tuple[str, ...]
    training: TrainingSettings | None
    options: dict[str, Any] = field(default_factory=dict)
    shares: tuple[float, float] = (1.0, 1.0)
    points: tuple[int, ...] = ()
    match: bool = True
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    threads: int | None = None
    repetitions: int = 20
    crop_points: int = 20_000
    limit: int | None = None
    split: Split = "test"

    def __post_init__(self) -> None:
        if not 0 < self.shares[0] <= self.shares[1] <= 1:
            raise InputError(f"shares must be two numbers with 0 < low <= high <= 1, got {self.shares}")
        if (self.training is None) != bool(self.points):
            raise InputError(f"points must be given where training is null, and only there, got {self.points}")


def load_task(config: PointsConfig, options: RunOptions) -> Task:
    """Return the data of a row on the device."""
    assert config.training is not None
    where = config.split, options.data, options.device, config.training.batch_size, config.seed
    if config.data in ("lidar", "digits"):
        task = load_lidar(*where, config.crop_points) if config.data == "lidar" else load_digits(*where)
    else:
        task = load_folder(config.data, *where)
    if config.limit is None:
        return task
    return replace(task, tests={place: limit(clouds, config.limit) for place, clouds in task.tests.items()})


def limit(clouds: Sequence[Cloud], number: int) -> list[Cloud]:
    """Return at most this number of points of one scan, or a hundredth as many clouds."""
    if len(clouds) > 1:
        return list(clouds[: max(number // 100, 2)])
    generator = torch.Generator(clouds[0].positions.device).manual_seed(0)
    return [clouds[0].thin(number / len(clouds[0].positions), generator)]


def build_model(config: PointsConfig, task: Task) -> nn.Module:
    """Build the network of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    cloud = next(iter(task.tests.values()))[0]
    unknown = [name for name in config.inputs if name not in cloud.inputs]
    if unknown:
        raise InputError(f"inputs must be among {', '.join(cloud.inputs)} for {config.data}, got {unknown[0]!r}")
    sizes = cloud.values(config.inputs).shape[1], len(task.classes), task.dimension
    return build_network(config.network, *sizes, config.cell, config.widths, task.head, config.options)


def run(config: PointsConfig, options: RunOptions) -> Outcome:
    """Train and evaluate one row, or measure its time."""
    started = time.perf_counter()
    if config.training is None:
        measured = {str(points): measure(config, points, options.device) for points in config.points}
        return {"cost": measured}, {"measuring": time.perf_counter() - started}
    task = load_task(config, options)
    network = build_model(config, task).to(options.device)

    def batch(step: int) -> tuple[Tensor, ...]:
        return collate(thin_each(task.draw(step), config.shares, config.seed, step), config.inputs)

    def loss(values: Tensor, positions: Tensor, item: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(network(values, positions, item).float(), labels, ignore_index=UNKNOWN)

    fit(network, loss, config.training, options, checkpoint_folder(config, options), batch=batch)
    trained = time.perf_counter()
    write_weights(weights_path(config, options.output), network)
    network.eval()
    metrics: dict[str, Any] = {"weights": count_weights(network), "scores": {}}
    for place, clouds in task.tests.items():
        metrics["scores"][place] = {str(share): evaluate(network, config, task, clouds, share) for share in SHARES}
    first = next(iter(task.tests.values()))
    metrics["changed"] = {name: changed(network, config, task, first[:MANY_CLOUDS], name) for name in MOVES}
    return metrics, {"training": trained - started, "evaluation": time.perf_counter() - trained}


@torch.no_grad()
def predict(network: nn.Module, config: PointsConfig, clouds: Sequence[Cloud]) -> Tensor:
    """Return the class of each cloud, or of each point of all clouds; scans are cut into tiles."""

    def call(batch: Sequence[Cloud]) -> Tensor:
        result: Tensor = network(*collate(batch, config.inputs)[:3]).argmax(dim=1)
        return result

    if not clouds[0].labels.dim():
        return torch.cat([call(clouds[first : first + _BATCH]) for first in range(0, len(clouds), _BATCH)])
    if config.data != "lidar":
        return torch.cat([call([cloud]) for cloud in clouds])
    found = [torch.zeros_like(cloud.labels) for cloud in clouds]
    for classes, cloud in zip(found, clouds, strict=True):
        for points, own in cut_tiles(cloud.positions, _SIDE, _MARGIN):
            classes[points[own]] = call([cloud.select(points)])[own]
    return torch.cat(found)


def evaluate(network: nn.Module, config: PointsConfig, task: Task, clouds: Sequence[Cloud], share: int) -> Any:
    """Return the score, accuracy and intersection over union of each class, of some percent of the points.

    The score is the mean of the intersections over unions of classes that the clouds have, or the accuracy of whole
    clouds. Draws of less than all points are pooled.
    """
    number = len(task.classes)
    confusion = torch.zeros(number, number, dtype=torch.int64)
    for draw in range(DRAWS if share < 100 and len(clouds) <= MANY_CLOUDS else 1):
        generator = torch.Generator(clouds[0].positions.device).manual_seed(draw)
        thinned = [cloud.thin(share / 100, generator) for cloud in clouds]
        labels = torch.cat([cloud.labels.reshape(-1) for cloud in thinned])
        pairs = (labels * number + predict(network, config, thinned))[labels != UNKNOWN]
        confusion += torch.bincount(pairs, minlength=number**2).view(number, number).cpu()
    right, there = confusion.diagonal().double(), confusion.sum(dim=1) > 0
    shares = right / (confusion.sum(dim=0) + confusion.sum(dim=1) - right).clamp_min(1)
    accuracy, miou = float(right.sum() / confusion.sum().clamp_min(1)), float(shares[there].mean())
    found = {"score": miou if task.head == "points" else accuracy, "accuracy": accuracy}
    if task.head == "clouds" and share < 100:
        return found
    return found | {"iou": {task.classes[each]: float(shares[each]) for each in there.nonzero()[:, 0].tolist()}}


def changed(network: nn.Module, config: PointsConfig, task: Task, clouds: Sequence[Cloud], kind: str) -> float:
    """Return the share of points or clouds whose class changes with the position of the cloud, over four draws."""
    expected, shares = predict(network, config, clouds), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        moved = []
        for cloud in clouds:
            angle, *shift = torch.rand(1 + task.dimension, generator=generator).tolist()
            turned = turn(cloud, 2 * math.pi * angle) if kind != "shift" and task.turn else cloud
            step = cloud.positions.new_tensor(shift) * 100 * config.cell * (kind != "turn")
            moved.append(replace(turned, positions=turned.positions + step))
        shares.append(float((predict(network, config, moved) != expected).double().mean()))
    return sum(shares) / len(shares)


def draw_hills(points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return positions and items of 8 generated clouds of about 45 points a square meter: hills with trees.

    >>> [each.shape for each in draw_hills(800, torch.device("cpu"))]
    [torch.Size([800, 3]), torch.Size([800])]
    """
    generator = torch.Generator().manual_seed(points)
    ground = 21 * math.sqrt(points / 160_000) * torch.rand(points, 2, generator=generator)
    # crowns of 5 m, 7 m apart
    crown = 6 * (1 - ((ground.remainder(7.0) - 3.5) / 2.5).square().sum(dim=1)).clamp_min(0).sqrt()
    height = 3 * (ground / 9).sin().sum(dim=1) + crown + 0.1 * torch.randn(points, generator=generator)
    item = torch.arange(points) * 8 // points
    return torch.column_stack([ground, height]).to(device), item.to(device)


def count_sites(network: NetworkName, positions: Tensor, item: Tensor, cell: float) -> int:
    """Return the number of sites of the finest level."""
    if network == "lattice":
        return ph.build_lattice(positions / cell, batch=item).num_lattice_points
    return len(Grid(positions / cell, item, 1, network == "trilinear").points.keys)


def match_cell(network: NetworkName, positions: Tensor, item: Tensor, step: float) -> float:
    """Return the cell with which a network has as many sites as a lattice of this step has, within 2 %."""
    wanted = count_sites("lattice", positions, item, step)
    low, high = step / 4, step * 4
    for _ in range(20):
        cell = math.sqrt(low * high)
        sites = count_sites(network, positions, item, cell)
        if abs(sites / wanted - 1) <= _MATCH:
            break
        low, high = (cell, high) if sites > wanted else (low, cell)
    return cell


def measure(config: PointsConfig, points: int, device: torch.device) -> dict[str, float]:
    """Return milliseconds of a training step and of an inference, levels included, and what they need."""
    positions, item = draw_hills(points, device)
    cell, gridded = config.cell, config.network not in ("pointnet", "pointwise")
    if config.match and gridded and config.network != "lattice":
        cell = match_cell(config.network, positions, item, config.cell)
    torch.manual_seed(config.seed)
    options: Any = (1, 3, 3, cell, config.widths, "points", config.options)
    network = build_network(config.network, *options).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), fused=device.type == "cuda")
    values, labels = torch.ones_like(positions[:, :1]), torch.arange(points, device=device) % 3

    def scores() -> Tensor:
        autocast = torch.autocast(device.type, torch.bfloat16)
        with autocast if config.precision == "bf16-mixed" else nullcontext():
            result: Tensor = network(values, positions, item)
        return result.float()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(scores(), labels).backward()
        optimizer.step()

    found: dict[str, float] = {"weights": count_weights(network), "cell": cell}
    if gridded:
        found["sites"] = count_sites(config.network, positions, item, cell)
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads or before)
    try:
        found |= _time("step", step, config.repetitions, device)
        network.eval()
        with torch.no_grad():
            found |= _time("inference", scores, config.repetitions, device)
    finally:
        torch.set_num_threads(before)
    return found | {"points_per_second": 1000 * points / found["inference_ms"]}


def _time(name: str, function: Callable[[], object], repetitions: int, device: torch.device) -> dict[str, float]:
    """Return the median milliseconds, and on a GPU the peak of the memory in MiB."""
    times = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repetitions + repetitions // 4):
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started))
    found = {f"{name}_ms": median(times[-repetitions:])}
    return found | ({f"{name}_mib": torch.cuda.max_memory_allocated() / 2**20} if device.type == "cuda" else {})


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report accuracy, sampling and moves by data set, seeds one by one, and cost."""
    tables: list[Table | Lines] = []
    trained = [result for result in results if "scores" in result.metrics]
    for data in dict.fromkeys(result.config["data"] for result in trained):
        rows = [result for result in trained if result.config["data"] == data]
        places = list(dict.fromkeys(place for row in rows for place in row.metrics["scores"]))
        score, spread = "metrics/scores/{}/{}/score", " ± {:.3f}"
        columns = [TITLE, WEIGHTS, Column("Cell", "config/cell", "{:.2f}")]
        columns += [Column(place, score.format(place, 100), "{:.3f}", spread) for place in places]
        columns += [Column(f"{name}, %", f"metrics/changed/{name}", "{:.2f}", factor=100) for name in MOVES]
        caption = (
            "Scores on all points: mean over the seeds ± sample standard deviation. The last columns are the share "
        )
        caption += f"of classes in {places[0]} that change when the cloud is moved."
        tables.append(Table(columns, rows, caption, f"{data}: accuracy and moves"))
        columns = [TITLE, *(Column(f"{n} %", score.format(places[0], n), "{:.3f}", spread) for n in SHARES)]
        tables.append(Table(columns, rows, f"Scores on a share of the points of {places[0]}.", f"{data}: sampling"))
        lines = {}
        for name, runs in by_row(rows).items():
            each = [run.metrics["scores"][places[0]]["100"] for run in runs]
            classes = [f"{c} {' '.join(format(run['iou'][c], '.3f') for run in each)}" for c in each[0]["iou"]]
            seeds = ", ".join(f"{run['score']:.3f}" for run in each)
            lines[name] = [runs[0].config["title"], seeds, "; ".join(classes)]
        caption = f"Scores and intersections over unions in {places[0]}, seeds one by one."
        tables.append(Lines(["", "Score", "Classes"], lines, caption, f"{data}: seeds", (0, 1, 2)))
    cost = [result for result in results if "cost" in result.metrics]
    heads = {"weights": ",", "cell": ".3f", "sites": ",", "step_ms": ".2f", "inference_ms": ".2f", "step_mib": ",.0f"}
    heads |= {"points_per_second": ",.0f"}
    lines = {
        f"{result.name} {points}": [
            f"{result.config['title']}, {int(points):,} points",
            *(format(found[head], kind) if head in found else "" for head, kind in heads.items()),
        ]
        for result in cost
        for points, found in result.metrics["cost"].items()
    }
    if lines:
        tables.append(Lines(["", *(h.replace("_", " ") for h in heads)], lines, "", "Cost", results=cost))
    tried = {result.name: result.metrics["tried"] for result in results if "tried" in result.metrics}
    if tried:
        chosen = {name: max(scores, key=scores.__getitem__) for name, scores in tried.items()}
        lines = {name: [name, chosen[name], f"{scores[chosen[name]]:.3f}"] for name, scores in tried.items()}
        tables.append(Lines(["", "Chosen on validation data", "Score"], lines, "", "Choice", (0, 1)))
    text = "Levels are built in every step. The protocol is `experiments/points/PROTOCOL.md`."
    return [Page("Networks on point clouds", text, tables, name="points")]


EXPERIMENTS = {"points": Experiment("points", PointsConfig, run, report, seeds=5)}
