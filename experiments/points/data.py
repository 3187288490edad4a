"""Point clouds to classify: laser scans, digits, and folders of `.npz` files such as converted LDraw parts.

The format of a folder is in `PROTOCOL.md`. Networks that are chosen train on a part of what final networks train on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from experiments.data.download import find_folder
from experiments.data.lidar import CLASSES, PlaceName, Scan, halve, load_scan
from experiments.data.mnist import load_mnist
from experiments.lidar.scenes import Cropping, Scene, draw_crop, make_scene
from experiments.mnist.sampling import Sampling, derive_seed
from experiments.training import StepBatches
from permutohedral.errors import DataError

Split = Literal["test", "validation"]

UNKNOWN = -1
# of the west half of zurich, in meters from south to north; networks that are chosen train on what is south of it
_SOUTH, _GAP = 0.7, 1.0
CROPPING = Cropping(16.0, 22.0, sparsest=1e6, densest=1e6)
_HELD_OUT = 5000
_TINY = 8


@dataclass(frozen=True)
class Cloud:
    """Points and what networks may see of them.

    Attributes:
        positions: float32 `[points, d]`.
        inputs: float32 `[points, channels]` by name.
        labels: int64 `[points]`, or `[]` for the class of the whole cloud; -1 where unknown.
    """

    positions: Tensor
    inputs: dict[str, Tensor]
    labels: Tensor

    def select(self, chosen: Tensor) -> Cloud:
        """Return some of the points."""
        inputs = {name: values[chosen] for name, values in self.inputs.items()}
        return Cloud(self.positions[chosen], inputs, self.labels[chosen] if self.labels.dim() else self.labels)

    def thin(self, share: float, generator: torch.Generator) -> Cloud:
        """Return a random share of the points."""
        points = len(self.positions)
        if share >= 1 or points <= _TINY:
            return self
        order = torch.randperm(points, generator=generator, device=self.positions.device)
        return self.select(order[: max(round(share * points), _TINY)])

    def values(self, names: Sequence[str]) -> Tensor:
        """Return the named inputs side by side."""
        return torch.cat([self.inputs[name] for name in names], dim=1)


@dataclass(frozen=True)
class Task:
    """What networks learn.

    Attributes:
        classes: names.
        draw: returns the clouds of a training step.
        tests: clouds to evaluate on, by name of the place; the first one has the score.
        turn: whether the last coordinate is up and clouds may be turned about it.
    """

    classes: tuple[str, ...]
    draw: Callable[[int], list[Cloud]]
    tests: dict[str, list[Cloud]]
    turn: bool = True

    @property
    def head(self) -> Literal["points", "clouds"]:
        return "points" if next(iter(self.tests.values()))[0].labels.dim() else "clouds"

    @property
    def dimension(self) -> int:
        return next(iter(self.tests.values()))[0].positions.shape[1]


def collate(clouds: Sequence[Cloud], names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return values, positions, the cloud of each point, and labels of points or clouds."""
    positions = torch.cat([cloud.positions for cloud in clouds])
    sizes = torch.tensor([len(cloud.positions) for cloud in clouds], device=positions.device)
    batch = torch.repeat_interleave(torch.arange(len(clouds), device=positions.device), sizes)
    labels = torch.cat([cloud.labels.reshape(-1) for cloud in clouds])
    return torch.cat([cloud.values(names) for cloud in clouds]), positions, batch, labels


def thin_each(clouds: Sequence[Cloud], shares: tuple[float, float], seed: int, step: int) -> list[Cloud]:
    """Thin every cloud to a random share, log-uniform between two."""
    found: list[Cloud] = []
    for number, cloud in enumerate(clouds if shares != (1.0, 1.0) else ()):
        generator = torch.Generator(cloud.positions.device).manual_seed(derive_seed(seed, f"thin {step} {number}"))
        chance = float(torch.rand((), generator=generator, device=cloud.positions.device))
        found.append(cloud.thin(shares[0] * (shares[1] / shares[0]) ** chance, generator))
    return found or list(clouds)


def lidar_cloud(scene: Scene) -> Cloud:
    """Return the cloud of a scene or crop."""
    assert scene.labels is not None
    up = scene.positions[:, 2:]
    inputs = {"ones": torch.ones_like(up), "height": (up - up.mean()) / 10, "above": scene.values()}
    return Cloud(scene.positions, inputs, scene.labels)


def split_west(scan: Scan) -> tuple[Scan, Scan]:
    """Return the south 70 % of a scan without a gap of 1 m, and its north 30 %."""
    north = scan.positions[:, 1]
    limit = north.amin() + _SOUTH * (north.amax() - north.amin())
    return scan.select(north < limit - _GAP), scan.select(north >= limit)


def _scene(scan: Scan, device: torch.device) -> Scene:
    return make_scene(scan.positions, scan.labels).to(device)


@lru_cache(maxsize=2)
def _lidar_scenes(split: Split, folder: Path | None, device: torch.device) -> tuple[Scene, dict[str, list[Cloud]]]:
    west, east = halve(load_scan("zurich", folder))
    if split == "validation":
        west, north = split_west(west)
        return _scene(west, device), {"zurich": [lidar_cloud(_scene(north, device))]}
    places: tuple[PlaceName, ...] = ("fusa", "lake", "house")
    scans = {"zurich": east} | {place: load_scan(place, folder) for place in places}
    return _scene(west, device), {place: [lidar_cloud(_scene(scan, device))] for place, scan in scans.items()}


def load_lidar(
    split: Split, folder: Path | None, device: torch.device, batch_size: int, seed: int, crop_points: int
) -> Task:
    """Return crops of laser scans."""
    cropping = replace(CROPPING, points=crop_points)
    scene, tests = _lidar_scenes(split, folder, device)

    def draw(step: int) -> list[Cloud]:
        generators = [
            torch.Generator(device).manual_seed(derive_seed(seed, f"{step} {number}")) for number in range(batch_size)
        ]
        return [lidar_cloud(draw_crop(scene, cropping, generator)) for generator in generators]

    return Task(CLASSES, draw, tests)


def load_digits(split: Split, folder: Path | None, device: torch.device, batch_size: int, seed: int) -> Task:
    """Return digits as random samples of their pixels, in units of pixels."""
    sampling = Sampling("uniform")

    def sample(images: Tensor, labels: Tensor, sampling_seed: int, purpose: str) -> list[Cloud]:
        values, positions = sampling.sample(images.to(device).float() / 256, [sampling_seed], purpose)
        cells = zip(values, positions, labels.to(device), strict=True)
        return [Cloud(places, {"values": value}, label) for value, places, label in cells]

    images, labels = load_mnist("train", folder)
    if split == "validation":
        test_images, test_labels = images[-_HELD_OUT:], labels[-_HELD_OUT:]
        images, labels = images[:-_HELD_OUT], labels[:-_HELD_OUT]
    else:
        test_images, test_labels = load_mnist("test", folder)
    batches = StepBatches(len(images), batch_size, seed)

    def draw(step: int) -> list[Cloud]:
        chosen = batches(step)
        return sample(images[chosen], labels[chosen], seed, f"train {step}")

    tests = sample(test_images, test_labels, 0, "test")
    return Task(tuple("0123456789"), draw, {"digits": tests}, turn=False)


def read_cloud_file(path: Path) -> Cloud:
    """Read a cloud of a folder.

    Raises:
        DataError: positions or labels are missing or do not fit.
    """
    try:
        with np.load(path, allow_pickle=False) as content:
            positions = torch.from_numpy(content["positions"].astype(np.float32))
            labels = torch.from_numpy(content["labels"].astype(np.int64))
            inputs = {"ones": torch.ones(len(positions), 1), "height": positions[:, -1:].clone()}
            if "values" in content:
                inputs["values"] = torch.from_numpy(content["values"].astype(np.float32))
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError) as error:
        raise DataError(f"{path} is not a cloud: {error}; see experiments/points/PROTOCOL.md for the format") from error
    points = {len(values) for values in inputs.values()} | ({len(labels)} if labels.dim() else set())
    if positions.dim() != 2 or labels.dim() > 1 or points != {len(positions)}:
        raise DataError(f"{path}: positions, values and labels must have a row for each point, or one label")
    return Cloud(positions, inputs, labels)


@lru_cache(maxsize=2)
def _folder_clouds(root: Path, split: str, device: torch.device) -> list[Cloud]:
    paths = sorted((root / split).glob("*.npz"))
    if not paths:
        raise DataError(f"{root / split} has no .npz files; see experiments/points/PROTOCOL.md for the format")
    return [move(read_cloud_file(path), lambda tensor: tensor.to(device)) for path in paths]


def move(cloud: Cloud, function: Callable[[Tensor], Tensor]) -> Cloud:
    """Apply a function to all tensors."""
    inputs = {name: function(values) for name, values in cloud.inputs.items()}
    return Cloud(function(cloud.positions), inputs, function(cloud.labels))


def load_folder(name: str, split: Split, folder: Path | None, device: torch.device, batch_size: int, seed: int) -> Task:
    """Return the clouds of the folder `name` in the data folder, turned and scaled for training."""
    root = find_folder(name, folder, "the folders train, validation and test of .npz files")
    training = _folder_clouds(root, "train", device)
    if split == "test":
        training = training + _folder_clouds(root, "validation", device)
    tests = _folder_clouds(root, split, device)
    given = root / "classes.txt"
    number = 1 + max(int(cloud.labels.max()) for cloud in [*training, *tests])
    classes = given.read_text().split("\n")[:number] if given.is_file() else [str(each) for each in range(number)]
    batches = StepBatches(len(training), batch_size, seed)

    def draw(step: int) -> list[Cloud]:
        generator = torch.Generator().manual_seed(derive_seed(seed, f"turn {step}"))
        chances = torch.rand(batch_size, 2, generator=generator).tolist()
        return [
            turn(training[chosen], 2 * math.pi * angle, 0.9 + 0.2 * scale)
            for chosen, (angle, scale) in zip(batches(step), chances, strict=False)
        ]

    return Task(tuple(classes), draw, {name: tests}, turn=training[0].positions.shape[1] == 3)


def turn(cloud: Cloud, angle: float, scale: float = 1.0) -> Cloud:
    """Rotate the first two coordinates, and scale positions."""
    matrix = scale * torch.eye(cloud.positions.shape[1], device=cloud.positions.device)
    cosine, sine = scale * math.cos(angle), scale * math.sin(angle)
    matrix[:2, :2] = matrix.new_tensor([[cosine, sine], [-sine, cosine]])
    return replace(cloud, positions=cloud.positions @ matrix)
