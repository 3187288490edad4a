"""Transparent pixels are kept, and do not affect visible ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import invoke, png_chunk, read_integers, write_integers
from PIL import Image

import permutohedral as ph
from permutohedral import apps
from permutohedral.apps.io.image import ImageData, read_image, write_image
from permutohedral.apps.jobs.transparency import fill_hidden, filter_by_alpha
from permutohedral.errors import InputError


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_a_transparent_color_becomes_alpha(mode: str, tmp_path: Path) -> None:
    colors = np.random.default_rng(0).integers(0, 2, (8, 9), dtype=np.uint8) * 255
    image = Image.fromarray(colors).convert(mode)
    image.save(tmp_path / "a.png", transparency=(255, 255, 255) if mode == "RGB" else {"1": 1, "L": 255}[mode])
    assert invoke("filter", tmp_path / "a.png", tmp_path / "b.png", "--sigma-color", 0.01).exit_code == 0
    with Image.open(tmp_path / "b.png") as result:
        assert np.array_equal(np.asarray(result.getchannel("A")), 255 - colors)


@pytest.mark.parametrize("bits", [2, 4])
def test_a_transparent_gray_of_few_bits(bits: int, tmp_path: Path) -> None:
    """Written by hand, since Pillow does not."""
    import struct
    import zlib

    # one row of bytes, each a run of the same gray
    row = bytes([0x00, 0xFF, 0xAA, 0x55])
    width = len(row) * 8 // bits
    header = struct.pack(">IIBBBBB", width, 1, bits, 0, 0, 0, 0)
    transparent = {2: 2, 4: 10}[bits]
    chunks = [(b"IHDR", header), (b"tRNS", struct.pack(">H", transparent)), (b"IDAT", zlib.compress(b"\0" + row))]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*each) for each in [*chunks, (b"IEND", b"")])
    (tmp_path / "a.png").write_bytes(content)
    image = read_image(tmp_path / "a.png")
    assert image.alpha is not None
    expected = torch.tensor([1.0, 1.0, 0.0, 1.0]).repeat_interleave(8 // bits)
    assert torch.equal(image.alpha[0, 0], expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_color_of_sixteen_bits(channels: int, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 65536, (8, 9, channels), dtype=np.uint16)
    color = [int(number) for number in numbers[3, 4]]
    if channels == 1:
        Image.fromarray(numbers[..., 0]).save(tmp_path / "a.png", transparency=color[0])
    else:
        import struct

        write_integers(tmp_path / "plain.png", numbers)
        content = (tmp_path / "plain.png").read_bytes()
        (tmp_path / "a.png").write_bytes(content[:33] + png_chunk(b"tRNS", struct.pack(">3H", *color)) + content[33:])
    image = read_image(tmp_path / "a.png")
    assert image.alpha is not None
    assert image.levels == 65535
    assert image.alpha[0, 3, 4] == 0
    assert image.alpha.sum() == 8 * 9 - 1
    write_image(image, tmp_path / "b.png")
    assert np.array_equal(read_integers(tmp_path / "b.png")[..., :-1], numbers)


def two_halves(hidden: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """Left visible and noisy, right invisible and of any color."""
    pixels = np.zeros((16, 24, 4), dtype=np.uint8)
    pixels[:, :12, :3] = 120 + np.random.default_rng(0).integers(-30, 30, (16, 12, 3))
    pixels[:, :12, 3] = np.random.default_rng(1).integers(1, 256, (16, 12))
    pixels[:, 12:, :3] = hidden
    return pixels


@pytest.mark.parametrize("command", [["filter", "--sigma-color", "0.5"], ["denoise", "--sigma", "20"]], ids=" ".join)
def test_hidden_colors_have_no_effect(command: list[str], tmp_path: Path) -> None:
    results = []
    for number, hidden in enumerate([(0, 0, 0), (255, 255, 255), (255, 0, 0)]):
        source, output = tmp_path / f"{number}.png", tmp_path / f"{number}-out.png"
        Image.fromarray(two_halves(hidden)).save(source)
        name, *options = command
        assert invoke(name, source, output, *options).exit_code == 0
        with Image.open(output) as image:
            results.append(np.asarray(image))
    for result, hidden in zip(results, [(0, 0, 0), (255, 255, 255), (255, 0, 0)], strict=True):
        assert np.array_equal(result[:, :12], results[0][:, :12])
        assert not np.array_equal(result[:, :12, :3], two_halves(hidden)[:, :12, :3])
        # invisible pixels stay as they are
        assert np.array_equal(result[:, 12:], two_halves(hidden)[:, 12:])


def test_reports_the_method_that_ran(tmp_path: Path) -> None:
    """The filter runs on colors times alpha and on alpha, not on the colors alone."""
    Image.fromarray(two_halves((255, 0, 0))).save(tmp_path / "a.png")
    [result] = apps.filter_image(tmp_path / "a.png", tmp_path / "b.png", sigma_space=2.0)
    image = read_image(tmp_path / "a.png")
    assert image.alpha is not None
    visible = image.pixels * (image.alpha > 0)
    filtered = torch.cat([visible * image.alpha, image.alpha])
    assert result.method == str(ph.accuracy.explain_bilateral(filtered, visible, sigma_space=2.0, sigma_color=0.1))


def test_alpha_weights_pixels() -> None:
    pixels, alpha = torch.tensor([[[0.0, 1.0, 0.6]]]), torch.tensor([[[1.0, 0.5, 0.0]]])
    mean = filter_by_alpha(pixels, alpha, lambda image: image.mean(2, keepdim=True).expand_as(image))
    torch.testing.assert_close(mean, torch.tensor([[[1 / 3, 1 / 3, 0.6]]]))


def test_hidden_pixels_are_filled_from_around() -> None:
    pixels = torch.full((3, 33, 47), 0.25)
    alpha = torch.ones(1, 33, 47)
    pixels[:, 5:30, 10:40], alpha[:, 5:30, 10:40] = 1.0, 0.0
    torch.testing.assert_close(fill_hidden(pixels, alpha), torch.full((3, 33, 47), 0.25))
    assert fill_hidden(pixels, None) is pixels
    assert torch.isfinite(fill_hidden(pixels, torch.zeros(1, 33, 47))).all()


def test_rejects_formats_without_alpha(tmp_path: Path) -> None:
    Image.fromarray(two_halves((0, 0, 0))).save(tmp_path / "a.png")
    for ending in ("jpg", "ppm", "pcx"):
        result = invoke("filter", tmp_path / "a.png", tmp_path / f"b.{ending}")
        assert result.exit_code == 1
        assert result.stderr.startswith("error: cannot write")
        assert not (tmp_path / f"b.{ending}").exists()
    image = ImageData(torch.rand(3, 8, 9), alpha=torch.rand(1, 8, 9))
    write_image(image, tmp_path / "b.webp")
    assert read_image(tmp_path / "b.webp").alpha is not None


def test_rejects_half_transparent_pixels_in_gif(tmp_path: Path) -> None:
    hard = (torch.rand(1, 8, 9) > 0.5).float()
    write_image(ImageData(torch.rand(3, 8, 9), alpha=hard), tmp_path / "hard.gif")
    kept = read_image(tmp_path / "hard.gif").alpha
    assert kept is not None
    assert torch.equal(kept, hard)
    half = ImageData(torch.rand(3, 8, 9), alpha=0.5 * hard)
    with pytest.raises(InputError, match="does not hold its half-transparent pixels"):
        write_image(half, tmp_path / "half.gif")
    assert not (tmp_path / "half.gif").exists()
