"""The settings of a dense field over labels. No torch here: the playground is up before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldSettings:
    """The field over labels and probabilities.

    Attributes:
        certainty: how probable a given label is.
        sigma_space: of the bilateral kernel, in pixels.
        sigma_range: of the bilateral kernel, white being 1.
        strength: weight of the bilateral kernel.
        smoothness: weight of the spatial kernel, of 3 pixels.
        steps: of the mean field.
    """

    certainty: float = 0.7
    sigma_space: float = 12.0
    sigma_range: float = 0.03
    strength: float = 4.0
    smoothness: float = 1.0
    steps: int = 10
