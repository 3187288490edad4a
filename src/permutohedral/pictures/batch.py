"""Requests for one picture file or for a folder of them, and the outcome for each file."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from permutohedral.errors import InputError, PermutohedralError
from permutohedral.pictures.files import STREAM, check_output, list_pictures

# called with the share of a picture that is done
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Outcome:
    """What became of one file; each kind of request adds what it measured.

    Attributes:
        source: the picture.
        output: the one that was made of it.
        error: why there is none, None if there is one.
        lost: names of the metadata that the format of the output cannot hold.
    """

    source: Path
    output: Path
    error: str | None = None
    lost: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line of text."""
        return f"{self.source}: failed" if self.error is not None else f"wrote {self.output}"

    def note(self) -> str | None:
        """What the result lacks, in a line; None if it lacks nothing."""
        return f"{self.output} does not hold all that {self.source} says: {', '.join(self.lost)}" if self.lost else None

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


def check_companions(place: Path | None, files: Sequence[tuple[Path, Path]]) -> None:
    """Find out before any work whether names tell which file in the folder `place` belongs to which picture.

    Raises:
        InputError: two pictures, from different folders or of different formats, have the same name but its ending.
    """
    known: dict[str, Path] = {}
    for source, _ in files if place is not None and len(files) > 1 else ():
        other = known.setdefault(source.stem, source)
        if other != source:
            raise InputError(f"the names of {other} and {source} do not tell their files in {place} apart; rename one")


def plan_files(sources: Path | Sequence[Path], output: Path, recursive: bool = False) -> list[tuple[Path, Path]]:
    """Pairs of a picture and where its result goes.

    Args:
        sources: pictures, folders (all pictures in them, by their ending), or "-" alone for stdin.
        output: a file for one picture, "-" for stdout; a folder, made if there is none, for several.
        recursive: also take the folders in the folders; the results lie in folders of the same names.

    Raises:
        InputError: there is no such file or folder, or the output cannot be written.
    """
    sources = [sources] if isinstance(sources, Path) else list(sources)
    for source in sources:
        if source != STREAM and not source.exists():
            raise InputError(f"there is no file or folder {source}")
    if len(sources) == 1 and not sources[0].is_dir():
        return [(sources[0], _single_output(sources[0], output))]
    if STREAM in (*sources, output):
        raise InputError("- stands for one picture on stdin or stdout; name a folder for the results of several")
    if output.exists() and not output.is_dir():
        raise InputError(f"several pictures need a folder for their results, and {output} is a file")
    pairs = [pair for source in sources for pair in _pairs(source, output, recursive)]
    _check_pairs(pairs)
    for folder in {result.parent for _, result in pairs}:
        make_folder(folder)
    return pairs


def _single_output(source: Path, output: Path) -> Path:
    if output.is_dir():
        if source == STREAM:
            raise InputError(f"cannot write {output}: it is a folder; name the file for the picture from stdin")
        output = output / source.name
        _check_pairs([(source, output)])
    check_output(output)
    return output


def _pairs(source: Path, output: Path, recursive: bool) -> list[tuple[Path, Path]]:
    if not source.is_dir():
        return [(source, output / source.name)]
    if output.resolve() == source.resolve():
        raise InputError(f"the results would replace the pictures in {source}; name another folder")
    paths = list_pictures(source, recursive)
    # results of an earlier run, in a folder below that of the pictures
    paths = [path for path in paths if not path.resolve().is_relative_to(output.resolve())]
    if not paths:
        hint = "" if recursive else "; --recursive also looks into its folders"
        raise InputError(f"there are no pictures in {source}{hint}")
    return [(path, output / path.relative_to(source)) for path in paths]


def _check_pairs(pairs: Sequence[tuple[Path, Path]]) -> None:
    """No result may replace a picture, nor another result."""
    sources = {source.resolve() for source, _ in pairs}
    taken: dict[Path, Path] = {}
    for source, result in pairs:
        if result.resolve() in sources:
            raise InputError(f"the result would replace the picture {result}; name another folder")
        if result in taken:
            raise InputError(f"the results of {taken[result]} and {source} would both be {result}; rename one of them")
        taken[result] = source


def make_folder(folder: Path) -> None:
    """Make a folder and those it lies in, unless it is there.

    Raises:
        InputError: it cannot be made; says why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error


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
