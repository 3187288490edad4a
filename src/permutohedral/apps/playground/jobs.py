"""Calls of `permutohedral.apps`: run by the page, and shown as Python and as a command."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import permutohedral as ph


@dataclass(frozen=True)
class Job:
    """One call of a function of `permutohedral.apps`: its name, its input and output, and its options.

    Options that are None are left out.

    >>> job = Job("filter_image", ("-x.png", "smooth.png"), {"sigma_space": 4.0, "guide": None, "method": "auto"})
    >>> print(job.command)
    permutohedral image filter ./-x.png smooth.png --sigma-space 4.0 --method auto
    """

    function: str
    files: tuple[str | Path, str | Path]
    options: dict[str, Any]

    def run(self, progress: Callable[[float], None], **more: Any) -> Any:
        """Write the output, and return the result of the function; `progress` is called with the share done."""

        def report(done: float, total: float, name: str) -> None:
            progress(done / total)

        [result] = getattr(ph.apps, self.function)(*self.files, **self._given(), **more, progress=report)
        return result

    @property
    def python(self) -> str:
        """The whole program that makes the same call."""
        arguments = [_quote(file) for file in self.files]
        arguments += [f"{name}={_quote(value)}" for name, value in self._given().items()]
        lines = "".join(f"    {argument},\n" for argument in arguments)
        return f"import permutohedral as ph\n\nph.apps.{self.function}(\n{lines})\n"

    @property
    def command(self) -> str:
        """The line for a shell that makes the same call."""
        options = self._given()
        group = self.function.partition("_")[2]
        files = [str(file) for file in self.files]
        # the command takes these by position
        files[1:1] = [str(options.pop(name)) for name in ("labels", "guide") if name in options]
        # a name that begins with a dash looks like an option
        words = [f"./{file}" if file.startswith("-") else file for file in files]
        for name, value in options.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        return shlex.join(["permutohedral", group, self.function.partition("_")[0], *words])

    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if value is not None}


def read_defaults(function: str, *options: str) -> dict[str, Any]:
    """Return the defaults of some options of a function of `permutohedral.apps`.

    >>> read_defaults("filter_image", "method")
    {'method': 'auto'}
    """
    parameters = inspect.signature(getattr(ph.apps, function)).parameters
    return {option: parameters[option].default for option in options}


def _quote(value: Any) -> str:
    """Write a value in Python, with double quotes where a string allows them."""
    if not isinstance(value, str | Path):
        return repr(value)
    text = str(value)
    return f'"{text}"' if text.isprintable() and '"' not in text and "\\" not in text else repr(text)
