"""Example of a user's project, checked by mypy and pyright in strict mode."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import permutohedral as ph


class Denoiser(nn.Module):
    """Two layers on one lattice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ph.nn.PermutohedralConv(channels, 8, dimension=2 + channels, init="kaiming")
        self.second = ph.nn.PermutohedralConv(8, channels, dimension=2 + channels, normalization="density")
        self.smooth = ph.nn.BilateralFilter(sigma_space=4.0, sigma_color=0.1, learn_sigma=True)

    def forward(self, image: Tensor) -> Tensor:
        features = ph.features.bilateral(image, sigma_space=2.0, sigma_color=0.2)
        lattice: ph.Lattice = ph.build_lattice(features, neighborhood_size=1)
        hidden: Tensor = self.first(ph.features.colors(image), lattice)
        output: Tensor = self.second(hidden.relu(), lattice)
        return output.mT.reshape(image.shape) + self.smooth.sigma_color * image


def describe(lattice: ph.Lattice) -> str:
    """Describe a lattice in one line."""
    statistics: ph.lattice.LatticeStatistics = lattice.statistics()
    points: int = statistics.num_lattice_points
    share: float = statistics.missing_tap_share
    neighborhood: ph.lattice.Neighborhood = lattice.neighborhood
    return f"{points} lattice points, {share:.0%} of {neighborhood.filter_size} taps are missing"


def filter_points(values: Tensor, positions: Tensor, sigma: float) -> Tensor:
    """Filter step by step and in one call; exit if memory is short."""
    try:
        lattice = ph.build_lattice(positions / sigma, neighborhood_size=2, memory_limit=1 << 30)
    except ph.errors.MemoryLimitError as error:
        raise SystemExit(error.message) from error
    weight = ph.lattice.gaussian_weight(positions.shape[-1], 2, torch.float32)
    by_steps: Tensor = ph.slice(ph.convolve(ph.splat(values, lattice), weight, lattice), lattice)
    fused: Tensor = ph.permutohedral_filter(values, lattice, weight, normalization="none")
    smooth: Tensor = ph.gaussian_filter(values, positions / sigma, method="lattice", halo=1)
    return by_steps + fused + smooth


def main(path: Path) -> None:
    """Use every kind of public name once."""
    features = ph.features.join(ph.features.positions((8, 8), sigma=2.0), ph.features.colors(torch.rand(3, 8, 8), 0.1))
    forecast: ph.lattice.MemoryForecast = ph.lattice.forecast_memory(64, dimension=5)
    backends: list[str] = ph.backends.available()
    with ph.backends.use("reference"):
        print(ph.backends.explain(features), forecast.total, backends, path, ph.__version__)
    layer = ph.nn.BilateralConv2d(3, 8, guide_channels=1, learn_sigma=True)
    convolved: Tensor = layer(torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8))
    gaussian: Tensor = ph.nn.GaussianFilter(dimension=5, learn_sigma=True)(torch.rand(64, 3), features)
    filtered: Tensor = ph.bilateral_filter(torch.rand(3, 8, 8), sigma_space=4.0, sigma_color=0.1, guide=None)
    print(convolved.shape, gaussian.shape, filtered.shape, Denoiser(3)(torch.rand(3, 8, 8)).shape)
    print(describe(ph.build_lattice(features)), filter_points(torch.rand(64, 1), features[:, :2], 1.0).shape)


if __name__ == "__main__":
    main(Path("out"))
