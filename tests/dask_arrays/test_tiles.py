"""Tiles of images and volumes equal the whole, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.errors import InputError, MemoryLimitError

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
    """Draw seeded waves with noise in [0, 1], float32."""
    grid = np.meshgrid(*(np.linspace(0, 4, extent) for extent in shape), indexing="ij")
    waves = 0.5 + 0.3 * np.sin(sum(grid)) + 0.2 * np.random.default_rng(0).random(shape)
    return waves.astype(np.float32)


def in_memory(image: np.ndarray, sigma_space: float, sigma_color: float) -> np.ndarray:
    """Filter `[*space]` in one call."""
    filtered = ph.bilateral_filter(
        image[None], sigma_space=sigma_space, sigma_color=sigma_color, spatial_dims=image.ndim
    )
    return filtered.reshape(image.shape)


@pytest.mark.parametrize("chunks", [(32, 32), (70, 19), (25, 90)])
def test_images_equal_those_in_memory(chunks: tuple[int, int]) -> None:
    image = smooth(70, 90)
    filtered = phd.bilateral_filter(da.from_array(image, chunks=chunks), sigma_space=2.0, sigma_color=0.2)
    assert filtered.dtype == np.float32
    np.testing.assert_array_equal(filtered.compute(), in_memory(image, 2.0, 0.2))


@pytest.mark.parametrize("chunks", [16, (14, 40, 20), (30, 15, 13)])
def test_volumes_equal_those_in_memory(chunks: object) -> None:
    volume = smooth(30, 40, 20)
    filtered = phd.bilateral_filter(da.from_array(volume, chunks=chunks), sigma_space=1.0, sigma_color=0.2, axes="ZYX")
    np.testing.assert_array_equal(filtered.compute(), in_memory(volume, 1.0, 0.2))


@pytest.mark.parametrize(("shape", "sigma_space"), [((3, 20, 30), 2.0), ((1, 1, 40), 1.0), ((0, 5, 5), 1.0)])
def test_axes_shorter_than_the_support(shape: tuple[int, ...], sigma_space: float) -> None:
    volume = smooth(*shape)
    filtered = phd.bilateral_filter(
        da.from_array(volume, chunks=(1, 9, 18)), sigma_space=sigma_space, sigma_color=0.2, axes="ZYX"
    )
    np.testing.assert_array_equal(filtered.compute(), in_memory(volume, sigma_space, 0.2))


def test_margins_beyond_the_array_need_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    volume = smooth(60, 60, 60)
    chunked = da.from_array(volume, chunks=15)
    monkeypatch.setattr(workers, "worker_memory", lambda: 700 << 20)
    filtered = phd.bilateral_filter(chunked, sigma_space=15.0, sigma_color=0.2, axes="ZYX")
    np.testing.assert_array_equal(filtered.compute(), in_memory(volume, 15.0, 0.2))
    monkeypatch.setattr(workers, "worker_memory", lambda: 1 << 20)
    message = "image: a chunk of 216,000 points, with margins of 60 samples, needs .* pass a smaller sigma_space"
    with pytest.raises(MemoryLimitError, match=message):
        phd.bilateral_filter(chunked, sigma_space=15.0, sigma_color=0.2, axes="ZYX")


@pytest.mark.parametrize(("method", "halo"), [("dense", 0), ("lattice", 1)])
def test_methods_equal_those_in_memory(method: Any, halo: int) -> None:
    image = smooth(60, 40)
    filtered = phd.bilateral_filter(
        da.from_array(image, chunks=24), sigma_space=1.5, sigma_color=0.2, method=method, halo=halo
    )
    whole = ph.bilateral_filter(
        torch.from_numpy(image)[None], sigma_space=1.5, sigma_color=0.2, method=method, halo=halo
    )[0]
    np.testing.assert_array_equal(filtered.compute(), whole)
    assert np.abs(whole.numpy() - in_memory(image, 1.5, 0.2)).max() > 1e-6


@pytest.mark.parametrize(("shape", "axes"), [((50, 40), "YX"), ((14, 15, 40), "ZYX")])
def test_exact_method_equals_the_whole(shape: tuple[int, ...], axes: str) -> None:
    """The windows of images and the neighborhoods of volumes have finite support."""
    image = smooth(*shape)
    filtered = phd.bilateral_filter(
        da.from_array(image, chunks=20), sigma_space=0.8, sigma_color=0.2, axes=axes, method="exact"
    ).compute()
    given = torch.from_numpy(image)[None]
    whole = ph.bilateral_filter(given, sigma_space=0.8, sigma_color=0.2, method="exact", spatial_dims=len(shape))[0]
    np.testing.assert_allclose(filtered, whole, rtol=0, atol=5e-7)
    assert np.abs(filtered - in_memory(image, 0.8, 0.2)).max() > 1e-4


def test_channels_guides_and_integers() -> None:
    color = np.rint(255 * np.stack([smooth(40, 50), smooth(40, 50)[::-1]])).astype(np.uint8)
    guide = smooth(40, 50)
    filtered = phd.bilateral_filter(
        da.from_array(color, chunks=(1, 20, 25)),
        da.from_array(guide[None], chunks=(1, 40, 50)),
        sigma_space=(2.0, 1.0),
        sigma_color=0.2,
        axes="cyx",
    )
    assert filtered.shape == color.shape
    assert filtered.dtype == np.uint8
    expected = ph.bilateral_filter(
        torch.from_numpy(color).float(), sigma_space=(2.0, 1.0), sigma_color=0.2, guide=torch.from_numpy(guide)[None]
    )
    np.testing.assert_array_equal(filtered.compute(), np.rint(expected.numpy()).astype(np.uint8))


def test_xarray_keeps_labels() -> None:
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    image = xarray.DataArray(
        da.from_array(smooth(30, 30), chunks=15), dims=("y", "x"), coords={"y": np.arange(30) * 0.5}, name="depth"
    )
    filtered = phd.bilateral_filter(image, sigma_space=1.0, sigma_color=0.2)
    assert filtered.name == "depth"
    np.testing.assert_array_equal(filtered.y, image.y)
    np.testing.assert_array_equal(filtered.values, in_memory(smooth(30, 30), 1.0, 0.2))


def test_rejects_bad_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    color = da.zeros((40, 40, 3), chunks=20)
    with pytest.raises(InputError, match="axes='YXC'"):
        phd.bilateral_filter(color, sigma_space=2.0, sigma_color=0.1)
    with pytest.raises(InputError, match="pass axes='ZYXC', 'CZYX', "):
        phd.bilateral_filter(da.zeros((3, 20, 40, 40)), sigma_space=2.0, sigma_color=0.1)
    with pytest.raises(InputError, match="each once"):
        phd.bilateral_filter(color, sigma_space=2.0, sigma_color=0.1, axes="CYXC")
    with pytest.raises(InputError, match="the same space"):
        phd.bilateral_filter(color, da.zeros((40, 41, 3), chunks=20), sigma_space=2.0, sigma_color=0.1, axes="YXC")
    with pytest.raises(InputError, match="'lattice', 'dense' or 'exact'"):
        phd.bilateral_filter(color, sigma_space=2.0, sigma_color=0.1, axes="YXC", method="auto")
    with pytest.raises(InputError, match="no lattice, and so no halo"):
        phd.bilateral_filter(color, sigma_space=2.0, sigma_color=0.1, axes="YXC", method="exact", halo=1)
    with pytest.raises(InputError, match="Dask array"):
        phd.bilateral_filter(np.zeros((40, 40)), sigma_space=2.0, sigma_color=0.1)
    with pytest.raises(InputError, match="image is bool"):
        phd.bilateral_filter(color > 0, sigma_space=2.0, sigma_color=0.1, axes="YXC")
    with pytest.raises(InputError, match=r"margins are \[3\]; .* spatial axis of 'YXC'"):
        phd.map_tiles(lambda values, _: values, color, [3], axes="YXC")
    broken = np.ones((40, 40), np.float32)
    broken[33, 5] = np.nan
    with pytest.raises(InputError, match=r"in the tile whose first sample is \(12, 0\): .* NaN"):
        phd.bilateral_filter(da.from_array(broken, chunks=20), sigma_space=2.0, sigma_color=0.1).compute()
    # the reference backend takes more memory
    memory = (10 if "native" in ph.backends.available() else 26) << 20
    monkeypatch.setattr(workers, "worker_memory", lambda: memory)
    phd.bilateral_filter(da.zeros((80, 80), chunks=80, dtype="float32"), sigma_space=2.0, sigma_color=0.1)
    with pytest.raises(MemoryLimitError, match="rechunk to at most"):
        # computed in double precision
        phd.bilateral_filter(
            da.zeros((80, 80), chunks=80, dtype="uint32"), sigma_space=2.0, sigma_color=0.1, value_range=(0, 9)
        )
    monkeypatch.setattr(workers, "worker_memory", lambda: 1000)
    with pytest.raises(MemoryLimitError, match="rechunk to at most"):
        phd.bilateral_filter(color, sigma_space=2.0, sigma_color=0.1, axes="YXC")


@pytest.mark.parametrize("kind", ["uint8", "int32", "uint32", "int64", "uint64"])
def test_largest_integers_stay(kind: str) -> None:
    """float32 rounds the largest 32-bit integer to a number out of range."""
    largest = np.iinfo(kind).max
    image = np.full((9, 20), largest, dtype=kind)
    actual = phd.bilateral_filter(
        da.from_array(image, chunks=10), sigma_space=1.0, sigma_color=0.1, axes="YX", value_range=(0, largest)
    ).compute()
    assert actual.dtype == image.dtype
    # float64 does not have the digits of 64 bits
    assert (actual >= largest - (0 if image.itemsize <= 4 else 4096)).all()


def test_maps_trained_layers_over_tiles() -> None:
    layer = ph.nn.BilateralConv2d(2, 3, sigma_space=1.0).eval()
    image = np.stack([smooth(60, 70), smooth(60, 70)[::-1]])
    margins = [math.ceil(ph.lattice.reach(axis, 1)) + 1 for axis in range(2)]
    found = phd.map_tiles(
        lambda values, origin: layer(values[None], origin=origin)[0],
        da.from_array(image, chunks=(2, 25, 30)),
        margins,
        axes="CYX",
        out_channels=3,
    )
    expected = layer(torch.from_numpy(image)[None])[0].detach().numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.compute(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("kind", "value_range"), [("uint8", None), ("uint16", (0, 4095)), ("float32", (0, 4095))])
def test_units_are_those_of_the_filter_in_memory(kind: str, value_range: Any) -> None:
    image = ((4095 if kind != "uint8" else 255) * smooth(40, 50)).astype(kind)
    options: dict[str, Any] = {"sigma_space": 1.5, "sigma_color": 0.1, "value_range": value_range}
    expected = ph.bilateral_filter(image[None], **options)[0]
    found = phd.bilateral_filter(da.from_array(image, chunks=25), **options).compute()
    assert found.dtype == image.dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-2 if kind == "float32" else 1)
    with pytest.raises(InputError, match="image of int32 has no rule"):
        phd.bilateral_filter(da.from_array(image.astype(np.int32)), sigma_space=1.5, sigma_color=0.1)


@pytest.mark.parametrize("axes", ["ABC", "ZYY", "TYX"])
def test_rejects_unknown_letters_of_axes(axes: str) -> None:
    with pytest.raises(InputError, match="axes are"):
        phd.bilateral_filter(da.zeros((9, 9, 9)), sigma_space=2.0, sigma_color=0.1, axes=axes)
