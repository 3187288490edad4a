"""Upsampling against sums in NumPy; gradients, laws, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, assert_close, to_numpy, to_tensor
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from permutohedral.features import FEATURE_SHIFT

MODES: tuple[Any, ...] = ("gaussian", "affine", "solver")


def maps(*shape: int, seed: int = 0) -> Tensor:
    return to_tensor(np.random.default_rng(seed).random(shape))


def expected_gaussian(coarse: Tensor, guide: Tensor, sigma_space: float, sigma_color: float) -> oracle.Array:
    """Blurred sums over blurred counts, at every pixel."""
    (height, width), (rows, columns) = guide.shape[1:], coarse.shape[1:]

    def features(image: Tensor, y: Any, x: Any) -> oracle.Array:
        places = np.stack(np.meshgrid(y, x, indexing="ij"), axis=2).reshape(-1, 2) / sigma_space
        colors = to_numpy(image).reshape(len(image), -1).T / sigma_color
        return FEATURE_SHIFT + np.concatenate([places, colors], axis=1)

    small = functional.adaptive_avg_pool2d(guide, (rows, columns))
    centers = [(np.arange(n) + 0.5) * (full / n) - 0.5 for n, full in ((rows, height), (columns, width))]
    points = np.concatenate([features(small, *centers), features(guide, np.arange(height), np.arange(width))])
    simplices = oracle.locate(points)
    sources = rows * columns
    blurred = oracle.blur_matrix(simplices.vertices) @ simplices.weights[:sources].T
    ones = np.ones((1, sources))
    values = np.concatenate([to_numpy(coarse).reshape(len(coarse), -1), ones]).T
    sums = simplices.weights[sources:] @ blurred @ values
    # a sample alone counts one at its place
    assert sums[:, -1].min() / (1 + 2.0 ** -(points.shape[1])) > 0.1
    means: oracle.Array = sums[:, :-1] / sums[:, -1:]
    return means.T.reshape(len(coarse), height, width)


@pytest.mark.parametrize("size", [(2, 4), (3, 4)], ids=["whole ratio", "any ratio"])
def test_gaussian_means_are_those_of_the_definition(size: tuple[int, int]) -> None:
    coarse, guide = maps(2, *size), maps(1, 6, 8, seed=1)
    found = ph.upsample(coarse, guide, sigma_space=2.3, sigma_color=2.9, num_iterations=0, mode="gaussian")
    assert_close(found, expected_gaussian(coarse, guide, 2.3, 2.9))


def test_affine_follows_a_guide_that_explains_everything() -> None:
    guide = maps(2, 12, 16)
    fine = 3 * guide[:1] - 2 * guide[1:] + 5
    coarse = functional.adaptive_avg_pool2d(fine, (3, 4))
    assert_close(
        ph.upsample(coarse, guide, sigma_space=8.0, sigma_color=5.0, mode="affine", ridge=1e-14), fine, torch.float32
    )


@pytest.mark.parametrize("sampling", ["area", "point"])
@pytest.mark.parametrize("mode", MODES)
def test_preserves_constants(mode: Any, sampling: Any) -> None:
    guide, coarse = maps(3, 11, 13).float(), torch.full((2, 1, 4, 5), 60000.5, device=DEVICE)
    coarse[0, 0, 1:, 2:] = torch.nan
    found = ph.upsample(coarse, guide, mode=mode, sampling=sampling, sigma_color=0.1)
    assert_close(found, torch.full((2, 1, 11, 13), 60000.5))


@pytest.mark.parametrize("mode", MODES)
def test_steps_bring_the_result_to_the_data(mode: Any) -> None:
    guide, coarse = maps(1, 12, 18), maps(1, 3, 6, seed=1)

    def missing(steps: int) -> float:
        found = ph.upsample(coarse, guide, sigma_space=3.0, sigma_color=0.3, mode=mode, num_iterations=steps)
        return float((functional.adaptive_avg_pool2d(found, (3, 6)) - coarse).abs().max())

    assert missing(12) < 0.8 * missing(1)


def test_kept_pixels_lie_where_they_were() -> None:
    guide = torch.zeros(1, 1, 9, dtype=torch.float64, device=DEVICE)
    coarse = to_tensor([[[0.0, 1.0, 0.0]]])
    kept = ph.upsample(
        coarse, guide, sigma_space=(0.5, 0.8), sigma_color=1.0, sampling="point", num_iterations=0, mode="gaussian"
    )[0, 0]
    means = ph.upsample(coarse, guide, sigma_space=(0.5, 0.8), sigma_color=1.0, num_iterations=0, mode="gaussian")[0, 0]
    assert int(kept.argmax()) == 3
    assert int(means.argmax()) == 4


def test_interpolates_targets_far_from_all_samples() -> None:
    guide, coarse = torch.zeros(1, 8, 12, dtype=torch.float64, device=DEVICE), maps(3, 4, 3)
    guide[0, 3, 4:6] = 1000.0
    between = functional.interpolate(coarse[None], (8, 12), mode="bilinear", align_corners=False)[0]
    assert_close(
        ph.upsample(coarse, guide, num_iterations=0, mode="gaussian", sigma_color=0.1)[:, 3, 4:6], between[:, 3, 4:6]
    )


def test_ignores_unknown_samples() -> None:
    guide, coarse = maps(1, 8, 12), maps(2, 4, 6, seed=1)
    sample_weight = torch.ones(4, 6, dtype=torch.float64, device=DEVICE)
    sample_weight[1:3, 2:4] = 0
    holes = torch.where(sample_weight > 0, coarse, torch.nan)
    wild = torch.where(sample_weight > 0, coarse, 1e6)
    expected = ph.upsample(wild, guide, sample_weight=sample_weight, mode="gaussian", sigma_color=0.1)
    assert bool(expected.isfinite().all())
    assert float(expected.abs().max()) < 10
    assert_close(ph.upsample(holes, guide, mode="gaussian", sigma_color=0.1), expected)
    assert_close(ph.upsample(torch.stack([holes, coarse]), guide, mode="gaussian", sigma_color=0.1)[0], expected)


@pytest.mark.parametrize("mode", ["gaussian", "affine"])
def test_only_ratios_of_weights_matter(mode: Any) -> None:
    guide, coarse = maps(1, 8, 12), maps(2, 1, 4, 6, seed=1)
    assert_close(
        ph.upsample(coarse, guide, mode=mode, sample_weight=coarse[0, 0] * 0 + 0.01, sigma_color=0.1),
        ph.upsample(coarse, guide, mode=mode, sigma_color=0.1),
    )
    sample_weight = maps(2, 4, 6, seed=2) * (maps(2, 4, 6, seed=3) > 0.3)
    expected = ph.upsample(coarse, guide, mode=mode, sample_weight=sample_weight, sigma_color=0.1)
    assert_close(ph.upsample(coarse, guide, mode=mode, sample_weight=1e-30 * sample_weight, sigma_color=0.1), expected)


@pytest.mark.parametrize("mode", MODES)
def test_batch_equals_its_items(mode: Any) -> None:
    guides, coarse = maps(2, 1, 8, 9), maps(2, 2, 4, 3, seed=1)
    coarse[1, :, 1, 1] = torch.nan
    together = ph.upsample(coarse, guides, mode=mode, num_iterations=120, sigma_color=0.1)
    for item in range(2):
        assert_close(
            together[item], ph.upsample(coarse[item], guides[item], mode=mode, num_iterations=120, sigma_color=0.1)
        )
    # an item in other units takes no digits away
    units = torch.tensor([1.0, 1e6], dtype=torch.float64, device=DEVICE).view(2, 1, 1, 1)
    mixed = ph.upsample((coarse * units).float(), guides.float(), mode=mode, num_iterations=120, sigma_color=0.1)
    assert_close(
        mixed[0], ph.upsample(coarse[0].float(), guides[0].float(), mode=mode, num_iterations=120, sigma_color=0.1)
    )


@pytest.mark.parametrize(("sampling", "size"), [("area", (4, 5)), ("point", (4, 5)), ("area", (1, 9))])
def test_many_channels_equal_single_maps(sampling: Any, size: tuple[int, int]) -> None:
    """Which are mixed out of coarse samples, channels first or last, instead of filtered on the lattice."""
    coarse, guide = maps(2, 200, *size), maps(2, 3, 13, 22, seed=1)
    coarse[0, :, 0, 1] = torch.nan
    upsampler = ph.guided.Upsampler(guide, size, sigma_space=None, sigma_color=0.2, sampling=sampling, mode="gaussian")
    found = upsampler(coarse)
    assert found.is_contiguous()
    apart = [upsampler(coarse[:, channel : channel + 1]) for channel in (0, 57, 199)]
    assert_close(found[:, [0, 57, 199]], torch.cat(apart, dim=1))
    last = upsampler(coarse.contiguous(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert_close(last, found)
    # items that follow one guide are further channels
    alone = ph.upsample(
        coarse[1:].view(4, 50, *size), guide[1], sigma_space=None, sigma_color=0.2, sampling=sampling, mode="gaussian"
    )
    assert_close(alone.view(1, 200, 13, 22), found[1:])


def test_gradients_of_many_channels() -> None:
    coarse, guide = maps(40, 3).requires_grad_(), maps(1, 7, seed=1).requires_grad_()
    # on a GPU the order of atomic additions differs from run to run
    assert torch.autograd.gradcheck(
        lambda c, g: ph.upsample(c, g, sigma_space=1.2, sigma_color=0.3, spatial_dims=1, mode="gaussian"),
        (coarse, guide),
        nondet_tol=1e-10,
    )


@pytest.mark.parametrize("mode", MODES)
def test_volumes(mode: Any) -> None:
    coarse = torch.full((1, 2, 3, 2), 4.0, dtype=torch.float64, device=DEVICE)
    found = ph.upsample(coarse, maps(1, 4, 6, 5), mode=mode, spatial_dims=3, sigma_color=0.1)
    assert_close(found, torch.full((1, 4, 6, 5), 4.0))


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode: Any) -> None:
    coarse, guide = maps(1, 2, 2).requires_grad_(), maps(1, 4, 5, seed=1).requires_grad_()
    sample_weight = (maps(2, 2, seed=2) + 0.2).requires_grad_()

    def run(coarse: Tensor, guide: Tensor, sample_weight: Tensor) -> Tensor:
        steps = 30 if mode == "solver" else 1
        return ph.upsample(
            coarse,
            guide,
            sigma_space=1.7,
            sigma_color=0.9,
            mode=mode,
            sample_weight=sample_weight,
            num_iterations=steps,
        )

    assert torch.autograd.gradcheck(run, [coarse, guide, sample_weight], atol=1e-7, fast_mode=True)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="arrays lie in the memory of the host")
def test_returns_arrays_for_arrays() -> None:
    random = np.random.default_rng(0)
    coarse, guide = random.random((2, 4, 5)), random.random((3, 9, 11))[:, ::-1]
    coarse.flags.writeable = False
    found = ph.upsample(coarse, guide, sample_weight=np.ones((4, 5)), mode="gaussian", sigma_color=0.1)
    assert isinstance(found, np.ndarray)
    tensors = torch.from_numpy(coarse.copy()), torch.from_numpy(guide.copy())
    assert_close(torch.from_numpy(found), ph.upsample(*tensors, mode="gaussian", sigma_color=0.1))
    assert isinstance(ph.guided.Upsampler(guide, (4, 5), mode="gaussian", sigma_color=0.1)(coarse), np.ndarray)
    solved = ph.bilateral_solver(coarse, guide, observe="cells", start=found, sigma_color=0.1)
    assert isinstance(solved, np.ndarray)
    # parameters passed with arrays get no derivative
    learned = torch.tensor(2.0, requires_grad=True)
    assert isinstance(
        ph.bilateral_solver(coarse, guide, observe="cells", smoothness=learned, sigma_color=0.1), np.ndarray
    )
    assert isinstance(ph.bilateral_solver(coarse[:, 0], guide, observe=np.zeros((5, 2)), sigma_color=0.1), np.ndarray)
    values, mass = ph.interpolate(coarse[:, 0].T, random.random((5, 2)), return_mass=True)
    assert isinstance(values, np.ndarray)
    assert isinstance(mass, np.ndarray)


def test_keeps_16_bit_dtypes() -> None:
    assert (
        ph.upsample(maps(2, 3, 3).half(), maps(1, 6, 6).float(), mode="gaussian", sigma_color=0.1).dtype
        == torch.float16
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "cubic"}, "mode must be"),
        ({"sampling": "center"}, "sampling must be"),
        ({"coarse": torch.zeros(3, 4)}, "channels before"),
        ({"coarse": torch.zeros(1, 3, 4, dtype=torch.bool)}, "floating"),
        ({"coarse": torch.full((1, 3, 4), torch.nan)}, "nothing is known"),
        ({"coarse": torch.full((1, 3, 4), torch.inf)}, "maps must be finite, or NaN"),
        ({"guide": torch.zeros(64, 96, 3)}, "^guide must be.*channels forward"),
        ({"guide": torch.zeros(3, 6, 8, dtype=torch.int32)}, "guide of int32 has no rule"),
        ({"guide": torch.zeros(2, 1, 6, 8)}, "batch axes"),
        ({"coarse": torch.zeros(1, 6, 8), "guide": torch.zeros(1, 3, 4)}, "the coarse map first and the guide second"),
        (
            {"coarse": torch.zeros(3, 6, 8), "guide": torch.full((1, 3, 4), 5.0)},
            "the coarse map first and the guide second",
        ),
        ({"sample_weight": torch.zeros(3, 4)}, "nothing is known"),
        ({"sample_weight": torch.ones(6, 8)}, "sample_weight must be"),
        ({"sample_weight": torch.ones(4)}, "sample_weight must be"),
        ({"num_iterations": -1}, "num_iterations"),
        ({"ridge": 0.0, "mode": "affine"}, "ridge"),
        ({"coarse": np.ma.masked_less(np.arange(12.0).reshape(1, 3, 4), 5)}, "masked arrays"),
        ({"guide": np.zeros((1, 6, 8), np.longdouble)}, "does not support arrays"),
        ({"spatial_dims": 0}, "spatial_dims"),
    ],
)
def test_rejects_mismatched_inputs(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"coarse": torch.zeros(1, 3, 4), "guide": torch.zeros(1, 6, 8)}
    with pytest.raises(ph.errors.InputError, match=message):
        ph.upsample(**{**arguments, **change})


def test_warns_of_features_with_the_channels_last() -> None:
    guide = torch.rand(3, 64, 80)
    with pytest.warns(UserWarning, match="8 channels of 10 x 64.*channels_last=True"):
        ph.upsample(torch.rand(8, 10, 64), guide, mode="gaussian")


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU takes less time")
@pytest.mark.filterwarnings("error")
def test_warns_before_the_solver_upsamples_features() -> None:
    features, guide = torch.rand(384, 16, 16), torch.rand(3, 224, 224)
    with pytest.raises(UserWarning, match=r"coarse has 384 channels.*mode='gaussian' with num_iterations=0"):
        ph.upsample(features, guide)
    ph.upsample(features, guide, mode="gaussian", num_iterations=0)


def test_upsampler_rejects_other_sizes() -> None:
    with pytest.raises(ph.errors.InputError, match="for maps of"):
        ph.guided.Upsampler(torch.zeros(1, 6, 8), (3, 4), mode="gaussian", sigma_color=0.1)(torch.zeros(1, 2, 2))


@pytest.mark.parametrize("mode", MODES)
def test_empty_batches(mode: Any) -> None:
    """No items, with guides of their own or a common one; no channels."""
    guide, known = maps(3, 16, 12), maps(0, 4, 3)
    for channels in (2, 12):
        coarse = maps(0, channels, 4, 3)
        assert ph.upsample(coarse, maps(0, 3, 16, 12), mode=mode, sigma_color=0.1).shape == (0, channels, 16, 12)
        assert ph.upsample(coarse, guide, mode=mode, sigma_color=0.1).shape == (0, channels, 16, 12)
        assert ph.upsample(coarse, guide, mode=mode, sample_weight=known, sigma_color=0.1).shape == (
            0,
            channels,
            16,
            12,
        )
    assert ph.upsample(maps(0, 4, 3), guide, mode=mode, sigma_color=0.1).shape == (0, 16, 12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", [False, True], ids=["shared guide", "guide per item"])
def test_unknown_samples_are_unknown_per_channel(mode: Any, own: bool) -> None:
    guide, coarse = maps(2, 1, 8, 12) if own else maps(1, 8, 12), maps(2, 3, 4, 6, seed=1)
    coarse[0, 0, 1:] = torch.nan
    found = ph.upsample(coarse, guide, mode=mode, sigma_color=0.1)
    for channel in range(3):
        alone = ph.upsample(coarse[:, channel, None], guide, mode=mode, sigma_color=0.1)
        assert_close(found[:, channel, None], alone)


@pytest.mark.parametrize("mode", MODES)
def test_float64_maps_keep_their_digits_along_a_float32_guide(mode: Any) -> None:
    guide, coarse = maps(1, 8, 12).float(), 4e6 + maps(1, 4, 6, seed=1)
    expected = ph.upsample(coarse, guide.double(), mode=mode, sigma_color=0.1) - 4e6
    assert_close(ph.upsample(coarse, guide, mode=mode, sigma_color=0.1) - 4e6, expected, torch.float32)
    assert_close(ph.guided.Upsampler(guide, (4, 6), mode=mode, sigma_color=0.1)(coarse) - 4e6, expected, torch.float32)


def test_float32_and_float64_agree_at_whole_ratios() -> None:
    """Samples at whole ratios would lie on facets of the lattice, where rounding decides between simplices."""
    for size, sigma in (((8, 8), 4.0), ((16, 8), 2.0), ((8, 4), 8.0)):
        coarse, guide = maps(1, *size).float(), maps(1, 64, 64, seed=1).float()
        guide = (guide * 4).round() / 4
        narrow = ph.upsample(coarse, guide, sigma_space=sigma, sigma_color=0.25, mode="gaussian")
        assert_close(
            narrow,
            ph.upsample(coarse.double(), guide.double(), sigma_space=sigma, sigma_color=0.25, mode="gaussian").float(),
            torch.float32,
        )


@pytest.mark.parametrize("sampling", ["area", "point"])
@pytest.mark.parametrize("mode", ["gaussian", "affine"])
def test_parts_with_an_origin_equal_the_whole(mode: Any, sampling: Any) -> None:
    """Some pixels are far from all samples; a part has other samples than the whole."""
    coarse, guide = maps(1, 24, 6, seed=1), maps(1, 96, 24)
    coarse += 10 * torch.arange(24, device=DEVICE)[:, None]
    guide[:, ::5, 3] += 100.0
    whole = ph.guided.Upsampler(guide, (24, 6), mode=mode, sampling=sampling, sigma_color=0.1)(coarse)
    part = ph.guided.Upsampler(guide[:, 40:], (14, 6), mode=mode, sampling=sampling, origin=(40, 0), sigma_color=0.1)(
        coarse[:, 10:]
    )
    assert_close(part[:, 32:], whole[:, 72:])


@pytest.mark.parametrize("mode", MODES)
def test_colors_of_sixteen_bits_are_rounded_once(mode: Any) -> None:
    """The default bandwidth is a few units in the last place of bfloat16 colors."""
    guide, coarse = maps(3, 24, 24).bfloat16(), maps(1, 4, 4, seed=1).bfloat16()
    expected = ph.upsample(coarse.double(), guide.double(), mode=mode)
    assert_close(ph.upsample(coarse, guide, mode=mode), expected, torch.bfloat16)
    colors = ph.features.opponent_colors(guide)
    assert_close(colors, ph.features.opponent_colors(guide.double()), torch.bfloat16)


def test_the_solver_has_no_parts() -> None:
    with pytest.raises(ph.errors.InputError, match="no parts"):
        ph.guided.Upsampler(torch.rand(1, 6, 8), (3, 4), mode="solver", origin=(0, 0), sigma_color=0.1)
