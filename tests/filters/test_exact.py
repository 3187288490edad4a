"""The exact method: sums over neighbors and over windows, against the sums over all pairs."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import oracle
import pytest
import torch
from numpy.typing import NDArray
from support import DEVICE, assert_close, assert_raises, relative_error, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.ops.binding import bind

SIGMAS: dict[str, Any] = {"sigma_space": 1.5, "sigma_color": 0.2}

pytestmark = pytest.mark.usefixtures("backend")

Array = NDArray[np.float64]

# standard deviations beyond which a window ends
REACH = 5.0


def expected_at(values: Tensor, features: Tensor, targets: Tensor, normalization: str) -> Array:
    """By the definition; nothing is left out."""
    source, target, signal = to_numpy(features), to_numpy(targets), to_numpy(values)

    def mass(at: Array, of: Array) -> Array:
        return oracle.exact_gaussian(np.ones((len(of), 1)), of, at)

    if normalization == "symmetric":
        signal = signal / np.sqrt(mass(source, source))
    sums = oracle.exact_gaussian(signal, source, target)
    if normalization == "homogeneous":
        return sums / mass(target, source)
    return sums / np.sqrt(mass(target, target)) if normalization == "symmetric" else sums


def expected_picture(image: Tensor, guide: Tensor, sigma: tuple[float, float], sigma_color: float) -> Array:
    """The bilateral filter of one image: every pixel, and every other within the reach of the window."""
    pixels, edges = to_numpy(image), to_numpy(guide) / sigma_color
    height, width = pixels.shape[1:]
    y, x = np.mgrid[:height, :width]
    result = np.empty_like(pixels)
    for i in range(height):
        for j in range(width):
            positions = ((y - i) / sigma[0]) ** 2 + ((x - j) / sigma[1]) ** 2
            squares = positions + np.square(edges - edges[:, i, j, None, None]).sum(axis=0)
            weights = np.where(positions <= REACH**2, np.exp(-squares / 2), 0.0)
            result[:, i, j] = (weights * pixels).sum(axis=(1, 2)) / weights.sum()
    return result


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize("normalization", ["homogeneous", "none", "symmetric"])
@pytest.mark.parametrize(("dimension", "channels"), [(1, 1), (2, 9), (3, 2), (5, 3), (12, 1)])
def test_points(dimension: int, channels: int, normalization: Any, apart: bool, dtype: torch.dtype) -> None:
    random = np.random.default_rng(dimension)
    features = to_tensor(3 * random.normal(size=(61, dimension)) / math.sqrt(dimension), dtype)
    targets = features[:23] + 0.3 if apart else features
    values = to_tensor(random.normal(size=(61, channels)), dtype)
    actual = ph.gaussian_filter(
        values, features, targets if apart else None, normalization=normalization, method="exact"
    )
    assert_close(actual, expected_at(values, features, targets, normalization))


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_points_far_apart(dimension: int, dtype: torch.dtype) -> None:
    """More cells than one, along the axes where the points extend, and many sources in some of them."""
    random = np.random.default_rng(dimension)
    clusters = np.array([[0.0], [3.0], [17.0], [90.0], [1e4]]) * np.eye(1, dimension, min(2, dimension - 1))
    features = to_tensor(np.concatenate([center + random.normal(size=(150, dimension)) for center in clusters]), dtype)
    values = to_tensor(random.normal(size=(len(features), 2)), dtype)
    targets = torch.cat([features[::7], features[::7] + 5, features[:3] - 1e3])
    squares = np.square(to_numpy(targets)[:, None] - to_numpy(features)).sum(axis=2)
    kernel = np.where(squares <= 64, np.exp(-squares / 2), 0.0)
    # the least weights within reach are not that much larger than what keeps the quotient finite
    expected = kernel @ to_numpy(values) / (kernel.sum(axis=1, keepdims=True) + 1e-20)
    actual = ph.gaussian_filter(values, features, targets, method="exact")
    # rounding of the features themselves counts, far from the origin
    near = to_numpy(targets).max(axis=1) < 1e3
    assert_close(actual[torch.from_numpy(near).to(DEVICE)], expected[near])
    assert (actual[-3:] == 0).all()


@pytest.mark.parametrize("batched", ["own_features", "shared_features", "none"])
def test_batches_of_points(batched: str) -> None:
    random = np.random.default_rng(0)
    features, values = to_tensor(random.normal(size=(3, 20, 2))), to_tensor(random.normal(size=(3, 20, 2)))
    targets = features[:, :7] + 0.1
    if batched == "none":
        features, values, targets = features[:0], values[:0], targets[:0]
    if batched == "shared_features":
        actual = ph.gaussian_filter(values, features[0], targets[0], method="exact")
        features, targets = features[:1].expand_as(features), targets[:1].expand_as(targets)
    else:
        actual = ph.gaussian_filter(values, features, targets, method="exact")
    assert actual.shape == (len(values), 7, 2)
    for item in range(len(values)):
        assert_close(actual[item], expected_at(values[item], features[item], targets[item], "homogeneous"))


@pytest.mark.parametrize(
    ("size", "channels", "guides", "sigma"),
    [
        ((9, 21), 3, 3, (2.0, 2.0)),
        ((7, 5), 1, 1, (0.7, 1.9)),
        ((12, 18), 7, 2, (1.3, 0.15)),
        ((3, 33), 5, 3, (9.0, 9.0)),
        ((1, 1), 2, 1, (1.0, 1.0)),
    ],
    ids=["color", "gray", "many_channels", "wider_than_the_image", "one_pixel"],
)
def test_pictures(
    size: tuple[int, int], channels: int, guides: int, sigma: tuple[float, float], dtype: torch.dtype
) -> None:
    random = np.random.default_rng(1)
    image = to_tensor(random.random(size=(channels, *size)), dtype)
    guide = to_tensor(random.random(size=(guides, *size)), dtype)
    actual = ph.bilateral_filter(image, sigma_space=sigma, sigma_color=0.3, guide=guide, method="exact")
    assert_close(actual, expected_picture(image, guide, sigma, 0.3))


# on a GPU the automatic method takes the lattice
@pytest.mark.parametrize("method", ["exact", "auto"] if DEVICE.type == "cpu" else ["exact"])
@pytest.mark.parametrize("sigma", [1e19, 1e50, 1e308])
def test_windows_wider_than_integers_reach(sigma: float, method: Any, dtype: torch.dtype) -> None:
    image = to_tensor(np.random.default_rng(12).random(size=(3, 14, 17)), dtype)
    # so narrow over colors that the automatic method is exact as well
    expected = ph.bilateral_filter(image, sigma_space=1e9, sigma_color=0.1, method=method)
    assert_close(ph.bilateral_filter(image, sigma_space=sigma, sigma_color=0.1, method=method), expected)
    exact = ph.bilateral_filter(image, sigma_space=(sigma, 2.0), sigma_color=0.3, method="exact")
    assert_close(exact, ph.bilateral_filter(image, sigma_space=(1e9, 2.0), sigma_color=0.3, method="exact"))
    sums = bind(image).sum_window(image[None], image[None], sigma, sigma, REACH)
    assert_close(sums, bind(image).sum_window(image[None], image[None], 1e9, 1e9, REACH))


@pytest.mark.parametrize("sigma", [2.0, 8.0])
def test_a_guide_without_channels(sigma: float, dtype: torch.dtype) -> None:
    """All that is left is the Gaussian over positions."""
    images = to_tensor(np.random.default_rng(13).random(size=(2, 3, 20, 30)), dtype).requires_grad_()
    none, constant = images.detach()[:, :0], torch.zeros_like(images[:, :1])
    expected = ph.bilateral_filter(images, sigma_space=sigma, sigma_color=0.1, guide=constant, method="exact")
    # that of one color, which the lattice approximates
    assert (
        relative_error(
            ph.bilateral_filter(images, sigma_space=sigma, sigma_color=0.1, guide=none, method="auto"), expected
        )
        < 0.05
    )
    exact = ph.bilateral_filter(images, sigma_space=sigma, sigma_color=0.1, guide=none[0], method="exact")
    assert_close(exact, expected)
    weight = torch.rand_like(images)
    gradient, expected_gradient = (torch.autograd.grad(each, images, weight)[0] for each in (exact, expected))
    assert_close(gradient, expected_gradient)


def test_batches_of_pictures() -> None:
    random = np.random.default_rng(2)
    images = to_tensor(random.random(size=(2, 3, 2, 6, 10)))
    actual = ph.bilateral_filter(images, **SIGMAS, method="exact")
    shared = ph.bilateral_filter(images, **SIGMAS, guide=images[0, 1, :1], method="exact")
    for i, j in ((0, 0), (1, 2)):
        assert_close(actual[i, j], expected_picture(images[i, j], images[i, j], (1.5, 1.5), 0.2))
        assert_close(shared[i, j], expected_picture(images[i, j], images[0, 1, :1], (1.5, 1.5), 0.2))
    assert ph.bilateral_filter(images[:, :0], **SIGMAS, method="exact").shape == (2, 0, 2, 6, 10)


def test_a_window_is_the_sum_over_points() -> None:
    """To what lies beyond the window."""
    image = to_tensor(np.random.default_rng(3).random(size=(3, 14, 17)))
    features = ph.features.bilateral(image, sigma_space=1.2, sigma_color=0.4)
    points = ph.gaussian_filter(image.flatten(1).mT, features, method="exact").mT.reshape(image.shape)
    assert relative_error(ph.bilateral_filter(image, sigma_space=1.2, sigma_color=0.4, method="exact"), points) < 1e-5


def test_weights_and_mass() -> None:
    random = np.random.default_rng(4)
    image = to_tensor(random.random(size=(2, 8, 9)))
    known = to_tensor(random.random(size=(8, 9))) > 0.3
    guide = to_tensor(random.random(size=(1, 8, 9)))
    holes = torch.where(known, image, torch.nan)
    actual, mass = ph.bilateral_filter(
        holes, **SIGMAS, guide=guide, method="exact", sample_weight=known, return_mass=True
    )
    both = torch.cat([torch.where(known, image, 0.0), known[None].to(image.dtype)])
    expected = expected_picture(both, guide, (1.5, 1.5), 0.2)
    assert_close(actual, expected[:-1] / expected[-1:])
    assert mass.shape == (8, 9)


def test_what_is_far_in_color_is_out_of_reach(dtype: torch.dtype) -> None:
    """A pixel that does not count, and is like no other: nothing comes near it, not even a little of each."""
    image = to_tensor(np.ones((1, 40, 40)), dtype)
    guide = torch.zeros_like(image)
    guide[0, 20, 20] = 100.0
    weights = guide[0] == 0
    actual = ph.bilateral_filter(
        image, sigma_space=8.0, sigma_color=0.1, guide=guide, method="exact", sample_weight=weights, fill_value=7.0
    )
    assert actual[0, 20, 20] == 7
    assert_close(actual[0, :20], torch.ones(20, 40))


def test_batched_by_torch() -> None:
    random = np.random.default_rng(11)
    values, features = to_tensor(random.normal(size=(3, 9, 2))), to_tensor(random.normal(size=(3, 9, 2)))
    actual = torch.vmap(lambda v, f: ph.gaussian_filter(v, f, method="exact"))(values, features)
    for item in range(3):
        assert_close(actual[item], expected_at(values[item], features[item], features[item], "homogeneous"))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_values_of_sixteen_bits_are_rounded_once(half: torch.dtype) -> None:
    image = to_tensor(np.random.default_rng(5).random(size=(3, 9, 11)), half)
    actual = ph.bilateral_filter(image, **SIGMAS, method="exact")
    assert actual.dtype == half
    assert_close(actual, ph.bilateral_filter(image.float(), **SIGMAS, method="exact"))
    features = ph.features.bilateral(image, **SIGMAS)
    points = ph.gaussian_filter(image.flatten(1).mT, features, method="exact")
    assert_close(points, ph.gaussian_filter(image.flatten(1).mT.float(), features, method="exact"))


def test_gradients_of_points() -> None:
    random = np.random.default_rng(6)
    values, features, targets = (
        to_tensor(random.normal(size=size)).requires_grad_() for size in ((6, 2), (6, 3), (4, 3))
    )
    for normalization in ("homogeneous", "symmetric"):

        def run(v: Tensor, f: Tensor, t: Tensor, normalization: Any = normalization) -> Tensor:
            return ph.gaussian_filter(v, f, t, normalization=normalization, method="exact")

        assert torch.autograd.gradcheck(run, (values, features, targets))
    assert torch.autograd.gradgradcheck(
        lambda v, f: ph.gaussian_filter(v, f, method="exact"), (values, features), atol=1e-4
    )


@pytest.mark.parametrize("normalization", ["none", "homogeneous", "symmetric"])
def test_gradients_without_channels(normalization: Any) -> None:
    features = torch.randn(5, 2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    output = ph.gaussian_filter(features.new_zeros(5, 0), features, method="exact", normalization=normalization)
    (gradient,) = torch.autograd.grad(output.sum(), features)
    assert_close(gradient, torch.zeros_like(features))


def test_gradients_of_pictures() -> None:
    random = np.random.default_rng(7)
    image, guide = (to_tensor(random.random(size=size)).requires_grad_() for size in ((2, 2, 3), (1, 2, 3)))
    sigma_color = to_tensor([0.5]).requires_grad_()

    def run(image: Tensor, guide: Tensor, sigma_color: Tensor) -> Tensor:
        return ph.bilateral_filter(image, sigma_space=1.5, sigma_color=sigma_color, guide=guide, method="exact")

    assert torch.autograd.gradcheck(run, (image, guide, sigma_color))
    assert torch.autograd.gradgradcheck(run, (image, guide, sigma_color), atol=1e-4)


def test_gradients_of_bandwidths_in_pixels() -> None:
    image = to_tensor(np.random.default_rng(8).random(size=(2, 4, 5)))
    sigma = to_tensor([1.5]).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda sigma: ph.bilateral_filter(image, sigma_space=sigma, sigma_color=0.5, method="exact"), (sigma,)
    )


def test_derivatives_of_the_sums() -> None:
    """Not normalized: part of a derivative cancels in the quotient. Forward mode gives what backward mode gives."""
    random = np.random.default_rng(9)
    points = tuple(to_tensor(random.normal(size=size)).requires_grad_() for size in ((6, 2), (6, 3), (4, 3)))
    pixels = tuple(to_tensor(random.normal(size=size)).requires_grad_() for size in ((1, 2, 2, 3), (1, 1, 2, 3)))
    for run, inputs in (
        (lambda v, f, t: bind(v, f, t).sum_neighbors(v, f, t, 9.0), points),
        (lambda v, g: bind(v, g).sum_window(v, g, 1.5, 1.2, 3.0), pixels),
    ):
        assert torch.autograd.gradcheck(run, inputs)
        places = tuple(range(len(inputs)))
        tangents, gradients = torch.func.jacfwd(run, places)(*inputs), torch.func.jacrev(run, places)(*inputs)
        for forward, backward in zip(tangents, gradients, strict=True):
            assert_close(forward, backward)


def test_torch_compiles_it() -> None:
    image = to_tensor(np.random.default_rng(10).random(size=(2, 5, 6)), torch.float32)

    def run(image: Tensor) -> Tensor:
        return ph.bilateral_filter(image, sigma_space=1.5, sigma_color=0.5, method="exact")

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert_close(compiled(image), run(image))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="on a GPU one would have to wait for the answer")
def test_compiled_program_rejects_nan() -> None:
    """In the guide, where it would be a weight of zero."""
    image, guide = torch.rand(2, 5, 6), torch.rand(1, 5, 6)

    def run(guide: Tensor) -> Tensor:
        return ph.bilateral_filter(image, sigma_space=1.5, sigma_color=0.5, guide=guide, method="exact")

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert_close(compiled(guide), run(guide))
    guide[0, 2, 3] = torch.nan
    with pytest.raises(RuntimeError, match="features must be finite"):
        compiled(guide)


def test_rejects_mismatched_inputs() -> None:
    features, values = torch.rand(5, 2, device=DEVICE), torch.rand(5, 1, device=DEVICE)
    lattice = ph.build_lattice(features, separable=True)
    image = torch.rand(3, 4, 5, device=DEVICE)
    nowhere, no_tensor = torch.full_like(features, torch.nan), cast(Any, [[0.0, 0.0]])
    for call, error, message in (
        (lambda: ph.gaussian_filter(values, features, no_tensor, method="auto"), InputError, "target_features must be"),
        (lambda: ph.gaussian_filter(values[0, 0], features, method="auto"), InputError, "channels"),
        (lambda: ph.gaussian_filter(values, features, method="exact", halo=1), InputError, "no halo"),
        (lambda: ph.gaussian_filter(values, lattice, method="exact"), InputError, "without a lattice"),
        (
            lambda: ph.gaussian_filter(values, features, None, normalization="density", method="exact"),
            InputError,
            "method='lattice'",
        ),
        (lambda: ph.gaussian_filter(values[:3], features, method="exact"), InputError, r"must be \[..., 5, channels"),
        (lambda: ph.gaussian_filter(values.double(), features, method="exact"), InputError, "convert one"),
        (lambda: ph.gaussian_filter(values, nowhere, method="exact"), FeatureRangeError, "10 of 10 numbers"),
        (
            lambda: ph.bilateral_filter(image, sigma_space=1.0, sigma_color=0.1, halo=1, method="exact"),
            InputError,
            "no halo",
        ),
        (lambda: ph.bilateral_filter(image, sigma_space=-1.0, sigma_color=0.1, method="exact"), InputError, "positive"),
        (
            lambda: ph.bilateral_filter(
                image, sigma_space=1.0, sigma_color=0.1, guide=image + torch.nan, method="exact"
            ),
            FeatureRangeError,
            "finite",
        ),
        (
            lambda: ph.bilateral_filter(image[0], sigma_space=1.0, sigma_color=0.1, method="exact"),
            InputError,
            "channels, height, width",
        ),
    ):
        assert_raises(call, error, message)


@pytest.mark.parametrize("method", ["lattice", "dense", "exact", "auto"])
def test_items_of_a_ragged_batch_never_mix(method: Any) -> None:
    values, features, targets = torch.split(2 * torch.rand(29, 3, device=DEVICE, dtype=torch.float64), [12, 12, 5])
    batch, target_batch = torch.tensor([1] * 5 + [0] * 7, device=DEVICE), torch.tensor([0, 1, 1, 0, 1], device=DEVICE)
    for normalization in ("homogeneous", "none"):
        options: dict[str, Any] = {"method": method, "normalization": normalization}
        together = ph.gaussian_filter(values, features, batch=batch, **options)
        elsewhere = ph.gaussian_filter(values, features, targets, batch=batch, target_batch=target_batch, **options)
        for item in (0, 1):
            own, there = batch == item, target_batch == item
            assert_close(together[own], ph.gaussian_filter(values[own], features[own], **options))
            assert_close(elsewhere[there], ph.gaussian_filter(values[own], features[own], targets[there], **options))
