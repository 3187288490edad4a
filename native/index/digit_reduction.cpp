#include "index/digit_reduction.hpp"

#include <algorithm>
#include <cstdlib>

namespace permutohedral {
namespace {

// the share by which a step must shrink a range to be taken
constexpr double least_gain = 1e-3;

// One digit, of the sampled points and of the steps along the axes.
struct SampledDigit {
    double* of_points;  // [count]
    int64_t count;
    double of_steps[max_reduced + 1];
};

// How many values `digit + factor * added` takes at the vertices around the points.
double count_values(const SampledDigit& digit, const SampledDigit& added, double factor, int64_t d) {
    double low = digit.of_points[0] + factor * added.of_points[0], high = low, simplex = 0;
    for (int64_t i = 1; i < digit.count; ++i) {
        const double value = digit.of_points[i] + factor * added.of_points[i];
        low = std::min(low, value);
        high = std::max(high, value);
    }
    for (int64_t axis = 0; axis <= d; ++axis)
        simplex += std::max(digit.of_steps[axis] + factor * added.of_steps[axis], 0.0);
    return high - low + 2 * simplex;
}

void add_digit(SampledDigit& digit, const SampledDigit& added, double factor, int64_t d) {
    for (int64_t i = 0; i < digit.count; ++i) digit.of_points[i] += factor * added.of_points[i];
    for (int64_t axis = 0; axis <= d; ++axis) digit.of_steps[axis] += factor * added.of_steps[axis];
}

// The step 1 - (d+1) e_axis from a vertex to the next, as the difference of their keys.
void make_step(int64_t d, int64_t axis, int64_t* key) {
    key[0] = 0;
    for (int64_t i = 0; i < d; ++i) key[i + 1] = i == axis ? -d : 1;
}

}  // namespace

DigitReduction choose_reduction(double* sample, int64_t d, int64_t count) {
    DigitReduction reduction{};
    SampledDigit digits[max_reduced];
    for (int64_t rank = 0; rank < d; ++rank) digits[rank] = {sample + rank * count, count, {}};
    int64_t key[max_reduced + 1], of_step[max_reduced + 1];
    for (int64_t axis = 0; axis <= d; ++axis) {
        make_step(d, axis, key);
        find_digits(d + 1, reduction, key, of_step);
        for (int64_t rank = 0; rank < d; ++rank) {
            digits[rank].of_steps[axis] = double(of_step[ranked_column(rank + 1, d + 1)]);
        }
    }
    for (int64_t rank = 1; rank < d; ++rank) {
        double values = count_values(digits[rank], digits[rank], 0, d);
        // ends, since every round but the last shrinks the range; comparisons with NaN are false
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

bool find_digits(int64_t num_columns, const DigitReduction& reduction, const int64_t* key, int64_t* digits) {
    for (int64_t column = 0; column < num_columns; ++column) {
        digits[column] = key[column];
        if (column < 2) continue;
        const int64_t difference = key[1] - key[column];
        digits[column] = difference / num_columns;
        if (digits[column] * num_columns != difference) return false;
    }
    const int64_t d = num_columns - 1;
    if (d > max_reduced) return true;
    for (int64_t rank = 1; rank < d; ++rank) {
        int64_t& digit = digits[ranked_column(rank + 1, num_columns)];
        for (int64_t other = 0; other < rank; ++other) {
            digit += reduction.factor[rank][other] * digits[ranked_column(other + 1, num_columns)];
        }
    }
    return true;
}

DigitReach find_reach(int64_t num_columns, const DigitReduction& reduction) {
    const int64_t d = num_columns - 1;
    DigitReach reach{};
    int64_t key[max_columns], digits[max_columns];
    // two corners of a simplex differ by a sum of some of the d+1 steps, each taken once; all of them add up to zero
    for (int64_t axis = 0; axis <= d; ++axis) {
        make_step(d, axis, key);
        find_digits(num_columns, reduction, key, digits);
        for (int64_t column = 1; column < num_columns; ++column) {
            reach.step[column] = std::max(reach.step[column], std::abs(digits[column]));
            reach.simplex[column] += std::max<int64_t>(digits[column], 0);
        }
    }
    return reach;
}

}  // namespace permutohedral
