"""The Gaussian over position and color with few terms over colors, against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from colored_waves import SIGMA, by_definition, picture, with_mass
from support import DEVICE, assert_close, relative_error, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral import memory
from permutohedral.filters.landmarks import (
    Landmarks,
    choose_landmarks,
    rare_pixels,
    share_of_mass,
    sum_landmarks,
)


def landmarks_of(guide: Tensor) -> Landmarks:
    found = choose_landmarks(guide, [1.0] * guide.shape[1], 200)
    assert found is not None
    return found


def quotient(sums: Tensor) -> Tensor:
    return sums[:, :-1] / sums[:, -1:]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("height", "width", "channels", "items", "dtype"),
    [
        (31, 22, 3, 1, torch.float32),
        (20, 25, 1, 2, torch.float64),
        (1, 40, 2, 1, torch.float32),
        (40, 1, 3, 1, torch.float32),
    ],
)
def test_sums_are_close_to_the_definition(
    height: int, width: int, channels: int, items: int, dtype: torch.dtype
) -> None:
    guide = picture(height, width, channels, items).to(dtype)
    # more channels than are summed at once
    values = picture(height, width, 5, items).to(dtype)
    sums = sum_landmarks(values, guide, SIGMA, landmarks_of(guide))
    assert sums.dtype == dtype
    expected = by_definition(with_mass(values), guide)
    # the spaces between the nodes change the mass, and little of the mean
    assert relative_error(sums[:, -1], expected[:, -1]) < 0.06
    assert relative_error(quotient(sums), quotient(expected)) < 0.06


def test_backends_agree() -> None:
    guide = picture(26, 35)
    landmarks = landmarks_of(guide)
    actual = sum_landmarks(guide, guide, SIGMA, landmarks)
    with ph.use_backend("reference"):
        assert relative_error(actual, sum_landmarks(guide, guide, SIGMA, landmarks)) < 5e-4


def test_float64_is_float64_throughout() -> None:
    """Weights that were float32 on the way would depend on torch's default dtype, and on how a device divides."""
    guide = picture(26, 35).double()
    landmarks = landmarks_of(guide)
    with ph.use_backend("reference"):
        actual = sum_landmarks(guide, guide, SIGMA, landmarks)
        torch.set_default_dtype(torch.float64)
        try:
            expected = sum_landmarks(guide, guide, SIGMA, landmarks)
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(actual, expected)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    guide = picture(60, 70)
    before, landmarks = torch.get_num_threads(), landmarks_of(guide)
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(sum_landmarks(guide, guide, SIGMA, landmarks))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.usefixtures("backend")
def test_rare_colors_are_summed_by_the_definition() -> None:
    guide = picture(40, 50)
    landmarks = landmarks_of(guide)
    guide[0, :, 20, 30] = to_tensor(np.array([9.0, -9.0, 9.0]))
    guide[0, :, 20, 33] = to_tensor(np.array([9.0, -9.0, 8.0]))
    # one at a border
    guide[0, :, 39, 0] = to_tensor(np.array([-9.0, 9.0, 9.0]))
    sums, expected = sum_landmarks(guide, guide, SIGMA, landmarks), by_definition(with_mass(guide), guide)
    for y, x in ((20, 30), (20, 33), (39, 0)):
        assert_close(sums[0, :, y, x], expected[0, :, y, x])


@pytest.mark.usefixtures("backend")
def test_an_odd_color_is_found_by_what_landmarks_lack_there() -> None:
    """Its mass is not small, for it sees what is around it, but no landmark stands for the pixels of its own kind."""
    guide = torch.zeros(1, 3, 40, 50, device=DEVICE)
    landmarks = landmarks_of(guide)
    odd = [(y, x) for y in (20, 21) for x in (30, 31, 32)]
    for y, x in odd:
        guide[0, :, y, x] = to_tensor(np.array([1.8, 0.0, 0.0]))
    sums, expected = sum_landmarks(guide, guide, SIGMA, landmarks), by_definition(with_mass(guide), guide)
    for y, x in odd:
        # a window leaves out a hundredth
        assert relative_error(sums[0, :, y, x], expected[0, :, y, x]) < 0.02


def test_landmarks_themselves_are_not_summed_again() -> None:
    """However rare they are: between a landmark and any other color the terms lack nothing."""
    guide = torch.zeros(1, 1, 40, 50, device=DEVICE)
    guide[0, 0, 20, 30] = 9.0
    landmarks = choose_landmarks(guide, [1.0], 2)
    assert landmarks is not None
    assert landmarks.colors.flatten().sort().values.tolist() == [0.0, 9.0]
    mass = sum_landmarks(guide, guide, SIGMA, landmarks)[0, -1]
    share = share_of_mass(mass, guide[0], landmarks, SIGMA)
    assert rare_pixels(share.flatten(), SIGMA).numel() == 0


@pytest.mark.usefixtures("backend")
def test_a_landmark_may_be_summed_again() -> None:
    """Terms lack a little there as well, because of what is added to the kernel before it is inverted."""
    guide = torch.zeros(1, 1, 40, 50, device=DEVICE)
    guide[0, 0, 20, 30] = 9.0
    landmarks = choose_landmarks(guide, [1.0], 2)
    assert landmarks is not None
    sigma = 20.0, 20.0
    sums = sum_landmarks(guide, guide, sigma, landmarks)
    share = share_of_mass(torch.ones(40, 50, device=DEVICE), guide[0], landmarks, sigma)
    assert share[20, 30] < 1
    # it sees itself alone
    assert_close(sums[0, :, 20, 30], to_tensor(np.array([9.0, 1.0])))


@pytest.mark.usefixtures("backend")
def test_wider_than_integers_reach() -> None:
    guide = picture(20, 25).double()
    landmarks = landmarks_of(guide)
    guide[0, :, 7, 9] = to_tensor(np.array([9.0, -9.0, 9.0]))
    sums = sum_landmarks(guide, guide, (1e21, 1e21), landmarks)
    expected = by_definition(with_mass(guide), guide, (1e21, 1e21))
    assert relative_error(quotient(sums), quotient(expected)) < 0.06
    assert_close(sums[0, :, 7, 9], expected[0, :, 7, 9])


def test_landmarks_give_the_gaussian_between_colors() -> None:
    guide = picture(40, 50) + 0.3 * torch.randn(1, 3, 40, 50, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = landmarks_of(guide)
    colors = guide[0].flatten(1).mT.double().cpu().numpy()[::7]
    landmarks = found.colors.double().cpu().numpy()

    to_landmarks, expected = (np.exp(-0.5 * ((colors[:, None] - b) ** 2).sum(-1)) for b in (landmarks, colors))
    approximate = to_landmarks @ found.mixture.double().cpu().numpy() @ to_landmarks.T
    error = np.abs(approximate - expected)
    assert error.mean() < 0.01
    # colors between the small cubes that landmarks are taken from
    assert error.max() < 0.25
    assert len(landmarks) < 100
    assert choose_landmarks(guide, [1.0] * 3, len(landmarks) // 2) is None
    assert choose_landmarks(guide[:0], [1.0] * 3, 100) is None


def test_derivatives() -> None:
    """The sums are linear in the values, and smooth in the guide."""
    random = np.random.default_rng(0).random
    guide = picture(9, 11).double().requires_grad_()
    landmarks = landmarks_of(guide)
    values = to_tensor(random((1, 2, 9, 11))).requires_grad_()
    # with the mass, which does not depend on the values
    other = to_tensor(random((1, 3, 9, 11)))
    sums = sum_landmarks(values, guide, SIGMA, landmarks)
    gradient, of_guide = torch.autograd.grad(sums, (values, guide), other)
    with torch.no_grad(), ph.use_backend("reference"):
        direction = to_tensor(random(values.shape))
        along = sum_landmarks(direction, guide, SIGMA, landmarks)[:, :2]
        assert float((gradient * direction).sum()) == pytest.approx(float((along * other[:, :2]).sum()), rel=1e-10)
        step = 1e-6 * to_tensor(random(guide.shape))
        change = sum_landmarks(values, guide + step, SIGMA, landmarks) - sum_landmarks(
            values, guide - step, SIGMA, landmarks
        )
    assert float((change * other).sum()) / 2 == pytest.approx(float((of_guide * step).sum()), rel=1e-4)


@pytest.mark.usefixtures("backend")
class TestAuto:
    image = picture(90, 110)[0] / 8 + 0.5

    def test_takes_them_where_the_lattice_is_coarse(self) -> None:
        assert ph.explain_bilateral(self.image, 12.0, 0.5).startswith("landmarks: ")
        actual = ph.bilateral_filter(self.image, 12.0, 0.5, method="auto")
        with ph.use_backend(None):
            # the fastest backend computes the same
            expected = ph.bilateral_filter(self.image, 12.0, 0.5, method="exact")
        assert relative_error(actual, expected) < 0.02
        assert relative_error(ph.bilateral_filter(self.image, 12.0, 0.5), expected) > 0.04
        halo = ph.bilateral_filter(self.image, 12.0, 0.5, method="auto", halo=1)
        assert_close(halo, ph.bilateral_filter(self.image, 12.0, 0.5, halo=1))

    def test_holes_and_mass(self) -> None:
        known = torch.ones(90, 110, dtype=torch.bool, device=DEVICE)
        known[30:50, 40:60] = False
        options: dict[str, Any] = {"guide": self.image, "weights": known, "return_mass": True}
        actual, mass = ph.bilateral_filter(self.image, 12.0, 0.5, method="auto", **options)
        with ph.use_backend(None):
            expected, exact_mass = ph.bilateral_filter(self.image, 12.0, 0.5, method="exact", **options)
        assert relative_error(actual, expected) < 0.02
        assert relative_error(mass, exact_mass) < 0.08

    def test_not_where_derivatives_are_wanted(self) -> None:
        image = self.image.clone().requires_grad_()
        assert ph.explain_bilateral(image, 12.0, 0.5).startswith("separable: ")
        ph.bilateral_filter(image, 12.0, 0.5, method="auto").sum().backward()
        assert image.grad is not None
        with torch.no_grad():
            assert ph.explain_bilateral(image, 12.0, 0.5).startswith("landmarks: ")


def test_every_picture_of_a_batch_has_landmarks() -> None:
    """As many pixels as are sampled in all, and colors that the first picture does not have."""
    dark = 0.15 + 0.05 * picture(96, 96)
    batch = torch.cat([dark, 1 - dark])
    assert ph.explain_bilateral(batch, 8.0, 0.2).startswith("landmarks: ")
    actual = ph.bilateral_filter(batch, 8.0, 0.2, method="auto")
    assert (actual - ph.bilateral_filter(batch, 8.0, 0.2, method="exact")).abs().max() < 0.01


def test_not_where_many_pixels_are_unlike_all_landmarks() -> None:
    """Too many to be summed over windows: without a landmark they would get anything, even numbers below 0."""
    image = 0.4 + 0.03 * picture(200, 200)[0]
    odd = to_tensor(np.random.default_rng(0).random((200, 200))) < 0.002
    assert ph.explain_bilateral(image, 32.0, 0.1).startswith("landmarks: ")
    image[:, odd] = to_tensor(np.random.default_rng(1).random((3, int(odd.sum()))), torch.float32)
    result = ph.bilateral_filter(image, 32.0, 0.1, method="auto")
    assert ((result - image).abs()[:, odd] < 0.3).all()


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the amount is that of the compiled core")
def test_too_little_memory_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = picture(60, 70)
    landmarks = landmarks_of(guide)
    # pixels in one piece, sums, and two grids
    needed = 4 * (12 * 60 * 70 + 2 * 22 * 37 * 4 * (len(landmarks.colors) + 8))
    monkeypatch.setattr(memory, "_NEGLIGIBLE_BYTES", 0)
    monkeypatch.setattr(memory, "available_memory", lambda device: needed)
    sum_landmarks(guide, guide, SIGMA, landmarks)
    monkeypatch.setattr(memory, "available_memory", lambda device: needed // 2)
    with pytest.raises(ph.MemoryLimitError, match="bytes"):
        sum_landmarks(guide, guide, SIGMA, landmarks)
