"""Tab with the bilateral filter."""

from __future__ import annotations

from functools import partial
from typing import Any

from permutohedral.apps.playground.components import Slider, Viewer
from permutohedral.apps.playground.controls import Choice
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.panel import Panel
from permutohedral.apps.playground.runner import Check, Steps
from permutohedral.apps.playground.session import REST

# values of the controls at the start: the defaults of `permutohedral image filter`
START: dict[str, Any] = {"sigma_space": 8.0, "sigma_color": 0.1, "method": "auto", "halo": 0}
_METHODS = ("lattice", "dense", "exact", "auto")
_SPACE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0)
_COLOR = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)


class FilterPanel(Panel):
    """Bilateral filter of the photo."""

    title = "filter"
    start = START
    hint = (
        "Averages pixels that are near in place and in color: smooths, and keeps edges. A large sigma over space makes "
        "regions flat, and their edges sharp."
    )

    def add_controls(self) -> None:
        self.controls = {
            "sigma_space": Slider("sigma over space", _SPACE, START["sigma_space"], " px", self.refresh),
            "sigma_color": Slider("sigma over color", _COLOR, START["sigma_color"], "", self.refresh),
            "method": Choice("method", _METHODS, START["method"], self.refresh),
            "halo": Slider("halo", (0, 1, 2), START["halo"], " steps", self.refresh),
        }

    def add_view(self) -> None:
        Viewer(self.session.key, {"before": "photo", "after": "filter/after"}, ("photo", "filtered"))

    def job(self) -> Job:
        return Job("filter_image", (self.photo.name, "smooth.png"), self.shown_options())

    def compute(self) -> None:
        photo, options, number = self.photo, self.options(), self.number
        kind = (photo.num_pixels, options["method"], options["halo"])
        # TIFF is faster to write than PNG
        output = self.session.folder(self.title) / "smooth.tif"
        job = Job("filter_image", (photo.path, output), options)

        def request(check: Check) -> Steps:
            from permutohedral.apps.playground import compute

            yield from self.preview_first(number, kind, partial(compute.preview_filter, photo, options))
            result = compute.filter_photo(photo, job, self.progress(check))
            yield partial(self.show, result, kind, number)
            yield REST
            checked = compute.filter_photo(photo, job, self.progress(check), check=True)
            yield partial(self.report, result.seconds, *checked.details)

        self.submit(request)
