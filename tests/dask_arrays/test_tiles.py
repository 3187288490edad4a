"""Tiles of pictures and volumes give the result of the whole, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.errors import InputError, MemoryLimitError
from permutohedral.features import grid_features

pytest.importorskip("dask.array", reason="Dask is not installed")

import dask
import dask.array as da

import permutohedral.dask as phd
from permutohedral.dask import workers


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def smooth(*shape: int) -> np.ndarray:
    """Seeded waves with noise between 0 and 1, float32."""
    grid = np.meshgrid(*(np.linspace(0, 4, extent) for extent in shape), indexing="ij")
    waves = 0.5 + 0.3 * np.sin(sum(grid)) + 0.2 * np.random.default_rng(0).random(shape)
    return waves.astype(np.float32)


def in_memory(image: np.ndarray, sigma_space: float, sigma_range: float) -> np.ndarray:
    """The filter of `[*space]` at once."""
    values = torch.from_numpy(image).reshape(-1, 1)
    features = torch.cat([grid_features(image.shape, sigma_space), values / sigma_range], dim=1)
    return ph.gaussian_filter(values, features).reshape(image.shape).numpy()


@pytest.mark.parametrize("chunks", [(32, 32), (70, 19), (25, 90)])
def test_pictures_equal_those_in_memory(chunks: tuple[int, int]) -> None:
    image = smooth(70, 90)
    filtered = phd.bilateral_filter(da.from_array(image, chunks=chunks), 2.0, 0.2)
    assert filtered.dtype == np.float32
    np.testing.assert_array_equal(filtered.compute(), in_memory(image, 2.0, 0.2))
    np.testing.assert_array_equal(filtered.compute(), ph.bilateral_filter(torch.from_numpy(image)[None], 2.0, 0.2)[0])


@pytest.mark.parametrize("chunks", [16, (14, 40, 20), (30, 15, 13)])
def test_volumes_equal_those_in_memory(chunks: object) -> None:
    volume = smooth(30, 40, 20)
    filtered = phd.bilateral_filter(da.from_array(volume, chunks=chunks), 1.0, 0.2, axes="ZYX")
    np.testing.assert_array_equal(filtered.compute(), in_memory(volume, 1.0, 0.2))


@pytest.mark.parametrize(("shape", "sigma_space"), [((3, 20, 30), 2.0), ((1, 1, 40), 1.0), ((0, 5, 5), 1.0)])
def test_axes_shorter_than_the_filter_reaches(shape: tuple[int, ...], sigma_space: float) -> None:
    volume = smooth(*shape)
    filtered = phd.bilateral_filter(da.from_array(volume, chunks=(1, 9, 18)), sigma_space, 0.2, axes="ZYX")
    np.testing.assert_array_equal(filtered.compute(), in_memory(volume, sigma_space, 0.2))


@pytest.mark.parametrize(("method", "halo"), [("dense", 0), ("separable", 1)])
def test_other_ways_to_the_gaussian(method: Any, halo: int) -> None:
    image = smooth(60, 40)
    filtered = phd.bilateral_filter(da.from_array(image, chunks=24), 1.5, 0.2, method=method, halo=halo)
    whole = ph.bilateral_filter(torch.from_numpy(image)[None], 1.5, 0.2, method=method, halo=halo)[0]
    np.testing.assert_array_equal(filtered.compute(), whole)
    assert np.abs(whole.numpy() - in_memory(image, 1.5, 0.2)).max() > 1e-6


@pytest.mark.parametrize(("shape", "axes"), [((50, 40), "YX"), ((14, 15, 40), "ZYX")])
def test_exact_sums(shape: tuple[int, ...], axes: str) -> None:
    """Windows of pictures, and of volumes all voxels near enough: both end, so tiles see all of it."""
    image = smooth(*shape)
    filtered = phd.bilateral_filter(da.from_array(image, chunks=20), 0.8, 0.2, axes=axes, method="exact").compute()
    given = torch.from_numpy(image)[None]
    whole = ph.bilateral_filter(given, 0.8, 0.2, method="exact", spatial_axes=len(shape))[0]
    np.testing.assert_allclose(filtered, whole, rtol=0, atol=5e-7)
    assert np.abs(filtered - in_memory(image, 0.8, 0.2)).max() > 1e-4


def test_three_quarters_of_the_reach_are_not_enough() -> None:
    image = smooth(80, 80)
    tiles, whole = da.from_array(image, chunks=20), in_memory(image, 4.0, 0.2)

    def filter_part(values: torch.Tensor, origin: tuple[int, ...]) -> torch.Tensor:
        places = grid_features(values.shape[1:], 4.0, origin=origin)
        features = torch.cat([places, values.reshape(-1, 1) / 0.2], dim=1)
        return ph.gaussian_filter(values.reshape(-1, 1), features).reshape(values.shape)

    def filtered(share: float) -> np.ndarray:
        margins = [int(np.ceil(share * 4.0 * ph.reach(axis))) for axis in range(2)]
        result: np.ndarray = phd.map_tiles(filter_part, tiles, margins).compute()
        return result

    np.testing.assert_array_equal(filtered(1.0), whole)
    assert np.abs(filtered(0.75) - whole).max() > 1e-6


def test_channels_guides_and_whole_numbers() -> None:
    color = np.rint(255 * np.stack([smooth(40, 50), smooth(40, 50)[::-1]])).astype(np.uint8)
    guide = smooth(40, 50)
    filtered = phd.bilateral_filter(
        da.from_array(color, chunks=(1, 20, 25)), (2.0, 1.0), 0.2, da.from_array(guide[None], chunks=(1, 40, 50)),
        axes="cyx",
    )  # fmt: skip
    assert filtered.shape == color.shape
    assert filtered.dtype == np.uint8
    expected = ph.bilateral_filter(
        torch.from_numpy(color).float(), (2.0, 1.0), 0.2, guide=torch.from_numpy(guide)[None]
    )
    np.testing.assert_array_equal(filtered.compute(), np.rint(expected.numpy()).astype(np.uint8))


def test_labelled_arrays_keep_their_labels() -> None:
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    image = xarray.DataArray(
        da.from_array(smooth(30, 30), chunks=15), dims=("y", "x"), coords={"y": np.arange(30) * 0.5}, name="depth"
    )
    filtered = phd.bilateral_filter(image, 1.0, 0.2)
    assert filtered.name == "depth"
    np.testing.assert_array_equal(filtered.y, image.y)
    np.testing.assert_array_equal(filtered.values, in_memory(smooth(30, 30), 1.0, 0.2))


def test_what_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    color = da.zeros((40, 40, 3), chunks=20)
    with pytest.raises(InputError, match="axes='YXC'"):
        phd.bilateral_filter(color, 2.0, 0.1)
    with pytest.raises(InputError, match="at most one C"):
        phd.bilateral_filter(color, 2.0, 0.1, axes="CYXC")
    with pytest.raises(InputError, match="one space"):
        phd.bilateral_filter(color, 2.0, 0.1, da.zeros((40, 41, 3), chunks=20), axes="YXC")
    with pytest.raises(InputError, match="'separable', 'dense' or 'exact'"):
        phd.bilateral_filter(color, 2.0, 0.1, axes="YXC", method="auto")
    with pytest.raises(InputError, match="no lattice, and so no halo"):
        phd.bilateral_filter(color, 2.0, 0.1, axes="YXC", method="exact", halo=1)
    with pytest.raises(InputError, match="Dask array"):
        phd.bilateral_filter(np.zeros((40, 40)), 2.0, 0.1)
    with pytest.raises(InputError, match="got bool"):
        phd.bilateral_filter(color > 0, 2.0, 0.1, axes="YXC")
    with pytest.raises(InputError, match=r"each axis of space in 'YXC', got \[3\]"):
        phd.map_tiles(lambda values, _: values, color, [3], axes="YXC")
    broken = np.ones((40, 40), np.float32)
    broken[33, 5] = np.nan
    with pytest.raises(InputError, match=r"in the tile whose first sample is \(12, 0\): .* NaN"):
        phd.bilateral_filter(da.from_array(broken, chunks=20), 2.0, 0.1).compute()
    monkeypatch.setattr(workers, "worker_memory", lambda: 11 << 20)
    phd.bilateral_filter(da.zeros((80, 80), chunks=80, dtype="float32"), 2.0, 0.1)
    with pytest.raises(MemoryLimitError, match="rechunk to at most"):
        # of 32 bits, which double precision has all of
        phd.bilateral_filter(da.zeros((80, 80), chunks=80, dtype="uint32"), 2.0, 0.1)
    monkeypatch.setattr(workers, "worker_memory", lambda: 1000)
    with pytest.raises(MemoryLimitError, match="rechunk to at most"):
        phd.bilateral_filter(color, 2.0, 0.1, axes="YXC")


@pytest.mark.parametrize("kind", ["uint8", "int32", "uint32", "int64", "uint64"])
def test_the_largest_whole_numbers_stay(kind: str) -> None:
    """float32 has not all numbers of 32 bits, and what it rounds the largest to is out of range."""
    largest = np.iinfo(kind).max
    image = np.full((9, 20), largest, dtype=kind)
    actual = phd.bilateral_filter(da.from_array(image, chunks=10), 1.0, largest / 10, axes="YX").compute()
    assert actual.dtype == image.dtype
    # of 64 bits more than float64 has digits for
    assert (actual >= largest - (0 if image.itemsize <= 4 else 4096)).all()
