"""Point clouds from file to file: smooth laser scans, classify points, train networks that classify."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from permutohedral.errors import DataError, InputError, StorageError
from permutohedral.files import cloud_formats, cloud_models, cloud_scenes
from permutohedral.files.atomic import replacing, write_bytes
from permutohedral.files.cloud_scenes import Cropping, Scene
from permutohedral.files.partial import PartialStore, check_settings
from permutohedral.files.settings import (
    Progress,
    check_not_overwritten,
    check_positive,
    choose_device,
    digest,
    reading,
    to_path,
)
from permutohedral.files.tasks import TaskPool, open_pool
from permutohedral.files.tiling import cast_rounded, working_dtype

# value of `field` for the coordinates
_POSITION = "position"
# fields of the LAS standard that are measured; the others are categories, counts and flags
_MEASURED = ("intensity", "scan_angle", "scan_angle_rank", "gps_time", "red", "green", "blue", "nir")
# larger chunks take more memory and are not faster
_MAX_CHUNK_POINTS = 2_000_000
# of the experiment's lattice U-Net
_NETWORK_OPTIONS = {"channels": [16, 24, 40, 48], "step": 0.7, "between": "linear"}
_LEARNING_RATE, _WARMUP_STEPS = 0.003, 50


def smooth_cloud(
    input: str | Path,
    output: str | Path,
    *,
    sigma_space: float = 1.0,
    field: str = _POSITION,
    workers: int = 0,
    memory: str | None = None,
    scheduler: str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> int:
    """Replace every point of a laser scan, or one field of it, by a Gaussian mean over the points around.

    The file is read in chunks, so it may be larger than memory. The output appears under its name when it is complete.

    Args:
        input: `.las` or `.laz` file.
        output: `.las` or `.laz` file to write, a copy but for the smoothed field. An existing file is replaced,
            except the input.
        sigma_space: standard deviation of the Gaussian, in units of the coordinates.
        field: "position", or a measured field such as "intensity". Classes, counts and flags raise `InputError`.
        workers: worker processes to start; 0 computes in this process.
        memory: limit per worker, such as "2GiB"; default: an equal share.
        scheduler: address of an existing Dask scheduler to use instead.
        resume: whether to resume an interrupted call. A complete output is kept.
        progress: called with the number of finished chunks, their total, and the stage.

    Returns:
        the number of points.

    Raises:
        InputError: an argument does not fit.
        DataError: the input cannot be read.
        StorageError: the output cannot be written.
    """
    from permutohedral.dask.workers import check_main_guard

    if workers or memory is not None:
        check_main_guard()
    input, output = to_path("input", input), to_path("output", output)
    for name, path in (("input", input), ("output", output)):
        if path.suffix.lower() not in (".las", ".laz"):
            raise InputError(f"{name} is {path}; pass a file that ends with .las or .laz")
    check_not_overwritten(input, output)
    check_positive("sigma_space", sigma_space)
    scan = _open_scan(input, field)
    # absolute, since workers may run in other folders
    store = PartialStore(output.resolve())
    settings = {
        "input": digest(asdict(scan)),
        "sigma_space": float(sigma_space),
        "field": field,
        "last change of the input": input.stat().st_mtime_ns,
    }
    with store.locked():
        if resume and store.is_complete(cloud_formats.read_settings, settings):
            return scan.num_points
        with open_pool(workers, memory, scheduler) as pool:
            chunks = _divide(scan)
            division = store.begin(settings, resume)
            if division is None:
                store.record(settings, chunks)
            else:
                chunks = [(first, last) for first, last in division]
            left = [number for number in range(len(chunks)) if not store.is_done((number,))]
            if left and scan.num_points:
                tasks = _smoothing_tasks(scan, chunks, left, sigma_space, store, pool)
                pool.run(tasks, f"smoothing {input.name}", progress)
        with replacing(output) as partial:
            _assemble(scan, chunks, store, partial, settings)
        store.remove()
    return scan.num_points


@dataclass(frozen=True)
class _Scan:
    """Description of a `.las` or `.laz` file, small enough to send to workers.

    `origin` is subtracted from coordinates; `dtype` is precise enough for them and for the field.
    """

    path: str
    num_points: int
    origin: tuple[float, ...]
    dtype: str
    field: str

    @property
    def channels(self) -> int:
        return 3 if self.field == _POSITION else 1

    def read(self, chunk: tuple[int, int]) -> Any:
        """Read the points from one index to another with laspy."""
        import laspy

        first, last = chunk
        with cloud_formats.reading_las(self.path), laspy.open(self.path) as reader:
            reader.seek(first)
            points = reader.read_points(last - first)
        cloud_formats.check_point_count(self.path, len(points), last - first)
        return points

    def features_and_values(self, chunk: tuple[int, int], sigma: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return positions in standard deviations `[points, 3]`, and the field `[points, channels]`."""
        points = self.read(chunk)
        axes = [np.asarray(points[axis]) - start for axis, start in zip("xyz", self.origin, strict=True)]
        exact = np.stack(axes, axis=1)
        if self.dtype == "float32" and not _fits_float32(np.abs(exact).max(axis=0, initial=0), points.scales):
            raise DataError(
                f"points of {self.path} lie far outside of the box in its header; repair the header, for example with "
                "lasinfo -repair_bb"
            )
        positions = exact.astype(self.dtype)
        features = positions / np.dtype(self.dtype).type(sigma)
        if self.field == _POSITION:
            return features, positions
        return features, np.asarray(points[self.field]).astype(self.dtype)[:, None]


def _open_scan(path: Path, field: str) -> _Scan:
    """Read the header of a scan and check the field."""
    import laspy

    with reading(f"the point cloud {path}"), laspy.open(path) as reader:
        header = reader.header
    form = header.point_format
    measured = (*_MEASURED, *form.extra_dimension_names)
    # fields with several numbers per point are left out
    fields = {each.name: each for each in form.dimensions if each.name in measured and each.num_elements == 1}
    if field not in (_POSITION, *fields):
        reason = "which cannot be averaged" if field in form.dimension_names else f"which {path} lacks"
        raise InputError(f"field is {field!r}, {reason}; pass {', '.join((_POSITION, *fields))}")
    fits = _fits_float32(np.asarray(header.maxs) - np.asarray(header.mins), np.asarray(header.scales))
    if field != _POSITION:
        kind = fields[field]
        fits = fits and not kind.is_scaled and working_dtype(kind.dtype or np.uint8) is np.float32
    origin = tuple(float(each) for each in header.mins)
    return _Scan(str(path.resolve()), header.point_count, origin, "float32" if fits else "float64", field)


def _fits_float32(extents: NDArray[Any], steps: NDArray[Any]) -> bool:
    """Return whether float32 rounds coordinates of such extents by at most a quarter of a step of the file."""
    return bool((extents * np.finfo(np.float32).eps / 2 <= steps / 4).all())


def _divide(scan: _Scan) -> list[tuple[int, int]]:
    """Return the first and last index of each chunk, as large as a worker can process."""
    from permutohedral.dask.workers import count_fitting_points

    size = min(_MAX_CHUNK_POINTS, count_fitting_points(3, scan.channels, scan.dtype))
    return [(first, min(first + size, scan.num_points)) for first in range(0, scan.num_points, size)]


def _smoothing_tasks(
    scan: _Scan, chunks: list[tuple[int, int]], left: list[int], sigma: float, store: PartialStore, pool: TaskPool
) -> list[Any]:
    """Build the lattice of all chunks, and return delayed tasks that smooth and write those that are left."""
    import dask
    import dask.array as da
    from dask.delayed import delayed

    from permutohedral.dask.points import gaussian_filter

    call: Any = delayed
    # one task per chunk, so that it is decompressed once for features and values
    read = [call(scan.features_and_values, nout=2)(chunk, sigma) for chunk in chunks]

    def concatenate(which: int, columns: int) -> Any:
        pairs = zip(read, chunks, strict=True)
        parts = [da.from_delayed(both[which], (last - first, columns), scan.dtype) for both, (first, last) in pairs]
        return da.concatenate(parts)

    # without workers one chunk after another, with all threads of the core
    with dask.config.set({} if pool.client is not None else {"scheduler": "synchronous"}):
        smooth = gaussian_filter(concatenate(1, scan.channels), concatenate(0, 3))
        # an optimized graph would drop the reference to the lattice, which Dask then forgets
        blocks = smooth.to_delayed(optimize_graph=False).ravel()
    return [call(_write_chunk)(blocks[number], str(store.target), number) for number in left]


def _write_chunk(smooth: NDArray[Any], target: str, number: int) -> None:
    """Write the result of a chunk into the partial store."""
    store = PartialStore(Path(target))
    with store.writing((number,)), open(store.folder / f"{number}.npy", "wb") as file:
        # np.save hides the reason if the disk is full
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(smooth))
        file.write(np.ascontiguousarray(smooth).data)


def _assemble(
    scan: _Scan, chunks: list[tuple[int, int]], store: PartialStore, target: Path, settings: Mapping[str, Any]
) -> None:
    """Write the scan with the results of all chunks, and the settings."""
    import laspy

    with (
        laspy.open(scan.path) as reader,
        cloud_formats.las_file(target) as file,
        laspy.open(
            file,
            mode="w",
            header=cloud_formats.header_with_settings(reader.header, settings),
            do_compress=target.suffix.lower() == ".laz",
        ) as writer,
    ):
        for number, (first, last) in enumerate(chunks):
            points = reader.read_points(last - first)
            smooth = np.load(store.folder / f"{number}.npy")
            if scan.field == _POSITION:
                for axis, (name, start) in enumerate(zip("xyz", scan.origin, strict=True)):
                    points[name] = smooth[:, axis].astype(np.float64) + start
            else:
                points[scan.field] = cast_rounded(smooth[:, 0], np.asarray(points[scan.field]).dtype)
            writer.write_points(points)
        if reader.evlrs:
            # the header does not contain the records after the points
            writer.write_evlrs(reader.evlrs)


def segment_cloud(
    input: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    image: str | Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, int]:
    """Classify all points of a cloud and write a copy with the classes, atomically.

    Args:
        input: `.laz`, `.las`, `.ply` or `.npz` file, in meters, the last coordinate up.
        output: file of the same format to write. An existing file is replaced, except the input.
        model: model that `train_cloud` wrote; default: ground, vegetation and building in airborne scans.
        image: draw the classes from above into this file; the suffix selects the format.
        device: "auto", "cpu" or "cuda".
        progress: called with the number of classified points, their total, and the stage.

    Returns:
        the number of points of each class, by name.

    Raises:
        InputError: a path, the device or a class does not fit.
        DataError: the input or the model cannot be read.
        StorageError: the output cannot be written.
    """
    input, output = to_path("input", input), to_path("output", output)
    cloud_formats.check_same_format(input, output)
    check_not_overwritten(input, output)
    if image is not None:
        from permutohedral.files.figure import check_ending

        check_ending(to_path("image", image))
    where = choose_device(device)
    network, description = cloud_models.load_segmenter(None if model is None else to_path("model", model))
    cloud = cloud_formats.read_cloud(input)
    scene = cloud_scenes.make_scene(cloud.positions, above=description.above)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, len(cloud.positions), f"classifying {input.name}")

    classes = cloud_scenes.classify_points(network.to(where), scene, where, progress=report)
    numbers = torch.tensor([each.numbers[-1] for each in description.classes], dtype=torch.uint8)
    with replacing(output) as partial:
        cloud_formats.copy_with_labels(input, partial, numbers[classes.cpu()])
    names = [each.name for each in description.classes]
    if image is not None:
        from permutohedral.files.figure import draw_from_above

        draw_from_above(scene.positions, classes, names, Path(image))
    return dict(zip(names, torch.bincount(classes, minlength=len(names)).tolist(), strict=True))


def train_cloud(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    classes: Mapping[str, Sequence[int]] | None = None,
    num_steps: int = 1500,
    num_crops: int = 8,
    start: str | Path | None = None,
    cropping: Cropping | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
) -> float:
    """Train a network for `segment_cloud` on classified point clouds, and write it atomically.

    Points of other classes are part of the input but do not count. The last state is kept in `OUTPUT.checkpoint`, to
    resume an interrupted training, or to extend one with more steps.

    Args:
        inputs: one or several classified `.laz`, `.las`, `.ply` or `.npz` files, in meters.
        output: `.safetensors` file to write.
        classes: class numbers in the files by name; `segment_cloud` writes the last of each. Default: ground (2),
            vegetation (3, 4, 5) and building (6).
        num_steps: updates of the weights.
        num_crops: crops per step.
        start: model to start from, with as many classes; default: random weights.
        cropping: how crops are cut out and augmented; default: `Cropping()`.
        seed: of weights and crops.
        device: "auto", "cpu" or "cuda".
        resume: whether to continue from the checkpoint.
        progress: called with the number of finished steps, their total, and the stage.

    Returns:
        the share of classified training points that the network gets right.

    Raises:
        InputError: an argument does not fit, or a class has no points.
        DataError: a file cannot be read.
        StorageError: a file cannot be written, or the checkpoint is damaged.
    """
    given = [inputs] if isinstance(inputs, str | Path) else inputs
    paths, output = [to_path("inputs", each) for each in given], to_path("output", output)
    if output.suffix != ".safetensors":
        raise InputError(f"output is {output}; pass a name that ends with .safetensors")
    for name, number in (("num_steps", num_steps), ("num_crops", num_crops)):
        if number < 1:
            raise InputError(f"{name} is {number}; pass at least 1")
    if not paths:
        raise InputError("inputs are empty; pass at least one file")
    for path in paths:
        cloud_formats.check_format(path)
    where, cropping = choose_device(device), cropping or Cropping()
    chosen: tuple[cloud_models.PointClass, ...] = cloud_models.STANDARD_CLASSES
    if classes is not None:
        chosen = tuple(cloud_models.PointClass(name, tuple(numbers)) for name, numbers in classes.items())
    torch.manual_seed(seed)
    if start is None:
        description = cloud_models.Description(_NETWORK_OPTIONS, chosen)
        network = description.build()
    else:
        network, description = cloud_models.load_segmenter(to_path("start", start))
        if len(description.classes) != len(chosen):
            raise InputError(f"start {start} has {len(description.classes)} classes; pass a model with {len(chosen)}")
        description = replace(description, classes=chosen)
    scenes = [scene.to(where) for scene in _read_scenes(paths, description)]
    settings = {
        "inputs": [str(path) for path in paths],
        "start": None if start is None else str(start),
        "classes": [asdict(each) for each in chosen],
        "cropping": asdict(cropping),
        "num_crops": num_crops,
        "seed": seed,
    }
    network.train().to(where)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.001, fused=where.type == "cuda")
    checkpoint = output.with_name(output.name + ".checkpoint")
    if checkpoint.is_file() and not resume:
        warnings.warn(f"{checkpoint}, left by an earlier call, is overwritten; resume would continue it", stacklevel=2)
    first = _load_checkpoint(checkpoint, network, optimizer, settings) if resume and checkpoint.is_file() else 0
    # a thread for each backward pass takes a third of the time of small kernels on a GPU
    with torch.autograd.set_multithreading_enabled(False):
        for step in range(first, num_steps):
            crops, item = cloud_scenes.draw_crops(scenes, step, range(num_crops), cropping, seed)
            _update(network, optimizer, _learning_rate(step, num_steps), crops, item)
            if (step + 1) % max(1, num_steps // 20) == 0 or step + 1 == num_steps:
                _save_checkpoint(checkpoint, network, optimizer, settings, step + 1)
            if progress is not None:
                progress(step + 1, num_steps, "training")
    cloud_models.save_segmenter(network.eval(), description, output)
    right = counted = 0
    for scene in scenes:
        assert scene.labels is not None
        known = scene.labels != cloud_scenes.UNKNOWN
        right += int((cloud_scenes.classify_points(network, scene, where) == scene.labels)[known].sum())
        counted += int(known.sum())
    return right / counted


def _read_scenes(paths: Sequence[Path], description: cloud_models.Description) -> list[Scene]:
    """Read classified files as scenes; raise `InputError` if a file, or a class, has no classified points."""
    classes = description.classes
    class_of_number = torch.full((256,), cloud_scenes.UNKNOWN, dtype=torch.int64)
    for place, each in enumerate(classes):
        for number in each.numbers:
            if class_of_number[number] != cloud_scenes.UNKNOWN:
                raise InputError(f"classes contain the number {number} twice; pass each number once")
            class_of_number[number] = place
    scenes, found = [], torch.zeros(len(classes), dtype=torch.int64)
    for path in paths:
        cloud = cloud_formats.read_cloud(path)
        if cloud.labels is None:
            raise InputError(
                f"inputs contain {path}, which has no classified points; pass files with classes from 1 to 255"
            )
        labels = class_of_number[cloud.labels.long()]
        if not bool((labels != cloud_scenes.UNKNOWN).any()):
            names = ", ".join(each.name for each in classes)
            raise InputError(f"inputs contain {path}, which has no points of the classes {names}")
        found += torch.bincount(labels[labels != cloud_scenes.UNKNOWN], minlength=len(classes))
        scenes.append(cloud_scenes.make_scene(cloud.positions, labels, description.above))
    missing = [each.name for each, number in zip(classes, found.tolist(), strict=True) if not number]
    if missing:
        raise InputError(f"classes contain {missing[0]}, which has no points; leave it out, or pass other numbers")
    return scenes


def _learning_rate(step: int, num_steps: int) -> float:
    """Return the learning rate of a step: linear warmup, then cosine decay."""
    warmup = min(1.0, (step + 1) / (_WARMUP_STEPS + 1))
    return _LEARNING_RATE * (warmup * round(0.5 * (1 + math.cos(math.pi * min(step / num_steps, 1.0))), 12))


def _update(
    network: nn.Module, optimizer: torch.optim.Optimizer, learning_rate: float, crops: Scene, item: Tensor
) -> None:
    """Take one step of gradient descent."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    loss = cloud_scenes.crop_loss(network, crops, item)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()


def _save_checkpoint(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any], step: int
) -> None:
    """Write the state after `step` steps, atomically."""
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    # serialized in memory first, since torch hides why a file cannot be written
    content = io.BytesIO()
    torch.save({"settings": json.dumps(settings), "step": step, **state}, content)
    write_bytes(path, content.getvalue())


def _load_checkpoint(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any]
) -> int:
    """Restore the state of a training, and return the number of finished steps."""
    with reading(f"the checkpoint {path}, which you may delete", StorageError):
        # tensors and plain data only
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        begun, step = json.loads(state["settings"]), int(state["step"])
    check_settings(path, begun, settings)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    return step
