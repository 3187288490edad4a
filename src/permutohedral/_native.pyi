from collections.abc import Sequence

MAX_DIMENSION: int = 256

LEAST_KEPT_BYTES: int = 1048576

class PreparedLaunch:
    def __call__(self) -> None: ...

class GpuKernel:
    def __init__(self, launch: int, data_ptr: object) -> None: ...
    def start(
        self, grid: tuple[object, ...], tensors: tuple[object, ...], sizes: tuple[object, ...], device: int, stream: int
    ) -> bool: ...
    def prepare(
        self, grid: tuple[object, ...], tensors: tuple[object, ...], sizes: tuple[object, ...], device: int, stream: int
    ) -> PreparedLaunch | None: ...
    def keep(
        self, device: int, dtypes: tuple[object, ...], sizes: str, function: int, threads: int, shared_bytes: int
    ) -> None: ...

def instruction_sets() -> list[str]:
    """
    Return the instruction sets that this processor supports, the widest first.
    """

def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...
def allocate(shape: Sequence[int], floating: bool, bits: int) -> object:
    """Return a new tensor of uninitialized memory, as a DLPack capsule."""

def kept_memory() -> int:
    """Return the bytes that are free, but not returned to the system."""

def kept_memory_limit() -> int: ...
def limit_kept_memory(limit: int) -> None: ...

class PendingIndex:
    """Numbered vertices; `finish` writes their keys and the table, once."""

    @property
    def num_lattice_points(self) -> int: ...
    @property
    def table_size(self) -> int: ...
    def finish(self, arg0: object, arg1: object, /) -> None: ...

def index_keys(arg0: object, arg1: object, arg2: int, /) -> PendingIndex: ...
def index_parents(arg0: object, arg1: object, arg2: int, /) -> PendingIndex: ...
def find_neighbors(arg0: object, arg1: object, arg2: object, arg3: bool, arg4: object, arg5: int, /) -> None: ...
def transpose_neighbors(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...

class float32:
    @staticmethod
    def embed_gradient(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def coarsen_simplices(
        arg0: object, arg1: object, arg2: object, arg3: object, arg4: object, arg5: int, /
    ) -> None: ...
    @staticmethod
    def splat(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def slice(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def barycentric_gradient(arg0: object, arg1: object, arg2: object, arg3: object, arg4: int, /) -> None: ...
    @staticmethod
    def slice_planes(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def splat_largest(arg0: object, arg1: object, arg2: object, arg3: object, arg4: int, /) -> None: ...
    @staticmethod
    def blur(arg0: object, arg1: object, arg2: bool, arg3: object, arg4: int, /) -> None: ...
    @staticmethod
    def filter_gaussian(
        arg0: object, arg1: object, arg2: object, arg3: object, arg4: float, arg5: object, arg6: int, /
    ) -> None: ...
    @staticmethod
    def convolve(arg0: object, arg1: object, arg2: object, arg3: int, arg4: object, arg5: int, /) -> None: ...
    @staticmethod
    def convolve_weight_gradient(
        arg0: object, arg1: object, arg2: object, arg3: int, arg4: object, arg5: int, /
    ) -> None: ...
    @staticmethod
    def sum_window(
        arg0: object, arg1: object, arg2: float, arg3: float, arg4: float, arg5: object, arg6: int, /
    ) -> None: ...
    @staticmethod
    def sum_color_grid(
        arg0: object,
        arg1: object,
        arg2: Sequence[float],
        arg3: Sequence[int],
        arg4: float,
        arg5: Sequence[Sequence[float]],
        arg6: Sequence[float],
        arg7: Sequence[float],
        arg8: object,
        arg9: int,
        /,
    ) -> None: ...
    @staticmethod
    def sum_neighbors(arg0: object, arg1: object, arg2: object, arg3: float, arg4: object, arg5: int, /) -> None: ...
    @staticmethod
    def encode(
        arg0: object, arg1: object, arg2: object, arg3: object, arg4: object, arg5: object, arg6: int, /
    ) -> None: ...
    @staticmethod
    def encode_backward(
        arg0: object,
        arg1: object,
        arg2: object,
        arg3: object,
        arg4: object,
        arg5: object,
        arg6: object,
        arg7: object,
        arg8: int,
        /,
    ) -> None: ...
    @staticmethod
    def sum_axis_neighbors(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def solve_smooth(arg0: object, arg1: object, arg2: object, arg3: int, arg4: float, arg5: int, /) -> None: ...
    @staticmethod
    def picture_features(
        arg0: object,
        arg1: bool,
        arg2: Sequence[int],
        arg3: Sequence[int],
        arg4: Sequence[float],
        arg5: Sequence[float],
        arg6: float,
        arg7: object,
        arg8: int,
        /,
    ) -> None: ...
    @staticmethod
    def interleave(arg0: object, arg1: object, arg2: int, /) -> None: ...
    @staticmethod
    def divide_rows(arg0: object, arg1: object, arg2: int, /) -> None: ...
    @staticmethod
    def add_to_rows(arg0: object, arg1: object, arg2: int, /) -> None: ...
    @staticmethod
    def is_sum_nan(arg0: object, arg1: int, /) -> bool: ...
    @staticmethod
    def index_points(arg0: object, arg1: float, arg2: object, arg3: object, arg4: int, /) -> PendingIndex: ...
    @staticmethod
    def mean_field(
        arg0: object,
        arg1: object | None,
        arg2: Sequence[object],
        arg3: int,
        arg4: float,
        arg5: bool,
        arg6: object,
        arg7: int,
        /,
    ) -> list[object]: ...
    @staticmethod
    def mean_field_gradient(
        arg0: object,
        arg1: object | None,
        arg2: Sequence[object],
        arg3: int,
        arg4: float,
        arg5: Sequence[object],
        arg6: object,
        arg7: object,
        arg8: object | None,
        arg9: Sequence[object],
        arg10: int,
        /,
    ) -> None: ...

class float64:
    @staticmethod
    def embed_gradient(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def coarsen_simplices(
        arg0: object, arg1: object, arg2: object, arg3: object, arg4: object, arg5: int, /
    ) -> None: ...
    @staticmethod
    def splat(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def slice(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def barycentric_gradient(arg0: object, arg1: object, arg2: object, arg3: object, arg4: int, /) -> None: ...
    @staticmethod
    def slice_planes(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def splat_largest(arg0: object, arg1: object, arg2: object, arg3: object, arg4: int, /) -> None: ...
    @staticmethod
    def blur(arg0: object, arg1: object, arg2: bool, arg3: object, arg4: int, /) -> None: ...
    @staticmethod
    def filter_gaussian(
        arg0: object, arg1: object, arg2: object, arg3: object, arg4: float, arg5: object, arg6: int, /
    ) -> None: ...
    @staticmethod
    def convolve(arg0: object, arg1: object, arg2: object, arg3: int, arg4: object, arg5: int, /) -> None: ...
    @staticmethod
    def convolve_weight_gradient(
        arg0: object, arg1: object, arg2: object, arg3: int, arg4: object, arg5: int, /
    ) -> None: ...
    @staticmethod
    def sum_window(
        arg0: object, arg1: object, arg2: float, arg3: float, arg4: float, arg5: object, arg6: int, /
    ) -> None: ...
    @staticmethod
    def sum_color_grid(
        arg0: object,
        arg1: object,
        arg2: Sequence[float],
        arg3: Sequence[int],
        arg4: float,
        arg5: Sequence[Sequence[float]],
        arg6: Sequence[float],
        arg7: Sequence[float],
        arg8: object,
        arg9: int,
        /,
    ) -> None: ...
    @staticmethod
    def sum_neighbors(arg0: object, arg1: object, arg2: object, arg3: float, arg4: object, arg5: int, /) -> None: ...
    @staticmethod
    def encode(
        arg0: object, arg1: object, arg2: object, arg3: object, arg4: object, arg5: object, arg6: int, /
    ) -> None: ...
    @staticmethod
    def encode_backward(
        arg0: object,
        arg1: object,
        arg2: object,
        arg3: object,
        arg4: object,
        arg5: object,
        arg6: object,
        arg7: object,
        arg8: int,
        /,
    ) -> None: ...
    @staticmethod
    def sum_axis_neighbors(arg0: object, arg1: object, arg2: object, arg3: int, /) -> None: ...
    @staticmethod
    def solve_smooth(arg0: object, arg1: object, arg2: object, arg3: int, arg4: float, arg5: int, /) -> None: ...
    @staticmethod
    def picture_features(
        arg0: object,
        arg1: bool,
        arg2: Sequence[int],
        arg3: Sequence[int],
        arg4: Sequence[float],
        arg5: Sequence[float],
        arg6: float,
        arg7: object,
        arg8: int,
        /,
    ) -> None: ...
    @staticmethod
    def interleave(arg0: object, arg1: object, arg2: int, /) -> None: ...
    @staticmethod
    def divide_rows(arg0: object, arg1: object, arg2: int, /) -> None: ...
    @staticmethod
    def add_to_rows(arg0: object, arg1: object, arg2: int, /) -> None: ...
    @staticmethod
    def is_sum_nan(arg0: object, arg1: int, /) -> bool: ...
    @staticmethod
    def index_points(arg0: object, arg1: float, arg2: object, arg3: object, arg4: int, /) -> PendingIndex: ...
    @staticmethod
    def mean_field(
        arg0: object,
        arg1: object | None,
        arg2: Sequence[object],
        arg3: int,
        arg4: float,
        arg5: bool,
        arg6: object,
        arg7: int,
        /,
    ) -> list[object]: ...
    @staticmethod
    def mean_field_gradient(
        arg0: object,
        arg1: object | None,
        arg2: Sequence[object],
        arg3: int,
        arg4: float,
        arg5: Sequence[object],
        arg6: object,
        arg7: object,
        arg8: object | None,
        arg9: Sequence[object],
        arg10: int,
        /,
    ) -> None: ...
