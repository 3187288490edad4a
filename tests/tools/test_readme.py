"""Everything that README.md and the other pages say to type, and where their links lead."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import readme
import tables
from typer.testing import CliRunner

from benchmarks import run_time
from permutohedral.apps import PointSegmenter
from permutohedral.apps.cli.application import application
from permutohedral.errors import DOCUMENTATION

ROOT = readme.ROOT
PAGES = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *readme.pages(),
    *sorted((ROOT / "docs" / "tutorials").glob("*.py")),
]


def test_snippets_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme.write_pictures(tmp_path)
    namespace = readme.run_snippets()
    assert namespace["smooth"].shape == namespace["photo"].shape == (24, 32, 3)
    assert namespace["smooth"].dtype == np.uint8
    assert (tmp_path / "smooth.jpg").is_file()


def test_links_of_the_readme_work_on_the_package_index() -> None:
    links = re.findall(r"\]\(([^()\s]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 15
    assert [link for link in links if not link.startswith("https://")] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


# completion asks which shell runs the tests; the playground serves until it is stopped
LEFT_OUT = ("--help", "--install-completion", "--show-completion", "playground")


def typed() -> list[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
    lines = dict.fromkeys(line for page in pages for line in readme.commands("permutohedral", page))
    return [line for line in lines if not set(shlex.split(line)) & set(LEFT_OUT)]


def write_arrays(folder: Path) -> None:
    """The stores and the laser scan that pages filter."""
    zarr: Any = pytest.importorskip("zarr", reason="zarr is not installed")
    laspy: Any = pytest.importorskip("laspy", reason="laspy is not installed")
    tifffile: Any = pytest.importorskip("tifffile", reason="tifffile is not installed")
    volume = np.random.default_rng(0).random((6, 9, 8), dtype=np.float32)
    zarr.create_array(str(folder / "volume.zarr"), data=volume)
    scale = {"type": "scale", "scale": [1.0, 0.25, 0.25]}
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    levels = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": [scale]}]}
    described = {"ome": {"version": "0.5", "multiscales": [levels]}}
    zarr.create_group(str(folder / "cells.ome.zarr"), attributes=described).create_array("0", data=volume)
    tifffile.imwrite(folder / "slide.tif", (255 * volume[0]).astype(np.uint8))
    scan = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    scan.x, scan.y, scan.z = volume.reshape(3, -1).astype(np.float64)
    scan.write(folder / "scan.laz")
    PointSegmenter(0, 2, channels=(4,)).save(folder / "model.safetensors")


@pytest.mark.parametrize("command", typed())
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme.write_pictures(tmp_path)
    if ".zarr" in command or ".laz" in command:
        write_arrays(tmp_path)
    # each worker is a process that imports torch
    arguments = shlex.split(re.sub(r"--workers \d+", "--workers 1", command))[1:]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    mentioned = {name for page in PAGES for name in re.findall(r"`make ([a-z0-9-]+)", page.read_text())}
    wanted = {line.split()[1] for line in readme.commands("make")} | mentioned
    assert {"demo", "test", "docs"} <= wanted
    for target in wanted:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_extras_exist() -> None:
    metadata = (ROOT / "pyproject.toml").read_text()
    text = "".join(page.read_text() for page in PAGES)
    extras = {name for group in re.findall(r"pip install ['\"](?:\.|permutohedral)\[([a-z,]+)\]", text) for name in
              group.split(",")}  # fmt: skip
    assert {"images", "gpu"} <= extras
    extras |= set(re.findall(r"`(\w+)`", re.search(r"Extras: (.+?)\.", text)[1]))  # type: ignore[index]
    for extra in extras:
        assert re.search(rf"^{extra} = \[", metadata, flags=re.MULTILINE), extra


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, in the spelling of MyST and of code hosts."""
    text = page.read_text()
    for path in re.findall(r"^```{include} (.+)$", text, flags=re.MULTILINE):
        text += (page.parent / path).read_text()
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings]
    return {re.sub(r"[\s]+", "-", word) for word in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^()\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if path.startswith(DOCUMENTATION):
            # the site has a page for each file, and its images in one folder
            place = path.removeprefix(DOCUMENTATION).replace("_images/", "images/") or "index.html"
            target = ROOT / "docs" / place.replace(".html", ".md")
        elif "://" in link:
            continue
        else:
            target = page.parent / path if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


FOLDERS = ("src", "native", "tests", "experiments", "benchmarks", "docs", "tools", "recipe", ".github")
# outputs of commands, folders of data sets, and results, whose tables a test checks
OTHER_FOLDERS = ("dist", "site", "bsds500", "mnist", "results")


@pytest.fixture(scope="module")
def tree() -> str:
    """The paths of all files and folders of the repository, one per line."""
    places = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return "\n".join(path.relative_to(ROOT).as_posix() for path in (*ROOT.iterdir(), *places))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_files_exist(page: Path, tree: str) -> None:
    """Paths from the root in any text, also in code, and names of files and folders between backticks."""
    path = rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*\w"
    name = r"(?<=`)[\w./*-]+(?:/|\.(?:py|[ch]pp|md|toml|ya?ml|json|csv))(?=`)"
    named = {each.rstrip("/") for each in re.findall(f"{path}|{name}", page.read_text())}
    wanted = {each for each in named if each.split("/")[0] not in OTHER_FOLDERS and "NAME" not in each}
    patterns = {each: re.escape(each).replace(r"\*", "[^/]*") for each in wanted}
    # a page about a folder may name its files without it
    assert [each for each, way in patterns.items() if not re.search(rf"^(.*/)?{way}$", tree, re.MULTILINE)] == []


ARCHITECTURE = ROOT / "docs" / "develop" / "architecture.md"


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.read_text().split()) <= 1500


def test_run_times_are_over_those_of_the_faster_convolution() -> None:
    peers = [{"name": name, "median": 4.0 / (1 + place)} for place, name in enumerate(run_time.CONVOLUTIONS)]
    results = [
        {"workload": f"run-time-{channels}-{passes}", "ours": {"name": "layer", "median": median}, "others": peers}
        for channels in run_time.CHANNELS
        for passes, median in (("forward", 3.0), ("training", 50.0))
    ]
    header, _, fastest, layer = tables.run_time_table({"results": results}).splitlines()
    assert header.startswith("|  | 1 channel | 4 channels |")
    assert fastest.startswith("| Conv2d 5 x 5, the faster layout | 2 / 2 ms |")
    assert layer == "| layer |" + " 1.5 / 25 |" * len(run_time.CHANNELS)


@pytest.mark.parametrize("page", readme.pages(), ids=lambda page: page.name)
def test_tables_show_the_measured_figures(page: Path) -> None:
    text = page.read_text()
    assert text.count("<!-- table:") == text.count("<!-- end of table -->")
    assert tables.fill(text) == text, "run: PYTHONPATH=. python tools/tables.py"
