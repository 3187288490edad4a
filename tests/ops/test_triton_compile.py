"""Every kernel compiles for NVIDIA and AMD GPUs; none is needed for it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from permutohedral.ops.triton import (
    convolution,
    elementary,
    embedding,
    filtering,
    halving,
    insertion,
    neighbors,
    ordering,
    packing,
    splatting,
    weight_gradient,
    wide,
)

TARGETS = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)]

FLOAT, INT, LONG = "*fp32", "*i32", "*i64"
TILE = {"D": 2, "ROWS": 4}
POINTS = {"CORNERS": 3, "BLOCK": 128, "BLOCK_C": 4}
SIZES = {"STRIDE": 32, "OUT_CHANNELS": 32, "IN": 32, "OUT": 32}
BLOCKS = {"BLOCK_M": 64, "BLOCK_K": 32, "BLOCK_N": 32}

# kernel: types of its pointers, constants; every other argument is a size or a stride
KERNELS: dict[Any, tuple[dict[str, str], dict[str, object]]] = {
    elementary.fill_kernel: ({"output": INT}, {"NUMBER": -1, "BLOCK": 2048}),
    elementary.sum_kernel: ({"values": FLOAT, "output": FLOAT}, {"COLUMNS": 32, "BLOCK": 64, "BLOCK_C": 32}),
    embedding.embed_gradient_kernel: (
        {"features": FLOAT, "gradient": FLOAT, "output": FLOAT},
        {"STRIDE": 2, **TILE, "BLOCK": 64},
    ),
    embedding.embed_differential_kernel: (
        {"features": FLOAT, "differential": FLOAT, "output": FLOAT},
        {"STRIDE": 2, "CHANGE_STRIDE": 2, **TILE, "BLOCK": 64},
    ),
    packing.clear_kernel: (
        {"table": LONG, "features": FLOAT},
        {"STRIDE": 2, "DIGIT_BITS": 30, "CORNER_BITS": 2, "ITEM_BITS": 0, **TILE, "BLOCK": 1024},
    ),
    packing.range_kernel: (
        {"features": FLOAT, "batch": INT, "bounds": INT},
        {"STRIDE": 2, "HAS_BATCH": True, **TILE, "BLOCK": 128},
    ),
    packing.tight_packing_kernel: (
        {"header": LONG, "bounds": INT, "features": FLOAT},
        {"STRIDE": 2, "CORNER_BITS": 2, **TILE},
    ),
    insertion.insert_points_kernel: (
        {"features": FLOAT, "batch": INT, "table": LONG, "rows": LONG, "vertices": INT, "barycentric": FLOAT},
        {"STRIDE": 2, "HAS_BATCH": True, "DIGIT_BITS": 20, "CORNER_BITS": 2,
         "PTX": None, **TILE, "BLOCK": 32},
    ),
    insertion.resolve_kernel: ({"vertices": INT, "table": LONG, "report": LONG}, {"BLOCK": 1024}),
    ordering.order_kernel: (
        {"table": LONG, "slots": INT, "order": INT},
        {"EXACT": False, "D": 2, "BLOCK": 512},
    ),
    ordering.renumber_rows_kernel: (
        {"table": LONG, "slots": INT, "order": LONG, "new_slots": INT, "new_number": INT},
        {"BLOCK": 512},
    ),
    ordering.renumber_vertices_kernel: ({"vertices": INT, "new_number": INT}, {"BLOCK": 1024}),
    insertion.unpack_kernel: (
        {"table": LONG, "slots": INT, "keys": INT, "other": LONG},
        {"MOVE": True, "CORNER_BITS": 2, "PTX": None, **TILE, "BLOCK": 32},
    ),
    wide.embed_keys_kernel: (
        {"features": FLOAT, "batch": INT, "keys": INT, "barycentric": FLOAT, "bad": INT},
        {"STRIDE": 2, "HAS_BATCH": True, **TILE, "BLOCK": 32},
    ),
    wide.insert_rows_kernel: (
        {"keys": INT, "table": LONG, "slot_of_key": INT},
        {"PTX": None, "COLUMNS": 3, "BLOCK": 64},
    ),
    wide.number_slots_kernel: ({"table": LONG, "slots": INT, "count": INT}, {"BLOCK": 1024}),
    wide.gather_rows_kernel: (
        {"keys": INT, "table": LONG, "slots": INT, "unique_keys": INT},
        {"COLUMNS": 3, "BLOCK": 256},
    ),
    wide.inverse_kernel: ({"slot_of_key": INT, "table": LONG}, {"BLOCK": 1024}),
    wide.find_rows_kernel: (
        {"source_keys": INT, "table": LONG, "target_keys": INT, "offsets": INT, "neighbors": INT},
        {"COLUMNS": 3, "BLOCK": 64},
    ),
    neighbors.find_neighbors_kernel: (
        {"table": LONG, "targets": LONG, "counted": LONG, "offsets": INT, "neighbors": INT},
        {"TAPS": 32, "CORNER_BITS": 2, "PTX": None, "D": 2, "BLOCK": 128},
    ),
    neighbors.transpose_neighbors_kernel: (
        {"neighbors": INT, "opposite": LONG, "transposed": INT},
        {"BLOCK": 1024},
    ),
    splatting.splat_runs_kernel: (
        {"values": FLOAT, "vertices": INT, "barycentric": FLOAT, "output": FLOAT},
        {"CHANNELS": 3, "WIDTH": 4, "VALUE_STRIDE": 3, **POINTS},
    ),
    splatting.splat_kernel: (
        {"values": FLOAT, "vertices": INT, "barycentric": FLOAT, "output": FLOAT},
        {"CHANNELS": 3, "WIDTH": 4, "VALUE_STRIDE": 3, "VERTEX_STRIDE": 1, "WEIGHT_STRIDE": 1, **POINTS, "RUN": 4},
    ),
    splatting.splat_sorted_kernel: (
        {"values": FLOAT, "order": LONG, "starts": LONG, "barycentric": FLOAT, "output": FLOAT},
        {"CHANNELS": 4, "WIDTH": 4, "VALUE_STRIDE": 4, "WEIGHT_STRIDE": 1, **POINTS},
    ),
    filtering.slice_kernel: (
        {"lattice_values": FLOAT, "vertices": INT, "barycentric": FLOAT, "bias": FLOAT, "output": FLOAT},
        {"HAS_BIAS": True, "CHANNELS": 3, "WIDTH": 4, "ADDED_MASS": 0.5, "LATTICE_STRIDE": 4, "VERTEX_STRIDE": 1,
         "WEIGHT_STRIDE": 1, **POINTS},
    ),
    filtering.barycentric_gradient_kernel: (
        {"values": FLOAT, "lattice_values": FLOAT, "vertices": INT, "output": FLOAT},
        {"CHANNELS": 4, "VALUE_STRIDE": 4, "LATTICE_STRIDE": 4, "VERTEX_STRIDE": 1, **POINTS},
    ),
    filtering.blur_kernel: (
        {"lattice_values": FLOAT, "axis_neighbors": INT, "output": FLOAT},
        {"TWO": True, "CHANNELS": 4, "LATTICE_STRIDE": 4, "BLOCK": 128, "BLOCK_C": 4},
    ),
    filtering.normalize_kernel: (
        {"sums": FLOAT, "density": FLOAT, "output": "*bf16"},
        {"HAS_DENSITY": True, "CHANNELS": 4, "SUM_STRIDE": 5, "DENSITY_STRIDE": 5, "DENSITY_COLUMN": 4, "BLOCK": 128,
         "BLOCK_C": 4},
    ),
    halving.largest_kernel: (
        {"values": FLOAT, "largest": INT},
        {"STRIDE": 64, "CHANNELS": 64, "BLOCK": 64, "BLOCK_C": 64},
    ),
    halving.halve_kernel: (
        {"values": FLOAT, "largest": INT, "halves": "*fp16", "inverse": FLOAT},
        {"STRIDE": 64, "CHANNELS": 64, "BLOCK": 64, "BLOCK_C": 64},
    ),
    halving.halve_weight_kernel: (
        {"weight": FLOAT, "taps": LONG, "inverse": FLOAT, "halves": "*fp16", "column_inverse": FLOAT},
        {"TURNED": True, "IN": 64, "OUT": 64, "CHANNELS": 64, "COLUMNS": 64, "BLOCK": 1024, "BLOCK_C": 2},
    ),
    convolution.convolve_kernel: (
        {"lattice_values": FLOAT, "weight": FLOAT, "neighbors": INT, "scales": FLOAT, "output": FLOAT},
        {"HAS_SCALES": True, **SIZES, "PRECISION": None, "TRANSPOSED": True, **BLOCKS},
    ),
    convolution.direct_convolve_kernel: (
        {"lattice_values": "*fp64", "weight": "*fp64", "neighbors": INT, "output": "*fp64"},
        {**SIZES, "ONE_GROUP": True, "BLOCK_M": 64, "BLOCK_N": 16},
    ),
    weight_gradient.weight_gradient_kernel: (
        {"lattice_values": FLOAT, "output_gradient": FLOAT, "neighbors": INT, "partials": FLOAT},
        {**SIZES, "GRADIENT_STRIDE": 32, "PRECISION": None, "PARTS": 3, **BLOCKS},
    ),
    weight_gradient.direct_weight_gradient_kernel: (
        {"lattice_values": "*fp64", "output_gradient": "*fp64", "neighbors": INT, "partials": "*fp64"},
        {**SIZES, "GRADIENT_STRIDE": 32, "WITH_SUM": 1, "BLOCK_M": 64, "BLOCK_N": 16},
    ),
}  # fmt: skip

MODULES = [
    convolution, elementary, embedding, filtering, halving, insertion, neighbors, ordering, packing, splatting,
    weight_gradient, wide,
]  # fmt: skip


def test_no_kernel_is_left_out() -> None:
    kernels = {
        id(value) for module in MODULES for name, value in vars(module).items()
        if name.endswith("_kernel") and value.fn.__module__ == module.__name__
    }  # fmt: skip
    assert kernels == {id(kernel) for kernel in KERNELS}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.backend}-{target.arch}")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.fn.__name__)
def test_compiles(kernel: Any, target: GPUTarget) -> None:
    assert len(build(kernel, target).asm["cubin" if target.backend == "cuda" else "hsaco"]) > 0


@pytest.mark.parametrize("kernel", [insertion.insert_points_kernel, insertion.unpack_kernel], ids=["insert", "unpack"])
def test_a_slot_is_swapped_once(kernel: Any) -> None:
    """A compiler that repeats what it takes for arithmetic must not repeat a swap, which finds its own key then."""
    # the corners of a point in one thread; the keys that are moved, one in each
    tiles = TILE["ROWS"] if kernel is insertion.insert_points_kernel else 1
    assert build(kernel, GPUTarget("cuda", 90, 32), num_warps=1).asm["ptx"].count(".cas.b64") == tiles


def build(kernel: Any, target: GPUTarget, **options: int) -> Any:
    pointers, constants = KERNELS[kernel]
    on_cuda = target.backend == "cuda"
    chosen: dict[str, object] = {"PTX": on_cuda, "PRECISION": "tf32x3" if on_cuda else "ieee"}
    constants = {name: chosen.get(name, value) for name, value in constants.items()}
    kinds = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in kernel.arg_names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(kinds) if name in pointers}
    values = {(place,): constants[name] for place, name in enumerate(kinds) if name in constants}
    return triton.compile(ASTSource(kernel, kinds, values, aligned), target=target, options=options)
