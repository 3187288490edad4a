// The ranges of the digits of all keys that some points touch, from the embedded points y alone: no key is computed.
#pragma once

#include <algorithm>
#include <cmath>

#include "index/embedding.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t points_per_task = 8192;
// points by which the reduction is chosen, and how often, where there are enough that this takes no time
constexpr int64_t reduction_sample = 512, max_samples = 3, least_resampled = 1 << 17;

// The digits of y itself, as if it were a vertex: real numbers, by rank, not reduced.
template <class T, int D>
inline void find_point_digits(const Vector<T>* y, Extent<D> d, Vector<T>* digits) {
    for (int64_t i = 1; i < d; ++i) digits[i - 1] = (y[0] - y[i]) * (T(1) / T(d + 1));
    digits[d - 1] = y[0];
}

// The factors of a reduction as numbers of T.
template <class T>
struct ReductionFactors {
    T factor[max_reduced][max_reduced];

    explicit ReductionFactors(const DigitReduction& reduction) {
        for (int64_t rank = 0; rank < max_reduced; ++rank) {
            for (int64_t other = 0; other < max_reduced; ++other) {
                factor[rank][other] = T(reduction.factor[rank][other]);
            }
        }
    }
};

// The digits of a random sample of the points, [d, reduction_sample] by rank: sampled at equal distances, the pixels of
// an image could make one coordinate look like another.
template <class T, int D>
void sample_digits(const Points<T>& points, int64_t first, double* sample) {
    const Extent<D> d(points.d);
    const Elevation<T> elevation = make_elevation<T>(d);
    T rows[max_reduced * lanes<T>];
    Vector<T> features[capacity<D>], y[capacity<D> + 1], digits[capacity<D>];
    for (int64_t begin = 0; begin < reduction_sample; begin += lanes<T>) {
        for (int64_t l = 0; l < lanes<T>; ++l) {
            const int64_t point = int64_t(mix(uint64_t(first + begin + l)) % uint64_t(points.num_points));
            std::memcpy(rows + l * d, points.features + point * d, sizeof(T) * d);
        }
        load_points<T, D>(rows, d, lanes<T>, features);
        elevate<T, D>(features, d, elevation, y);
        find_point_digits<T, D>(y, d, digits);
        for (int64_t rank = 0; rank < d; ++rank) {
            for (int64_t l = 0; l < lanes<T>; ++l)
                sample[rank * reduction_sample + begin + l] = double(digits[rank][l]);
        }
    }
}

// The cells of the box around the vertices of some points, whose reduced digits are given by rank.
inline double count_cells(const double* digits, int64_t d, int64_t count, const DigitReduction& reduction) {
    const DigitReach reach = find_reach(d + 1, reduction);
    double cells = 1;
    for (int64_t rank = 0; rank < d; ++rank) {
        const auto [low, high] = std::minmax_element(digits + rank * count, digits + (rank + 1) * count);
        cells *= *high - *low + 2 * double(reach.simplex[ranked_column(rank + 1, d + 1)]) + 1;
    }
    return cells;
}

// The best of the reductions for some samples: greedy steps now and then end at a box several times as large as others.
template <class T, int D>
DigitReduction sample_reduction(const Points<T>& points) {
    const int64_t d = points.d;
    if (d < 2 || d > max_reduced) return {};
    double sample[max_reduced * reduction_sample], fewest = std::numeric_limits<double>::infinity();
    DigitReduction best{};
    const int64_t num_samples = points.num_points < least_resampled ? 1 : max_samples;
    for (int64_t s = 0; s < num_samples; ++s) {
        sample_digits<T, D>(points, s * reduction_sample, sample);
        const DigitReduction reduction = choose_reduction(sample, d, reduction_sample);
        const double cells = count_cells(sample, d, reduction_sample, reduction);
        if (!(cells < fewest) && s > 0) continue;
        fewest = cells;
        best = reduction;
    }
    return best;
}

// Ranges of the digits of the points in each lane, by rank, and the largest coordinate |y_0| .. |y_d|.
template <class T, int D>
struct LaneRanges {
    Vector<T> low[capacity<D>], high[capacity<D>], largest = {};
    bool inside = true;
};

template <class T, int D>
void find_lane_ranges(const Points<T>& points, T limit, const ReductionFactors<T>& factors, Range range,
                      LaneRanges<T, D>& ranges) {
    using V = Vector<T>;
    using I = IntegerVector<T>;
    const Extent<D> d(points.d);
    const Elevation<T> elevation = make_elevation<T>(d);
    V features[capacity<D>], y[capacity<D> + 1], digits[capacity<D>];
    I inside = I{} - 1;
    for (int64_t rank = 0; rank < d; ++rank) {
        ranges.low[rank] = V{} + std::numeric_limits<T>::max();
        ranges.high[rank] = V{} - std::numeric_limits<T>::max();
    }
    for (int64_t begin = range.begin; begin < range.end; begin += lanes<T>) {
        // the last vector overlaps the one before it, unless there are too few points
        const int64_t first = std::max(std::min(begin, range.end - lanes<T>), int64_t{0});
        const int64_t count = std::min<int64_t>(lanes<T>, points.num_points - first);
        load_points<T, D>(points.features + first * d, d, count, features);
        elevate<T, D>(features, d, elevation, y);
        for (int64_t i = 0; i <= d; ++i) {
            inside &= (I)(y[i] < limit) & (I)(y[i] > -limit);
            const V magnitude = y[i] < 0 ? -y[i] : y[i];
            ranges.largest = magnitude > ranges.largest ? magnitude : ranges.largest;
        }
        find_point_digits<T, D>(y, d, digits);
        for (int64_t rank = 0; rank < d; ++rank) {
            for (int64_t other = 0; other < rank && (D > 0 || d <= max_reduced); ++other) {
                digits[rank] += factors.factor[rank][other] * digits[other];
            }
            ranges.low[rank] = digits[rank] < ranges.low[rank] ? digits[rank] : ranges.low[rank];
            ranges.high[rank] = digits[rank] > ranges.high[rank] ? digits[rank] : ranges.high[rank];
        }
    }
    for (int l = 0; l < lanes<T>; ++l) ranges.inside &= inside[l] != 0;
}

// What the keys of some points are packed by.
struct KeyDigits {
    DigitRange range;
    DigitReduction reduction;
    bool exact;  // proven: no vertex lies outside of the range; see widen_to_vertices
};

// Rounding of the digits of a point, to first order in eps = 2u. Let Y bound |y_0| .. |y_{d-1}|, s_j the j-th scaled
// feature, and S_j the sum of those after it, so that y_0 = S_0 and y_j = S_j - j s_j. S_j = (j S_{j-1} + y_j) / (j+1)
// is a mean, so |S_j| <= Y and j |s_j| <= 2 Y for j < d, and |s_d| = |S_{d-1}| <= Y.
//   - S_j is a sum of at most d terms, each rounded by u |s_j|, and each addition by u Y: error at most 3 d u Y;
//   - y_j adds the product and the difference, 5 u Y: at most (3 d + 5) u Y <= 8 d u Y = 4 eps d Y;
//   - a digit is y_0, or the difference of two coordinates over d+1 >= 2, rounded again: at most 6 eps d Y.
// A reduced digit is a sum of others: `weight` counts how many unreduced digits, with their errors, it is made of.
constexpr double rounding_errors = 8;  // in eps d Y, with what the sums of a reduced digit add
// Below this error of the digits that are not reduced, the simplex that is found contains the point but for that error:
// all vertices lie within the reach of a simplex, and the error of the reduced digit, around the ranges of the points.
constexpr double exact_slack = 0.25;
// Otherwise a coordinate may be a step or more off. This slack is not proven, and need not be: the ranges are then used
// for packed keys only, whose margins are wider (key_packing.cpp), not for a grid of cells.
constexpr double steps_off = 5;

// By rank: the sum of absolute factors of unreduced digits in a reduced one, which scales the rounding error.
static void weigh_digits(int64_t d, const DigitReduction& reduction, double* weight) {
    for (int64_t rank = 0; rank < d; ++rank) {
        weight[rank] = 1;
        for (int64_t other = 0; other < rank && d <= max_reduced; ++other) {
            weight[rank] += std::abs(double(reduction.factor[rank][other])) * weight[other];
        }
    }
}

// From the ranges of the points, by rank, and Y, to the ranges of the vertices of their simplices.
template <class T>
void widen_to_vertices(const T* low, const T* high, double largest, int64_t d, KeyDigits& digits) {
    const DigitReach reach = find_reach(d + 1, digits.reduction);
    double weight[max_dimension];
    weigh_digits(d, digits.reduction, weight);
    const double rounding = rounding_errors * double(std::numeric_limits<T>::epsilon()) * double(d) * largest;
    digits.exact = rounding < exact_slack;
    for (int64_t rank = 0; rank < d; ++rank) {
        const int64_t column = ranked_column(rank + 1, d + 1);
        const double proven = std::max(rounding * weight[rank], exact_slack);
        const double slack = digits.exact ? proven : steps_off * weight[rank] + double(d);
        const double reached = double(reach.simplex[column]) + slack;
        digits.range.low[column] = int64_t(std::ceil(double(low[rank]) - reached));
        digits.range.high[column] = int64_t(std::floor(double(high[rank]) + reached));
    }
}

// False if a coordinate does not fit below `limit`. Fewer points than lanes are padded with zeros, which only widens
// the ranges.
template <class T, int D>
bool find_digit_ranges(const Points<T>& points, T limit, int threads, KeyDigits& digits) {
    const Extent<D> d(points.d);
    const int64_t blocks = divide_up(points.num_points, points_per_task);
    digits.reduction = sample_reduction<T, D>(points);
    const ReductionFactors<T> factors(digits.reduction);
    const Memory memory(sizeof(T) * (2 * d + 1) * blocks);
    T* low = as<T>(memory);
    T* high = low + d * blocks;
    T* largest = high + d * blocks;
    // one flag per block: no two threads write to the same one
    const Memory flags(blocks);
    parallel_for(threads, blocks, [&](int64_t b, int) {
        LaneRanges<T, D> ranges;
        const Range range{b * points_per_task, std::min((b + 1) * points_per_task, points.num_points)};
        find_lane_ranges<T, D>(points, limit, factors, range, ranges);
        as<uint8_t>(flags)[b] = ranges.inside;
        largest[b] = 0;
        for (int l = 0; l < lanes<T>; ++l) largest[b] = std::max(largest[b], T(ranges.largest[l]));
        for (int64_t i = 0; i < d; ++i) {
            T least = ranges.low[i][0], most = ranges.high[i][0];
            for (int l = 1; l < lanes<T>; ++l) {
                least = std::min(least, T(ranges.low[i][l]));
                most = std::max(most, T(ranges.high[i][l]));
            }
            low[b * d + i] = least;
            high[b * d + i] = most;
        }
    });
    for (int64_t b = 0; b < blocks; ++b) {
        if (as<uint8_t>(flags)[b] == 0) return false;
        largest[0] = std::max(largest[0], largest[b]);
        for (int64_t i = 0; i < d; ++i) {
            low[i] = std::min(low[i], low[b * d + i]);
            high[i] = std::max(high[i], high[b * d + i]);
        }
    }
    widen_to_vertices(low, high, double(largest[0]), d, digits);
    return true;
}

void find_item_range(const int32_t* batch, int64_t num_points, DigitRange& range) {
    range.low[0] = range.high[0] = 0;
    if (batch == nullptr) return;
    int32_t low = batch[0], high = batch[0];
    for (int64_t i = 0; i < num_points; ++i) {
        low = std::min(low, batch[i]);
        high = std::max(high, batch[i]);
    }
    range.low[0] = low;
    range.high[0] = high;
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
