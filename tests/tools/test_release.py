"""Contents of distributions that the dry run of a release rejects."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import release

PURE = ["permutohedral/py.typed", "permutohedral-0.9.0.dist-info/licenses/LICENSE"]
CORE = "permutohedral/_native.abi3.so"


def write_wheel(folder: Path, tag: str, *files: str) -> Path:
    path = folder / f"permutohedral-0.9.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in files:
            wheel.writestr(name, "")
    return path


def test_complete_wheels_are_accepted(tmp_path: Path) -> None:
    release.check_contents(write_wheel(tmp_path, "py3-none-any", *PURE))
    release.check_contents(write_wheel(tmp_path, "cp312-abi3-win_amd64", *PURE, CORE))


@pytest.mark.parametrize(
    ("tag", "files"),
    [
        ("py3-none-any", [*PURE, "results/report.json"]),
        ("py3-none-any", [*PURE, CORE]),
        ("cp312-abi3-win_amd64", PURE),
        ("py3-none-any", PURE[:1]),
    ],
    ids=["results", "core_in_pure_wheel", "no_core", "no_license"],
)
def test_rejects_wrong_contents(tag: str, files: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"permutohedral-1\.0\.0"):
        release.check_contents(write_wheel(tmp_path, tag, *files))
