"""The tab that removes noise."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from permutohedral.playground.code import Code, denoise_code
from permutohedral.playground.components import Viewer
from permutohedral.playground.controls import Choice, Slider
from permutohedral.playground.panel import File, Panel
from permutohedral.playground.runner import Check, Steps
from permutohedral.playground.settings import MODELS, DenoiseSettings

if TYPE_CHECKING:
    from permutohedral.pictures.files import Picture
    from permutohedral.playground.compute.layers import Layer
    from permutohedral.playground.compute.result import Result

_ESTIMATED = 0.0
_NOISE = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
_STRENGTH = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0)
_NAMES = {
    "pcnn_cnn": "pcnn_cnn: fast",
    "deep_small": "deep_small: better, slow",
    "deep_large": "deep_large: best, slowest",
    "auto": "auto: deep, slow",
}


class DenoisePanel(Panel):
    """Removes noise."""

    title = "denoise"
    hint = "Removes noise with a shipped network. Its middle comes first, then the rest."

    def add_controls(self) -> None:
        start = DenoiseSettings()
        self._strength = Slider("strength", _STRENGTH, start.strength, "", self.refresh)
        self._model = Choice("model", {name: _NAMES.get(name, name) for name in MODELS}, start.model, self.refresh)
        noise = {_ESTIMATED: "estimated", **{sigma: f"{sigma:g} of 255" for sigma in _NOISE}}
        self._sigma = Choice("noise in the photo", noise, _ESTIMATED, self.refresh)
        self._added = Slider("noise to add first", (0.0, *_NOISE), start.added, " of 255", self.refresh)

    def add_view(self) -> None:
        Viewer(self.session.key, {"before": "denoise/before", "after": "denoise/after"}, ("noisy photo", "denoised"))

    def take_photo(self) -> None:
        self.put("after", None, "before", 0)

    def add_example_noise(self) -> None:
        """The photo that comes with the page has none."""
        self._added.set(25.0)

    def settings(self) -> DenoiseSettings:
        """What the controls say."""
        sigma = None if self._sigma.value == _ESTIMATED else float(self._sigma.value)
        return DenoiseSettings(self._model.value, self._strength.value, sigma, self._added.value)

    def code(self) -> Code:
        photo = self.session.photo
        assert photo is not None
        return denoise_code(self.settings(), photo.name, photo.is_transparent)

    def compute(self) -> None:
        photo, settings, number = self.session.photo, self.settings(), self.number
        assert photo is not None
        kind = (photo.num_pixels, settings.model)

        def request(check: Check) -> Steps:
            from permutohedral.playground.compute import denoising

            noisy = denoising.add_noise(photo.picture, settings.added)
            level = denoising.noise_of(noisy, settings)
            told = f"noise <b>{255 * level:.1f}</b> of 255"
            yield partial(show_noisy, denoising.noisy_layer(noisy), told)
            yield from self.preview_first(number, kind, partial(denoising.preview, noisy, level, settings))
            result = denoising.denoise_photo(noisy, level, settings, self.progress(check))
            error = "error unknown: add noise to a clean photo to see it"
            if settings.added > 0:
                before, after = (denoising.quality(each, photo.picture) for each in (noisy.pixels, result.pixels))
                error = f"PSNR <b>{before:.2f}</b> before, <b>{after:.2f} dB</b> after"
            yield partial(show_full, noisy, result, told, error)

        def show_noisy(layer: Layer, told: str) -> None:
            self.put("before", layer, "before", number)
            self.tell(None, told)

        def show_full(picture: Picture, result: Result, *told: str) -> None:
            self.session.remember(kind, result.cost.seconds)
            self.put("after", result.layer, "full", number)
            self.tell(result.cost, *told)
            if number == self.number:
                files: list[File] = [("clean.png", partial(_encode, picture, result))]
                self.offer([*files, ("noisy.png", partial(_encode, picture, None))] if settings.added else files)

        self.submit(request)


def _encode(picture: Picture, result: Result | None) -> bytes:
    from permutohedral.playground.compute.layers import encode_png

    return encode_png(picture if result is None else picture.with_pixels(result.pixels))
