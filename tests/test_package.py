"""The package as a whole: public names, import layers, dependencies, types, and facts stated in two files."""

from __future__ import annotations

import ast
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
from collections.abc import Iterator
from pathlib import Path

import pytest

import permutohedral as ph

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ph.__file__).parent

# a module imports from its own layer and from layers below it
LAYERS = [
    ["__main__", "apps"],
    ["dask"],
    ["nn", "compat"],
    ["crf", "guided"],
    ["accuracy"],
    ["filters"],
    ["levels", "features"],
    ["lattice"],
    ["backends"],
    ["ops"],
    ["errors", "version", "_native"],
]
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}
# needs torch and NumPy only
LIBRARY = {name for names in LAYERS[2:] for name in names}


def imports_of(path: Path) -> set[str]:
    """Return the full names of everything that a file imports, anywhere in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: write the whole name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("import_module", "importorskip"):
            names |= {str(part.value) for part in node.args[:1] if isinstance(part, ast.Constant)}
    return names


def other_packages(*patterns: str) -> dict[str, set[str]]:
    """Map the packages outside of the standard library to the files that import them."""
    found: dict[str, set[str]] = {}
    for path in (path for pattern in patterns for path in sorted(ROOT.glob(pattern))):
        for name in imports_of(path):
            found.setdefault(name.split(".")[0], set()).add(path.relative_to(ROOT).as_posix())
    return {name: files for name, files in found.items() if name not in sys.stdlib_module_names | {"permutohedral"}}


def modules() -> Iterator[tuple[list[str], Path]]:
    """Yield the parts of each module's name below the package, and its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        yield (parts[:-1] if parts[-1] == "__init__" else parts), path


def test_imports_follow_the_layers() -> None:
    wrong = []
    for module, path in modules():
        for imported in imports_of(path) if module else ():
            package, *target = imported.split(".")[:2]
            if package == "permutohedral" and target and LAYER.get(target[0], 99) < LAYER[module[0]]:
                wrong.append(f"permutohedral.{'.'.join(module)} imports {imported}")
    assert wrong == []


def test_library_imports_torch_and_numpy_only() -> None:
    wrong = []
    for module, path in modules():
        if module and module[0] not in LIBRARY:
            continue
        allowed = {"torch", "numpy", "permutohedral"} | ({"triton"} if module[:2] == ["ops", "triton"] else set())
        # reads an image and finds its components, on first use
        allowed |= {"PIL", "skimage"} if module == ["compat", "bilateral_solver"] else set()
        packages = {imported.split(".")[0] for imported in imports_of(path)}
        wrong += [f"{path} imports {package}" for package in packages - allowed - sys.stdlib_module_names]
    assert wrong == []


@pytest.mark.parametrize("folder", ["experiments", "benchmarks"])
def test_research_uses_the_public_api(folder: str) -> None:
    """Everything below `permutohedral.ops` is private."""
    private = [
        f"{path} imports {imported}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for imported in imports_of(path)
        if imported.startswith(("permutohedral.ops", "permutohedral._native")) and "tests" not in path.parts
    ]
    assert private == []


def loaded_by(*statements: str) -> set[str]:
    """Return the names of the modules that the statements load in a fresh interpreter."""
    program = "; ".join([*statements, "import sys, json; print(json.dumps(sorted(sys.modules)))"])
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(output.stdout))


@pytest.mark.process
def test_public_names_load_no_backend() -> None:
    before = loaded_by("import torch, numpy")
    after = loaded_by("import permutohedral", "[getattr(permutohedral, name) for name in permutohedral.__all__]")
    ours = {name for name in after if name.split(".")[0] == "permutohedral"}
    others = {name.split(".")[0] for name in after - before - ours}
    assert others <= sys.stdlib_module_names | {"torch", "numpy"}
    assert {name.split(".")[1] for name in ours if "." in name} <= {*LIBRARY, "apps"}
    assert not {"permutohedral._native", "permutohedral.ops.native", "permutohedral.ops.triton"} & ours
    # these take longer to load than everything else together
    assert not {"torch._dynamo", "torch._inductor", "triton"} & (after - before)


@pytest.mark.process
def test_jobs_on_files_are_imported_lazily() -> None:
    loaded = loaded_by("import permutohedral as ph; assert set(ph.apps.__all__) <= set(dir(ph.apps))")
    assert not {"torch", "PIL", "permutohedral.apps.jobs.images"} & loaded
    assert {"PIL", "permutohedral.apps.jobs.images"} <= loaded_by("import permutohedral as ph; ph.apps.filter_image")


@pytest.mark.process
@pytest.mark.parametrize(
    "statement",
    [
        "import permutohedral as ph; assert set(ph.__all__) <= set(dir(ph)); "
        "assert not hasattr(ph, 'absent'); assert not hasattr(ph, '__absent__'); "
        "ph.splat = 1; ph.slice; assert ph.splat == 1; ph.nn.GaussianFilter; ph.filters.steps.splat",
        "from permutohedral import *; bilateral_filter; nn",
    ],
)
def test_public_names_are_imported_lazily(statement: str) -> None:
    loaded_by(statement)


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
def test_docstrings_have_examples(name: str) -> None:
    """Examples run when they are pasted from `help()`: they import what they use."""
    value = PUBLIC[name]
    documentation = inspect.getdoc(value)
    assert documentation
    assert ">>>" in documentation or (inspect.isclass(value) and issubclass(value, Exception))
    for example in doctest.DocTestFinder().find(value, name, globs={}):
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
        assert result.failed == 0


def test_dir_lists_public_names_only() -> None:
    modules = {"__doc__", "__file__", "__name__", "__path__"}
    assert set(dir(ph)) == {*ph.__all__, "dask", *modules}


# modules whose name differs from their package's
MODULES = {
    "simpleitk": "SimpleITK",
    "pillow": "PIL",
    "scikit-image": "skimage",
    "opencv-python-headless": "cv2",
    "pydensecrf2": "pydensecrf",
    "pyyaml": "yaml",
}
# packages that are run and not imported, each with a file and a word in it
COMMANDS = {
    "sphinx": ("Makefile", "-m sphinx"),
    "myst-parser": ("docs/conf.py", "myst_parser"),
    "sphinx-gallery": ("docs/conf.py", "sphinx_gallery"),
    "sphinx-copybutton": ("docs/conf.py", "sphinx_copybutton"),
    "furo": ("docs/conf.py", "furo"),
    "latex2mathml": ("docs/conf.py", "latex2mathml"),
    "pytest-xdist": ("Makefile", "--numprocesses"),
    "ruff": ("Makefile", "ruff check"),
    "clang-format": ("Makefile", "clang-format"),
    "mypy": ("Makefile", "mypy"),
    "check-jsonschema": ("Makefile", "check-jsonschema"),
    "pyright": ("tests/test_package.py", '"-m", "pyright"'),
}


def declared() -> dict[str, set[str]]:
    """Return the packages of every extra and dependency group, with those that it includes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lists = extras | project["dependency-groups"]

    def packages(name: str) -> set[str]:
        found: set[str] = set()
        for entry in lists[name]:
            inner = [entry["include-group"]] if isinstance(entry, dict) else []
            if isinstance(entry, str) and (own := re.fullmatch(r"permutohedral\[(.*)\]", entry)):
                inner = own[1].split(",")
            found |= set().union(*map(packages, inner)) if inner else {re.split(r"[\[<>=!; ]", entry)[0].lower()}
        return found

    return {name: packages(name) for name in lists} | {"": {"torch", "numpy"}}


def modules_of(packages: set[str]) -> set[str]:
    return {MODULES.get(package, package.replace("-", "_")) for package in packages}


def test_imported_packages_are_declared() -> None:
    known = modules_of(declared()["all"] | declared()[""])
    unknown = {module: sorted(files) for module, files in other_packages("src/**/*.py").items() if module not in known}
    assert not unknown, unknown


def test_declared_packages_are_used() -> None:
    used = other_packages(*(f"{folder}/**/*.py" for folder in ("src", "tests", "tools", "experiments", "benchmarks")))
    packages = set().union(*declared().values())
    assert modules_of(packages - COMMANDS.keys()) - used.keys() == set()
    assert [package for package, (file, word) in COMMANDS.items() if word not in (ROOT / file).read_text()] == []


@pytest.mark.parametrize(
    ("extra", "patterns"),
    {
        "dask": ["files/array*.py", "files/partial.py", "files/tasks.py", "dask/*.py"],
        "clouds": ["files/cloud*.py", "files/partial.py", "files/tasks.py", "dask/*.py"],
        "images": ["compat/*.py", "files/image*.py", "files/maps.py", "files/segmentation.py", "files/formats/*.py"],
    }.items(),
)
def test_extra_is_enough_for_its_commands(extra: str, patterns: list[str]) -> None:
    allowed = modules_of(declared()["cli"] | declared()[extra] | declared()[""])
    assert other_packages(*(f"src/permutohedral/{pattern}" for pattern in patterns)).keys() - allowed == set()


@pytest.mark.process
def test_package_works_without_extras() -> None:
    """`make test-plain` does the same in an environment that has none."""
    absent = dict.fromkeys(modules_of(declared()["all"]))
    smoke = ["-q", "-p", "no:cacheprovider", "tests/smoke/test_install.py", "-k", "extra"]
    program = f"import sys; sys.modules.update({absent}); import pytest; pytest.main({smoke})"
    # pytest's plugins of other packages need them
    variables = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=variables)
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_version_is_the_same_everywhere() -> None:
    for name, pattern in {
        "CITATION.cff": r"^version: (.*)$",
        "CHANGELOG.md": r"^## (\S+)",
        "recipe/recipe.yaml": r'^  version: "(.*)"$',
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
        "recipe/recipe.yaml": f"pytorch >={bound}\n",
    }.items():
        assert sentence in (ROOT / name).read_text(), name


def test_addresses_are_those_of_the_project() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    names = ["README.md", "SECURITY.md", "CITATION.cff", "recipe/recipe.yaml", ".github/ISSUE_TEMPLATE/config.yml"]
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
