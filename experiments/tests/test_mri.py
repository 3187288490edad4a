"""Samples along trajectories, what is measured there, and methods that make images of it."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from support import DEVICE, relative_error
from torch import Tensor, nn

from experiments.mri.fixed import (
    ConjugateGradients,
    Gridding,
    InterpolatedNetwork,
    Interpolation,
    build_fixed,
)
from experiments.mri.kaiser_bessel import KaiserBesselGridding, pipe_menon_areas
from experiments.mri.measurements import field_of_view, measure_image, measure_spectrum, spectrum_matrices
from experiments.mri.networks import (
    GriddedNetwork,
    ScatteredReconstruction,
    SpectrumReconstruction,
    centered_grid,
)
from experiments.mri.phantoms import random_phantom, shepp_logan
from experiments.mri.trajectories import TRAJECTORIES, Domain, TrajectoryKind, make_trajectory
from permutohedral.errors import InputError

SIZE = 32


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("domain", get_args(Domain))
@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_trajectories_have_the_number_and_areas_of_samples(kind: TrajectoryKind, domain: Domain, factor: float) -> None:
    size = 64
    trajectory = make_trajectory(kind, domain, size, factor, rotation=0.0 if domain == "image" else 0.3)
    assert abs(len(trajectory.positions) * factor / size**2 - 1) < 0.05
    if domain == "image":
        return
    distance = trajectory.positions.norm(dim=1)
    assert size / 2 - 1 < float(distance.max()) <= size / 2 + 1e-9
    # the areas share the disc, and those at the center a disc of diameter 1
    assert abs(float(trajectory.areas.sum()) / (math.pi * size**2 / 4) - 1) < 0.05
    assert float(trajectory.areas[distance < 0.25].sum()) == pytest.approx(math.pi / 4)


def test_the_spectrum_is_the_sum_over_all_pixels() -> None:
    image = torch.randn(2, 16, 16, dtype=torch.float64)
    measured = measure_spectrum(image, centered_grid(16)).reshape(2, 16, 16)
    expected = torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(image, dim=(1, 2)), norm="ortho"), dim=(1, 2))
    assert relative_error(torch.view_as_real(measured), torch.view_as_real(expected)) < 1e-12
    # between whole frequencies
    y, x = torch.meshgrid(torch.arange(-8, 8), torch.arange(-8, 8), indexing="ij")
    for position in torch.tensor([[0.3, -2.7], [3.9, 1.1]], dtype=torch.float64):
        wave = torch.exp(-2j * torch.pi / 16 * (position[0] * y + position[1] * x))
        value = measure_spectrum(image[:1], position[None])[0, 0]
        assert abs(complex(value) - complex((image[0] * wave).sum() / 16)) < 1e-12


def test_an_image_is_measured_at_and_between_its_pixels() -> None:
    image = torch.randn(3, 9, 9, dtype=torch.float64)
    pixels = torch.cartesian_prod(*[torch.arange(9.0, dtype=torch.float64) - 4] * 2)
    assert relative_error(measure_image(image, pixels)[..., 0].reshape(3, 9, 9), image) < 1e-12
    slope = torch.arange(9.0, dtype=torch.float64)[:, None].expand(1, 9, 9)
    between = torch.tensor([[0.5, 1.0], [-1.5, -0.5]], dtype=torch.float64)
    assert relative_error(measure_image(slope, between)[0, :, 0], torch.tensor([4.5, 2.5])) < 1e-12


def test_phantoms_differ_by_seed_and_are_images() -> None:
    first, again, other = (random_phantom(32, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for phantom in (first, shepp_logan(32)):
        assert (phantom.shape, phantom.dtype) == ((32, 32), torch.float32)
        assert 0.3 < float(phantom.max()) <= 1
        # black around the head
        assert float(phantom.min()) == float(phantom[0].max()) == 0


def exact_adjoint(samples: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
    """Return what gridding approximates: 1 / size * sum_i areas_i s_i exp(2 pi i k_i n / size)."""
    along_y, along_x = spectrum_matrices(SIZE, positions)
    return torch.einsum("bp,pn,pm->bnm", samples * areas, along_y.conj(), along_x.conj()) / SIZE


def error(image: Tensor, truth: Tensor) -> float:
    """Return the root mean square difference."""
    return float((image - truth).double().square().mean().sqrt())


# the error of a Kaiser-Bessel kernel on a grid oversampled twice falls a hundredfold with every two cells
@pytest.mark.parametrize(("width", "tolerance"), [(4, 2e-3), (6, 3e-5), (8, 5e-7)])
def test_gridding_is_the_adjoint_of_the_measurement(width: int, tolerance: float) -> None:
    positions = torch.rand(200, 2, dtype=torch.float64) * SIZE - SIZE / 2
    samples, areas = torch.randn(2, 200, dtype=torch.complex128), torch.rand(200, dtype=torch.float64)
    gridded = KaiserBesselGridding(SIZE, width)(samples, positions, areas)
    expected = exact_adjoint(samples, positions, areas)
    assert relative_error(torch.view_as_real(gridded), torch.view_as_real(expected)) < tolerance


def test_density_compensation_finds_the_areas_of_a_grid() -> None:
    areas = pipe_menon_areas(centered_grid(SIZE).double(), SIZE)
    # every sample of a whole grid stands for one cell, to the resolution of the kernel
    assert float((areas - 1).abs().max()) < 0.1


def test_all_frequencies_give_the_image() -> None:
    image = shepp_logan(SIZE)[None].double() * field_of_view(SIZE)
    positions = centered_grid(SIZE)
    values = torch.view_as_real(measure_spectrum(image, positions))
    assert error(Gridding(SIZE)(values, positions, torch.ones(SIZE**2, 1)), image) < 1e-4
    assert error(ConjugateGradients(SIZE, iterations=3)(values, positions), image) < 1e-8


@pytest.mark.parametrize("method", ["nearest", "linear"])
@pytest.mark.parametrize("domain", ["image", "spectrum"])
def test_interpolation_is_that_of_scipy(
    method: Literal["nearest", "linear"], domain: Literal["image", "spectrum"]
) -> None:
    griddata = pytest.importorskip("scipy.interpolate", reason="scipy is not installed").griddata
    positions = (torch.rand(300, 2, dtype=torch.float64) - 0.5) * (SIZE - 1)
    values = torch.randn(1, 300, 1 if domain == "image" else 2, dtype=torch.float64)
    model = Interpolation(SIZE, method, domain)
    places = model.places.double().numpy()
    linear = griddata(positions.numpy(), values[0].numpy(), places, "linear")
    nearest = griddata(positions.numpy(), values[0].numpy(), places, "nearest")
    expected = linear if method == "linear" else nearest
    expected = np.where(np.isnan(linear), nearest if domain == "image" else 0.0, expected).reshape(SIZE, SIZE, -1)
    if domain == "spectrum":
        spectrum = np.fft.ifftshift(expected[..., 0] + 1j * expected[..., 1])
        expected = (np.fft.fftshift(np.fft.ifft2(spectrum)).real * SIZE * field_of_view(SIZE).numpy())[..., None]
    assert relative_error(model(values, positions)[0], expected[..., 0]) < 1e-10


def test_learned_gridding_starts_as_gridding() -> None:
    trajectory = make_trajectory("radial", "spectrum", SIZE, 2.0)
    image = shepp_logan(SIZE)[None].double() * field_of_view(SIZE, 4.0)
    samples = measure_spectrum(image, trajectory.positions)
    areas = trajectory.areas[:, None].expand(-1, 2)
    model = SpectrumReconstruction(SIZE, spectra=2, channels=(4, 4, 4)).to(DEVICE)
    values = torch.view_as_real(samples).float().to(DEVICE)
    with torch.no_grad():
        started = model(values, trajectory.positions.to(DEVICE), areas.to(DEVICE)).cpu()
    exact = exact_adjoint(samples, trajectory.positions, trajectory.areas).real * field_of_view(SIZE)
    # the Gaussian of 19 taps on the lattice differs by a few percent from sample to sample
    assert error(started, exact) < 0.04
    assert error(exact, torch.zeros_like(exact)) > 0.15


def test_the_apodization_is_the_mean_response_to_one_sample() -> None:
    model = SpectrumReconstruction(SIZE, areas=1, spectra=1, channels=None).to(DEVICE)
    positions = (torch.rand(300, 2) - 0.5) * SIZE / 2
    along_y, along_x = spectrum_matrices(SIZE, positions)
    response = torch.zeros(SIZE, SIZE, dtype=torch.complex128)
    one = torch.tensor([[[1.0, 0.0]]], device=DEVICE)
    for number in range(len(positions)):
        with torch.no_grad():
            parts = model.transform(one, positions[number : number + 1].to(DEVICE), torch.ones(1, 1, device=DEVICE))
        image = torch.complex(*parts[0].cpu().double())
        # turned back, so that all samples lie at the center
        response += image * SIZE * along_y[number][:, None] * along_x[number] / len(positions)
    inside = field_of_view(SIZE).bool()
    # the mean of 300 responses that differ by up to 8 % from sample to sample
    assert float((response[inside] - 1).abs().max()) < 0.02


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_the_lattices_alone_reproduce_smooth_images(factor: float) -> None:
    positions = make_trajectory("spiral", "image", SIZE, factor).positions.float()
    model = ScatteredReconstruction(SIZE, channels=None).to(DEVICE)
    y = torch.arange(SIZE, dtype=torch.float32)[:, None].expand(1, SIZE, SIZE) / SIZE
    with torch.no_grad():
        flat = model(torch.full((1, len(positions), 1), 0.3, device=DEVICE), positions.to(DEVICE)).cpu()
        slope = model(measure_image(y, positions).to(DEVICE), positions.to(DEVICE)).cpu()
    assert relative_error(flat, torch.full((1, SIZE, SIZE), 0.3)) < 1e-4
    # a slope is smoothed at the border only
    assert error(slope[:, 6:-6, 6:-6], y[:, 6:-6, 6:-6]) < 0.01 * factor


def networks() -> dict[str, tuple[nn.Module, int]]:
    """Return learned models with the number of channels of their samples."""
    return {
        "scattered": (ScatteredReconstruction(SIZE, channels=(4, 4, 4)), 1),
        "scattered, alone": (ScatteredReconstruction(SIZE, channels=None), 1),
        "interpolated": (InterpolatedNetwork(SIZE, (4, 4, 4)), 1),
        "spectrum": (SpectrumReconstruction(SIZE, spectra=2, channels=(4, 4, 4)), 2),
        "spectrum, alone": (SpectrumReconstruction(SIZE, spectra=2, channels=None), 2),
        "gridded": (GriddedNetwork(SIZE, channels=(4, 4, 4)), 2),
    }


@pytest.mark.parametrize("name", networks())
def test_every_weight_learns(name: str) -> None:
    model, channels = networks()[name]
    trajectory = make_trajectory("radial", "image" if channels == 1 else "spectrum", SIZE, 4.0)
    areas = trajectory.areas[:, None].expand(-1, 2).float()
    values = torch.rand(2, len(areas), channels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # the last layer starts at zero, so layers before it learn from the second step on
    for _ in range(2):
        optimizer.zero_grad()
        made = model(values, trajectory.positions.float(), areas)
        (made - torch.rand_like(made)).square().mean().backward()
        optimizer.step()
    assert made.shape == (2, SIZE, SIZE)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScatteredReconstruction(SIZE, scales=()), "scales must be positive"),
        (lambda: SpectrumReconstruction(SIZE, scale=0.0), "scale positive"),
        (lambda: ScatteredReconstruction(SIZE, channels=(4, 4)), "three numbers"),
        (lambda: KaiserBesselGridding(SIZE, width=1), "width must be at least 2"),
        (lambda: build_fixed("conjugate_gradients", "image", SIZE, {}), "fit a spectrum"),
        (lambda: shepp_logan(500), "size must lie between"),
        (lambda: make_trajectory("circle", "image", 64, 2.0), "there is no trajectory 'circle'"),  # type: ignore[arg-type]
        (lambda: make_trajectory("radial", "image", 64, 0.5), "factor between 1 and size"),
    ],
)
def test_rejects_wrong_arguments(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
