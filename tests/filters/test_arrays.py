"""Images as users have them: NumPy arrays, uint8, and channels last."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from support import DEVICE

import permutohedral as ph

PHOTO: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (14, 18, 3), dtype=np.uint8)
GUIDE: NDArray[np.uint8] = np.random.default_rng(1).integers(0, 256, (14, 18, 1), dtype=np.uint8)
SIGMAS: dict[str, Any] = {"sigma_space": 3.0, "sigma_color": 0.3}


def to_bytes(image: torch.Tensor) -> torch.Tensor:
    return (255 * image).round().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("method", ["lattice", "exact"])
@pytest.mark.parametrize("guided", [False, True])
def test_uint8_photo_equals_the_floating_tensor(guided: bool, method: Any) -> None:
    photo, guide = (torch.from_numpy(each).movedim(-1, 0) for each in (PHOTO, GUIDE))
    wide = ph.bilateral_filter(photo / 255, guide / 255 if guided else None, method=method, **SIGMAS)
    expected = to_bytes(wide).movedim(0, -1).numpy()
    found = ph.bilateral_filter(PHOTO, GUIDE if guided else None, method=method, channels_last=True, **SIGMAS)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    assert (found != PHOTO).any()


def photo_in_bytes() -> torch.Tensor:
    """Return a photo with texture, float in [0, 255]."""
    y, x = np.indices((100, 120))
    noise = np.random.default_rng(3).normal(0, 6, (3, 100, 120))
    return torch.from_numpy(np.clip(60 + y + 60 * (x > 50) + noise, 0, 255).round().astype(np.float32)).to(DEVICE)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="reading pixels would wait for the GPU")
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("method", ["lattice", "exact", "auto"])
def test_warns_if_the_image_stays_as_it_is(method: Any, guided: bool) -> None:
    photo = photo_in_bytes()
    image, guide = (photo[:1] / 99, photo) if guided else (photo, None)
    with pytest.warns(UserWarning, match=r"sigma_color is 0.1, but neighboring pixels differ by 1\d, so"):
        filtered = ph.bilateral_filter(image, guide, sigma_space=3.0, sigma_color=0.1, method=method)
    torch.testing.assert_close(filtered, image, rtol=0, atol=0.05)


def test_warns_of_a_bandwidth_in_bytes() -> None:
    photo = np.zeros((8, 9, 3), np.uint8)
    with pytest.warns(UserWarning, match=r"sigma_color is 25, but white is 1, .* pass 0.098 for 25 of 255") as caught:
        ph.bilateral_filter(photo, sigma_space=3.0, sigma_color=25, channels_last=True)
    # the line of the caller
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_does_not_warn_about_other_units() -> None:
    """Such as depth in meters, labels, flat images and noise."""
    photo = photo_in_bytes()
    ramp = torch.linspace(0, 9, 120, device=DEVICE).expand(1, 100, 120)
    labels = (ramp * 2).floor()
    calls: list[tuple[torch.Tensor, torch.Tensor | None, float]] = [
        (photo / 255, None, 0.1), (photo, None, 25.0), (ramp, None, 0.1), (labels, None, 0.1),
        (ramp + 0.01 * torch.randn_like(ramp), None, 0.1), (photo, labels, 0.1), (torch.ones_like(photo), None, 1e-3),
        (photo.byte(), None, 0.5),
        (torch.rand(3, 100, 120, device=DEVICE), None, 0.1), (torch.rand(3, 8, 9, device=DEVICE), None, 0.1),
    ]  # fmt: skip
    for image, guide, sigma in calls:
        ph.bilateral_filter(image, guide, sigma_space=8.0, sigma_color=sigma)


def test_uint8_gets_the_dtype_of_the_other_image() -> None:
    wide = PHOTO[..., :1] / 255
    options = {"channels_last": True, **SIGMAS}
    found = ph.bilateral_filter(wide, PHOTO, **options)
    np.testing.assert_allclose(found, ph.bilateral_filter(wide, PHOTO / 255, **options), atol=1e-6)
    assert found.dtype == np.float64
    assert ph.bilateral_filter(PHOTO, PHOTO / 255, **options).dtype == np.uint8


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "int32", "float32"])
@pytest.mark.parametrize("guided", [False, True])
def test_units_are_those_of_the_guide(kind: str, guided: bool) -> None:
    """The maximum of the dtype, or the given range; values keep their dtype and units."""
    unit = np.random.default_rng(4).random((12, 10, 3)).astype(np.float32)
    image = np.random.default_rng(5).random((12, 10, 3)).astype(np.float32)
    low, high = (-100.0, 2900.0) if kind in ("int32", "float32") else (0.0, float(np.iinfo(kind).max))
    value_range: Any = (low, high) if kind in ("int32", "float32") else None
    data = (unit * (high - low) + low).astype(kind)
    options: dict[str, Any] = {"channels_last": True, **SIGMAS}
    found = ph.bilateral_filter(image if guided else data, data if guided else None, value_range=value_range, **options)
    exact = ((data.astype(np.float64) - low) / (high - low)).astype(np.float32)
    expected = ph.bilateral_filter(image if guided else exact, exact if guided else None, **options)
    if guided:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        return
    assert found.dtype == data.dtype
    error = np.abs(found - (expected.astype(np.float64) * (high - low) + low)).max()
    assert error <= (0.51 if kind != "float32" else 2e-3)
    estimate = ph.accuracy.estimate_bilateral_error(found, data, value_range=value_range, **options)
    assert estimate.relative < 0.2
    explained = ph.accuracy.explain_bilateral(data, value_range=value_range, **options)
    assert explained.method == ph.accuracy.explain_bilateral(exact, **options).method


def test_value_range_overrides_the_maximum_of_the_dtype() -> None:
    """12 bits in uint16."""
    data = np.random.default_rng(6).integers(0, 4096, (12, 10, 1), dtype=np.uint16)
    options: dict[str, Any] = {"channels_last": True, **SIGMAS}
    found = ph.bilateral_filter(data, value_range=(0, 4095), **options)
    expected = 4095 * ph.bilateral_filter((data / 4095).astype(np.float32), **options)
    np.testing.assert_array_equal(found, np.rint(expected).astype(np.uint16))
    assert (found != ph.bilateral_filter(data, **options)).any()


@pytest.mark.parametrize("function", [ph.upsample, ph.bilateral_solver])
def test_integer_maps_keep_their_units(function: Any) -> None:
    depth = np.random.default_rng(7).integers(500, 1500, (*PHOTO.shape[:2], 1), dtype=np.uint16)
    found = function(depth, PHOTO, channels_last=True)
    assert found.dtype == np.uint16
    expected = function(depth.astype(np.float32), PHOTO.astype(np.float32) / 255, channels_last=True)
    assert np.abs(found - expected).max() < 0.6


@pytest.mark.parametrize("shape", [(20, 30, 4), (4, 20, 30)])
def test_warns_of_alpha_and_cmyk(shape: tuple[int, ...]) -> None:
    photo = np.random.default_rng(8).integers(0, 255, shape, dtype=np.uint8)
    last = shape[-1] == 4
    with pytest.warns(UserWarning, match=r"^image has 4 channels of integers, as RGBA and CMYK have.*convert"):
        ph.bilateral_filter(photo, channels_last=last, **SIGMAS)
    coarse: NDArray[Any] = np.ones((2, 2, 1) if last else (1, 2, 2), np.float32)
    with pytest.warns(UserWarning, match="^guide has 4 channels of integers"):
        ph.upsample(coarse, photo, channels_last=last, mode="gaussian")
    with pytest.raises(ph.errors.InputError, match="palette image"):
        ph.bilateral_filter(photo[..., 0] if last else photo[0], channels_last=True, **SIGMAS)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="reading pixels would wait for the GPU")
def test_layers_warn_as_functions_do() -> None:
    photo = photo_in_bytes()
    logits = torch.randn(2, 100, 120)
    calls: list[Any] = [
        ph.nn.BilateralConv2d(3, 2, sigma_color=0.1),
        ph.nn.BilateralFilter(sigma_space=3.0, sigma_color=0.1),
        lambda guide: ph.nn.DenseCRF(2, sigma_color=0.1)(logits, guide),
        lambda guide: ph.nn.BilateralUpsample2d(2, 3)(logits[:, ::4, ::4], guide),
        lambda guide: ph.nn.BilateralSolver(sigma_color=0.1)(logits[:1], guide),
        lambda guide: ph.nn.DenseEnergyLoss(sigma_color=0.1)(guide[None], logits[None].softmax(1)),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="but neighboring pixels differ by") as caught:
            call(photo)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(photo / 255)
    with pytest.warns(UserWarning, match="sigma_color is 15, but white is 1"):
        ph.nn.DenseEnergyLoss()(photo[None] / 255, logits[None].softmax(1))
    with pytest.warns(UserWarning, match="sigma_color is 15, but white is 1"):
        ph.bilateral_filter(photo / 255, sigma_space=3.0, sigma_color=15)


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.int16])
def test_layers_take_integer_guides(kind: torch.dtype) -> None:
    guide = torch.from_numpy(np.random.default_rng(9).integers(0, 200, (2, 3, 8, 9))).to(DEVICE)
    unit, guide = guide / torch.iinfo(kind).max, guide.to(kind)
    image = torch.rand(2, 2, 8, 9, device=DEVICE)
    layers: list[Any] = [
        ph.nn.BilateralConv2d(2, 2, guide_channels=3),
        ph.nn.BilateralFilter(sigma_space=3.0, sigma_color=0.3),
        ph.nn.DenseCRF(2, sigma_color=0.3),
        ph.nn.BilateralSolver(),
    ]
    for layer in layers:
        module = layer.to(DEVICE)
        torch.testing.assert_close(module(image, guide), module(image, unit.float()), rtol=0, atol=1e-4)
    sigmas: dict[str, Any] = {"sigma_space": 3.0, "sigma_color": 0.3}
    found, expected = (ph.features.bilateral(each, **sigmas) for each in (guide, unit.float()))
    torch.testing.assert_close(found, expected)


def test_uint8_tensors_keep_dtype_and_device() -> None:
    photo = torch.from_numpy(PHOTO).movedim(-1, 0).to(DEVICE)
    found = ph.bilateral_filter(photo, **SIGMAS)
    assert found.device == photo.device
    assert torch.equal(found, to_bytes(ph.bilateral_filter(photo / 255, **SIGMAS)))
    last = ph.bilateral_filter(photo.movedim(0, -1), channels_last=True, **SIGMAS)
    assert torch.equal(last.movedim(-1, 0), found)


@pytest.mark.parametrize("guided", [False, True])
def test_accuracy_of_photos_equals_that_of_floating_tensors(guided: bool) -> None:
    guide = GUIDE if guided else None
    options: dict[str, Any] = {"channels_last": True, **SIGMAS}
    filtered = ph.bilateral_filter(PHOTO, guide, **options)
    first = [None if each is None else torch.from_numpy(each).movedim(-1, 0) / 255 for each in (filtered, PHOTO, guide)]
    estimate: Any = ph.accuracy.estimate_bilateral_error
    assert estimate(filtered, PHOTO, guide, **options) == estimate(*first, **SIGMAS)
    explain: Any = ph.accuracy.explain_bilateral
    assert str(explain(PHOTO, guide, **options)) == str(explain(*first[1:], **SIGMAS))


def test_explanation_rejects_photos_with_channels_last_by_mistake() -> None:
    with pytest.raises(ph.errors.InputError, match="channels_last=True"):
        ph.accuracy.explain_bilateral(np.zeros((40, 50, 3), np.uint8), **SIGMAS)


def test_channels_last_of_tensors_keeps_gradients() -> None:
    image = torch.rand(2, 9, 11, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
    first = image.movedim(-1, 1)
    found = ph.bilateral_filter(image, channels_last=True, **SIGMAS)
    expected = ph.bilateral_filter(first, **SIGMAS).movedim(1, -1)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    gradients = [torch.autograd.grad((each * weight).sum(), image)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_volumes_with_channels_last() -> None:
    volume = np.random.default_rng(2).random((5, 6, 7, 2))
    found = ph.bilateral_filter(volume, channels_last=True, spatial_dims=3, **SIGMAS)
    first = torch.from_numpy(volume).movedim(-1, 0)
    expected = ph.bilateral_filter(first, spatial_dims=3, **SIGMAS).movedim(0, -1)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected.numpy())


def test_weights_and_mass_are_arrays() -> None:
    image, weight = PHOTO[..., 0].astype(np.float32)[None] / 255, np.ones(PHOTO.shape[:2], np.float32)
    weight[3:6, 4:9] = 0
    found = ph.bilateral_filter(image, sample_weight=weight, return_mass=True, **SIGMAS)
    tensors = torch.from_numpy(image), torch.from_numpy(weight)
    expected = ph.bilateral_filter(tensors[0], sample_weight=tensors[1], return_mass=True, **SIGMAS)
    for array, tensor in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize("size", [(7, 9), (14, 18)], ids=["upsample", "solve"])
def test_guided_functions_take_uint8_with_channels_last(size: tuple[int, int]) -> None:
    target = PHOTO[: size[0], : size[1], :2] // 2
    run: Any = ph.upsample if size != PHOTO.shape[:2] else ph.bilateral_solver
    found = run(target, PHOTO, channels_last=True)
    first, guide = (torch.from_numpy(each).movedim(-1, 0) / 255 for each in (target, PHOTO))
    expected = to_bytes(run(first, guide)).movedim(0, -1).numpy()
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("change", ["read-only", "big-endian"])
def test_arrays_of_any_memory_layout(change: str) -> None:
    image = np.random.default_rng(3).random((1, 8, 9)).astype(np.float32)
    given = image
    if change == "read-only":
        given = image.copy()
        given.flags.writeable = False
    else:
        given = image.astype(">f4")
    np.testing.assert_array_equal(ph.bilateral_filter(given, **SIGMAS), ph.bilateral_filter(image, **SIGMAS))


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "pillow": (Image.fromarray(PHOTO), {}, r"image must be.*got Image.*numpy\.asarray\(image\).*channels_last=True"),
    "path": (Path("photo.png"), {}, r"image must be a torch\.Tensor or a NumPy array, got \w*Path"),
    "text": ("photo.png", {}, "got str"),
    "list": ([[0.0]], {}, "got list"),
    "dask": (
        type("Array", (), {"__module__": "dask.array.core"})(),
        {},
        r"got Array; permutohedral\.dask has functions for Dask arrays",
    ),
    "no channels": (PHOTO[..., 0], {"channels_last": True}, r"image has no axis of channels.*image\[\.\.\., None\]"),
    "integers": (PHOTO.astype(np.int32), {"channels_last": True}, "float"),
    "unsupported dtype": (PHOTO.astype(np.longdouble), {"channels_last": True}, "float32"),
    "mask": (np.ma.masked_less(PHOTO / 255, 0.5), {"channels_last": True}, r"sample_weight from ~array\.mask"),
    "guide": (PHOTO, {"channels_last": True, "guide": Image.fromarray(PHOTO)}, "guide must be.*got Image"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_other_images_with_advice(name: str) -> None:
    image, options, message = BAD[name]
    with pytest.raises(ph.errors.InputError, match=message):
        ph.bilateral_filter(image, **options, **SIGMAS)
