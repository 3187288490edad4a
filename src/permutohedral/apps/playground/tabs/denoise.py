"""Tab that removes noise."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from permutohedral.apps.playground.components import Slider, Viewer
from permutohedral.apps.playground.controls import Choice
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.panel import Panel
from permutohedral.apps.playground.runner import Check, Steps

if TYPE_CHECKING:
    from permutohedral.apps.playground.photos import Layer

# values of the controls at the start: the defaults of `permutohedral image denoise`
START: dict[str, Any] = {"sigma": None, "strength": 1.0}
_ESTIMATED = 0.0
_NOISE = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
_STRENGTH = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0)


class DenoisePanel(Panel):
    """Noise removal from the photo, or from the photo with added noise."""

    title = "denoise"
    start = START
    hint = "Removes noise with a shipped network. The middle of the photo comes first, then the rest."

    def add_controls(self) -> None:
        self._strength = Slider("strength", _STRENGTH, START["strength"], "", self.refresh)
        noise = {_ESTIMATED: "estimated", **{sigma: f"{sigma:g} of 255" for sigma in _NOISE}}
        self._sigma = Choice("noise in the photo", noise, _ESTIMATED, self.refresh)
        self._added = Slider("noise to add first", (0.0, *_NOISE), 0.0, " of 255", self.refresh)

    def add_view(self) -> None:
        Viewer(self.session.key, {"before": "denoise/before", "after": "denoise/after"}, ("before", "denoised"))

    def add_example_noise(self) -> None:
        """Add noise to the example photo, which has none."""
        self._added.set(25.0)

    def options(self) -> dict[str, Any]:
        sigma = None if self._sigma.value == _ESTIMATED else float(self._sigma.value)
        return {"sigma": sigma, "strength": self._strength.value}

    def job(self) -> Job:
        # noise of the page is in a file to download
        source = "noisy.png" if self._added.value else self.photo.name
        return Job("denoise_image", (source, "clean.png"), self.shown_options())

    def compute(self) -> None:
        photo, options, added, number = self.photo, self.options(), self._added.value, self.number
        kind = (photo.num_pixels, "denoise")
        folder = self.session.folder(self.title)

        def request(check: Check) -> Steps:
            from permutohedral.apps.playground import compute
            from permutohedral.apps.playground.photos import make_layer

            source, noisy = photo.path, photo.image
            if added:
                source = folder / "noisy.tif"
                noisy = compute.add_noise(photo, added, source)
            yield partial(show_noisy, make_layer(noisy.pixels, noisy.alpha))
            yield from self.preview_first(number, kind, partial(compute.preview_denoised, noisy, options))
            job = Job("denoise_image", (source, folder / "clean.tif"), options)
            yield partial(self.show, compute.denoise_photo(photo, noisy, job, self.progress(check)), kind, number)

        def show_noisy(layer: Layer) -> None:
            self.put("before", layer, "before", number)

        self.submit(request)
