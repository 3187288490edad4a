from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
import torch
from datasets import data_folder

from experiments.data.mnist import interpolate, load_mnist, read_idx, sample_at_random
from permutohedral.errors import DataError, InputError


def test_read_idx_gives_the_shape_and_the_bytes() -> None:
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])
    assert read_idx(content).tolist() == [[1, 2, 3], [4, 5, 255]]


@pytest.mark.parametrize("content", [b"", b"\0\0\x09\1", bytes([0, 0, 8, 1, 0, 0, 0, 3, 1])])
def test_read_idx_rejects_other_content(content: bytes) -> None:
    with pytest.raises(InputError, match="IDX"):
        read_idx(content)


def test_the_test_split_loads() -> None:
    images, labels = load_mnist("test", data_folder("mnist"))
    assert images.shape == (10000, 28, 28)
    assert images.dtype == torch.uint8
    assert labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert torch.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_accepts_recompressed_and_rejects_damaged_copies(tmp_path: Path) -> None:
    source = data_folder("mnist") / "mnist"
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        shutil.copy(source / name, folder / name)
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    content = gzip.decompress(labels.read_bytes())
    labels.write_bytes(gzip.compress(content, compresslevel=1))
    assert load_mnist("test", tmp_path)[1].shape == (10000,)
    labels.write_bytes(gzip.compress(content[:-1] + b"\1"))
    with pytest.raises(DataError, match="damaged"):
        load_mnist("test", tmp_path)
    labels.write_bytes(labels.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged"):
        load_mnist("test", tmp_path)


def test_rejects_unknown_split() -> None:
    with pytest.raises(InputError, match="'train' or 'test'"):
        load_mnist("val")  # type: ignore[arg-type]


def test_interpolation_is_exact_for_a_plane_and_at_the_pixels() -> None:
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(7.0), indexing="ij")
    plane = (2 * y - 3 * x + 1)[None]
    positions = torch.rand(1, 50, 2) * torch.tensor([4.0, 6.0])
    expected = 2 * positions[..., 0] - 3 * positions[..., 1] + 1
    assert torch.allclose(interpolate(plane, positions), expected, atol=1e-5)
    pixels = torch.stack([y, x], dim=-1).reshape(1, -1, 2)
    assert torch.equal(interpolate(plane, pixels), plane.reshape(1, -1))


@pytest.mark.parametrize(("share", "samples"), [(1.0, 784), (0.6, 470), (0.2, 157)])
def test_random_samples_number_as_the_share_says_and_lie_inside(share: float, samples: int) -> None:
    positions, values = sample_at_random(torch.rand(3, 28, 28), share, seed=0)
    assert positions.shape == (3, samples, 2)
    assert values.shape == (3, samples, 1)
    assert float(positions.min()) >= 0
    assert float(positions.max()) <= 27
    assert abs(float(positions.mean()) - 13.5) < 1.0


def test_positions_depend_on_seed_and_image_only() -> None:
    images = torch.rand(4, 28, 28)
    together, values = sample_at_random(images, 0.2, seed=3, first=10)
    alone, value = sample_at_random(images[2:3], 0.2, seed=3, first=12)
    assert torch.equal(together[2:3], alone)
    assert torch.equal(values[2:3], value)
    assert not torch.equal(sample_at_random(images, 0.2, seed=4, first=10)[0], together)
    assert len({tuple(item.flatten().tolist()) for item in together}) == 4
