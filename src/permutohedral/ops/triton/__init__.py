"""The primitives as Triton kernels: CUDA and ROCm GPUs, and the CPU under Triton's interpreter."""

from permutohedral.ops.reference import index_keys
from permutohedral.ops.triton.build.embedding import embed_gradient
from permutohedral.ops.triton.build.lattice import index_points, index_points_bounded, index_with_neighbors
from permutohedral.ops.triton.build.levels import coarsen_keys_bounded, coarsen_lattice
from permutohedral.ops.triton.build.neighbors import find_neighbors, transpose_neighbors
from permutohedral.ops.triton.build.picture_features import picture_features
from permutohedral.ops.triton.filter.blur import blur
from permutohedral.ops.triton.filter.convolve import convolve
from permutohedral.ops.triton.filter.encoding import encode, encode_backward
from permutohedral.ops.triton.filter.exact_sums import sum_neighbors, sum_window
from permutohedral.ops.triton.filter.gaussian import filter_gaussian, filter_points
from permutohedral.ops.triton.filter.item_norm import normalize_items, normalize_items_backward
from permutohedral.ops.triton.filter.largest import splat_largest
from permutohedral.ops.triton.filter.learned_filter import filter_learned, filter_learned_backward
from permutohedral.ops.triton.filter.mean_field import mean_field, mean_field_backward
from permutohedral.ops.triton.filter.slice import barycentric_gradient, slice, slice_planes
from permutohedral.ops.triton.filter.splat import splat
from permutohedral.ops.triton.filter.weight_gradient import convolve_weight_gradient
