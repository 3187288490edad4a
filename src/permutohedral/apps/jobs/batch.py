"""Batches of files: inputs, outputs, companion files, and the result for each file."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor

from permutohedral.apps.io.image import check_output, format_of, list_images
from permutohedral.apps.io.settings import STREAM, PathLike, Progress, check_outputs, to_path
from permutohedral.errors import DataError, InputError, PermutohedralError

# a file, a folder, or several of both
Inputs = PathLike | Sequence[PathLike]
Errors = Literal["raise", "report"]
# an input and the file for its result
Pair = tuple[Path, Path]
# threads that read, and threads that write
_THREADS = 4


@dataclass(frozen=True)
class JobResult:
    """Result of a job for one file; each job adds its measures.

    Attributes:
        input: file that was read.
        output: file with the result.
        seconds: duration without reading and writing.
        error: reason why there is no result, None if there is one.
    """

    input: Path
    output: Path
    seconds: float | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, which has neither paths nor infinity."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def describe(self) -> str:
        """Return one line of text."""
        return f"{self.input}: failed" if self.error is not None else f"wrote {self.output}{self._details()}"

    def _details(self) -> str:
        return ""

    def notes(self) -> list[str]:
        """Return warnings about the result."""
        return []


@dataclass(frozen=True)
class ImageResult(JobResult):
    """Result of a job on images; see `JobResult`.

    Attributes:
        height: in pixels.
        width: in pixels.
    """

    height: int | None = None
    width: int | None = None

    def _details(self) -> str:
        return f": {self.width} x {self.height} pixels, in {self.seconds:.2f} s"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


Result = TypeVar("Result", bound=JobResult)
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
        files: inputs and outputs.
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
    inputs: Inputs,
    output: PathLike,
    recursive: bool = False,
    *companions: Path | None,
    suffix: str | None = None,
    list_folder: Callable[[Path, bool], list[Path]] = list_images,
    is_input: Callable[[Path], bool] = lambda path: not path.is_dir(),
    check: Callable[[Path, Path], None] = lambda output, source: check_output(output),
) -> list[Pair]:
    """Pair inputs with outputs, and create folders for the outputs; raise `InputError` if they do not fit.

    Raises `DataError` if a single input is missing.

    Args:
        inputs, output, recursive: see `filter_image`.
        companions: other files that are read, or folders of them; see `find_companion`.
        suffix: of results in a folder; default: that of the input.
        list_folder: lists the inputs in a folder.
        is_input: returns whether a path is one input, not a folder of inputs.
        check: raises if the result of a single input cannot be written.
    """
    is_one = isinstance(inputs, str | os.PathLike) or not isinstance(inputs, Iterable)
    given: Any = [inputs] if is_one else inputs
    paths = [to_path("inputs", path) for path in given]
    output = to_path("output", output)
    if len(paths) == 1 and is_input(paths[0]):
        [source] = paths
        # one of several that is missing is an error of that file
        if source != STREAM and not source.exists():
            raise DataError(f"there is no file or folder {source}")
        if output.is_dir() and not (is_input(output) or output.suffix == suffix):
            if source == STREAM:
                raise InputError(f"cannot write {output}: it is a folder; name a file for the image from stdin")
            output = _result(output, source.name, suffix)
        check(output, source)
        check_outputs(input_files([(source, output)], companions), [output])
        return [(source, output)]
    if STREAM in (*paths, output):
        raise InputError("- is one image on stdin or stdout; name a folder for the results of several")
    names_file = format_of(output) is not None or (suffix is not None and output.suffix == suffix)
    if names_file or (output.exists() and not output.is_dir()):
        raise InputError(f"output {output} is a file, but there are several inputs; name a folder for their results")
    pairs = [
        (path, _result(output, name, suffix))
        for source in paths
        for path, name in _list_inputs(source, output, recursive, list_folder, is_input)
    ]
    check_outputs(input_files(pairs, companions), [result for _, result in pairs])
    for place in companions:
        _check_companion_names(place, pairs)
    for folder in {result.parent for _, result in pairs}:
        make_folder(folder)
    return pairs


def _result(folder: Path, name: str | Path, suffix: str | None) -> Path:
    return folder / (name if suffix is None else Path(name).with_suffix(suffix))


def input_files(files: Sequence[Pair], companions: Iterable[Path | None]) -> list[Path]:
    """Return all files that a job may read: the inputs, and companions with everything in their folders."""
    found = [source for source, _ in files]
    for place in companions:
        if place is not None:
            found += place.iterdir() if place.is_dir() else [place]
    return found


def _list_inputs(
    source: Path,
    output: Path,
    recursive: bool,
    list_folder: Callable[[Path, bool], list[Path]],
    is_input: Callable[[Path], bool],
) -> list[tuple[Path, str | Path]]:
    """Return files and their names in the folder of the results."""
    if is_input(source):
        return [(source, source.name)]
    if output.resolve() == source.resolve():
        raise InputError(f"the results would overwrite the files in {source}; name another folder")
    # a folder with earlier results may lie in the folder of inputs
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
    """Raise before any work if two inputs would have the same companion in the folder `place`."""
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


def size_of(pixels: Tensor) -> str:
    """Return width and height of `[..., height, width]` for messages."""
    return f"{pixels.shape[-1]} x {pixels.shape[-2]}"


def check_same_size(path: Path, found: Tensor, source: Path, pixels: Tensor, advice: str = "scale one of them") -> None:
    """Raise `InputError` unless the content of two files `[..., height, width]` has the same size."""
    if found.shape[-2:] != pixels.shape[-2:]:
        raise InputError(f"{path} has {size_of(found)} pixels, but {source} has {size_of(pixels)}; {advice}")
