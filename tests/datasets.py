"""Find the data sets: in `PERMUTOHEDRAL_DATA`, or in `shared/data` next to the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_folder(dataset: str) -> Path:
    """Return the folder that holds `dataset`, or skip the test."""
    folder = Path(os.environ.get("PERMUTOHEDRAL_DATA") or _DEFAULT)
    if not (folder / dataset).is_dir():
        pytest.skip(f"{dataset} is not in {folder}; set PERMUTOHEDRAL_DATA to a folder that holds it")
    return folder
