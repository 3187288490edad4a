"""The command denoise, and the plan behind it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.errors import InputError
from permutohedral.pictures.batch import plan_files
from permutohedral.pictures.sixteen_bit import read_wide, write_wide

RUNNER = CliRunner()


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
    """Root mean squared error against the clean picture, white being 255."""
    pixels = np.asarray(Image.open(path)).astype(float)
    return float(np.sqrt(((pixels - clean_pixels(pixels.ndim == 3, levels)) ** 2).mean()) / levels * 255)


@pytest.mark.parametrize("ending", ["png", "tif", "jpg"])
@pytest.mark.parametrize("color", [False, True], ids=["gray", "color"])
@pytest.mark.parametrize("sigma", [[], ["--sigma", "20"]], ids=["estimated", "given"])
def test_a_picture_loses_its_noise_and_nothing_else(ending: str, color: bool, sigma: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / f"noisy.{ending}", tmp_path / f"clean.{ending}"
    write_noisy(source, color)
    result = RUNNER.invoke(application, ["denoise", str(source), str(output), *sigma])
    assert result.exit_code == 0, result.output
    with Image.open(output) as image:
        assert image.size == (80, 60)
        assert image.mode == ("RGB" if color else "L")
    # JPEG smears colors over edges, before and after
    assert error(output) < (0.8 if ending == "jpg" and color else 0.6) * error(source)


def test_the_strength_multiplies_the_noise(tmp_path: Path) -> None:
    write_noisy(tmp_path / "noisy.png")
    changes = []
    for strength in ("0", "0.5", "1", "1.5"):
        arguments = ["denoise", str(tmp_path / "noisy.png"), str(tmp_path / "out.png"), "--sigma", "20", "--json"]
        result = RUNNER.invoke(application, [*arguments, "--strength", strength, "--model", "pcnn_cnn"])
        assert result.exit_code == 0
        [outcome] = json.loads(result.stdout)
        assert outcome["sigma"] == 20
        before, after = (np.asarray(Image.open(tmp_path / name)).astype(float) for name in ("noisy.png", "out.png"))
        changes.append(np.square(after - before).mean())
    assert changes[0] == 0
    assert changes == sorted(changes)
    assert changes[1] < 0.5 * changes[2]


def test_sixteen_bits_stay_sixteen_bits(tmp_path: Path) -> None:
    source, output = tmp_path / "noisy.png", tmp_path / "clean.png"
    write_noisy(source, levels=65535)
    assert RUNNER.invoke(application, ["denoise", str(source), str(output)]).exit_code == 0
    pixels = np.asarray(Image.open(output))
    assert pixels.dtype == np.uint16
    assert len(np.unique(pixels)) > 256
    assert error(output, 65535) < 0.6 * error(source, 65535)


def test_sixteen_bits_of_color_stay_too(tmp_path: Path) -> None:
    source, output = tmp_path / "noisy.tif", tmp_path / "clean.png"
    pixels = clean_pixels(True, 65535)
    noise = 20 / 255 * 65535 * np.random.default_rng(0).standard_normal(pixels.shape)
    with open(source, "wb") as file:
        write_wide((pixels + noise).round().clip(0, 65535).astype(np.uint16), file, "TIFF")
    assert RUNNER.invoke(application, ["denoise", str(source), str(output)]).exit_code == 0
    denoised = read_wide(output).astype(float)
    assert np.sqrt(((denoised - pixels) ** 2).mean()) < 0.6 * 20 / 255 * 65535


@pytest.mark.parametrize("model", ["auto", "deep_small", "deep_large", "pcnn_cnn", "pcnn", "pcnn_gauss", "cnn"])
def test_every_model_works_and_is_measured_against_a_reference(model: str, tmp_path: Path) -> None:
    write_noisy(tmp_path / "noisy.png")
    write(tmp_path / "clean.png", clean_pixels(False))
    arguments = ["denoise", str(tmp_path / "noisy.png"), str(tmp_path / "out.png"), "--model", model, "--json"]
    result = RUNNER.invoke(application, [*arguments, "--reference", str(tmp_path / "clean.png")])
    assert result.exit_code == 0, result.output
    [outcome] = json.loads(result.stdout)
    assert outcome["psnr"][1] > outcome["psnr"][0] + 2
    assert outcome["ssim"][1] > outcome["ssim"][0]
    assert 17 < outcome["sigma"] < 23
    assert outcome["model"] == ("deep_small" if model == "auto" else model)
    clean, denoised = (np.asarray(Image.open(tmp_path / f"{name}.png")).astype(float) for name in ("clean", "out"))
    # without the variance of the rounding to whole numbers
    squared = ((denoised - clean) ** 2).mean() - 1 / 12
    assert abs(outcome["psnr"][1] - 10 * np.log10(255**2 / squared)) < 0.1


def test_a_folder_is_done_and_broken_pictures_are_reported(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    write_noisy(source / "a.png")
    write_noisy(source / "c.png", color=True)
    (source / "b.png").write_bytes((source / "a.png").read_bytes()[:300])
    (source / "notes.txt").write_text("no picture")
    figures = tmp_path / "figures"
    result = RUNNER.invoke(application, ["denoise", str(source), str(tmp_path / "out"), "--compare", str(figures)])
    assert result.exit_code == 1
    assert "b.png" in result.stderr
    assert result.stderr.count("error:") == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "c.png"]
    assert sorted(path.name for path in figures.iterdir()) == ["a.png", "c.png"]


def test_a_comparison_is_drawn(tmp_path: Path) -> None:
    write_noisy(tmp_path / "noisy.png")
    arguments = [str(tmp_path / name) for name in ("noisy.png", "out.png")]
    result = RUNNER.invoke(application, ["denoise", *arguments, "--compare", str(tmp_path / "both.png")])
    assert result.exit_code == 0
    with Image.open(tmp_path / "both.png") as figure:
        assert figure.width > 1000
    result = RUNNER.invoke(application, ["denoise", *arguments, "--compare", str(tmp_path / "both.xyz")])
    assert result.exit_code == 1
    assert "cannot write the figure" in result.stderr


def test_a_reference_of_another_size_is_refused(tmp_path: Path) -> None:
    write_noisy(tmp_path / "noisy.png")
    write_noisy(tmp_path / "color.png", color=True)
    arguments = ["denoise", str(tmp_path / "noisy.png"), str(tmp_path / "out.png")]
    result = RUNNER.invoke(application, [*arguments, "--reference", str(tmp_path / "color.png")])
    assert result.exit_code == 1
    assert "same size and channels" in result.stderr
    assert not (tmp_path / "out.png").exists()


def test_a_reference_equal_to_the_input_is_no_warning_and_valid_json(tmp_path: Path) -> None:
    write(tmp_path / "clean.png", clean_pixels(False))
    arguments = ["denoise", str(tmp_path / "clean.png"), str(tmp_path / "out.png"), "--model", "cnn", "--sigma", "10"]
    result = RUNNER.invoke(application, [*arguments, "--json", "--reference", str(tmp_path / "clean.png")])
    assert result.exit_code == 0
    assert "Infinity" not in result.stdout
    [outcome] = json.loads(result.stdout)
    assert outcome["psnr"][0] is None
    assert outcome["psnr"][1] > 20


def test_mistakes_are_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file or folder"):
        plan_files(tmp_path / "absent.png", tmp_path / "out.png")
    with pytest.raises(InputError, match="no pictures"):
        plan_files(tmp_path, tmp_path / "out")
    write_noisy(tmp_path / "noisy.png")
    with pytest.raises(InputError, match="name another folder"):
        plan_files(tmp_path, tmp_path)
    with pytest.raises(InputError, match="names no known format"):
        plan_files(tmp_path / "noisy.png", tmp_path / "out.xyz")
    result = RUNNER.invoke(application, ["denoise", str(tmp_path / "noisy.png"), "out.png", "--model", "best"])
    assert result.exit_code == 1
    assert "there is no model 'best'" in result.stderr
