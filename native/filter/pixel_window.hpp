// The Gaussian over position and color by its definition, at single pixels: for the few where sums with less work fail.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "filter/powers_of_two.hpp"
#include "kernels.hpp"
#include "runtime/lane_exchange.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// Consecutive pixels of a row, `count` of them, zero in the lanes beyond.
template <class T>
PERMUTOHEDRAL_INLINE Vector<T> load_some(const T* from, int64_t count) {
    if (count >= lanes<T>) return load<T, lanes<T>>(from);
    Vector<T> some{};
    std::memcpy(&some, from, sizeof(T) * count);
    return some;
}

// Sums over the window of one pixel, within `reach` standard deviations. There is a plane of values for each
// channel of out.
template <class T>
void sum_pixel(const WindowShape& shape, const std::vector<const T*>& values, const T* guide, int64_t pixel, T* out) {
    constexpr T factor = T(0.5 * 1.4426950408889634);
    const auto num_channels = int64_t(values.size());
    const int64_t plane = shape.height * shape.width, y = pixel / shape.width, x = pixel % shape.width;
    std::vector<Vector<T>> sums(num_channels, Vector<T>{});
    const auto reach_y = int64_t(shape.reach * shape.sigma_y);
    const int64_t last_y = std::min(y + reach_y, shape.height - 1);
    for (int64_t source_y = std::max<int64_t>(y - reach_y, 0); source_y <= last_y; ++source_y) {
        const double distance = double(source_y - y) / shape.sigma_y;
        const double left = std::sqrt(std::max(0.0, shape.reach * shape.reach - distance * distance));
        const auto extent = int64_t(left * shape.sigma_x);
        const int64_t first = std::max<int64_t>(x - extent, 0), end = std::min(x + extent + 1, shape.width);
        for (int64_t from = first; from < end; from += lanes<T>) {
            const int64_t count = std::min<int64_t>(lanes<T>, end - from), row = source_y * shape.width + from;
            Vector<T> weights;
            for (int lane = 0; lane < lanes<T>; ++lane) weights[lane] = T(from + lane - x) / T(shape.sigma_x);
            weights = -factor * (weights * weights + T(distance * distance));
            for (int64_t g = 0; g < shape.num_guides; ++g) {
                const Vector<T> difference = load_some<T>(guide + g * plane + row, count) - guide[g * plane + pixel];
                weights -= factor * difference * difference;
            }
            exp2_in_place<T, 1>(&weights);
            for (int64_t c = 0; c < num_channels; ++c) {
                sums[c] += weights * load_some<T>(values[c] + row, count);
            }
        }
    }
    for (int64_t c = 0; c < num_channels; ++c) {
        out[c * plane + pixel] = reduce_lanes<T, lanes<T>>(sums[c], [](Vector<T> a, Vector<T> b) { return a + b; })[0];
    }
}

// Sums again the pixels of one item whose last sum is less than `small_mass`, at most so many, where it is least.
template <class T>
void repair_sums(const WindowShape& shape, const std::vector<const T*>& values, const T* guide, T small_mass,
                 int64_t most, T* out, int threads) {
    const T* mass = out + (int64_t(values.size()) - 1) * shape.height * shape.width;
    std::vector<int64_t> small;
    for (int64_t pixel = 0; pixel < shape.height * shape.width; ++pixel) {
        if (mass[pixel] < small_mass) small.push_back(pixel);
    }
    if (int64_t(small.size()) > most) {
        auto less = [&](int64_t a, int64_t b) { return mass[a] < mass[b] || (mass[a] == mass[b] && a < b); };
        std::nth_element(small.begin(), small.begin() + most, small.end(), less);
        small.resize(most);
    }
    parallel_for(threads, int64_t(small.size()),
                 [&](int64_t i, int) { sum_pixel(shape, values, guide, small[i], out); });
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
