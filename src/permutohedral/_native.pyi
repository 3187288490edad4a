"""The compiled core, built from `native/`; called by `ops/native/`, and by `memory.py` for its forecast.

Results are written into tensors given by the caller. Shapes are those of `ops/primitives.py`; `threads` is the largest
number of threads to use.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, dtype

MAX_DIMENSION: int
CACHE_LINE_BYTES: int
# tensors of fewer bytes are left to torch
LEAST_KEPT_BYTES: int

class GpuKernel:
    """What one kernel was compiled to for a GPU; `launch` is the address of the driver's `cuLaunchKernel`."""

    def __init__(self, launch: int, data_ptr: Callable[[Tensor], int]) -> None: ...
    def keep(
        self, device: int, dtypes: tuple[dtype, ...], sizes: str, function: int, threads: int, shared_bytes: int
    ) -> None:
        """Keep a binary for tensors of these dtypes, and sizes that are each 'i' (int32) or 'f' (float32)."""

    def start(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        sizes: tuple[float, ...],
        device: int,
        stream: int,
    ) -> bool:
        """Start the binary for these tensors, unless none was kept, they are no multiples of 16 bytes, a size does not
        fit, or the driver refuses."""

    def prepare(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        sizes: tuple[float, ...],
        device: int,
        stream: int,
    ) -> Callable[[], None] | None:
        """What does the same again and again, and raises a RuntimeError where the driver refuses; None for no start."""

class PendingIndex:
    """Numbered vertices; `finish` writes their keys and the lookup table, once."""

    num_lattice_points: int
    table_size: int
    def finish(self, keys: Tensor, table: Tensor) -> None: ...

class PointFilter(Protocol):
    """Indexed points, to be filtered once."""

    num_lattice_points: int
    def filter(self, values: Tensor, axis_offsets: Tensor, added_mass: float, out: Tensor, threads: int) -> None: ...

class BorrowedKernel(Protocol):
    """Tables of one kernel of a mean field."""

class KeptField:
    """What a mean field keeps for its gradient."""

class CellSums(Protocol):
    """The lattice points under cells of points."""

    num_rows: int
    terms: int
    def write(self, cells: Tensor, vertices: Tensor, weights: Tensor) -> None: ...

class Kernels(Protocol):
    """The submodule for one dtype. None instead of an index: a feature is out of range."""

    def index_points(
        self,
        features: Tensor,
        batch: Tensor | None,
        limit: float,
        vertices: Tensor,
        barycentric: Tensor,
        threads: int,
    ) -> PendingIndex | None: ...
    def index_for_filter(
        self, features: Tensor, batch: Tensor | None, limit: float, may_reorder: bool, threads: int
    ) -> PointFilter | None: ...
    def embed_gradient(self, features: Tensor, gradient: Tensor, out: Tensor, threads: int) -> None: ...
    def embed_differential(self, features: Tensor, differential: Tensor, out: Tensor, threads: int) -> None: ...
    def coarsen_simplices(
        self,
        vertices: Tensor,
        barycentric: Tensor,
        parents: Tensor,
        coarse_keys: Tensor,
        coarse_vertices: Tensor,
        coarse_barycentric: Tensor,
        threads: int,
    ) -> None: ...
    def splat(self, values: Tensor, vertices: Tensor, barycentric: Tensor, out: Tensor, threads: int) -> None: ...
    def slice(
        self, lattice_values: Tensor, vertices: Tensor, barycentric: Tensor, out: Tensor, threads: int
    ) -> None: ...
    def add_beside(self, lattice_values: Tensor, axis_neighbors: Tensor, out: Tensor, threads: int) -> None: ...
    def mix_rows(
        self, rows: Tensor, vertices: Tensor, weights: Tensor, planes: bool, out: Tensor, threads: int
    ) -> None: ...
    def sum_cells(
        self, vertices: Tensor, barycentric: Tensor, items: int, coarse: list[int], fine: list[int], threads: int
    ) -> CellSums: ...
    def barycentric_gradient(
        self, values: Tensor, lattice_values: Tensor, vertices: Tensor, out: Tensor, threads: int
    ) -> None: ...
    def splat_largest(self, values: Tensor, vertices: Tensor, out: Tensor, winners: Tensor, threads: int) -> None: ...
    def largest_gradient(
        self, gradient: Tensor, winners: Tensor, vertices: Tensor, out: Tensor, threads: int
    ) -> None: ...
    def blur(
        self, lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool, out: Tensor, threads: int
    ) -> None: ...
    def filter_gaussian(
        self,
        values: Tensor,
        vertices: Tensor,
        barycentric: Tensor,
        axis_neighbors: Tensor,
        target_vertices: Tensor,
        target_barycentric: Tensor,
        added_mass: float,
        out: Tensor,
        threads: int,
    ) -> None: ...
    def PairwiseKernel(
        self,
        vertices: Tensor,
        barycentric: Tensor,
        axis_neighbors: Tensor,
        source_power: float,
        target_power: float,
        costs: Tensor | None,
        factor: float,
        both_ways: bool,
    ) -> BorrowedKernel: ...
    def mean_field(
        self,
        energies: Tensor,
        start: Tensor | None,
        kernels: list[BorrowedKernel],
        steps: int,
        out: Tensor,
        kept: KeptField | None,
        threads: int,
    ) -> None: ...
    def mean_field_gradient(
        self,
        energies: Tensor,
        start: Tensor | None,
        kernels: list[BorrowedKernel],
        steps: int,
        kept: KeptField,
        gradient: Tensor,
        to_energies: Tensor,
        to_start: Tensor | None,
        to_kernels: list[Tensor],
        threads: int,
    ) -> None: ...
    def convolve(
        self, lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, out: Tensor, threads: int
    ) -> None: ...
    def convolve_weight_gradient(
        self, lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, out: Tensor, threads: int
    ) -> None: ...
    def sum_window(
        self,
        values: Tensor,
        guide: Tensor,
        sigma_y: float,
        sigma_x: float,
        reach: float,
        out: Tensor,
        threads: int,
    ) -> None: ...
    def sum_landmarks(
        self,
        values: Tensor,
        guide: Tensor,
        landmarks: Tensor,
        mixture: Tensor,
        sigma_y: float,
        sigma_x: float,
        cell_y: int,
        cell_x: int,
        blur_reach: float,
        reach: float,
        small_mass: float,
        most_repaired: int,
        out: Tensor,
        threads: int,
    ) -> None: ...
    def sum_color_grid(
        self,
        values: Tensor,
        guide: Tensor,
        sigma: tuple[float, float],
        cells: tuple[int, int],
        blur_reach: float,
        directions: list[list[float]],
        origin: list[float],
        color_blur: tuple[float, float],
        out: Tensor,
        threads: int,
    ) -> None: ...
    def sum_neighbors(
        self, values: Tensor, features: Tensor, target_features: Tensor, reach: float, out: Tensor, threads: int
    ) -> None: ...
    def picture_features(
        self,
        pictures: Tensor,
        channels_last: bool,
        origin: list[int],
        sigma_space: list[float],
        sigma_range: list[float],
        features: Tensor,
        threads: int,
    ) -> None: ...
    def interleave(self, planes: Tensor, rows: Tensor, threads: int) -> None: ...
    def coarsen_values(self, values: Tensor, parents: Tensor, out: Tensor, threads: int) -> None: ...
    def refine_values(
        self, values: Tensor, parents: Tensor, added: Tensor | None, out: Tensor, threads: int
    ) -> None: ...
    def divide_rows(self, values: Tensor, divisors: Tensor, threads: int) -> None: ...
    def add_to_rows(self, values: Tensor, added: Tensor, threads: int) -> None: ...
    def is_sum_nan(self, values: Tensor, threads: int) -> bool: ...

float32: Kernels
float64: Kernels

def allocate(shape: list[int], floating: bool, bits: int) -> object:
    """A new tensor of uninitialized memory, as a DLPack capsule."""

def forecast(
    num_points: int,
    dimension: int,
    num_lattice_points: int,
    element_bytes: int,
    row_bytes: float,
    ordered: bool,
    threads: int,
) -> tuple[int, int, int]:
    """Bytes of the lookup table, of the scratch memory while indexing, and of a sorted copy of the simplices."""

def kept_memory() -> int:
    """Bytes that are free, but not returned to the system."""

def limit_kept_memory(limit: int) -> None: ...
def index_keys(keys: Tensor, inverse: Tensor, threads: int) -> PendingIndex: ...
def index_parents(keys: Tensor, table: Tensor, parents: Tensor, threads: int) -> PendingIndex: ...
def connect_levels(
    keys: Tensor, parents: Tensor, coarse_keys: Tensor, offsets: Tensor, down: Tensor, up: Tensor, threads: int
) -> None: ...
def find_neighbors(
    table: Tensor, target_keys: Tensor, offsets: Tensor, same: bool, neighbors: Tensor, threads: int
) -> None: ...
def transpose_neighbors(neighbors: Tensor, opposite: Tensor, transposed: Tensor, threads: int) -> None: ...
def instruction_sets() -> list[str]:
    """Those that this processor supports, the widest first."""

def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...
