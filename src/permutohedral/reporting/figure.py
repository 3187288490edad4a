"""Figures: made without a display, written whole."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from permutohedral.errors import InputError
from permutohedral.reporting.atomic import write_bytes


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def check_ending(path: Path) -> None:
    """Find out before any work whether a figure can be written in the format that the ending names.

    Raises:
        InputError: it names none; says which there are.
    """
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise InputError(f"cannot write the figure {path}: its ending must be one of {', '.join(sorted(known))}")


def save_figure(figure: Figure, paths: Path | Sequence[Path], dpi: int = 120, margin: float | None = None) -> None:
    """Write a figure in the format of each ending: whole, or not at all; the same bytes for the same figure.

    Args:
        figure: what to write.
        paths: one file, or several.
        dpi: pixels per inch.
        margin: inches around what is drawn, to which the figure is cut; None keeps its size.

    Raises:
        InputError: an ending names no format.
        StorageError: a file cannot be written.
    """
    options: dict[str, Any] = {} if margin is None else {"bbox_inches": "tight", "pad_inches": margin}
    for path in [paths] if isinstance(paths, Path) else paths:
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            # in memory first: some encoders take a short write to a full disk for success
            content = io.BytesIO()
            with matplotlib.rc_context({"svg.hashsalt": "permutohedral"}):
                figure.savefig(content, format=path.suffix[1:] or None, dpi=dpi, metadata=metadata, **options)
        except ValueError as error:
            raise InputError(f"cannot write the figure {path}: {error}") from error
        write_bytes(path, content.getvalue())
