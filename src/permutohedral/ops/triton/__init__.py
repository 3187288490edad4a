"""The primitives as Triton kernels: CUDA and ROCm GPUs, and the CPU under Triton's interpreter."""

from permutohedral.ops.triton.convolution import convolve
from permutohedral.ops.triton.embedding import embed_differential, embed_gradient
from permutohedral.ops.triton.filtering import barycentric_gradient, blur, filter_gaussian, slice, splat
from permutohedral.ops.triton.from_features import filter_features
from permutohedral.ops.triton.gaussian import filter_points
from permutohedral.ops.triton.lattice import index_both, index_points
from permutohedral.ops.triton.learned import filter_learned
from permutohedral.ops.triton.neighbors import find_neighbors, transpose_neighbors
from permutohedral.ops.triton.weight_gradient import convolve_gradients, convolve_weight_gradient
from permutohedral.ops.triton.wide import index_keys

__all__ = [
    "barycentric_gradient",
    "blur",
    "convolve",
    "convolve_gradients",
    "convolve_weight_gradient",
    "embed_differential",
    "embed_gradient",
    "filter_features",
    "filter_gaussian",
    "filter_learned",
    "filter_points",
    "find_neighbors",
    "index_both",
    "index_keys",
    "index_points",
    "slice",
    "splat",
    "transpose_neighbors",
]
