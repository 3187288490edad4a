"""A point on the lattice of the plane: its simplex, its weights, the taps around it, and the filter's response."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.geometry import lattice_positions, tap_positions
from permutohedral.playground.settings import LatticeSettings

# the part of the plane that is shown reaches so far from its middle
EXTENT = 3.0
# of the picture of the response
SIDE = 97


def describe_point(settings: LatticeSettings) -> dict[str, Any]:
    """All that the page draws; positions are x and y.

    >>> found = describe_point(LatticeSettings())
    >>> len(found["corners"]), len(found["taps"]), round(sum(found["weights"]), 6)
    (3, 7, 1.0)
    """
    point = torch.tensor([[settings.y, settings.x]], dtype=torch.float64)
    places = _places()
    view = ph.build_lattice(places, neighborhood_size=0, separable=True)
    lattice = ph.build_lattice(point, neighborhood_size=settings.size)
    corners = lattice_positions(lattice.source)[lattice.source.vertices[0].long()]
    weights = lattice.source.barycentric[0]
    nearest = corners[weights.argmax()]
    response = _respond(point, places)
    exact = (-0.5 * (places - point).square().sum(dim=1)).exp()
    return {
        "lattice": _pairs(lattice_positions(view.source)),
        "point": [settings.x, settings.y],
        "corners": _pairs(corners),
        "weights": weights.tolist(),
        "taps": _pairs(tap_positions(lattice.neighborhood) + nearest),
        "tap_weights": ph.gaussian_weight(2, settings.size, torch.float64).tolist(),
        "response": base64.b64encode((255 * response.clamp(0, 1)).round().byte().numpy().tobytes()).decode(),
        "side": SIDE,
        "extent": EXTENT,
        "worst": float((response - exact).abs().max()),
    }


def _places() -> Tensor:
    """The pixels of the picture of the response, y before x."""
    line = torch.linspace(-EXTENT, EXTENT, SIDE, dtype=torch.float64)
    return torch.cartesian_prod(line, line)


def _respond(point: Tensor, places: Tensor) -> Tensor:
    """How much a value at the point counts at each place, where every place around it holds one, too.

    The filter divides by the sum of all weights; here they are compared with the Gaussian, whose largest is 1.
    """
    features = torch.cat([places, point])
    values = torch.zeros(len(features), 1, dtype=torch.float64)
    values[-1] = 1
    filtered: Tensor = ph.gaussian_filter(values, features, places, "none")
    return filtered[:, 0]


def _pairs(positions: Tensor) -> list[list[float]]:
    """x before y, as the page draws."""
    return positions.flip(1).tolist()
