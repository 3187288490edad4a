"""`denoise_image` through its command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from image_files import invoke, read_integers, write_integers
from PIL import Image

from permutohedral.apps import denoise_image
from permutohedral.errors import DataError, InputError


def clean_pixels(color: bool, levels: int = 255) -> np.ndarray:
    y, x = np.mgrid[:60, :80]
    gray = np.where((x > 30) ^ (y > 25), 0.3, 0.7)
    pixels = np.stack([gray, gray[::-1], gray[:, ::-1]], axis=-1) if color else gray
    return pixels * levels


def write(path: Path, pixels: np.ndarray, levels: int = 255) -> None:
    Image.fromarray(pixels.round().clip(0, levels).astype(np.uint8 if levels == 255 else np.uint16)).save(path)


def write_noisy(path: Path, color: bool = False, levels: int = 255) -> None:
    pixels = clean_pixels(color, levels)
    write(path, pixels + 20 / 255 * levels * np.random.default_rng(0).standard_normal(pixels.shape), levels)


def error(path: Path, levels: int = 255) -> float:
    """Root mean squared error against the clean image, white being 255."""
    pixels = np.asarray(Image.open(path)).astype(float)
    return float(np.sqrt(((pixels - clean_pixels(pixels.ndim == 3, levels)) ** 2).mean()) / levels * 255)


@pytest.mark.parametrize("ending", ["png", "tif", "jpg"])
@pytest.mark.parametrize("color", [False, True], ids=["gray", "color"])
@pytest.mark.parametrize("sigma", [[], ["--sigma", "20"]], ids=["estimated", "given"])
def test_removes_noise(ending: str, color: bool, sigma: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / f"noisy.{ending}", tmp_path / f"clean.{ending}"
    write_noisy(source, color)
    result = invoke("denoise", str(source), str(output), *sigma)
    assert result.exit_code == 0, result.output
    with Image.open(output) as image:
        assert image.size == (80, 60)
        assert image.mode == ("RGB" if color else "L")
    # JPEG smears colors over edges, before and after
    assert error(output) < (0.8 if ending == "jpg" and color else 0.6) * error(source)


def test_strength_scales_the_removed_noise(tmp_path: Path) -> None:
    write_noisy(tmp_path / "noisy.png")
    changes = []
    for strength in ("0", "0.5", "1", "1.5"):
        arguments = ["denoise", str(tmp_path / "noisy.png"), str(tmp_path / "out.png"), "--sigma", "20", "--json"]
        result = invoke(*arguments, "--strength", strength)
        assert result.exit_code == 0
        [outcome] = json.loads(result.stdout)
        assert outcome["sigma"] == 20
        before, after = (np.asarray(Image.open(tmp_path / name)).astype(float) for name in ("noisy.png", "out.png"))
        changes.append(np.square(after - before).mean())
    assert changes[0] == 0
    assert changes == sorted(changes)
    assert changes[1] < 0.5 * changes[2]


def test_denoising_keeps_sixteen_bits_of_color(tmp_path: Path) -> None:
    source, output = tmp_path / "noisy.tif", tmp_path / "clean.png"
    pixels = clean_pixels(True, 65535)
    noise = 20 / 255 * 65535 * np.random.default_rng(0).standard_normal(pixels.shape)
    write_integers(source, (pixels + noise).round().clip(0, 65535).astype(np.uint16))
    assert invoke("denoise", str(source), str(output)).exit_code == 0
    denoised = read_integers(output).astype(float)
    assert np.sqrt(((denoised - pixels) ** 2).mean()) < 0.6 * 20 / 255 * 65535


def test_estimates_the_noise(tmp_path: Path) -> None:
    write_noisy(tmp_path / "noisy.png")
    result = invoke("denoise", tmp_path / "noisy.png", tmp_path / "out.png", "--json", "--device", "cpu")
    assert result.exit_code == 0, result.output
    [outcome] = json.loads(result.stdout)
    assert outcome["input"] == str(tmp_path / "noisy.png")
    assert error(tmp_path / "out.png") < 0.8 * error(tmp_path / "noisy.png")
    assert 17 < outcome["sigma"] < 23


def test_rejects_bad_requests_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file or folder"):
        denoise_image(tmp_path / "absent.png", tmp_path / "out.png")
    with pytest.raises(InputError, match="no files to process"):
        denoise_image(tmp_path, tmp_path / "out")
    write_noisy(tmp_path / "noisy.png")
    with pytest.raises(InputError, match="name another folder"):
        denoise_image(tmp_path, tmp_path)
    with pytest.raises(InputError, match="names no known format"):
        denoise_image(tmp_path / "noisy.png", tmp_path / "out.xyz")
    with pytest.raises(InputError, match=r"sigma times strength must be between 0 and 255, .*got 300"):
        denoise_image(tmp_path / "noisy.png", tmp_path / "out.png", sigma=300)
    with pytest.raises(InputError, match=r"device is 'tpu'; pass auto, cpu, cuda"):
        denoise_image(tmp_path / "noisy.png", tmp_path / "out.png", device="tpu")
