// The Gaussian over position and color by its definition: every pixel sums those in a window.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.hpp"
#include "runtime/exponential.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// offsets along x that are computed together, step by step
constexpr int offsets_at_once = 4;
// channels whose sums stay in registers
constexpr int channels_at_once = 4;

struct WindowShape {
    int64_t num_items, num_channels, num_guides, height, width;
    double sigma_y, sigma_x;
    double reach;  // pixels farther away than this many standard deviations are left out
};

// Planes with a margin of zeros on both sides of each row, so that a window needs no borders along x: what a value of
// zero is weighted with does not matter.
template <class T>
struct PaddedPlanes {
    Memory memory;
    int64_t height, stride, margin;

    PaddedPlanes(const T* planes, int64_t num_planes, const WindowShape& shape, int64_t margin, T factor, int threads)
        : height(shape.height),
          // vectors of the last pixels reach beyond the row
          stride(shape.width + 2 * margin + lanes<T>),
          margin(margin) {
        memory = Memory(sizeof(T) * num_planes * height * stride);
        parallel_for(threads, num_planes * height, [&](int64_t row, int) {
            T* to = as<T>(memory) + row * stride;
            const T* from = planes + row * shape.width;
            std::fill(to, to + margin, T(0));
            for (int64_t x = 0; x < shape.width; ++x) to[margin + x] = factor * from[x];
            std::fill(to + margin + shape.width, to + stride, T(0));
        });
    }

    const T* at(int64_t plane, int64_t y, int64_t x) const {
        return as<T>(memory) + (plane * height + y) * stride + margin + x;
    }
    int64_t plane_size() const { return height * stride; }
};

// The window: pixels within `reach` standard deviations.
template <class T>
struct Window {
    int64_t reach_y, reach_x;
    std::vector<int64_t> extents;  // [reach_y + 1]: how far it extends along x at each distance in y
    std::vector<T> exponents;      // [reach_y + 1, 2 reach_x + 1]: the logarithm, to the base two, of the weight

    explicit Window(const WindowShape& shape) {
        // a window beyond the picture is no larger than the picture, whose extent integers can hold
        reach_y = int64_t(std::min(shape.reach * shape.sigma_y, double(shape.height - 1)));
        reach_x = int64_t(std::min(shape.reach * shape.sigma_x, double(shape.width - 1)));
        for (int64_t dy = 0; dy <= reach_y; ++dy) {
            const double y = double(dy) / shape.sigma_y;
            const double left = std::sqrt(std::max(0.0, shape.reach * shape.reach - y * y));
            extents.push_back(int64_t(std::min(left * shape.sigma_x, double(reach_x))));
            for (int64_t dx = -reach_x; dx <= reach_x; ++dx) {
                const double x = double(dx) / shape.sigma_x;
                exponents.push_back(T(-0.5 * log2_e * (y * y + x * x)));
            }
        }
    }

    const T* exponents_at(int64_t dy) const { return exponents.data() + dy * (2 * reach_x + 1) + reach_x; }
};

// Adds to the sums of one vector of pixels what lies at U consecutive offsets along x.
template <class T, int U, int G, int C>
PERMUTOHEDRAL_INLINE void add_offsets(const Vector<T>* center, Extent<G> guides, const T* guide, int64_t guide_plane,
                                      const T* values, int64_t value_plane, const T* exponents, Vector<T>* sums) {
    Vector<T> weights[U];
    for (int u = 0; u < U; ++u) weights[u] = Vector<T>{} + exponents[u];
    for (int64_t g = 0; g < guides; ++g) {
        for (int u = 0; u < U; ++u) {
            const Vector<T> difference = load<T, lanes<T>>(guide + g * guide_plane + u) - center[g];
            weights[u] -= difference * difference;
        }
    }
    exp2_in_place<T, U>(weights);
    for (int u = 0; u < U; ++u) {
        for (int c = 0; c < C; ++c) sums[c] += weights[u] * load<T, lanes<T>>(values + c * value_plane + u);
    }
}

// The sums of C channels, from `first` on, along one row of an item.
template <class T, int G, int C>
void sum_row(const WindowShape& shape, const Window<T>& window, const PaddedPlanes<T>& guide,
             const PaddedPlanes<T>& values, int64_t item, int64_t y, int64_t first, T* out) {
    const Extent<G> guides(shape.num_guides);
    const Memory many(G > 0 ? 0 : sizeof(Vector<T>) * shape.num_guides);
    Vector<T> few[capacity_for<G, 1>];
    Vector<T>* center = G > 0 ? few : as<Vector<T>>(many);
    const int64_t guide_plane = guide.plane_size(), value_plane = values.plane_size();
    const int64_t first_y = std::max<int64_t>(y - window.reach_y, 0);
    const int64_t last_y = std::min(y + window.reach_y, shape.height - 1);
    for (int64_t x = 0; x < shape.width; x += lanes<T>) {
        for (int64_t g = 0; g < guides; ++g) center[g] = load<T, lanes<T>>(guide.at(item * guides + g, y, x));
        Vector<T> sums[C] = {};
        for (int64_t source_y = first_y; source_y <= last_y; ++source_y) {
            const int64_t dy = std::abs(source_y - y), extent = window.extents[dy];
            const T* from = guide.at(item * guides, source_y, x);
            const T* source = values.at(item * shape.num_channels + first, source_y, x);
            const T* exponents = window.exponents_at(dy);
            int64_t dx = -extent;
            for (; dx + offsets_at_once - 1 <= extent; dx += offsets_at_once) {
                add_offsets<T, offsets_at_once, G, C>(center, guides, from + dx, guide_plane, source + dx, value_plane,
                                                      exponents + dx, sums);
            }
            for (; dx <= extent; ++dx) {
                add_offsets<T, 1, G, C>(center, guides, from + dx, guide_plane, source + dx, value_plane,
                                        exponents + dx, sums);
            }
        }
        const int64_t count = std::min<int64_t>(lanes<T>, shape.width - x);
        for (int c = 0; c < C; ++c) {
            T* to = out + ((item * shape.num_channels + first + c) * shape.height + y) * shape.width + x;
            if (count == lanes<T>) {
                store<T, lanes<T>>(to, sums[c]);
            } else {
                store_first<T, lanes<T>>(to, sums[c], count);
            }
        }
    }
}

// Sums the pixels around each pixel, weighted by the Gaussian of position and guide, within `reach` standard deviations.
// values and out [num_items, num_channels, height, width], guide [num_items, num_guides, height, width]
template <class T>
void sum_window(View<const T, 4> values, View<const T, 4> guide, double sigma_y, double sigma_x, double reach,
                View<T, 4> out, int threads) {
    const WindowShape shape{values.shape[0], values.shape[1], guide.shape[1], values.shape[2],
                            values.shape[3], sigma_y,         sigma_x,        reach};
    const Window<T> window(shape);
    // exp(-x^2 / 2) is two to the power of -(factor x)^2
    const T factor = T(std::sqrt(0.5 * log2_e));
    const PaddedPlanes<T> padded_guide(guide.data, shape.num_items * shape.num_guides, shape, window.reach_x, factor,
                                       threads);
    const PaddedPlanes<T> padded_values(values.data, shape.num_items * shape.num_channels, shape, window.reach_x, T(1),
                                        threads);
    parallel_for(threads, shape.num_items * shape.height, [&](int64_t row, int) {
        const int64_t item = row / shape.height, y = row % shape.height;
        for (int64_t first = 0; first < shape.num_channels; first += channels_at_once) {
            dispatch<1, 3, 0>(shape.num_guides, [&](auto guides) {
                dispatch<1, 2, 3, channels_at_once>(shape.num_channels - first, [&](auto channels) {
                    constexpr int G = decltype(guides)::value, C = decltype(channels)::value;
                    sum_row<T, G, C>(shape, window, padded_guide, padded_values, item, y, first, out.data);
                });
            });
        }
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
