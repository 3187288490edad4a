"""Source trees to compare: a commit or a folder, its compiled core, and a process that runs its workloads."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from permutohedral.errors import InputError, PermutohedralError

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "compare"

# Python runs it at its start. An editable install would win over PYTHONPATH, and has the core of another tree.
_SITE = """
import importlib.util, sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]


class Core:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "permutohedral._native" and {core!r}:
            return importlib.util.spec_from_file_location(name, {core!r})


sys.meta_path.insert(0, Core)
"""


class WorkerError(Exception):
    """A workload failed, or its process ended."""


@dataclass(frozen=True)
class Tree:
    """Sources of the package and its benchmarks.

    Attributes:
        folder: of the sources.
        name: folder or short commit, for the report.
    """

    folder: Path
    name: str


def find_tree(base: str) -> Tree:
    """Return the tree of a folder or a commit; the files of a commit are kept in `CACHE`.

    Raises:
        InputError: `base` is neither.
    """
    folder = Path(base)
    if folder.is_dir():
        if not (folder / "src" / "permutohedral").is_dir() or not (folder / "benchmarks").is_dir():
            raise InputError(f"base: {base} has no src/permutohedral and benchmarks; pass the root of a checkout")
        return Tree(folder.resolve(), base)
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise InputError(f"base: {base!r} is neither a folder nor a commit of {ROOT}")
    commit = found.stdout.strip()
    kept = CACHE / "trees" / commit
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            archive = Path(scratch, "sources.tar")
            subprocess.run([*git, "archive", f"--output={archive}", commit], check=True)
            shutil.unpack_archive(archive, Path(scratch, "sources"), filter="data")
            Path(scratch, "sources").rename(kept)
    return Tree(kept, commit[:9])


def build_core(folder: Path) -> Path:
    """Compile the native core of a tree, and return the library; `CACHE` keeps one for each state of its sources.

    Raises:
        PermutohedralError: it does not compile.
    """
    sources = [folder / "CMakeLists.txt", *sorted(path for path in (folder / "native").rglob("*") if path.is_file())]
    digest = hashlib.sha256(sys.version.encode())
    for path in sources:
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    kept = CACHE / "cores" / digest.hexdigest()[:16]
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            options = [f"build-dir={scratch}/build", "cmake.define.PERMUTOHEDRAL_ONLY_HERE=ON"]
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--no-build-isolation", f"--wheel-dir={scratch}", str(folder)]
            command += [f"--config-settings={option}" for option in options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise PermutohedralError(f"the native core of {folder} does not compile:\n{done.stderr[-2000:]}")
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                member = next(name for name in wheel.namelist() if "_native" in name and not name.endswith(".pyi"))
                wheel.extract(member, f"{scratch}/wheel")
            Path(scratch, "wheel", "permutohedral").rename(kept)
    return next(kept.glob("_native*"))


def environment_of(package: Path, core: Path | None, site: str, *paths: str) -> dict[str, str]:
    """Return the environment of a process that imports the package of a tree; `site` is an empty folder for it."""
    Path(site, "sitecustomize.py").write_text(_SITE.format(core=str(core) if core else None))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([site, *paths, str(package / "src")])}


def run_script(tree: Tree, core: Path, script: Path, *arguments: str) -> None:
    """Run a script with the package of a tree.

    Raises:
        PermutohedralError: it failed.
    """
    with tempfile.TemporaryDirectory() as site:
        command = [sys.executable, "-P", str(script), *arguments]
        done = subprocess.run(command, env=environment_of(tree.folder, core, site), check=False)
    if done.returncode:
        raise PermutohedralError(f"{script.name} failed with {tree.name}")


class Process:
    """A process that runs workloads on request; see `benchmarks.worker`.

    Args:
        package: folder of the tree whose package is measured.
        workloads: folder of the tree whose workloads run.
        core: compiled core of the package, or None for none.
        device: "cpu" or "cuda".
        threads: of torch and the core.
        data: folder of data sets, or None.
    """

    def __init__(
        self, package: Path, workloads: Path, core: Path | None, device: str, threads: int, data: Path | None
    ) -> None:
        self._site = tempfile.TemporaryDirectory()
        environment = environment_of(package, core, self._site.name, str(workloads))
        environment["OMP_NUM_THREADS"] = str(threads)
        if data is not None:
            environment["PERMUTOHEDRAL_DATA"] = str(data)
        worker = str(Path(__file__).with_name("worker.py"))
        command = [sys.executable, "-P", worker, device, str(threads), *([str(data)] if data else [])]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        try:
            about = self.ask("describe")
            if not Path(about["package"]).is_relative_to(package):
                raise WorkerError(f"imports permutohedral from {about['package']}, not from {package}")
        except WorkerError:
            self.close()
            raise
        self.names: list[str] = about["names"]

    def ask(self, action: str, *arguments: Any) -> Any:
        """Return the reply to a request.

        Raises:
            WorkerError: the workload failed, or the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([action, arguments]) + "\n")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"the process ended with status {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._site.cleanup()
