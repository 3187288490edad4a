"""Data sets: folders, checksums, downloads, and the readers of each."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from town import make_town

from experiments.data import bsds500, mnist
from experiments.data.bsds500 import GrayImage, add_noise, image_names, load_colors, load_images, spread
from experiments.data.download import CACHE_VARIABLE, DATA_VARIABLE, find_files, find_folder
from experiments.data.grabcut import load_photographs
from experiments.data.lidar import halve, load_scan
from experiments.data.middlebury import load_scene
from experiments.data.mnist import interpolate, load_mnist, read_idx
from experiments.data.sample import SAMPLE, cut_photograph, draw_digits
from permutohedral.errors import DataError, InputError

CONTENT = b"a file"
REGISTRY = {"part/file.bin": hashlib.sha256(CONTENT).hexdigest()}
MIRRORS = ["https://example.org/"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "set" / "part" / "file.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return tmp_path / "data"


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """Serve the files of the data set; yield the address."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder / "set"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_finds_files_in_the_folder_of_all_data_sets_or_of_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = folder / "set" / "part" / "file.bin"
    assert find_files("set", REGISTRY, MIRRORS, folder) == [expected]
    assert find_files("set", REGISTRY, MIRRORS, folder / "set") == [expected]
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert find_files("set", REGISTRY, MIRRORS) == [expected]
    with pytest.raises(DataError, match="missing"):
        find_files("set", REGISTRY, MIRRORS, tmp_path)


def test_rejects_a_damaged_file(folder: Path) -> None:
    (folder / "set" / "part" / "file.bin").write_bytes(b"a damaged file")
    with pytest.raises(DataError, match=r"damaged.*delete it"):
        find_files("set", REGISTRY, MIRRORS, folder)
    assert find_files("set", REGISTRY, MIRRORS, folder, check=False)


def test_asks_for_a_folder_of_data_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    for given in (None, "absent"):
        with pytest.raises(DataError, match=r"point --data or PERMUTOHEDRAL_DATA .* with images/NAME"):
            find_folder("set", given, "images/NAME.jpg")


def test_downloads_from_the_next_mirror_once_and_again_when_damaged(cache: Path, folder: Path, server: str) -> None:
    [path] = find_files("set", REGISTRY, [f"{server}absent/", server])
    assert path == cache / "set" / "part" / "file.bin"
    assert path.read_bytes() == CONTENT
    path.write_bytes(b"damaged")
    assert find_files("set", REGISTRY, [server])[0].read_bytes() == CONTENT
    served = folder / "set" / "part" / "file.bin"
    served.unlink()
    assert find_files("set", REGISTRY, [server]) == [path]
    path.unlink()
    served.write_bytes(b"another file")
    with pytest.raises(DataError, match=r"check the network.*absent.*; http"):
        find_files("set", REGISTRY, [f"{server}absent/", server])


def test_names_of_bsds500() -> None:
    names = {split: image_names(split) for split in bsds500.SPLITS}
    assert [len(names[split]) for split in ("train", "val", "test")] == [200, 100, 200]
    assert len({name.partition("/")[2] for split in names.values() for name in split}) == 500
    with pytest.raises(InputError, match="'train', 'val', 'test'"):
        image_names("valid")  # type: ignore[arg-type]
    assert spread(names["test"], 3) == [names["test"][number] for number in (0, 66, 133)]
    assert spread(names["val"], None) == spread(names["val"], 900) == names["val"]
    with pytest.raises(InputError, match="at least 1"):
        spread(names["test"], 0)


def test_noise_depends_on_name_and_seed_and_is_not_clipped() -> None:
    image = GrayImage("test/1", torch.ones(100, 100))
    noisy = add_noise(image)
    assert torch.equal(noisy, add_noise(GrayImage("test/1", torch.ones(100, 100))))
    assert not torch.equal(noisy, add_noise(image, seed=1))
    assert not torch.equal(noisy, add_noise(GrayImage("test/2", torch.ones(100, 100))))
    assert torch.allclose(add_noise(image, sigma=0.5) - 1, (noisy - 1) * 0.5 / bsds500.NOISE_SIGMA, atol=1e-5)
    assert float(noisy.max()) > 1.2
    assert abs(float(noisy.mean()) - 1) < 0.005


def test_images_of_bsds500(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = load_images("test", SAMPLE, limit=10)
    assert [image.name for image in images] == spread(image_names("test"), 10)
    assert {tuple(sorted(image.pixels.shape)) for image in images} == {(321, 481)}
    copy = tmp_path / "bsds500" / "test" / "2018.jpg"
    copy.parent.mkdir(parents=True)
    Image.fromarray(cut_photograph("test/2018")).save(copy, quality=95)
    content = copy.read_bytes()
    monkeypatch.setattr(bsds500, "_manifest", lambda: {"test/2018.jpg": hashlib.sha256(content).hexdigest()})
    [image] = load_images("test", tmp_path)
    [color] = load_colors("test", tmp_path).values()
    assert (image.name, color.shape) == ("test/2018", (3, 321, 481))
    assert torch.allclose(color.mean(dim=0), image.pixels, atol=1e-6)
    assert float((image.pixels - images[0].pixels).abs().mean()) < 0.02
    copy.write_bytes(content[:-100])
    with pytest.raises(DataError, match=r"2018\.jpg is damaged"):
        load_images("test", tmp_path, limit=1)


def test_scenes_of_middlebury(tmp_path: Path) -> None:
    for kind in ("color", "disparity"):
        (tmp_path / "middlebury" / kind).mkdir(parents=True)
    disparity = tmp_path / "middlebury" / "disparity" / "art.png"
    Image.fromarray(np.full((3, 4, 3), 255, np.uint8)).save(tmp_path / "middlebury" / "color" / "art.png")
    Image.fromarray(np.full((3, 4), 200, np.uint8)).save(disparity)
    for folder in (tmp_path, tmp_path / "middlebury"):
        scene = load_scene("art", folder)
        assert (scene.color.shape, scene.disparity.shape) == ((3, 3, 4), (1, 3, 4))
        assert (float(scene.color.max()), float(scene.disparity.max())) == (1.0, 200.0)
    Image.fromarray(np.full((2, 4), 200, np.uint8)).save(disparity)
    with pytest.raises(DataError, match="differ in size"):
        load_scene("art", tmp_path)


def test_laser_scans_have_known_classes(tmp_path: Path) -> None:
    positions, labels = make_town(500)
    np.savez(tmp_path / "house.npz", positions=positions.numpy(), classification=labels.numpy())
    scan = load_scan("house", tmp_path)
    numbers = torch.tensor([0, 0, 0, 0, 0, 1, 2])
    numbers[2] = 0
    assert torch.equal(scan.labels, numbers[labels.long()])
    assert float(scan.positions.amin(dim=0).add(scan.positions.amax(dim=0)).abs().max()) < 1e-3
    west, east = halve(scan)
    assert len(west.labels) + len(east.labels) == 500
    assert float(west.positions[:, 0].max()) < 0 <= float(east.positions[:, 0].min())


def test_rejects_missing_and_damaged_scans(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"house\.laz is missing"):
        load_scan("house", tmp_path)
    (tmp_path / "house.laz").write_bytes(b"LASF")
    with pytest.raises(DataError, match="is damaged"):
        load_scan("house", tmp_path)
    (tmp_path / "house.laz").unlink()
    np.savez(tmp_path / "house.npz", positions=make_town(50)[0].numpy())
    with pytest.raises(DataError, match="has no classes"):
        load_scan("house", tmp_path)


def test_reads_idx() -> None:
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])
    assert read_idx(content).tolist() == [[1, 2, 3], [4, 5, 255]]
    for wrong in (b"", b"\0\0\x09\1", content[:-1]):
        with pytest.raises(InputError, match="IDX"):
            read_idx(wrong)


def test_mnist_accepts_recompressed_and_rejects_damaged_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = draw_digits(20, seed=0)
    files = {}
    for kind, data in (("images", images), ("labels", labels.byte())):
        content = (
            bytes([0, 0, 8, data.dim(), *b"".join(size.to_bytes(4) for size in data.shape)]) + data.numpy().tobytes()
        )
        files["test", kind] = (f"{kind}.gz", "of another copy", hashlib.sha256(content).hexdigest())
        (tmp_path / f"{kind}.gz").write_bytes(gzip.compress(content, compresslevel=1))
    monkeypatch.setattr(mnist, "_FILES", files)
    read = load_mnist("test", tmp_path)
    assert torch.equal(read[0], images)
    assert torch.equal(read[1], labels)
    path = tmp_path / "labels.gz"
    for damaged in (gzip.compress(content[:-1] + b"\1"), path.read_bytes()[:-5]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            load_mnist("test", tmp_path)
    with pytest.raises(InputError, match="'train' or 'test'"):
        load_mnist("val")  # type: ignore[arg-type]


def test_the_sample_is_small_and_always_the_same() -> None:
    digits, labels = load_mnist("train", SAMPLE)
    # enough to hold out the 5,000 of the experiments
    assert len(digits) == len(labels) == 6000
    assert torch.bincount(labels).min() > 500
    assert 0.05 < float((digits > 100).float().mean()) < 0.3
    assert torch.equal(cut(), cut())
    photo, other = load_photographs("lasso", SAMPLE, 2)
    assert photo.foreground.any()
    assert not load_photographs("rect", SAMPLE, 1)[0].foreground.any()
    assert not torch.equal(photo.pixels, other.pixels)
    assert ((photo.foreground.int() + photo.unknown.int() + photo.background.int()) <= 1).all()
    assert load_scan("zurich", SAMPLE).labels.unique().tolist() == [0, 1, 2]
    assert load_scene("art", SAMPLE).disparity.shape == (1, 96, 128)


def cut() -> torch.Tensor:
    """Return a photograph of the sample."""
    return torch.from_numpy(cut_photograph("test/2018").copy())


def test_interpolation_is_exact_for_a_plane_and_at_the_pixels() -> None:
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(7.0), indexing="ij")
    plane = (2 * y - 3 * x + 1)[None]
    positions = torch.rand(1, 50, 2) * torch.tensor([4.0, 6.0])
    expected = 2 * positions[..., 0] - 3 * positions[..., 1] + 1
    assert torch.allclose(interpolate(plane, positions), expected, atol=1e-5)
    pixels = torch.stack([y, x], dim=-1).reshape(1, -1, 2)
    assert torch.equal(interpolate(plane, pixels), plane.reshape(1, -1))
