"""Tab that upsamples a small map."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nicegui import ui
from nicegui.elements.upload_files import FileUpload

from permutohedral.apps.playground.components import Slider, Viewer
from permutohedral.apps.playground.controls import Choice, read_upload, upload_button
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.panel import Panel
from permutohedral.apps.playground.runner import Check, Steps

if TYPE_CHECKING:
    from permutohedral.apps.playground.compute import Material
    from permutohedral.apps.playground.photos import Photo

# values of the controls at the start: the defaults of `permutohedral map upsample`
START: dict[str, Any] = {"mode": "solver", "sigma_luma": 0.12, "sigma_chroma": 0.05, "smoothness": 0.3}
# in the order of their time
MODES = ("gaussian", "affine", "solver")
_SIGMA = (0.02, 0.03, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.5)


def upsample_job(coarse: str | Path, guide: str | Path, output: str | Path, options: dict[str, Any]) -> Job:
    """Return the job of this tab; smoothness is an option of the mode "solver"."""
    if options.get("mode", START["mode"]) != "solver":
        options = {**options, "smoothness": None}
    return Job("upsample_map", (coarse, output), {"guide": guide, **options})


class UpsamplePanel(Panel):
    """Upsampling of a small map along the edges of the photo."""

    title = "upsample"
    start = START
    hint = (
        "Upsamples a small map to the size of the photo, along its edges. Without a map, the colors of the photo at a "
        "fraction of its size are upsampled along its brightness, so that the truth is known."
    )

    def add_controls(self) -> None:
        self._map: tuple[Path, str] | None = None
        self._factor = Slider("smaller by", (4, 8, 16, 32), 16, "", self.refresh)
        with ui.element("div").classes("pg-row"):
            upload_button("choose a map", self._take_map)
            self._back = ui.button("without it", icon="close", on_click=self._drop_map).props("flat dense no-caps")
        self._back.set_visibility(False)
        smoothness = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
        self.controls = {
            "sigma_luma": Slider("sigma over brightness", _SIGMA, START["sigma_luma"], "", self.refresh),
            "sigma_chroma": Slider("sigma over color", _SIGMA, START["sigma_chroma"], "", self.refresh),
            "smoothness": Slider("smoothness of the solver", smoothness, START["smoothness"], "", self.refresh),
            "mode": Choice("mode", MODES, START["mode"], self.refresh),
        }

    def add_view(self) -> None:
        layers = {"before": "upsample/map", "after": "upsample/after"}
        Viewer(self.session.key, layers, ("map", "upsampled"))

    def take_photo(self) -> None:
        self._drop_map(refresh=False)

    def job(self) -> Job:
        coarse, guide = ("coarse.png", "guide.png") if self._map is None else (self._map[1], self.photo.name)
        return upsample_job(coarse, guide, f"out{_result_ending(coarse)}", self.shown_options())

    def compute(self) -> None:
        photo, given, options, number = self.photo, self._map, self.options(), self.number
        factor, folder = int(self._factor.value), self.session.folder(self.title)
        kind = (photo.num_pixels, options["mode"])

        def request(check: Check) -> Steps:
            from permutohedral.apps.playground import compute

            material = compute.shrink_colors(photo, factor, folder) if given is None else _read_map(*given, photo)
            yield partial(self.put, "map", compute.coarse_layer(material), "before", number)
            yield self.session.rest_before(kind)
            output = folder / f"out{_result_ending(material.coarse)}"
            job = upsample_job(material.coarse, material.guide, output, options)
            yield partial(self.show, compute.upsample(material, job, self.progress(check)), kind, number)

        self.submit(request)

    async def _take_map(self, file: FileUpload) -> None:
        found = await read_upload(self.session, file, partial(_read_map, photo=self.photo))
        if found is not None:
            self._map = found[0], file.name
            self._back.set_visibility(True)
            self.refresh()
            self.session.keep_upload("map", found[0])

    def _drop_map(self, refresh: bool = True) -> None:
        self._map = None
        self._back.set_visibility(False)
        self.put("after", None, "before", 0)
        if refresh:
            self.refresh()


def _read_map(path: Path, name: str, photo: Photo) -> Material:
    from permutohedral.apps.playground.compute import user_map

    return user_map(path, name, photo)


def _result_ending(coarse: str | Path) -> str:
    """Return the ending of the result: numbers of a map need an array, colors an image."""
    return ".npy" if Path(coarse).suffix.lower() in (".npy", ".tif", ".tiff") else ".png"
