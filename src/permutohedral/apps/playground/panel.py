"""Base class of the tabs: controls, viewer, status line, downloads, and the code that does the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any, ClassVar

from nicegui import ui

from permutohedral.apps.playground.compute import Result
from permutohedral.apps.playground.controls import Slider, Viewer
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.photos import Layer, Photo
from permutohedral.apps.playground.runner import Progress, Steps
from permutohedral.apps.playground.session import Session

# seconds above which a preview comes first
SLOW = 0.06
# seconds above which the full result waits until the slider rests
VERY_SLOW = 0.5
# seconds without a move after which a slider rests
REST = 0.25


class Panel:
    """One tab of the page."""

    title = ""
    hint = ""
    # of the two sides of the viewer
    names = ("photo", "")
    # options with the defaults of the command
    start: ClassVar[dict[str, Any]] = {}

    def __init__(self, session: Session) -> None:
        self.session, self.number = session, 0
        self.is_open, self._stale = False, True
        # seconds of the last full result, by options that change its time
        self._seconds: dict[Any, float] = {}
        # controls by the option that they set, and others
        self.controls: dict[str, Slider | ui.select] = {}
        with ui.element("div").classes("pg-panel").props(f'data-tab="{self.title}"'):
            with ui.element("div").classes("pg-card pg-controls"):
                ui.label(self.hint).classes("pg-hint")
                self.add_controls()
                starts = {name: control.value for name, control in self.controls.items()}
                ui.button("defaults", icon="restart_alt", on_click=lambda: self.set_values(starts))
            with ui.element("div").classes("pg-card"):
                self.viewer = Viewer(self.names, self.take_stroke)
                self._status = ui.html("", sanitize=False).classes("pg-status").props('role="status"')
            with ui.element("div").classes("pg-card"):
                self._command = self._add_text("command line", lambda: self.job().command)
                self._python = self._add_text("Python", lambda: self.job().python)
                self._links = ui.row()

    def add_controls(self) -> None:
        """Add the controls to the card on the left."""
        raise NotImplementedError

    def job(self) -> Job:
        """Return the job for the current controls, whose code is shown."""
        raise NotImplementedError

    def compute(self, options: dict[str, Any], progress: Progress) -> Steps:
        """Compute the results in another thread; see `Request`."""
        raise NotImplementedError

    def take_stroke(self, drawn: dict[str, Any]) -> None:
        """Take a stroke, in tabs with a brush."""

    def options(self) -> dict[str, Any]:
        """Return the values of the controls by option."""
        return {option: self.controls[option].value for option in self.start}

    def shown_options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults of the command."""
        return {name: value for name, value in self.options().items() if value != self.start[name]}

    def add_sliders(self, *sliders: tuple[str, str, Sequence[float], str]) -> None:
        """Add sliders: option, text, numbers and unit; they start at the defaults of the command."""
        for option, name, numbers, unit in sliders:
            self.controls[option] = Slider(name, numbers, self.start[option], unit, self.refresh)

    def set_values(self, values: dict[str, Any]) -> None:
        """Set some controls."""
        for name, value in values.items():
            self.controls[name].set_value(value)

    @property
    def photo(self) -> Photo:
        """The photo of the session."""
        assert self.session.photo is not None
        return self.session.photo

    def open(self, is_open: bool) -> None:
        """Compute if needed, now that the tab is shown or hidden."""
        self.is_open = is_open
        if is_open and self._stale:
            self.refresh()

    def reset(self) -> None:
        """Prepare for another photo; compute now, or when the tab is opened."""
        self._seconds.clear()
        height, width = self.photo.size
        self.viewer.show(size=[width, height])
        self._put("before", self.photo.layer)
        self._put("full", None)
        self.refresh()

    def refresh(self) -> None:
        """Compute for the current controls, and show the code."""
        self._stale = not self.is_open or self.session.photo is None
        if self._stale:
            return
        self.number += 1
        self.session.runner.submit(self._request, partial(self._show, self.number))
        job = self.job()
        # lines break between words, not at the hyphens of options
        self._command.set_content(" ".join(f"<span>{escape(word)}</span>" for word in job.command.split(" ")))
        self._python.set_content(escape(job.python.strip()))
        self._status.classes(add="pg-old")
        self._links.set_visibility(False)

    def preview_first(self, options: dict[str, Any], preview: Callable[[], Layer] | None = None) -> Steps:
        """Yield a preview if these options are slow or new; if very slow, wait until the slider rests."""
        seconds = self._seconds.get(_time_key(options))
        if preview is not None and (seconds is None or seconds > SLOW):
            yield Result(preview(), "preview")
        yield REST if seconds is not None and seconds > VERY_SLOW else 0.0

    def _request(self, progress: Progress) -> Steps:
        options = self.options()
        for found in self.compute(options, progress):
            if isinstance(found, Result) and found.kind == "full" and found.layer is not None:
                self._seconds[_time_key(options)] = found.seconds
            yield found

    def _show(self, number: int, result: Result) -> None:
        if result.kind != "details":
            self._put(result.kind, result.layer, number)
        if result.kind in ("full", "details"):
            time = f"time <b>{_format_seconds(result.seconds)}</b>" if result.seconds else ""
            parts = [part for part in (time, *result.details) if part]
            self._status.set_content("".join(f"<span>{part}</span>" for part in parts))
        if result.kind == "full" and number == self.number:
            self._status.classes(remove="pg-old")
            self._offer(result.files)

    def _put(self, kind: str, layer: Layer | None, number: int = 0) -> None:
        """Show an image in the viewer, None for none; `kind` is "before", "preview" or "full"."""
        side = "before" if kind == "before" else "after"
        name = f"{kind}.bmp"
        self.session.files.pop((self.title, name), None)
        if layer is None:
            self.viewer.show(**{side: None})
            return
        self.session.files[self.title, name] = lambda: layer.content
        # each address is new, since the browser keeps the image of an address
        url = f"{self._url(name)}?{next(self.session.numbers)}"
        self.viewer.show(**{side: {"url": url, "region": layer.region, "kind": kind, "number": number}})

    def _offer(self, files: dict[str, Callable[[], bytes]]) -> None:
        """Offer downloads: names, and functions that return their content."""
        self._links.clear()
        self._links.set_visibility(True)
        with self._links:
            for name, make in files.items():
                self.session.files[self.title, name] = make
                ui.button(name, icon="download").props(f'href="{self._url(name)}" download="{name}"')

    def _url(self, name: str) -> str:
        return f"/files/{self.session.key}/{self.title}/{name}"

    def _add_text(self, title: str, text: Callable[[], str]) -> ui.html:
        def copy() -> None:
            ui.clipboard.write(text())
            ui.notify("copied", timeout=800)

        with ui.element("div").classes("pg-caption"):
            ui.label(f"The same {'in' if title == 'Python' else 'on the'} {title}")
            button = ui.button("copy", icon="content_copy", on_click=copy)
            button.props(f'size=sm aria-label="copy {title}"')
        return ui.html("", sanitize=False).classes("pg-code").props(f'data-code="{title}"')


def _time_key(options: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(options.get(name) for name in ("method", "halo", "mode"))


def _format_seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
