"""Results that a tab shows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed")

from permutohedral.playground.panel import Panel
from permutohedral.playground.runner import Request


class LateSession:
    """Runs all requests when `finish` is called."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def submit(self, request: Request) -> None:
        self.requests.append(request)

    def finish(self) -> None:
        for request in self.requests:
            for found in request(lambda: None):
                assert not isinstance(found, float)
                found()


class Bare(Panel):
    """A panel without a page."""

    def __init__(self, session: Any) -> None:
        self.session, self.number, self._oldest = session, 0, 0

    def ask(self, shown: list[int]) -> None:
        self.number += 1
        number = self.number
        self.submit(lambda check: iter([partial(shown.append, number)]))


def test_shows_late_results_unless_they_were_dropped() -> None:
    """A moving slider shows older results, but not over another photo."""
    session, shown = LateSession(), list[int]()
    panel = Bare(session)
    panel.ask(shown)
    panel.ask(shown)
    panel.drop()
    panel.ask(shown)
    panel.ask(shown)
    session.finish()
    assert shown == [3, 4]
