"""The primitives as Triton kernels: CUDA and ROCm GPUs, and the CPU under Triton's interpreter."""

from permutohedral.ops.triton.build.embedding import embed_differential, embed_gradient
from permutohedral.ops.triton.build.fixed_rows import index_points_bounded
from permutohedral.ops.triton.build.lattice import index_both, index_points, index_with_neighbors
from permutohedral.ops.triton.build.levels import coarsen_keys, coarsen_simplices, connect_levels
from permutohedral.ops.triton.build.neighbors import find_neighbors, transpose_neighbors
from permutohedral.ops.triton.build.picture_features import picture_features
from permutohedral.ops.triton.build.wide_keys import index_keys
from permutohedral.ops.triton.filter.blur import blur
from permutohedral.ops.triton.filter.cells import cell_features
from permutohedral.ops.triton.filter.convolve import convolve, convolve_and_add
from permutohedral.ops.triton.filter.convolve_gradients import convolve_gradients
from permutohedral.ops.triton.filter.exact_sums import sum_neighbors, sum_window
from permutohedral.ops.triton.filter.gaussian import filter_gaussian, filter_picture, filter_points
from permutohedral.ops.triton.filter.item_norm import differentiate_items_norm, normalize_items
from permutohedral.ops.triton.filter.largest import largest_gradient, splat_largest
from permutohedral.ops.triton.filter.learned_filter import differentiate_learned, filter_learned
from permutohedral.ops.triton.filter.mean_field import mean_field, mean_field_points
from permutohedral.ops.triton.filter.mean_field_gradient import differentiate_mean_field, mean_field_logits
from permutohedral.ops.triton.filter.slice import barycentric_gradient, mix_rows, slice
from permutohedral.ops.triton.filter.solver import add_beside, balance, solve_on_lattice, spread_cells
from permutohedral.ops.triton.filter.splat import splat
from permutohedral.ops.triton.filter.upsample import upsample_map, upsample_rows
from permutohedral.ops.triton.filter.weight_gradient import convolve_weight_gradient
