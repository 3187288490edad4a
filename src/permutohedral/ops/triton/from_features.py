"""The learned filter from features alone, for problems so small that the host would keep the GPU waiting.

As with the Gaussian (`gaussian.py`) the lattice is taken to have about as many lattice points as the last one of points
like these. All kernels of the forward pass are one recording, those of the backward pass another.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.neighborhood import Neighborhood
from permutohedral.ops.primitives import FilterTables, accumulation_dtype
from permutohedral.ops.tables import items_of_points
from permutohedral.ops.triton.convolution import float32_precision, uses_halves, uses_matrix_units
from permutohedral.ops.triton.elementary import filled, sum_into
from permutohedral.ops.triton.filtering import splat
from permutohedral.ops.triton.insertion import REPORTED, Insertion, insert_points, resolve_vertices
from permutohedral.ops.triton.lattice import LARGEST_FIXED_DIMENSION, Kind, foresee_rows, note_kind, size_of_kind
from permutohedral.ops.triton.launch import on_device
from permutohedral.ops.triton.learned import filter_learned_into
from permutohedral.ops.triton.neighbors import can_pair, launch_search
from permutohedral.ops.triton.replay import Recording, find_recording, record
from permutohedral.ops.triton.report import abandon_reports, reports_on
from permutohedral.ops.triton.table import roomy_capacity
from permutohedral.ops.triton.weight_gradient import direct_partials

# larger lattices keep the GPU busy for longer than the host needs, and rows without a lattice point cost time; if a
# derivative will be wanted, all that building the lattice took is kept for it, which should not be much
_MOST_ROWS, _MOST_KEPT_ROWS = 1 << 21, 1 << 18
# below it nobody asks how much memory is free
_MOST_BYTES = 1 << 28
# each holds tensors
_MOST_FILTERS = 64

# values, weight, bias, features, features of the targets
_Given = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]
# for the derivatives: one allocation; or lattice values, neighbors, the corners of sources and targets, the density
Kept = tuple[Tensor, ...]
_Corners = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class _Filter:
    """A filter between points of certain shapes, and the tensors that all of its calls share."""

    number: int
    # whether the convolution uses the matrix units, and whether these want the weight transposed
    matrix: bool
    transposed: bool
    groups: int
    by_density: bool
    batch: Tensor | None
    target_batch: Tensor | None
    offsets: Tensor
    opposite: Tensor
    source: Kind
    target: Kind | None
    weight_shape: torch.Size
    output_shape: tuple[int, ...]
    most_rows: int
    # what the kernels read of these tensors
    constants: tuple[Tensor, ...]


_filters: dict[tuple[object, ...], _Filter | None] = {}
_numbers = itertools.count()
# those whose points lie too far apart for packed keys of the same bits, by number
_too_wide: set[int] = set()


def _describe(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    features: Tensor,
    targets: Tensor | None,
    kind: tuple[int, bool, bool],
) -> _Filter | None:
    """None if the tensors do not fit each other, or their filter is better done step by step."""
    at = features if targets is None else targets
    d, device, corners = features.shape[-1], features.device, [features.shape, at.shape]
    others = [weight, features, at] if bias is None else [weight, features, at, bias]
    if any(each.device != values.device or each.numel() == 0 for each in others) or values.numel() == 0:
        return None
    if values.dim() not in (2, 3) or values.shape[:-1] != features.shape[:-1] or at.dim() != features.dim():
        return None
    if at.shape[-1] != d or at.shape[:-2] != features.shape[:-2] or d > LARGEST_FIXED_DIMENSION:
        return None
    if at.dtype != features.dtype or accumulation_dtype(values.dtype) != features.dtype:
        return None
    if weight.dtype != values.dtype or weight.dim() != 3 or (bias is not None and bias.dtype != values.dtype):
        return None
    neighborhood, in_channels, out_channels = Neighborhood(d, kind[0]), weight.shape[1], weight.shape[2]
    groups, rest = divmod(values.shape[-1], in_channels)
    if weight.shape[0] != neighborhood.filter_size or rest or groups == 0 or out_channels % groups:
        return None
    if bias is not None and bias.shape != (out_channels,):
        return None
    widest = max(out_channels, values.shape[-1], neighborhood.filter_size, 4 * (d + 1)) * max(values.element_size(), 4)
    if max(shape[:-1].numel() for shape in corners) * widest > _MOST_BYTES:
        return None
    batched = features.dim() == 3
    items = [items_of_points(shape[0], shape[1], device) if batched else None for shape in corners]
    kinds: list[Kind] = [(features.get_device(), torch.Size((s[:-1].numel(), d)), not batched) for s in corners]
    offsets = neighborhood.offsets(device)
    constants = {id(each): each for each in (offsets, *items) if each is not None}
    matrix = uses_matrix_units(values.dtype, in_channels, out_channels // groups)
    return _Filter(
        next(_numbers), matrix, matrix and values.dtype == torch.float32, groups, kind[1],
        items[0], items[1], offsets, neighborhood.opposite(device), kinds[0],
        None if targets is None else kinds[1], weight.shape, (*at.shape[:-1], out_channels),
        min(_MOST_KEPT_ROWS if kind[2] else _MOST_ROWS, _MOST_BYTES // widest), tuple(constants.values()),
    )  # fmt: skip


def _tables(known: _Filter, rows: int, corners: _Corners, neighbors: Tensor) -> FilterTables:
    shared = known.target is None
    return FilterTables(
        *corners, neighbors, neighbors if shared else None, known.opposite, rows, known.groups, known.by_density
    )


def _insert(features: Tensor, batch: Tensor | None, rows: int, around: Tensor, report: Tensor) -> Insertion:
    codes = features.new_empty(rows, dtype=torch.int64)
    insertion = Insertion.empty(features, roomy_capacity(rows), codes)
    insert_points(insertion, features, batch, False, around)
    resolve_vertices(insertion, report)
    return insertion


def _run(known: _Filter, rows: tuple[int, int], given: _Given, output: Tensor, reports: list[Tensor]) -> Kept:
    """Fill `output` and `reports`; what a derivative needs."""
    values, weight, bias, features, targets = given
    if known.transposed:
        weight = weight.transpose(1, 2)
    features = features.view(-1, features.shape[-1])
    source = target = _insert(features, known.batch, rows[0], features, reports[0])
    if targets is not None:
        targets = targets.view(-1, targets.shape[-1])
        target = _insert(targets, known.target_batch, rows[1], features, reports[1])
    shape, paired = (known.offsets.shape[0], rows[1]), targets is None and can_pair(known.offsets.shape[0])
    neighbors = filled(shape, -1, torch.int32, output.device) if paired else output.new_empty(shape, dtype=torch.int32)
    launch_search(source.table, target.rows, known.offsets, neighbors, paired, target.table)
    corners = source.vertices, source.barycentric, target.vertices, target.barycentric
    tables = _tables(known, rows[0], corners, neighbors)
    flat, flat_output = values.view(-1, values.shape[-1]), output.view(-1, output.shape[-1])
    lattice_values, density = filter_learned_into(flat_output, flat, weight, bias, tables)
    kept = lattice_values, neighbors, *corners
    return kept if density is None else (*kept, density)


def _run_backward(known: _Filter, kept: Kept, gradient: Tensor, output: Tensor) -> Kept:
    """Fill `output [filter_size * in_channels / groups + 1, out_channels]`: the gradients of weight and bias."""
    lattice_values, neighbors, _, _, vertices, barycentric, *_ = kept
    at_targets = splat(gradient.view(-1, gradient.shape[-1]), vertices, barycentric, neighbors.shape[1])
    sum_into(output, direct_partials(lattice_values, at_targets, neighbors, known.groups, True))
    return ()


class LearnedBackward:
    """The backward pass of one call of `filter_features`; what the call kept is given to it."""

    __slots__ = ("_forward", "_known", "_rows")

    def __init__(self, known: _Filter, rows: tuple[int, int], forward: Recording | None) -> None:
        self._known, self._rows, self._forward = known, rows, forward

    def tables(self, kept: Kept) -> tuple[FilterTables, Tensor, Tensor | None]:
        """The tables of the lattice, the lattice values and their density."""
        if self._forward is not None:
            kept = self._forward.results(list(kept))
        lattice_values, neighbors, *corners = kept
        density = corners.pop() if self._known.by_density else None
        vertices, barycentric, target_vertices, target_barycentric = corners
        of_points = vertices, barycentric, target_vertices, target_barycentric
        return _tables(self._known, self._rows[0], of_points, neighbors), lattice_values, density

    def weight_gradients(self, kept: Kept, gradient: Tensor) -> tuple[Tensor, Tensor] | None:
        """The gradients of weight and bias, None if they must be computed step by step."""
        if self._forward is None or self._known.matrix or torch.are_deterministic_algorithms_enabled():
            return None
        filter_size, in_channels, out_channels = self._known.weight_shape
        rows = filter_size * in_channels
        gradient = gradient.contiguous()
        output = gradient.new_empty(rows + 1, out_channels)
        key = ("backward", self._forward)
        recording = find_recording(key)
        if recording is not None:
            recording.repeat(gradient, kept[0], output)
        else:
            known, results = self._known, self._forward.results(list(kept))
            record(key, lambda: _run_backward(known, results, gradient, output), gradient, kept[0], output)
        shape, strides = (filter_size, in_channels, out_channels), (in_channels * out_channels, out_channels, 1)
        return output.as_strided(shape, strides), output.as_strided((out_channels,), (1,), rows * out_channels)


@on_device
def filter_features(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    features: Tensor,
    targets: Tensor | None,
    kind: tuple[int, bool, bool],
) -> tuple[Tensor, Kept, LearnedBackward] | None:
    """The learned filter from features alone: see `FusedPrimitives`."""
    key = (
        kind, values.shape, values.dtype, values.get_device(), weight.shape, weight.dtype, weight.get_device(),
        features.shape, features.dtype, features.get_device(),
        bias is None or (bias.shape, bias.dtype, bias.get_device()),
        targets is None or (targets.shape, targets.dtype, targets.get_device()),
    )  # fmt: skip
    given: _Given = (values, weight, bias, features, targets)
    if key in _filters:
        known = _filters.get(key)
    else:
        if len(_filters) >= _MOST_FILTERS:
            _filters.clear()
        known = _filters[key] = _describe(*given, kind)
    if known is None or known.number in _too_wide or torch.are_deterministic_algorithms_enabled():
        return None
    for each in given:
        if each is not None and not each.is_contiguous():
            return None
    foreseen = size_of_kind(known.source)
    foreseen_targets = foreseen if known.target is None else size_of_kind(known.target)
    rows = foresee_rows(foreseen, known.source), foresee_rows(foreseen_targets, known.target or known.source)
    if foreseen == 0 or foreseen_targets == 0 or max(rows) > known.most_rows:
        return None
    precision = float32_precision(values.dtype) if known.transposed else ""
    if precision == "tf32" and uses_halves(values.dtype, weight.shape[1], weight.shape[2]):
        return None
    if known.transposed:
        given = (values, weight.detach().transpose(1, 2).contiguous(), bias, features, targets)
    return _start(known, rows, given, precision)


def _start(
    known: _Filter, rows: tuple[int, int], given: _Given, precision: str
) -> tuple[Tensor, Kept, LearnedBackward] | None:
    values = given[0]
    reports = reports_on(values.device)
    output = values.new_empty(known.output_shape)
    tensors = [*[each for each in given if each is not None], output, *reports.rows, *known.constants]
    key = ("features", known.number, rows, precision)
    recording = find_recording(key)
    try:
        if recording is not None:
            kept: Kept = tuple(recording.repeat(*tensors))
        else:
            kept = record(key, lambda: _run(known, rows, given, output, reports.rows), *tensors)
        found = [reports.read(number, REPORTED.value) for number in range(1 if known.target is None else 2)]
    except BaseException:
        abandon_reports()
        raise
    for kind, most, (last, bad, no_room, full, _) in zip((known.source, known.target), rows, found, strict=False):
        if no_room >= 0:
            _too_wide.add(known.number)
        if max(bad, no_room, full) >= 0:
            return None
        assert kind is not None
        note_kind(kind, last + 1)
        if last >= most:
            return None
    return output, kept, LearnedBackward(known, rows, recording)
