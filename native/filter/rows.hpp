// What is done to rows of values between the steps of a filter, in place; from level to level; and a look at them.
#pragma once

#include <cstdint>

namespace permutohedral {

// Divides each row of [rows, channels] by its number, unless that is zero: such a row holds nothing.
template <class T>
void divide_rows(T* values, const T* divisors, int64_t rows, int64_t channels, int threads);

// Adds [channels] to each row.
template <class T>
void add_to_rows(T* values, const T* added, int64_t rows, int64_t channels, int threads);

// From one level of a pyramid to the next: rows of [fine, channels] and [coarse, channels], and the coarse rows that are
// the parents [fine, 2] of each fine one. Half of each fine row is added to both of its parents.
template <class T>
void coarsen_rows(const T* values, const int32_t* parents, int64_t fine, int64_t coarse, int64_t channels, T* out,
                  int threads);

// The transpose: each fine row is the mean of its parents, and what is `added [fine, channels]` to it, if not null.
template <class T>
void refine_rows(const T* values, const int32_t* parents, const T* added, int64_t fine, int64_t channels, T* out,
                 int threads);

// Whether the sum of all values is NaN: one of them is, or there are infinities of both signs.
template <class T>
bool is_sum_nan(const T* values, int64_t count, int threads);

}  // namespace permutohedral
