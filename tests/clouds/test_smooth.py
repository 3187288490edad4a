"""Laser scans in chunks: the result of all points at once, nothing half-written, going on after an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import permutohedral as ph
from permutohedral.cli.application import application
from permutohedral.errors import DataError, InputError

pytest.importorskip("laspy", reason="laspy is not installed")
pytest.importorskip("dask.array", reason="Dask is not installed")

import laspy

from permutohedral.arrays.workers import Workers
from permutohedral.clouds import smooth
from permutohedral.clouds.smooth import smooth_file

# easting and northing as maps have them
CORNER = np.array([2_600_000.0, 1_200_000.0, 400.0])


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
    """In double precision, all points at once."""
    features = torch.from_numpy((np.array(scan.xyz) - CORNER) / sigma)
    # of the first point of the file on, where the command counts from
    features = features - features.amin(dim=0)
    return ph.gaussian_filter(torch.from_numpy(np.asarray(values, dtype=np.float64)), features).numpy()


@pytest.mark.parametrize("ending", [".las", ".laz"])
def test_positions(tmp_path: Path, ending: str) -> None:
    if ending == ".laz":
        pytest.importorskip("lazrs", reason="lazrs is not installed")
    scan = write_scan(tmp_path / f"in{ending}")
    assert smooth_file(tmp_path / f"in{ending}", tmp_path / f"out{ending}", 2.0, most_points=150) == 400
    found = laspy.read(tmp_path / f"out{ending}")
    wanted = expected(scan, np.array(scan.xyz) - CORNER, 2.0) + CORNER
    np.testing.assert_allclose(found.xyz, wanted, rtol=0, atol=0.0011)
    assert np.abs(np.array(found.xyz) - np.array(scan.xyz)).max() > 0.5
    np.testing.assert_array_equal(found.classification, scan.classification)
    np.testing.assert_array_equal(found.intensity, scan.intensity)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"in{ending}", f"out{ending}"]


def test_a_field_by_the_command(tmp_path: Path) -> None:
    scan = write_scan(tmp_path / "in.las")
    arguments = ["smooth-points", str(tmp_path / "in.las"), str(tmp_path / "out.las"), "--field", "intensity"]
    result = CliRunner().invoke(application, [*arguments, "--sigma", "3"])
    assert result.exit_code == 0, result.output
    found = laspy.read(tmp_path / "out.las")
    np.testing.assert_array_equal(found.xyz, scan.xyz)
    wanted = expected(scan, np.asarray(scan.intensity)[:, None], 3.0)[:, 0]
    np.testing.assert_allclose(found.intensity, wanted, rtol=0, atol=0.6)
    result = CliRunner().invoke(application, [*arguments[:3], "--field", "height"])
    assert result.exit_code == 1
    assert "no field 'height' to smooth; it has position, intensity" in result.stderr


def test_going_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scan(tmp_path / "in.las")
    files = tmp_path / "in.las", tmp_path / "out.las"
    smooth_file(*files, 2.0, most_points=100)
    whole = files[1].read_bytes()
    files[1].write_bytes(b"older")
    keep, kept, most = smooth._keep, list[int](), 2

    def interrupted(result: Any, target: str, number: int) -> None:
        if len(kept) == most:
            raise KeyboardInterrupt
        keep(result, target, number)
        kept.append(number)

    monkeypatch.setattr(smooth, "_keep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smooth_file(*files, 2.0, most_points=100)
    assert files[1].read_bytes() == b"older"
    with pytest.raises(InputError, match=r"other settings \(sigma\)"):
        smooth_file(*files, 3.0, most_points=100, resume=True)
    kept[:], most = [], 4
    smooth_file(*files, 2.0, most_points=7, resume=True)
    assert kept == [2, 3]
    assert files[1].read_bytes() == whole


def test_a_chunk_is_decompressed_once_for_each_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the sums, and for the results: not apart for positions and values."""
    write_scan(tmp_path / "in.las")
    read, chunks = smooth.Scan.read, list[tuple[int, int]]()

    def counted(scan: smooth.Scan, chunk: tuple[int, int]) -> Any:
        chunks.append(chunk)
        return read(scan, chunk)

    monkeypatch.setattr(smooth.Scan, "read", counted)
    smooth_file(tmp_path / "in.las", tmp_path / "out.las", 2.0, "intensity", most_points=150)
    assert sorted(chunks) == sorted(2 * [(0, 150), (150, 300), (300, 400)])


def test_wide_scans_are_computed_in_double_precision(tmp_path: Path) -> None:
    write_scan(tmp_path / "in.las")
    assert smooth._open_scan(tmp_path / "in.las", "position").dtype == "float32"
    scan = laspy.read(tmp_path / "in.las")
    scan.x = np.asarray(scan.x) * 1 + np.linspace(0, 90_000, 400)
    scan.write(tmp_path / "wide.las")
    assert smooth._open_scan(tmp_path / "wide.las", "position").dtype == "float64"


def test_what_is_wrong_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends with \.las or \.laz"):
        smooth_file(tmp_path / "in.ply", tmp_path / "out.ply", 1.0)
    (tmp_path / "in.las").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="cannot read the laser scan"):
        smooth_file(tmp_path / "in.las", tmp_path / "out.las", 1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.las"]
    write_scan(tmp_path / "box.las")
    content = bytearray((tmp_path / "box.las").read_bytes())
    # the largest and smallest coordinates, which some programs leave at zero
    content[179:227] = bytes(48)
    (tmp_path / "box.las").write_bytes(content)
    with pytest.raises(DataError, match="outside of the box that its header states"):
        smooth_file(tmp_path / "box.las", tmp_path / "out.las", 1.0)
    write_scan(tmp_path / "empty.las", count=0)
    assert smooth_file(tmp_path / "empty.las", tmp_path / "out.las", 1.0) == 0


@pytest.mark.parametrize("ending", [".las", ".laz"])
def test_records_before_and_behind_the_points_stay(tmp_path: Path, ending: str) -> None:
    if ending == ".laz":
        pytest.importorskip("lazrs", reason="lazrs is not installed")
    scan = write_scan(tmp_path / "in.las")
    scan.vlrs.append(laspy.VLR("us", 1, "before", b"coordinates"))
    scan.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("us", 2, "behind", b"waves")])
    scan.write(tmp_path / f"in{ending}")
    smooth_file(tmp_path / f"in{ending}", tmp_path / f"out{ending}", 2.0)
    found = laspy.read(tmp_path / f"out{ending}")
    assert [record.record_data for record in found.vlrs.get_by_id("us")] == [b"coordinates"]
    assert [record.record_data for record in found.evlrs or ()] == [b"waves"]
    assert len(found.points) == 400


def test_fields_of_many_digits(tmp_path: Path) -> None:
    """Times since 1980 in seconds, and the largest of 32 bits: float32 has not the digits for either."""
    path = tmp_path / "in.las"
    scan = write_scan(path)
    scan.add_extra_dims([laspy.ExtraBytesParams("many", np.uint32), laspy.ExtraBytesParams("normal", "3f4")])
    scan.gps_time, scan.many = np.full(400, 300_000_123.25), np.full(400, 2**32 - 1, np.uint32)
    scan.write(path)
    for field in ("gps_time", "many"):
        smooth_file(path, tmp_path / "out.las", 2.0, field)
        found = np.asarray(laspy.read(tmp_path / "out.las")[field])
        np.testing.assert_allclose(found, np.asarray(scan[field]), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="no field 'normal' to smooth; it has position, intensity"):
        smooth_file(path, tmp_path / "out.las", 2.0, "normal")


class Elsewhere(Workers):
    """Workers that were started in another folder."""

    def compute(self, *arguments: Any) -> None:
        here = Path.cwd()
        os.chdir("/")
        try:
            super().compute(*arguments)
        finally:
            os.chdir(here)


def test_workers_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_scan(Path("in.las"))
    assert smooth_file(Path("in.las"), Path("out.las"), 2.0, workers=Elsewhere()) == 400
