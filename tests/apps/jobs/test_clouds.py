"""`files.smooth_cloud`: results, atomic output, resuming. `cli/test_clouds.py` segments."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.apps import smooth_cloud
from permutohedral.apps.io.clouds import read_cloud
from permutohedral.errors import DataError, InputError

pytest.importorskip("laspy", reason="laspy is not installed")
pytest.importorskip("dask.array", reason="Dask is not installed")

import laspy

from permutohedral.dask import workers

# coordinates of a map
CORNER = np.array([2_600_000.0, 1_200_000.0, 400.0])
CLASSES = {"low": (2,), "high": (5, 6)}


class Interruption(Exception):
    """Raised by progress callbacks."""


def stop_after(number: int) -> Any:
    calls = itertools.count()

    def stop(done: float, total: float, stage: str) -> None:
        # the first call is that of the start
        if next(calls) == number:
            raise Interruption

    return stop


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the memory of workers, so that small scans have several chunks."""
    monkeypatch.setattr(workers, "worker_memory", lambda: 1 << 19)


def write_scan(path: Path, count: int = 400) -> Any:
    draw = np.random.default_rng(0)
    scan = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    scan.header.scales, scan.header.offsets = np.full(3, 0.001), CORNER
    positions = CORNER + draw.random((count, 3)) * [20, 30, 5]
    scan.x, scan.y, scan.z = positions.T
    scan.intensity = draw.integers(0, 60_000, count).astype(np.uint16)
    scan.classification = draw.integers(0, 7, count).astype(np.uint8)
    scan.write(path)
    return laspy.read(path)


def expected(scan: Any, values: Any, sigma: float) -> np.ndarray[Any, Any]:
    """Filter all points in one call, in double precision."""
    features = torch.from_numpy((np.array(scan.xyz) - CORNER) / sigma)
    features = features - features.amin(dim=0)
    return ph.gaussian_filter(torch.from_numpy(np.asarray(values, dtype=np.float64)), features).numpy()


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_truncated_scans_leave_nothing_behind(tmp_path: Path, suffix: str) -> None:
    if suffix == ".laz":
        pytest.importorskip("lazrs", reason="lazrs is not installed")
    source = tmp_path / f"in{suffix}"
    write_scan(source, count=20_000)
    content = source.read_bytes()
    source.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=f"in{suffix} is truncated: .* copy it again"):
        smooth_cloud(source, tmp_path / f"out{suffix}", sigma_space=2.0)
    with pytest.raises(DataError, match=f"in{suffix} is truncated: .* copy it again"):
        read_cloud(source)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_smooths_positions(tmp_path: Path, suffix: str) -> None:
    if suffix == ".laz":
        pytest.importorskip("lazrs", reason="lazrs is not installed")
    source, target, reports = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", list[Any]()
    scan = write_scan(source)
    [result] = smooth_cloud(source, target, sigma_space=2.0, progress=lambda *report: reports.append(report))
    assert result.num_points == 400
    assert len(reports) > 2
    assert reports[-1] == (1, 1, f"in{suffix}")
    found = laspy.read(target)
    wanted = expected(scan, np.array(scan.xyz) - CORNER, 2.0) + CORNER
    np.testing.assert_allclose(found.xyz, wanted, rtol=0, atol=0.0011)
    assert np.abs(np.array(found.xyz) - np.array(scan.xyz)).max() > 0.5
    np.testing.assert_array_equal(found.classification, scan.classification)
    np.testing.assert_array_equal(found.intensity, scan.intensity)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"in{suffix}", f"out{suffix}"]


@pytest.mark.usefixtures("_small_chunks")
def test_resumes_smoothing_after_an_interruption(tmp_path: Path) -> None:
    write_scan(tmp_path / "in.las")
    files = tmp_path / "in.las", tmp_path / "out.las"
    smooth_cloud(*files, sigma_space=2.0)
    whole = files[1].read_bytes()
    files[1].write_bytes(b"older")
    with pytest.raises(Interruption):
        smooth_cloud(*files, sigma_space=2.0, progress=stop_after(2))
    assert files[1].read_bytes() == b"older"
    with pytest.raises(InputError, match="these differ: sigma_space;"):
        smooth_cloud(*files, sigma_space=3.0, resume=True)
    reports: list[Any] = []
    smooth_cloud(*files, sigma_space=2.0, resume=True, progress=lambda *report: reports.append(report))
    assert len(reports) >= 1
    assert files[1].read_bytes() == whole


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_resuming_keeps_a_complete_scan(tmp_path: Path, suffix: str) -> None:
    if suffix == ".laz":
        pytest.importorskip("lazrs", reason="lazrs is not installed")
    write_scan(tmp_path / f"in{suffix}")
    files = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    smooth_cloud(*files, sigma_space=2.0)
    before = files[1].stat().st_mtime_ns
    with pytest.warns(UserWarning, match=rf"out{suffix} is complete$"):
        assert smooth_cloud(*files, sigma_space=2.0, resume=True)[0].num_points == 400
    assert files[1].stat().st_mtime_ns == before
    with pytest.raises(InputError, match="these differ: sigma_space;"):
        smooth_cloud(*files, sigma_space=3.0, resume=True)
    with pytest.warns(UserWarning, match=rf"out{suffix} exists, and is replaced"):
        smooth_cloud(*files, sigma_space=3.0)
    # a smoothed copy stores its own settings only
    smooth_cloud(files[1], tmp_path / f"twice{suffix}", sigma_space=2.0)
    assert len(laspy.read(tmp_path / f"twice{suffix}").vlrs.get_by_id("permutohedral")) == 1


def test_wide_scans_keep_their_precision(tmp_path: Path) -> None:
    """Neighbors lie 200 m apart, so that smoothing changes nothing but for rounding; float32 rounds by 4 mm."""
    write_scan(tmp_path / "in.las")
    scan = laspy.read(tmp_path / "in.las")
    scan.x = CORNER[0] + np.linspace(0, 80_000, 400)
    scan.write(tmp_path / "wide.las")
    smooth_cloud(tmp_path / "wide.las", tmp_path / "out.las", sigma_space=2.0)
    found, given = laspy.read(tmp_path / "out.las"), laspy.read(tmp_path / "wide.las")
    np.testing.assert_array_equal(found.X, given.X)


def test_smoothing_rejects_bad_input(tmp_path: Path) -> None:
    (tmp_path / "in.ply").touch()
    with pytest.raises(InputError, match=r"ends with \.las or \.laz"):
        smooth_cloud(tmp_path / "in.ply", tmp_path / "out.ply", sigma_space=1.0)
    (tmp_path / "in.ply").unlink()
    with pytest.raises(InputError, match="smoothed on the CPU"):
        smooth_cloud(tmp_path / "in.las", tmp_path / "out.las", device="cuda")
    (tmp_path / "in.las").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="cannot read the point cloud"):
        smooth_cloud(tmp_path / "in.las", tmp_path / "out.las", sigma_space=1.0)
    with pytest.raises(InputError, match=r"would overwrite .*in\.las; name another file"):
        smooth_cloud(tmp_path / "in.las", tmp_path / "." / "in.las", sigma_space=1.0)
    with pytest.raises(InputError, match="sigma_space is -1"):
        smooth_cloud(tmp_path / "in.las", tmp_path / "out.las", sigma_space=-1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.las"]
    write_scan(tmp_path / "box.las")
    content = bytearray((tmp_path / "box.las").read_bytes())
    # the bounding box, which some programs leave at zero
    content[179:227] = bytes(48)
    (tmp_path / "box.las").write_bytes(content)
    with pytest.raises(DataError, match="outside of the box in its header"):
        smooth_cloud(tmp_path / "box.las", tmp_path / "out.las", sigma_space=1.0)
    write_scan(tmp_path / "empty.las", count=0)
    assert smooth_cloud(tmp_path / "empty.las", tmp_path / "out.las", sigma_space=1.0)[0].num_points == 0


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_smoothing_keeps_records(tmp_path: Path, suffix: str) -> None:
    if suffix == ".laz":
        pytest.importorskip("lazrs", reason="lazrs is not installed")
    scan = write_scan(tmp_path / "in.las")
    scan.vlrs.append(laspy.VLR("us", 1, "before", b"coordinates"))
    scan.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("us", 2, "behind", b"waves")])
    scan.write(tmp_path / f"in{suffix}")
    smooth_cloud(tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", sigma_space=2.0)
    found = laspy.read(tmp_path / f"out{suffix}")
    assert [record.record_data for record in found.vlrs.get_by_id("us")] == [b"coordinates"]
    assert [record.record_data for record in found.evlrs or ()] == [b"waves"]
    assert len(found.points) == 400


def test_smooths_copc_files(tmp_path: Path) -> None:
    """They become plain files: the octree is not valid for other positions."""
    scan = write_scan(tmp_path / "in.las")
    scan.vlrs.append(laspy.VLR("copc", 1, "", bytes(160)))
    scan.write(tmp_path / "in.copc.las")
    smooth_cloud(tmp_path / "in.copc.las", tmp_path / "out.las", sigma_space=2.0)
    assert laspy.read(tmp_path / "out.las").vlrs.get_by_id("copc") == []
    with pytest.raises(InputError, match=r"pass a name such as out\.laz"):
        smooth_cloud(tmp_path / "in.las", tmp_path / "out.copc.laz", sigma_space=2.0)


def test_smoothing_takes_no_memory_for_claims(tmp_path: Path) -> None:
    write_scan(tmp_path / "in.las")
    content = bytearray((tmp_path / "in.las").read_bytes())
    content[247:255] = (1 << 50).to_bytes(8, "little")
    (tmp_path / "in.las").write_bytes(content)
    with pytest.raises(DataError, match=r"is truncated: .* of 1125899906842624 points are missing"):
        smooth_cloud(tmp_path / "in.las", tmp_path / "out.las", sigma_space=2.0)


def test_smooths_fields_of_many_digits(tmp_path: Path) -> None:
    """GPS times and uint32 have more digits than float32."""
    path = tmp_path / "in.las"
    scan = write_scan(path)
    scan.add_extra_dims([laspy.ExtraBytesParams("many", np.uint32), laspy.ExtraBytesParams("normal", "3f4")])
    scan.gps_time, scan.many = np.full(400, 300_000_123.25), np.full(400, 2**32 - 1, np.uint32)
    scan.write(path)
    for field in ("gps_time", "many"):
        smooth_cloud(path, tmp_path / "out.las", sigma_space=2.0, field=field)
        found = np.asarray(laspy.read(tmp_path / "out.las")[field])
        np.testing.assert_allclose(found, np.asarray(scan[field]), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match=r"field is 'normal', .*pass position, intensity"):
        smooth_cloud(path, tmp_path / "out.las", sigma_space=2.0, field="normal")
