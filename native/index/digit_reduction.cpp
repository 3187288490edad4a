#include "index/digit_reduction.hpp"

#include <algorithm>
#include <cstdlib>

namespace permutohedral {
namespace {

// what a step must gain: else digits are added up in vain
constexpr double least_gain = 1e-3;

// One digit: of some points, and of the steps along the axes.
struct SampledDigit {
    double* points;
    int64_t count;
    double steps[max_reduced + 1];
};

// How many values the vertices around the points take in `digit + factor * added`.
double count_values(const SampledDigit& digit, const SampledDigit& added, double factor, int64_t d) {
    double low = digit.points[0] + factor * added.points[0], high = low, simplex = 0;
    for (int64_t i = 1; i < digit.count; ++i) {
        const double value = digit.points[i] + factor * added.points[i];
        low = std::min(low, value);
        high = std::max(high, value);
    }
    for (int64_t axis = 0; axis <= d; ++axis) simplex += std::max(digit.steps[axis] + factor * added.steps[axis], 0.0);
    return high - low + 2 * simplex;
}

void add_digit(SampledDigit& digit, const SampledDigit& added, double factor, int64_t d) {
    for (int64_t i = 0; i < digit.count; ++i) digit.points[i] += factor * added.points[i];
    for (int64_t axis = 0; axis <= d; ++axis) digit.steps[axis] += factor * added.steps[axis];
}

// The step 1 - (d+1) e_axis as a row.
void make_step(int64_t d, int64_t axis, int64_t* row) {
    row[0] = 0;
    for (int64_t i = 0; i < d; ++i) row[i + 1] = i == axis ? -d : 1;
}

}  // namespace

Reduction choose_reduction(double* sample, int64_t d, int64_t count) {
    Reduction reduction{};
    SampledDigit digits[max_reduced];
    for (int64_t rank = 0; rank < d; ++rank) digits[rank] = {sample + rank * count, count, {}};
    int64_t row[max_reduced + 1], of_step[max_reduced + 1];
    for (int64_t axis = 0; axis <= d; ++axis) {
        make_step(d, axis, row);
        find_digits(d + 1, true, reduction, row, of_step);
        for (int64_t rank = 0; rank < d; ++rank) {
            digits[rank].steps[axis] = double(of_step[ranked_column(rank + 1, d + 1)]);
        }
    }
    for (int64_t rank = 1; rank < d; ++rank) {
        double values = count_values(digits[rank], digits[rank], 0, d);
        // every round but the last gains; of points that are not numbers none does
        for (bool changed = true; changed;) {
            changed = false;
            for (int64_t i = 0; i < 2 * rank; ++i) {
                const int64_t other = rank - 1 - i / 2, step = i % 2 == 0 ? 1 : -1;
                const double fewer = count_values(digits[rank], digits[other], double(step), d);
                if (!(fewer < (1 - least_gain) * values)) continue;
                add_digit(digits[rank], digits[other], double(step), d);
                reduction.factor[rank][other] += step;
                values = fewer;
                changed = true;
            }
        }
    }
    return reduction;
}

bool find_digits(int64_t columns, bool lattice, const Reduction& reduction, const int64_t* row, int64_t* digits) {
    for (int64_t column = 0; column < columns; ++column) {
        digits[column] = row[column];
        if (!lattice || column < 2) continue;
        const int64_t difference = row[1] - row[column];
        digits[column] = difference / columns;
        if (digits[column] * columns != difference) return false;
    }
    const int64_t d = columns - 1;
    if (!lattice || d > max_reduced) return true;
    for (int64_t rank = 1; rank < d; ++rank) {
        int64_t& digit = digits[ranked_column(rank + 1, columns)];
        for (int64_t other = 0; other < rank; ++other) {
            digit += reduction.factor[rank][other] * digits[ranked_column(other + 1, columns)];
        }
    }
    return true;
}

DigitReach find_reach(int64_t columns, const Reduction& reduction) {
    const int64_t d = columns - 1;
    DigitReach reach{};
    int64_t row[max_columns], digits[max_columns];
    // the steps along the axes; they add up to zero, and two corners of a simplex differ by some of them
    for (int64_t axis = 0; axis <= d; ++axis) {
        make_step(d, axis, row);
        find_digits(columns, true, reduction, row, digits);
        for (int64_t column = 1; column < columns; ++column) {
            reach.step[column] = std::max(reach.step[column], std::abs(digits[column]));
            reach.simplex[column] += std::max<int64_t>(digits[column], 0);
        }
    }
    return reach;
}

}  // namespace permutohedral
