"""The package as a whole: public names, lazy imports, types, and facts stated in two files.

`make check` has the layers of imports (import-linter) and the declared packages (deptry).
"""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import permutohedral as ph

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ph.__file__).parent


def loaded_by(*steps: str) -> list[set[str]]:
    """Return the names of the modules that each step loads, one after another in a fresh interpreter."""
    report = "print(json.dumps(sorted(sys.modules)))"
    program = "\n".join(["import sys, json", *(line for step in steps for line in (step, report))])
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = [set(json.loads(line)) for line in output.stdout.splitlines()]
    return [each - before for each, before in zip(loaded, [set(), *loaded], strict=False)]


@pytest.mark.process
def test_public_names_are_imported_lazily_and_load_no_backend() -> None:
    _, listed, loaded, _ = loaded_by(
        "import torch, numpy",
        "import permutohedral as ph; assert set(ph.__all__) <= set(dir(ph)); assert not hasattr(ph, 'absent')",
        "[getattr(ph, name) for name in ph.__all__]",
        "from permutohedral import *; bilateral_filter; nn.GaussianFilter; ph.filters.steps.splat; "
        "ph.splat = 1; ph.slice; assert ph.splat == 1",
    )
    assert "permutohedral.nn" not in listed
    ours = {name for name in loaded if name.split(".")[0] == "permutohedral"}
    assert {name.split(".")[0] for name in loaded - ours} <= sys.stdlib_module_names | {"torch", "numpy"}
    assert not {"permutohedral._native", "permutohedral.ops.native", "permutohedral.ops.triton"} & ours
    assert "permutohedral.dask" not in ours
    # these take longer to load than everything else together
    assert not {"torch._dynamo", "torch._inductor", "triton"} & loaded


@pytest.mark.process
def test_jobs_on_files_are_imported_lazily() -> None:
    listed, loaded = loaded_by(
        "import permutohedral as ph; assert set(ph.apps.__all__) <= set(dir(ph.apps))", "ph.apps.filter_image"
    )
    assert not {"torch", "PIL", "permutohedral.apps.jobs.filter_image"} & listed
    assert {"PIL", "permutohedral.apps.jobs.filter_image"} <= loaded


def test_type_checkers_see_the_public_names() -> None:
    """The imports for type checkers and the lazy table are written separately, and must list the same names."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname for node in imports for alias in node.names if str(node.module).startswith("permutohedral")}
    assert seen == {*ph.__all__, "dask"}
    assert (PACKAGE / "py.typed").is_file()


def test_public_modules_can_be_imported() -> None:
    names = [name for name in ph.__all__ if inspect.ismodule(getattr(ph, name))]
    assert len(names) > 10
    for name in names:
        assert importlib.import_module(f"permutohedral.{name}") is getattr(ph, name)


def test_there_are_few_public_names() -> None:
    assert len(ph.__all__) <= 26
    assert "__version__" in ph.__all__
    undocumented = [name for name in ph.__all__ if name != "__version__" and not inspect.getdoc(getattr(ph, name))]
    assert undocumented == []


MODULES_WITH_EXAMPLES = ("accuracy", "backends", "crf", "features", "guided", "lattice", "levels", "nn")
PUBLIC = {name: getattr(ph, name) for name in ph.__all__} | {
    f"{module}.{name}": getattr(getattr(ph, module), name)
    for module in MODULES_WITH_EXAMPLES
    for name in getattr(ph, module).__all__
}


@pytest.mark.parametrize("name", sorted(name for name, value in PUBLIC.items() if callable(value)))
def test_docstrings_have_examples_that_can_be_pasted(name: str) -> None:
    """Examples of `help()` import what they use; `--doctest-modules` runs them."""
    value = PUBLIC[name]
    documentation = inspect.getdoc(value)
    assert documentation
    examples = doctest.DocTestParser().get_examples(documentation)
    assert examples or (inspect.isclass(value) and issubclass(value, Exception))
    nodes = list(ast.walk(ast.parse("".join(example.source for example in examples))))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | set(dir(builtins))
    known |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    imported = [alias for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
    known |= {(alias.asname or alias.name).split(".")[0] for alias in imported}
    assert {node.id for node in names} <= known


def test_dir_lists_public_names_only() -> None:
    modules = {"__doc__", "__file__", "__name__", "__path__"}
    assert set(dir(ph)) == {*ph.__all__, "dask", *modules}


# modules that come with extras
EXTRAS = """typer rich PIL skimage tifffile imagecodecs matplotlib safetensors dask distributed zarr filelock laspy
    plyfile nicegui fastapi starlette uvicorn"""


@pytest.mark.process
def test_package_works_without_extras() -> None:
    """The workflow `release` does the same in an environment that has none."""
    smoke = ["-q", "-p", "no:cacheprovider", "tests/smoke/test_install.py", "-k", "extra"]
    program = f"import sys; sys.modules.update({dict.fromkeys(EXTRAS.split())}); import pytest; pytest.main({smoke})"
    # pytest's plugins of other packages need them
    variables = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=variables)
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_version_is_the_same_everywhere() -> None:
    for name, pattern in {
        "CITATION.cff": r"^version: (.*)$",
        "CHANGELOG.md": r"^## (\S+)",
    }.items():
        found = re.findall(pattern, (ROOT / name).read_text(), flags=re.MULTILINE)
        assert found[:1] == [ph.__version__], name


def test_torch_bound_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bound,) = (entry.removeprefix("torch>=") for entry in project["dependencies"] if entry.startswith("torch>="))
    for name, sentence in {
        "README.md": f"torch {bound} or newer",
        "CHANGELOG.md": f"torch {bound} or newer",
        "constraints.txt": f"torch >= {bound}\n",
    }.items():
        assert sentence in (ROOT / name).read_text(), name


def test_hooks_before_a_commit_have_the_pinned_versions() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    pins = dict(
        re.findall(r"^(ruff|clang-format|codespell)==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    assert sorted(re.findall(r"rev: v(.*)", hooks)) == sorted(pins.values())


def test_addresses_are_those_of_the_project() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    names = ["README.md", "SECURITY.md", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"]
    ours = re.compile(r"https://(?:[\w.-]*github[\w.-]*|[\w.-]+\.readthedocs\.io)/[^\s)\"]*")
    for name in names:
        found = ours.findall((ROOT / name).read_text())
        assert found, name
        assert [url for url in found if not url.startswith((urls["Documentation"], urls["Repository"]))] == [], name


def test_accuracy_page_shows_the_measured_figures() -> None:
    import accuracy

    measured = (ROOT / "results" / name for name in ("accuracy.json", "accuracy-pictures.json"))
    page = accuracy.render(*(json.loads(path.read_text()) for path in measured))
    assert page == (ROOT / "docs" / "research" / "accuracy.md").read_text()


@pytest.mark.process
def test_build_without_a_compiler_explains_the_pure_install(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("CMake is not installed")
    command = [cmake, "-S", str(ROOT), "-B", str(tmp_path), "-DCMAKE_MAKE_PROGRAM=/bin/true", "-G", "Unix Makefiles"]
    (tmp_path / "empty").mkdir()
    environment = {"PATH": str(tmp_path / "empty"), "CXX": str(tmp_path / "absent")}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode != 0
    assert "PERMUTOHEDRAL_PURE=1" in run.stderr


@pytest.mark.slow
@pytest.mark.process
def test_pyright_accepts_a_strict_user_project(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed: pip install 'pyright[nodejs]'")
    shutil.copytree(ROOT / "tests" / "user_project", tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "pyrightconfig.json"
    # the sources stand in for an installed package
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"extraPaths": [str(PACKAGE.parent)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert [entry["message"] for entry in report["generalDiagnostics"]] == []


def test_user_project_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "tests" / "user_project" / "network.py"), run_name="__main__")
    assert "63 taps are missing" in capsys.readouterr().out
