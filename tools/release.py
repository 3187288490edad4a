"""Check and list the contents of distributions: `python tools/release.py dist/*`, a part of `make release-dry-run`."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

# nothing of these belongs in an archive for users
UNWANTED = ("results", "recipe", ".github", ".ci")


def names(archive: Path) -> list[PurePosixPath]:
    """Return the files of a wheel, or of a source archive without its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return [PurePosixPath(name) for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(archive) as source:
        return [PurePosixPath(*PurePosixPath(each.name).parts[1:]) for each in source if each.isfile()]


def check_contents(archive: Path) -> None:
    """Exit if an archive lacks files, has results, or has a compiled core in the wrong place."""
    files = names(archive)
    cores = sum(path.suffix in (".so", ".pyd") and path.name.startswith("_native") for path in files)
    if missing := {"LICENSE", "py.typed"} - {path.name for path in files}:
        sys.exit(f"{archive.name} lacks {missing}")
    if unwanted := [str(path) for path in files if path.parts[0] in UNWANTED or path.suffix == ".pyc"]:
        sys.exit(f"{archive.name} has {unwanted[:3]}")
    if cores != (archive.suffix == ".whl" and "none-any" not in archive.name):
        sys.exit(f"{archive.name} has {cores} compiled cores")


if __name__ == "__main__":
    for archive in map(Path, sys.argv[1:]):
        check_contents(archive)
        print(f"{archive.stat().st_size:12,} bytes {len(names(archive)):6,} files  {archive.name}")
