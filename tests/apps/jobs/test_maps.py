"""`upsample_map`, `solve_map` and `colorize_image` through their commands: formats, ranges, folders, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from image_files import invoke
from PIL import Image

import permutohedral as ph
from permutohedral.apps.io.maps import read_map
from permutohedral.errors import InputError


def edge() -> Any:
    """Where the right object of the photograph is, `[24, 40]`."""
    return np.indices((24, 40))[1] >= 18


def save_photo(path: Path) -> Path:
    Image.fromarray(np.where(edge()[..., None], (200, 60, 40), (50, 90, 180)).astype(np.uint8)).save(path)
    return path


def coarse() -> Any:
    """Means of cells of 4 pixels of a depth that is 1000 left of the edge and 3000 right of it."""
    return np.where(edge(), 3000.0, 1000.0).reshape(6, 4, 10, 4).mean(axis=(1, 3))


@pytest.mark.parametrize(("mode", "most"), [("gaussian", 450), ("solver", 150)])
def test_sixteen_bits_keep_their_range_and_follow_the_edge(tmp_path: Path, mode: str, most: float) -> None:
    photo = save_photo(tmp_path / "photo.png")
    Image.fromarray(coarse().astype(np.uint16)).save(tmp_path / "coarse.png")
    result = invoke("upsample", tmp_path / "coarse.png", photo, tmp_path / "out.png", "--mode", mode, "--json")
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.output)
    assert (report["height"], report["width"], report["channels"], report["known"]) == (24, 40, 1, 1.0)
    with Image.open(tmp_path / "out.png") as image:
        assert image.mode.startswith("I")
        found = np.asarray(image).astype(float)
    assert abs(found - np.where(edge(), 3000, 1000)).max() < most


def test_samples_at_points_keep_their_range(tmp_path: Path) -> None:
    """Every 4th pixel of a map; means of cells would overshoot."""
    photo, fine = save_photo(tmp_path / "photo.png"), np.where(edge(), 3000.0, 1000.0)
    np.save(tmp_path / "coarse.npy", fine[::4, ::4])
    result = invoke("upsample", tmp_path / "coarse.npy", photo, tmp_path / "out.npy", "--sampling", "point")
    assert result.exit_code == 0, result.output
    expected = ph.apps.upsample_map(tmp_path / "coarse.npy", tmp_path / "same.npy", guide=photo, sampling="point")
    assert expected[0].error is None
    found = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(found, np.load(tmp_path / "same.npy"))
    ph.apps.upsample_map(tmp_path / "coarse.npy", tmp_path / "area.npy", guide=photo)
    assert abs(found - fine).max() < abs(np.load(tmp_path / "area.npy") - fine).max()


def test_floats_keep_their_range(tmp_path: Path) -> None:
    photo, depth = save_photo(tmp_path / "photo.png"), coarse() / -7
    depth[2, 3] = np.nan
    np.save(tmp_path / "coarse.npy", depth)
    tifffile.imwrite(tmp_path / "coarse.tif", depth.astype(np.float32))
    for name in ("coarse.npy", "coarse.tif"):
        for output in ("out.npy", "out.tif"):
            result = invoke("upsample", tmp_path / name, photo, tmp_path / output)
            assert result.exit_code == 0, result.output
    found, same = np.load(tmp_path / "out.npy"), tifffile.imread(tmp_path / "out.tif")
    assert found.shape == (24, 40)
    assert found.min() == pytest.approx(-3000 / 7, rel=0.05)
    np.testing.assert_array_equal(found, same)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32"])
@pytest.mark.parametrize("ending", [".npy", ".tif"])
def test_arrays_keep_integers(tmp_path: Path, dtype: str, ending: str) -> None:
    """Holes of zero without `unknown` make the solver overshoot, which integers clip."""
    photo, depth = save_photo(tmp_path / "photo.png"), coarse() / 20
    depth[::2, ::3] = 0
    np.save(tmp_path / "coarse.npy", depth.astype(dtype))
    out = tmp_path / f"out{ending}"
    ph.apps.upsample_map(tmp_path / "coarse.npy", out, guide=photo)
    found = np.load(out) if ending == ".npy" else tifffile.imread(out)
    assert found.dtype == dtype
    assert (found.min() < 0) == (dtype in ("int32", "float32"))
    if dtype == "uint8":
        Image.fromarray(depth.astype(dtype)).save(tmp_path / "coarse.png")
        ph.apps.upsample_map(tmp_path / "coarse.png", tmp_path / "out.png", guide=photo)
        with Image.open(tmp_path / "out.png") as image:
            np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize("ending", [".npy", ".tif"])
def test_floats_of_many_rows(tmp_path: Path, ending: str) -> None:
    """More than a map has channels."""
    rows = np.ones((5000, 2), np.float32)
    if ending == ".npy":
        np.save(tmp_path / "rows.npy", rows)
    else:
        tifffile.imwrite(tmp_path / "rows.tif", rows)
    assert read_map(tmp_path / f"rows{ending}").values.shape == (1, 5000, 2)
    np.save(tmp_path / "last.npy", np.ones((5000, 2, 2)))
    with pytest.raises(InputError, match=r"\[channels, height, width\]"):
        read_map(tmp_path / "last.npy")


def test_holes_are_filled_along_the_edge(tmp_path: Path, random: np.random.Generator) -> None:
    photo, depth = save_photo(tmp_path / "photo.png"), np.where(edge(), 180, 90)
    known = random.random((24, 40)) < 0.1
    Image.fromarray(np.where(known, depth, 0).astype(np.uint8)).save(tmp_path / "depth.png")
    result = invoke("solve", tmp_path / "depth.png", photo, tmp_path / "out.png", "--unknown", 0, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)[0]["known"] == pytest.approx(known.mean(), abs=1e-4)
    with Image.open(tmp_path / "out.png") as image:
        assert abs(np.asarray(image).astype(float) - depth).max() <= 2


@pytest.mark.parametrize("marked", ["--unknown", "--sample-weight"])
def test_filling_keeps_what_is_known(tmp_path: Path, random: np.random.Generator, marked: str) -> None:
    photo, depth = save_photo(tmp_path / "photo.png"), np.where(edge(), 180, 90) + random.integers(0, 20, (24, 40))
    known = random.random((24, 40)) < 0.5
    Image.fromarray(np.where(known, depth, 0).astype(np.uint8)).save(tmp_path / "depth.png")
    Image.fromarray(np.where(known, 255, 0).astype(np.uint8)).save(tmp_path / "known.png")
    option = (marked, 0 if marked == "--unknown" else tmp_path / "known.png")
    assert invoke("fill", tmp_path / "depth.png", photo, tmp_path / "out.png", *option).exit_code == 0
    with Image.open(tmp_path / "out.png") as image:
        filled = np.asarray(image).astype(int)
    np.testing.assert_array_equal(filled[known], depth[known])
    assert abs(filled - np.where(edge(), 190, 100)).max() <= 20


def test_weight_zero_is_unknown(tmp_path: Path) -> None:
    photo, wrong = save_photo(tmp_path / "photo.png"), np.where(edge(), 180, 90).astype(np.uint8)
    wrong[5:9, 5:9] = 255
    certain = np.where(wrong == 255, 0, 255).astype(np.uint8)
    Image.fromarray(wrong).save(tmp_path / "depth.png")
    Image.fromarray(certain).save(tmp_path / "certain.png")
    arguments = tmp_path / "depth.png", photo, tmp_path / "out.png", "--sample-weight", tmp_path / "certain.png"
    assert invoke("solve", *arguments).exit_code == 0
    with Image.open(tmp_path / "out.png") as image:
        assert abs(np.asarray(image).astype(float) - np.where(edge(), 180, 90)).max() <= 2


@pytest.mark.parametrize("alpha", [0, 255], ids=["on nothing", "on gray that hides nothing"])
def test_colors_spread_from_strokes(tmp_path: Path, alpha: int) -> None:
    expected = np.where(edge()[..., None], (150, 180, 210), (90, 60, 30)).astype(np.uint8)
    gray = np.asarray(Image.fromarray(expected).convert("L"))
    strokes = np.stack([gray, gray, gray, np.full_like(gray, alpha)], axis=2)
    strokes[10, 4:8] = (90, 60, 30, 255)
    strokes[10, 30:34] = (150, 180, 210, 255)
    Image.fromarray(gray).save(tmp_path / "gray.png", icc_profile=b"profile of gray")
    Image.fromarray(strokes).save(tmp_path / "strokes.png")
    result = invoke("colorize", tmp_path / "gray.png", tmp_path / "strokes.png", tmp_path / "out.png", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[0]["known"] < 0.1
    with Image.open(tmp_path / "out.png") as image:
        found = np.asarray(image).astype(int)
        assert "icc_profile" not in image.info
    assert abs(found - expected).max() <= 3


def test_processes_folders_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "photos").mkdir()
    for name in ("a", "b"):
        save_photo(tmp_path / "photos" / f"{name}.png")
    np.save(tmp_path / "maps" / "a.npy", coarse())
    Image.fromarray(coarse().astype(np.uint16)).save(tmp_path / "maps" / "b.png")
    np.save(tmp_path / "maps" / "c.npy", coarse())
    arguments = tmp_path / "maps", tmp_path / "photos", tmp_path / "out", "--json", "--mode", "gaussian"
    result = invoke("upsample", *arguments)
    assert result.exit_code == 1
    assert "no files named c" in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.npy", "b.png"]


def test_rejects_files_that_do_not_fit(tmp_path: Path) -> None:
    photo = save_photo(tmp_path / "photo.png")
    np.save(tmp_path / "coarse.npy", coarse())
    np.save(tmp_path / "four.npy", np.zeros((1, 2, 3, 4)))
    np.save(tmp_path / "nothing.npy", np.full((3, 4), np.nan))
    Image.new("L", (40, 24)).save(tmp_path / "black.png")

    def message(command: str, *arguments: object) -> str:
        result = invoke(command, *arguments)
        assert result.exit_code == 1
        return str(result.stderr)

    out = tmp_path / "out.npy"
    assert "file of floats" in message("upsample", tmp_path / "coarse.npy", photo, tmp_path / "out.png")
    assert "file of floats" in message("upsample", tmp_path / "coarse.npy", photo, "-")
    assert "- for an image on stdout" in invoke("upsample", "--help").stdout
    assert "no file or folder" in message("upsample", tmp_path / "none.npy", photo, out)
    assert "no file or folder" in message("upsample", tmp_path / "coarse.npy", tmp_path / "none.png", out)
    assert "[channels, height, width]" in message("upsample", tmp_path / "four.npy", photo, out)
    np.save(tmp_path / "last.npy", np.zeros((6, 10, 3)))
    assert "np.moveaxis" in message("upsample", tmp_path / "last.npy", photo, out)
    for kind, reason in (("i1", "signed integers"), ("i2", "negative integers")):
        tifffile.imwrite(tmp_path / "signed.tif", np.full((3, 4), -5, kind))
        assert reason in message("upsample", tmp_path / "signed.tif", photo, out)
    assert "nothing is known" in message("upsample", tmp_path / "nothing.npy", photo, out)
    np.save(tmp_path / "large.npy", np.zeros((25, 40)))
    assert "the map first, then the photo" in message("upsample", tmp_path / "large.npy", photo, out)
    assert "the map first, then the photo" in message("upsample", photo, tmp_path / "large.npy", out)
    assert "upsample a smaller map" in message("solve", tmp_path / "coarse.npy", photo, out)
    certain = "--sample-weight", photo
    assert "scale one of them" in message("upsample", tmp_path / "coarse.npy", photo, out, *certain)
    assert "no strokes" in message("colorize", tmp_path / "black.png", tmp_path / "black.png", tmp_path / "out.png")
    assert "overwrite" in message("solve", photo, photo, photo)
    assert "overwrite" in message("upsample", tmp_path / "coarse.npy", photo, tmp_path / "coarse.npy")
    tifffile.imwrite(tmp_path / "two.tif", np.zeros((2, 3, 4), np.float32), photometric="minisblack")
    assert "2 images" in message("upsample", tmp_path / "two.tif", photo, out)
    assert not out.exists()


def test_guides_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "photos").mkdir()
    photo = save_photo(tmp_path / "photos" / "a.png")
    before = photo.read_bytes()
    Image.fromarray(coarse().astype(np.uint16)).save(tmp_path / "maps" / "a.png")
    result = invoke("upsample", tmp_path / "maps", tmp_path / "photos", tmp_path / "photos")
    assert result.exit_code == 1
    assert "would overwrite" in result.stderr
    assert photo.read_bytes() == before


def test_folders_of_maps_skip_what_is_hidden(tmp_path: Path) -> None:
    """macOS stores notes as ._a.npy; endings have no case."""
    for folder in ("maps", "maps/folder.npy", "maps/.trash", "photos"):
        (tmp_path / folder).mkdir()
    for name in ("a.npy", "B.NPY", "._a.npy", ".trash/c.npy", "folder.npy/d.npy"):
        with open(tmp_path / "maps" / name, "wb") as file:
            np.save(file, coarse())
    for name in ("a", "B", "d"):
        save_photo(tmp_path / "photos" / f"{name}.png")
    arguments = tmp_path / "maps", tmp_path / "photos", tmp_path / "out", "--mode", "gaussian"
    assert invoke("upsample", *arguments).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["B.NPY", "a.npy"]
    assert np.load(tmp_path / "out" / "B.NPY").shape == (24, 40)
    assert invoke("upsample", "-r", *arguments).exit_code == 0
    assert (tmp_path / "out" / "folder.npy" / "d.npy").is_file()


def test_size_errors_name_the_photo_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    photo = save_photo(tmp_path / "photos" / "a.png")
    np.save(tmp_path / "a.npy", coarse())
    for companion in (photo, photo.parent):
        result = invoke("solve", tmp_path / "a.npy", companion, tmp_path / "out.npy")
        assert f"{photo} has 40 x 24" in result.stderr
