// blur, and the normalized Gaussian in one go: splat, blur, slice. Compiled once per instruction set.
#include <algorithm>

#include "filter/channel_panels.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t row_block = 2048;

// One pass: l + (l(ahead) + l(behind)) / 2; a missing neighbor reads the row `zero`.
template <class T, int C>
void blur_axis(Rows<const T> in, const int32_t* ahead, const int32_t* behind, const T* zero, Range rows, T* out) {
    const int64_t channels = C > 0 ? C : in.channels;
    for (int64_t v = rows.begin; v < rows.end; ++v) {
        const T* a = ahead[v] < 0 ? zero : in.data + ahead[v] * channels;
        const T* b = behind[v] < 0 ? zero : in.data + behind[v] * channels;
        for_pieces<T, C>(channels, [&](int64_t c, auto width) {
            constexpr int N = decltype(width)::value;
            const Piece<T, N> sum = load_piece<T, N>(a + c) + load_piece<T, N>(b + c);
            store_piece<T, N>(out + v * channels + c, load_piece<T, N>(in.data + v * channels + c) + T(0.5) * sum);
        });
    }
}

struct Axes {
    const int32_t* neighbors;  // [2 axes, rows]
    int64_t axes;
    bool reverse;
};

// Channels that are blurred together: all passes write to `first` and `second` in turn.
template <class T>
struct BlurredPanel {
    Rows<const T> in;
    T* first;
    T* second;
};

// Calls panel_at(p) for the panels, which all have the same rows.
template <class T, class PanelAt>
void blur_passes(int64_t num_panels, PanelAt&& panel_at, const Axes& axes, int threads) {
    const int64_t rows = panel_at(0).in.rows, blocks = divide_up(rows, row_block);
    const Memory zero(sizeof(T) * panel_at(0).in.channels);
    std::memset(zero.data(), 0, zero.size());
    for (int64_t pass = 0; pass < axes.axes; ++pass) {
        const int64_t axis = axes.reverse ? axes.axes - 1 - pass : pass;
        const int32_t* ahead = axes.neighbors + 2 * axis * rows;
        parallel_for(threads, num_panels * blocks, [&](int64_t task, int) {
            const BlurredPanel<T> panel = panel_at(task % num_panels);
            const int64_t begin = task / num_panels * row_block;
            const Range range{begin, std::min(begin + row_block, rows)};
            Rows<const T> in = panel.in;
            if (pass > 0) in.data = pass % 2 == 0 ? panel.second : panel.first;
            T* out = pass % 2 == 0 ? panel.first : panel.second;
            with_width<T>(in.channels, [&](auto constant) {
                blur_axis<T, decltype(constant)::value>(in, ahead, ahead + rows, as<T>(zero), range, out);
            });
        });
    }
}

}  // namespace

template <class T>
void blur(Rows<const T> lattice_values, const int32_t* axis_neighbors, int64_t axes, bool reverse, T* out,
          int threads) {
    const Memory scratch(sizeof(T) * lattice_values.rows * lattice_values.channels);
    // the last pass writes to out
    T* first = axes % 2 == 1 ? out : as<T>(scratch);
    T* second = axes % 2 == 1 ? as<T>(scratch) : out;
    auto panel_at = [&](int64_t) { return BlurredPanel<T>{lattice_values, first, second}; };
    blur_passes<T>(1, panel_at, {axis_neighbors, axes, reverse}, threads);
}

template <class T>
void filter_gaussian(const GaussianFilter<T>& filter, Rows<const T> values, Rows<T> out, int threads) {
    const int64_t rows = filter.rows, channels = values.channels + 1;
    const LatticeShape shape{rows, int64_t(sizeof(T)) * channels};
    const int64_t bytes = int64_t(sizeof(T)) * panels_in<T>(nullptr, rows, channels).size();
    const Memory splatted(bytes), blurred(bytes);
    const Visits<T> visits = plan_visits(filter.source, shape, threads > 1, threads, filter.order);
    splat_with_mass(visits, values, Rows<T>{as<T>(splatted), rows, channels}, threads);
    const Panels<T> from = panels_in(as<T>(splatted), rows, channels), to = panels_in(as<T>(blurred), rows, channels);
    auto panel_at = [&](int64_t p) {
        return BlurredPanel<T>{{from[p].data, rows, from[p].width}, to[p].data, from[p].data};
    };
    blur_passes<T>(from.num_panels, panel_at, {filter.axis_neighbors, filter.axes, false}, threads);
    const T* result = as<T>(filter.axes % 2 == 1 ? blurred : splatted);
    const Rows<const T> lattice_values{result, rows, channels};
    const bool same = filter.source.vertices == filter.target.vertices && filter.source.points == filter.target.points;
    if (same && filter.source.barycentric == filter.target.barycentric) {
        return slice_normalized(visits, lattice_values, filter.added_mass, out, threads);
    }
    const Visits<T> target_visits = plan_visits(filter.target, shape, false, threads);
    slice_normalized(target_visits, lattice_values, filter.added_mass, out, threads);
}

template void blur(Rows<const float>, const int32_t*, int64_t, bool, float*, int);
template void blur(Rows<const double>, const int32_t*, int64_t, bool, double*, int);
template void filter_gaussian(const GaussianFilter<float>&, Rows<const float>, Rows<float>, int);
template void filter_gaussian(const GaussianFilter<double>&, Rows<const double>, Rows<double>, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
