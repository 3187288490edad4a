#include "filter/rows.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "runtime/threads.hpp"

namespace permutohedral {

constexpr int64_t rows_per_task = 2048, values_per_task = 1 << 16;

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
template bool is_sum_nan(const float*, int64_t, int);
template bool is_sum_nan(const double*, int64_t, int);

}  // namespace permutohedral
