// Images as rows of points, and simple changes of rows. This avoids torch's OpenMP pool, whose idle workers busy-wait: on
// a busy machine that takes longer than the whole filter.
#pragma once

#include <atomic>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// points of one task: their rows stay in the nearest cache while the planes are read one after another
constexpr int64_t pixels_per_task = 2048, values_per_task = 1 << 16;

// Writes position / sigma_space + shift [axes] and color / sigma_color + shift [channels] of each sample:
// [count * samples, axes + channels].
// The images are [count, channels, *space], or with `channels_last` [count, *space, channels]; the first sample is at
// `origin`.
template <class T>
void picture_features(View<const T, 1> images, bool channels_last, const std::vector<int64_t>& space,
                      const std::vector<int64_t>& origin, const std::vector<T>& sigma_space,
                      const std::vector<T>& sigma_color, T shift, Matrix<T> features, int threads) {
    const int64_t axes = int64_t(space.size()), channels = int64_t(sigma_color.size()), row = axes + channels;
    const int64_t last = axes - 1, width = space[last];
    int64_t lines = 1;
    for (int64_t axis = 0; axis < last; ++axis) lines *= space[axis];
    const int64_t channel_step = channels_last ? 1 : lines * width;
    const int64_t sample_step = channels_last ? channels : 1;
    parallel_for(threads, features.num_rows / width, [&](int64_t task, int) {
        T* out = features.data + task * width * row;
        int64_t line = task % lines;
        for (int64_t axis = last - 1; axis >= 0; --axis) {
            const T place = T(origin[axis] + line % space[axis]) / sigma_space[axis] + shift;
            line /= space[axis];
            for (int64_t x = 0; x < width; ++x) out[x * row + axis] = place;
        }
        for (int64_t x = 0; x < width; ++x) out[x * row + last] = T(origin[last] + x) / sigma_space[last] + shift;
        const T* colors = images.data + task / lines * lines * width * channels + task % lines * width * sample_step;
        for (int64_t channel = 0; channel < channels; ++channel) {
            for (int64_t x = 0; x < width; ++x) {
                const T color = colors[channel * channel_step + x * sample_step] / sigma_color[channel];
                out[x * row + axes + channel] = color + shift;
            }
        }
    });
}

// Transposes planes [channels, points] to rows [points, channels].
template <class T>
void interleave(Matrix<const T> planes, Matrix<T> rows, int threads) {
    parallel_ranges(threads, rows.num_rows, pixels_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t channel = 0; channel < rows.num_channels; ++channel) {
            const T* plane = planes.data + channel * rows.num_rows;
            for (int64_t i = begin; i < end; ++i) rows.data[i * rows.num_channels + channel] = plane[i];
        }
    });
}

// Divides each row by its divisor, in place, unless that is zero: such a row is empty.
template <class T>
void divide_rows(Matrix<T> values, View<const T, 1> divisors, int threads) {
    const int64_t channels = values.num_channels;
    parallel_ranges(threads, values.num_rows, pixels_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            if (!(divisors.data[i] > 0)) continue;
            for (int64_t c = 0; c < channels; ++c) values.data[i * channels + c] /= divisors.data[i];
        }
    });
}

// Adds [channels] to each row, in place.
template <class T>
void add_to_rows(Matrix<T> values, View<const T, 1> added, int threads) {
    const int64_t channels = values.num_channels;
    parallel_ranges(threads, values.num_rows, pixels_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t c = 0; c < channels; ++c) values.data[i * channels + c] += added.data[c];
        }
    });
}

// Returns whether the sum of all values is NaN: one of them is, or there are infinities of both signs.
template <class T>
bool is_sum_nan(View<const T, 3> values, int threads) {
    constexpr int has_nan = 1, has_highest = 2, has_lowest = 4;
    constexpr T highest = std::numeric_limits<T>::infinity();
    std::atomic<int> found{0};
    const int64_t count = values.shape[0] * values.shape[1] * values.shape[2];
    parallel_ranges(threads, count, values_per_task, [&](int64_t begin, int64_t end, int) {
        int some = 0;
        for (int64_t i = begin; i < end; ++i) {
            const T value = values.data[i];
            some |= (value != value ? has_nan : 0) | (value == highest ? has_highest : 0) |
                    (value == -highest ? has_lowest : 0);
        }
        found.fetch_or(some, std::memory_order_relaxed);
    });
    return (found & has_nan) != 0 || found == (has_highest | has_lowest);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
