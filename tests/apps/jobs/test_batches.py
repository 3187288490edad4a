"""Batches of image files: inputs, outputs and errors."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import assert_one_line_error, invoke
from PIL import Image

import permutohedral as ph
from permutohedral import apps
from permutohedral.errors import DataError, InputError


def pixels(number: int = 0, channels: int = 3) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (8, 9, channels), dtype=np.uint8)


def save(path: Path, number: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(number)).save(path)
    return path


def filtered(number: int) -> np.ndarray[Any, Any]:
    image = torch.from_numpy(pixels(number)).permute(2, 0, 1).float() / 255
    return (
        (ph.bilateral_filter(image, sigma_space=8.0, sigma_color=0.1, method="auto").permute(1, 2, 0) * 255)
        .round()
        .numpy()
    )


def assert_filtered(path: Path | io.BytesIO, number: int) -> None:
    with Image.open(path) as image:
        assert np.abs(np.asarray(image) - filtered(number)).max() <= 1


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_writes_into_an_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert invoke("filter", save(tmp_path / "a.png"), tmp_path / "out").exit_code == 0
    assert files_in(tmp_path / "out") == ["a.png"]
    assert_filtered(tmp_path / "out" / "a.png", 0)


def test_filters_several_inputs(tmp_path: Path) -> None:
    sources = [save(tmp_path / f"{number}.png", number) for number in range(3)]
    save(tmp_path / "folder" / "in it.png", 3)
    result = invoke("filter", *sources, tmp_path / "folder", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    assert files_in(tmp_path / "out") == ["0.png", "1.png", "2.png", "in it.png"]
    assert_filtered(tmp_path / "out" / "2.png", 2)


def test_searches_folders_recursively(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png", 0)
    save(tmp_path / "in" / "deep" / "deeper" / "a.png", 1)
    (tmp_path / "in" / "deep" / "notes.txt").write_text("left alone")
    assert invoke("filter", tmp_path / "in", tmp_path / "flat").exit_code == 0
    assert files_in(tmp_path / "flat") == ["a.png"]
    # the second run does not take the results of the first
    for _ in range(2):
        assert invoke("filter", "-r", tmp_path / "in", tmp_path / "in" / "out").exit_code == 0
        assert files_in(tmp_path / "in" / "out") == ["a.png", "deep/deeper/a.png"]
    assert_filtered(tmp_path / "in" / "out" / "deep" / "deeper" / "a.png", 1)
    assert_one_line_error(invoke("filter", tmp_path / "in" / "deep", tmp_path / "none"), "--recursive")
    assert not (tmp_path / "none").exists()


def test_rejects_colliding_outputs(tmp_path: Path) -> None:
    first, second = save(tmp_path / "1" / "a.png"), save(tmp_path / "2" / "a.png")
    assert_one_line_error(invoke("filter", first, second, tmp_path / "out"), "would both be")
    assert_one_line_error(invoke("filter", first, save(tmp_path / "1" / "b.png"), tmp_path / "1"), "would overwrite")
    assert_one_line_error(invoke("filter", first, second, save(tmp_path / "file.png")), "is a file")
    assert_one_line_error(invoke("filter", first, second, tmp_path / "new.png"), "name a folder")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "new.png").exists()


def test_rejects_ambiguous_companion_names(tmp_path: Path) -> None:
    for place in ("in", "in/deep", "guides"):
        save(tmp_path / place / "a.png")
    result = invoke("filter", "-r", tmp_path / "in", tmp_path / "out", "--guide", tmp_path / "guides")
    assert_one_line_error(result, "the same name")


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_stdin_to_stdout(kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray(pixels(5)).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    result = invoke("filter", "-", "-", stdin=file.getvalue())
    assert (result.exit_code, result.stderr) == (0, "")
    with Image.open(io.BytesIO(result.stdout_bytes)) as image:
        assert image.format == kind
    assert_filtered(io.BytesIO(result.stdout_bytes), 5)


def test_stdin_or_stdout_only(tmp_path: Path) -> None:
    source = save(tmp_path / "a.png", 1)
    assert invoke("filter", "-", tmp_path / "b.png", stdin=source.read_bytes()).exit_code == 0
    assert_filtered(tmp_path / "b.png", 1)
    assert_filtered(io.BytesIO(invoke("filter", source, "-").stdout_bytes), 1)
    result = invoke("denoise", source, "-", "--sigma", 5)
    with Image.open(io.BytesIO(result.stdout_bytes)) as image:
        assert image.size == (9, 8)


def test_rejects_invalid_streams(tmp_path: Path) -> None:
    source = save(tmp_path / "a.png")
    assert_one_line_error(invoke("filter", source, "-", "--json"), "JSON")
    assert_one_line_error(invoke("filter", source, save(tmp_path / "b.png"), "-"), "one image on stdin or stdout")
    assert_one_line_error(invoke("filter", "-", source, tmp_path / "out", stdin=b""), "one image on stdin or stdout")
    assert_one_line_error(invoke("filter", "-", tmp_path, stdin=source.read_bytes()), "is a folder")
    assert_one_line_error(invoke("filter", "-", tmp_path / "c.png", stdin=b"text"), "error: stdin is not an image")
    assert_one_line_error(invoke("filter", "-", tmp_path / "c.png", stdin=b""), "error: stdin is empty")


def test_rejects_images_that_the_format_cannot_hold(tmp_path: Path) -> None:
    """Pillow raises ValueError, RuntimeError and others where a format cannot hold an image."""
    Image.fromarray(np.zeros((2, 17_000), dtype=np.uint8)).save(tmp_path / "wide.png")
    assert_one_line_error(invoke("filter", tmp_path / "wide.png", tmp_path / "wide.webp"), "cannot write", "wide.webp")
    Image.fromarray(pixels(channels=4)).save(tmp_path / "alpha.png")
    assert_one_line_error(invoke("filter", tmp_path / "alpha.png", tmp_path / "alpha.pcx"), "cannot write")
    assert files_in(tmp_path) == ["alpha.png", "wide.png"]


@pytest.mark.parametrize("error", [ValueError, RuntimeError, OverflowError, OSError, KeyError])
def test_encoder_errors_are_reported_per_file(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        save(tmp_path / "in" / name, number)
    write = Image.Image.save

    def fail_for_the_second(self: Image.Image, *arguments: Any, **options: Any) -> None:
        if np.abs(np.asarray(self) - filtered(1)).max() <= 1:
            raise error("cannot be encoded")
        write(self, *arguments, **options)

    monkeypatch.setattr(Image.Image, "save", fail_for_the_second)
    result = invoke("filter", tmp_path / "in", tmp_path / "out", "--json")
    assert_one_line_error(result, "b.png", "cannot be encoded")
    assert [entry["error"] is None for entry in json.loads(result.stdout)] == [True, False, True]
    assert files_in(tmp_path / "out") == ["a.png", "c.png"]


def test_skips_files_that_are_not_images(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png")
    for name in ("paper.pdf", "film.mpg", "film.mpeg", "data.h5", "data.hdf", "weather.grib", "drawing.eps"):
        (tmp_path / "in" / name).write_bytes(b"something else")
    result = invoke("filter", tmp_path / "in", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    assert files_in(tmp_path / "out") == ["a.png"]


def test_names_the_extension_that_reads_phone_photos(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    assert_one_line_error(invoke("filter", tmp_path / "in", tmp_path / "out"), "b.HEIC", "pillow-heif")
    assert files_in(tmp_path / "out") == ["a.png"]


def test_reports_converted_cmyk_colors(tmp_path: Path) -> None:
    Image.fromarray(pixels()).convert("CMYK").save(tmp_path / "a.jpg", icc_profile=b"inks")
    result = invoke("filter", tmp_path / "a.jpg", tmp_path / "b.png")
    assert result.exit_code == 0
    assert "CMYK colors, converted to RGB without their profile" in result.stderr


def test_a_missing_file_does_not_stop_the_others(tmp_path: Path) -> None:
    sources = [save(tmp_path / "a.png"), tmp_path / "missing.png", save(tmp_path / "c.png")]
    assert_one_line_error(invoke("filter", *sources, tmp_path / "out"), "missing.png")
    assert files_in(tmp_path / "out") == ["a.png", "c.png"]


def test_skips_hidden_files(tmp_path: Path) -> None:
    """Other programs store notes and previews under hidden names with the same ending."""
    save(tmp_path / ".home" / "in" / "a.png")
    save(tmp_path / ".home" / "in" / ".previews" / "a.png")
    (tmp_path / ".home" / "in" / "._a.png").write_bytes(b"notes")
    result = invoke("filter", tmp_path / ".home" / "in", tmp_path / "out", "--recursive")
    assert (result.exit_code, result.stderr) == (0, "")
    assert files_in(tmp_path / "out") == ["a.png"]


def test_reads_the_first_image_of_mpo(tmp_path: Path) -> None:
    """MPO holds a second image, such as the depth."""
    depth = Image.fromarray(pixels(1))
    photograph = Image.fromarray(pixels(0))
    photograph.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[depth], quality=100, subsampling=0)
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.n_frames == 2  # type: ignore[attr-defined]
    result = invoke("filter", tmp_path / "a.jpg", tmp_path / "b.png", "--sigma-color", "1e-3")
    assert (result.exit_code, result.stderr) == (0, "")
    with Image.open(tmp_path / "b.png") as image:
        assert np.abs(np.asarray(image).astype(int) - pixels(0)).mean() < 10
    assert invoke("filter", tmp_path / "a.jpg", tmp_path / "b.jpg").exit_code == 0


def test_checks_the_format_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(np.zeros((8, 9), dtype=np.uint16)).save(tmp_path / "a.png")

    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("the filter ran")

    monkeypatch.setattr(ph, "bilateral_filter", work)
    assert_one_line_error(invoke("filter", tmp_path / "a.png", tmp_path / "a.webp"), "16-bit")


@pytest.mark.parametrize("image", [Image.new("L", (8, 9)), pixels()], ids=type)
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("filter_image", ("inputs", "output", "guide=")),
        ("denoise_image", ("inputs", "output")),
        ("segment_image", ("inputs", "output", "labels=")),
        ("upsample_map", ("inputs", "output", "guide=")),
        ("solve_map", ("inputs", "output", "guide=", "sample_weight=")),
        ("fill_map", ("inputs", "output", "guide=")),
        ("colorize_image", ("inputs", "output", "strokes=")),
        ("filter_array", ("inputs", "output")),
        ("smooth_cloud", ("inputs", "output")),
        ("segment_cloud", ("inputs", "output", "model=")),
    ],
)
def test_functions_reject_arrays_in_place_of_paths(function: str, arguments: tuple[str, ...], image: Any) -> None:
    for wrong in arguments:
        given = {name: image if name == wrong else "file.png" for name in arguments}
        positional = [value for name, value in given.items() if not name.endswith("=")]
        options = {name[:-1]: value for name, value in given.items() if name.endswith("=")}
        with pytest.raises(InputError, match=rf"{wrong.rstrip('=')} is of type {type(image).__name__};.*ph.bilateral"):
            getattr(apps, function)(*positional, **options)


def test_functions_raise_or_report_errors(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.png").write_text("no image")
    save(tmp_path / "in" / "c.png", 1)
    calls: list[tuple[float, float, str]] = []
    places = tmp_path / "in", tmp_path / "out"
    results = apps.filter_image(*places, errors="report", progress=lambda *call: calls.append(call))
    assert [result.error is None for result in results] == [True, False, True]
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1] == (3, 3, "c.png")
    with pytest.raises(DataError, match=r"b\.png is not an image"):
        apps.filter_image(*places)
    with pytest.raises(InputError, match="errors must be"):
        apps.filter_image(*places, errors="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["missing", "not an image", "truncated", "not a map"])
@pytest.mark.parametrize("place", ["source", "companion"])
def test_missing_and_damaged_files_raise_data_errors(tmp_path: Path, name: str, place: str) -> None:
    good, bad = save(tmp_path / "good.png"), tmp_path / ("bad.npy" if name == "not a map" else "bad.png")
    if name != "missing":
        bad.write_bytes(good.read_bytes()[:60] if name == "truncated" else b"no image")
    source, companion = (bad, good) if place == "source" else (good, bad)
    out = tmp_path / "out.npy"
    calls: dict[str, Callable[[], object]] = {
        "upsample": lambda: apps.upsample_map(source, out, guide=good, sample_weight=companion),
        "solve": lambda: apps.solve_map(source, out, guide=good, sample_weight=companion),
    }
    if name != "not a map":
        image = tmp_path / "out.png"
        calls |= {
            "filter": lambda: apps.filter_image(source, image, guide=companion),
            "colorize": lambda: apps.colorize_image(source, image, strokes=companion),
            "labels": lambda: apps.segment_image(source, image, labels=companion),
            "trimap": lambda: apps.segment_image(source, image, trimap=companion),
        }
        if place == "source":
            calls["denoise"] = lambda: apps.denoise_image(source, image)
    if place == "companion":
        calls["probabilities"] = lambda: apps.segment_image(source, tmp_path / "out.png", probabilities=companion)
    for call in calls.values():
        with pytest.raises(DataError, match="bad"):
            call()


def test_a_missing_companion_raises_a_data_error(tmp_path: Path) -> None:
    folder = tmp_path / "guides"
    folder.mkdir()
    with pytest.raises(DataError, match=r"has no files named a\.\*"):
        apps.filter_image(save(tmp_path / "a.png"), tmp_path / "out.png", guide=folder)
