// blur, and the whole normalized Gaussian: splat, blur, slice. Compiled once per instruction set.
#include "filter/blur_passes.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {

template <class T>
void blur(Matrix<const T> lattice_values, const int32_t* axis_neighbors, int64_t num_axes, bool reverse, T* out,
          int threads) {
    const Memory scratch(sizeof(T) * lattice_values.num_rows * lattice_values.num_channels);
    // the last pass writes to out
    T* first = num_axes % 2 == 1 ? out : as<T>(scratch);
    T* second = num_axes % 2 == 1 ? as<T>(scratch) : out;
    auto panel_at = [&](int64_t) { return BlurredPanel<T>{lattice_values, first, second}; };
    blur_passes<T>(1, panel_at, {axis_neighbors, num_axes, reverse}, threads);
}

template <class T>
void filter_gaussian(const GaussianFilter<T>& filter, Matrix<const T> values, Matrix<T> out, int threads) {
    const int64_t rows = filter.num_lattice_points, channels = values.num_channels + 1;
    const LatticeShape shape{rows, int64_t(sizeof(T)) * channels};
    const int64_t bytes = int64_t(sizeof(T)) * consecutive_panels<T>(nullptr, rows, channels).size();
    const Memory splatted(bytes), blurred(bytes);
    const PointOrder<T> order = plan_order(filter.source, shape, threads > 1, threads, filter.order);
    splat_with_mass(order, values, Matrix<T>{as<T>(splatted), rows, channels}, threads);
    const ChannelPanels<T> from = consecutive_panels(as<T>(splatted), rows, channels),
                           to = consecutive_panels(as<T>(blurred), rows, channels);
    auto panel_at = [&](int64_t p) {
        return BlurredPanel<T>{{from[p].data, rows, from[p].width}, to[p].data, from[p].data};
    };
    blur_passes<T>(from.num_panels, panel_at, {filter.axis_neighbors, filter.num_axes, false}, threads);
    const T* result = as<T>(filter.num_axes % 2 == 1 ? blurred : splatted);
    const Matrix<const T> lattice_values{result, rows, channels};
    const bool same =
        filter.source.vertices == filter.target.vertices && filter.source.num_points == filter.target.num_points;
    if (same && filter.source.barycentric == filter.target.barycentric) {
        return slice_normalized(order, lattice_values, filter.added_mass, out, threads);
    }
    const PointOrder<T> target_order = plan_order(filter.target, shape, false, threads);
    slice_normalized(target_order, lattice_values, filter.added_mass, out, threads);
}

template void blur(Matrix<const float>, const int32_t*, int64_t, bool, float*, int);
template void blur(Matrix<const double>, const int32_t*, int64_t, bool, double*, int);
template void filter_gaussian(const GaussianFilter<float>&, Matrix<const float>, Matrix<float>, int);
template void filter_gaussian(const GaussianFilter<double>&, Matrix<const double>, Matrix<double>, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
