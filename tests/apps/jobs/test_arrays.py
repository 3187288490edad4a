"""`files.filter_array`: formats, tiles, atomic output, resuming."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.apps import filter_array
from permutohedral.errors import DataError, InputError, StorageError

pytest.importorskip("dask.array", reason="Dask is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

import numcodecs  # type: ignore[import-untyped]
import zarr
from zarr.codecs import TransposeCodec

from permutohedral.dask import workers

Array = np.ndarray[Any, Any]


class Interruption(Exception):
    """Raised by progress callbacks."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the memory of workers, so that small arrays have several tiles; the reference backend takes more."""
    memory = (40 if "native" in ph.backends.available() else 102) << 20
    monkeypatch.setattr(workers, "worker_memory", lambda: memory)


def draw(*shape: int, dtype: Any = np.float32) -> Array:
    numbers = np.random.default_rng(0).random(shape)
    return (255 * numbers).astype(dtype) if dtype == np.uint8 else numbers.astype(dtype)


def store(path: Path, array: Array, **options: Any) -> Path:
    zarr.create_array(str(path), shape=array.shape, dtype=array.dtype, **options)[...] = array
    return path


def read(path: Path) -> Array:
    found: Array = np.asarray(zarr.open_array(str(path), mode="r")[...])
    return found


def run(source: Path, target: Path, sigma_space: Any = 1.0, sigma_color: float = 0.3, **options: Any) -> Any:
    [result] = filter_array(source, target, sigma_space=sigma_space, sigma_color=sigma_color, **options)
    return result


def expected(volume: Array, sigma_space: Any, sigma_color: float) -> Array:
    """Filter `[channels, *space]` in one call; round integers."""
    is_integer = volume.dtype == np.uint8
    scale = 255.0 if is_integer else 1.0
    image = torch.from_numpy(volume.astype(np.float32))
    result = ph.bilateral_filter(
        image, sigma_space=sigma_space, sigma_color=scale * sigma_color, spatial_dims=volume.ndim - 1
    ).numpy()
    return np.rint(result).astype(np.uint8) if is_integer else result


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupt(source: Path, target: Path, after: int = 1, **options: Any) -> None:
    """Interrupt a call after a number of tiles."""

    calls = itertools.count()

    def stop(done: float, total: float, stage: str) -> None:
        # the first call is that of the start
        if next(calls) == after:
            raise Interruption

    with pytest.raises(Interruption):
        run(source, target, progress=stop, **options)


def test_tiles_of_an_integer_volume_equal_the_whole(tmp_path: Path) -> None:
    volume = draw(30, 20, 40, dtype=np.uint8)
    source = store(tmp_path / "in.zarr", volume, chunks=(8, 8, 8), dimension_names=("z", "y", "x"))
    reports: list[tuple[float, float, str]] = []
    done = run(source, tmp_path / "out.zarr", (1.0, 0.7, 0.8), progress=lambda *report: reports.append(report))
    assert done.num_tiles > 4
    assert done.tile[2] % 8 == 0
    shares = [0, *((n + 1) / done.num_tiles for n in range(done.num_tiles)), 1]
    assert reports == [(share, 1, "in.zarr") for share in shares]
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), expected(volume[None], (1.0, 0.7, 0.8), 0.3)[0])
    written: Any = zarr.open_array(str(tmp_path / "out.zarr"))
    assert written.dtype == np.uint8
    assert written.chunks == (8, 8, 8)
    assert written.metadata.dimension_names == ("z", "y", "x")
    assert names_in(tmp_path) == ["in.zarr", "out.zarr"]
    assert not (tmp_path / "out.zarr" / ".permutohedral").exists()


@pytest.mark.parametrize("chunks", [(30, 25, 17), (64, 64, 64)])
def test_keeps_chunks_that_do_not_fit_into_memory(tmp_path: Path, chunks: tuple[int, ...]) -> None:
    volume = draw(30, 50, 40)
    source = store(tmp_path / "in.zarr", volume, chunks=chunks)
    done = run(source, tmp_path / "out.zarr", axes="ZYX")
    assert done.tile[1] < chunks[1]
    written: Any = zarr.open_array(str(tmp_path / "out.zarr"))
    assert written.chunks == chunks
    assert done.num_tiles == written.nchunks
    np.testing.assert_array_equal(written[...], expected(volume[None], 1.0, 0.3)[0])


def test_keeps_chunks_of_several_times(tmp_path: Path) -> None:
    movie = draw(5, 20, 30)
    source = store(tmp_path / "in.zarr", movie, chunks=(2, 20, 30), dimension_names=("t", "y", "x"))
    run(source, tmp_path / "out.zarr", 2.0)
    written: Any = zarr.open_array(str(tmp_path / "out.zarr"))
    assert written.chunks == (2, 20, 30)
    np.testing.assert_array_equal(written[...], np.stack([expected(each[None], 2.0, 0.3)[0] for each in movie]))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_ome_zarr_keeps_metadata_and_averages_levels(tmp_path: Path, zarr_format: Any) -> None:
    movie = draw(2, 2, 6, 30, 17)
    scale = [{"type": "scale", "scale": [1, 1, 2.0, 0.5, 0.5]}]
    scales: dict[str, Any] = {
        "axes": [{"name": name, "type": "space"} for name in "tczyx"],
        "datasets": [{"path": "s0", "coordinateTransformations": scale}, {"path": "s1"}, {"path": "s2"}],
    }
    attributes: Any = {"multiscales": [scales], "omero": {"channels": []}}
    attributes = {"ome": {"version": "0.5", **attributes}} if zarr_format == 3 else attributes
    zarr.create_group(str(tmp_path / "in.zarr"), zarr_format=zarr_format, attributes=attributes)
    store(tmp_path / "in.zarr" / "s0", movie, chunks=(1, 1, 6, 8, 8), zarr_format=zarr_format)
    for name, shape in (("s1", (2, 2, 6, 15, 9)), ("s2", (2, 2, 3, 7, 4))):
        store(tmp_path / "in.zarr" / name, draw(*shape), zarr_format=zarr_format)
    run(tmp_path / "in.zarr", tmp_path / "out.zarr")
    group: Any = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    described: Any = dict(group.attrs).get("ome", dict(group.attrs))
    levels = described["multiscales"][0]["datasets"]
    assert levels == [{"path": "0", "coordinateTransformations": scale}, {"path": "1"}, {"path": "2"}]
    assert described["multiscales"][0]["axes"] == scales["axes"]
    assert described["omero"] == {"channels": []}
    finest = np.stack([expected(volume, 1.0, 0.3) for volume in movie])
    np.testing.assert_array_equal(group["0"][...], finest)
    # the last column has no partner
    wide = np.concatenate([finest, finest[..., -1:]], axis=-1)
    second = wide.reshape(2, 2, 6, 15, 2, 9, 2).mean(axis=(4, 6))
    np.testing.assert_allclose(group["1"][...], second, rtol=1e-6)
    third = second[..., :14, :8].reshape(2, 2, 3, 2, 7, 2, 4, 2).mean(axis=(3, 5, 7))
    np.testing.assert_allclose(group["2"][...], third, rtol=1e-6)
    # voxels are twice as deep and half as wide as the unit
    run(tmp_path / "in.zarr", tmp_path / "physical.zarr", physical=True)
    finest = np.stack([expected(volume, (0.5, 2.0, 2.0), 0.3) for volume in movie])
    np.testing.assert_array_equal(read(tmp_path / "physical.zarr" / "0"), finest)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_and_axis_names_survive_resuming(tmp_path: Path, zarr_format: Any) -> None:
    attributes = {"units": "mm", "_FillValue": float("nan")}
    attributes |= {"_ARRAY_DIMENSIONS": ["lat", "y"]} if zarr_format == 2 else {}
    names: dict[str, Any] = {"dimension_names": ("lat", "y")} if zarr_format == 3 else {}
    options = {"chunks": (8, 8), "zarr_format": zarr_format, "attributes": attributes, **names}
    source, target = store(tmp_path / "in.zarr", draw(20, 20), **options), tmp_path / "out.zarr"
    interrupt(source, target)
    run(source, target, resume=True)
    found: Any = zarr.open_array(str(target), mode="r")
    kept = {name: value for name, value in found.attrs.items() if name != "permutohedral"}
    assert str(kept) == str(attributes)
    assert getattr(found.metadata, "dimension_names", None) == names.get("dimension_names")


CODECS: list[Any] = [
    {"fill_value": 7.0, "chunks": (8, 8), "shards": (16, 24)},
    {"fill_value": 7.0, "chunks": (8, 8), "order": "F", "zarr_format": 2, "filters": [numcodecs.Shuffle(4)]},
    {"fill_value": np.nan, "chunks": (8, 8), "filters": [TransposeCodec(order=(1, 0))]},
]


@pytest.mark.parametrize("options", CODECS, ids=["shards", "Zarr 2", "transposed"])
def test_keeps_codecs_and_fill_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    monkeypatch.setattr(workers, "worker_memory", lambda: 1 << 20)
    image = draw(40, 40)
    source, target = store(tmp_path / "in.zarr", image, **options), tmp_path / "out.zarr"
    done = run(source, target, axes="YX")
    before, after = (zarr.open_array(str(path), mode="r").metadata.to_dict() for path in (source, target))
    for metadata in (before, after):
        for name in ("dimension_names", "attributes", "dimension_separator"):
            metadata.pop(name, None)
    # as text, since NaN differs from itself
    assert str(after) == str(before)
    if "shards" in options:
        # several processes must not write chunks of one shard
        assert (done.num_tiles, len([path for path in (target / "c").rglob("*") if path.is_file()])) == (6, 6)
    np.testing.assert_array_equal(read(target), expected(image[None], 1.0, 0.3)[0])


def test_replaces_results_only(tmp_path: Path) -> None:
    """A store may hold more than an array, such as labels that were drawn by hand."""
    scales = {"axes": [{"name": name} for name in "yx"], "datasets": [{"path": "s0"}]}
    source = tmp_path / "in.zarr"
    zarr.create_group(str(source), attributes={"ome": {"multiscales": [scales]}})
    store(source / "s0", draw(20, 20))
    run(source, tmp_path / "out.zarr")
    # left by a call that was killed while it deleted the previous result
    (tmp_path / "out.zarr" / ".permutohedral").mkdir()
    with pytest.warns(UserWarning, match="exists, and is replaced"):
        run(source, tmp_path / "out.zarr")
    zarr.create_group(str(tmp_path / "foreign.zarr"))
    store(tmp_path / "array.zarr", draw(3, 3))
    (tmp_path / "out.zarr" / "labels").mkdir()
    for name in ("foreign.zarr", "array.zarr", "out.zarr"):
        with pytest.raises(InputError, match=f"{name} exists, and is not just a result of this job"):
            run(source, tmp_path / name)
    assert read(tmp_path / "array.zarr").shape == (3, 3)
    assert (tmp_path / "out.zarr" / "labels").is_dir()


@pytest.mark.parametrize("transformations", [
    None, [{"type": "scale", "path": "scale"}], [{"scale": [1.0, 1.0]}], [{"type": "scale", "scale": [1.0]}],
    [{"type": "scale", "scale": [1.0, 1.0]}, {"type": "scale", "path": "scale"}],
])  # fmt: skip
def test_physical_needs_numbers(tmp_path: Path, transformations: Any) -> None:
    levels = [{"path": "s0", "coordinateTransformations": transformations}]
    scales: Any = {"axes": [{"name": name} for name in "yx"], "datasets": levels}
    zarr.create_group(str(tmp_path / "in.zarr"), attributes={"ome": {"multiscales": [scales]}})
    store(tmp_path / "in.zarr" / "s0", draw(20, 20))
    with pytest.raises(InputError, match=r"physical needs .* as numbers, which .*in.zarr does not state"):
        run(tmp_path / "in.zarr", tmp_path / "out.zarr", physical=True)


@pytest.mark.parametrize("scale", [[None, 1.0], ["far", 1.0], 3])
def test_physical_reports_damaged_numbers(tmp_path: Path, scale: Any) -> None:
    levels = [{"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": scale}]}]
    scales: Any = {"axes": [{"name": name} for name in "yx"], "datasets": levels}
    zarr.create_group(str(tmp_path / "in.zarr"), attributes={"ome": {"multiscales": [scales]}})
    store(tmp_path / "in.zarr" / "s0", draw(20, 20))
    with pytest.raises(DataError, match=r"cannot read the distances between samples in .*in.zarr"):
        run(tmp_path / "in.zarr", tmp_path / "out.zarr", physical=True)


def test_rejects_levels_that_are_not_means(tmp_path: Path) -> None:
    scales = {"axes": [{"name": name} for name in "yx"], "datasets": [{"path": "0"}, {"path": "1"}]}
    zarr.create_group(str(tmp_path / "in.zarr"), attributes={"ome": {"multiscales": [scales]}})
    store(tmp_path / "in.zarr" / "0", draw(40, 40), chunks=(8, 8))
    store(tmp_path / "in.zarr" / "1", draw(30, 40), chunks=(8, 8))
    with pytest.raises(InputError, match="30 samples are not means of a whole number of 40"):
        run(tmp_path / "in.zarr", tmp_path / "out.zarr")
    assert names_in(tmp_path) == ["in.zarr"]
    run(tmp_path / "in.zarr" / "0", tmp_path / "out.zarr")


def test_tiff(tmp_path: Path) -> None:
    tifffile: Any = pytest.importorskip("tifffile", reason="tifffile is not installed")
    image = draw(60, 170, 3, dtype=np.uint8)
    tifffile.imwrite(tmp_path / "in.tif", image, photometric="rgb", tile=(32, 32))
    run(tmp_path / "in.tif", tmp_path / "out.zarr", 2.0)
    whole = np.moveaxis(expected(np.moveaxis(image, -1, 0), 2.0, 0.3), 0, -1)
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), whole)


def test_resumes_after_an_interruption(tmp_path: Path) -> None:
    volume = draw(30, 20, 40)
    source, target = store(tmp_path / "in.zarr", volume, chunks=(8, 8, 8)), tmp_path / "out.zarr"
    store(target, draw(2, 2), attributes={"permutohedral": {}})
    interrupt(source, target, after=3, axes="ZYX")
    np.testing.assert_array_equal(read(target), draw(2, 2))
    with pytest.raises(InputError, match=r"these differ: sigma_space;"):
        run(source, target, 1.1, axes="ZYX", resume=True)
    reports: list[float] = []
    done = run(source, target, axes="ZYX", resume=True, progress=lambda count, *_: reports.append(count))
    # the tiles that are left, the start and the end
    assert len(reports) == done.num_tiles - 3 + 2
    np.testing.assert_array_equal(read(target), expected(volume[None], 1.0, 0.3)[0])
    assert names_in(tmp_path) == ["in.zarr", "out.zarr"]


def test_starting_again_warns_about_unfinished_work(tmp_path: Path) -> None:
    source, target = store(tmp_path / "in.zarr", draw(30, 20, 40), chunks=(8, 8, 8)), tmp_path / "out.zarr"
    interrupt(source, target, after=1, axes="ZYX")
    with pytest.warns(UserWarning, match=r"out.zarr.unfinished, left by an interrupted call, is deleted; resume"):
        run(source, target, axes="ZYX")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_resuming_keeps_a_complete_output(tmp_path: Path, zarr_format: Any) -> None:
    options: dict[str, Any] = {"chunks": (8, 8), "zarr_format": zarr_format}
    source, target = store(tmp_path / "in.zarr", draw(40, 40), **options), tmp_path / "out.zarr"
    run(source, target)
    before = target.stat().st_mtime_ns
    with pytest.warns(UserWarning, match=r"out.zarr is complete$"):
        done = run(source, target, resume=True)
    assert (done.shape, done.num_tiles, target.stat().st_mtime_ns) == ((40, 40), 0, before)
    with pytest.raises(InputError, match=r"out.zarr was started with, but these differ: sigma_space;"):
        run(source, target, 1.1, resume=True)
    # the unfinished store of other settings comes first
    interrupt(source, target, sigma_space=1.1)
    assert run(source, target, 1.1, resume=True).num_tiles > 0
    # a filtered copy is not taken for the result of its own filter
    run(target, tmp_path / "twice.zarr")
    with pytest.warns(UserWarning, match=r"twice.zarr is complete$"):
        run(target, tmp_path / "twice.zarr", resume=True)
    assert str(tmp_path) not in str(dict(zarr.open_array(str(target), mode="r").attrs))


def test_warns_before_replacing_a_complete_output(tmp_path: Path) -> None:
    source, target = store(tmp_path / "in.zarr", draw(40, 40), chunks=(8, 8)), tmp_path / "out.zarr"
    run(source, target)
    with pytest.warns(UserWarning, match=r"out.zarr exists, and is replaced when the new result is complete"):
        run(source, target)


def test_warns_of_axes_that_are_not_stated(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    store(tmp_path / "in.zarr", draw(9, 9, 9), chunks=(9, 9, 9))
    tifffile.imwrite(tmp_path / "in.tif", draw(9, 9, 9), photometric="minisblack")
    for name in ("in.zarr", "in.tif"):
        with pytest.warns(UserWarning, match=rf"{name} does not state its axes, taken as ZYX; pass others as axes"):
            run(tmp_path / name, tmp_path / f"{name}.zarr")


def test_rejects_resuming_with_a_changed_input(tmp_path: Path) -> None:
    """A changed chunk does not change the modification time of the store's folder."""
    source, target = store(tmp_path / "in.zarr", draw(40, 40), chunks=(8, 8)), tmp_path / "out.zarr"
    # a dangling link is ignored
    (source / "c" / "note").symlink_to("nowhere")
    interrupt(source, target)
    before = source.stat().st_mtime_ns
    zarr.open_array(str(source), mode="r+")[8:16, 8:16] = 0.5
    assert source.stat().st_mtime_ns == before
    with pytest.raises(InputError, match="last change of the input"):
        run(source, target, resume=True)


def test_rejects_two_calls_with_one_output(tmp_path: Path) -> None:
    source, target = store(tmp_path / "in.zarr", draw(40, 40), chunks=(8, 8)), tmp_path / "out.zarr"

    def call_again(done: float, *_: object) -> None:
        if done in (0, 1):
            return
        with pytest.raises(InputError, match="being written by another process"):
            run(source, target)

    run(source, target, progress=call_again)
    assert names_in(tmp_path) == ["in.zarr", "out.zarr"]


@pytest.mark.parametrize(
    ("names", "axes"),
    [(("row", "col"), "YX"), (("track", "range"), "YX"), (("time", "lat", "x"), "TLX"), (("band", "y", "x"), "CYX")],
)
def test_axes_from_dimension_names(tmp_path: Path, names: tuple[str, ...], axes: str) -> None:
    """Columns are not channels, and tracks are not times."""
    source = store(tmp_path / "in.zarr", draw(*[9] * len(names)), chunks=(9,) * len(names), dimension_names=names)
    assert run(source, tmp_path / "out.zarr").axes == axes


@pytest.mark.parametrize(
    ("part", "function", "advice"),
    [(zarr.Array, "__setitem__", "parts are kept; make room, then continue with --resume"), (zarr, "create_array", "")],
)
def test_reports_a_full_disk(
    part: Any, function: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store(tmp_path / "in.zarr", draw(20, 20))

    def full(*given: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(part, function, full)
    with pytest.raises(StorageError, match=f"No space left on device; .*{advice}"):
        run(source, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_rejects_bad_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.zarr"
    colors = store(tmp_path / "colors.zarr", draw(20, 20, 3))
    stack = store(tmp_path / "stack.zarr", draw(3, 5, 9, 9))
    waves = store(tmp_path / "waves.zarr", draw(9, 9).astype(complex))
    wide = store(tmp_path / "wide.zarr", draw(9, 9).astype(np.uint32))
    empty = store(tmp_path / "empty.zarr", draw(0, 9), chunks=(3, 3))
    zarr.create_group(str(tmp_path / "group.zarr"))
    levels = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [0.0, 0.5]}]}]
    flat: Any = {"multiscales": [{"axes": ["y", "x"], "datasets": levels}]}
    zarr.create_group(str(tmp_path / "flat.zarr"), attributes=flat)
    store(tmp_path / "flat.zarr" / "0", draw(9, 9))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "folder")
    (tmp_path / "other.zarr.unfinished" / "notes").mkdir(parents=True)
    cases: list[tuple[Path, Path, str, dict[str, Any]]] = [
        (colors, out, r"axes are not stated by .*; pass YXC, CYX, ZYX, TYX, \.\.\.", {}),
        (stack, out, r"axes are not stated by .*; pass ZYXC, CZYX, TZYX, \.\.\.", {}),
        (colors, out, "at most one C", {"axes": "CYC"}),
        (colors, out, "pass Z, Y and X for space", {"axes": "ABC"}),
        (colors, tmp_path / "out.tif", r"ends with \.zarr", {"axes": "YXC"}),
        (colors, colors, "would overwrite", {"axes": "YXC"}),
        (colors, tmp_path / "link.zarr", "is not just a result of this job", {"axes": "YXC"}),
        (colors, tmp_path / "other.zarr", "not created by permutohedral", {"axes": "YXC"}),
        (colors, out, "sigma_color is 0", {"axes": "YXC", "sigma_color": 0}),
        (wide, out, r"uint32 has no rule for sigma_color: pass value_range=\(low, high\)", {}),
        (colors, out, "pass either scheduler", {"axes": "YXC", "workers": 2, "scheduler": "tcp://localhost:1"}),
        (colors, out, "such as 2GiB", {"axes": "YXC", "workers": 2, "memory": "much"}),
        (tmp_path / "folder" / "thesis.txt", out, "cannot read|neither Zarr nor TIFF; save the array as Zarr", {}),
        (tmp_path, out, "a file, but there are several inputs", {}),
        (waves, out, "integers or floats", {}),
        (empty, out, "not empty", {}),
        (store(tmp_path / "number.zarr", np.array(1.0)), out, "is a single number; pass an array with axes", {}),
        (tmp_path / "group.zarr", out, "no OME-Zarr", {}),
        (tmp_path / "flat.zarr", out, "positive distances between samples", {"physical": True}),
        (waves, out, "integers or floats", {"physical": True}),
        (tmp_path / "colors.zarr", out, "does not state", {"axes": "YXC", "physical": True}),
    ]
    for source, target, message, options in cases:
        with pytest.raises(InputError, match=message):
            run(source, target, **options)
    monkeypatch.setattr(workers, "worker_memory", lambda: 100_000)
    with pytest.raises(InputError, match="smaller sigma_space"):
        run(colors, out, 4.0, axes="YXC")
    assert not out.exists()


def test_margins_wider_than_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single tile has more points than a tile usually gets, however much memory there is."""
    monkeypatch.setattr(workers, "worker_memory", lambda: 1 << 36)
    volume = draw(165, 165, 165, dtype=np.float64)
    source = store(tmp_path / "in.zarr", volume, chunks=(55, 55, 55), dimension_names=("z", "y", "x"))
    assert run(source, tmp_path / "out.zarr", 50.0).tile == volume.shape
    whole = ph.bilateral_filter(torch.from_numpy(volume)[None], sigma_space=50.0, sigma_color=0.3, spatial_dims=3)[0]
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), whole)


def test_reports_the_memory_for_wide_margins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store(tmp_path / "in.zarr", draw(40, 40, 40), dimension_names=("z", "y", "x"))
    monkeypatch.setattr(workers, "worker_memory", lambda: 1 << 20)
    with pytest.raises(InputError, match="is 1 MiB, but tiles with margins of 44 samples have 64,000 points") as raised:
        run(source, tmp_path / "out.zarr", 9.9)
    needed = re.search(r"need up to ([\d,]+) MiB; pass more memory, or a smaller sigma_space", str(raised.value))
    assert needed is not None
    memory = int(needed[1].replace(",", "")) << 20
    monkeypatch.setattr(workers, "worker_memory", lambda: memory + (1 << 20))
    assert run(source, tmp_path / "out.zarr", 9.9).tile == (40, 40, 40)


def test_warns_of_bandwidths_in_units_of_integers(tmp_path: Path) -> None:
    source = store(tmp_path / "in.zarr", draw(20, 20).astype(np.uint16))
    with pytest.warns(UserWarning, match="sigma_color is 6553, but white is 1"):
        run(source, tmp_path / "out.zarr", sigma_color=6553.0)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_tiles_of_noise_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """Noise has several lattice points per sample, smooth images a fraction of one."""
    memory = 64 << 20
    monkeypatch.setattr(workers, "worker_memory", lambda: memory)
    source = store(tmp_path / "in.zarr", draw(24, 40, 40, dtype=dtype), dimension_names=("z", "y", "x"))
    done = run(source, tmp_path / "out.zarr", 1.0, 0.2)
    extents = [min(side + 2 * margin, 40) for side, margin in zip(done.tile, done.margins, strict=True)]
    noise = torch.from_numpy(draw(1, *extents))
    lattice = ph.build_lattice(
        ph.features.bilateral(noise, sigma_space=1.0, sigma_color=0.2, spatial_dims=3).reshape(-1, 4)
    )
    assert lattice.num_lattice_points > 2 * noise.numel()
    needed = ph.lattice.forecast_memory(
        noise.numel(), 4, 0, 2, lattice.num_lattice_points, separable=True, ordered=True
    )
    assert needed.total <= memory / 8


@pytest.mark.parametrize("suffix", [".zarr", ".tif"])
def test_reports_a_damaged_chunk(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    if suffix == ".zarr":
        (store(path, draw(8, 8), chunks=(8, 8)) / "c" / "0" / "0").write_bytes(b"nothing compressed")
    else:
        pytest.importorskip("tifffile", reason="tifffile is not installed").imwrite(path, draw(8, 8))
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"cannot read the array .*in{suffix}"):
        run(path, tmp_path / "out.zarr")
    (tmp_path / "broken.tif").write_bytes(b"II*\0 not a TIFF")
    with pytest.raises(DataError, match="cannot read the array"):
        run(tmp_path / "broken.tif", tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_filters_a_folder_of_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("a.zarr", "deep/b.zarr"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        store(folder / name, draw(9, 9), dimension_names=("y", "x"))
    (folder / "c.tif").write_bytes(b"II*\0 not a TIFF")
    results = filter_array(folder, tmp_path / "out", sigma_space=1.0, recursive=True, errors="report")
    assert [(result.input.name, result.error is None) for result in results] == [
        ("a.zarr", True), ("c.tif", False), ("b.zarr", True),
    ]  # fmt: skip
    assert [result.to_json()["output"] for result in results] == [
        str(tmp_path / "out" / name) for name in ("a.zarr", "c.zarr", "deep/b.zarr")
    ]
    np.testing.assert_array_equal(read(tmp_path / "out" / "deep" / "b.zarr"), expected(draw(1, 9, 9), 1.0, 0.1)[0])


def test_value_range_sets_the_units_of_integers(tmp_path: Path) -> None:
    volume = draw(1, 20, 20) * 4095
    for dtype in (np.uint16, np.uint32):
        source = store(tmp_path / f"{dtype.__name__}.zarr", volume[0].astype(dtype), dimension_names=("y", "x"))
        run(source, tmp_path / "out.zarr", sigma_color=0.3, value_range=(0, 4095))
        wanted = expected(volume.astype(dtype).astype(np.float64), 1.0, 0.3 * 4095)[0]
        np.testing.assert_allclose(read(tmp_path / "out.zarr"), wanted, rtol=0, atol=0.5001)
