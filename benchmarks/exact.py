"""The exact Gaussian filter at some points, which the errors of approximate filters are measured against."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.inputs import FilterProblem

# a source farther away than this, in standard deviations, weighs less than 2e-8 of one at the point itself
_REACH = 6.0
_ROWS_PER_BLOCK = 16


class ExactGaussian:
    """The normalized Gaussian filter of a problem at randomly drawn points.

    Args:
        problem: the points and their values.
        num_pairs: about how many pairs of points to compute, which sets the number of points drawn.
        most_rows: upper bound of that number.
    """

    def __init__(self, problem: FilterProblem, num_pairs: float = 1e8, most_rows: int = 4096) -> None:
        features = problem.features.double()
        # only sources within reach along the first axis are looked at, so the points are taken along it
        order = features[:, 0].argsort()
        sources = features[order]
        ones = torch.ones_like(sources[:, :1])
        masses = torch.cat([problem.values.double()[order], ones], dim=1)
        extent = float(sources[-1, 0] - sources[0, 0])
        within_reach = min(1.0, 2 * _REACH / max(extent, 1e-9)) * features.shape[0]
        num_rows = max(_ROWS_PER_BLOCK, min(most_rows, features.shape[0], int(num_pairs / within_reach)))
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randperm(features.shape[0], generator=generator)[:num_rows].to(features.device)
        self.rows = drawn[features[drawn, 0].argsort()]
        filtered = [_filter_at(features[rows], sources, masses) for rows in self.rows.split(_ROWS_PER_BLOCK)]
        self.values = torch.cat(filtered)

    def error(self, result: Tensor) -> float:
        """Return the relative L2 error of a filter's `result [points, channels]`."""
        difference = result[self.rows.to(result.device)].double().to(self.values.device) - self.values
        return float(difference.norm() / self.values.norm())


def _filter_at(targets: Tensor, sources: Tensor, masses: Tensor) -> Tensor:
    """Filter at `targets [rows, d]`; `sources` ascend along the first axis, the last column of `masses` is 1."""
    reach = torch.stack([targets[0, 0] - _REACH, targets[-1, 0] + _REACH])
    first, last = torch.searchsorted(sources[:, 0].contiguous(), reach).tolist()
    near = sources[first:last]
    products = torch.addmm(near.square().sum(dim=1), targets, near.t(), alpha=-2)
    squares = products.add_(targets.square().sum(dim=1, keepdim=True))
    sums = squares.mul_(-0.5).exp_() @ masses[first:last]
    return sums[:, :-1] / sums[:, -1:]
