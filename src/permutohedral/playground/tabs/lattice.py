"""Tab with a point on the lattice."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nicegui import ui

from permutohedral.playground.components import Plane, Slider
from permutohedral.playground.jobs import Code, lattice_code
from permutohedral.playground.panel import Panel
from permutohedral.playground.runner import Check, Steps

if TYPE_CHECKING:
    from permutohedral.playground.compute import Cost

_LEGEND = """
<span><i style="background: #d81b60"></i>the point</span>
<span><i style="background: #ef6c00"></i>its simplex, with the weights of the vertices</span>
<span><i style="border: 2px solid #00897b"></i>the taps of a filter around the nearest vertex</span>
<span><i style="background: #3f51b5"></i>the response of the filter</span>
<span><i style="border: 1.500px dashed #455a64"></i>one and two standard deviations</span>
"""


class LatticePanel(Panel):
    """A point, its simplex and weights, the taps of a filter, and the filter's response."""

    title = "lattice"
    hint = (
        "Move the point with the mouse or the arrow keys. Splat distributes its value to the vertices of its simplex, "
        "blur spreads it to their neighbors, and slice reads the result anywhere: together, nearly a Gaussian."
    )

    def add_controls(self) -> None:
        self._point = 0.35, 0.2
        self._size = Slider("s, neighborhood size of a learned filter", (0, 1, 2, 3), 1, "", self.refresh)

    def add_view(self) -> None:
        self._plane = Plane(self._point, self._place)
        ui.html(_LEGEND, sanitize=False).classes("pg-legend")

    def code(self) -> Code:
        return lattice_code(*self._point, int(self._size.value))

    def compute(self) -> None:
        point, size, number = self._point, int(self._size.value), self.number

        def request(check: Check) -> Steps:
            from permutohedral.playground.compute import describe_point, measured

            with measured() as cost:
                found = describe_point(*point, size)
            yield partial(show, found, cost)

        def show(found: dict[str, Any], cost: Cost) -> None:
            self._plane.draw(found, number)
            weights = " + ".join(f"{weight:.2f}" for weight in found["weights"])
            worst = f"largest difference from the Gaussian <b>{found['worst']:.2f}</b> of 1"
            self.report(cost, f"weights <b>{weights}</b>", worst)

        self.submit(request)

    def _place(self, x: float, y: float) -> None:
        self._point = float(x), float(y)
        self.refresh()
