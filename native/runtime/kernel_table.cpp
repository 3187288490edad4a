// Compiled once per instruction set.
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

template <class T>
constexpr Kernels<T> all_kernels() {
    Kernels<T> kernels{};
    kernels.index_points = &index_points<T>;
    kernels.index_parents_by_cells = &index_parents_by_cells;
    kernels.coarsen_simplices = &coarsen_simplices<T>;
    kernels.embed_gradient = &embed_gradient<T>;
    kernels.embed_differential = &embed_differential<T>;
    kernels.splat = &splat<T>;
    kernels.slice = &slice<T>;
    kernels.mix_rows = &mix_rows<T>;
    kernels.barycentric_gradient = &barycentric_gradient<T>;
    kernels.splat_largest = &splat_largest<T>;
    kernels.largest_gradient = &largest_gradient<T>;
    kernels.coarsen_rows = &coarsen_rows<T>;
    kernels.refine_rows = &refine_rows<T>;
    kernels.blur = &blur<T>;
    kernels.add_beside = &add_beside<T>;
    kernels.filter_gaussian = &filter_gaussian<T>;
    kernels.mean_field = &mean_field<T>;
    kernels.mean_field_gradient = &mean_field_gradient<T>;
    kernels.convolve = &convolve<T>;
    kernels.convolve_weight_gradient = &convolve_weight_gradient<T>;
    kernels.sum_window = &sum_window<T>;
    kernels.sum_landmarks = &sum_landmarks<T>;
    kernels.sum_color_grid = &sum_color_grid<T>;
    kernels.sum_neighbors = &sum_neighbors<T>;
    return kernels;
}

}  // namespace

const Kernels<float> float32_kernels = all_kernels<float>();
const Kernels<double> float64_kernels = all_kernels<double>();

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
