"""What a tab gets of one computation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from permutohedral.playground.compute.layers import Layer, make_layer, on_white
from permutohedral.playground.compute.measure import Cost, measured


@dataclass(frozen=True)
class Result:
    """A picture of the size of the photo.

    Attributes:
        pixels: `[1 or 3, height, width]`.
        layer: the same for the page, on white where it is transparent.
        cost: of the computation, without the page's share.
    """

    pixels: Tensor
    layer: Layer
    cost: Cost


def run(compute: Callable[[], Tensor], alpha: Tensor | None = None) -> Result:
    """Compute pixels of this alpha, and measure it."""
    with measured() as cost:
        pixels = compute()
    return Result(pixels, make_layer(on_white(pixels, alpha)), cost)
