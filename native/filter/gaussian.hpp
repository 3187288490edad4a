// blur, and the whole normalized Gaussian: splat, blur, slice.
#pragma once

#include "filter/blur_passes.hpp"
#include "filter/slice.hpp"
#include "filter/splat.hpp"
#include "kernels.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// Blurs along all axes in turn, or in reverse order, without division by the gain.
template <class T>
void blur(Matrix<const T> lattice_values, NeighborTable axis_neighbors, bool reverse, Matrix<T> out, int threads) {
    const Memory scratch(sizeof(T) * lattice_values.num_rows * lattice_values.num_channels);
    // the last pass writes to out
    const bool is_odd = num_axes(axis_neighbors) % 2 == 1;
    T* first = is_odd ? out.data : as<T>(scratch);
    T* second = is_odd ? as<T>(scratch) : out.data;
    auto panel_at = [&](int64_t) { return BlurredPanel<T>{lattice_values, first, second}; };
    blur_passes<T>(1, panel_at, axis_neighbors, reverse, threads);
}

// The separable Gaussian: splat, blur along the axes, slice divided by mass + added_mass.
template <class T>
void filter_gaussian(Matrix<const T> values, Simplices<T> source, NeighborTable axis_neighbors, Simplices<T> target,
                     T added_mass, Matrix<T> out, int threads) {
    const int64_t rows = axis_neighbors.num_targets, channels = values.num_channels + 1;
    const LatticeShape shape{rows, int64_t(sizeof(T)) * channels};
    const int64_t bytes = int64_t(sizeof(T)) * consecutive_panels<T>(nullptr, rows, channels).size();
    const Memory splatted(bytes), blurred(bytes);
    const PointOrder<T> order = plan_order(source, shape, threads > 1, threads);
    splat_with_mass(order, values, Matrix<T>{as<T>(splatted), rows, channels}, threads);
    const ChannelPanels<T> from = consecutive_panels(as<T>(splatted), rows, channels),
                           to = consecutive_panels(as<T>(blurred), rows, channels);
    auto panel_at = [&](int64_t p) {
        return BlurredPanel<T>{{from[p].data, rows, from[p].width}, to[p].data, from[p].data};
    };
    blur_passes<T>(from.num_panels, panel_at, axis_neighbors, false, threads);
    const T* result = as<T>(num_axes(axis_neighbors) % 2 == 1 ? blurred : splatted);
    const Matrix<const T> lattice_values{result, rows, channels};
    const bool same = source.vertices == target.vertices && source.num_points == target.num_points;
    if (same && source.barycentric == target.barycentric) {
        return slice_normalized(order, lattice_values, added_mass, out, threads);
    }
    slice_normalized(plan_order(target, shape, false, threads), lattice_values, added_mass, out, threads);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
