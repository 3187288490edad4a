"""Figures: made without a display, written whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from permutohedral.errors import InputError
from permutohedral.reporting.atomic import replacing


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


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
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        try:
            with replacing(path) as partial, matplotlib.rc_context({"svg.hashsalt": "permutohedral"}):
                figure.savefig(partial, dpi=dpi, metadata=metadata, **options)
        except ValueError as error:
            raise InputError(f"cannot write the figure {path}: {error}") from error
