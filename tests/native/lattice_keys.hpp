// Keys of random vertices of the lattice, and the digits they take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "index/digit_reduction.hpp"

// Rows of 1 + d columns: item, and d coordinates that are congruent modulo d+1.
inline std::vector<std::vector<int64_t>> random_keys(int64_t d, int64_t count, int64_t spread) {
    std::mt19937_64 random(uint64_t(1000 * d + count));
    std::vector<std::vector<int64_t>> keys;
    for (int64_t n = 0; n < count; ++n) {
        std::vector<int64_t> key(d + 1);
        key[0] = int64_t(random() % 3);
        const int64_t remainder = int64_t(random() % uint64_t(d + 1));
        for (int64_t i = 1; i <= d; ++i) {
            key[i] = (int64_t(random() % uint64_t(2 * spread + 1)) - spread) * (d + 1) + remainder;
        }
        keys.push_back(key);
    }
    return keys;
}

inline permutohedral::DigitRange range_of(const std::vector<std::vector<int64_t>>& keys,
                                          const permutohedral::DigitReduction& reduction) {
    const int64_t num_columns = int64_t(keys[0].size());
    permutohedral::DigitRange range{};
    for (size_t n = 0; n < keys.size(); ++n) {
        int64_t digits[permutohedral::max_columns];
        permutohedral::find_digits(num_columns, reduction, keys[n].data(), digits);
        for (int64_t column = 0; column < num_columns; ++column) {
            range.low[column] = n == 0 ? digits[column] : std::min(range.low[column], digits[column]);
            range.high[column] = n == 0 ? digits[column] : std::max(range.high[column], digits[column]);
        }
    }
    return range;
}

// A unimodular change of digits like those that choose_reduction finds.
inline permutohedral::DigitReduction some_reduction(int64_t d) {
    permutohedral::DigitReduction reduction{};
    for (int64_t rank = 1; rank < d && d <= permutohedral::max_reduced; ++rank) {
        for (int64_t other = 0; other < rank; ++other) reduction.factor[rank][other] = (rank + 2 * other) % 3 - 1;
    }
    return reduction;
}
