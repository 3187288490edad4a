"""Arrays in files: every format, whole results or none, going on after an interruption."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.errors import DataError, InputError, StorageError

pytest.importorskip("dask.array", reason="Dask is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

import zarr

from permutohedral.arrays import bilateral
from permutohedral.arrays.bilateral import Tiling, filter_array
from permutohedral.arrays.sources import open_source
from permutohedral.arrays.workers import Workers
from permutohedral.dask import workers as dask_workers

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bilateral, "points_that_fit", lambda *_: 25**3)


def draw(*shape: int, dtype: Any = np.float32) -> Array:
    numbers = np.random.default_rng(0).random(shape)
    return (255 * numbers).astype(dtype) if dtype == np.uint8 else numbers.astype(dtype)


def store(path: Path, array: Array, **options: Any) -> Path:
    zarr.create_array(str(path), shape=array.shape, dtype=array.dtype, **options)[...] = array
    return path


def read(path: Path) -> Array:
    found: Array = np.asarray(zarr.open_array(str(path), mode="r")[...])
    return found


def expected(volume: Array, sigma_space: Any, sigma_range: float) -> Array:
    """`[channels, *space]` filtered at once; whole numbers are rounded."""
    whole = volume.dtype == np.uint8
    scale = 255.0 if whole else 1.0
    image = torch.from_numpy(volume.astype(np.float32))
    result = ph.bilateral_filter(image, sigma_space, scale * sigma_range, spatial_axes=volume.ndim - 1).numpy()
    return np.rint(result).astype(np.uint8) if whole else result


def test_a_volume_of_whole_numbers_in_tiles(tmp_path: Path) -> None:
    volume = draw(30, 20, 40, dtype=np.uint8)
    source = store(tmp_path / "in.zarr", volume, chunks=(8, 8, 8), dimension_names=("z", "y", "x"))
    tiling = filter_array(source, tmp_path / "out.zarr", (1.0, 0.7, 0.8), 0.3)
    assert len([*tiling.indices()]) > 4
    assert tiling.tile[2] % 8 == 0
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), expected(volume[None], (1.0, 0.7, 0.8), 0.3)[0])
    written: Any = zarr.open_array(str(tmp_path / "out.zarr"))
    assert written.dtype == np.uint8
    assert written.chunks == (8, 8, 8)
    assert written.metadata.dimension_names == ("z", "y", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr", "out.zarr"]
    assert not (tmp_path / "out.zarr" / ".permutohedral").exists()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_finest_level_of_an_ome_zarr(tmp_path: Path, zarr_format: Any) -> None:
    """Times one by one, channels together; what describes it stays, and coarser levels are means."""
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
    filter_array(tmp_path / "in.zarr", tmp_path / "out.zarr", 1.0, 0.3)
    group: Any = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    described: Any = dict(group.attrs).get("ome", dict(group.attrs))
    levels = described["multiscales"][0]["datasets"]
    assert levels == [{"path": "0", "coordinateTransformations": scale}, {"path": "1"}, {"path": "2"}]
    assert described["multiscales"][0]["axes"] == scales["axes"]
    assert described["omero"] == {"channels": []}
    finest = np.stack([expected(volume, 1.0, 0.3) for volume in movie])
    np.testing.assert_array_equal(group["0"][...], finest)
    # the last column is alone
    wide = np.concatenate([finest, finest[..., -1:]], axis=-1)
    second = wide.reshape(2, 2, 6, 15, 2, 9, 2).mean(axis=(4, 6))
    np.testing.assert_allclose(group["1"][...], second, rtol=1e-6)
    # voxels are twice and half as long as the unit
    filter_array(tmp_path / "in.zarr", tmp_path / "physical.zarr", 1.0, 0.3, physical=True)
    finest = np.stack([expected(volume, (0.5, 2.0, 2.0), 0.3) for volume in movie])
    np.testing.assert_array_equal(read(tmp_path / "physical.zarr" / "0"), finest)
    third = second[..., :14, :8].reshape(2, 2, 3, 2, 7, 2, 4, 2).mean(axis=(3, 5, 7))
    np.testing.assert_allclose(group["2"][...], third, rtol=1e-6)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_describes_an_array_stays(tmp_path: Path, zarr_format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its units, and the names that xarray finds its axes by; one that is NaN does not keep it from being taken up."""
    attributes = {"units": "mm", "_FillValue": float("nan")}
    attributes |= {"_ARRAY_DIMENSIONS": ["lat", "y"]} if zarr_format == 2 else {}
    names: dict[str, Any] = {"dimension_names": ("lat", "y")} if zarr_format == 3 else {}
    options = {"chunks": (8, 8), "zarr_format": zarr_format, "attributes": attributes, **names}
    source, target = store(tmp_path / "in.zarr", draw(20, 20), **options), tmp_path / "out.zarr"
    monkeypatch.setattr(Tiling, "filter_tile", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        filter_array(source, target, 1.0, 0.3)
    monkeypatch.undo()
    filter_array(source, target, 1.0, 0.3, resume=True)
    found: Any = zarr.open_array(str(target), mode="r")
    assert str(dict(found.attrs)) == str(attributes)
    assert getattr(found.metadata, "dimension_names", None) == names.get("dimension_names")


def test_levels_that_are_no_means_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    """Three samples of four: taken one by one, the level would show a part of the picture."""
    scales = {"axes": [{"name": name} for name in "yx"], "datasets": [{"path": "0"}, {"path": "1"}]}
    zarr.create_group(str(tmp_path / "in.zarr"), attributes={"ome": {"multiscales": [scales]}})
    store(tmp_path / "in.zarr" / "0", draw(40, 40), chunks=(8, 8))
    store(tmp_path / "in.zarr" / "1", draw(30, 40), chunks=(8, 8))
    with pytest.raises(InputError, match="30 are not means of a whole number of 40 samples"):
        filter_array(tmp_path / "in.zarr", tmp_path / "out.zarr", 1.0, 0.3)
    assert [path.name for path in tmp_path.iterdir()] == ["in.zarr"]
    filter_array(tmp_path / "in.zarr" / "0", tmp_path / "out.zarr", 1.0, 0.3)


def test_a_tiff(tmp_path: Path) -> None:
    tifffile: Any = pytest.importorskip("tifffile", reason="tifffile is not installed")
    picture = draw(60, 170, 3, dtype=np.uint8)
    tifffile.imwrite(tmp_path / "in.tif", picture, photometric="rgb", tile=(32, 32))
    filter_array(tmp_path / "in.tif", tmp_path / "out.zarr", 2.0, 0.3)
    np.testing.assert_array_equal(
        read(tmp_path / "out.zarr"), np.moveaxis(expected(np.moveaxis(picture, -1, 0), 2.0, 0.3), 0, -1)
    )


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files")
def test_a_tiff_is_closed_after_each_part(tmp_path: Path) -> None:
    tifffile: Any = pytest.importorskip("tifffile", reason="tifffile is not installed")
    tifffile.imwrite(tmp_path / "in.tif", draw(30, 40))
    source = open_source(tmp_path / "in.tif")
    gc.disable()
    try:
        for _ in range(3):
            source.read((slice(0, 9), slice(0, 9)))
        names = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    finally:
        gc.enable()
    assert str(tmp_path / "in.tif") not in names


def test_going_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = draw(30, 20, 40)
    source = store(tmp_path / "in.zarr", volume, chunks=(8, 8, 8))
    store(tmp_path / "out.zarr", draw(2, 2))
    done: list[tuple[int, ...]] = []
    whole = Tiling.filter_tile

    def counted(tiling: Tiling, index: tuple[int, ...]) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        whole(tiling, index)
        done.append(index)

    monkeypatch.setattr(Tiling, "filter_tile", counted)
    with pytest.raises(KeyboardInterrupt):
        filter_array(source, tmp_path / "out.zarr", 1.0, 0.3, "ZYX")
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), draw(2, 2))
    before, done[:] = list(done), [(0,)] * 4
    with pytest.raises(InputError, match=r"other settings \(sigmas, margins\)"):
        filter_array(source, tmp_path / "out.zarr", 1.5, 0.3, "ZYX", resume=True)
    tiling = filter_array(source, tmp_path / "out.zarr", 1.0, 0.3, "ZYX", resume=True)
    assert sorted([*before, *done[4:]]) == sorted(tiling.indices())
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), expected(volume[None], 1.0, 0.3)[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr", "out.zarr"]


def test_an_array_that_changed_meanwhile_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk of it: the folder of the store shows nothing of that."""
    source, target = store(tmp_path / "in.zarr", draw(40, 40), chunks=(8, 8)), tmp_path / "out.zarr"
    # a link to nothing is no reason to stop
    (source / "c" / "note").symlink_to("nowhere")
    monkeypatch.setattr(Tiling, "filter_tile", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        filter_array(source, target, 1.0, 0.3)
    before = source.stat().st_mtime_ns
    zarr.open_array(str(source), mode="r+")[8:16, 8:16] = 0.5
    assert source.stat().st_mtime_ns == before
    with pytest.raises(InputError, match="last change of the array"):
        filter_array(source, target, 1.0, 0.3, resume=True)


def test_two_commands_with_one_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would remove the tiles of the first."""
    source, target = store(tmp_path / "in.zarr", draw(40, 40), chunks=(8, 8)), tmp_path / "out.zarr"
    whole = Tiling.filter_tile

    def twice(tiling: Tiling, index: tuple[int, ...]) -> None:
        with pytest.raises(InputError, match="another command"):
            filter_array(source, target, 1.0, 0.3)
        whole(tiling, index)

    monkeypatch.setattr(Tiling, "filter_tile", twice)
    filter_array(source, target, 1.0, 0.3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr", "out.zarr"]


@pytest.mark.parametrize(
    ("names", "axes"),
    [(("row", "col"), "YX"), (("track", "range"), "YX"), (("time", "lat", "x"), "TLX"), (("band", "y", "x"), "CYX")],
)
def test_names_of_axes(tmp_path: Path, names: tuple[str, ...], axes: str) -> None:
    """Columns are no channels, and tracks no times."""
    store(tmp_path / "in.zarr", draw(*[9] * len(names)), chunks=(9,) * len(names), dimension_names=names)
    assert open_source(tmp_path / "in.zarr").axes == axes


@pytest.mark.parametrize(("part", "function"), [(zarr.Array, "__setitem__"), (zarr, "create_array")])
def test_a_full_disk_is_told(part: Any, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store(tmp_path / "in.zarr", draw(20, 20))

    def full(*given: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(part, function, full)
    with pytest.raises(StorageError, match="No space left on device; nothing was left there"):
        filter_array(source, tmp_path / "out.zarr", 1.0, 0.1)
    assert not (tmp_path / "out.zarr").exists()


def test_what_is_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.zarr"
    colors = store(tmp_path / "colors.zarr", draw(20, 20, 3))
    with pytest.raises(InputError, match="--axes YXC"):
        filter_array(colors, out, 1.0, 0.1)
    with pytest.raises(InputError, match="at most one C"):
        filter_array(colors, out, 1.0, 0.1, "CYC")
    with pytest.raises(InputError, match=r"ends with \.zarr"):
        filter_array(colors, tmp_path / "out.tif", 1.0, 0.1, "YXC")
    with pytest.raises(InputError, match="would replace what is read"):
        filter_array(colors, colors, 1.0, 0.1, "YXC")
    with pytest.raises(InputError, match="there is no"):
        filter_array(tmp_path / "nothing.zarr", out, 1.0, 0.1)
    with pytest.raises(InputError, match="only real numbers"):
        filter_array(store(tmp_path / "waves.zarr", draw(9, 9).astype(complex)), out, 1.0, 0.1)
    zarr.create_group(str(tmp_path / "group.zarr"))
    with pytest.raises(InputError, match="no OME-Zarr"):
        filter_array(tmp_path / "group.zarr", out, 1.0, 0.1)
    levels = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [0.0, 0.5]}]}]
    flat: Any = {"multiscales": [{"axes": ["y", "x"], "datasets": levels}]}
    zarr.create_group(str(tmp_path / "flat.zarr"), attributes=flat)
    store(tmp_path / "flat.zarr" / "0", draw(9, 9))
    with pytest.raises(InputError, match="tells distances of"):
        filter_array(tmp_path / "flat.zarr", out, 1.0, 0.1, physical=True)
    (tmp_path / "broken.tif").write_bytes(b"II*\0 nothing of the kind")
    with pytest.raises(DataError, match="cannot read the array"):
        filter_array(tmp_path / "broken.tif", out, 1.0, 0.1)
    monkeypatch.setattr(bilateral, "points_that_fit", lambda *_: 100)
    with pytest.raises(InputError, match="smaller --sigma-space"):
        filter_array(colors, out, 2.0, 0.1, "YXC")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("")
    out.symlink_to(tmp_path / "folder")
    monkeypatch.setattr(bilateral, "points_that_fit", dask_workers.points_that_fit)
    with pytest.raises(InputError, match="is no Zarr store"):
        filter_array(colors, out, 1.0, 0.1, "YXC")
    (tmp_path / "other.zarr.unfinished").mkdir()
    with pytest.raises(InputError, match="is in the way"):
        filter_array(colors, tmp_path / "other.zarr", 1.0, 0.1, "YXC")
    with pytest.raises(InputError, match="either --scheduler"):
        Workers(2, None, "tcp://localhost:1")
    with pytest.raises(InputError, match="such as 2GiB"):
        Workers(2, "much")


@pytest.mark.parametrize("ending", [".zarr", ".tif"])
def test_a_damaged_part_is_told(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"in{ending}"
    if ending == ".zarr":
        (store(path, draw(8, 8), chunks=(8, 8)) / "c" / "0" / "0").write_bytes(b"nothing compressed")
    else:
        pytest.importorskip("tifffile", reason="tifffile is not installed").imwrite(path, draw(8, 8))
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"cannot read the array .*in{ending}"):
        filter_array(path, tmp_path / "out.zarr", 1.0, 0.1)
    assert not (tmp_path / "out.zarr").exists()


def test_nothing_to_filter(tmp_path: Path) -> None:
    source = store(tmp_path / "in.zarr", draw(0, 9), chunks=(3, 3))
    with pytest.raises(InputError, match="nothing to filter"):
        filter_array(source, tmp_path / "out.zarr", 1.0, 0.1)


class Elsewhere(Workers):
    """Workers that were started in another folder."""

    def run(self, *arguments: Any) -> None:
        here = Path.cwd()
        os.chdir("/")
        try:
            super().run(*arguments)
        finally:
            os.chdir(here)


def test_workers_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store(Path("in.zarr"), draw(30, 30), chunks=(8, 8), dimension_names=("y", "x"))
    filter_array(Path("in.zarr"), Path("out.zarr"), 1.0, 0.1, workers=Elsewhere())
    assert read(Path("out.zarr")).shape == (30, 30)
