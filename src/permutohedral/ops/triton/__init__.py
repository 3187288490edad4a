"""The primitives as Triton kernels: CUDA and ROCm GPUs, and the CPU under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from permutohedral.ops.backend import Backend
from permutohedral.ops.constants import axis_offsets, axis_opposite
from permutohedral.ops.contract import FieldPlan, Saved
from permutohedral.ops.items import ItemsNorm
from permutohedral.ops.reference import index_keys
from permutohedral.ops.triton.build import lattice, picture_features
from permutohedral.ops.triton.build.embedding import embed_gradient
from permutohedral.ops.triton.build.levels import coarsen_keys_bounded, coarsen_lattice
from permutohedral.ops.triton.build.neighbors import find_neighbors, transpose_neighbors
from permutohedral.ops.triton.filter import gaussian, item_norm, mean_field
from permutohedral.ops.triton.filter.blur import blur
from permutohedral.ops.triton.filter.convolve import convolve
from permutohedral.ops.triton.filter.encoding import encode, encode_backward
from permutohedral.ops.triton.filter.exact_sums import sum_neighbors, sum_window
from permutohedral.ops.triton.filter.largest import find_largest
from permutohedral.ops.triton.filter.learned_filter import filter_learned, filter_learned_backward
from permutohedral.ops.triton.filter.slice import barycentric_gradient, slice, slice_planes
from permutohedral.ops.triton.filter.splat import splat
from permutohedral.ops.triton.filter.weight_gradient import convolve_weight_gradient

_TOO_LARGE = "keys do not fit one word"


class Triton(Backend):
    """The kernels, and what they do not support."""

    name = "triton"
    has_bounded = True
    index_points = staticmethod(lattice.index_points)
    index_points_bounded = staticmethod(lattice.index_points_bounded)
    index_keys = staticmethod(index_keys)
    find_neighbors = staticmethod(find_neighbors)
    transpose_neighbors = staticmethod(transpose_neighbors)
    coarsen_lattice = staticmethod(coarsen_lattice)
    coarsen_keys_bounded = staticmethod(coarsen_keys_bounded)
    embed_gradient = staticmethod(embed_gradient)
    splat = staticmethod(splat)
    slice = staticmethod(slice)
    slice_planes = staticmethod(slice_planes)
    barycentric_gradient = staticmethod(barycentric_gradient)
    find_largest = staticmethod(find_largest)
    convolve = staticmethod(convolve)
    convolve_weight_gradient = staticmethod(convolve_weight_gradient)
    blur = staticmethod(blur)
    sum_neighbors = staticmethod(sum_neighbors)
    sum_window = staticmethod(sum_window)
    encode = staticmethod(encode)
    encode_backward = staticmethod(encode_backward)
    filter_gaussian = staticmethod(gaussian.filter_gaussian)
    filter_learned = staticmethod(filter_learned)
    filter_learned_backward = staticmethod(filter_learned_backward)
    mean_field_backward = staticmethod(mean_field.mean_field_backward)
    normalize_items_backward = staticmethod(item_norm.normalize_items_backward)

    def picture_features(
        self,
        guide: Tensor,
        sigma_space: Sequence[float | Tensor],
        sigma_color: Sequence[float] | Tensor,
        origin: Sequence[int],
        shift: float,
    ) -> Tensor:
        blocker = picture_features.features_blocker(guide, sigma_space, sigma_color, origin)
        if blocker is not None:
            given = guide, sigma_space, sigma_color, origin, shift
            return self.decline(blocker, super().picture_features, *given)
        return picture_features.picture_features(guide, float(sigma_space[0]), float(sigma_color[0]), shift)

    def index_with_neighbors(
        self,
        features: Tensor,
        batch: Tensor | None,
        offsets: Tensor,
        opposite: Tensor,
        check: Callable[[int], None],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        blocker = lattice.ahead_blocker(features, offsets.shape[0])
        if blocker is None:
            found = lattice.index_with_neighbors(features, batch, offsets, opposite)
            if found is not None:
                return found
        given = features, batch, offsets, opposite, check
        return self.decline(blocker or _TOO_LARGE, super().index_with_neighbors, *given)

    def filter_points(
        self, values: Tensor, features: Tensor, batch: Tensor | None, check: Callable[[int], None]
    ) -> Tensor:
        blocker = gaussian.points_blocker(features.shape[1])
        if blocker is not None:
            return self.decline(blocker, super().filter_points, values, features, batch, check)
        found = gaussian.filter_points(values, features, batch)
        if found is not None:
            return found
        # not by `index_with_neighbors`, which cannot pack these keys either
        along = features.shape[1], features.device
        given = features, batch, axis_offsets(*along), axis_opposite(*along), check
        tables = self.decline(_TOO_LARGE, super().index_with_neighbors, *given)
        return self.filter_gaussian(values, *tables[1:3], tables[4], *tables[1:3])

    def mean_field(self, energies: Tensor, start: Tensor | None, plan: FieldPlan) -> tuple[Tensor, Saved | None]:
        blocker = mean_field.field_blocker(energies, plan)
        if blocker is not None:
            return self.decline(blocker, super().mean_field, energies, start, plan)
        return mean_field.mean_field(energies, start, plan)

    def normalize_items(
        self, values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm
    ) -> tuple[Tensor, Saved | None]:
        if values.shape[1] > item_norm.MOST_CHANNELS:
            reason = f"the kernels normalize at most {item_norm.MOST_CHANNELS} channels, got {values.shape[1]}"
            return self.decline(reason, super().normalize_items, values, weight, bias, norm)
        return item_norm.normalize_items(values, weight, bias, norm)


BACKEND = Triton()
