from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from datasets import data_folder

from experiments.data import bsds500
from experiments.data.bsds500 import GrayImage, add_noise, image_names, load_images, spread
from permutohedral.errors import DataError, InputError


def test_splits_are_the_published_ones() -> None:
    names = {split: image_names(split) for split in bsds500.SPLITS}
    assert [len(names[split]) for split in ("train", "val", "test")] == [200, 100, 200]
    numbers = [name.partition("/")[2] for split in names.values() for name in split]
    assert len(set(numbers)) == 500


def test_rejects_unknown_split() -> None:
    with pytest.raises(InputError, match="'train', 'val', 'test'"):
        image_names("valid")  # type: ignore[arg-type]


def test_spread_takes_the_number_asked_for() -> None:
    names = [str(i) for i in range(7)]
    assert spread(names, 3) == ["0", "2", "4"]
    assert spread(names, None) == spread(names, 9) == names
    with pytest.raises(InputError, match="at least 1"):
        spread(names, 0)


def test_noise_depends_on_name_and_seed_alone() -> None:
    image = GrayImage("test/1", torch.zeros(40, 50))
    noise = add_noise(image)
    assert torch.equal(noise, add_noise(GrayImage("test/1", torch.zeros(40, 50))))
    assert not torch.equal(noise, add_noise(image, seed=1))
    assert not torch.equal(noise, add_noise(GrayImage("test/2", torch.zeros(40, 50))))
    assert torch.allclose(add_noise(image, sigma=0.5), noise * 0.5 / bsds500.NOISE_SIGMA)


def test_noise_is_not_clipped() -> None:
    noisy = add_noise(GrayImage("white", torch.ones(100, 100)))
    assert float(noisy.max()) > 1.2
    assert abs(float(noisy.mean()) - 1) < 0.005


def test_real_images_load_and_their_noise_measures_20_17_decibels() -> None:
    images = load_images("test", data_folder("bsds500"), limit=10)
    assert [image.name for image in images] == spread(image_names("test"), 10)
    assert {tuple(sorted(image.pixels.shape)) for image in images} == {(321, 481)}
    errors = [(add_noise(image) - image.pixels).square().mean() for image in images]
    psnr = -10 * torch.stack(errors).log10().mean()
    assert abs(float(psnr) - 20.17) < 0.01


def test_rejects_damaged_image(tmp_path: Path) -> None:
    source = data_folder("bsds500") / "bsds500" / "test" / "2018.jpg"
    copy = tmp_path / "bsds500" / "test" / "2018.jpg"
    copy.parent.mkdir(parents=True)
    shutil.copy(source, copy)
    assert len(load_images("test", tmp_path, limit=1)) == 1
    copy.write_bytes(copy.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"2018\.jpg is damaged"):
        load_images("test", tmp_path, limit=1)
