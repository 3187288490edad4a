"""The Python and the command line that the page shows write the very file that it offers for download."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import permutohedral as ph
from permutohedral.cli.application import application
from permutohedral.pictures import TILE
from permutohedral.pictures.files import Picture
from permutohedral.playground import code as texts
from permutohedral.playground import settings as given
from permutohedral.playground.code import Code
from permutohedral.playground.compute import denoising, filtering, lattices, segmenting, upsampling
from permutohedral.playground.compute.layers import encode_png
from permutohedral.playground.compute.photos import Photo, make_photo, read_photo
from permutohedral.playground.runner import DroppedError


def nothing(*_: object) -> None:
    """What calls it now and then goes on."""


@pytest.fixture
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Photo:
    """A photo with an edge, in a folder where the code runs; its name needs quotes in a shell."""
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(1).normal(90, 20, (36, 52, 3))
    numbers[:, 26:] += 90
    Image.fromarray(numbers.clip(0, 255).astype(np.uint8)).save("my photo.png")
    return read_photo(Path("my photo.png"), "my photo.png")


@pytest.fixture
def transparent(photo: Photo) -> Photo:
    """The same with a hole of another color, and half transparent around it."""
    alpha = torch.ones(1, 36, 52)
    alpha[:, 4:20, 20:34], alpha[:, 8:16, 24:30] = 0.5, 0.0
    pixels = torch.where(alpha > 0, photo.pixels, torch.tensor([0.0, 1.0, 0.0])[:, None, None])
    Path("hole.png").write_bytes(encode_png(Picture(pixels, alpha)))
    return read_photo(Path("hole.png"), "hole.png")


def run(code: Code, result: str) -> None:
    """Run both, and compare what they write to `result` with the download, which the caller put there."""
    downloaded = Path(result).read_bytes()
    for way in (code.python, code.command):
        Path(result).unlink()
        if way is code.python:
            exec(compile(way, "shown", "exec"), {})
        else:
            words = shlex.split(way)
            assert words[0] == "permutohedral"
            answer = CliRunner().invoke(application, words[1:], catch_exceptions=False)
            assert answer.exit_code == 0, answer.output
        assert Path(result).read_bytes() == downloaded


@pytest.mark.parametrize(
    ("settings", "at_once"),
    [
        (given.FilterSettings(3.0, 0.2), True),
        (given.FilterSettings(2.0, 0.15, "exact", 0, guided=True), True),
        (given.FilterSettings(4.0, 0.2, "separable", 1), False),
    ],
    ids=["plain", "guided", "tiles"],
)
def test_filter(photo: Photo, settings: given.FilterSettings, at_once: bool) -> None:
    Path("guide.png").write_bytes(encode_png(Picture(photo.pixels.flip(2))))
    guide = read_photo(Path("guide.png"), "guide.png")
    result = filtering.filter_photo(photo, guide, settings, nothing).result
    Path("smooth.png").write_bytes(encode_png(photo.picture.with_pixels(result.pixels)))
    pixels = photo.num_pixels if at_once else TILE**2 + 1
    code = texts.filter_code(settings, photo.name, "guide.png", pixels)
    assert ("filter_in_tiles" in code.python) is not at_once
    run(code, "smooth.png")


@pytest.mark.parametrize(
    "settings",
    [given.DenoiseSettings("cnn", 0.7, added=25.0), given.DenoiseSettings("cnn", sigma=15.0)],
    ids=["noise added and estimated", "noise given"],
)
def test_denoise(photo: Photo, settings: given.DenoiseSettings) -> None:
    noisy = denoising.add_noise(photo.picture, settings.added)
    sigma = denoising.noise_of(noisy, settings)
    result = denoising.denoise_photo(noisy, sigma, settings, nothing)
    Path("noisy.png").write_bytes(encode_png(noisy))
    Path("clean.png").write_bytes(encode_png(noisy.with_pixels(result.pixels)))
    run(texts.denoise_code(settings, photo.name), "clean.png")


def test_segment(photo: Photo) -> None:
    # the first brush is not used, and the strokes are not in the order of their labels
    strokes = (given.Stroke(3, 2.0, ((40.0, 5.0), (45.0, 30.0))), given.Stroke(1, 2.5, ((8.0, 5.0), (8.0, 30.0))))
    settings = replace(given.STROKES, sigma_space=20.0, sigma_range=0.2)
    found = segmenting.segment_photo(photo, strokes, settings, nothing)
    assert 0 < found.doubt < 0.5
    painted = (255 * found.found.paint().pixels[:, 18]).round().int()
    assert tuple(painted[:, 4].tolist()) == given.BRUSHES[1]
    assert tuple(painted[:, 48].tolist()) == given.BRUSHES[3]
    Path("labels.png").write_bytes(encode_png(found.given.paint()))
    Path("out.png").write_bytes(encode_png(found.found.paint()))
    run(texts.segment_code(settings, photo.name), "out.png")


@pytest.mark.parametrize("mode", given.MODES)
def test_upsample_what_the_page_makes(photo: Photo, mode: given.Mode) -> None:
    settings = given.UpsampleSettings(4, mode=mode)
    material = upsampling.colors_of(photo, settings.factor)
    found = upsampling.upsample(material, settings, nothing)
    enlarged = upsampling.enlarge(material)
    assert found.psnr is not None
    assert enlarged.psnr is not None
    assert found.psnr > enlarged.psnr
    assert material.coarse.picture is not None
    Path("coarse.png").write_bytes(encode_png(material.coarse.picture))
    Path("guide.png").write_bytes(encode_png(Picture(material.guide)))
    Path("out.png").write_bytes(upsampling.result_file(found.values, material, "out.png"))
    run(texts.upsample_code(settings, "coarse.png", "guide.png", "out.png"), "out.png")


@pytest.mark.parametrize("name", ["depth.npy", "depth.tif"])
def test_upsample_a_map_of_numbers(photo: Photo, name: str) -> None:
    """Of floats, and of whole numbers, which are a picture too."""
    settings = given.UpsampleSettings()
    depth = np.linspace(2, 9, 9 * 13, dtype=np.float32).reshape(9, 13)
    if name.endswith(".npy"):
        np.save(name, depth)
    else:
        Image.fromarray((1000 * depth).astype(np.uint16)).save(name)
    material = upsampling.own_map(Path(name), name, photo)
    found = upsampling.upsample(material, settings, nothing)
    assert found.psnr is None
    Path("out.npy").write_bytes(upsampling.result_file(found.values, material, "out.npy"))
    run(texts.upsample_code(settings, name, photo.name, "out.npy"), "out.npy")


@pytest.mark.parametrize(("guided", "at_once"), [(False, True), (True, True), (False, False)])
def test_filter_a_transparent_photo(transparent: Photo, guided: bool, at_once: bool) -> None:
    settings = given.FilterSettings(3.0, 0.3, guided=guided)
    guide = read_photo(Path("my photo.png"), "my photo.png")
    found = filtering.filter_photo(transparent, guide, settings, nothing)
    Path("smooth.png").write_bytes(encode_png(transparent.picture.with_pixels(found.result.pixels)))
    pixels = transparent.num_pixels if at_once else TILE**2 + 1
    run(texts.filter_code(settings, "hole.png", guide.name, pixels, transparent.is_transparent), "smooth.png")
    assert filtering.estimate(transparent, guide, settings, found).relative < 0.1


@pytest.mark.parametrize("settings", [given.DenoiseSettings("cnn", added=25.0), given.DenoiseSettings("cnn")])
def test_denoise_a_transparent_photo(transparent: Photo, settings: given.DenoiseSettings) -> None:
    noisy = denoising.add_noise(transparent.picture, settings.added)
    result = denoising.denoise_photo(noisy, denoising.noise_of(noisy, settings), settings, nothing)
    Path("noisy.png").write_bytes(encode_png(noisy))
    Path("clean.png").write_bytes(encode_png(noisy.with_pixels(result.pixels)))
    run(texts.denoise_code(settings, "hole.png", transparent.is_transparent), "clean.png")
    before, after = (denoising.quality(each, transparent.picture) for each in (noisy.pixels, result.pixels))
    assert settings.added == 0 or after > before


def test_segment_and_upsample_along_a_transparent_photo(transparent: Photo) -> None:
    strokes = (given.Stroke(0, 2.0, ((5.0, 5.0), (5.0, 30.0))), given.Stroke(1, 2.0, ((45.0, 5.0), (45.0, 30.0))))
    found = segmenting.segment_photo(transparent, strokes, given.STROKES, nothing)
    Path("labels.png").write_bytes(encode_png(found.given.paint()))
    Path("out.png").write_bytes(encode_png(found.found.paint()))
    run(texts.segment_code(given.STROKES, "hole.png", transparent.is_transparent), "out.png")
    np.save("depth.npy", np.linspace(2, 9, 9 * 13, dtype=np.float32).reshape(9, 13))
    material = upsampling.own_map(Path("depth.npy"), "depth.npy", transparent)
    settings = given.UpsampleSettings()
    upsampled = upsampling.upsample(material, settings, nothing)
    Path("out.npy").write_bytes(upsampling.result_file(upsampled.values, material, "out.npy"))
    run(texts.upsample_code(settings, "depth.npy", "hole.png", "out.npy", transparent.is_transparent), "out.npy")


def test_segmenting_and_upsampling_end_when_they_are_no_longer_wanted(photo: Photo) -> None:
    shares: list[float] = []

    def drop(share: float = 1.0) -> None:
        shares.append(share)
        if share > 0.5:
            raise DroppedError

    strokes = (given.Stroke(0, 2.0, ((5.0, 5.0),)), given.Stroke(1, 2.0, ((45.0, 5.0),)))
    with pytest.raises(DroppedError):
        segmenting.segment_photo(photo, strokes, given.STROKES, drop)
    # two lattices, and the first of two parts of the steps
    assert shares == [0.25, 0.5, 0.75]
    material = upsampling.colors_of(photo, 4)
    with pytest.raises(DroppedError):
        upsampling.upsample(material, given.UpsampleSettings(), drop)


def test_lattice(photo: Photo, capsys: pytest.CaptureFixture[str]) -> None:
    settings = given.LatticeSettings(-1.2, 0.7, 2)
    found = lattices.describe_point(settings)
    code = texts.lattice_code(settings)
    exec(compile(code.python, "shown", "exec"), {})
    printed = capsys.readouterr().out
    assert str(found["weights"]) in printed
    assert str(len(found["taps"])) in printed
    corners, weights = np.array(found["corners"]), np.array(found["weights"])
    np.testing.assert_allclose(weights @ corners, [-1.2, 0.7], atol=1e-12)
    assert CliRunner().invoke(application, shlex.split(code.command)[1:]).exit_code == 0


@pytest.mark.parametrize(("method", "halo"), [("exact", 0), ("dense", 0), ("separable", 1)])
def test_parts_give_the_bits_of_the_whole(method: given.Method, halo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "_PART", 32)
    photo = make_photo(Picture(torch.rand(3, 50, 70, generator=torch.Generator().manual_seed(0))), "photo")
    looked: list[bool] = []
    result = filtering.filter_photo(
        photo, None, given.FilterSettings(1.5, 0.3, method, halo), lambda: looked.append(True)
    ).result
    assert len(looked) > 1
    whole = ph.bilateral_filter(photo.pixels, 1.5, 0.3, method=method, halo=halo)
    assert torch.equal(result.pixels, whole)


def test_previews_cover_the_photo(photo: Photo) -> None:
    previews: list[Callable[[], object]] = [
        lambda: filtering.preview(photo, None, given.FilterSettings()).region,
        lambda: denoising.preview(photo.picture, 0.1, given.DenoiseSettings("cnn")).region,
    ]
    assert [preview() for preview in previews] == [(0, 0, 52, 36), (0, 0, 52, 36)]
    assert torch.equal(segmenting.draw_strokes(
        [given.Stroke(0, 1.0, ((4.0, 4.0),)), given.Stroke(1, 1.0, ((40.0, 4.0),))], (18, 26), 2
    ).labels.unique(), torch.tensor([-1, 0, 1]))  # fmt: skip


@pytest.mark.parametrize("name", ["a\nb.png", 'a"b.png', "a\\b.png", "a'b.png", "\u00fc b.png"])
def test_names_of_files_are_quoted(name: str) -> None:
    """All that a file may be called on this system."""
    code = texts.filter_code(given.FilterSettings(), name, None, 100)
    constants = [node.value for node in ast.walk(ast.parse(code.python)) if isinstance(node, ast.Constant)]
    assert name in constants
    assert shlex.split(code.command)[2] == name
