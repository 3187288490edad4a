"""The permutohedral encoding of positions: tables of learned features on lattices of several levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.filters.units import warn_user
from permutohedral.lattice.tensors import check_count, check_tensor, reject_scripting
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import has_no_subclass, is_traced

MOST_DIMENSIONS = 16
# of the hash, in upstream implementations
_MULTIPLIER = 2531011
# a position at the bounds may round to the cell beyond them
_ROUNDING = 1e-3

# positions this many extents outside of the bounds are in other units; number of points that are checked
_FAR_OUTSIDE, _LOOKED_AT = 1.0, 1024

# lattice points are integers of 32 bits
_MOST_STEPS = 2**31

# numbers that `torch.as_tensor` takes
Numbers = Tensor | ArrayLike


def level_tables(
    sigmas: Tensor, shifts: Tensor, table_size: int, bounds: tuple[float, float] | None
) -> tuple[Tensor, Tensor]:
    """Return transforms and strides of the levels (see `encode` in `ops/backend.py`).

    The shift is split into lattice steps, which are added to the base, and a fraction of a step, so that fine levels
    stay precise.

    Args:
        sigmas, shifts: float64 `[levels, d]`, on the CPU.
        table_size: rows of the table of each level.
        bounds: of the positions, whose lattice points are numbered; None hashes them.

    Returns:
        transforms: float64 `[levels, d, d + 1]`.
        strides: int32 `[levels, d + 1]`.
    """
    d = sigmas.shape[1]
    # from scaled positions to lattice steps: differences of the elevated coordinates to the last one, over d+1
    elevation = np.zeros((d + 1, d))
    for j in range(d):
        elevation[: j + 1, j] = 1 / math.sqrt((j + 1) * (j + 2))
        elevation[j + 1, j] = -(j + 1) / math.sqrt((j + 1) * (j + 2))
    to_steps = (elevation[:d] - elevation[d]) / (d + 1)
    powers = [pow(_MULTIPLIER, d - i, 2**32) for i in range(d)]
    # lattice point c has the key (d+1) c_i - sum(c), whose hash is sum_i key_i powers_i
    hashed = [(d + 1) * power - sum(powers) for power in powers]
    transforms, strides = [], []
    for sigma, shift in zip(sigmas.numpy(), shifts.numpy(), strict=True):
        matrix = to_steps / sigma
        moved = matrix @ shift
        steps = np.floor(moved)
        transforms.append(np.column_stack([matrix, moved - steps]))
        if bounds is None:
            row = [*hashed, sum(factor * int(step) for factor, step in zip(hashed, steps, strict=True))]
        else:
            row = _number_points(transforms[-1], bounds, table_size)
        # as int32, which wraps around
        strides.append([(each + 2**31) % 2**32 - 2**31 for each in row])
    return torch.from_numpy(np.stack(transforms)), torch.tensor(strides, dtype=torch.int32, device="cpu")


def _number_points(transform: NDArray[np.float64], bounds: tuple[float, float], table_size: int) -> list[int]:
    """Return strides and base that number the lattice points within bounds.

    Numbers grow along one axis of the positions after the other: a step along an axis passes the numbers of all later
    ones. Where the lattice points exceed the table, a step passes those of a part of the bounds, and points that share
    a row lie at least that part apart.
    """
    d = len(transform)
    # differences of neighboring coordinates make the matrix triangular: step i moves along axis i, and later ones
    differences = np.eye(d) - np.eye(d, k=1)
    steps = np.linalg.inv(differences @ transform[:, :-1])
    # no simplex is longer along an axis than its step
    beyond = np.diag(steps) * (1 + _ROUNDING)
    extents = bounds[1] - bounds[0] + 2 * beyond
    rows = math.inf
    while rows > table_size:
        # the number of a lattice point at x is <growth, x> and a constant
        strides, growth, rows = np.zeros(d), np.zeros(d), 0.0
        for i in reversed(range(d)):
            aside = growth @ steps[:, i]
            strides[i] = np.floor(rows + aside) + 1
            growth[i] = (strides[i] - aside) / steps[i, i]
            rows += growth[i] * extents[i]
        extents = extents * 0.999 * (table_size / rows) ** (1 / d)
    strides = strides @ differences
    lowest = growth @ (bounds[0] - beyond) + strides @ transform[:, -1]
    return [*strides.astype(int).tolist(), -math.floor(lowest)]


def encode_positions(
    positions: Tensor, table: Tensor, transforms: Tensor, strides: Tensor, window: Tensor | None
) -> Tensor:
    """Encode `positions [..., d]`, and multiply each level by its element of `window [levels]`."""
    check_tensor("positions", positions)
    d, dtype = transforms.shape[1], accumulation_dtype(table.dtype)
    if positions.dim() < 1 or positions.shape[-1] != d:
        raise InputError(f"positions must be [..., {d}] for this encoding, got {tuple(positions.shape)}")
    if positions.dtype != dtype:
        raise InputError(
            f"positions must be {dtype} for a table of {table.dtype}, got {positions.dtype}; convert one of them"
        )
    if positions.device != table.device:
        raise InputError(f"positions are on {positions.device} but the table is on {table.device}; move one")
    _check_range(positions, transforms)
    if torch.is_autocast_enabled(table.device.type) and table.dtype != torch.float64:
        table = table.to(torch.get_autocast_dtype(table.device.type))
    features = bind(positions, table).encode(positions.reshape(-1, d), None, table, transforms, strides)
    if window is not None:
        factors = window.to(features.device, features.dtype).repeat_interleave(table.shape[2])
        features = features * factors
    return features.view(*positions.shape[:-1], features.shape[1])


def _check_range(positions: Tensor, transforms: Tensor) -> None:
    """Raise if a position has no integer lattice point; on a GPU the host would have to wait, so it is not checked."""
    if is_traced() or positions.device.type != "cpu" or positions.numel() == 0:
        return
    largest = float(positions.detach().abs().max())
    if largest * float(transforms[..., :-1].abs().sum(dim=-1).max()) >= _MOST_STEPS:
        raise FeatureRangeError(
            f"positions reach {largest:.3g}, too many steps of the finest level; scale them to [0, 1], or pass larger "
            "sigmas"
        )


def _warn_of_bounds(positions: Tensor, bounds: tuple[float, float]) -> None:
    """Warn about positions far outside of the bounds, as of pixels, of which a few are looked at."""
    if is_traced() or positions.device.type != "cpu" or not has_no_subclass(positions):
        return
    rows = positions.detach().reshape(-1, positions.shape[-1])
    low, high = (float(each) for each in rows[:: max(1, len(rows) // _LOOKED_AT)].aminmax()) if len(rows) else bounds
    extent = bounds[1] - bounds[0]
    if low < bounds[0] - _FAR_OUTSIDE * extent or high > bounds[1] + _FAR_OUTSIDE * extent:
        warn_user(
            f"positions from {low:.3g} to {high:.3g} are far outside of bounds={bounds}, where rows of the tables are "
            "shared by many; scale the positions, or pass their bounds"
        )


class FixedBuffers(nn.Module):
    """A layer whose buffers keep their dtype, since rounding would change the geometry under trained tables."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self


class PermutohedralEncoding(FixedBuffers):
    """Encode positions by learned features on permutohedral lattices of several levels (PermutoSDF, 2023).

    Level l interpolates a table of features on the lattice around `(x + shifts[l]) / sigmas[l]`. A small network takes
    the features of all levels: a neural field. The result is piecewise linear in x, and has derivatives of any order
    with respect to table and positions, such as for an eikonal loss.

    Levels with more lattice points than rows repeat their table over the cube of `bounds`, so that several lattice
    points share a row. Levels whose lattice points within `bounds` fit the table have no such collisions.

    Args:
        dimension: d of the positions, at most 16.
        num_levels: number of levels.
        features_per_level: channels of the table.
        table_size: rows of the table of each level. The default serves a photo or a signed distance. An optimizer
            updates all rows in each step, which takes longer than the layer itself if there are millions.
        sigmas: `[num_levels]`, or `[num_levels, dimension]` for one scale for each axis, in units of the positions. An
            edge of the lattice is `sigma * sqrt(d * (d + 1))` long. Default: from 1 to 1e-4, equally spaced in the
            logarithm.
        shifts: `[num_levels, dimension]`, in units of the positions. Default: drawn with a standard deviation of 10.
        window: `[num_levels]`, factors of the levels; see `coarse_to_fine`. Default: None, for ones.
        include_input: append the positions to the features.
        bounds: smallest and largest coordinate of positions for which rows are chosen; None hashes every lattice point,
            as other implementations do. Positions elsewhere share rows with these.
        device: of the table.
        dtype: of the table. Positions are float64 for a table of float64, else float32.

    Shape:
        positions `[..., dimension]` to `[..., out_features]`, of the dtype of the table.

    >>> import torch, permutohedral as ph
    >>> encoding = ph.nn.PermutohedralEncoding(3, num_levels=8, table_size=2**12)
    >>> encoding(torch.rand(100, 3)).shape
    torch.Size([100, 16])
    """

    __prepare_scriptable__ = reject_scripting
    transforms: Tensor
    strides: Tensor
    window: Tensor | None

    def __init__(
        self,
        dimension: int,
        num_levels: int = 8,
        features_per_level: int = 2,
        table_size: int = 2**14,
        *,
        sigmas: Numbers | None = None,
        shifts: Numbers | None = None,
        window: Numbers | None = None,
        include_input: bool = False,
        bounds: tuple[float, float] | None = (0.0, 1.0),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        counts = dimension, num_levels, features_per_level, table_size
        for name, number in zip(("dimension", "num_levels", "features_per_level", "table_size"), counts, strict=True):
            check_count(name, number, least=1)
        if dimension > MOST_DIMENSIONS:
            raise InputError(f"dimension must be at most {MOST_DIMENSIONS}, got {dimension}; encode parts of it")
        if table_size >= 2**31:
            raise InputError(f"table_size must be below 2**31, got {table_size}; use more levels or features")
        if bounds is not None and not bounds[0] < bounds[1]:
            raise InputError(f"bounds must be a smaller and a larger number, or None, got {bounds}")
        self.dimension, self.num_levels, self.features_per_level, self.table_size = counts
        self.include_input, self.bounds = include_input, bounds
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(f"dtype must be a floating dtype, got {dtype}; use torch.float32")
        self.table = nn.Parameter(torch.empty(num_levels, table_size, features_per_level, device=device, dtype=dtype))
        if sigmas is None:
            sigmas = torch.logspace(0, -4, num_levels, dtype=torch.float64, device="cpu")
        if shifts is None:
            shifts = 10 * torch.randn(num_levels, dimension, dtype=torch.float64, device="cpu")
        scales = read_levels("sigmas", sigmas, (num_levels, dimension))
        if not bool((scales > 0).all()):
            raise InputError(f"sigmas must be positive, got {scales.min():.3g}")
        tables = level_tables(scales, read_levels("shifts", shifts, (num_levels, dimension)), table_size, bounds)
        # those of a layer in double precision are more precise
        self.register_buffer("transforms", tables[0].to(self.table.device, accumulation_dtype(self.table.dtype)))
        self.register_buffer("strides", tables[1].to(self.table.device))
        factors = None if window is None else read_levels("window", window, (num_levels, 1))[:, 0]
        self.register_buffer("window", None if factors is None else factors.to(self.transforms))
        self.reset_parameters()

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        dimension: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Build the encoding of a configuration of tiny-cuda-nn, `{"otype": "Permuto", ...}`.

        The shifts have its distribution, but are drawn by torch.

        >>> import permutohedral as ph
        >>> ph.nn.PermutohedralEncoding.from_config({"otype": "Permuto", "n_levels": 4}, dimension=5).out_features
        8
        """
        defaults: dict[str, Any] = {
            "otype": "Permuto",
            "n_levels": 16,
            "n_features_per_level": 2,
            "base_scale": 16.0,
            "per_level_scale": 2.0,
            "log2_hashmap_size": 19,
            "seed": 1337,
        }
        unknown = sorted(set(config) - set(defaults))
        if unknown or str(config.get("otype", "Permuto")).lower() != "permuto":
            raise InputError(
                f'config must have "otype": "Permuto" and only the keys {", ".join(defaults)}, got {dict(config)}'
            )
        options = defaults | dict(config)
        levels, generator = options["n_levels"], torch.Generator().manual_seed(options["seed"])
        shifts = torch.rand(levels, dimension, generator=generator, dtype=torch.float64, device="cpu")
        sigmas = [1 / (options["base_scale"] * options["per_level_scale"] ** level) for level in range(levels)]
        return cls(
            dimension,
            levels,
            options["n_features_per_level"],
            2 ** options["log2_hashmap_size"],
            sigmas=sigmas,
            shifts=10 * shifts - 5,
            bounds=None,
            device=device,
            dtype=dtype,
        )

    @property
    def out_features(self) -> int:
        """The number of channels of the result."""
        return self.num_levels * self.features_per_level + (self.dimension if self.include_input else 0)

    def reset_parameters(self) -> None:
        """Draw a new table, with a standard deviation of 1e-5."""
        with torch.no_grad():
            self.table.normal_(std=1e-5)

    def coarse_to_fine(self, progress: float | Tensor) -> Tensor:
        """Return the window `[num_levels]` that shows coarse levels first.

        Args:
            progress: of the training, from 0 (no level) to 1 (all levels).

        >>> import permutohedral as ph
        >>> ph.nn.PermutohedralEncoding(2, num_levels=4, table_size=64).coarse_to_fine(0.625).tolist()
        [1.0, 1.0, 0.5, 0.0]
        """
        return coarse_to_fine(self.num_levels, progress, self.transforms)

    def forward(self, positions: Tensor, window: Tensor | None = None) -> Tensor:
        """Encode positions.

        Args:
            positions: `[..., dimension]`.
            window: `[num_levels]`, factors of the levels; default: those of the layer.
        """
        window = self.window if window is None else window
        if window is not None:
            check_tensor("window", window)
            if window.shape != (self.num_levels,):
                raise InputError(f"window must be [{self.num_levels}], got {tuple(window.shape)}")
        features = encode_positions(positions, self.table, self.transforms, self.strides, window)
        if self.bounds is not None:
            _warn_of_bounds(positions, self.bounds)
        return torch.cat([features, positions.to(features.dtype)], dim=-1) if self.include_input else features

    def extra_repr(self) -> str:
        sizes = f"{self.dimension}, {self.num_levels}, {self.features_per_level}, {self.table_size}"
        return f"{sizes}, include_input={self.include_input}, bounds={self.bounds}"


def coarse_to_fine(num_levels: int, progress: float | Tensor, like: Tensor) -> Tensor:
    """Return (1 - cos(pi clip(progress * num_levels - l, 0, 1))) / 2 for each level l."""
    level = torch.arange(num_levels, dtype=like.dtype, device=like.device)
    return (1 - torch.cos(math.pi * (progress * num_levels - level).clamp(0, 1))) / 2


def read_levels(name: str, numbers: Numbers, shape: tuple[int, int]) -> Tensor:
    """Return float64 `[levels, d]` on the CPU; `[levels]` are the same for all axes."""
    found = torch.as_tensor(numbers, dtype=torch.float64, device="cpu").detach()
    given = tuple(found.shape)
    if found.dim() == 1:
        found = found[:, None]
    if found.dim() > 2 or (found.dim() == 2 and found.shape not in (shape, (shape[0], 1))):
        raise InputError(f"{name} must be [{shape[0]}] or [{shape[0]}, {shape[1]}], got {given}")
    if not bool(found.isfinite().all()):
        raise InputError(f"{name} must be finite, got {found.flatten().tolist()}")
    return found.expand(shape)
