"""Base class of the tabs: controls, view, status line, downloads, and the code that does the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from nicegui import ui

from permutohedral.apps.playground.components import Progress, Slider, Tab
from permutohedral.apps.playground.controls import Choice
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.runner import Check, Request, Show, Steps
from permutohedral.apps.playground.session import Session

if TYPE_CHECKING:
    from permutohedral.apps.playground.compute import Result
    from permutohedral.apps.playground.photos import Layer, Photo

# seconds after a move: rendering the code earlier would delay the image
_CODE_DELAY = 0.1


class Panel:
    """One tab of the page."""

    title = ""
    hint = ""
    # values of the controls at the start: the defaults of the command
    start: ClassVar[dict[str, Any]] = {}

    def __init__(self, session: Session) -> None:
        self.session = session
        self.number = 0
        # results of earlier requests are not shown
        self._oldest = 0
        self._stale, self._open, self._code_is_old = True, False, False
        # controls by the option that they set
        self.controls: dict[str, Slider | Choice] = {}
        # whether something is computed, and the share that is done, as the page shows it
        self._shown_progress: tuple[bool, float | None] = False, None
        with Tab(self.title) as self._root:
            with ui.element("div").classes("pg-card pg-controls"):
                ui.label(self.hint).classes("pg-hint")
                self.add_controls()
            with ui.element("div").classes("pg-card"):
                self._progress = Progress()
                self.add_view()
                self._status = ui.html("", sanitize=False).classes("pg-status").props('role="status"')
            with ui.element("div").classes("pg-card"):
                self._add_code()

    def add_controls(self) -> None:
        """Add the controls to the card on the left."""
        raise NotImplementedError

    def add_view(self) -> None:
        """Add the view to the card on the right."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return the values of the controls by option."""
        return {option: control.value for option, control in self.controls.items()}

    def shown_options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults of the command."""
        return {name: value for name, value in self.options().items() if value != self.start[name]}

    def job(self) -> Job:
        """Return the job for the current controls, whose code is shown."""
        raise NotImplementedError

    def compute(self) -> None:
        """Submit a request for the current controls."""
        raise NotImplementedError

    def take_photo(self) -> None:
        """Drop everything but the result that belongs to the previous photo."""

    @property
    def photo(self) -> Photo:
        """The photo of the session."""
        assert self.session.photo is not None
        return self.session.photo

    def open(self) -> None:
        """Show the tab."""
        self._root.set_open(True)
        self._open = True
        if self._stale:
            self.refresh()

    def hide(self) -> None:
        """Hide the tab."""
        self._root.set_open(False)
        self._open = False

    def submit(self, request: Request) -> None:
        """Compute this next; its results are not shown if `drop` is called meanwhile."""
        number = self.number

        def wanted(check: Check) -> Steps:
            for found in request(check):
                yield found if isinstance(found, float) else partial(self._show_wanted, number, found)

        self.session.submit(wanted)

    def drop(self) -> None:
        """Show no results of earlier requests: they belong to another photo, or to removed strokes."""
        self._oldest = self.number + 1
        self.session.submit(lambda check: iter(()))

    def _show_wanted(self, number: int, show: Show) -> None:
        if number >= self._oldest:
            show()

    def preview_first(self, number: int, kind: Any, layer: Callable[[], Layer]) -> Steps:
        """Show a preview if this kind of computation is slow; if very slow, wait until the slider rests."""
        if self.session.is_slow(kind):
            yield partial(self.put, "after", layer(), "preview", number)
        yield self.session.rest_before(kind)

    def show(self, result: Result, kind: Any, number: int, side: str = "after") -> None:
        """Show a full result, and offer its files unless a newer request was submitted."""
        self.session.remember(kind, result.seconds)
        self.put(side, result.layer, "full", number)
        self.report(result.seconds, *result.details)
        if number == self.number:
            self.offer(result.files)

    def progress(self, check: Check) -> Callable[[float], None]:
        """Return a callback that shows the share that is done, and ends a request that was dropped."""

        def show(share: float) -> None:
            check()
            self.session.on_page(self.set_busy, True, share)

        return show

    def reset(self) -> None:
        """Prepare for another photo; compute again when the tab is opened."""
        self._stale = True
        self.drop()
        self.put("after", None, "before", 0)
        self.take_photo()

    def refresh(self) -> None:
        """Compute for the current controls, and show the code."""
        self._stale = not self._open or self.session.photo is None
        if self._stale:
            return
        self.number += 1
        self._code_is_old = True
        self.compute()
        asyncio.get_running_loop().call_later(_CODE_DELAY, self._show_code)

    def put(self, side: str, layer: Layer | None, kind: str, number: int) -> None:
        """Show a layer of this tab; see `LayerStream.put`."""
        self.session.stream.put(f"{self.title}/{side}", layer, kind, number)

    def _show_code(self) -> None:
        # a closed tab has no photo
        if not self._code_is_old or self.session.photo is None:
            return
        self._code_is_old = False
        job = self.job()
        self._command.set_content(_wrap_words(job.command))
        self._python.set_content(escape(job.python.strip()))
        self._status.classes(add="pg-old")
        self.offer({})

    def offer(self, files: dict[str, Callable[[], bytes]]) -> None:
        """Offer downloads: names, and functions that return their content."""
        for link, (name, make) in zip(self._links, files.items(), strict=False):
            self.session.files[self.title, name] = make
            link.set_text(name)
            link.props(f'href="/files/{self.session.key}/{self.title}/{name}" download="{name}"')
        for number, link in enumerate(self._links):
            link.set_visibility(number < len(files))

    def report(self, seconds: float | None, *details: str) -> None:
        """Show time and details (HTML without user input) of the last result."""
        self._show_code()
        parts = details if seconds is None else (f"time <b>{_format_seconds(seconds)}</b>", *details)
        self._status.set_content("".join(f"<span>{part}</span>" for part in parts if part))
        self._status.classes(remove="pg-old")

    def set_busy(self, busy: bool, share: float | None = None) -> None:
        """Show whether something is computed, and the share that is done if it is known."""
        if (busy, share) != self._shown_progress:
            self._shown_progress = busy, share
            self._progress.set(busy, share)

    def _add_code(self) -> None:
        self._command = self._add_text("command line")
        self._python = self._add_text("Python")
        with ui.element("div").classes("pg-files"):
            self._links = [ui.button(icon="download").props("flat dense no-caps") for _ in range(3)]
        for link in self._links:
            link.set_visibility(False)

    def _add_text(self, title: str) -> ui.html:
        with ui.element("div").classes("pg-code"):
            with ui.element("div").classes("pg-caption"):
                ui.label(f"The same in {title}" if title == "Python" else f"The same on the {title}")
                copy = ui.button("copy", icon="content_copy", on_click=lambda: self._copy(title))
                copy.props(f'flat dense no-caps size=sm aria-label="copy {title}"')
            with ui.element("pre"):
                return ui.html("", sanitize=False).props(f'data-code="{title}"')

    def _copy(self, title: str) -> None:
        job = self.job()
        ui.clipboard.write(job.python if title == "Python" else job.command)
        ui.notify("copied", timeout=800)


def _wrap_words(command: str) -> str:
    """Return HTML that breaks between words, not at the hyphens of options."""
    words = "".join(f"<span>{escape(word)}</span> " for word in command.split(" "))
    return f'<div class="pg-wrap">{words.strip()}</div>'


def _format_seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
