#include "filter/rows.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "runtime/threads.hpp"

namespace permutohedral {

constexpr int64_t channels_per_task = 32, rows_per_task = 2048, values_per_task = 1 << 16;

template <class T>
void divide_rows(T* values, const T* divisors, int64_t rows, int64_t channels, int threads) {
    parallel_ranges(threads, rows, rows_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            if (!(divisors[i] > 0)) continue;
            for (int64_t channel = 0; channel < channels; ++channel) values[i * channels + channel] /= divisors[i];
        }
    });
}

template <class T>
void add_to_rows(T* values, const T* added, int64_t rows, int64_t channels, int threads) {
    parallel_ranges(threads, rows, rows_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t channel = 0; channel < channels; ++channel) values[i * channels + channel] += added[channel];
        }
    });
}

// Adds half of a row to both parents, or the row where they are the same.
template <class T>
inline void add_halves(const T* __restrict from, int64_t width, T* __restrict low, T* __restrict high) {
    if (low == high) {
        for (int64_t channel = 0; channel < width; ++channel) low[channel] += from[channel];
        return;
    }
    for (int64_t channel = 0; channel < width; ++channel) {
        low[channel] += T(0.5) * from[channel];
        high[channel] += T(0.5) * from[channel];
    }
}

template <class T>
void coarsen_rows(const T* values, const int32_t* parents, int64_t fine, int64_t coarse, int64_t channels, T* out,
                  int threads) {
    // each task has some channels of all rows, so that sums are the same on any number of threads
    parallel_for(threads, divide_up(channels, channels_per_task), [&](int64_t task, int) {
        const int64_t first = task * channels_per_task, width = std::min(channels_per_task, channels - first);
        for (int64_t i = 0; i < coarse; ++i) std::fill_n(out + i * channels + first, width, T(0));
        for (int64_t i = 0; i < fine; ++i) {
            T* low = out + parents[2 * i] * channels + first;
            T* high = out + parents[2 * i + 1] * channels + first;
            add_halves(values + i * channels + first, width, low, high);
        }
    });
}

template <class T>
void refine_rows(const T* values, const int32_t* parents, const T* added, int64_t fine, int64_t channels, T* out,
                 int threads) {
    parallel_ranges(threads, fine, rows_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            const T* low = values + parents[2 * i] * channels;
            const T* high = values + parents[2 * i + 1] * channels;
            T* __restrict to = out + i * channels;
            if (added == nullptr) {
                for (int64_t c = 0; c < channels; ++c) to[c] = T(0.5) * low[c] + T(0.5) * high[c];
            } else {
                const T* other = added + i * channels;
                for (int64_t c = 0; c < channels; ++c) to[c] = other[c] + (T(0.5) * low[c] + T(0.5) * high[c]);
            }
        }
    });
}

template <class T>
bool is_sum_nan(const T* values, int64_t count, int threads) {
    constexpr int has_nan = 1, has_highest = 2, has_lowest = 4;
    constexpr T highest = std::numeric_limits<T>::infinity();
    std::atomic<int> found{0};
    parallel_ranges(threads, count, values_per_task, [&](int64_t begin, int64_t end, int) {
        int some = 0;
        for (int64_t i = begin; i < end; ++i) {
            some |= (values[i] != values[i] ? has_nan : 0) | (values[i] == highest ? has_highest : 0) |
                    (values[i] == -highest ? has_lowest : 0);
        }
        found.fetch_or(some, std::memory_order_relaxed);
    });
    return (found & has_nan) != 0 || found == (has_highest | has_lowest);
}

template void divide_rows(float*, const float*, int64_t, int64_t, int);
template void divide_rows(double*, const double*, int64_t, int64_t, int);
template void add_to_rows(float*, const float*, int64_t, int64_t, int);
template void add_to_rows(double*, const double*, int64_t, int64_t, int);
template void coarsen_rows(const float*, const int32_t*, int64_t, int64_t, int64_t, float*, int);
template void coarsen_rows(const double*, const int32_t*, int64_t, int64_t, int64_t, double*, int);
template void refine_rows(const float*, const int32_t*, const float*, int64_t, int64_t, float*, int);
template void refine_rows(const double*, const int32_t*, const double*, int64_t, int64_t, double*, int);
template bool is_sum_nan(const float*, int64_t, int);
template bool is_sum_nan(const double*, int64_t, int);

}  // namespace permutohedral
