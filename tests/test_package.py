"""The package as a whole: sizes, public names, and what is stated in two places."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import permutohedral as ph

ROOT = Path(__file__).resolve().parents[1]

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60


def checked_files() -> list[Path]:
    return [path for folder in ("src", "tests", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]


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
    names.update({f"crf.{name}": getattr(ph.crf, name) for name in ph.crf.__all__})
    return {name: value for name, value in names.items() if inspect.isfunction(value) or inspect.isclass(value)}


@pytest.mark.parametrize("name", sorted(public_objects()))
def test_public_names_are_explained_by_an_example(name: str) -> None:
    value = public_objects()[name]
    documentation = inspect.getdoc(value) or ""
    assert documentation
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    assert is_error or ">>>" in documentation


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


def test_accuracy_page_shows_the_measured_figures() -> None:
    specification = importlib.util.spec_from_file_location("accuracy", ROOT / "tools" / "accuracy.py")
    assert specification is not None
    assert specification.loader is not None
    accuracy = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(accuracy)
    measured = json.loads((ROOT / "results" / "accuracy.json").read_text())
    assert accuracy.render(measured) == (ROOT / "docs" / "accuracy.md").read_text()
