"""The examples in CONTRIBUTING.md: a native operation touches the files that it lists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_native_operation_touches_the_files_that_are_listed() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed = dict(re.findall(r"^ (\S+) +\| +(\d+) \+", text, re.MULTILINE))
    operation = "slice_planes"
    folders = [ROOT / "native", ROOT / "src/permutohedral/ops/native", ROOT / "src/permutohedral/ops/backend.py"]
    files = [path for folder in folders for path in ([folder] if folder.is_file() else sorted(folder.rglob("*.?*")))]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.suffix in {".py", ".cpp", ".hpp"} and operation in path.read_text()
    }
    assert found == set(listed)
    assert len(found) <= 6
    assert f"{len(found)} files changed, {sum(map(int, listed.values()))} insertions" in text
    assert int(listed[f"native/filter/{operation}.hpp"]) == len(
        (ROOT / f"native/filter/{operation}.hpp").read_text().splitlines()
    )
