"""The tab with the modes of upsampling side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nicegui import ui

from permutohedral.playground.code import Code, upsample_code
from permutohedral.playground.components import Viewer
from permutohedral.playground.controls import Choice, Slider, upload_button
from permutohedral.playground.panel import File, Panel
from permutohedral.playground.runner import Stage
from permutohedral.playground.settings import MODES, Mode, UpsampleSettings
from permutohedral.playground.uploads import read_beside

if TYPE_CHECKING:
    from permutohedral.playground.compute.layers import Layer
    from permutohedral.playground.compute.photos import Photo
    from permutohedral.playground.compute.upsampling import Material, Upsampled

_SIGMA = (0.02, 0.03, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.5)
_INTERPOLATED = "bilinear"


class UpsamplePanel(Panel):
    """Brings small maps to the size of photos."""

    title = "upsample"
    hint = (
        "Brings a small map to the size of the photo, along its edges. Without a map of yours, the colors of the photo "
        "at a fraction of its size are brought back along its brightness, so that the truth is known."
    )

    def add_controls(self) -> None:
        self._map: tuple[Path, str] | None = None
        start = UpsampleSettings()
        self._factor = Slider("smaller by", (4, 8, 16, 32), start.factor, "", self.refresh)
        with ui.element("div").classes("pg-row"):
            upload_button("choose a map", self._take_map)
            self._back = ui.button("without it", icon="close", on_click=self._drop_map).props("flat dense no-caps")
        self._back.set_visibility(False)
        self._gray = Slider("sigma over brightness", _SIGMA, start.sigma_gray, "", self.refresh)
        self._color = Slider("sigma over color", _SIGMA, start.sigma_color, "", self.refresh)
        smoothness = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
        self._smoothness = Slider("smoothness of the solver", smoothness, start.smoothness, "", self.refresh)
        self._mode = Choice("mode of code and download", MODES, start.mode, self.refresh)

    def add_view(self) -> None:
        self._captions: dict[str, ui.html] = {}
        with ui.element("div").classes("pg-grid"):
            for mode in (_INTERPOLATED, *MODES):
                with ui.element("div"):
                    self._captions[mode] = ui.html(f"<b>{mode}</b>", sanitize=False).classes("pg-status")
                    layers = {"before": "upsample/map", "after": f"upsample/{mode}", "truth": "upsample/truth"}
                    Viewer(self.session.key, layers, ("map", mode), group="upsample")

    def take_photo(self) -> None:
        self._drop_map(refresh=False)

    def settings(self) -> UpsampleSettings:
        """What the controls say."""
        return UpsampleSettings(
            int(self._factor.value), self._gray.value, self._color.value, self._smoothness.value, self._mode.value
        )

    def code(self) -> Code:
        photo, settings = self.session.photo, self.settings()
        assert photo is not None
        if self._map is None:
            return upsample_code(settings, "coarse.png", "guide.png", "out.png")
        name = self._map[1]
        return upsample_code(settings, name, photo.name, _result_name(name), photo.is_transparent)

    def compute(self) -> None:
        photo, own, settings, number = self.session.photo, self._map, self.settings(), self.number
        assert photo is not None
        material: list[Material] = []

        def prepare(check: Callable[[], None]) -> tuple[Layer, Upsampled]:
            from permutohedral.playground.compute import upsampling

            material.append(
                upsampling.colors_of(photo, settings.factor) if own is None else upsampling.own_map(*own, photo)
            )
            return upsampling.coarse_layer(material[0]), upsampling.enlarge(material[0])

        def show_coarse(found: tuple[Layer, Upsampled]) -> None:
            self.put("map", found[0], "before", number)
            self._show(_INTERPOLATED, found[1], number)

        def full(mode: Mode, check: Callable[[], None]) -> Upsampled:
            from permutohedral.playground.compute import upsampling

            return upsampling.upsample(material[0], replace(settings, mode=mode), check)

        def show_full(mode: Mode, found: Upsampled) -> None:
            self.session.remember((photo.num_pixels, mode), found.result.cost.seconds)
            self._show(mode, found, number)
            if mode == settings.mode and number == self.number:
                self.tell(found.result.cost, *([] if own is None else ["error unknown: nobody knows the true map"]))
                self.offer(_files(material[0], found, None if own is None else own[1]))

        # in the order of their time
        stages = [
            Stage(partial(full, mode), partial(show_full, mode), self.session.rest_before((photo.num_pixels, mode)))
            for mode in MODES
        ]
        self.submit([Stage(prepare, show_coarse), *stages])

    def _show(self, mode: str, found: Upsampled, number: int) -> None:
        self.put(mode, found.result.layer, "full", number)
        quality = "" if found.psnr is None else f"<span>PSNR <b>{found.psnr:.2f} dB</b></span>"
        seconds = f"<span>{1000 * found.result.cost.seconds:.0f} ms</span>"
        self._captions[mode].set_content(f"<span><b>{mode}</b></span>{quality}{seconds}")

    async def _take_map(self, name: str, content: bytes) -> None:
        path = await read_beside(self.session.keep_upload, name, content)
        assert self.session.photo is not None
        if path is not None and await read_beside(_check_map, path, name, self.session.photo) is not None:
            self._map = path, name
            self._back.set_visibility(True)
            self.put("truth", None, "before", self.number)
            self.refresh()

    def _drop_map(self, refresh: bool = True) -> None:
        assert self.session.photo is not None
        self._map = None
        self._back.set_visibility(False)
        self.put("truth", self.session.photo.layer, "before", self.number)
        if refresh:
            self.refresh()


def _check_map(path: Path, name: str, photo: Photo) -> Material:
    from permutohedral.playground.compute.upsampling import own_map

    return own_map(path, name, photo)


def _result_name(own: str | None) -> str:
    """Of the file that the code writes, and the page offers, for a map of that name; None for the photo's colors."""
    return "out.npy" if own is not None and Path(own).suffix.lower() in (".npy", ".tif", ".tiff") else "out.png"


def _files(material: Material, found: Upsampled, own: str | None) -> list[File]:
    from permutohedral.pictures.files import Picture
    from permutohedral.playground.compute.layers import encode_png
    from permutohedral.playground.compute.upsampling import result_file

    name = _result_name(own)
    files: list[File] = [(name, lambda: result_file(found.values, material, name))]
    if own is None:
        assert material.coarse.picture is not None
        files.append(("coarse.png", partial(encode_png, material.coarse.picture)))
        files.append(("guide.png", partial(encode_png, Picture(material.guide))))
    return files
