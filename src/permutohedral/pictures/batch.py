"""Requests for one picture file or for a folder of them, and the outcome for each file."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from permutohedral.errors import InputError, PermutohedralError
from permutohedral.pictures.files import check_output, list_pictures

# called with the share of a picture that is done
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Outcome:
    """What became of one file; each kind of request adds what it measured.

    Attributes:
        source: the picture.
        output: the one that was made of it.
        error: why there is none, None if there is one.
    """

    source: Path
    output: Path
    error: str | None = None

    def describe(self) -> str:
        """One line of text."""
        return f"{self.source}: failed" if self.error is not None else f"wrote {self.output}"

    def as_data(self) -> dict[str, Any]:
        """As JSON, which has neither paths nor infinity."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


class Request(ABC):
    """What to do with every file."""

    outcome: ClassVar[type[Outcome]]

    @abstractmethod
    def process(self, source: Path, output: Path, progress: Progress) -> Outcome:
        """Make `output` of `source`; `progress` may be called meanwhile."""

    def attempt(self, source: Path, output: Path, progress: Progress) -> Outcome:
        """`process`; an error becomes part of the outcome."""
        try:
            return self.process(source, output, progress)
        except PermutohedralError as error:
            return self.outcome(source, output, error=error.message)


def companion(place: Path, source: Path) -> Path:
    """The file that belongs to `source`: `place` itself, or the file of the same name in that folder."""
    return place / source.name if place.is_dir() else place


def plan_files(source: Path, output: Path) -> list[tuple[Path, Path]]:
    """Pairs of a picture and where its result goes; for a folder, all pictures in it by their ending.

    Raises:
        InputError: there is no such file or folder, or the output cannot be written.
    """
    if not source.exists():
        raise InputError(f"there is no file or folder {source}")
    if not source.is_dir():
        check_output(output)
        return [(source, output)]
    paths = list_pictures(source)
    if not paths:
        raise InputError(f"there are no pictures in {source}")
    if output.resolve() == source.resolve():
        raise InputError(f"the results would replace the pictures in {source}; name another folder")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {output}: {error.strerror}") from error
    return [(path, output / path.name) for path in paths]


def process_files(request: Request, files: Sequence[tuple[Path, Path]], title: str) -> list[Outcome]:
    """Process pairs of picture and output one after another, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress as ProgressBar

    console = Console(stderr=True)
    outcomes = []
    with ProgressBar(console=console, transient=True, disable=not console.is_terminal) as progress:
        # a request may never report the share of a single file that is done
        bar = progress.add_task(title, total=len(files) if len(files) > 1 else None)
        for number, (source, output) in enumerate(files):
            progress.update(bar, description=source.name)

            def advance(share: float, number: int = number) -> None:
                progress.update(bar, total=len(files), completed=number + share)

            outcomes.append(request.attempt(source, output, advance))
            progress.update(bar, completed=number + 1)
    return outcomes
