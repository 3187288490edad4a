"""Shown Python and commands write the file that the page offers for download."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from permutohedral.apps.cli.application import application
from permutohedral.apps.io.image import ImageData
from permutohedral.apps.playground import compute
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.photos import Photo, encode_png, read_photo
from permutohedral.apps.playground.runner import DroppedError
from permutohedral.apps.playground.strokes import BRUSHES, Stroke, write_strokes
from permutohedral.apps.playground.tabs import MODES, SegmentPanel, UpsamplePanel, upsample_job

FILTER = {"sigma_space": 3.0, "sigma_color": 0.2, "method": "lattice", "halo": 0}
SEGMENT = {**SegmentPanel.start, "sigma_space": 20.0, "sigma_color": 0.2}
# the first brush is not used, and the strokes are not in the order of their labels
STROKES = (Stroke(3, 2.0, ((40.0, 5.0), (45.0, 30.0))), Stroke(1, 2.5, ((8.0, 5.0), (8.0, 30.0))))


def ignore(share: float) -> None:
    """Do nothing with progress."""


@pytest.fixture
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Photo:
    """A photo with an edge, in the current folder; its name needs quotes in a shell."""
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(1).normal(90, 20, (36, 52, 3))
    numbers[:, 26:] += 90
    Image.fromarray(numbers.clip(0, 255).astype(np.uint8)).save("my photo.png")
    return read_photo(Path("my photo.png"), "my photo.png")


@pytest.fixture
def transparent(photo: Photo) -> Photo:
    """The same photo with a hole of another color, and half transparent around it."""
    alpha = torch.ones(1, 36, 52)
    alpha[:, 4:20, 20:34], alpha[:, 8:16, 24:30] = 0.5, 0.0
    pixels = torch.where(alpha > 0, photo.image.pixels, torch.tensor([0.0, 1.0, 0.0])[:, None, None])
    Path("hole.png").write_bytes(encode_png(ImageData(pixels, alpha)))
    return read_photo(Path("hole.png"), "hole.png")


def check(job: Job, result: compute.Result) -> None:
    """Check that the shown Python and command write the file that is offered."""
    output = Path(job.files[-1])
    for name, make in result.files.items():
        if name != output.name:
            Path(name).write_bytes(make())
    for way in ("python", "command"):
        if way == "python":
            exec(compile(job.python, "shown", "exec"), {})
        else:
            words = shlex.split(job.command)
            assert words[0] == "permutohedral"
            answer = CliRunner().invoke(application, words[1:], catch_exceptions=False)
            assert answer.exit_code == 0, answer.output
        assert output.read_bytes() == result.files[output.name]()
        output.unlink()


@pytest.mark.parametrize("options", [FILTER, {**FILTER, "method": "exact"}, {**FILTER, "halo": 1}])
def test_filter(photo: Photo, options: dict[str, Any]) -> None:
    result = compute.filter_photo(photo, Job("filter_image", (photo.path, "a.tif"), options), ignore)
    check(Job("filter_image", (photo.name, "smooth.png"), options), result)


def test_filter_of_a_transparent_photo(transparent: Photo) -> None:
    result = compute.filter_photo(transparent, Job("filter_image", ("hole.png", "a.tif"), FILTER), ignore, check=True)
    assert "error about" in result.details[0]
    check(Job("filter_image", ("hole.png", "smooth.png"), FILTER), result)


@pytest.mark.parametrize("added", [0.0, 25.0])
@pytest.mark.parametrize("is_transparent", [False, True])
def test_denoise(transparent: Photo, is_transparent: bool, added: float) -> None:
    photo = transparent if is_transparent else read_photo(Path("my photo.png"), "my photo.png")
    options = {"sigma": None if added else 15.0, "strength": 0.7}
    noisy = compute.add_noise(photo, added, Path("noisy.tif")) if added else photo.image
    source = "noisy.tif" if added else photo.name
    result = compute.denoise_photo(photo, noisy, Job("denoise_image", (source, "clean.tif"), options), ignore)
    check(Job("denoise_image", ("noisy.png" if added else photo.name, "clean.png"), options), result)
    if added:
        before, after = (float(number) for number in re.findall(r"\d+\.\d+", result.details[1]))
        assert before < after


@pytest.mark.parametrize("name", ["my photo.png", "hole.png"])
def test_segment(transparent: Photo, name: str) -> None:
    write_strokes(STROKES, 36, 52, Path("drawn.png"))
    options = {**SEGMENT, "overlay": "overlay.tif"}
    result = compute.segment_photo(Job("segment_image", (name, "map.png"), {"labels": "drawn.png", **options}), ignore)
    painted = np.asarray(Image.open("map.png"))
    assert tuple(painted[18, 4]) == BRUSHES[1]
    assert tuple(painted[18, 48]) == BRUSHES[3]
    check(Job("segment_image", (name, "out.png"), {"labels": "labels.png", **SEGMENT}), result)


@pytest.mark.parametrize("mode", MODES)
def test_upsample_colors_of_the_photo(photo: Photo, mode: str, tmp_path: Path) -> None:
    options = {**UpsamplePanel.start, "mode": mode}
    material = compute.shrink_colors(photo, 4, tmp_path)
    job = upsample_job("coarse.png", "guide.png", "out.png", options)
    result = compute.upsample(material, job, ignore)
    assert float(result.details[0][len("PSNR <b>") :].split()[0]) > 20
    check(job, result)


@pytest.mark.parametrize("name", ["depth.npy", "depth.tif"])
def test_upsample_a_map_along_a_transparent_photo(transparent: Photo, name: str) -> None:
    depth = np.linspace(2, 9, 9 * 13, dtype=np.float32).reshape(9, 13)
    if name.endswith(".npy"):
        np.save(name, depth)
    else:
        Image.fromarray((1000 * depth).astype(np.uint16)).save(name)
    material = compute.user_map(Path(name), name, transparent)
    job = upsample_job(name, "hole.png", "out.npy", UpsamplePanel.start)
    result = compute.upsample(material, job, ignore)
    assert "PSNR unknown" in result.details[0]
    check(job, result)


@pytest.mark.parametrize("options", [{**FILTER, "method": "exact"}, {**FILTER, "halo": 1}], ids=["exact", "halo"])
def test_slow_filters_stop_when_they_are_dropped(
    photo: Photo, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extent of tiles is private: only small tiles make several parts of a small photo."""
    monkeypatch.setattr(compute, "_TILE", 16)
    options = {**options, "sigma_space": 0.5}
    whole = compute.filter_photo(photo, Job("filter_image", (photo.path, "a.tif"), options), ignore)
    shares: list[float] = []

    def drop(share: float) -> None:
        shares.append(share)
        if 0 < share < 1:
            raise DroppedError

    with pytest.raises(DroppedError):
        compute.filter_photo(photo, Job("filter_image", (photo.path, "b.tif"), options), drop)
    assert not Path("b.tif").exists()
    check(Job("filter_image", (photo.name, "smooth.png"), options), whole)


def test_previews_cover_the_photo(transparent: Photo) -> None:
    previews = [
        compute.preview_filter(transparent, FILTER),
        compute.preview_denoised(transparent.image, {"sigma": 25.0, "strength": 1.0, "model": "cnn"}),
        compute.preview_segments(transparent, STROKES, SEGMENT),
    ]
    assert [preview.region for preview in previews] == [(0, 0, 52, 36)] * 3


def test_preview_of_a_small_photo_is_the_filter(photo: Photo) -> None:
    preview = compute.preview_filter(photo, FILTER)
    assert preview == compute.filter_photo(photo, Job("filter_image", (photo.path, "a.tif"), FILTER), ignore).layer


@pytest.mark.parametrize("name", ["a\nb.png", 'a"b.png', "a\\b.png", "a'b.png", "\u00fc b.png"])
def test_quotes_names_of_files(name: str) -> None:
    job = Job("filter_image", (name, "smooth.png"), FILTER)
    constants = [node.value for node in ast.walk(ast.parse(job.python)) if isinstance(node, ast.Constant)]
    assert name in constants
    assert shlex.split(job.command)[3] == name
