// The Gaussian over position and color by its definition, at single pixels: for the few where sums with less work fail.
// Compiled once per instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "filter/powers_of_two.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/lane_exchange.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// vectors along a row that are computed at once, step by step, and channels whose sums stay in registers
constexpr int vectors_at_once = 4, channels_at_once = 4;

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
          reach_y_(std::min(int64_t(shape.reach * shape.sigma_y), shape.height - 1)),
          reach_x_(std::min(int64_t(shape.reach * shape.sigma_x), shape.width - 1)),
          // vectors of the last pixels reach beyond
          along_x_(2 * reach_x_ + 1 + lanes<T>) {
        for (int64_t dx = -reach_x_; dx <= reach_x_; ++dx)
            along_x_[dx + reach_x_] = exponent(double(dx) / shape.sigma_x);
    }

    // Sums around one pixel of C planes of values, of a guide of G channels; those of out lie `step` apart.
    template <int G, int C>
    void sum(const T* values, const T* guide, int64_t pixel, T* out, int64_t step) const {
        const int64_t y = pixel / shape_.width, x = pixel % shape_.width;
        Vector<T> sums[C] = {};
        const int64_t last_y = std::min(y + reach_y_, shape_.height - 1);
        for (int64_t source_y = std::max<int64_t>(y - reach_y_, 0); source_y <= last_y; ++source_y) {
            const double distance = double(source_y - y) / shape_.sigma_y;
            const double left = std::sqrt(std::max(0.0, shape_.reach * shape_.reach - distance * distance));
            const int64_t extent = std::min(int64_t(left * shape_.sigma_x), reach_x_);
            const int64_t end = std::min(x + extent + 1, shape_.width);
            int64_t from = std::max<int64_t>(x - extent, 0);
            const T in_y = exponent(distance);
            for (; from + vectors_at_once * lanes<T> <= end; from += vectors_at_once * lanes<T>) {
                add<vectors_at_once, G, C>(values, guide, pixel, source_y, from, lanes<T>, in_y, sums);
            }
            for (; from < end; from += lanes<T>) {
                const int64_t count = std::min<int64_t>(lanes<T>, end - from);
                add<1, G, C>(values, guide, pixel, source_y, from, count, in_y, sums);
            }
        }
        for (int c = 0; c < C; ++c) {
            out[c * step] = reduce_lanes<T, lanes<T>>(sums[c], [](Vector<T> a, Vector<T> b) { return a + b; })[0];
        }
    }

private:
    // Adds U vectors of pixels of a row, from x on, of each of which the first `count` lanes are meant.
    template <int U, int G, int C>
    PERMUTOHEDRAL_INLINE void add(const T* values, const T* guide, int64_t pixel, int64_t y, int64_t x, int64_t count,
                                  T in_y, Vector<T>* sums) const {
        const Extent<G> guides(shape_.num_guides);
        const int64_t plane = shape_.height * shape_.width, at = y * shape_.width + x;
        const T* in_x = &along_x_[x - pixel % shape_.width + reach_x_];
        Vector<T> weights[U];
        for (int u = 0; u < U; ++u) weights[u] = load<T, lanes<T>>(in_x + u * lanes<T>) + in_y;
        for (int64_t g = 0; g < guides; ++g) {
            const T color = guide[g * plane + pixel];
            for (int u = 0; u < U; ++u) {
                const Vector<T> difference = load_some<T>(guide + g * plane + at + u * lanes<T>, count) - color;
                weights[u] -= factor * difference * difference;
            }
        }
        // most pixels are far off in color
        Vector<T> largest = weights[0];
        for (int u = 1; u < U; ++u) largest = larger<T>(largest, weights[u]);
        if (!any_above<T>(largest, T(least_exponent))) return;
        exp2_in_place<T, U>(weights);
        for (int u = 0; u < U; ++u) {
            for (int c = 0; c < C; ++c) {
                sums[c] += weights[u] * load_some<T>(values + c * plane + at + u * lanes<T>, count);
            }
        }
    }

    // exp(-x^2 / 2) is two to the power of -factor x^2
    static constexpr T factor = T(0.5 * 1.4426950408889634);
    // weights below two to this power count as zero
    static constexpr double least_exponent = sizeof(T) == 4 ? -24 : -53;
    static T exponent(double distance) { return -factor * T(distance * distance); }

    const WindowShape shape_;
    const int64_t reach_y_, reach_x_;
    std::vector<T> along_x_;
};

}  // namespace

template <class T>
void sum_pixel_windows(const WindowShape& shape, const T* values, const T* guide, const int64_t* pixels,
                       int64_t num_pixels, T* out, int threads) {
    const PixelWindow<T> window(shape);
    const int64_t plane = shape.height * shape.width;
    for (int64_t first = 0; first < shape.num_channels; first += channels_at_once) {
        dispatch<1, 3, 0>(shape.num_guides, [&](auto guides) {
            dispatch<1, 2, 3, channels_at_once>(shape.num_channels - first, [&](auto channels) {
                constexpr int G = decltype(guides)::value, C = decltype(channels)::value;
                parallel_for(threads, num_pixels, [&](int64_t i, int) {
                    const int64_t to = first * num_pixels + i;
                    window.template sum<G, C>(values + first * plane, guide, pixels[i], out + to, num_pixels);
                });
            });
        });
    }
}

template void sum_pixel_windows(const WindowShape&, const float*, const float*, const int64_t*, int64_t, float*, int);
template void sum_pixel_windows(const WindowShape&, const double*, const double*, const int64_t*, int64_t, double*,
                                int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
