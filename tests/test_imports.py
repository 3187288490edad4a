"""Who may import whom, and what `import permutohedral` brings along."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import permutohedral

ROOT = Path(permutohedral.__file__).parent

# from the bottom up: a module imports only from lines above its own, or from its own entry; every module has an entry,
# its own or that of a folder it lies in
ORDER = [
    ["errors", "version", "_native"],
    ["tensors"],
    ["neighborhood", "simplices"],
    ["ops.primitives", "ops.guided_primitives", "ops.tracing", "ops.batching", "ops.color_tables"],
    ["ops.shared_tensors", "ops.fused_primitives", "ops.native_limits"],
    ["ops.reference", "ops.native"],
    ["ops.triton"],
    ["ops.dispatch"],
    ["ops.operator"],
    ["ops.operators", "ops.exact_sums", "ops"],
    ["ops.one_call"],
    ["ops.fused_layers", "ops.fused_fields", "ops.fused_guided"],
    ["ops.fused_filters", "ops.level_operators", "ops.largest"],
    ["features", "data"],
    ["stacked_features"],
    ["memory"],
    ["lattice_tables"],
    ["lattice"],
    ["checks", "geometry", "pyramid", "bounded_lattice"],
    ["filters.steps", "levels"],
    ["filters.color_samples"],
    ["filters.normalization", "filters.landmarks", "filters.color_grid"],
    ["filters.weighting", "filters.exact"],
    ["filters.estimate", "filters.choice", "filters"],
    ["functional"],
    ["guided"],
    ["crf"],
    ["nn"],
    # other libraries' names over ours
    ["pydensecrf"],
    ["simplecrf"],
    ["public"],
    # the package itself: hands on the public names
    [""],
    # arrays larger than memory
    ["dask"],
    # files, figures and measures; needs the errors and the version alone
    ["reporting"],
    ["models"],
    # people's files, what is done with them, and what is drawn of them or of the lattice
    ["arrays"],
    ["pictures", "clouds"],
    ["figures"],
    # a page to try them with sliders
    ["playground"],
    # what the experiments share, then each of them: rotation and scale take their digits from MNIST
    ["experiments"],
    ["experiments.parts", "experiments.points"],
    ["experiments.denoising", "experiments.grabcut", "experiments.lidar", "experiments.mnist", "experiments.mri"],
    ["experiments.upsampling"],
    ["experiments.invariance"],
    ["benchmarks"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

# what every installation has, and what needs more
CORE = {
    *("errors", "version", "ops", "neighborhood", "simplices", "tensors", "features", "memory", "lattice", "checks"),
    "lattice_tables",
    *("geometry", "pyramid", "bounded_lattice", "levels", "filters", "functional", "guided", "crf", "nn"),
    *("pydensecrf", "simplecrf", "public", ""),
    "stacked_features",
}


def unit_of(module: str) -> str:
    """The entry of `ORDER` that a module below the package belongs to."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in RANK:
            return ".".join(parts[:length])
    raise AssertionError(f"permutohedral.{module} has no place in ORDER")


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name below it; the package itself is ''."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path) -> set[str]:
    """Full names of all that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: write the whole name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def inner_unit(imported: str) -> str | None:
    """The unit a name of this package belongs to; None for other packages."""
    if imported == "permutohedral":
        return ""
    if not imported.startswith("permutohedral."):
        return None
    below = imported.removeprefix("permutohedral.")
    known = modules()
    while below and below not in known and below != "_native":
        below = below.rpartition(".")[0]
    return unit_of(below) if below else ""


def test_every_place_is_taken() -> None:
    units = {unit_of(module) if module else "" for module in modules()}
    assert RANK.keys() - units == {"_native"}


def test_the_architecture_draws_the_same_order() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text()
    drawing = page.split("## Who may import whom")[1].split("```")[1]
    # names, then a remark at some distance
    lines = [line.strip().split("  ")[0] for line in drawing.splitlines() if line.strip() and "──" not in line]
    drawn = [["" if name == "permutohedral" else name for name in line.split(", ")] for line in reversed(lines)]
    assert drawn == ORDER


def test_reporting_needs_nothing_of_the_lattice() -> None:
    for module, path in modules().items():
        if module.split(".")[0] == "reporting":
            targets = {inner_unit(imported) for imported in imports_of(path)}
            assert targets <= {None, "errors", "version", "reporting"}, module


def test_imports_point_one_way() -> None:
    wrong = []
    for module, path in modules().items():
        unit = unit_of(module) if module else ""
        for imported in imports_of(path):
            target = inner_unit(imported)
            if target is not None and target != unit and RANK[target] >= RANK[unit]:
                wrong.append(f"permutohedral.{module} imports {imported}")
    assert wrong == []


def test_the_core_needs_torch_and_numpy_only() -> None:
    wrong = []
    for module, path in modules().items():
        if module.split(".")[0] not in CORE:
            continue
        allowed = {"torch", "numpy", "permutohedral"} | ({"triton"} if module.startswith("ops.triton") else set())
        for imported in imports_of(path):
            package = imported.split(".")[0]
            if package not in allowed and package not in sys.stdlib_module_names:
                wrong.append(f"permutohedral.{module} imports {imported}")
    assert wrong == []


def loaded_by(*statements: str) -> set[str]:
    """Names of the modules loaded by the statements in a fresh interpreter."""
    program = "; ".join([*statements, "import sys, json; print(json.dumps(sorted(sys.modules)))"])
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(output.stdout))


def test_importing_the_package_loads_nothing_else() -> None:
    """Beyond torch and NumPy, and what these load themselves, nothing but the core, and no backend yet."""
    before = loaded_by("import torch, numpy")
    after = loaded_by("import permutohedral", "[getattr(permutohedral, name) for name in permutohedral.__all__]")
    ours = {name for name in after if name.split(".")[0] == "permutohedral"}
    others = {name.split(".")[0] for name in after - before - ours}
    assert others <= sys.stdlib_module_names | {"torch", "numpy"}
    assert {name.split(".")[1] for name in ours if "." in name} <= CORE
    assert not {"permutohedral._native", "permutohedral.ops.native", "permutohedral.ops.triton"} & ours
    # these take longer to load than everything else together
    assert not {"torch._dynamo", "torch._inductor", "triton"} & (after - before)


def test_the_command_line_answers_without_torch() -> None:
    """Help, version and completion would take seconds."""
    loaded = loaded_by("import permutohedral.__main__, permutohedral.cli.application")
    assert not {"torch", "numpy", "PIL", "rich", "matplotlib"} & loaded
    assert loaded_by("from permutohedral import bilateral_filter") >= {"torch"}


def test_the_names_are_there_before_they_are_loaded() -> None:
    for statement in (
        "import permutohedral as ph; assert set(ph.__all__) <= set(dir(ph)); "
        "assert not hasattr(ph, 'absent'); assert not hasattr(ph, '__absent__'); "
        "ph.splat = 1; ph.slice; assert ph.splat == 1; ph.nn.GaussianFilter; ph.filters.steps.splat",
        "from permutohedral import *; bilateral_filter; nn",
    ):
        loaded_by(statement)


def test_the_public_names_are_those_listed() -> None:
    assert sorted(permutohedral.__all__) == permutohedral.__all__
    for name in permutohedral.__all__:
        assert hasattr(permutohedral, name)
    documented = {
        *("build_lattice", "splat", "convolve", "slice", "permutohedral_filter", "gaussian_filter"),
        *("bilateral_filter", "nn", "Neighborhood", "gaussian_weight", "position_features", "color_features"),
        *("join_features", "available_backends", "use_backend", "explain_backend", "PermutohedralError"),
        *("forecast_memory", "Lattice"),
    }
    assert documented <= set(permutohedral.__all__)
    layers = {"PermutohedralConvolution", "GaussianFilter", "BilateralFilter", "BilateralConvolution2d", "DenseCRF"}
    assert layers <= set(permutohedral.nn.__all__)


def test_the_package_carries_types() -> None:
    assert (ROOT / "py.typed").exists()
