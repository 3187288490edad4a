#include "filter/rows.hpp"

#include "runtime/threads.hpp"

namespace permutohedral {

constexpr int64_t rows_per_task = 2048;

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

template void divide_rows(float*, const float*, int64_t, int64_t, int);
template void divide_rows(double*, const double*, int64_t, int64_t, int);
template void add_to_rows(float*, const float*, int64_t, int64_t, int);
template void add_to_rows(double*, const double*, int64_t, int64_t, int);

}  // namespace permutohedral
