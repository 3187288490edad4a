"""The laser scans of four places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import data_folder
from town import make_town

from experiments.data.lidar import CLASSES, halve, load_scan
from permutohedral.errors import DataError


def test_scans_have_known_classes() -> None:
    pytest.importorskip("lazrs")
    scan = load_scan("house", data_folder("lidar"))
    assert torch.bincount(scan.labels + 1).tolist() == [3579, 25545, 20885, 7075]
    assert len(CLASSES) == 3
    west, east = halve(scan)
    assert len(west.labels) + len(east.labels) == 57084
    assert float(west.positions[:, 0].max()) < 0 <= float(east.positions[:, 0].min())


def test_rejects_missing_and_damaged_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERMUTOHEDRAL_DATA", raising=False)
    with pytest.raises(DataError, match="lidar cannot be downloaded"):
        load_scan("house")
    with pytest.raises(DataError, match=r"house\.laz is missing"):
        load_scan("house", tmp_path)
    (tmp_path / "house.laz").write_bytes(b"LASF")
    with pytest.raises(DataError, match="is damaged"):
        load_scan("house", tmp_path)
    (tmp_path / "house.laz").unlink()
    np.savez(tmp_path / "house.npz", positions=make_town(50)[0].numpy())
    with pytest.raises(DataError, match="has no classes"):
        load_scan("house", tmp_path)
