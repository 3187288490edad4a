"""Full and read-only disks, links, permissions, damaged files: atomic writes and clear errors."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from reliability.disks import disk, largest_file, remount

from experiments.results import read_weights, write_weights
from permutohedral.apps.io.atomic import replacing, write_bytes
from permutohedral.apps.io.image import ImageData, read_image, write_image
from permutohedral.errors import PermutohedralError, StorageError

ENDINGS = ["jpg", "png", "tif", "bmp", "ppm", "webp", "gif", "jp2"]


def noise(*shape: int) -> ImageData:
    """Return noise so faint that a JPEG takes less than two bytes per pixel, which Pillow writes in one call."""
    return ImageData(0.5 + 0.2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)))


def test_a_read_only_disk(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "1m") as folder:
        write_bytes(folder / "result.json", b"before")
        remount(folder, "ro")
        with pytest.raises(StorageError, match=r"result.json: Read-only file system; the existing file is unch"):
            write_bytes(folder / "result.json", b"after")
        with pytest.raises(StorageError, match="Read-only file system; no file was created"):
            write_weights(folder / "new" / "weights.safetensors", torch.nn.Linear(2, 2))
        with pytest.raises(StorageError, match="Read-only"):
            write_image(ImageData(torch.zeros(1, 4, 4)), folder / "image.png")
        assert [file.name for file in folder.iterdir()] == ["result.json"]
        assert (folder / "result.json").read_text() == "before"


@pytest.mark.parametrize("kind", ["text", "weights"])
def test_a_full_disk_keeps_the_existing_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with largest_file(50_000), pytest.raises(StorageError, match=r"cannot write .*the existing file is unchanged"):
        write_bytes(path, b"x" * 100_000) if kind == "text" else write_weights(path, torch.nn.Linear(100, 1000))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_reports_damaged_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_weights(path, torch.nn.Linear(2, 2))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match="cannot read the weights"):
        read_weights(path)


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "tif", "webp"])
def test_damaged_images_are_read_or_rejected(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"image.{ending}"
    write_image(ImageData(torch.rand(3, 20, 24, generator=torch.Generator().manual_seed(0))), path)
    content = path.read_bytes()
    places = torch.randint(len(content), (60,), generator=torch.Generator().manual_seed(1)).tolist()
    for number, place in enumerate(places):
        damaged = content[:place] if number % 2 else content[:place] + bytes([number * 4]) + content[place + 1 :]
        path.write_bytes(damaged)
        try:
            read_image(path)
        except PermutohedralError as error:
            assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("side", [40, 300])
def test_an_image_that_does_not_fit_keeps_the_existing_file(ending: str, side: int, tmp_path: Path) -> None:
    path = tmp_path / f"image.{ending}"
    write_image(noise(3, 8, 9), path)
    before = path.read_bytes()
    with largest_file(1000), pytest.raises(StorageError, match="the existing file is unchanged"):
        write_image(noise(3, side, side), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_image_that_does_not_fit_behind_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONUNBUFFERED stdout has no buffer, and a part of the image is written before the error."""
    with open(tmp_path / "out.png", "wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=file))
        with largest_file(1000), pytest.raises(StorageError, match="cannot write to stdout: File too large"):
            write_image(noise(3, 40, 40), Path("-"))
        monkeypatch.undo()
    assert (tmp_path / "out.png").stat().st_size == 1000


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "folder" / "real.png", tmp_path / "link.png"
    real.parent.mkdir()
    write_image(noise(3, 8, 9), real)
    link.symlink_to(Path("folder") / "real.png")
    write_image(noise(3, 10, 11), link)
    assert link.is_symlink()
    assert read_image(real).pixels.shape == (3, 10, 11)
    dangling = tmp_path / "dangling.png"
    dangling.symlink_to(tmp_path / "folder" / "new.png")
    write_image(noise(3, 10, 11), dangling)
    assert dangling.is_symlink()
    assert (tmp_path / "folder" / "new.png").is_file()
    assert sorted(path.name for path in real.parent.iterdir()) == ["new.png", "real.png"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_stay(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    write_image(noise(3, 8, 9), path)
    path.chmod(mode)
    write_image(noise(3, 10, 11), path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    with replacing(path) as partial:
        partial.write_text("another writer")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_rejects_a_device(tmp_path: Path) -> None:
    link = tmp_path / "null.png"
    link.symlink_to("/dev/null")
    with pytest.raises(StorageError, match="device or a pipe"):
        write_bytes(link, b"content")
    assert Path("/dev/null").is_char_device()
