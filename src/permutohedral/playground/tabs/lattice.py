"""The tab with the lattice itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nicegui import ui

from permutohedral.playground.code import Code, lattice_code
from permutohedral.playground.components import Plane
from permutohedral.playground.controls import Slider
from permutohedral.playground.panel import Panel
from permutohedral.playground.runner import Check, Steps
from permutohedral.playground.settings import LatticeSettings

if TYPE_CHECKING:
    from permutohedral.playground.compute.measure import Cost

_LEGEND = """
<span><i style="background: #d81b60"></i>the point</span>
<span><i style="background: #ef6c00"></i>its simplex, with the weights of the corners</span>
<span><i style="border: 2px solid #00897b"></i>the taps of a filter around the nearest corner</span>
<span><i style="background: #3f51b5"></i>how much the point counts there</span>
<span><i style="border: 1.500px dashed #455a64"></i>one and two standard deviations</span>
"""


class LatticePanel(Panel):
    """A point, its simplex, its weights, the taps, and the filter's response."""

    title = "lattice"
    hint = (
        "Move the point with the mouse or the arrow keys. Splat gives its value to the corners of the simplex around "
        "it, blur carries it on to their neighbors, and slice reads it wherever it is wanted: together, nearly a "
        "Gaussian."
    )

    def add_controls(self) -> None:
        self._settings = LatticeSettings()
        self._size = Slider("s, reach of a learned filter", (0, 1, 2, 3), self._settings.size, "", self._resize)

    def add_view(self) -> None:
        self._plane = Plane((self._settings.x, self._settings.y), self._place)
        ui.html(_LEGEND, sanitize=False).classes("pg-legend")

    def code(self) -> Code:
        return lattice_code(self._settings)

    def compute(self) -> None:
        settings, number = self._settings, self.number

        def request(check: Check) -> Steps:
            from permutohedral.playground.compute.lattices import describe_point
            from permutohedral.playground.compute.measure import measured

            with measured() as cost:
                found = describe_point(settings)
            yield partial(show, found, cost)

        def show(found: dict[str, Any], cost: Cost) -> None:
            self._plane.draw(found, number)
            weights = " + ".join(f"{weight:.2f}" for weight in found["weights"])
            self.tell(cost, f"weights <b>{weights}</b>", f"farthest from the Gaussian <b>{found['worst']:.2f}</b> of 1")

        self.submit(request)

    def _place(self, x: float, y: float) -> None:
        self._settings = replace(self._settings, x=float(x), y=float(y))
        self.refresh()

    def _resize(self) -> None:
        self._settings = replace(self._settings, size=int(self._size.value))
        self.refresh()
