"""Classes for all points of a file: read, classify, write, draw."""

from __future__ import annotations

import sys
from pathlib import Path

import rich.console
import rich.progress
import torch
from torch import Tensor

from permutohedral.clouds.classify import classify_points
from permutohedral.clouds.scenes import make_scene
from permutohedral.clouds.weights import Description, load_segmenter
from permutohedral.data.cloud_files import read_cloud
from permutohedral.data.cloud_labels import check_target, copy_with_labels
from permutohedral.errors import InputError
from permutohedral.reporting.atomic import replacing


def segment_file(
    source: Path, target: Path, model: Path | None = None, picture: Path | None = None, device: str = "auto"
) -> dict[str, int]:
    """Write a copy of a point cloud with the classes that a network finds.

    Args:
        source: a `.laz`, `.las`, `.ply` or `.npz` file in meters, the last coordinate up.
        target: of the same format; replaced whole, or not at all.
        model: a file of `save_segmenter`; default: the one that comes with the package.
        picture: where to draw the classes from above; the ending names the format.
        device: "auto", "cpu" or "gpu".

    Returns:
        How many points each class has, by its name.

    Raises:
        InputError: an ending, a device or a class does not fit.
        DataError: a file cannot be read.
        StorageError: a file cannot be written.
    """
    check_target(source, target)
    if picture is not None:
        from permutohedral.reporting.figure import check_ending

        check_ending(picture)
    where = choose_device(device)
    network, description = load_segmenter(model)
    cloud = read_cloud(source)
    scene = make_scene(cloud.positions, above=description.above)
    with rich.progress.Progress(
        console=rich.console.Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("classifying", total=len(cloud.positions))
        network = network.to(where)
        classes = classify_points(network, scene, where, tell=lambda done: progress.update(task, completed=done))
    with replacing(target) as partial:
        copy_with_labels(source, target, partial, to_numbers(classes, description))
    if picture is not None:
        from permutohedral.clouds.picture import draw_from_above

        draw_from_above(scene.positions, classes, [each.name for each in description.classes], picture)
    counts = torch.bincount(classes, minlength=len(description.classes)).tolist()
    return {each.name: number for each, number in zip(description.classes, counts, strict=True)}


def to_numbers(classes: Tensor, description: Description) -> Tensor:
    """Classes of a network to numbers of the LAS standard, uint8 `[points]`."""
    numbers = torch.tensor([each.numbers[-1] for each in description.classes], dtype=torch.uint8)
    return numbers[classes.cpu()]


def choose_device(name: str) -> torch.device:
    """The device of this name.

    Raises:
        InputError: the name is wrong, or there is no GPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name not in ("auto", "cpu", "gpu"):
        raise InputError(f"the accelerator must be auto, cpu or gpu, got {name!r}")
    if name == "gpu" and not torch.cuda.is_available():
        raise InputError("there is no GPU that torch can use; leave --accelerator out to run on the processor")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
