"""Positions of lattice points and taps in the space of the features, and the reach of filters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.lattice.tensors import check_count
from permutohedral.ops.reference import elevation_matrix
from permutohedral.ops.simplices import Simplices


def reach(axis: int, neighborhood_size: int = 2, halo: int = 0) -> float:
    """Return the support of a filter along one feature; points beyond it do not change the result.

    In steps e_i between lattice points, the corners of a simplex lie within one step of each other along every e_i,
    a tap of size s within s, and `halo` adds its own. Along the feature j = axis + 1 a step in some of the e_i spans at
    most sqrt(3/2 j / (j + 1)) feature units, whatever the dimension. Splat and slice take one such span each.

    So a tile with margins this wide has the results of the whole, to the bit if positions have the same origin.

    Args:
        axis: number of the feature, from 0.
        neighborhood_size: s of a learned filter; the separable and the dense Gaussian reach as far as 2.
        halo: see `build_lattice`.

    Returns:
        Feature units, which are standard deviations of the Gaussian.

    >>> import permutohedral as ph
    >>> round(ph.lattice.reach(0), 2), round(ph.lattice.reach(1), 2), round(ph.lattice.reach(2), 2)
    (3.46, 4.0, 4.24)
    """
    for name, number in (("axis", axis), ("neighborhood_size", neighborhood_size), ("halo", halo)):
        check_count(name, number)
    return (2 + neighborhood_size + halo) * math.sqrt(1.5 * (axis + 1) / (axis + 2))


def tap_positions(neighborhood: Neighborhood) -> Tensor:
    """Return the positions of the taps in units of the features: float64 `[filter_size, d]`.

    >>> import permutohedral as ph
    >>> ph.lattice.tap_positions(ph.lattice.Neighborhood(2, 1)).norm(dim=1).round(decimals=6).tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    taps = neighborhood.taps
    steps = (neighborhood.dimension + 1) * taps - taps.sum(dim=1, keepdim=True)
    return _into_features(steps * neighborhood.dilation)


def lattice_positions(simplices: Simplices) -> Tensor:
    """Return the positions of lattice points in units of the features: float64 `[lattice_points, d]`.

    The barycentric mean of the corners of a point is the point itself:

    >>> import permutohedral as ph
    >>> features = torch.rand(50, 3, dtype=torch.float64)
    >>> simplices = ph.build_lattice(features).source
    >>> corners = lattice_positions(simplices)[simplices.vertices.long()]
    >>> bool(torch.allclose((simplices.barycentric[..., None] * corners).sum(dim=1), features))
    True
    """
    first = simplices.keys[:, 1:].detach().cpu().long()
    # the coordinates of a vertex sum to zero
    return _into_features(torch.cat([first, -first.sum(dim=1, keepdim=True)], dim=1))


def step_positions(dimension: int) -> Tensor:
    """Return the steps e_0 to e_d between nearest lattice points in units of the features: float64 `[d + 1, d]`."""
    return _into_features((dimension + 1) * torch.eye(dimension + 1, dtype=torch.long, device="cpu") - 1)


def _into_features(coordinates: Tensor) -> Tensor:
    """Convert integer coordinates in the plane of the lattice, `[rows, d + 1]`, to features `[rows, d]`."""
    elevation = elevation_matrix(coordinates.shape[1] - 1, torch.float64, torch.device("cpu"))
    # the columns of the elevation are orthogonal and of one length
    return coordinates.double() @ elevation / elevation[:, 0].square().sum()
