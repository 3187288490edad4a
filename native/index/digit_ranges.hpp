// Which digits the keys of some points have, and their ranges, from the points y alone.
#pragma once

#include <algorithm>
#include <cmath>

#include "index/embedding.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t point_block = 8192;
// points by which the digits are chosen
constexpr int64_t sampled_digits = 512;

// The digits that y itself would have, by rank without the item, before they are reduced.
template <class T, int D>
inline void find_point_digits(const Vector<T>* y, int64_t d_dynamic, Vector<T>* digits) {
    const int64_t d = D > 0 ? D : d_dynamic;
    for (int64_t i = 1; i < d; ++i) digits[i - 1] = (y[0] - y[i]) * (T(1) / T(d + 1));
    digits[d - 1] = y[0];
}

// A reduction as numbers of T.
template <class T>
struct Factors {
    T factor[max_reduced][max_reduced];

    explicit Factors(const Reduction& reduction) {
        for (int64_t rank = 0; rank < max_reduced; ++rank) {
            for (int64_t other = 0; other < max_reduced; ++other) {
                factor[rank][other] = T(reduction.factor[rank][other]);
            }
        }
    }
};

// Points from all over, in no order: those of an image at equal distances would make a coordinate look like another.
template <class T, int D>
Reduction sample_reduction(const Points<T>& points) {
    const int64_t d = D > 0 ? D : points.d;
    if (d < 2 || d > max_reduced) return {};
    const Elevation<T> elevation = make_elevation<T>(d);
    double sample[max_reduced * sampled_digits];
    T rows[max_reduced * lanes<T>];
    Vector<T> features[room<D>], y[room<D> + 1], digits[room<D>];
    for (int64_t begin = 0; begin < sampled_digits; begin += lanes<T>) {
        for (int64_t l = 0; l < lanes<T>; ++l) {
            const int64_t point = int64_t(mix(uint64_t(begin + l)) % uint64_t(points.points));
            std::memcpy(rows + l * d, points.features + point * d, sizeof(T) * d);
        }
        load_points<T, D>(rows, d, lanes<T>, features);
        elevate<T, D>(features, d, elevation, y);
        find_point_digits<T, D>(y, d, digits);
        for (int64_t rank = 0; rank < d; ++rank) {
            for (int64_t l = 0; l < lanes<T>; ++l) sample[rank * sampled_digits + begin + l] = double(digits[rank][l]);
        }
    }
    return choose_reduction(sample, d, sampled_digits);
}

// Ranges of the digits of y, by rank.
template <class T, int D>
struct Measure {
    Vector<T> low[room<D>], high[room<D>];
    bool inside = true;
};

template <class T, int D>
void measure_block(const Points<T>& points, T limit, const Factors<T>& factors, Range range, Measure<T, D>& measure) {
    using V = Vector<T>;
    using I = WholeVector<T>;
    const int64_t d = D > 0 ? D : points.d;
    const Elevation<T> elevation = make_elevation<T>(d);
    V features[room<D>], y[room<D> + 1], digits[room<D>];
    I inside = I{} - 1;
    for (int64_t rank = 0; rank < d; ++rank) {
        measure.low[rank] = V{} + std::numeric_limits<T>::max();
        measure.high[rank] = V{} - std::numeric_limits<T>::max();
    }
    for (int64_t begin = range.begin; begin < range.end; begin += lanes<T>) {
        // the last block overlaps the one before it, unless there are too few points
        const int64_t first = std::max(std::min(begin, range.end - lanes<T>), int64_t{0});
        const int64_t count = std::min<int64_t>(lanes<T>, points.points - first);
        load_points<T, D>(points.features + first * d, d, count, features);
        elevate<T, D>(features, d, elevation, y);
        for (int64_t i = 0; i <= d; ++i) inside &= (I)(y[i] < limit) & (I)(y[i] > -limit);
        find_point_digits<T, D>(y, d, digits);
        for (int64_t rank = 0; rank < d; ++rank) {
            for (int64_t other = 0; other < rank && (D > 0 || d <= max_reduced); ++other) {
                digits[rank] += factors.factor[rank][other] * digits[other];
            }
            measure.low[rank] = digits[rank] < measure.low[rank] ? digits[rank] : measure.low[rank];
            measure.high[rank] = digits[rank] > measure.high[rank] ? digits[rank] : measure.high[rank];
        }
    }
    for (int l = 0; l < lanes<T>; ++l) measure.inside &= inside[l] != 0;
}

// What the keys of some points are made of.
struct Digits {
    DigitRange range;
    Reduction reduction;
    bool exact;  // the coordinates are known well enough that no vertex can lie outside of the range
};

// From the ranges of y by rank to those of the vertices. A vertex lies in the simplex of y, as exactly as y is known.
template <class T>
void add_slack(const T* low, const T* high, int64_t d, Digits& digits) {
    const DigitReach reach = find_reach(d + 1, digits.reduction);
    // bounds of the digits, of the last one unreduced, and how many times each is rounded like one that is not reduced
    double largest[max_dimension], weight[max_dimension], differences = 0;
    for (int64_t rank = 0; rank < d; ++rank) {
        largest[rank] = std::max(std::abs(double(low[rank])), std::abs(double(high[rank])));
        weight[rank] = 1;
        double own = largest[rank];
        for (int64_t other = 0; other < rank && d <= max_reduced; ++other) {
            const double factor = std::abs(double(digits.reduction.factor[rank][other]));
            own += factor * largest[other];
            weight[rank] += factor * weight[other];
        }
        if (rank < d - 1) {
            differences = std::max(differences, own);
        } else {
            largest[rank] = own;
        }
    }
    const double magnitude = double(d) * (largest[d - 1] + double(d + 1) * differences);
    const double rounding = 8 * double(std::numeric_limits<T>::epsilon()) * magnitude;
    digits.exact = true;
    for (int64_t rank = 0; rank < d; ++rank) {
        const int64_t column = ranked_column(rank + 1, d + 1);
        const bool exact = rounding * weight[rank] < 0.25;
        // beyond the precision of T the simplex is found to about a step in each coordinate
        const double slack = double(reach.simplex[column]) + (exact ? 0.25 : 5 * weight[rank] + double(d));
        digits.exact &= exact;
        digits.range.low[column] = int64_t(std::ceil(double(low[rank]) - slack));
        digits.range.high[column] = int64_t(std::floor(double(high[rank]) + slack));
    }
}

// False if a point is out of range. Fewer points than lanes are padded with zero, which only widens the ranges.
template <class T, int D>
bool measure_points(const Points<T>& points, T limit, int threads, Digits& digits) {
    const int64_t d = D > 0 ? D : points.d, blocks = divide_up(points.points, point_block);
    digits.reduction = sample_reduction<T, D>(points);
    const Factors<T> factors(digits.reduction);
    const Memory memory(sizeof(T) * 2 * d * blocks);
    T* low = as<T>(memory);
    T* high = low + d * blocks;
    // one flag per block, so that no two threads write the same one
    const Memory flags(blocks);
    parallel_for(threads, blocks, [&](int64_t b, int) {
        Measure<T, D> measure;
        const Range range{b * point_block, std::min((b + 1) * point_block, points.points)};
        measure_block<T, D>(points, limit, factors, range, measure);
        as<uint8_t>(flags)[b] = measure.inside;
        for (int64_t i = 0; i < d; ++i) {
            T least = measure.low[i][0], most = measure.high[i][0];
            for (int l = 1; l < lanes<T>; ++l) {
                least = std::min(least, T(measure.low[i][l]));
                most = std::max(most, T(measure.high[i][l]));
            }
            low[b * d + i] = least;
            high[b * d + i] = most;
        }
    });
    for (int64_t b = 0; b < blocks; ++b) {
        if (as<uint8_t>(flags)[b] == 0) return false;
        for (int64_t i = 0; i < d; ++i) {
            low[i] = std::min(low[i], low[b * d + i]);
            high[i] = std::max(high[i], high[b * d + i]);
        }
    }
    add_slack(low, high, d, digits);
    return true;
}

void measure_batch(const int32_t* batch, int64_t points, DigitRange& range) {
    range.low[0] = range.high[0] = 0;
    if (batch == nullptr) return;
    int32_t low = batch[0], high = batch[0];
    for (int64_t i = 0; i < points; ++i) {
        low = std::min(low, batch[i]);
        high = std::max(high, batch[i]);
    }
    range.low[0] = low;
    range.high[0] = high;
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
