"""Batches of files: sources, outputs, companion files, and the result for each file."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from permutohedral.apps.io.image import check_output, format_of, list_images
from permutohedral.apps.io.settings import STREAM, PathLike, Progress, check_outputs, to_path
from permutohedral.errors import DataError, InputError, PermutohedralError

# a file, a folder, or several of both
Sources = PathLike | Sequence[PathLike]
Errors = Literal["raise", "report"]
# a source and the file for its result
Pair = tuple[Path, Path]
# threads that read, and threads that write
_THREADS = 4


@dataclass(frozen=True)
class FileResult:
    """Result for one file; each job adds its measures.

    Attributes:
        source: input file.
        output: file with the result.
        error: reason why there is no result, None if there is one.
        lost: names of the metadata that the format of the output cannot hold.
        height: in pixels.
        width: in pixels.
        seconds: duration without reading and writing.
    """

    source: Path
    output: Path
    error: str | None = None
    lost: tuple[str, ...] = ()
    height: int | None = None
    width: int | None = None
    seconds: float | None = None

    def describe(self) -> str:
        """Return one line of text."""
        return f"{self.source}: failed" if self.error is not None else f"wrote {self.output}{self._details()}"

    def _details(self) -> str:
        return ""

    def notes(self) -> list[str]:
        """Return warnings about the result."""
        return [f"{self.output} lacks metadata of {self.source}: {', '.join(self.lost)}"] if self.lost else []

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON, which has neither paths nor infinity."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


Result = TypeVar("Result", bound=FileResult)
Item = TypeVar("Item")
Computed = TypeVar("Computed")


def process_files(
    process: Callable[[Path, Path, Callable[[float], None]], Result],
    result_type: type[Result],
    files: Sequence[Pair],
    errors: Errors,
    progress: Progress | None,
) -> list[Result]:
    """Call `process(source, output, report)` for pairs of files, one after another, on this thread.

    See `filter_image` for `errors` and `progress`.
    """
    outputs = dict(files)

    def compute(sources: list[Path], report: Callable[[float], None]) -> list[Result]:
        return [process(source, outputs[source], report) for source in sources]

    return process_in_stages(
        lambda source: (source, source), compute, lambda *file: file[-1], result_type, files, errors, progress
    )


def process_in_stages(
    read: Callable[[Path], tuple[Item, Hashable]],
    compute: Callable[[list[Item], Callable[[float], None]], list[Computed]],
    write: Callable[[Path, Path, Item, Computed], Result],
    result_type: type[Result],
    files: Sequence[Pair],
    errors: Errors,
    progress: Progress | None,
    batch_size: int = 1,
) -> list[Result]:
    """Process files, reading the next and writing the previous ones on other threads.

    Args:
        read: returns an item and its key.
        compute: called on this thread with up to `batch_size` items of one key, and a function for the share done.
        write: called with source, output, item and what was computed for it.
        result_type: type of the result of a file that fails.
        files: sources and outputs.
        errors, progress: see `filter_image`.
        batch_size: number of items in a call. Twice as many are in memory before it, and after it.
    """
    if errors not in ("raise", "report"):
        raise InputError(f"errors must be 'raise' or 'report', got {errors!r}")
    results: dict[int, Result] = {}
    reads: deque[tuple[int, Future[tuple[Item, Hashable]]]] = deque()
    writes: deque[tuple[int, Future[Result]]] = deque()
    waiting: dict[Hashable, list[tuple[int, Item]]] = {}
    started = computed = 0

    def fail(numbers: Sequence[int], error: PermutohedralError) -> None:
        if errors == "raise":
            raise error
        results.update({number: result_type(*files[number], error=error.message) for number in numbers})

    def report(done: float, number: int) -> None:
        if progress is not None:
            progress(done, len(files), files[number][0].name)

    def finish(most: int) -> None:
        while len(writes) > most:
            number, future = writes.popleft()
            try:
                results[number] = future.result()
            except PermutohedralError as error:
                fail([number], error)

    def run(group: list[tuple[int, Item]]) -> None:
        nonlocal computed
        numbers, items = [number for number, _ in group], [item for _, item in group]
        report(computed, numbers[0])
        try:
            found = compute(items, lambda share: report(computed + share * len(group), numbers[0]))
            for number, item, each in zip(numbers, items, found, strict=True):
                writes.append((number, writer.submit(write, *files[number], item, each)))
        except PermutohedralError as error:
            fail(numbers, error)
        computed += len(group)
        report(computed, numbers[-1])

    reader, writer = (ThreadPoolExecutor(_THREADS) for _ in range(2))
    try:
        while len(results) + len(writes) < len(files):
            while started < len(files) and len(reads) + sum(map(len, waiting.values())) < 2 * batch_size:
                reads.append((started, reader.submit(read, files[started][0])))
                started += 1
            if reads:
                number, future = reads.popleft()
                try:
                    item, key = future.result()
                    waiting.setdefault(key, []).append((number, item))
                except PermutohedralError as error:
                    fail([number], error)
                    computed += 1
                    report(computed, number)
            fullest = max(waiting, key=lambda key: len(waiting[key]), default=None)
            if waiting and (not reads or len(waiting[fullest]) == batch_size):
                run(waiting.pop(fullest))
            finish(2 * batch_size)
        finish(0)
    finally:
        # an error or Ctrl-C: files that are computed are still written
        reader.shutdown(cancel_futures=True)
        writer.shutdown()
    return [results[number] for number in range(len(files))]


def plan_files(
    sources: Sources,
    output: PathLike,
    recursive: bool = False,
    *companions: Path | None,
    suffix: str | None = None,
    list_folder: Callable[[Path, bool], list[Path]] = list_images,
    check: Callable[[Path, Path], None] = lambda output, source: check_output(output),
) -> list[Pair]:
    """Pair sources with outputs, and create folders for the outputs; raise `InputError` if they do not fit.

    Raises `DataError` if a single source is missing.

    Args:
        sources, output, recursive: see `filter_image`.
        companions: other inputs, files or folders; see `find_companion`.
        suffix: of results in a folder; default: that of the source.
        list_folder: lists the sources in a folder.
        check: raises if the result of a single source cannot be written.
    """
    is_one = isinstance(sources, str | os.PathLike) or not isinstance(sources, Iterable)
    given: Any = [sources] if is_one else sources
    paths = [to_path("sources", source) for source in given]
    output = to_path("output", output)
    if len(paths) == 1 and not paths[0].is_dir():
        [source] = paths
        # one of several that is missing is an error of that file
        if source != STREAM and not source.exists():
            raise DataError(f"there is no file or folder {source}")
        if output.is_dir():
            if source == STREAM:
                raise InputError(f"cannot write {output}: it is a folder; name a file for the image from stdin")
            output = _result(output, source.name, suffix)
        check(output, source)
        check_outputs(input_files([(source, output)], companions), [output])
        return [(source, output)]
    if STREAM in (*paths, output):
        raise InputError("- is one image on stdin or stdout; name a folder for the results of several")
    if not output.is_dir() and (output.exists() or format_of(output) is not None):
        raise InputError(f"output {output} is a file, but there are several inputs; name a folder for their results")
    listed = [(path, name) for source in paths for path, name in _sources(source, output, recursive, list_folder)]
    pairs = [(path, _result(output, name, suffix)) for path, name in listed]
    check_outputs(input_files(pairs, companions), [result for _, result in pairs])
    for place in companions:
        _check_companion_names(place, pairs)
    for folder in {result.parent for _, result in pairs}:
        make_folder(folder)
    return pairs


def _result(folder: Path, name: str | Path, suffix: str | None) -> Path:
    return folder / (name if suffix is None else Path(name).with_suffix(suffix))


def input_files(files: Sequence[Pair], companions: Iterable[Path | None]) -> list[Path]:
    """Return all files that a job may read: the sources, and companions with everything in their folders."""
    found = [source for source, _ in files]
    for place in companions:
        if place is not None:
            found += place.iterdir() if place.is_dir() else [place]
    return found


def _sources(
    source: Path, output: Path, recursive: bool, list_folder: Callable[[Path, bool], list[Path]]
) -> list[tuple[Path, str | Path]]:
    """Return files and their names in the folder of the results."""
    if not source.is_dir():
        return [(source, source.name)]
    if output.resolve() == source.resolve():
        raise InputError(f"the results would overwrite the files in {source}; name another folder")
    # a folder with earlier results may lie in the folder of sources
    paths = [path for path in list_folder(source, recursive) if not path.resolve().is_relative_to(output.resolve())]
    if not paths:
        hint = "" if recursive else "; --recursive also searches its folders"
        raise InputError(f"there are no files to process in {source}{hint}")
    return [(path, path.relative_to(source)) for path in paths]


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, or raise `InputError` with the reason."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder}: {error.strerror}") from error


def _check_companion_names(place: Path | None, files: Sequence[Pair]) -> None:
    """Raise before any work if two sources would have the same companion in the folder `place`."""
    known: dict[str, Path] = {}
    for source, _ in files if place is not None and place.is_dir() else ():
        other = known.setdefault(source.stem, source)
        if other != source:
            raise InputError(f"{other} and {source} have the same name, and so the same file in {place}; rename one")


def find_companion(place: Path, source: Path, suffix: str | None = None) -> Path:
    """Return the file that belongs to `source`: `place`, or the file of the same name in the folder `place`.

    Raises `DataError` if there is no such file with this `suffix`, `InputError` if there are several.
    """
    if not place.is_dir():
        if not place.exists():
            raise DataError(f"there is no file or folder {place}")
        return place
    if suffix is None and (place / source.name).is_file():
        return place / source.name
    named = (path for path in sorted(place.iterdir()) if path.stem == source.stem and path.is_file())
    found = [path for path in named if suffix in (None, path.suffix.lower())]
    if len(found) != 1:
        error = InputError if found else DataError
        raise error(f"{place} has {len(found) or 'no'} files named {source.stem}{suffix or '.*'}; {source} needs one")
    return found[0]
