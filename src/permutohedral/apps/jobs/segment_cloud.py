"""`permutohedral cloud segment`: classify the points of clouds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from permutohedral.apps.io import clouds as cloud_formats
from permutohedral.apps.io.atomic import replacing
from permutohedral.apps.io.settings import PathLike, Progress, check_outputs, choose_device, optional_path
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.cloud_tiles import classify_points
from permutohedral.apps.models.point_segmentation import PointSegmenter
from permutohedral.errors import InputError


@dataclass(frozen=True)
class SegmentedCloud(batch.JobResult):
    """Result of `segment_cloud`.

    Attributes:
        classes: number of points of each class, by name.
    """

    classes: dict[str, int] = field(default_factory=dict)

    def _details(self) -> str:
        total = max(sum(self.classes.values()), 1)
        return ": " + ", ".join(f"{name} {100 * number / total:.1f} %" for name, number in self.classes.items())


def segment_cloud(
    inputs: Inputs,
    output: PathLike,
    *,
    model: PathLike | None = None,
    image: PathLike | None = None,
    device: str = "auto",
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[SegmentedCloud]:
    """Classify all points of clouds and write copies with the classes, atomically.

    Args:
        inputs: `.laz`, `.las`, `.ply` or `.npz` file, in meters, the last coordinate up; a folder, or a list of these.
        output: file of the same format to write, or a folder for several. An existing file is replaced, except an
            input.
        model: file that `PointSegmenter.save` wrote, of a network of positions alone. None is shipped: train one on
            classified points.
        image: draw the classes from above into this file; the suffix selects the format. For a single input.
        device, recursive, errors, progress: see `filter_image`.

    Returns:
        One result per cloud.

    Raises:
        InputError: a path, the device or a class does not fit, or there is no model.
        DataError: an input or the model cannot be read.
        StorageError: an output cannot be written.
    """
    given, drawn = optional_path("model", model), optional_path("image", image)
    files = batch.plan_files(inputs, output, recursive, list_folder=cloud_formats.list_clouds, check=_check_formats)
    read = [*filter(None, [given]), *(source for source, _ in files)]
    check_outputs(read, [*filter(None, [drawn]), *(target for _, target in files)])
    if drawn is not None:
        from permutohedral.apps.io.figure import check_ending

        check_ending(drawn)
        if len(files) > 1:
            raise InputError("image shows one cloud, but there are several inputs; leave it out")
    if given is None:
        raise InputError(
            "model is missing, and none is shipped; train one on classified points in thirty lines, see "
            "https://permutohedral.readthedocs.io/auto_tutorials/own_laser_scans.html, save it with "
            "PointSegmenter.save, and pass its file"
        )
    where = choose_device(device)
    network = PointSegmenter.load(given).to(where)
    if network.network.in_channels:
        raise InputError(
            f"model {model} reads {network.network.in_channels} values of each point, which files lack; pass a network "
            "of positions alone, PointSegmenter(0, ...)"
        )
    names = list(network.classes)
    numbers = torch.tensor(list(network.classes.values()), dtype=torch.uint8)

    def process(source: Path, target: Path, report: Callable[[float], None]) -> SegmentedCloud:
        _check_formats(target, source)
        positions = cloud_formats.read_cloud(source).positions
        if len(positions):
            positions = positions - (positions.amin(dim=0) + positions.amax(dim=0)) / 2
        near, started = positions.float(), time.perf_counter()
        nothing = near.new_zeros(len(near), 0)
        classes = classify_points(network, near, nothing, where, progress=lambda done: report(done / len(near)))
        seconds = round(time.perf_counter() - started, 4)
        with replacing(target) as partial:
            cloud_formats.copy_with_labels(source, partial, numbers[classes.cpu()])
        if drawn is not None:
            from permutohedral.apps.io.figure import draw_from_above

            draw_from_above(near, classes, names, drawn)
        counts = torch.bincount(classes, minlength=len(names)).tolist()
        return SegmentedCloud(source, target, seconds, None, dict(zip(names, counts, strict=True)))

    return batch.process_files(process, SegmentedCloud, files, errors, progress)


def _check_formats(output: Path, source: Path) -> None:
    cloud_formats.check_same_format(source, output)
