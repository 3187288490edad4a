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

// Whether a lane is greater than a number.
template <class T>
PERMUTOHEDRAL_INLINE bool any_above(Vector<T> vector, T number) {
    const Vector<T> bounds = Vector<T>{} + number;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return _mm512_cmp_ps_mask((__m512)vector, (__m512)bounds, _CMP_GT_OQ) != 0;
    if constexpr (sizeof(T) == 8) return _mm512_cmp_pd_mask((__m512d)vector, (__m512d)bounds, _CMP_GT_OQ) != 0;
#elif defined(__AVX__)
    const auto above = vector > bounds;
    if constexpr (sizeof(T) == 4) return _mm256_movemask_ps((__m256)above) != 0;
    if constexpr (sizeof(T) == 8) return _mm256_movemask_pd((__m256d)above) != 0;
#endif
    for (int i = 0; i < lanes<T>; ++i) {
        if (vector[i] > bounds[i]) return true;
    }
    return false;
}

// The window of a pixel: `shape.reach` standard deviations, as far as the picture extends.
template <class T>
class PixelWindow {
public:
    explicit PixelWindow(const WindowShape& shape)
        : shape_(shape),
          // not converted before they are known to be small
          reach_y_(int64_t(std::min(shape.reach * shape.sigma_y, double(shape.height - 1)))),
          reach_x_(int64_t(std::min(shape.reach * shape.sigma_x, double(shape.width - 1)))),
          // vectors of the last pixels reach beyond
          along_x_(2 * reach_x_ + 1 + lanes<T>) {
        for (int64_t dx = -reach_x_; dx <= reach_x_; ++dx)
            along_x_[dx + reach_x_] = exponent(double(dx) / shape.sigma_x);
    }

    // Sums around one pixel. There is a plane of values for each channel of out.
    void sum(const std::vector<const T*>& values, const T* guide, int64_t pixel, T* out) const {
        const auto num_channels = int64_t(values.size());
        const int64_t plane = shape_.height * shape_.width, y = pixel / shape_.width, x = pixel % shape_.width;
        std::vector<Vector<T>> sums(num_channels, Vector<T>{});
        const int64_t last_y = std::min(y + reach_y_, shape_.height - 1);
        for (int64_t source_y = std::max<int64_t>(y - reach_y_, 0); source_y <= last_y; ++source_y) {
            const double distance = double(source_y - y) / shape_.sigma_y;
            const double left = std::sqrt(std::max(0.0, shape_.reach * shape_.reach - distance * distance));
            const auto extent = int64_t(std::min(left * shape_.sigma_x, double(reach_x_)));
            const int64_t end = std::min(x + extent + 1, shape_.width);
            for (int64_t from = std::max<int64_t>(x - extent, 0); from < end; from += lanes<T>) {
                const int64_t count = std::min<int64_t>(lanes<T>, end - from), row = source_y * shape_.width + from;
                Vector<T> weights = load<T, lanes<T>>(&along_x_[from - x + reach_x_]) + exponent(distance);
                for (int64_t g = 0; g < shape_.num_guides; ++g) {
                    const Vector<T> difference =
                        load_some<T>(guide + g * plane + row, count) - guide[g * plane + pixel];
                    weights -= factor * difference * difference;
                }
                // most pixels are far off in color
                if (!any_above<T>(weights, T(least_exponent))) continue;
                exp2_in_place<T, 1>(&weights);
                for (int64_t c = 0; c < num_channels; ++c) {
                    sums[c] += weights * load_some<T>(values[c] + row, count);
                }
            }
        }
        for (int64_t c = 0; c < num_channels; ++c) {
            out[c * plane + pixel] =
                reduce_lanes<T, lanes<T>>(sums[c], [](Vector<T> a, Vector<T> b) { return a + b; })[0];
        }
    }

private:
    // exp(-x^2 / 2) is two to the power of -factor x^2
    static constexpr T factor = T(0.5 * 1.4426950408889634);
    // weights below two to this power count as zero, also in double precision: what landmarks leave out is far more
    static constexpr double least_exponent = -20;
    static T exponent(double distance) { return -factor * T(distance * distance); }

    const WindowShape shape_;
    const int64_t reach_y_, reach_x_;
    std::vector<T> along_x_;
};

// Sums pixels of one item again.
template <class T>
void sum_again(const WindowShape& shape, const std::vector<const T*>& values, const T* guide,
               const std::vector<int64_t>& pixels, T* out, int threads) {
    const PixelWindow<T> window(shape);
    parallel_for(threads, int64_t(pixels.size()), [&](int64_t i, int) { window.sum(values, guide, pixels[i], out); });
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
