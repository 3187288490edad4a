"""The LDraw parts: their format against shapes known by hand, their package, and what may be wrong with it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from permutohedral.data import ldraw
from permutohedral.data.download import checksum
from permutohedral.errors import DataError

PART = "0 {title}\n0 !LDRAW_ORG Part UPDATE 2004-03\n{lines}"
# a square of two units, and a triangle
SQUARE = "4 16 -1 0 -1 1 0 -1 1 0 1 -1 0 1"
TRIANGLE = "3 16 0 0 0 3 0 0 0 4 0"


def part(title: str, *lines: str) -> str:
    return PART.format(title=title, lines="\n".join(lines))


FILES = {
    "p/square.dat": SQUARE,
    "parts/s/1s01.dat": f"0 ~Part of a part\n{TRIANGLE}",
    # moved by (5, 0, 0), its axes exchanged and the first one doubled
    "parts/1.dat": part(
        "Brick 1 x 1", "1 16 5 0 0 0 2 0 1 0 0 0 0 1 s\\1s01.dat", "1 16 0 0 0 1 0 0 0 1 0 0 0 1 SQUARE.DAT"
    ),
    "parts/1p01.dat": part("Brick 1 x 1 with Print", SQUARE),
    "parts/1a.dat": part("Brick 1 x 1 old", SQUARE),
    "parts/2.dat": part("Plate 2 x 2", "0 !CATEGORY Flat Things", SQUARE),
    "parts/3.dat": part("~Moved to 4", SQUARE),
    "parts/4.dat": part("Sticker 4", SQUARE),
    "parts/5.dat": part("=Alias of 1", SQUARE),
}


def package(files: dict[str, str]) -> bytes:
    """As Debian packs them: `ar` with a tar inside."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"./usr/share/ldraw/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    content = b"!<arch>\n"
    for name, member in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", packed.getvalue())):
        content += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(member):<10}`\n".encode() + member
        content += b"\n" * (len(member) % 2)
    return content


def test_distinct_shapes_and_their_categories() -> None:
    expected = {"1.dat": "Brick", "1a.dat": "Brick", "2.dat": "Flat Things", "4.dat": "Sticker"}
    assert ldraw.find_shapes(FILES) == expected


def test_files_are_placed_in_others() -> None:
    triangles = ldraw.Meshes(FILES).of("parts/1.dat")
    assert triangles.shape == (3, 3, 3)
    # rows of the matrix are the new coordinates
    np.testing.assert_allclose(triangles[0], [[5, 0, 0], [5, 3, 0], [13, 0, 0]])
    assert {tuple(corner) for corner in triangles[1:].reshape(-1, 3)} == {
        (-1.0, 0.0, -1.0), (1.0, 0.0, -1.0), (1.0, 0.0, 1.0), (-1.0, 0.0, 1.0),
    }  # fmt: skip


def test_a_file_that_names_itself_ends() -> None:
    own = part("Brick", "1 16 0 0 0 1 0 0 0 1 0 0 0 1 1.dat", SQUARE)
    assert len(ldraw.Meshes({"parts/1.dat": own}).of("parts/1.dat")) > 0


def test_points_are_spread_by_area() -> None:
    small, large = np.array([[[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[9, 0, 0], [12, 0, 0], [9, 3, 0]]], np.float32)
    cloud = ldraw.sample_surface(np.stack([small, large]), 5000, np.random.default_rng(0))
    assert float((cloud[:, 0] < -0.5).mean()) == pytest.approx(0.1, abs=0.02)
    assert not cloud[:, 2].any()


def test_the_package_is_read_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = package(FILES)
    monkeypatch.setattr(ldraw, "_SHA256", checksum(content))
    monkeypatch.setattr(ldraw, "FEWEST", 1)
    monkeypatch.setenv("PERMUTOHEDRAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ldraw").mkdir()
    (tmp_path / "ldraw" / ldraw.PACKAGE).write_bytes(content)
    parts = ldraw.load_parts(tmp_path)
    assert parts.classes == ("Brick", "Flat Things")
    assert (parts.labels.tolist(), parts.bases.tolist()) == ([0, 0, 1], [1, 1, 2])
    assert parts.positions.shape == (3, ldraw.POINTS, 3)
    torch.testing.assert_close(parts.positions.norm(dim=2).amax(dim=1), torch.ones(3), atol=1e-3, rtol=0)
    # once converted, the package is not read again
    (tmp_path / "ldraw" / ldraw.PACKAGE).write_bytes(b"")
    assert torch.equal(ldraw.load_parts(tmp_path).positions, parts.positions)


def test_variants_of_a_part_stay_together() -> None:
    bases = torch.arange(400) // 2
    parts = ldraw.Parts(("a",), torch.zeros(400, 1, 3), torch.zeros(400, dtype=torch.int64), bases)
    learned, tested = (set(side.bases.tolist()) for side in parts.split())
    assert not learned & tested
    assert 0.15 < len(tested) / 200 < 0.35


def test_what_is_missing_or_damaged_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERMUTOHEDRAL_DATA", raising=False)
    with pytest.raises(DataError, match="apt-get download ldraw-parts-free"):
        ldraw.load_parts()
    with pytest.raises(DataError, match="is missing"):
        ldraw.load_parts(tmp_path)
    (tmp_path / ldraw.PACKAGE).write_bytes(b"!<arch>\n")
    with pytest.raises(DataError, match="damaged"):
        ldraw.convert(tmp_path / ldraw.PACKAGE, tmp_path / "out.npz")
    with pytest.raises(DataError, match="no member"):
        ldraw.read_package(b"!<arch>\n")
    (tmp_path / ldraw.CONVERTED).write_bytes(b"nothing")
    with pytest.raises(DataError, match="holds no parts"):
        ldraw.load_parts(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_file_is_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / ldraw.CONVERTED
    shape, numbers = np.zeros((2, 64, 3), np.int16), np.arange(2)
    np.savez_compressed(path, positions=shape, labels=numbers, bases=numbers, classes=np.array(["Brick"]))
    assert len(ldraw.load_parts(tmp_path).labels) == 2
    content = bytearray(path.read_bytes())
    content[60:80] = bytes(20)
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    with pytest.raises(DataError, match=r"holds no parts.*delete it"):
        ldraw.load_parts(tmp_path)
