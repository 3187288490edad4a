"""Where the tests find the datasets: `PERMUTOHEDRAL_DATA`, else the folder `shared/data` beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_folder(dataset: str) -> Path:
    """The folder that holds `dataset`; skips the test where there is none."""
    folder = Path(os.environ.get("PERMUTOHEDRAL_DATA") or _BESIDE)
    if not (folder / dataset).is_dir():
        pytest.skip(f"{dataset} is not in {folder}; set PERMUTOHEDRAL_DATA to a folder that holds it")
    return folder
