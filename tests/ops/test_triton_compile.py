"""Every kernel compiles for NVIDIA and AMD GPUs, as the tests in the interpreter launch it; no GPU is needed for it."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support import INTERPRETED

pytest.importorskip("triton", reason="Triton is not installed")
if INTERPRETED:
    pytest.skip("kernels that are interpreted are not compiled", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import permutohedral.ops.triton as package
from permutohedral.ops.triton.kernel import Kernel

TESTS = Path(__file__).parents[1]
H100 = GPUTarget("cuda", 90, 32)
TARGETS = [H100, GPUTarget("hip", "gfx942", 64)]
# tests in tests/interpreted that launch every kernel between them, without the slow ones
RECORDED = (
    "test_index_points and not wider or test_index_keys or test_transpose_neighbors or test_neighbors_in_pairs "
    "or test_derivatives_of_the_weights or test_filtering or test_filter_gaussian or test_a_gaussian_of_values "
    "or test_blur or test_splat_of_consecutive_points or test_convolve or test_convolution or test_both_gradients "
    "or test_on_a_lattice or test_a_graph_that_is_kept or test_picture_features or test_exact_sums "
    "or test_mean_field or test_splat_listed or test_levels or test_largest or test_items_norm or test_sums_of_rows "
    "or test_encodings and not many"
)

Launch = dict[str, Any]


def kernels() -> dict[str, Any]:
    """Every kernel of the backend by its full name."""
    found = {}
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Kernel):
                found[f"{value.function.fn.__module__}.{value.function.fn.__name__}"] = value.function
    return found


KERNELS = kernels()


def record(folder: Path) -> None:
    """Write how tests in the interpreter launch the kernels; they run in a process of their own."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PERMUTOHEDRAL_TEST_DEVICE": "cpu"}
    environment |= {"RECORDED_LAUNCHES": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-k", RECORDED, str(TESTS / "interpreted")]
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def recorded_folder(base: Path) -> Path:
    """That of the session in the interpreter, where there was one before this; else recorded for all workers once."""
    if "RECORDED_LAUNCHES" in os.environ:
        return Path(os.environ["RECORDED_LAUNCHES"])
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(shared / "launches.lock"):
        if not (shared / "launches").exists():
            record(shared / "launches")
    return shared / "launches"


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Launch]]:
    """By kernel, the launches that differ."""
    found: dict[str, list[Launch]] = {}
    for path in sorted(recorded_folder(tmp_path_factory.getbasetemp()).glob("*.json")):
        for name, noted in json.loads(path.read_text()).items():
            found.setdefault(name, []).extend(noted)
    if len(found) <= 1:
        pytest.skip("the interpreter does not run with these versions of Triton and NumPy")
    return found


def build(kernel: Any, launch: Launch, target: GPUTarget, **options: Any) -> Any:
    """Compile as launched, but with what only a GPU can do."""
    on_cuda = target.backend == "cuda"
    chosen = {"PTX": on_cuda, "PRECISION": "tf32x3" if on_cuda else "ieee"}
    constants = {name: chosen.get(name, value) for name, value in launch["constants"].items()}
    types = launch["types"]
    values = {(place,): constants[name] for place, name in enumerate(types) if name in constants}
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(types.values()) if kind[0] == "*"}
    return triton.compile(ASTSource(kernel, types, values, aligned), target=target, options=options)


def different(launches: list[Launch]) -> list[Launch]:
    """The first launch with each combination of switches, and the first of other types; sizes and strides are alike.

    Types in double precision take the compiler much longer and show nothing new where there are others.
    """
    double = [launch for launch in launches if "*fp64" in launch["types"].values()]
    single = [launch for launch in launches if launch not in double]
    found: dict[str, Launch] = {}
    for launch in single + double:
        switches = {name: value for name, value in launch["constants"].items() if isinstance(value, bool)}
        new = [switches, launch["types"]] if launch in single or not single else [switches]
        for each in map(json.dumps, new):
            found.setdefault(each, launch)
    return list({id(launch): launch for launch in found.values()}.values())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.backend}-{target.arch}")
@pytest.mark.parametrize("name", KERNELS, ids=lambda name: name.rpartition(".")[2])
def test_compiles(name: str, target: GPUTarget, launches: dict[str, list[Launch]]) -> None:
    """As first launched for every GPU, in all variants for one of them."""
    assert name in launches, f"no test of RECORDED launches {name}: write one in tests/interpreted, and add it there"
    chosen = different(launches[name])
    for launch in chosen if target is H100 else chosen[:1]:
        built = build(KERNELS[name], launch, target, **launch["options"])
        assert len(built.asm["cubin" if target.backend == "cuda" else "hsaco"]) > 0


@pytest.mark.parametrize("kernel", ["insert_points_kernel", "unpack_kernel"])
def test_a_slot_is_swapped_once(kernel: str, launches: dict[str, list[Launch]]) -> None:
    """A compiler that repeats what it takes for arithmetic must not repeat a swap, which finds its own key then."""
    [name] = [name for name in KERNELS if name.endswith(f".{kernel}")]
    # keys are moved only where there is another table
    launch = next(launch for launch in launches[name] if launch["constants"].get("MOVE", True))
    # in one thread the corners of a point, or some of the keys that are moved
    constants = launch["constants"]
    tiles = constants["ROWS"] if kernel == "insert_points_kernel" else constants["BLOCK"] // 32
    assert build(KERNELS[name], launch, H100, num_warps=1).asm["ptx"].count(".cas.b64") == tiles


# arguments of kernels that count points or lattice points, or are the distance between two corners in memory
LARGE = re.compile(r"%(\w*stride|corner_quads|num_(?:points|rows|targets|vertices|source|fine|coarse))\b")


@pytest.mark.parametrize("name", KERNELS, ids=lambda name: name.rpartition(".")[2])
def test_multiplies_large_sizes_in_64_bits(name: str, launches: dict[str, list[Launch]]) -> None:
    """The product of a corner and a number of points exceeds 2^31 on large GPUs: 430 million points in 5 dimensions."""
    large: set[str] = set()
    for line in build(KERNELS[name], launches[name][0], H100).asm["ttir"].splitlines():
        operation = re.search(r"(%[\w#]+) = (tt.splat|tt.expand_dims|tt.broadcast|arith.muli) (.*) : (.*)", line)
        if operation is None:
            continue
        result, kind, operands, types = operation.groups()
        if LARGE.search(operands) or large & set(re.findall(r"%[\w#]+", operands)):
            assert kind != "arith.muli" or "i32" not in types, line
            large.add(result)
