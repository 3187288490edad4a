// splat_largest and largest_gradient. Compiled once per instruction set.
#include <algorithm>

#include "filter/channel_panels.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t points_per_task = 1024;

// The channels from `first` on of a point, at one of its corners; NaN is larger than any number.
template <class T>
inline void compare_point(const T* value, int32_t point, int64_t width, T* most, int32_t* winner) {
    for (int64_t c = 0; c < width; ++c) {
        const bool better = (winner[c] < 0) | (value[c] > most[c]) | ((value[c] != value[c]) & (most[c] == most[c]));
        most[c] = better ? value[c] : most[c];
        winner[c] = better ? point : winner[c];
    }
}

}  // namespace

template <class T>
void splat_largest(const Simplices<T>& simplices, Matrix<const T> values, Matrix<T> out, int32_t* winners,
                   int threads) {
    const int64_t channels = values.num_channels;
    // each task has some channels of all lattice points, to which the points come in order
    parallel_for(threads, divide_up(channels, panel_channels<T>), [&](int64_t panel, int) {
        const int64_t first = panel * panel_channels<T>, width = std::min(panel_channels<T>, channels - first);
        for (int64_t v = 0; v < out.num_rows; ++v) {
            std::fill_n(out.data + v * channels + first, width, T(0));
            std::fill_n(winners + v * channels + first, width, -1);
        }
        for (int64_t i = 0; i < simplices.num_points; ++i) {
            const int32_t* vertices = simplices.vertices + i * simplices.num_corners;
            for (int64_t j = 0; j < simplices.num_corners; ++j) {
                const int64_t at = vertices[j] * channels + first;
                compare_point(values.data + i * channels + first, int32_t(i), width, out.data + at, winners + at);
            }
        }
    });
}

template <class T>
void largest_gradient(const Simplices<T>& simplices, Matrix<const T> gradient, const int32_t* winners, Matrix<T> out,
                      int threads) {
    const int64_t channels = gradient.num_channels;
    parallel_ranges(threads, simplices.num_points, points_per_task, [&](int64_t begin, int64_t end, int) {
        std::fill_n(out.data + begin * channels, (end - begin) * channels, T(0));
        for (int64_t i = begin; i < end; ++i) {
            const int32_t* vertices = simplices.vertices + i * simplices.num_corners;
            for (int64_t j = 0; j < simplices.num_corners; ++j) {
                // a row may have both of its halves at one lattice point
                if (std::find(vertices, vertices + j, vertices[j]) != vertices + j) continue;
                const int64_t at = vertices[j] * channels;
                T* to = out.data + i * channels;
                for (int64_t c = 0; c < channels; ++c) {
                    to[c] += winners[at + c] == i ? gradient.data[at + c] : T(0);
                }
            }
        }
    });
}

template void splat_largest(const Simplices<float>&, Matrix<const float>, Matrix<float>, int32_t*, int);
template void splat_largest(const Simplices<double>&, Matrix<const double>, Matrix<double>, int32_t*, int);
template void largest_gradient(const Simplices<float>&, Matrix<const float>, const int32_t*, Matrix<float>, int);
template void largest_gradient(const Simplices<double>&, Matrix<const double>, const int32_t*, Matrix<double>, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
