"""`segment_image` through its command: label maps, probabilities, trimaps, folders, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import invoke
from PIL import Image

import permutohedral as ph
from permutohedral.apps.io.labels import palette, read_label_map
from permutohedral.errors import InputError

RED, GREEN, BLACK = (200, 0, 10), (0, 180, 20), (0, 0, 0)


def segment(*arguments: object) -> Any:
    return invoke("segment", *arguments)


def save(path: Path, pixels: Any) -> Path:
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)
    return path


def read(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def disk() -> Any:
    """Where the object of the photograph is."""
    y, x = np.indices((40, 50))
    return (y - 20) ** 2 + (x - 25) ** 2 < 12**2


def photograph(random: np.random.Generator) -> Any:
    """A bright disk with noise."""
    return np.clip(np.where(disk(), 200, 60)[..., None] + random.normal(0, 6, (40, 50, 3)), 0, 255)


def coarse_labels() -> Any:
    """A square instead of the disk."""
    labels = np.full((40, 50, 3), RED)
    labels[10:30, 15:35] = GREEN
    return labels


def in_color(mask: Any, color: tuple[int, int, int], other: tuple[int, int, int]) -> Any:
    return np.where(mask[..., None], color, other).astype(np.uint8)


def test_labels_follow_the_edges(tmp_path: Path, random: np.random.Generator) -> None:
    photo, labels = save(tmp_path / "photo.png", photograph(random)), save(tmp_path / "labels.png", coarse_labels())
    result = segment(photo, labels, tmp_path / "out.png", "--json", "--overlay", tmp_path / "over.png")
    assert result.exit_code == 0, result.stderr
    (outcome,) = json.loads(result.stdout)
    found = read(tmp_path / "out.png")
    assert np.mean((found != in_color(disk(), GREEN, RED)).any(axis=2)) < 0.005
    before = np.mean((coarse_labels() != in_color(disk(), GREEN, RED)).any(axis=2))
    assert abs(outcome["changed"] - before) < 0.005
    assert (outcome["labels"], outcome["decided"], outcome["error"]) == (2, 0, None)
    assert set(outcome["colors"]) == {"#{:02x}{:02x}{:02x}".format(*color) for color in (GREEN, RED)}
    assert read(tmp_path / "over.png").shape == (40, 50, 3)


def test_result_is_the_mean_field(tmp_path: Path, random: np.random.Generator) -> None:
    photo, labels = save(tmp_path / "photo.png", photograph(random)), save(tmp_path / "labels.png", coarse_labels())
    options = ("--certainty", 0.6, "--sigma-space", 9, "--sigma-color", 0.2, "--strength", 3, "--smoothness", 2)
    assert segment(photo, labels, tmp_path / "out.png", *options, "--num-iterations", 4).exit_code == 0
    pixels = torch.from_numpy(read(photo) / np.float32(255)).permute(2, 0, 1)
    # numbers in the order of the first pixels: red is the first
    numbers = torch.from_numpy((coarse_labels() == GREEN).all(axis=2)).long()
    energies = ph.crf.energies_from_labels(numbers, 2, certainty=0.6)
    kernels = [
        ph.crf.spatial_kernel((40, 50), 3.0, compatibility=2.0),
        ph.crf.bilateral_kernel(pixels, sigma_space=9.0, sigma_color=0.2, compatibility=3.0),
    ]
    expected = ph.crf.mean_field(energies, kernels, num_iterations=4).argmax(dim=0).numpy() == 1
    np.testing.assert_array_equal(read(tmp_path / "out.png"), in_color(expected, GREEN, RED))


def test_labels_unknown_pixels(tmp_path: Path, random: np.random.Generator) -> None:
    scribbles = np.zeros((40, 50, 4), np.uint8)
    scribbles[18:22, 23:27] = (*GREEN, 255)
    scribbles[:4] = scribbles[-4:] = (*RED, 255)
    scribbles[10:12, :, 3] = 255
    photo, labels = save(tmp_path / "photo.png", photograph(random)), save(tmp_path / "labels.png", scribbles)
    result = segment(photo, labels, tmp_path / "out.png", "--json", "--strength", 10)
    assert json.loads(result.stdout)[0]["decided"] > 0.7
    assert np.mean((read(tmp_path / "out.png") != in_color(disk(), GREEN, RED)).any(axis=2)) < 0.01


def test_ties_do_not_depend_on_colors(tmp_path: Path) -> None:
    """No stroke reaches the right of the photo, so all labels are equally probable there."""
    photo = save(tmp_path / "photo.png", np.repeat([20, 120, 220], 60)[None, :, None] * np.ones((20, 1, 3)))
    results = []
    for first, second in ((RED, GREEN), (GREEN, RED)):
        strokes = np.zeros((20, 180, 3), np.uint8)
        strokes[5:8, 5:50], strokes[5:8, 65:110] = first, second
        labels = save(tmp_path / "labels.png", strokes)
        assert segment(photo, labels, tmp_path / "out.png", "--num-iterations", 2).exit_code == 0
        results.append((read(tmp_path / "out.png") == first).all(axis=2))
    np.testing.assert_array_equal(*results)


def test_black_may_be_a_label(tmp_path: Path, random: np.random.Generator) -> None:
    labels = save(tmp_path / "labels.png", in_color(disk(), GREEN, BLACK))
    photo = save(tmp_path / "photo.png", photograph(random))
    assert "--black-is-a-label" in segment(photo, labels, tmp_path / "out.png").stderr
    assert segment(photo, labels, tmp_path / "out.png", "--black-is-a-label").exit_code == 0
    np.testing.assert_array_equal(read(tmp_path / "out.png"), in_color(disk(), GREEN, BLACK))


def test_keeps_labels_of_sixteen_bits(tmp_path: Path, random: np.random.Generator) -> None:
    photo, labels = save(tmp_path / "photo.png", photograph(random)), tmp_path / "labels.png"
    Image.fromarray(np.where(disk(), 300, 2).astype(np.uint16)).save(labels)
    assert segment(photo, labels, tmp_path / "out.png").exit_code == 0
    found = read_label_map(tmp_path / "out.png", black_is_a_label=False)
    assert torch.equal((found.colors[:, 0] * 65535).round(), torch.tensor([2.0, 300.0]))
    assert np.array_equal(found.labels, disk())


@pytest.mark.parametrize("known_foreground", [True, False])
def test_trimap(tmp_path: Path, random: np.random.Generator, known_foreground: bool) -> None:
    trimap = np.full((40, 50), 128, np.uint8)
    trimap[:4] = trimap[-4:] = 0
    if known_foreground:
        trimap[18:22, 23:27] = 255
    photo, marks = save(tmp_path / "photo.png", photograph(random)), save(tmp_path / "marks.png", trimap)
    assert segment(photo, marks, tmp_path / "out.png", "--trimap").exit_code == 0
    expected = in_color(disk(), (255, 255, 255), BLACK)
    assert np.mean((read(tmp_path / "out.png") != expected).any(axis=2)) < 0.01


def test_trimaps_of_the_grabcut_database(tmp_path: Path, random: np.random.Generator) -> None:
    """Black is background whose colors, here those of the foreground, are not fitted; 64 is background to fit."""
    image = photograph(random)
    image[:4] = 200
    trimap = np.full((40, 50), 128, np.uint8)
    trimap[4:7], trimap[-4:], trimap[18:22, 23:27], trimap[:4] = 64, 64, 255, 0
    photo, marks = save(tmp_path / "photo.png", image), save(tmp_path / "marks.png", trimap)
    result = segment(photo, marks, tmp_path / "labels.png")
    assert result.exit_code == 0
    assert "note: " in result.stderr
    assert "marks.png has the gray levels of a GrabCut trimap, but is used as a label map; pass --tr" in result.stderr
    result = segment(photo, marks, tmp_path / "out.png", "--trimap", "--json")
    assert result.stderr == ""
    assert json.loads(result.stdout)[0]["decided"] == pytest.approx(np.mean(trimap == 128), abs=1e-4)
    expected = in_color(disk(), (255, 255, 255), BLACK)
    assert np.mean((read(tmp_path / "out.png") != expected).any(axis=2)) < 0.01


@pytest.mark.parametrize("mode", ["L", "P"])
def test_keeps_index_and_palette_images(tmp_path: Path, random: np.random.Generator, mode: str) -> None:
    """Indices near black are visible in the overlay."""
    photo, labels = save(tmp_path / "photo.png", photograph(random)), tmp_path / "labels.png"
    image = Image.fromarray(np.where(coarse_labels()[..., 1] > 0, 7, 2).astype(np.uint8))
    if mode == "P":
        image.putpalette([each for number in range(10) for each in (number, 20 * number, 200)])
    image.save(labels)
    assert segment(photo, labels, tmp_path / "out.png", "--overlay", tmp_path / "over.png").exit_code == 0
    with Image.open(tmp_path / "out.png") as found, Image.open(labels) as before:
        assert found.mode == mode
        assert set(np.unique(np.asarray(found))) == {2, 7}
        assert found.getpalette() == before.getpalette()
        assert np.mean(np.asarray(found) != np.where(disk(), 7, 2)) < 0.005
    colors = [read(tmp_path / "over.png")[place].astype(int) for place in ((20, 25), (2, 2))]
    assert min(np.ptp(color) for color in colors) > 40


def test_folders_of_photographs_and_probabilities(tmp_path: Path, random: np.random.Generator) -> None:
    for folder in ("photos", "network"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b"):
        Image.fromarray(photograph(random).astype(np.uint8)).save(tmp_path / "photos" / f"{name}.jpg", quality=95)
        noisy = np.clip(0.25 + 0.5 * disk() + random.normal(0, 0.2, (40, 50)), 0, 1)
        np.save(tmp_path / "network" / f"{name}.npy", np.stack([1 - noisy, noisy, np.zeros_like(noisy)]))
    result = segment(
        tmp_path / "photos", tmp_path / "out", "--probabilities", tmp_path / "network", "--json",
        "--overlay", tmp_path / "over",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    colors = [tuple(int(level) for level in color) for color in (palette(3) * 255).round()]
    expected_colors = ["#{:02x}{:02x}{:02x}".format(*color) for color in colors]
    assert [outcome["colors"] for outcome in json.loads(result.stdout)] == [expected_colors] * 2
    for name in ("a", "b"):
        expected = in_color(disk(), colors[1], colors[0])  # type: ignore[arg-type]
        assert np.mean((read(tmp_path / "out" / f"{name}.png") != expected).any(axis=2)) < 0.01
        assert (tmp_path / "over" / f"{name}.png").is_file()
    (tmp_path / "network" / "b.npy").unlink()
    result = segment(tmp_path / "photos", tmp_path / "out", "--probabilities", tmp_path / "network")
    assert result.exit_code == 1
    assert "b.jpg" in result.stderr


def bad_requests(folder: Path, random: np.random.Generator) -> dict[str, tuple[list[Any], str]]:
    photo, labels = save(folder / "photo.png", photograph(random)), save(folder / "labels.png", coarse_labels())
    small = save(folder / "small.png", coarse_labels()[:20])
    np.save(folder / "last.npy", np.full((40, 50, 2), 0.5))
    np.save(folder / "scores.npy", np.full((2, 40, 50), 7.0))
    np.save(folder / "objects.npy", np.array([None, {}]), allow_pickle=True)
    (folder / "empty.npy").write_bytes(b"")
    shapes = {"one": (40, 50), "sigmoid": (1, 40, 50), "batch": (1, 2, 40, 50), "coarse": (2, 20, 25)}
    for name, shape in shapes.items():
        np.save(folder / f"{name}.npy", np.full(shape, 0.5))
    out = folder / "out.png"
    return {
        "no labels": ([photo, out], "PHOTO LABELS OUTPUT"),
        "labels and probabilities": ([photo, labels, out, "--probabilities", folder / "last.npy"], "PHOTO OUTPUT"),
        "another size": ([photo, small, out], "without interpolation"),
        "a photograph as labels": ([photo, photo, out], "not a label map"),
        "a lossy format": ([photo, labels, folder / "out.jpg"], "keeps colors exactly"),
        "labels last": ([photo, out, "--probabilities", folder / "last.npy"], "transpose"),
        "scores": ([photo, out, "--probabilities", folder / "scores.npy"], "softmax"),
        "objects": ([photo, out, "--probabilities", folder / "objects.npy"], "cannot read"),
        "an empty file": ([photo, out, "--probabilities", folder / "empty.npy"], "cannot read"),
        "an image": ([photo, out, "--probabilities", labels], "labels.png is not a .npy file"),
        "one label": (
            [photo, out, "--probabilities", folder / "one.npy"],
            "got [40, 50]; at least two labels are needed",
        ),
        "a sigmoid": ([photo, out, "--probabilities", folder / "sigmoid.npy"], "as np.stack([1 - p[0], p[0]])"),
        "an array as labels": ([photo, folder / "last.npy", out], "pass a .npy file of probabilities with --prob"),
        "a batch": ([photo, out, "--probabilities", folder / "batch.npy"], "got [1, 2, 40, 50]; save p[0]"),
        "coarse": ([photo, out, "--probabilities", folder / "coarse.npy"], "got [2, 20, 25]; enlarge it with torch"),
        "no file": ([photo, folder / "absent.png", out], "absent.png"),
        "a number for a trimap": (
            [photo, labels, out, "--trimap", "--sigma-space", 40, "--black-is-a-label"],
            "trimap conflicts with sigma_space, black_is_a_label, which would have no effect",
        ),
        "certainty of probabilities": (
            [photo, out, "--probabilities", folder / "last.npy", "--strength", 2, "--certainty", 0.9],
            "probabilities conflicts with certainty, which",
        ),
        "the photo as output": ([photo, labels, photo], "the result would overwrite"),
        "the labels as output": ([photo, labels, labels], "labels.png; name another file or folder"),
        "the photo as overlay": ([photo, labels, out, "--overlay", photo], "the result would overwrite"),
        "a trimap that is decided": ([photo, save(folder / "t.png", 255 * disk()), out, "--trimap"], "gray"),
    }


@pytest.mark.parametrize("name", [
    *("no labels", "labels and probabilities", "another size", "a photograph as labels", "a lossy format"),
    *("labels last", "scores", "objects", "an empty file", "an image", "one label", "a batch", "coarse"),
    *("no file", "a number for a trimap", "certainty of probabilities", "a trimap that is decided"),
    *("a sigmoid", "an array as labels", "the photo as output", "the labels as output", "the photo as overlay"),
])  # fmt: skip
def test_bad_requests_write_nothing(name: str, tmp_path: Path, random: np.random.Generator) -> None:
    arguments, words = bad_requests(tmp_path, random)[name]
    before = (tmp_path / "photo.png").read_bytes(), (tmp_path / "labels.png").read_bytes()
    result = segment(*arguments)
    assert ((tmp_path / "photo.png").read_bytes(), (tmp_path / "labels.png").read_bytes()) == before
    assert result.exit_code == (2 if "PHOTO" in words else 1)
    assert words in result.stderr
    assert not (tmp_path / "out.png").exists()
    assert not (tmp_path / "out.jpg").exists()


def make_data_set(folder: Path, random: np.random.Generator, photos: int = 5) -> tuple[Path, Path]:
    """Photos of two sizes with the probabilities of a network."""
    for name in ("photos", "network"):
        (folder / name).mkdir()
    for number in range(photos):
        width = 44 if number % 2 else 50
        save(folder / "photos" / f"{number}.png", photograph(random)[:, :width])
        noisy = np.clip(0.25 + 0.5 * disk() + random.normal(0, 0.2, (40, 50)), 0, 1)[:, :width]
        np.save(folder / "network" / f"{number}.npy", np.stack([1 - noisy, noisy]))
    return folder / "photos", folder / "network"


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_batches_equal_single_calls(tmp_path: Path, random: np.random.Generator, batch_size: int) -> None:
    photos, network = make_data_set(tmp_path, random)
    calls: list[tuple[float, float, str]] = []
    results = ph.apps.segment_image(
        photos, tmp_path / "out", probabilities=network, batch_size=batch_size, device="cpu",
        progress=lambda *call: calls.append(call),
    )  # fmt: skip
    assert [result.input.name for result in results] == [f"{number}.png" for number in range(5)]
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1][:2] == (5, 5)
    for result in results:
        alone = tmp_path / f"alone-{result.input.name}"
        [single] = ph.apps.segment_image(result.input, alone, probabilities=network / f"{result.input.stem}.npy")
        assert alone.read_bytes() == result.output.read_bytes()
        assert (single.labels, single.changed) == (result.labels, result.changed)


def test_resume_skips_finished_photos(tmp_path: Path, random: np.random.Generator) -> None:
    photos, network = make_data_set(tmp_path, random)
    arguments = (photos, tmp_path / "out", "--probabilities", network, "--json", "--resume")
    assert not any(result["resumed"] for result in json.loads(segment(*arguments).stdout))
    expected = (tmp_path / "out" / "2.png").read_bytes()
    (tmp_path / "out" / "2.png").unlink()
    (tmp_path / "out" / "3.png").write_bytes(b"no result of this command")
    results = json.loads(segment(*arguments).stdout)
    assert [result["resumed"] for result in results] == [True, True, False, False, True]
    assert (tmp_path / "out" / "2.png").read_bytes() == expected
    results = json.loads(segment(*arguments, "--overlay", tmp_path / "over").stdout)
    assert not any(result["resumed"] for result in results)
    assert len(list((tmp_path / "over").iterdir())) == len(results)


@pytest.mark.parametrize("mode", ["L", "I;16", "P", "RGB"])
def test_resume_compares_settings(tmp_path: Path, random: np.random.Generator, mode: str) -> None:
    photo, labels, out = save(tmp_path / "photo.png", photograph(random)), tmp_path / "labels.png", tmp_path / "out.png"
    image = Image.fromarray(coarse_labels().astype(np.uint8))
    if mode == "I;16":
        image = Image.fromarray(np.where(disk(), 300, 2).astype(np.uint16))
    image.convert(mode).save(labels)
    assert segment(photo, labels, out, "--strength", 3).exit_code == 0
    before = out.read_bytes()
    result = segment(photo, labels, out, "--strength", 5, "--resume")
    assert result.exit_code == 1
    assert "these differ: strength;" in " ".join(result.stderr.split())
    assert json.loads(segment(photo, labels, out, "--strength", 3, "--resume", "--json").stdout)[0]["resumed"]
    assert out.read_bytes() == before


@pytest.mark.parametrize("begun", [(), ("--trimap",)])
def test_resume_names_the_kind_of_input(tmp_path: Path, random: np.random.Generator, begun: tuple[str, ...]) -> None:
    photo, out = save(tmp_path / "photo.png", photograph(random)), tmp_path / "out.png"
    levels = np.where(disk(), 255, 0)
    levels[:, :30] = 128
    given = save(tmp_path / "given.png", levels)
    assert segment(photo, given, out, "--black-is-a-label" if not begun else begun[0]).exit_code == 0
    result = segment(photo, given, out, "--resume", *(() if begun else ("--trimap",)))
    assert result.exit_code == 1
    assert "these differ: labels, trimap" in " ".join(result.stderr.split())


def test_warns_of_a_bandwidth_in_bytes(tmp_path: Path, random: np.random.Generator) -> None:
    """As pydensecrf takes it."""
    photo, labels = save(tmp_path / "photo.png", photograph(random)), save(tmp_path / "labels.png", coarse_labels())
    result = segment(photo, labels, tmp_path / "out.png", "--sigma-color", 13)
    assert result.exit_code == 0
    assert "sigma_color is 13, but white is 1" in " ".join(result.stderr.split())
    result = invoke("filter", photo, tmp_path / "smooth.png", "--sigma-color", 25)
    assert "sigma_color is 25, but white is 1" in " ".join(result.stderr.split())


def test_warns_of_a_gray_photo_as_labels(tmp_path: Path, random: np.random.Generator) -> None:
    photo = save(tmp_path / "photo.png", photograph(random))
    ramp = save(tmp_path / "ramp.png", np.tile(np.arange(1, 51, dtype=np.uint8), (40, 1)))
    assert "gray levels" not in segment(photo, ramp, tmp_path / "out.png").stderr
    gray = save(tmp_path / "gray.png", np.arange(2000, dtype=np.uint16).reshape(40, 50).astype(np.uint8))
    result = segment(photo, gray, tmp_path / "out.png")
    assert result.exit_code == 0
    assert "note: " in result.stderr
    assert "gray.png has 255 gray levels, each used as a label" in " ".join(result.stderr.split())


def test_rejects_a_trimap_with_colors(tmp_path: Path, random: np.random.Generator) -> None:
    photo, strokes = save(tmp_path / "photo.png", photograph(random)), save(tmp_path / "strokes.png", coarse_labels())
    result = segment(photo, strokes, tmp_path / "out.png", "--trimap")
    assert result.exit_code == 1
    assert "strokes.png must be gray, but has colors" in " ".join(result.stderr.split())
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_interruption_leaves_complete_files(tmp_path: Path, random: np.random.Generator, batch_size: int) -> None:
    photos, network = make_data_set(tmp_path, random)
    out = tmp_path / "out"

    def interrupt(done: float, total: float, name: str) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ph.apps.segment_image(
            photos, out, probabilities=network, batch_size=batch_size, device="cpu", progress=interrupt
        )
    finished = sorted(path.name for path in out.iterdir())
    assert 2 <= len(finished) < 5
    assert set(finished) < {f"{number}.png" for number in range(5)}
    for name in finished:
        read(out / name)
    results = ph.apps.segment_image(photos, out, probabilities=network, device="cpu", resume=True)
    assert sum(result.resumed for result in results) == len(finished)
    assert len(list(out.iterdir())) == 5


def test_one_bad_file_of_a_batch(tmp_path: Path, random: np.random.Generator) -> None:
    photos, network = make_data_set(tmp_path, random)
    np.save(network / "0.npy", np.full((2, 40, 50), 7.0))
    (network / "4.npy").unlink()
    options: dict[str, Any] = {"probabilities": network, "batch_size": 2}
    calls: list[tuple[float, float, str]] = []
    results = ph.apps.segment_image(
        photos, tmp_path / "out", errors="report", progress=lambda *call: calls.append(call), **options
    )
    assert [result.error is None for result in results] == [False, True, True, True, False]
    assert calls[-1][:2] == (5, 5)
    with pytest.raises(InputError, match="softmax"):
        ph.apps.segment_image(photos, tmp_path / "out", **options)
    with pytest.raises(InputError, match="num_iterations must be at most"):
        ph.apps.segment_image(photos, tmp_path / "out", probabilities=network, num_iterations=10**20)
    with pytest.raises(InputError, match="batch_size"):
        ph.apps.segment_image(photos, tmp_path / "out", probabilities=network, batch_size=0)
    with pytest.raises(InputError, match="device"):
        ph.apps.segment_image(photos, tmp_path / "out", probabilities=network, device="gpu")
