"""`filter_image` through its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import assert_one_line_error, invoke
from PIL import Image

import permutohedral as ph

# rounding to the levels of the file: half a level
LEVEL = 1 / 255


def save(path: Path, pixels: np.ndarray[Any, Any]) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def random_pixels(random: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return random.integers(0, 256, shape, dtype=np.uint8)


def as_tensor(pixels: np.ndarray[Any, Any], levels: int = 255) -> torch.Tensor:
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(pixels.astype(np.float32) / levels).permute(2, 0, 1)


def read(path: Path, levels: int = 255) -> torch.Tensor:
    with Image.open(path) as image:
        return as_tensor(np.asarray(image), levels)


def test_filter_writes_the_bilateral_filter(tmp_path: Path, random: np.random.Generator) -> None:
    pixels = random_pixels(random, 20, 30, 3)
    source, output = save(tmp_path / "in.png", pixels), tmp_path / "out.png"
    result = invoke("filter", source, output, "--sigma-space", 3, "--sigma-color", 0.2)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    expected = ph.bilateral_filter(as_tensor(pixels), sigma_space=3.0, sigma_color=0.2, method="auto")
    torch.testing.assert_close(read(output), expected, rtol=0, atol=LEVEL)


@pytest.mark.parametrize(("method", "halo"), [("dense", 0), ("lattice", 1), ("exact", 0), ("auto", 0)])
def test_filter_with_each_method(method: Any, halo: int, tmp_path: Path, random: np.random.Generator) -> None:
    pixels = random_pixels(random, 20, 30, 1)[..., 0]
    source, output = save(tmp_path / "in.png", pixels), tmp_path / "out.png"
    options = ("--sigma-space", 2, "--sigma-color", 0.2, "--method", method, "--halo", halo, "--json")
    (report,) = json.loads(invoke("filter", source, output, *options).stdout)
    expected = ph.bilateral_filter(
        as_tensor(pixels), sigma_space=2.0, sigma_color=0.2, guide=None, method=method, halo=halo
    )
    torch.testing.assert_close(read(output), expected, rtol=0, atol=LEVEL)
    assert report["method"].startswith("exact: about" if method == "auto" else method)
    assert report["relative_error"] is None


def test_filter_estimates_its_error(tmp_path: Path, random: np.random.Generator) -> None:
    """Noise through a filter narrow in color: the lattice is too coarse, and says so if asked."""
    source, output = save(tmp_path / "in.png", random_pixels(random, 40, 50, 3)), tmp_path / "out.png"
    options = ("--sigma-space", 4, "--sigma-color", 0.2, "--check", "--json")
    rough = invoke("filter", source, output, *options, "--method", "lattice")
    (report,) = json.loads(rough.stdout)
    assert report["relative_error"] > 0.01
    assert report["worst_error"] > 0
    assert rough.stderr.startswith(f"note: {output} is far from the exact filter")
    assert rough.exit_code == 0
    exact = invoke("filter", source, output, *options, "--method", "exact")
    (report,) = json.loads(exact.stdout)
    assert report["relative_error"] < 1e-3
    assert exact.stderr == ""


def test_filter_rejects_a_halo_without_a_lattice(tmp_path: Path, random: np.random.Generator) -> None:
    source = save(tmp_path / "in.png", random_pixels(random, 8, 9, 3))
    result = invoke("filter", source, tmp_path / "out.png", "--method", "exact", "--halo", 1)
    assert_one_line_error(result, "no halo")
    assert not (tmp_path / "out.png").exists()


def test_filter_takes_edges_from_the_guide(tmp_path: Path, random: np.random.Generator) -> None:
    pixels, guide = random_pixels(random, 20, 30), random_pixels(random, 20, 30, 3)
    source, output = save(tmp_path / "in.png", pixels), tmp_path / "out.png"
    assert invoke("filter", source, output, "--guide", save(tmp_path / "guide.png", guide)).exit_code == 0
    expected = ph.bilateral_filter(
        as_tensor(pixels), sigma_space=8.0, sigma_color=0.1, guide=as_tensor(guide), method="auto"
    )
    torch.testing.assert_close(read(output), expected, rtol=0, atol=LEVEL)


@pytest.mark.parametrize("ending", ["jpg", "webp"])
def test_lossy_formats_keep_colors(ending: str, tmp_path: Path) -> None:
    """Red and blue stripes of one pixel: at usual settings their colors are mixed."""
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[:, ::2, 0], pixels[:, 1::2, 2] = 220, 220
    source, output = save(tmp_path / "source.png", pixels), tmp_path / f"output.{ending}"
    assert invoke("filter", source, output, "--sigma-color", 0.001).exit_code == 0
    assert float((read(output) - as_tensor(pixels)).abs().mean()) < 0.02


def test_filter_prints_json(tmp_path: Path, random: np.random.Generator) -> None:
    source = save(tmp_path / "in.png", random_pixels(random, 8, 9, 3))
    (report,) = json.loads(invoke("filter", source, tmp_path / "out.png", "--json").stdout)
    assert (report["height"], report["width"], report["channels"]) == (8, 9, 3)
    assert (report["input"], report["output"]) == (str(source), str(tmp_path / "out.png"))


def test_filter_takes_a_folder(tmp_path: Path, random: np.random.Generator) -> None:
    sources, guides = tmp_path / "in", tmp_path / "guides"
    sources.mkdir()
    guides.mkdir()
    for name in ("a.png", "b.png"):
        save(sources / name, random_pixels(random, 8, 9))
        save(guides / name, random_pixels(random, 8, 9, 3))
    (sources / "c.png").write_text("no image")
    (sources / "notes.txt").write_text("left alone")
    result = invoke("filter", sources, tmp_path / "out", "--guide", guides, "--sigma-color", 0.3, "--json")
    assert_one_line_error(result, "c.png", "not an image")
    report = {Path(entry["input"]).name: entry["error"] for entry in json.loads(result.stdout)}
    assert report["a.png"] is None
    assert report["b.png"] is None
    assert "not an image" in report["c.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "b.png"]
    expected = ph.bilateral_filter(
        read(sources / "b.png"), sigma_space=8.0, sigma_color=0.3, guide=read(guides / "b.png"), method="auto"
    )
    torch.testing.assert_close(read(tmp_path / "out" / "b.png"), expected, rtol=0, atol=LEVEL)


def test_rejects_unreadable_input(tmp_path: Path, random: np.random.Generator) -> None:
    output = tmp_path / "out.png"
    assert_one_line_error(invoke("filter", tmp_path / "none.png", output), "none.png", "no file or folder")
    text = tmp_path / "text.png"
    text.write_text("no image")
    assert_one_line_error(invoke("filter", text, output), "text.png", "not an image")
    damaged = save(tmp_path / "damaged.png", random_pixels(random, 50, 50, 3))
    damaged.write_bytes(damaged.read_bytes()[:2000])
    assert_one_line_error(invoke("filter", damaged, output), "damaged.png")
    assert not output.exists()


def test_rejects_several_frames(tmp_path: Path, random: np.random.Generator) -> None:
    frames = [Image.fromarray(random_pixels(random, 8, 9, 3)) for _ in range(2)]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    assert_one_line_error(invoke("filter", tmp_path / "two.gif", tmp_path / "out.png"), "2 frames", "name OUTPUT .zarr")


def test_rejects_impossible_output(tmp_path: Path, random: np.random.Generator) -> None:
    source = save(tmp_path / "in.png", random_pixels(random, 8, 9, 4))
    assert_one_line_error(invoke("filter", source, tmp_path / "none" / "out.png"), "no folder")
    assert_one_line_error(invoke("filter", source, tmp_path), "would overwrite")
    assert_one_line_error(invoke("filter", source, tmp_path / "out.unknown"), ".unknown", ".png")
    assert_one_line_error(invoke("filter", source, tmp_path / "photo"), "its name has no ending; try .png")
    # JPEG holds no alpha
    assert_one_line_error(invoke("filter", source, tmp_path / "out.jpg"), "RGBA")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.png"]


def test_rejects_a_guide_of_another_size(tmp_path: Path, random: np.random.Generator) -> None:
    source = save(tmp_path / "in.png", random_pixels(random, 8, 9, 3))
    guide = save(tmp_path / "guide.png", random_pixels(random, 9, 8, 3))
    assert_one_line_error(invoke("filter", source, tmp_path / "out.png", "--guide", guide), "8 x 9", "9 x 8")


def test_rejects_an_unknown_backend(tmp_path: Path, random: np.random.Generator) -> None:
    source = save(tmp_path / "in.png", random_pixels(random, 8, 9, 3))
    assert_one_line_error(invoke("filter", source, tmp_path / "out.png", "--backend", "abacus"), "abacus", "reference")


@pytest.mark.parametrize("sigma", ["0", "-1", "nan", "inf", "wide"])
def test_invalid_bandwidth_is_a_usage_error(sigma: str) -> None:
    result = invoke("filter", "in.png", "out.png", "--sigma-space", sigma)
    assert result.exit_code == 2
    assert "--sigma-space" in result.stderr


def test_failed_write_keeps_the_old_file(
    tmp_path: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(tmp_path / "in.png", random_pixels(random, 8, 9, 3))
    output = tmp_path / "out.png"
    output.write_text("as it was")

    def fail_midway(self: Image.Image, file: Any, **options: Any) -> None:
        file.write(b"half an image")
        raise OSError("No space left on device")

    monkeypatch.setattr(Image.Image, "save", fail_midway)
    assert_one_line_error(invoke("filter", source, output), "No space left")
    assert output.read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.png", "out.png"]
