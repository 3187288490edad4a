"""Arrays beyond the memory of workers: throughput, memory and faults, into `results/large-arrays/NAME.json`.

    python tools/measure_large_arrays.py volume picture points      # one at a time; all without names
    python tools/measure_large_arrays.py volume --scale 0.1         # a tenth of the samples

Inputs are made in a folder of their own first, and removed in the end. Processor time is that of the workers, and
contains reading and writing. The largest memory of a worker is what the system says of its process, with the package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from zarr.codecs import BloscCodec

from permutohedral.arrays.bilateral import Tiling, plan_tiles
from permutohedral.arrays.sources import open_source
from permutohedral.arrays.stores import make_store
from permutohedral.arrays.unfinished import Unfinished
from permutohedral.dask import gaussian_filter, start_workers
from permutohedral.reporting.provenance import find_commit, find_processor

RESULTS = Path(__file__).resolve().parents[1] / "results" / "large-arrays"
WORKERS = 2
REPEATS = 3


def usage(dask_worker: Any = None) -> dict[str, float]:
    """Of the process that runs this: processor time, largest memory, and what went to the disk for lack of it."""
    spilled = getattr(getattr(dask_worker, "data", None), "spilled_total", 0)
    spilled = getattr(spilled, "disk", spilled)
    # getrusage would tell the memory of the process that started this one, if that was larger
    [largest] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {"processor": time.process_time(), "largest_mib": int(largest) / 1024, "spilled": float(spilled)}


def load() -> None:
    """What a worker loads once is not measured."""
    for name in (
        "zarr",
        "numcodecs.blosc",
        "permutohedral.functional",
        "permutohedral.dask",
        "permutohedral.arrays.bilateral",
    ):
        import_module(name)


def on_workers(memory: str, work: Callable[[Any], None], workers: int = WORKERS) -> dict[str, Any]:
    """Run `work(client)` on workers of so much memory each, and tell what it took."""
    with start_workers(workers, memory) as client:
        client.run(load)
        before = sum(each["processor"] for each in client.run(usage).values())
        started = time.perf_counter()
        work(client)
        seconds = time.perf_counter() - started
        found = list(client.run(usage).values())
    return {
        "workers": workers,
        "memory_limit": memory,
        "seconds": round(seconds, 2),
        "processor_seconds": round(sum(each["processor"] for each in found) - before, 2),
        "largest_mib": round(max(each["largest_mib"] for each in found)),
        "spilled_bytes": sum(each["spilled"] for each in found),
    }


def checksum(array: Any) -> str:
    """Of all numbers, slab by slab."""
    digest = hashlib.sha256()
    for start in range(0, array.shape[0], array.chunks[0]):
        digest.update(np.ascontiguousarray(array[start : start + array.chunks[0]]).tobytes())
    return digest.hexdigest()[:16]


def scene(space: tuple[int, ...], origin: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Smooth regions with edges between them and noise of 4 %, uint8: a part of a larger picture."""
    axes = [np.arange(start, start + extent, dtype=np.float32) for start, extent in zip(origin, space, strict=True)]
    grid = np.meshgrid(*axes, indexing="ij", sparse=True)
    waves = sum((np.sin(axis / (23.0 + 6 * number)) for number, axis in enumerate(grid)), np.float32(0))
    levels = np.float32(0.5) + np.float32(0.12) * waves + np.float32(0.2) * np.sign(np.float32(waves))
    noise = np.random.default_rng([seed, *origin]).standard_normal(space, dtype=np.float32)
    scaled: np.ndarray[Any, Any] = 255 * np.clip(levels + np.float32(0.04) * noise, 0, 1)
    return scaled.astype(np.uint8)


def make_grid(path: Path, space: tuple[int, ...], channels: int, chunk: int) -> None:
    """A store of that scene; the channels of a picture differ by little, as colors do."""
    names = "zyx"[-len(space) :] + ("c" if channels > 1 else "")
    shape = (*space, channels) if channels > 1 else space
    chunks = (*(min(chunk, extent) for extent in space), channels)[: len(shape)]
    # what converters of microscopes' files write by default
    options: dict[str, Any] = {"compressors": BloscCodec(cname="lz4"), "dimension_names": [*names]}
    array = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="uint8", **options)
    step = 4 * chunk
    for index in np.ndindex(*(-(-extent // step) for extent in space)):
        origin = tuple(number * step for number in index)
        size = tuple(min(step, extent - start) for start, extent in zip(origin, space, strict=True))
        region = tuple(slice(start, start + extent) for start, extent in zip(origin, size, strict=True))
        part = scene(size, origin, seed=0)
        if channels > 1:
            shades = [part, part // 2 + 40, 255 - part]
            part = np.stack(shades[:channels], axis=-1)
        array[region] = part


def run_tiles(tiling: Tiling, client: Any) -> None:
    """All tiles, on the workers."""
    futures = client.map(tiling.filter_tile, list(tiling.indices()), pure=False)
    for future in futures:
        future.result()


def prepare(source: Path, target: Path, sigmas: tuple[float, float], memory: str) -> Tiling:
    """The tiles of workers with so much memory, and an empty store for them."""
    from dask.utils import parse_bytes

    from permutohedral.dask import workers

    limit = parse_bytes(memory)
    workers.worker_memory = lambda: limit
    tiling = plan_tiles(open_source(source), target, *sigmas)
    begin_store(tiling)
    return tiling


def begin_store(tiling: Tiling) -> None:
    """An empty store for the tiles."""
    unfinished = Unfinished(Path(tiling.target))
    unfinished.begin({}, resume=False)
    make_store(unfinished.folder, tiling.source, tiling.tile)


def measure_grid(
    folder: Path, space: tuple[int, ...], channels: int, sigmas: tuple[float, float], memory: str, chunk: int
) -> dict[str, Any]:
    """A picture or volume, on workers and in a loop, and on workers that are killed."""
    source, target = folder / "in.zarr", folder / "out.zarr"
    make_grid(source, space, channels, chunk)
    tiling = prepare(source, target, sigmas, memory)
    found = on_workers(memory, lambda client: run_tiles(tiling, client))
    count = int(np.prod(space))
    found["per_processor_second"] = round(count / found["processor_seconds"])
    found["checksum"] = checksum(zarr.open_array(str(Unfinished(target).folder), mode="r"))
    found |= {
        "samples": count,
        "space": space,
        "channels": channels,
        "sigma_space": sigmas[0],
        "sigma_range": sigmas[1],
    }
    found |= {"tile": tiling.tile, "margins": tiling.margins, "tiles": sum(1 for _ in tiling.indices())}
    found["overhead"] = overhead(tiling, found["processor_seconds"] / found["tiles"])
    return found


def overhead(tiling: Tiling, on_workers_each: float) -> float:
    """Processor time of a tile on workers over that in a loop of this process, of tiles all over the array."""
    every = list(tiling.indices())
    some = every[:: max(len(every) // 8, 1)]
    again = Tiling(**{**tiling.__dict__, "target": tiling.target.replace("out.zarr", "again.zarr")})
    begin_store(again)
    again.filter_tile(some.pop())
    started = time.process_time()
    for index in some:
        again.filter_tile(index)
    return round(on_workers_each * len(some) / (time.process_time() - started), 3)


def measure_kills(folder: Path, scale: float) -> dict[str, Any]:
    """Two of the workers are killed, one after another, in the middle of a volume; compared with a run without."""
    side = 16 * round(512 * scale ** (1 / 3) / 16)
    source = folder / "in.zarr"
    make_grid(source, (side, side, side), 1, 64)
    rows: dict[str, Any] = {}
    for name in ("undisturbed", "killed"):
        tiling = prepare(source, folder / f"{name}.zarr", (2.0, 0.2), "1GiB")
        calm = rows.get("undisturbed", {}).get("seconds", 0)

        def work(client: Any, name: str = name, tiling: Tiling = tiling, calm: float = calm) -> None:
            if name == "killed":
                for share in (0.3, 0.6):
                    threading.Timer(share * calm, kill_one, [client]).start()
            run_tiles(tiling, client)

        rows[name] = on_workers("1GiB", work)
        rows[name]["checksum"] = checksum(zarr.open_array(str(Unfinished(folder / f"{name}.zarr").folder), mode="r"))
        shutil.rmtree(Unfinished(folder / f"{name}.zarr").folder)
    same = rows["killed"]["checksum"] == rows["undisturbed"]["checksum"]
    ratio = round(rows["killed"]["seconds"] / rows["undisturbed"]["seconds"], 3)
    return {"side": side, **rows, "same_checksum": same, "time_ratio": ratio}


def kill_one(client: Any) -> None:
    """SIGKILL a worker that is there."""
    found = list(client.run(os.getpid).values())
    os.kill(found[0], signal.SIGKILL)


def make_points(folder: Path, count: int, chunk: int) -> tuple[Any, Any]:
    """Points in strips, as an aircraft flies: three features and one channel, in chunks."""
    features = zarr.create_array(
        str(folder / "features.zarr"), shape=(count, 3), chunks=(chunk, 3), dtype="float32", compressors=None
    )
    values = zarr.create_array(
        str(folder / "values.zarr"), shape=(count, 1), chunks=(chunk, 1), dtype="float32", compressors=None
    )
    for first in range(0, count, chunk):
        draw = np.random.default_rng(first)
        size = min(chunk, count - first)
        # a strip of 40 by 250 standard deviations of two million points, some ten to a lattice point
        places = draw.random((size, 3), dtype=np.float32) * np.array([40 * chunk / 2e6, 250, 6], np.float32)
        places[:, 0] += np.float32(40 * (first // chunk) * chunk / 2e6)
        features[first : first + size] = places
        values[first : first + size] = places[:, 2:] + draw.standard_normal((size, 1), dtype=np.float32)
    return features, values


def measure_points(folder: Path, scale: float) -> dict[str, Any]:
    """Smoothed heights of points in strips."""
    count, chunk = round(200_000_000 * scale), 2_000_000
    count = max(count - count % chunk, chunk)
    features, values = make_points(folder, count, chunk)
    target = folder / "smooth.zarr"

    def work(client: Any) -> None:
        smooth = gaussian_filter(da.from_zarr(values), da.from_zarr(features))
        smooth.to_zarr(str(target), compressors=None)

    found = on_workers("2GiB", work)
    found["per_processor_second"] = round(count / found["processor_seconds"])
    return {**found, "samples": count, "checksum": checksum(zarr.open_array(str(target), mode="r"))}


def measure_volume(folder: Path, scale: float) -> dict[str, Any]:
    """A gigavoxel of 8 bits, 2 samples and 0.2."""
    side = 16 * round(1024 * scale ** (1 / 3) / 16)
    return measure_grid(folder, (side, side, side), 1, (2.0, 0.2), "1GiB", 64)


def measure_picture(folder: Path, scale: float) -> dict[str, Any]:
    """A gigapixel of color, 16 pixels and 0.1."""
    side = 64 * round(32768 * scale**0.5 / 64)
    return measure_grid(folder, (side, side), 3, (16.0, 0.1), "1GiB", 256)


def measure_simpleitk(folder: Path, scale: float) -> dict[str, Any]:
    """SimpleITK's bilateral filter beside ours, one thread each, in turn on the same volumes, each of them new.

    Medians of processor time; the first call of either is not counted. Differences are without the borders.
    """
    import SimpleITK
    import torch

    import permutohedral as ph

    torch.set_num_threads(1)
    SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(1)

    def ours(volume: Any, sigma: float) -> Any:
        return ph.bilateral_filter(torch.from_numpy(volume)[None], sigma, 0.2, spatial_axes=3)[0].numpy()

    def theirs(volume: Any, sigma: float) -> Any:
        image = SimpleITK.Bilateral(SimpleITK.GetImageFromArray(volume), sigma, 0.2, 100)
        return SimpleITK.GetArrayFromImage(image)

    rows = []
    for sigma, full_side in ((2.0, 96), (4.0, 64)):
        side = max(round(full_side * scale ** (1 / 3)), 16)
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        small = scene((16,) * 3, (0,) * 3, seed=0).astype(np.float32) / 255
        ours(small, sigma)
        theirs(small, sigma)
        for repeat in range(REPEATS):
            volume = scene((side,) * 3, (0,) * 3, seed=repeat).astype(np.float32) / 255
            found = {}
            for name, function in (("ours", ours), ("theirs", theirs)):
                started = time.process_time()
                found[name] = function(volume, sigma)
                seconds[name].append(time.process_time() - started)
        inner = (slice(side // 4, -(side // 4)),) * 3
        difference = found["ours"][inner] - found["theirs"][inner]
        relative = float(np.linalg.norm(difference) / np.linalg.norm(found["theirs"][inner]))
        rates = {name: side**3 / statistics.median(each) for name, each in seconds.items()}
        ratios = [there / here for here, there in zip(*seconds.values(), strict=True)]
        row = {"sigma_space": sigma, "sigma_range": 0.2, "side": side, "repeats": REPEATS}
        row |= {f"{name}_per_second": round(rate) for name, rate in rates.items()}
        row |= {"ratio": round(statistics.median(ratios), 1), "ratios": [round(ratio, 1) for ratio in ratios]}
        rows.append({**row, "relative_difference": relative})
    return {"rows": rows, "version": SimpleITK.Version_VersionString()}


def measure_workers(folder: Path, scale: float) -> dict[str, Any]:
    """The checksums of a volume and of points on one, two and four workers."""
    side = 16 * max(round(256 * scale ** (1 / 3) / 16), 1)
    make_grid(folder / "in.zarr", (side,) * 3, 1, 64)
    count, chunk = max(round(8_000_000 * scale), 80_000), max(round(200_000 * scale), 2_000)
    features, values = make_points(folder, count, chunk)
    rows = []
    for workers in (1, 2, 4):
        tiling = prepare(folder / "in.zarr", folder / f"{workers}.zarr", (2.0, 0.2), "1GiB")

        def work(client: Any, tiling: Tiling = tiling, workers: int = workers) -> None:
            run_tiles(tiling, client)
            gaussian_filter(da.from_zarr(values), da.from_zarr(features)).to_zarr(
                str(folder / f"{workers}_points.zarr"), compressors=None
            )

        row = on_workers("1GiB", work, workers)
        row["volume"] = checksum(zarr.open_array(str(Unfinished(folder / f"{workers}.zarr").folder), mode="r"))
        row["points"] = checksum(zarr.open_array(str(folder / f"{workers}_points.zarr"), mode="r"))
        rows.append(row)
    same = all(row[name] == rows[0][name] for row in rows for name in ("volume", "points"))
    return {"side": side, "points": count, "rows": rows, "same_checksums": same}


MEASUREMENTS: dict[str, Callable[[Path, float], dict[str, Any]]] = {
    "points": measure_points,
    "volume": measure_volume,
    "picture": measure_picture,
    "kills": measure_kills,
    "workers": measure_workers,
    "simpleitk": measure_simpleitk,
}


def main() -> None:
    """Measure what is named, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the samples")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    for name in arguments.names or MEASUREMENTS:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            found = MEASUREMENTS[name](Path(folder), arguments.scale)
        command = f"python tools/measure_large_arrays.py {name} --scale {arguments.scale:g}"
        machine = {"processor": find_processor(), "cores": os.cpu_count(), "load_before": round(load, 2)}
        told = {"command": command, "commit": find_commit(), **machine, "scale": arguments.scale, **found}
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / f"{name}.json").write_text(json.dumps(told, indent=2) + "\n")
        print(json.dumps(told, indent=2), flush=True)


if __name__ == "__main__":
    main()
