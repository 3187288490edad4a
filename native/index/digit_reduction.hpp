// The digits of a key, and how they are made smaller.
//
// The digits of the lattice form (packing.hpp) are, the most significant first, the item, (c_0 - c_i) / (d+1) for
// i = 1 .. d-1, and c_0. With features on axes of their own, and with features that depend on each other such as
// colors, they range over far more values than there are lattice points. Digits to which whole multiples of more
// significant ones are added number the same points, by fewer values.
#pragma once

#include <cstdint>

namespace permutohedral {

constexpr int max_dimension = 256;
constexpr int max_columns = max_dimension + 1;
// digits beyond are left as they are
constexpr int max_reduced = 8;

struct DigitRange {
    int64_t low[max_columns];
    int64_t high[max_columns];
};

// How often the digit of rank r, in the order above and without the item, takes the digit of rank q < r.
struct Reduction {
    int64_t factor[max_reduced][max_reduced];
};

// The column of the i-th most significant digit.
static inline int64_t ranked_column(int64_t i, int64_t columns) {
    if (i == 0) return 0;
    return i == columns - 1 ? 1 : i + 1;
}

// The factors for which a sample of points, by rank [d, count] and changed here, needs the smallest ranges.
Reduction choose_reduction(double* sample, int64_t d, int64_t count);

// The digits of a row of `columns` coordinates; false if it is no vertex of the lattice. In the plain form nothing is
// reduced.
bool find_digits(int64_t columns, bool lattice, const Reduction& reduction, const int64_t* row, int64_t* digits);

// Bounds on how digits differ.
struct DigitReach {
    int64_t step[max_columns];     // between a vertex and the next along an axis
    int64_t simplex[max_columns];  // between the points of a simplex
};

DigitReach find_reach(int64_t columns, const Reduction& reduction);

}  // namespace permutohedral
