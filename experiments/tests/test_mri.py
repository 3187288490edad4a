"""Samples of a spectrum along trajectories, and methods that make images of them."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE, relative_error
from torch import Tensor, nn

from experiments.mri.run import (
    TRAJECTORIES,
    ConjugateGradients,
    Gridding,
    KaiserBesselGridding,
    LatticeGridding,
    Linear,
    centered_grid,
    field_of_view,
    make_trajectory,
    measure_spectrum,
    shepp_logan,
    spectrum_matrices,
)
from permutohedral.errors import InputError

SIZE = 32


def error(image: Tensor, truth: Tensor) -> float:
    """Return the root mean square difference."""
    return float((image - truth).double().square().mean().sqrt())


def exact_adjoint(samples: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
    """Return what gridding approximates: 1 / size * sum_i areas_i s_i exp(2 pi i k_i n / size)."""
    along_y, along_x = spectrum_matrices(SIZE, positions)
    return torch.einsum("bp,pn,pm->bnm", samples * areas, along_y.conj(), along_x.conj()) / SIZE


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_trajectories_have_the_number_and_areas_of_samples(kind: str, factor: float) -> None:
    positions, areas = make_trajectory(kind, 64, factor, rotation=0.3)
    assert abs(len(positions) * factor / 64**2 - 1) < 0.05
    distance = positions.norm(dim=1)
    assert 31 < float(distance.max()) <= 32 + 1e-9
    # the areas share the disc, and those at the center a disc of diameter 1
    assert abs(float(areas.sum()) / (math.pi * 32**2) - 1) < 0.05
    assert float(areas[distance < 0.25].sum()) == pytest.approx(math.pi / 4)
    with pytest.raises(InputError, match="radial or spiral"):
        make_trajectory("circle", 64, factor)


def test_the_spectrum_is_the_sum_over_all_pixels() -> None:
    image = torch.randn(2, 16, 16, dtype=torch.float64)
    measured = measure_spectrum(image, centered_grid(16)).reshape(2, 16, 16, 2)
    expected = torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(image, dim=(1, 2)), norm="ortho"), dim=(1, 2))
    assert relative_error(measured, torch.view_as_real(expected)) < 1e-12
    # between whole frequencies
    y, x = torch.meshgrid(*[torch.arange(-8.0, 8.0, dtype=torch.float64)] * 2, indexing="ij")
    wave = torch.exp(-2j * torch.pi / 16 * (0.3 * y - 2.7 * x))
    value = measure_spectrum(image[:1], torch.tensor([[0.3, -2.7]], dtype=torch.float64))[0, 0]
    assert abs(complex(*value) - complex((image[0] * wave).sum() / 16)) < 1e-12


# the error of a Kaiser-Bessel kernel on a grid oversampled twice falls a hundredfold with every two cells
@pytest.mark.parametrize(("width", "tolerance"), [(4, 2e-3), (6, 3e-5), (8, 5e-7)])
def test_gridding_is_the_adjoint_of_the_measurement(width: int, tolerance: float) -> None:
    positions = torch.rand(200, 2, dtype=torch.float64) * SIZE - SIZE / 2
    samples, areas = torch.randn(2, 200, dtype=torch.complex128), torch.rand(200, dtype=torch.float64)
    gridded = KaiserBesselGridding(SIZE, width)(samples, positions, areas)
    expected = exact_adjoint(samples, positions, areas)
    assert relative_error(torch.view_as_real(gridded), torch.view_as_real(expected)) < tolerance


def test_density_compensation_finds_the_areas_of_a_grid() -> None:
    areas = KaiserBesselGridding(SIZE, width=4).compensate(centered_grid(SIZE).double())
    # every sample of a whole grid stands for one cell, to the resolution of the kernel
    assert float((areas - 1).abs().max()) < 0.1


@pytest.mark.parametrize(
    ("model", "tolerance"), [(Linear(SIZE), 1e-8), (Gridding(SIZE), 1e-4), (ConjugateGradients(SIZE, 3), 1e-8)]
)
def test_all_frequencies_give_the_image(model: nn.Module, tolerance: float) -> None:
    image, positions = shepp_logan(SIZE)[None].double() * field_of_view(SIZE), centered_grid(SIZE).double()
    assert error(model(measure_spectrum(image, positions), positions, torch.ones(SIZE**2, 2)), image) < tolerance


def test_learned_gridding_starts_as_gridding() -> None:
    positions, areas = make_trajectory("radial", SIZE, 2.0)
    image = shepp_logan(SIZE)[None].double() * field_of_view(SIZE, 4.0)
    values, model = measure_spectrum(image, positions), LatticeGridding(SIZE, spectra=2).to(DEVICE)
    parts = (part.float().to(DEVICE) for part in (values, positions, areas[:, None].expand(-1, 2)))
    with torch.no_grad():
        started = model(*parts).cpu()
    exact = exact_adjoint(torch.view_as_complex(values), positions, areas).real * field_of_view(SIZE)
    # the Gaussian of 19 taps on the lattice differs by a few percent from sample to sample
    assert error(started, exact) < 0.04
    assert error(exact, torch.zeros_like(exact)) > 0.15


@pytest.mark.parametrize("model", [Gridding(SIZE, learned=True), LatticeGridding(SIZE, spectra=2)])
def test_every_weight_learns(model: nn.Module) -> None:
    positions, areas = make_trajectory("radial", SIZE, 4.0)
    made = model(torch.rand(2, len(areas), 2), positions.float(), areas[:, None].expand(-1, 2).float())
    (made - torch.rand_like(made)).square().mean().backward()
    assert made.shape == (2, SIZE, SIZE)
    # the sum of the channels starts at zero, but for the first
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
