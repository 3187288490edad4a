"""The tabs: filter, denoise, segment, upsample."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nicegui import ui
from nicegui.elements.upload_files import FileUpload

from permutohedral.apps.playground import compute
from permutohedral.apps.playground.compute import Result
from permutohedral.apps.playground.controls import Slider, choice, read_upload, upload_button
from permutohedral.apps.playground.jobs import Job, read_defaults
from permutohedral.apps.playground.panel import REST, Panel
from permutohedral.apps.playground.photos import make_layer
from permutohedral.apps.playground.runner import Progress, Steps
from permutohedral.apps.playground.strokes import BRUSHES, NEEDS_STROKES, Stroke, write_strokes

_SPACE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0)
_WIDE = (4.0, 8.0, 12.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 160.0)
_COLOR = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
_LUMA = (0.02, 0.03, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.5)
_WEIGHT = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_STRENGTH = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0)
_NOISE = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
_ESTIMATED = "estimated"
# in the order of their time
MODES = ("gaussian", "affine", "solver")
_COLORS = ["#{:02x}{:02x}{:02x}".format(*color) for color in BRUSHES]


class FilterPanel(Panel):
    """Bilateral filter of the photo."""

    title, names = "filter", ("photo", "filtered")
    start = read_defaults("filter_image", "sigma_space", "sigma_color", "method", "halo")
    hint = (
        "Averages pixels that are near in place and in color: smooths, and keeps edges. A large sigma over space makes "
        "regions flat, and their edges sharp."
    )

    def add_controls(self) -> None:
        self.add_sliders(
            ("sigma_space", "sigma over space", _SPACE, " px"), ("sigma_color", "sigma over color", _COLOR, "")
        )
        methods = ("lattice", "dense", "exact", "auto")
        self.controls["method"] = choice("method", methods, self.start["method"], self.refresh)
        self.add_sliders(("halo", "halo", (0, 1, 2), " steps"))

    def job(self) -> Job:
        return Job("filter_image", (self.photo.name, "smooth.png"), self.shown_options())

    def compute(self, options: dict[str, Any], progress: Progress) -> Steps:
        photo = self.photo
        # TIFF is faster to write than PNG
        job = Job("filter_image", (photo.path, self.session.folder(self.title) / "smooth.tif"), options)
        yield from self.preview_first(options, partial(compute.preview_filter, photo, options))
        result = compute.filter_photo(photo, job, progress)
        yield result
        yield REST
        checked = compute.filter_photo(photo, job, progress, check=True)
        yield replace(result, kind="details", details=checked.details)


class DenoisePanel(Panel):
    """Noise removal from the photo, or from the photo with added noise."""

    title, names = "denoise", ("before", "denoised")
    start = read_defaults("denoise_image", "sigma", "strength")
    hint = "Removes noise with a shipped network. The middle of the photo comes first, then the rest."

    def add_controls(self) -> None:
        self.add_sliders(("strength", "strength", _STRENGTH, ""))
        levels = [_ESTIMATED, *(f"{sigma:g}" for sigma in _NOISE[1:])]
        self.controls["sigma"] = choice("noise in the photo (of 255)", levels, _ESTIMATED, self.refresh)
        self.controls["added"] = Slider("noise to add first", _NOISE, 0.0, " of 255", self.refresh)

    def options(self) -> dict[str, Any]:
        sigma = self.controls["sigma"].value
        return {**super().options(), "sigma": None if sigma == _ESTIMATED else float(sigma)}

    def job(self) -> Job:
        # noise of the page is in a file to download
        source = "noisy.png" if self.controls["added"].value else self.photo.name
        return Job("denoise_image", (source, "clean.png"), self.shown_options())

    def compute(self, options: dict[str, Any], progress: Progress) -> Steps:
        photo, added, folder = self.photo, self.controls["added"].value, self.session.folder(self.title)
        source, noisy = photo.path, photo.image
        if added:
            source = folder / "noisy.tif"
            noisy = compute.add_noise(photo, added, source)
        yield Result(make_layer(noisy.pixels, noisy.alpha), "before")
        yield from self.preview_first(options, partial(compute.preview_denoised, noisy, options))
        yield compute.denoise_photo(
            photo, noisy, Job("denoise_image", (source, folder / "clean.tif"), options), progress
        )


class SegmentPanel(Panel):
    """Segmentation of the photo from strokes."""

    title, names = "segment", ("photo", "labels")
    start = read_defaults(
        "segment_image", "sigma_space", "sigma_color", "strength", "smoothness", "certainty", "num_iterations"
    )
    hint = "Draw over regions, each with its own brush: a dense random field spreads them to pixels of similar color."

    def add_controls(self) -> None:
        self._strokes: list[Stroke] = []
        self._brush = 0
        with ui.row():
            self._brushes = [
                ui.element("button")
                .classes("pg-brush")
                .style(f"background: {color}")
                .props(f'aria-label="brush {number + 1}"')
                .on("click", partial(self._choose, number))
                for number, color in enumerate(_COLORS)
            ]
        with ui.row():
            for text, icon, end in (("undo", "undo", -1), ("clear", "delete_outline", 0)):
                ui.button(text, icon=icon, on_click=lambda end=end: self.set_strokes(self._strokes[:end]))
        radii = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
        self.controls["radius"] = Slider("brush", radii, 6.0, " px", lambda: self._choose(self._brush))
        self.add_sliders(
            ("sigma_space", "sigma over space", _WIDE, " px"),
            ("sigma_color", "sigma over color", _COLOR[:12], ""),
            ("strength", "weight of similar colors", _WEIGHT, ""),
            ("smoothness", "weight of neighbors", _WEIGHT, ""),
            ("certainty", "certainty of strokes", (0.6, 0.7, 0.8, 0.9, 0.95, 0.99), ""),
            ("num_iterations", "iterations", (1, 2, 3, 5, 10, 20), ""),
        )

    def reset(self) -> None:
        self.set_strokes([])
        self._choose(self._brush)
        super().reset()

    def set_strokes(self, strokes: list[Stroke]) -> None:
        """Replace all strokes."""
        self._strokes = strokes
        drawn = [
            {"points": stroke.points, "radius": stroke.radius, "color": _COLORS[stroke.label]} for stroke in strokes
        ]
        self.viewer.show(strokes=drawn)
        self.refresh()

    def take_stroke(self, drawn: dict[str, Any]) -> None:
        points = tuple((float(x), float(y)) for x, y in drawn["points"])
        self.set_strokes([*self._strokes, Stroke(int(drawn["label"]), float(drawn["radius"]), points)])

    def job(self) -> Job:
        return Job("segment_image", (self.photo.name, "out.png"), {"labels": "labels.png", **self.shown_options()})

    def compute(self, options: dict[str, Any], progress: Progress) -> Steps:
        photo, strokes, folder = self.photo, tuple(self._strokes), self.session.folder(self.title)
        if len({stroke.label for stroke in strokes}) < 2:
            yield Result(None, details=(NEEDS_STROKES,))
            return
        written = {"labels": folder / "labels.png", "overlay": folder / "overlay.tif"}
        yield from self.preview_first(options, partial(compute.preview_segments, photo, strokes, options))
        write_strokes(strokes, *photo.size, written["labels"])
        job = Job("segment_image", (photo.path, folder / "out.png"), {**options, **written})
        yield compute.segment_photo(job, progress)

    def _choose(self, number: int) -> None:
        self._brush = number
        for other, brush in enumerate(self._brushes):
            brush.classes(**{"add" if other == number else "remove": "on"})
        self.viewer.show(brush={"label": number, "radius": self.controls["radius"].value, "color": _COLORS[number]})


class UpsamplePanel(Panel):
    """Upsampling of a small map along the edges of the photo."""

    title, names = "upsample", ("map", "upsampled")
    start = read_defaults("upsample_map", "mode", "sigma_luma", "sigma_chroma", "smoothness")
    hint = (
        "Upsamples a small map to the size of the photo, along its edges. Without a map, the colors of the photo at a "
        "fraction of its size are upsampled along its brightness, so that the truth is known."
    )

    def add_controls(self) -> None:
        self._map: tuple[Path, str] | None = None
        self.controls["factor"] = Slider("smaller by", (4, 8, 16, 32), 16, "", self.refresh)
        with ui.row():
            upload_button("choose a map", self._take_map)
            self._back = ui.button("without it", icon="close", on_click=self._drop_map)
        self._back.set_visibility(False)
        self.add_sliders(
            ("sigma_luma", "sigma over brightness", _LUMA, ""),
            ("sigma_chroma", "sigma over color", _LUMA, ""),
            ("smoothness", "smoothness of the solver", (0.03, 0.1, 0.3, 1.0, 3.0, 10.0), ""),
        )
        self.controls["mode"] = choice("mode", MODES, self.start["mode"], self.refresh)

    def reset(self) -> None:
        self._drop_map()
        super().reset()

    def job(self) -> Job:
        coarse, guide = ("coarse.png", "guide.png") if self._map is None else (self._map[1], self.photo.name)
        return upsample_job(coarse, guide, f"out{_result_ending(coarse)}", self.shown_options())

    def compute(self, options: dict[str, Any], progress: Progress) -> Steps:
        photo, given, folder = self.photo, self._map, self.session.folder(self.title)
        if given is None:
            material = compute.shrink_colors(photo, int(self.controls["factor"].value), folder)
        else:
            material = compute.user_map(*given, photo)
        yield Result(compute.coarse_layer(material), "before")
        yield from self.preview_first(options)
        output = folder / f"out{_result_ending(material.coarse)}"
        yield compute.upsample(material, upsample_job(material.coarse, material.guide, output, options), progress)

    async def _take_map(self, file: FileUpload) -> None:
        found = await read_upload(self.session, file, partial(compute.user_map, photo=self.photo))
        if found is not None:
            self._map = found[0], file.name
            self._back.set_visibility(True)
            self.refresh()
            self.session.keep_upload("map", found[0])

    def _drop_map(self) -> None:
        self._map = None
        self._back.set_visibility(False)
        self.refresh()


def upsample_job(coarse: str | Path, guide: str | Path, output: str | Path, options: dict[str, Any]) -> Job:
    """Return the job of the tab "upsample"; smoothness is an option of the mode "solver"."""
    if options.get("mode", "solver") != "solver":
        options = {**options, "smoothness": None}
    return Job("upsample_map", (coarse, output), {"guide": guide, **options})


def _result_ending(coarse: str | Path) -> str:
    """Return the ending of the result: numbers of a map need an array, colors an image."""
    return ".npy" if Path(coarse).suffix.lower() in (".npy", ".tif", ".tiff") else ".png"
