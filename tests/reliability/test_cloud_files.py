"""Point clouds on a full disk, and truncated ones: atomic output, and errors that name the reason."""

from __future__ import annotations

from pathlib import Path

import laspy
import numpy as np
import pytest
import torch
from plyfile import PlyData, PlyElement
from reliability.disks import largest_file

from permutohedral.apps import smooth_cloud
from permutohedral.apps.io.atomic import replacing
from permutohedral.apps.io.clouds import copy_with_labels, read_cloud
from permutohedral.errors import DataError, StorageError

COUNT = 5000


def write_cloud(path: Path) -> None:
    positions = np.random.default_rng(0).random((COUNT, 3)) * 50
    if path.suffix == ".npz":
        np.savez(path, positions=positions)
    elif path.suffix == ".ply":
        rows = positions.view([(axis, "f8") for axis in "xyz"])[:, 0]
        PlyData([PlyElement.describe(rows, "vertex")]).write(str(path))
    else:
        header = laspy.LasHeader(point_format=3, version="1.2")
        header.scales = np.full(3, 0.001)
        scan = laspy.LasData(header)
        scan.x, scan.y, scan.z = positions.T
        scan.write(str(path))


@pytest.mark.parametrize("ending", ["las", "laz", "ply", "npz"])
def test_classes_on_a_full_disk(ending: str, tmp_path: Path) -> None:
    source, target = tmp_path / f"in.{ending}", tmp_path / f"out.{ending}"
    write_cloud(source)
    target.write_text("before")
    labels = torch.full((COUNT,), 2, dtype=torch.uint8)
    with (
        largest_file(3000),
        pytest.raises(StorageError, match="File too large; the existing file is unchanged"),
        replacing(target) as partial,
    ):
        copy_with_labels(source, partial, labels)
    assert target.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [source, target]


@pytest.mark.parametrize("ending", ["las", "laz"])
# the second has room for the result of the chunk, but not for the output
@pytest.mark.parametrize("room", [3000, 12 * COUNT + 200])
def test_smoothing_on_a_full_disk(ending: str, room: int, tmp_path: Path) -> None:
    source, target = tmp_path / f"in.{ending}", tmp_path / f"out.{ending}"
    write_cloud(source)
    target.write_text("before")
    if source.stat().st_size <= room:
        room = source.stat().st_size // 2
    with largest_file(room), pytest.raises(StorageError, match=r"File too large; .*(unchanged|--resume)"):
        smooth_cloud(source, target, sigma_space=1.0)
    assert target.read_text() == "before"
    smooth_cloud(source, target, sigma_space=1.0, resume=True)
    assert laspy.read(target).header.point_count == COUNT
    assert sorted(tmp_path.iterdir()) == [source, target]


# the second is truncated between two points, where the rest looks complete
@pytest.mark.parametrize(("ending", "points"), [("las", 1000.5), ("las", 1000), ("laz", 1000.5)])
def test_truncated_scans(ending: str, points: float, tmp_path: Path) -> None:
    source, target = tmp_path / f"in.{ending}", tmp_path / f"out.{ending}"
    write_cloud(source)
    with laspy.open(source) as reader:
        header = reader.header
    whole = source.read_bytes()
    left = int(points * header.point_format.size) if ending == "las" else len(whole) // 3
    source.write_bytes(whole[: header.offset_to_point_data + left])
    with pytest.raises(DataError, match=r"is truncated: .*; copy it again"):
        read_cloud(source)
    with pytest.raises(DataError, match=r"is truncated: .*; copy it again"):
        smooth_cloud(source, target, sigma_space=1.0)
    assert not target.exists()
