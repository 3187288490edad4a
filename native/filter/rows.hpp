// What is done to rows of values between the steps of a filter, in place; and a look at them.
#pragma once

#include <cstdint>

namespace permutohedral {

// Divides each row of [rows, channels] by its number, unless that is zero: such a row holds nothing.
template <class T>
void divide_rows(T* values, const T* divisors, int64_t rows, int64_t channels, int threads);

// Adds [channels] to each row.
template <class T>
void add_to_rows(T* values, const T* added, int64_t rows, int64_t channels, int threads);

// Whether the sum of all values is NaN: one of them is, or there are infinities of both signs.
template <class T>
bool is_sum_nan(const T* values, int64_t count, int threads);

}  // namespace permutohedral
