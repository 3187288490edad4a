"""Workloads of arrays larger than the memory of workers, in files and as Dask arrays.

They take minutes and gigabytes of disk, so only `--only arrays --threads 1` selects them.
`PERMUTOHEDRAL_BENCHMARK_SCALE=0.01` shrinks them.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Measured, Workload

_WORKERS, _MEMORY = 2, "1GiB"


def _scale() -> float:
    return float(os.environ.get("PERMUTOHEDRAL_BENCHMARK_SCALE", "1"))


def scene(space: tuple[int, ...], origin: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return smooth regions with edges and noise of 4 %, uint8: a part of a larger array."""
    axes = [np.arange(start, start + extent, dtype=np.float32) for start, extent in zip(origin, space, strict=True)]
    grid = np.meshgrid(*axes, indexing="ij", sparse=True)
    waves = sum((np.sin(axis / (23.0 + 6 * number)) for number, axis in enumerate(grid)), np.float32(0))
    levels = np.float32(0.5) + np.float32(0.12) * waves + np.float32(0.2) * np.sign(np.float32(waves))
    noise = np.random.default_rng([seed, *origin]).standard_normal(space, dtype=np.float32)
    scaled: np.ndarray[Any, Any] = 255 * np.clip(levels + np.float32(0.04) * noise, 0, 1)
    return scaled.astype(np.uint8)


def _write_scene(path: Path, space: tuple[int, ...], channels: int, chunk: int) -> None:
    import zarr

    shape = (*space, channels) if channels > 1 else space
    chunks = (*(min(chunk, extent) for extent in space), channels)[: len(shape)]
    names = [*"zyx"[-len(space) :], *(["c"] if channels > 1 else [])]
    array = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="uint8", dimension_names=names)
    step = 4 * chunk
    for index in np.ndindex(*(-(-extent // step) for extent in space)):
        origin = tuple(number * step for number in index)
        size = tuple(min(step, extent - start) for start, extent in zip(origin, space, strict=True))
        part = scene(size, origin)
        if channels > 1:
            part = np.stack([part, part // 2 + 40, 255 - part], axis=-1)
        array[tuple(slice(start, start + extent) for start, extent in zip(origin, size, strict=True))] = part


@contextmanager
def _largest_child() -> Iterator[list[int]]:
    """Watch the child processes; the list holds the largest resident size of one of them, in bytes."""
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for child in psutil.Process().children(recursive=True):
                try:
                    largest[0] = max(largest[0], child.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield largest
    finally:
        done.set()
        thread.join()


def _measure(samples: int, run: Callable[[], Any]) -> Measured:
    with _largest_child() as largest:
        started = time.perf_counter()
        run()
        seconds = time.perf_counter() - started
    facts = {"samples": samples, "seconds": seconds, "workers": _WORKERS, "memory_limit": _MEMORY}
    return Measured({OURS: [1e9 * seconds / samples]}, facts=facts | {"largest_worker_bytes": largest[0]})


def _measure_grid(
    inputs: Inputs, threads: int, repeats: int, with_peers: bool, *, side: int, dimension: int, sigma: float
) -> Measured:
    """Filter a volume of one channel, or an image of three."""
    from permutohedral import apps

    extent = 64 * max(round(side * _scale() ** (1 / dimension) / 64), 1)
    space, color = (extent,) * dimension, 0.2 if dimension == 3 else 0.1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_scene(folder / "in.zarr", space, 1 if dimension == 3 else 3, 64 if dimension == 3 else 256)
        options: dict[str, Any] = {"sigma_space": sigma, "sigma_color": color, "workers": _WORKERS, "memory": _MEMORY}
        run = partial(apps.filter_array, folder / "in.zarr", folder / "out.zarr", **options)
        return _measure(extent**dimension, run)


def _measure_points(inputs: Inputs, threads: int, repeats: int, with_peers: bool) -> Measured:
    """Smooth the heights of points in strips, as laser scanners record them."""
    import dask.array as da
    import zarr

    import permutohedral.dask as phd

    chunk = 2_000_000
    count = max(round(200_000_000 * _scale() / chunk), 1) * chunk
    with tempfile.TemporaryDirectory() as name:
        options: dict[str, Any] = {"dtype": "float32", "compressors": None}
        features = zarr.create_array(f"{name}/features.zarr", shape=(count, 3), chunks=(chunk, 3), **options)
        values = zarr.create_array(f"{name}/values.zarr", shape=(count, 1), chunks=(chunk, 1), **options)
        for first in range(0, count, chunk):
            draw = np.random.default_rng(first)
            places = draw.random((chunk, 3), dtype=np.float32) * np.array([40, 250, 6], np.float32)
            places[:, 0] += np.float32(40 * (first // chunk))
            features[first : first + chunk] = places
            values[first : first + chunk] = places[:, 2:] + draw.standard_normal((chunk, 1), dtype=np.float32)

        def run() -> None:
            with phd.start_workers(_WORKERS, "2GiB"):
                smooth = phd.gaussian_filter(da.from_zarr(values), da.from_zarr(features))
                smooth.to_zarr(f"{name}/smooth.zarr", compressors=None)

        return _measure(count, run)


WORKLOADS = tuple(
    Workload(f"arrays-{name}", summary, "cpu", measure=measure, unit="ns", optional=True)
    for name, summary, measure in (
        (
            "volume",
            "file of a gigavoxel, 2 voxels / 0.2, two workers of 1 GiB; ns per voxel",
            partial(_measure_grid, side=1024, dimension=3, sigma=2.0),
        ),
        (
            "image",
            "file of a gigapixel of color, 16 pixels / 0.1, two workers of 1 GiB; ns per pixel",
            partial(_measure_grid, side=32768, dimension=2, sigma=16.0),
        ),
        (
            "points",
            "Dask array of 200 million points, d = 3, two workers of 2 GiB; ns per point",
            _measure_points,
        ),
    )
)
