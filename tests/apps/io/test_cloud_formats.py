"""Point-cloud files: points and classes, copies with other classes, damaged files."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from town import make_town

from permutohedral.apps.io.clouds import check_same_format, copy_with_labels, read_cloud
from permutohedral.errors import DataError, InputError

POSITIONS, LABELS = (each.numpy() for each in make_town(50))


def write_las(path: Path, point_format: int = 1) -> None:
    laspy = pytest.importorskip("laspy", reason="laspy is not installed")
    content = laspy.create(point_format=point_format, file_version="1.4" if point_format > 5 else "1.2")
    content.header.scales, content.header.offsets = [0.01] * 3, np.floor(POSITIONS.min(axis=0))
    content.x, content.y, content.z = POSITIONS.T
    content.classification = LABELS
    content.intensity = np.arange(50)
    content.write(str(path))


def write_ply(path: Path) -> None:
    plyfile = pytest.importorskip("plyfile", reason="plyfile is not installed")
    kinds = [("x", "f8"), ("red", "u1"), ("y", "f8"), ("z", "f8"), ("label", "u1")]
    vertices = np.empty(50, dtype=kinds)
    for axis, name in enumerate("xyz"):
        vertices[name] = POSITIONS[:, axis]
    vertices["red"], vertices["label"] = np.arange(50), LABELS
    points = plyfile.PlyElement.describe(vertices, "vertex", comments=["from the air"])
    plyfile.PlyData([points], comments=["a town"], obj_info=["a scanner"]).write(str(path))


def write_npz(path: Path) -> None:
    np.savez(path, positions=POSITIONS, classification=LABELS, red=np.arange(50))


WRITERS = {".las": write_las, ".laz": write_las, ".ply": write_ply, ".npz": write_npz}


@pytest.mark.parametrize("suffix", WRITERS)
def test_reads_points_and_classes(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"town{suffix.upper()}"
    WRITERS[suffix](tmp_path / f"town{suffix}")
    (tmp_path / f"town{suffix}").rename(path)
    cloud = read_cloud(path)
    tolerance = 0.0051 if suffix in (".las", ".laz") else 0.0
    assert float((cloud.positions - torch.from_numpy(POSITIONS)).abs().max()) <= tolerance
    assert cloud.labels is not None
    assert cloud.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("suffix", WRITERS)
def test_copies_keep_everything_but_the_classes(suffix: str, tmp_path: Path) -> None:
    source, target = tmp_path / f"town{suffix}", tmp_path / f"new{suffix}"
    WRITERS[suffix](source)
    copy_with_labels(source, target, torch.full((50,), 9, dtype=torch.uint8))
    before, after = read_cloud(source), read_cloud(target)
    assert torch.equal(before.positions, after.positions)
    assert after.labels is not None
    assert after.labels.tolist() == [9] * 50
    if suffix == ".ply":
        from plyfile import PlyData

        content = PlyData.read(str(target))
        assert content["vertex"]["red"].tolist() == list(range(50))
        found = [content.comments, content.obj_info, content["vertex"].comments]
        assert found == [["a town"], ["a scanner"], ["from the air"]]
    elif suffix == ".npz":
        assert np.load(target)["red"].tolist() == list(range(50))
    else:
        import laspy

        assert np.asarray(laspy.read(target).intensity).tolist() == list(range(50))


def test_keeps_labels_of_ply_that_are_no_classes(tmp_path: Path) -> None:
    """Numbers of objects stay, and classes keep the type of their property."""
    from plyfile import PlyData, PlyElement

    for first in (1000, 3):
        vertices = np.zeros(50, dtype=[("x", "f4"), ("y", "f4"), ("z", "f4"), ("label", "i4")])
        vertices["label"] = np.arange(first, first + 50)
        PlyData([PlyElement.describe(vertices, "vertex")]).write(str(tmp_path / "town.ply"))
        copy_with_labels(tmp_path / "town.ply", tmp_path / "new.ply", torch.from_numpy(LABELS))
        found = PlyData.read(str(tmp_path / "new.ply"))["vertex"].data
        assert found["label"].dtype == np.int32
        if first > 255:
            assert np.array_equal(found["label"], vertices["label"])
        assert np.array_equal(found["classification" if first > 255 else "label"], LABELS)


def test_ply_of_text_keeps_its_digits(tmp_path: Path) -> None:
    pytest.importorskip("plyfile", reason="plyfile is not installed")
    source, target = tmp_path / "in.ply", tmp_path / "out.ply"
    kinds = "property double x", "property double y", "property float z", "property uint id", "property uchar class"
    faces = "element face 1", "property list uchar int vertex_indices"
    head = ["ply", "format ascii 1.0", "element vertex 3", *kinds, *faces, "end_header"]
    rows = ["309227.13 0.1 0.1 4294967295", "-1.5 2.0 3.3 0", "1e-09 0.3 1.0 1"]
    source.write_text("\n".join([*head, *(f"{row} 2" for row in rows), "3 0 1 2", ""]))
    copy_with_labels(source, target, torch.tensor([6, 6, 5]))
    copied = [f"{row} {number}" for row, number in zip(rows, (6, 6, 5), strict=True)]
    assert target.read_text().splitlines() == [*head, *copied, "3 0 1 2"]


@pytest.mark.parametrize("text", [False, True])
def test_lists_of_ply_keep_their_types(text: bool, tmp_path: Path) -> None:
    from plyfile import PlyData, PlyElement

    vertices = np.zeros(50, dtype=[("x", "f4"), ("y", "f4"), ("z", "f4"), ("near", "O"), ("weights", "O")])
    vertices["near"] = [np.arange(70_000, 70_001 + number % 3, dtype=np.uint32) for number in range(50)]
    vertices["weights"] = [np.full(number, 0.25, np.float32) for number in range(250, 300)]
    lists = {"near": "u1", "weights": "u2"}, {"near": "u4", "weights": "f4"}
    points = PlyElement.describe(vertices, "vertex", *lists)
    PlyData([points], text=text).write(str(tmp_path / "town.ply"))
    copy_with_labels(tmp_path / "town.ply", tmp_path / "new.ply", torch.from_numpy(LABELS))
    found = PlyData.read(str(tmp_path / "new.ply"))["vertex"]
    assert list(map(str, found.properties[3:5])) == list(map(str, points.properties[3:]))
    for name in lists[0]:
        for before, after in zip(vertices[name], found[name], strict=True):
            assert np.array_equal(before, after)
    assert np.array_equal(found["classification"], LABELS)


def test_npz_keeps_arrays_of_python_objects(tmp_path: Path) -> None:
    """They are copied as bytes: reading them could run code."""
    names = np.array(["a", {"b": 1}], dtype=object)
    np.savez(tmp_path / "town.npz", positions=POSITIONS, classification=LABELS, names=names)
    copy_with_labels(tmp_path / "town.npz", tmp_path / "new.npz", torch.full((50,), 9))
    before, after = (zipfile.ZipFile(tmp_path / f"{name}.npz").read("names.npy") for name in ("town", "new"))
    assert before == after
    assert np.load(tmp_path / "new.npz")["classification"].tolist() == [9] * 50
    np.savez(tmp_path / "town.npz", positions=POSITIONS.astype(object))
    with pytest.raises(DataError, match="Object arrays cannot be loaded"):
        read_cloud(tmp_path / "town.npz")


def test_las_becomes_laz_but_not_ply(tmp_path: Path) -> None:
    write_las(tmp_path / "town.las")
    target = tmp_path / "town.laz"
    copy_with_labels(tmp_path / "town.las", target, torch.from_numpy(LABELS))
    assert read_cloud(target).positions.shape == (50, 3)
    assert target.stat().st_size < (tmp_path / "town.las").stat().st_size
    with pytest.raises(InputError, match="must have the format of"):
        check_same_format(tmp_path / "town.las", tmp_path / "town.ply")


def test_copies_of_copc_are_no_octrees(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy", reason="laspy is not installed")
    scan = laspy.create(point_format=6, file_version="1.4")
    scan.x, scan.y, scan.z = POSITIONS.T
    scan.vlrs += [laspy.VLR("copc", 1, "", bytes(160)), laspy.VLR("us", 1, "before", b"coordinates")]
    behind = [laspy.VLR("copc", 1000, "", bytes(32)), laspy.VLR("us", 2, "behind", b"waves")]
    scan.evlrs = laspy.vlrs.vlrlist.VLRList(behind)
    scan.write(tmp_path / "town.copc.laz")
    copy_with_labels(tmp_path / "town.copc.laz", tmp_path / "new.laz", torch.from_numpy(LABELS))
    found = laspy.read(tmp_path / "new.laz")
    assert found.classification.tolist() == LABELS.tolist()
    assert [record.record_data for record in found.vlrs if record.user_id in ("copc", "us")] == [b"coordinates"]
    assert [record.record_data for record in found.evlrs] == [b"waves"]
    with pytest.raises(InputError, match=r"new\.COPC\.laz.*pass a name such as new\.laz"):
        check_same_format(tmp_path / "town.copc.laz", tmp_path / "new.COPC.laz")


def test_rejects_class_numbers_that_do_not_fit(tmp_path: Path) -> None:
    for point_format, fits in ((1, False), (6, True)):
        write_las(tmp_path / "town.las", point_format)
        labels, target = torch.full((50,), 40, dtype=torch.uint8), tmp_path / "new.las"
        if fits:
            copy_with_labels(tmp_path / "town.las", target, labels)
            continue
        with pytest.raises(InputError, match="stores classes up to 31, got 40"):
            copy_with_labels(tmp_path / "town.las", target, labels)


def test_unclassified_scans_have_no_classes(tmp_path: Path) -> None:
    source, target = tmp_path / "town.las", tmp_path / "new.las"
    write_las(source)
    copy_with_labels(source, target, torch.zeros(50, dtype=torch.uint8))
    assert read_cloud(target).labels is None


def test_writes_suffixes_in_capitals(tmp_path: Path) -> None:
    write_npz(tmp_path / "town.npz")
    target = tmp_path / "NEW.NPZ"
    copy_with_labels(tmp_path / "town.npz", target, torch.from_numpy(LABELS))
    assert read_cloud(target).positions.shape == (50, 3)


@pytest.mark.parametrize(
    ("number", "known"), [(258, False), (-1, False), (2.5, False), (np.nan, False), ("tree", False), (6.0, True)]
)
def test_ignores_numbers_outside_of_the_standard(number: float | str, known: bool, tmp_path: Path) -> None:
    """As uint8, 258 would be 2, which is ground."""
    np.savez(tmp_path / "town.npz", positions=np.zeros((2, 3)), classification=[2, number])
    labels = read_cloud(tmp_path / "town.npz").labels
    assert (labels is not None) == known
    assert labels is None or labels.tolist() == [2, number]


def test_rejects_other_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends with \.laz, \.las, \.ply, \.npz"):
        read_cloud(tmp_path / "town.txt")
    for suffix in WRITERS:
        with pytest.raises(DataError, match="cannot read the point cloud"):
            read_cloud(tmp_path / f"nothing{suffix}")
        (tmp_path / f"text{suffix}").write_text("text")
        with pytest.raises(DataError, match="cannot read the point cloud"):
            read_cloud(tmp_path / f"text{suffix}")
    np.savez(tmp_path / "flat.npz", positions=np.zeros((4, 2)))
    with pytest.raises(DataError, match=r"must hold positions \[points, 3\], got \[4, 2\]"):
        read_cloud(tmp_path / "flat.npz")
    np.savez(tmp_path / "nan.npz", positions=np.full((4, 3), np.nan))
    with pytest.raises(DataError, match="NaN or infinity in 4 of 4 points"):
        read_cloud(tmp_path / "nan.npz")
    np.savez(tmp_path / "short.npz", positions=np.zeros((4, 3)), classification=np.zeros(3))
    with pytest.raises(DataError, match="4 points and classes of shape"):
        read_cloud(tmp_path / "short.npz")


# a header may state any number of points (LAS: byte 247), records before (byte 100) and behind them (byte 243)
CLAIMS = {"points": (247, "<Q"), "records": (100, "<I"), "records behind": (243, "<I")}


@pytest.mark.parametrize("suffix", [".las", ".laz"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_scans_take_no_memory_for_claims(claim: str, suffix: str, tmp_path: Path) -> None:
    path, (place, kind) = tmp_path / f"town{suffix}", CLAIMS[claim]
    write_las(path, point_format=6)
    content = bytearray(path.read_bytes())
    # records behind the points, of which there are none, start at the end
    struct.pack_into("<Q", content, 235, len(content))
    struct.pack_into(kind, content, place, 1 << (24 if claim == "points" else 18))
    path.write_bytes(content)
    check_small_peak(path)


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian"])
def test_ply_takes_no_memory_for_claims(form: str, tmp_path: Path) -> None:
    lines = f"format {form} 1.0", "comment a town", f"element vertex {1 << 24}", "property float x", "property float y"
    head = ["ply", *lines, "property float z", "property list uchar float w", "end_header", ""]
    for ending in ("\n", "\r\n", "\r"):
        (tmp_path / "town.ply").write_bytes(ending.join(head).encode() + bytes(100))
        check_small_peak(tmp_path / "town.ply")


def check_small_peak(path: Path) -> None:
    """Check that a cloud is rejected, and that reading it takes less than 32 MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"is truncated: .*; copy it again"):
            read_cloud(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
