#include <cmath>
#include <vector>

#include "check.hpp"
#include "lattice_keys.hpp"

using namespace permutohedral;

namespace {

void test_digits_of_vertices() {
    // d = 2: item, c_0, (c_0 - c_1) / 3
    const int64_t vertex[] = {4, 7, 1}, no_vertex[] = {4, 7, 2};
    int64_t digits[3];
    CHECK(find_digits(3, DigitReduction{}, vertex, digits));
    CHECK(digits[0] == 4 && digits[1] == 7 && digits[2] == 2);
    CHECK(!find_digits(3, DigitReduction{}, no_vertex, digits));
}

void test_ranks_number_all_columns() {
    for (int64_t num_columns = 2; num_columns <= 9; ++num_columns) {
        int64_t sum = 0;
        for (int64_t i = 0; i < num_columns; ++i) sum += int64_t{1} << ranked_column(i, num_columns);
        CHECK(sum == (int64_t{1} << num_columns) - 1);
    }
}

// Points on a line, whose digits are multiples of each other: all but the first become constant.
void test_dependent_digits_collapse() {
    constexpr int64_t d = 3, count = 64;
    std::vector<double> sample(d * count);
    for (int64_t n = 0; n < count; ++n) {
        sample[n] = double(10 * n);
        sample[count + n] = double(20 * n);
        sample[2 * count + n] = double(-30 * n);
    }
    const DigitReduction reduction = choose_reduction(sample.data(), d, count);
    CHECK(reduction.factor[1][0] == -2);
    for (int64_t rank = 1; rank < d; ++rank) {
        for (int64_t n = 0; n < count; ++n) CHECK(sample[rank * count + n] == 0.0);
    }
    // comparisons with NaN are false, so that it ends
    for (double& value : sample) value = std::nan("");
    choose_reduction(sample.data(), d, count);
}

// A step moves each digit by at most `step`, and any set of different steps by at most `simplex`.
void test_reach_bounds_the_steps() {
    for (int64_t d = 1; d <= 6; ++d) {
        const DigitReduction reduction = some_reduction(d);
        const DigitReach reach = find_reach(d + 1, reduction);
        for (int64_t subset = 0; subset < int64_t{1} << (d + 1); ++subset) {
            int64_t key[max_columns] = {0}, digits[max_columns];
            for (int64_t axis = 0; axis <= d; ++axis) {
                if ((subset >> axis & 1) == 0) continue;
                for (int64_t i = 0; i < d; ++i) key[i + 1] += i == axis ? -d : 1;
            }
            CHECK(find_digits(d + 1, reduction, key, digits));
            const bool is_step = (subset & (subset - 1)) == 0;
            for (int64_t column = 1; column <= d; ++column) {
                CHECK(std::abs(digits[column]) <= reach.simplex[column]);
                if (is_step) CHECK(std::abs(digits[column]) <= reach.step[column]);
            }
        }
    }
}

}  // namespace

void test_digit_reduction() {
    test_digits_of_vertices();
    test_ranks_number_all_columns();
    test_dependent_digits_collapse();
    test_reach_bounds_the_steps();
}
