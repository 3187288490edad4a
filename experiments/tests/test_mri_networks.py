from __future__ import annotations

from typing import Literal

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
    KernelInterpolation,
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
from experiments.mri.phantoms import shepp_logan
from experiments.mri.trajectories import make_trajectory
from permutohedral.errors import InputError

SIZE = 32


def exact_adjoint(samples: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
    """What gridding approximates: 1 / size * sum_i areas_i s_i exp(2 pi i k_i n / size)."""
    along_y, along_x = spectrum_matrices(SIZE, positions)
    return torch.einsum("bp,pn,pm->bnm", samples * areas, along_y.conj(), along_x.conj()) / SIZE


def error(image: Tensor, truth: Tensor) -> float:
    """Root mean square."""
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
    positions = centered_grid(SIZE).double()
    areas = pipe_menon_areas(positions, SIZE).reshape(SIZE, SIZE)
    # every sample of a whole grid stands for one cell, to what the kernel resolves
    assert float((areas - 1).abs().max()) < 0.1


def test_density_compensation_follows_the_analytic_one_where_samples_are_dense() -> None:
    trajectory = make_trajectory("radial", "spectrum", SIZE, 1.0)
    areas = pipe_menon_areas(trajectory.positions, SIZE)
    distance = trajectory.positions.norm(dim=1)
    middle = (distance > 4) & (distance < SIZE / 4)
    ratio = areas[middle] / trajectory.areas[middle]
    assert float((ratio - ratio.mean()).abs().max()) < 0.15
    assert abs(float(ratio.mean()) - 1) < 0.15


def test_gridding_of_all_frequencies_gives_the_image() -> None:
    image = shepp_logan(SIZE)[None].double()
    positions = centered_grid(SIZE)
    values = torch.view_as_real(measure_spectrum(image, positions))
    gridded = Gridding(SIZE)(values, positions, torch.ones(SIZE**2, 1))
    assert error(gridded, image * field_of_view(SIZE)) < 1e-4


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


def test_a_kernel_mean_keeps_constants_and_reaches_every_pixel() -> None:
    positions = make_trajectory("radial", "image", SIZE, 8.0).positions
    image = KernelInterpolation(SIZE)(torch.full((1, len(positions), 1), 0.7), positions)
    assert relative_error(image, torch.full((1, SIZE, SIZE), 0.7)) < 1e-5


def test_conjugate_gradients_solve_what_is_determined() -> None:
    image = shepp_logan(SIZE)[None].double() * field_of_view(SIZE)
    positions = centered_grid(SIZE)
    values = torch.view_as_real(measure_spectrum(image, positions))
    assert error(ConjugateGradients(SIZE, iterations=3)(values, positions), image) < 1e-8


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
def test_the_lattices_alone_say_what_the_samples_say(factor: float) -> None:
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
    """Learned models with the number of channels of what they read."""
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
    # the last layer starts at zero, and what lies before it learns from the second step on
    for _ in range(2):
        optimizer.zero_grad()
        made = model(values, trajectory.positions.float(), areas)
        (made - torch.rand_like(made)).square().mean().backward()
        optimizer.step()
    assert made.shape == (2, SIZE, SIZE)
    silent = [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScatteredReconstruction(SIZE, scales=()), "scales must be positive"),
        (lambda: SpectrumReconstruction(SIZE, scale=0.0), "scale positive"),
        (lambda: ScatteredReconstruction(SIZE, channels=(4, 4)), "three numbers"),
        (lambda: KaiserBesselGridding(SIZE, width=1), "width must be at least 2"),
        (lambda: build_fixed("conjugate_gradients", "image", SIZE, {}), "fit a spectrum"),
    ],
)
def test_rejects_wrong_arguments(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
