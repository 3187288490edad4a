// What a learned filter does to rows of values between its steps, in place.
#pragma once

#include <cstdint>

namespace permutohedral {

// Divides each row of [rows, channels] by its number, unless that is zero: such a row holds nothing.
template <class T>
void divide_rows(T* values, const T* divisors, int64_t rows, int64_t channels, int threads);

// Adds [channels] to each row.
template <class T>
void add_to_rows(T* values, const T* added, int64_t rows, int64_t channels, int threads);

}  // namespace permutohedral
