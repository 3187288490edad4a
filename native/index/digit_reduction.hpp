// The digits of a key, and a change of basis that makes their ranges smaller.
//
// The digits (key_packing.hpp) are, the most significant first, the item, (c_0 - c_i) / (d+1) for
// i = 1 .. d-1, and c_0. The box of their ranges usually has far more cells than there are lattice points: the axes of
// the features are oblique to the digits, and features such as colors are correlated. Adding integer multiples of more
// significant digits to a digit is invertible, so the keys stay distinct, and can shrink the box a lot. It is the size
// reduction step of lattice basis reduction.
//
// The kernels of GPUs have other digits (ops/triton/build/hash_table.py): the corner j and the quotients q_i of the
// coordinates (d+1) q_i + j. Both are one to one with keys; here differences make small ranges, there quotients are
// found without a second pass over the points.
#pragma once

#include <cstdint>

namespace permutohedral {

constexpr int max_dimension = 256;
constexpr int max_columns = max_dimension + 1;
// in more dimensions the digits are left as they are
constexpr int max_reduced = 8;

// The lowest and highest digit of each column.
struct DigitRange {
    int64_t low[max_columns];
    int64_t high[max_columns];
};

// The rank of a digit is its place in the order above, without the item. Column and rank: see ranked_column.
// factor[r][q] times the digit of rank q < r is added to that of rank r.
struct DigitReduction {
    int64_t factor[max_reduced][max_reduced];
};

// The column of a key that holds the i-th most significant digit, counting the item.
static inline int64_t ranked_column(int64_t i, int64_t num_columns) {
    if (i == 0) return 0;
    return i == num_columns - 1 ? 1 : i + 1;
}

// Factors that make the ranges of a sample of digits small, by greedy steps. `sample [d, count]`, by rank, is changed
// to the reduced digits.
DigitReduction choose_reduction(double* sample, int64_t d, int64_t count);

// Writes the digits of `key [num_columns]`, by column; returns false if it is no vertex of the lattice.
bool find_digits(int64_t num_columns, const DigitReduction& reduction, const int64_t* key, int64_t* digits);

// By column, the largest difference of a digit
struct DigitReach {
    int64_t step[max_columns];     // between a vertex and the next one along an axis
    int64_t simplex[max_columns];  // between any two points of a simplex
};

DigitReach find_reach(int64_t num_columns, const DigitReduction& reduction);

}  // namespace permutohedral
