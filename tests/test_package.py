"""The package as a whole: who imports whom, sizes, public names, and what is stated in two places."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import permutohedral as ph

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "permutohedral"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60

# from bottom to top: a module imports from its own row and from rows above it in this list, never below.
# "" is the package itself, whose public names everything built on the operator may use.
LAYERS = [
    {"errors", "version"},
    {"neighborhood", "features"},
    {"ops", "_native"},
    {"memory", "lattice"},
    {"shapes"},
    {"functional"},
    {"nn"},
    {""},
    {"image_files", "data"},
    {"models"},
    {"experiments", "benchmarks"},
    {"report", "demo", "denoise"},
    {"cli", "experiment_commands"},
    {"__main__"},
]
LAYER_OF = {name: height for height, names in enumerate(LAYERS) for name in names}

# what functions of the package return, rather than what users make
RESULTS = {"Lattice", "LatticeStatistics", "MemoryForecast", "Simplices"}


def layer_name(module: str) -> str:
    """The part of a dotted module name that `LAYERS` lists."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "permutohedral":
            modules.update(
                f"permutohedral.{name.name}" if name.name in LAYER_OF else "permutohedral" for name in node.names
            )
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the package's name out"
            modules.add(node.module or "")
    return {module for module in modules if module.split(".")[0] == "permutohedral"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    importer = layer_name(module_of(path))
    assert importer in LAYER_OF, f"say in LAYERS where {importer} belongs"
    for module in imported_modules(path):
        imported = layer_name(module)
        assert imported in LAYER_OF, f"say in LAYERS where {imported} belongs"
        assert LAYER_OF[imported] <= LAYER_OF[importer], f"{module_of(path)} must not import {module}"


def checked_files() -> list[Path]:
    return [path for folder in ("src", "tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_files_and_functions_stay_short() -> None:
    too_long = []
    for path in checked_files():
        text = path.read_text()
        if text.count("\n") > MOST_LINES_OF_A_FILE:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = code_lines(node)
                if length > MOST_LINES_OF_A_FUNCTION:
                    too_long.append(f"{path.relative_to(ROOT)}: {node.name}: {length} lines")
    assert too_long == []


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def public_objects() -> dict[str, Any]:
    names = {name: getattr(ph, name) for name in ph.__all__}
    names.update({f"nn.{name}": getattr(ph.nn, name) for name in ph.nn.__all__})
    return {name: value for name, value in names.items() if inspect.isfunction(value) or inspect.isclass(value)}


@pytest.mark.parametrize("name", sorted(public_objects()))
def test_public_names_are_explained_by_an_example(name: str) -> None:
    value = public_objects()[name]
    documentation = inspect.getdoc(value) or ""
    assert documentation
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    assert is_error or name in RESULTS or ">>>" in documentation


def test_version_is_stated_once() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [ph.__version__]
    assert ph.__version__ not in (ROOT / "pyproject.toml").read_text()
    try:
        installed = importlib.metadata.version("permutohedral")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package runs from its sources and is not installed")
    assert installed == ph.__version__


def test_types_are_shipped() -> None:
    assert (Path(ph.__file__).parent / "py.typed").is_file()


def test_import_needs_torch_and_numpy_only() -> None:
    extras = ["typer", "rich", "PIL", "skimage", "matplotlib", "scipy", "cv2", "pytorch_lightning", "pooch", "yaml"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({extras!r}))\n"
        f"sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "import torch, permutohedral as ph\n"
        "ph.bilateral_filter(torch.rand(3, 8, 8), 2.0, 0.1)\n"
        "ph.nn.PermutohedralConvolution(1, 1, dimension=2)(torch.rand(5, 1), torch.rand(5, 2))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_accuracy_page_shows_the_measured_figures() -> None:
    specification = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert specification is not None
    assert specification.loader is not None
    accuracy = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(accuracy)
    measured = json.loads((ROOT / "results" / "accuracy.json").read_text())
    assert accuracy.render(measured) == (ROOT / "docs" / "accuracy.md").read_text()
