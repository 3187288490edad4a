"""What is imported is declared in pyproject.toml, and what is declared is used."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# modules by the names of their packages, where the two differ
MODULES = {
    "simpleitk": "SimpleITK",
    "pillow": "PIL",
    "scikit-image": "skimage",
    "opencv-python-headless": "cv2",
    "pydensecrf2": "pydensecrf",
    "pyyaml": "yaml",
}
# commands and plugins are run and not imported: where, and by which word
RUN = {
    "mkdocs-material": ("mkdocs.yml", "material"),
    "mkdocstrings": ("mkdocs.yml", "mkdocstrings"),
    "pytest-xdist": ("Makefile", "--numprocesses"),
    "ruff": ("Makefile", "ruff check"),
    "clang-format": ("Makefile", "clang-format"),
    "mypy": ("Makefile", "mypy"),
    "pyright": ("tests/test_types.py", "pyright"),
}


def declared() -> dict[str, set[str]]:
    """Packages of every extra, "" for what every installation has; extras of this package are taken apart."""
    text = (ROOT / "pyproject.toml").read_text()
    project = text[: text.index("[project.scripts]")]
    extras = {
        name: re.findall(r'"([^"]+)"', entries)
        for name, entries in re.findall(r"^([a-z]+) = \[(.*?)\]$", project, flags=re.MULTILINE | re.DOTALL)
        if name not in ("requires", "keywords", "classifiers", "authors", "dynamic")
    }
    packages: dict[str, set[str]] = {}
    for extra, entries in extras.items():
        names: set[str] = set()
        for entry in entries:
            own = re.fullmatch(r"permutohedral\[(.*)\]", entry)
            inner = [] if own is None else own[1].split(",")
            names |= {name for part in inner for name in packages[part]}
            if own is None:
                names |= {re.split(r"[\[<>=!; ]", entry)[0].lower()}
        packages[extra] = names
    return packages


def imported(*folders: str) -> dict[str, set[str]]:
    """Modules of other packages that files under the folders import, wherever in a file, each with its files."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("import_module", "importorskip"):
                names = [str(part.value) for part in node.args[:1] if isinstance(part, ast.Constant)]
            for name in names:
                found.setdefault(name.split(".")[0], set()).add(path.relative_to(ROOT).as_posix())
    return {name: files for name, files in found.items() if name not in sys.stdlib_module_names | {"permutohedral"}}


def test_what_is_imported_is_declared() -> None:
    known = {MODULES.get(package, package.replace("-", "_")) for names in declared().values() for package in names}
    unknown = {module: sorted(files) for module, files in imported("src").items() if module not in known}
    assert not unknown, unknown


def test_what_is_declared_is_used() -> None:
    used = imported("src", "tests", "tools", "docs").keys()
    for package in set().union(*declared().values()):
        module = MODULES.get(package, package.replace("-", "_"))
        if package in RUN:
            file, word = RUN[package]
            assert word in (ROOT / file).read_text(), f"{package} is declared and not run by {file}"
        else:
            assert module in used, f"{package} is declared and not used"


def test_each_folder_needs_the_extra_that_it_belongs_to() -> None:
    """A user who installs the extra of a command has all that the command imports."""
    extras = declared()
    folders = {
        "arrays": ("dask", "images"),
        "pictures": ("images",),
        # scans beyond memory need both
        "clouds": ("clouds", "dask"),
        "figures": ("images",),
        "models": ("experiments",),
        "experiments": ("experiments",),
    }
    for folder, named in folders.items():
        packages = extras["cli"].union(*(extras[extra] for extra in named))
        allowed = {MODULES.get(package, package.replace("-", "_")) for package in packages}
        allowed |= {"torch", "numpy"}
        # an experiment that compares with them says how to install them
        missing = imported(f"src/permutohedral/{folder}").keys() - allowed - {"bm3d", "cv2"}
        assert not missing, (folder, missing)
