"""Pictures on a full disk, through links, and with permissions: whole or not at all, and nobody else may read more."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch
from reliability.disks import disk, largest_file

from permutohedral.errors import StorageError
from permutohedral.pictures.files import Picture, read_picture, write_picture
from permutohedral.reporting.atomic import replacing, write_bytes
from permutohedral.reporting.figure import new_figure, save_figure

ENDINGS = ["jpg", "png", "tif", "bmp", "ppm", "webp", "gif", "jp2"]


def noise(*shape: int) -> Picture:
    """So faint that a JPEG of it takes less than two bytes for each pixel, which Pillow writes at once."""
    return Picture(0.5 + 0.2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("side", [40, 300])
def test_a_file_that_does_not_fit(ending: str, side: int, tmp_path: Path) -> None:
    path = tmp_path / f"picture.{ending}"
    write_picture(noise(3, 8, 9), path)
    before = path.read_bytes()
    with largest_file(1000), pytest.raises(StorageError, match="what was there before is unchanged"):
        write_picture(noise(3, side, side), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("side", [130, 300])
def test_a_full_disk(ending: str, side: int, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "64k") as folder:
        path = folder / f"picture.{ending}"
        write_picture(noise(3, 8, 9), path)
        before = path.read_bytes()
        (folder / "filling").write_bytes(b"f" * 48 * 1024)
        with pytest.raises(StorageError, match="No space left on device; what was there before is unchanged"):
            write_picture(noise(3, side, side), path)
        assert path.read_bytes() == before
        assert sorted(folder.iterdir()) == [folder / "filling", path]


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "svg", "pdf"])
def test_a_figure_that_does_not_fit(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"figure.{ending}"
    path.write_text("before")
    figure = new_figure(3, 3)
    figure.add_subplot().imshow(noise(1, 50, 50).pixels[0].numpy())
    with largest_file(1000), pytest.raises(StorageError, match="what was there before is unchanged"):
        save_figure(figure, path)
    assert path.read_text() == "before"


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "folder" / "real.png", tmp_path / "link.png"
    real.parent.mkdir()
    write_picture(noise(3, 8, 9), real)
    link.symlink_to(Path("folder") / "real.png")
    write_picture(noise(3, 10, 11), link)
    assert link.is_symlink()
    assert read_picture(real).pixels.shape == (3, 10, 11)
    dangling = tmp_path / "dangling.png"
    dangling.symlink_to(tmp_path / "folder" / "new.png")
    write_picture(noise(3, 10, 11), dangling)
    assert dangling.is_symlink()
    assert (tmp_path / "folder" / "new.png").is_file()
    assert sorted(path.name for path in real.parent.iterdir()) == ["new.png", "real.png"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_stay(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    write_picture(noise(3, 8, 9), path)
    path.chmod(mode)
    write_picture(noise(3, 10, 11), path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    with replacing(path) as partial:
        partial.write_text("another writer")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_device_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "null.png"
    link.symlink_to("/dev/null")
    with pytest.raises(StorageError, match="device or a pipe"):
        write_bytes(link, b"content")
    assert Path("/dev/null").is_char_device()
