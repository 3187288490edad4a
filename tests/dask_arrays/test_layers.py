"""Layers tile by tile equal layers on the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import permutohedral as ph
from permutohedral.errors import InputError

pytest.importorskip("dask.array", reason="Dask is not installed")

import dask
import dask.array as da

import permutohedral.dask as phd


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


LAYERS: dict[str, Any] = {
    "convolution": lambda: ph.nn.BilateralConvolution2d(2, 3, sigma_space=(1.0, 1.5)),
    "learned scale": lambda: ph.nn.BilateralConvolution2d(2, 2, sigma_space=2.0, learn_scale=True),
    "symmetric": lambda: ph.nn.BilateralConvolution2d(2, 2, sigma_space=1.0, normalization="symmetric"),
    "filter": lambda: ph.nn.BilateralFilter(1.5, 0.3, halo=1),
    "network": lambda: nn.Sequential(
        ph.nn.BilateralConvolution2d(2, 4, sigma_space=1.0), nn.ReLU(), nn.Conv2d(4, 1, 5, padding=2)
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_tiles_of_a_layer_equal_the_whole(name: str) -> None:
    torch.manual_seed(1)
    layer, picture = LAYERS[name]().eval(), draw(2, 75, 83)
    for parameter in layer.parameters():
        if parameter.shape == (4,) and name == "learned scale":
            parameter.data.copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
    found = phd.map_layer(layer, da.from_array(picture, chunks=(2, 25, 30)), axes="CYX")
    with torch.no_grad():
        expected = layer(torch.from_numpy(picture)[None])[0].numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.compute(), expected, rtol=0, atol=2e-6)


def test_probes_wide_layers_with_few_samples() -> None:
    """Samples as wide as its margins would take gigabytes."""
    layer, tried = ph.nn.BilateralFilter(40.0, 0.3), list[int]()
    layer.register_forward_pre_hook(lambda _, given: tried.append(given[0].numel()))
    phd.map_layer(layer, da.zeros((2, 300, 400), chunks=(2, 300, 200), dtype="float32"), axes="CYX")
    assert 0 < max(tried) < 100


def test_xarray_drops_labels_of_changed_axes() -> None:
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    torch.manual_seed(1)
    layer, volume = ph.nn.BilateralConvolution3d(1, 2, sigma_space=1.0).eval(), draw(1, 14, 15, 16)
    labelled = xarray.DataArray(
        da.from_array(volume, chunks=(1, 14, 15, 8)),
        dims=("channel", "z", "y", "x"),
        coords={"channel": ["red"], "x": 0.5 * np.arange(16)},
    )
    found = phd.map_layer(layer, labelled)
    assert found.dims == labelled.dims
    assert set(found.coords) == {"x"}
    with torch.no_grad():
        np.testing.assert_allclose(found.values, layer(torch.from_numpy(volume)).numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["convolution", "network"])
def test_float64_images(name: str) -> None:
    """Random Dask arrays are float64, weights are float32."""
    torch.manual_seed(1)
    layer, picture = LAYERS[name]().eval(), draw(2, 40, 50)
    found = phd.map_layer(layer, da.from_array(picture.astype(np.float64), chunks=(2, 20, 25)), axes="CYX")
    assert found.dtype == found.compute().dtype == np.float64
    with torch.no_grad():
        expected = layer(torch.from_numpy(picture)[None])[0].numpy()
    np.testing.assert_allclose(found.compute(), expected, rtol=0, atol=2e-6)


def test_rejects_bad_layers() -> None:
    picture = da.from_array(draw(1, 40, 40), chunks=(1, 20, 20))
    with pytest.raises(InputError, match="pass margins"):
        phd.map_layer(nn.Softmax(dim=1), picture, axes="CYX")
    with pytest.raises(InputError, match=r"call layer\.eval"):
        phd.map_layer(nn.Sequential(nn.Dropout()), picture, axes="CYX")
    with pytest.raises(InputError, match="circular"):
        phd.map_layer(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), picture, axes="CYX")
    with pytest.raises(InputError, match="changes extents"):
        phd.map_layer(nn.MaxPool2d(2), picture, axes="CYX", margins=(2, 2))
    with pytest.raises(InputError, match="needs an axis C"):
        phd.map_layer(ph.nn.BilateralConvolution2d(1, 2), picture[0], axes="YX")
    assert phd.map_layer(nn.Softmax(dim=1), picture, axes="CYX", margins=(0, 0)).max().compute() == 1


@pytest.mark.parametrize("module", [nn.Dropout2d(), nn.BatchNorm2d(1), nn.Dropout3d(), nn.BatchNorm3d(1)], ids=repr)
def test_rejects_training_mode(module: nn.Module) -> None:
    space = "YX" if "2d" in repr(module) else "ZYX"
    image = da.from_array(draw(1, *[14] * len(space)), chunks=7)
    with pytest.raises(InputError, match=r"call layer\.eval"):
        phd.map_layer(nn.Sequential(module.train()), image, axes="C" + space)


def test_rejects_statistics_over_a_tile() -> None:
    layer = nn.BatchNorm2d(1, track_running_stats=False).eval()
    with pytest.raises(InputError, match="pass margins"):
        phd.map_layer(layer, da.from_array(draw(1, 14, 14), chunks=7), axes="CYX")
