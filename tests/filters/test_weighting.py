"""Weights, masks, holes and masses of the Gaussian and bilateral filters, against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, NONDETERMINISM, ErrorCase, assert_close, assert_raises, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.features import FEATURE_SHIFT

SIGMAS: dict[str, Any] = {"sigma_space": 2.0, "sigma_color": 0.4}

pytestmark = pytest.mark.usefixtures("backend")

STEPS: dict[str, oracle.Step] = {"lattice": oracle.separable_gaussian_step, "dense": oracle.dense_gaussian_step}


def scatter(dtype: torch.dtype = torch.float64, points: int = 17) -> tuple[Tensor, Tensor, Tensor]:
    """Values, features of three dimensions, and weights with holes."""
    random = np.random.default_rng(points)
    weights = random.uniform(size=points) * (random.uniform(size=points) > 0.3)
    values, features = random.normal(size=(points, 2)), 0.5 * random.normal(size=(points, 3))
    return to_tensor(values, dtype), to_tensor(features, dtype), to_tensor(weights, dtype)


def expected(
    values: Tensor, features: Tensor, weights: Tensor, targets: Tensor | None = None, method: str = "lattice"
) -> tuple[np.ndarray, np.ndarray]:
    """Numerator and denominator of the weighted mean: sum_i G_ki w_i v_i and sum_i G_ki w_i."""
    source = oracle.locate(to_numpy(features))
    target = source if targets is None else oracle.locate(to_numpy(targets))
    if method == "lattice":
        source, target = oracle.on_common_vertices(source, target, 0)
    weighted = to_numpy(weights)[:, None] * np.concatenate([to_numpy(values), np.ones((len(values), 1))], axis=1)
    sums = oracle.normalized_filter(weighted, (source, target), "none", STEPS[method], STEPS[method])
    return sums[:, :-1], sums[:, -1]


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize("method", list(STEPS))
def test_the_weighted_mean(method: Any, apart: bool, dtype: torch.dtype) -> None:
    values, features, weights = scatter(dtype)
    targets = features[:6] + 0.3 if apart else None
    numerator, mass = expected(values, features, weights, targets, method)
    assert mass.min() > 0
    options: dict[str, Any] = {"target_features": targets, "method": method, "sample_weight": weights}
    assert_close(ph.gaussian_filter(values, features, **options), numerator / mass[:, None])
    mean, actual_mass = ph.gaussian_filter(values, features, **options, return_mass=True)
    assert_close(mean, numerator / mass[:, None])
    assert_close(actual_mass, mass)
    assert_close(ph.gaussian_filter(values, features, normalization="none", **options), numerator)


def test_weights_of_one_change_nothing(dtype: torch.dtype) -> None:
    values, features, _ = scatter(dtype)
    plain = ph.gaussian_filter(values, features)
    assert_close(ph.gaussian_filter(values, features, sample_weight=torch.ones_like(values[:, 0])), plain)
    assert_close(ph.gaussian_filter(values, features, sample_weight=values.new_full((17,), 1e-25)), plain)
    mean, mass = ph.gaussian_filter(values, features, return_mass=True)
    assert_close(mean, plain)
    assert_close(mass, ph.gaussian_filter(torch.ones_like(values[:, :1]), features, normalization="none")[:, 0])


@pytest.mark.parametrize("shared", [False, True], ids=["own_lattices", "shared_lattice"])
@pytest.mark.parametrize("own_weights", [False, True])
def test_batches_have_weights_of_their_own_or_the_same(shared: bool, own_weights: bool) -> None:
    values, features, weights = (torch.stack(each) for each in zip(*[scatter(), scatter()], strict=True))
    values[1], weights[1] = values[1].flip(0), weights[1].flip(0)
    features = features[0] if shared else torch.stack([features[0], features[1] * 1.3])
    given = weights if own_weights else weights[1]
    mean, mass = ph.gaussian_filter(values, features, sample_weight=given, return_mass=True)
    for item in range(2):
        single = features if shared else features[item]
        alone = ph.gaussian_filter(
            values[item], single, sample_weight=given[item] if own_weights else given, return_mass=True
        )
        assert_close(mean[item], alone[0])
        assert_close(mass[item], alone[1])


@pytest.mark.parametrize("return_mass", [False, True])
@pytest.mark.parametrize("nothing", [torch.nan, torch.inf, -torch.inf])
def test_what_has_no_weight_never_spreads(nothing: float, return_mass: Any) -> None:
    values, features, weights = scatter()
    mask = weights > 0
    known = values * mask[:, None]
    values = torch.where(mask[:, None], values, nothing)
    results = []
    for given in (known, values):
        leaves = [tensor.clone().requires_grad_() for tensor in (given, features, weights)]
        result = ph.gaussian_filter(leaves[0], leaves[1], sample_weight=leaves[2], return_mass=return_mass)
        mean = result[0] if isinstance(result, tuple) else result
        results.append((mean, *torch.autograd.grad(mean.square().sum(), leaves)))
    for clean, actual in zip(*results, strict=True):
        assert torch.isfinite(actual).all()
        assert_close(actual[mask], clean[mask])
    # unknown values and their weights have no derivatives
    assert (results[1][1][~mask] == 0).all()
    assert (results[1][3][~mask] == 0).all()
    numerator, mass = expected(known, features, mask.double())
    assert_close(ph.gaussian_filter(values, features, sample_weight=mask), numerator / mass[:, None])


def test_derivatives() -> None:
    values, features, weights = scatter(points=6)
    # a weight of zero has a one-sided derivative only, which no central difference finds
    leaves = [tensor.requires_grad_() for tensor in (values, features, weights + 0.1)]

    def mean(values: Tensor, features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return ph.gaussian_filter(values, features, sample_weight=weights, return_mass=True)

    assert torch.autograd.gradcheck(mean, leaves, nondet_tol=NONDETERMINISM)
    assert torch.autograd.gradgradcheck(lambda *given: mean(*given)[0], leaves, nondet_tol=NONDETERMINISM)


def test_the_derivative_at_weight_zero_is_that_of_what_the_value_would_change() -> None:
    values, features, _ = scatter(points=6)
    weights = values.new_ones(6)
    weights[2] = 0
    weights.requires_grad_()
    (gradient,) = torch.autograd.grad(
        ph.gaussian_filter(values, features, sample_weight=weights).square().sum(), weights
    )
    with torch.no_grad():
        ahead, here = weights.detach().clone(), weights.detach()
        ahead[2] = 1e-7
        change = [ph.gaussian_filter(values, features, sample_weight=each).square().sum() for each in (ahead, here)]
    torch.testing.assert_close(gradient[2], (change[0] - change[1]) / 1e-7, rtol=1e-5, atol=1e-5)


def test_tangents_and_batches_of_weights() -> None:
    values, features, weights = scatter()
    tangent = torch.linspace(-1, 1, 17, dtype=torch.float64, device=DEVICE)

    def mean(weights: Tensor) -> Tensor:
        return ph.gaussian_filter(values, features, sample_weight=weights)

    actual = torch.func.jvp(mean, (weights + 0.1,), (tangent,))[1]
    difference = mean(weights + 0.1 + 1e-6 * tangent) - mean(weights + 0.1 - 1e-6 * tangent)
    torch.testing.assert_close(actual, difference / 2e-6, rtol=1e-6, atol=1e-6)
    many = torch.stack([weights, weights.flip(0)])
    assert_close(torch.vmap(mean)(many), torch.stack([mean(each) for each in many]))


@pytest.mark.parametrize("fill_value", [0.0, -3.0, torch.nan])
def test_targets_that_no_weight_comes_near_are_filled(fill_value: float, dtype: torch.dtype) -> None:
    values, features, weights = scatter(dtype)
    targets = torch.cat([features[:3], features[:2] + 60])
    for given in (weights, None):
        mean, mass = ph.gaussian_filter(
            values, features, targets, sample_weight=given, fill_value=fill_value, return_mass=True
        )
        same = ph.gaussian_filter(values, features, targets, sample_weight=given, fill_value=fill_value)
        assert (mass[3:] == 0).all()
        assert (mass[:3] > 0).all()
        for result in (mean, same):
            torch.testing.assert_close(result[3:], torch.full_like(result[3:], fill_value), equal_nan=True)
            assert_close(result[:3], ph.gaussian_filter(values, features, targets[:3], sample_weight=given))
    nothing = ph.gaussian_filter(values, features, sample_weight=torch.zeros_like(weights), fill_value=fill_value)
    torch.testing.assert_close(nothing, torch.full_like(values, fill_value), equal_nan=True)


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_weighed_in_thirty_two(narrow: torch.dtype) -> None:
    values, features, weights = scatter(torch.float32)
    mean, mass = ph.gaussian_filter(values.to(narrow), features, sample_weight=1e6 * weights, return_mass=True)
    assert mean.dtype == narrow
    assert mass.dtype == torch.float32
    numerator, expected_mass = expected(values.to(narrow), features, 1e6 * weights)
    assert_close(mean, numerator / expected_mass[:, None])
    assert_close(mass, expected_mass)


def picture(seed: int = 0) -> tuple[Tensor, Tensor]:
    """`[3, 5, 6]`, and a mask `[5, 6]` of a third of holes."""
    random = np.random.default_rng(seed)
    return to_tensor(random.uniform(size=(3, 5, 6))), to_tensor(random.uniform(size=(5, 6)) > 0.3, torch.bool)


def pixel_features(guide: np.ndarray) -> np.ndarray:
    """Rows (y / 2, x / 2, colors / 0.4), shifted."""
    channels, height, width = guide.shape
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij")) / 2
    return np.concatenate([grid, guide / 0.4]).reshape(2 + channels, -1).T + FEATURE_SHIFT


@pytest.mark.parametrize("leading", [(), (2,), (2, 1)], ids=str)
def test_holes_of_pictures_are_filled_along_the_edges_of_a_guide(leading: tuple[int, ...]) -> None:
    image, mask = picture()
    guide = picture(1)[0][:1]
    holes = torch.where(mask, image, torch.nan)
    numerator, mass = expected(image.flatten(1).T, to_tensor(pixel_features(to_numpy(guide))), mask.flatten().double())
    batch = holes.expand(*leading, 3, 5, 6)
    for edges in (guide, guide.expand(*leading, 1, 5, 6)):
        mean, actual_mass = ph.bilateral_filter(batch, **SIGMAS, guide=edges, sample_weight=mask, return_mass=True)
        assert mean.shape == (*leading, 3, 5, 6)
        assert actual_mass.shape == (*leading, 5, 6)
        item = (0,) * len(leading)
        assert_close(mean[item].flatten(1).T, numerator / mass[:, None])
        assert_close(actual_mass[item].flatten(), mass)


def test_a_pixel_without_color_is_near_nothing() -> None:
    image, mask = picture()
    image[:, ~mask] = torch.nan
    mean, mass = ph.bilateral_filter(image, **SIGMAS, sample_weight=mask, fill_value=-1.0, return_mass=True)
    assert (mean[:, ~mask] == -1).all()
    assert (mass[~mask] == 0).all()
    black = ph.bilateral_filter(image.nan_to_num(0.0), **SIGMAS, sample_weight=mask, return_mass=True)
    assert torch.equal(mean[:, mask], black[0][:, mask])
    assert torch.equal(mass[mask], black[1][mask])
    # a color that is known keeps its place, whatever it weighs
    image, _ = picture()
    assert (ph.bilateral_filter(image, **SIGMAS, sample_weight=mask, fill_value=-1.0) >= 0).all()


def test_layers_take_weights() -> None:
    values, features, weights = scatter()
    layer = ph.nn.GaussianFilter(3, method="dense")
    assert_close(
        layer(values, features, sample_weight=weights),
        ph.gaussian_filter(values, features, method="dense", sample_weight=weights),
    )
    image, mask = picture()
    filtered = ph.nn.BilateralFilter(**SIGMAS).to(DEVICE)(image, sample_weight=mask)
    assert_close(filtered, ph.bilateral_filter(image, **SIGMAS, sample_weight=mask), torch.float32)


def gaussian(**options: Any) -> Any:
    values, features, _ = scatter()
    return ph.gaussian_filter(options.pop("values", values), features, **options)


def spoiled(number: float, dtype: torch.dtype = torch.float64) -> Tensor:
    values = scatter(dtype)[0]
    values[4, 1] = number
    return values


ERRORS: dict[str, ErrorCase] = {
    "list": (lambda: gaussian(sample_weight=[1.0] * 17), InputError, "sample_weight must be a torch.Tensor"),
    "integers": (
        lambda: gaussian(sample_weight=torch.ones(17, dtype=torch.int64)),
        InputError,
        "bool or floating.*int64",
    ),
    "column": (lambda: gaussian(sample_weight=torch.ones(17, 1, device=DEVICE)), InputError, r"\[17\].*got \[17, 1\]"),
    "too_few": (
        lambda: gaussian(sample_weight=torch.ones(16, device=DEVICE)),
        InputError,
        r"sample_weight must be \[17\]",
    ),
    "one": (lambda: gaussian(sample_weight=torch.tensor(1.0, device=DEVICE)), InputError, r"got \[\]"),
    "elsewhere": (
        lambda: gaussian(sample_weight=torch.ones(17, device="meta")),
        InputError,
        "sample_weight is on meta",
    ),
    "density": (
        lambda: gaussian(sample_weight=torch.ones(17, device=DEVICE), normalization="density"),
        InputError,
        "'homogeneous' and 'none', not with 'density'",
    ),
    "image": (
        lambda: ph.bilateral_filter(picture()[0], **SIGMAS, sample_weight=torch.ones(1, 5, 6, device=DEVICE)),
        InputError,
        r"sample_weight must be \[5, 6\].*got \[1, 5, 6\]",
    ),
}
# what can only be known by looking at the numbers
NUMBERS: dict[str, ErrorCase] = {
    "negative": (lambda: gaussian(sample_weight=torch.linspace(-1, 1, 17)), InputError, "not negative"),
    "weight_nan": (
        lambda: gaussian(sample_weight=torch.full((17,), torch.nan)),
        InputError,
        "sample_weight must be finite",
    ),
    "weight_infinite": (
        lambda: gaussian(sample_weight=torch.full((17,), torch.inf)),
        InputError,
        "sample_weight must be finite",
    ),
    "nan": (lambda: gaussian(values=spoiled(torch.nan)), InputError, "1 of 34 are NaN.*pass a sample_weight"),
    "infinite": (lambda: gaussian(values=spoiled(-torch.inf)), InputError, "1 of 34 are NaN or infinite"),
    "nan_that_counts": (
        lambda: gaussian(values=spoiled(torch.nan), sample_weight=torch.ones(17)),
        InputError,
        "values must be finite",
    ),
    "picture": (
        lambda: ph.bilateral_filter(
            torch.full((1, 4, 4), torch.nan), sigma_space=1.0, sigma_color=1.0, guide=torch.ones(1, 4, 4)
        ),
        InputError,
        "16 of 16 are NaN",
    ),
    "learned": (
        lambda: ph.permutohedral_filter(spoiled(torch.nan), scatter()[1], torch.ones(15).double()),
        InputError,
        "1 of 34 are NaN",
    ),
    "learned, negative weights": (
        lambda: ph.permutohedral_filter(
            *scatter()[:2], torch.ones(15).double(), sample_weight=-torch.ones(17).double()
        ),
        InputError,
        "not negative",
    ),
    "learned, unknown values that count": (
        lambda: ph.permutohedral_filter(
            spoiled(torch.nan), scatter()[1], torch.ones(15).double(), sample_weight=torch.ones(17).double()
        ),
        InputError,
        "values must be finite",
    ),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_rejects_bad_weights(case: ErrorCase) -> None:
    assert_raises(*case)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="numbers on a GPU are not looked at")
@pytest.mark.parametrize("case", NUMBERS.values(), ids=NUMBERS)
def test_rejects_bad_numbers(case: ErrorCase) -> None:
    assert_raises(*case)


@pytest.mark.parametrize("method", ["lattice", "dense", "exact"])
@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["one_place", "apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_up_to_the_documented_limit_are_filtered(dtype: torch.dtype, spread: float, method: Any) -> None:
    """As docs/guide/conventions.md states; also where all points share their lattice points."""
    features = spread * scatter(torch.float32)[1]
    largest = min(torch.finfo(torch.float32).max / (17 * 2 ** (features.shape[1] + 1)), torch.finfo(dtype).max)
    values = torch.tensor([largest, -largest], device=DEVICE, dtype=dtype).expand(17, 2)
    for weights in (None, torch.ones(17, device=DEVICE)):
        assert_close(ph.gaussian_filter(values, features, method=method, sample_weight=weights), values)


@pytest.mark.parametrize("normalization", ["none", "homogeneous", "density", "coverage"])
def test_learned_filters_count_a_point_as_often_as_its_weight_says(normalization: Any) -> None:
    """Points of weight zero are as good as none, whatever their values; those of weight two are two."""
    values, features, _ = scatter()
    weight = to_tensor(np.random.default_rng(0).normal(size=(15, 2, 3)))
    weights = to_tensor([0.0, 2.0, 1.0, 1.0] * 4 + [0.0])
    repeated = torch.repeat_interleave(torch.arange(17, device=values.device), weights.long())
    targets = features[::2] + 0.2
    expected = ph.permutohedral_filter(
        values[repeated], features[repeated], weight, targets, normalization=normalization
    )
    options: dict[str, Any] = {"normalization": normalization, "sample_weight": weights}
    holes = torch.where(weights[:, None] == 0, torch.nan, values)
    assert_close(ph.permutohedral_filter(holes, features, weight, targets, **options), expected)
    batch = ph.permutohedral_filter(holes.expand(2, -1, -1), features, weight, targets, **options)
    assert_close(batch[1], expected)


def test_learned_layers_take_weights() -> None:
    values, features, weights = scatter(torch.float32)
    layer = ph.nn.PermutohedralConv(2, 4, dimension=3).to(values.device)
    holes = torch.where(weights[:, None] == 0, torch.nan, values).requires_grad_()
    actual = layer(holes, features, sample_weight=weights)
    known = weights > 0
    expected = layer(values[known], features[known], features, sample_weight=weights[known])
    assert_close(actual, expected)
    actual.square().sum().backward()
    assert holes.grad is not None
    assert bool(holes.grad.isfinite().all())
    assert bool((holes.grad[~known] == 0).all())
    image = torch.rand(2, 3, 6, 7, device=values.device)
    mask = torch.rand(6, 7, device=values.device) > 0.4
    picture_layer = ph.nn.BilateralConv2d(3, 2).to(values.device)
    lost = torch.where(mask, image, torch.nan)
    assert_close(
        picture_layer(lost, image, sample_weight=mask),
        picture_layer(torch.where(mask, image, 9.0), image, sample_weight=mask),
    )


def test_learned_filters_reject_mismatched_weights() -> None:
    values, features, weights = scatter()
    weight = to_tensor(np.ones((15, 2, 1)))
    with pytest.raises(InputError, match="symmetric"):
        ph.permutohedral_filter(values, features, weight, normalization="symmetric", sample_weight=weights)
    with pytest.raises(InputError, match="one for each point"):
        ph.permutohedral_filter(values, features, weight, sample_weight=weights[:3])


@pytest.mark.skipif(DEVICE.type != "cpu", reason="numbers on a GPU are not looked at")
@pytest.mark.parametrize("transform", ["compile", "vmap", "jvp"])
def test_traced_code_rejects_nan(transform: str) -> None:
    values, features, _ = scatter()
    tangents = torch.ones_like(values)
    run: Callable[[Tensor], Any] = {
        "compile": torch.compile(lambda values: ph.gaussian_filter(values, features), backend="aot_eager"),
        "vmap": lambda values: torch.vmap(lambda each: ph.gaussian_filter(each, features))(values[None]),
        "jvp": lambda values: torch.func.jvp(lambda each: ph.gaussian_filter(each, features), (values,), (tangents,)),
    }[transform]
    run(values)
    with pytest.raises((InputError, RuntimeError), match="values must be finite"):
        run(spoiled(torch.nan))
