// The Gaussian between points by its definition: every target sums the sources near it. Compiled once per instruction
// set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "runtime/exponential.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// cells along one axis within reach to either side
constexpr int64_t cells_in_reach = 2;
constexpr int64_t most_cells_along_axis = 1024;
// sources whose weights are computed, and then used for all channels
constexpr int64_t sources_at_once = 128;
constexpr int targets_at_once = 4;
constexpr int64_t groups_per_task = 16;

struct PointAxis {
    int64_t axis = 0, num_cells = 1;
    double low = 0, side = 1;

    int64_t cell_of(double feature) const {
        const auto cell = int64_t((feature - low) / side);
        return std::min(std::max<int64_t>(cell, 0), num_cells - 1);
    }
};

// Square cells over the two axes along which the points extend farthest.
template <class T>
struct Cells {
    PointAxis outer, inner;

    Cells(const Points<T>& sources, double reach) {
        std::vector<double> low(sources.d, std::numeric_limits<double>::infinity()), high(sources.d, -low[0]);
        for (int64_t i = 0; i < sources.num_points; ++i) {
            for (int64_t axis = 0; axis < sources.d; ++axis) {
                const double feature = double(sources.features[i * sources.d + axis]);
                low[axis] = std::min(low[axis], feature);
                high[axis] = std::max(high[axis], feature);
            }
        }
        for (int64_t axis = 0; axis < sources.d; ++axis) high[axis] -= low[axis];
        const int64_t longest = std::max_element(high.begin(), high.end()) - high.begin();
        outer = along(longest, low[longest], high[longest], reach);
        high[longest] = -1;
        const int64_t next = std::max_element(high.begin(), high.end()) - high.begin();
        if (next != longest) inner = along(next, low[next], high[next], reach);
    }

    static PointAxis along(int64_t axis, double low, double extent, double reach) {
        PointAxis cells;
        cells.axis = axis;
        cells.low = low;
        cells.side = std::max(reach / cells_in_reach, extent / most_cells_along_axis);
        cells.num_cells = std::min(int64_t(extent / cells.side) + 1, most_cells_along_axis);
        return cells;
    }

    int64_t count() const { return outer.num_cells * inner.num_cells; }

    int64_t cell_of(const T* feature) const {
        return outer.cell_of(double(feature[outer.axis])) * inner.num_cells +
               inner.cell_of(double(feature[inner.axis]));
    }
};

// The points of each cell, one cell after another.
struct CellOrder {
    std::vector<int64_t> order;  // [num_points]
    std::vector<int64_t> begin;  // [num_cells + 1]: where each cell begins in `order`

    template <class T>
    CellOrder(const Points<T>& points, const Cells<T>& cells) : order(points.num_points),
                                                                begin(cells.count() + 1, 0) {
        std::vector<int64_t> cell(points.num_points);
        for (int64_t i = 0; i < points.num_points; ++i) {
            cell[i] = cells.cell_of(points.features + i * points.d);
            ++begin[cell[i] + 1];
        }
        for (size_t c = 1; c < begin.size(); ++c) begin[c] += begin[c - 1];
        std::vector<int64_t> next(begin.begin(), begin.end() - 1);
        for (int64_t i = 0; i < points.num_points; ++i) order[next[cell[i]]++] = i;
    }
};

// A matrix with its columns one after another, the rows in another order, and zeros after the last of them: vectors may
// reach beyond it.
template <class T>
struct Columns {
    Memory memory;
    // cached: a call to Memory::data would spill registers
    T* data;
    int64_t stride;

    Columns(const T* rows, int64_t num_columns, const std::vector<int64_t>& order, T factor, int threads)
        : memory(sizeof(T) * num_columns * (order.size() + lanes<T>)),
          data(as<T>(memory)),
          stride(int64_t(order.size()) + lanes<T>) {
        parallel_for(threads, num_columns, [&](int64_t column, int) {
            T* to = data + column * stride;
            for (size_t i = 0; i < order.size(); ++i) to[i] = factor * rows[order[i] * num_columns + column];
            std::fill(to + order.size(), to + stride, T(0));
        });
    }

    const T* at(int64_t column, int64_t row) const { return data + column * stride + row; }
};

template <class T>
struct NeighborSum {
    const Columns<T>&features, &values;
    int64_t d, num_channels;
    T largest_square;  // in the units of the exponent
};

// The weights of the sources of a range, at most `sources_at_once`, at some targets; zeros after them. D is the dimension
// if known at compile time, else 0.
template <class T, int D>
void compute_weights(const NeighborSum<T>& sum, Range range, const T (*targets)[targets_at_once],
                     T (*weights)[sources_at_once + lanes<T>]) {
    const Extent<D> d(sum.d);
    const int64_t count = range.end - range.begin;
    for (int64_t i = 0; i < count; i += lanes<T>) {
        Vector<T> squares[targets_at_once] = {}, powers[targets_at_once];
        for (int64_t axis = 0; axis < d; ++axis) {
            const Vector<T> feature = load<T, lanes<T>>(sum.features.at(axis, range.begin + i));
            for (int t = 0; t < targets_at_once; ++t) {
                const Vector<T> difference = feature - targets[axis][t];
                squares[t] += difference * difference;
            }
        }
        for (int t = 0; t < targets_at_once; ++t) powers[t] = -squares[t];
        exp2_in_place<T, targets_at_once>(powers);
        for (int t = 0; t < targets_at_once; ++t) {
            const auto near = squares[t] <= sum.largest_square;
            store<T, lanes<T>>(weights[t] + i, (Vector<T>)((IntegerVector<T>)powers[t] & (IntegerVector<T>)near));
        }
    }
    for (int t = 0; t < targets_at_once; ++t) std::fill_n(weights[t] + count, lanes<T>, T(0));
}

// Adds the sources of a range to the sums of some targets: one vector for each channel and target.
template <class T>
void add_sources(const NeighborSum<T>& sum, Range range, const T (*targets)[targets_at_once], Vector<T>* sums) {
    alignas(64) T weights[targets_at_once][sources_at_once + lanes<T>];
    dispatch<1, 2, 3, 4, 5, 6, 0>(
        sum.d, [&](auto dimension) { compute_weights<T, decltype(dimension)::value>(sum, range, targets, weights); });
    for (int64_t c = 0; c < sum.num_channels; ++c) {
        Vector<T> part[targets_at_once] = {};
        for (int64_t i = 0; i < range.end - range.begin; i += lanes<T>) {
            const Vector<T> value = load<T, lanes<T>>(sum.values.at(c, range.begin + i));
            for (int t = 0; t < targets_at_once; ++t) part[t] += load<T, lanes<T>>(weights[t] + i) * value;
        }
        for (int t = 0; t < targets_at_once; ++t) sums[c * targets_at_once + t] += part[t];
    }
}

// Targets of one cell, at most `targets_at_once`.
struct TargetGroup {
    int64_t cell;
    Range range;
};

std::vector<TargetGroup> group_targets(const CellOrder& order) {
    std::vector<TargetGroup> groups;
    for (int64_t cell = 0; cell + 1 < int64_t(order.begin.size()); ++cell) {
        const int64_t end = order.begin[cell + 1];
        for (int64_t begin = order.begin[cell]; begin < end; begin += targets_at_once) {
            groups.push_back({cell, {begin, std::min(begin + targets_at_once, end)}});
        }
    }
    return groups;
}

// Adds all sources within reach of a cell to the sums of targets in it.
template <class T>
void add_cells_around(const NeighborSum<T>& sum, const Cells<T>& cells, const CellOrder& sources, int64_t cell,
                      const T (*targets)[targets_at_once], Vector<T>* sums) {
    const int64_t outer = cell / cells.inner.num_cells, inner = cell % cells.inner.num_cells;
    const int64_t first_inner = std::max<int64_t>(inner - cells_in_reach, 0);
    const int64_t last_inner = std::min(inner + cells_in_reach, cells.inner.num_cells - 1);
    const int64_t last_outer = std::min(outer + cells_in_reach, cells.outer.num_cells - 1);
    for (int64_t other = std::max<int64_t>(outer - cells_in_reach, 0); other <= last_outer; ++other) {
        const int64_t row = other * cells.inner.num_cells, end = sources.begin[row + last_inner + 1];
        for (int64_t begin = sources.begin[row + first_inner]; begin < end; begin += sources_at_once) {
            add_sources(sum, {begin, std::min(begin + sources_at_once, end)}, targets, sums);
        }
    }
}

// Sums the values [sources.num_points, num_channels] around each target, weighted by the Gaussian of their distance.
template <class T>
void sum_neighbors(Matrix<const T> values, Points<T> sources, Points<T> targets, double reach, Matrix<T> out,
                   int threads) {
    const Cells<T> cells(sources, reach);
    const CellOrder source_order(sources, cells), target_order(targets, cells);
    // exp(-x^2 / 2) is two to the power of -(factor x)^2
    const double factor = std::sqrt(0.5 * log2_e);
    const Columns<T> features(sources.features, sources.d, source_order.order, T(factor), threads);
    const Columns<T> columns(values.data, values.num_channels, source_order.order, T(1), threads);
    const T largest_square = T(factor * reach * factor * reach);
    const NeighborSum<T> sum{features, columns, sources.d, values.num_channels, largest_square};
    const std::vector<TargetGroup> groups = group_targets(target_order);
    parallel_ranges(threads, int64_t(groups.size()), groups_per_task, [&](int64_t begin, int64_t end, int) {
        const Memory memory(sizeof(Vector<T>) * targets_at_once * sum.num_channels);
        const Memory positions(sizeof(T) * targets_at_once * sum.d);
        auto* sums = as<Vector<T>>(memory);
        auto* at = as<T[targets_at_once]>(positions);
        for (int64_t g = begin; g < end; ++g) {
            const Range range = groups[g].range;
            for (int t = 0; t < targets_at_once; ++t) {
                // beyond the last target, the last once more
                const int64_t target = target_order.order[std::min(range.begin + t, range.end - 1)];
                for (int64_t i = 0; i < sum.d; ++i) at[i][t] = T(factor) * targets.features[target * sum.d + i];
            }
            std::memset(memory.data(), 0, memory.size());
            add_cells_around(sum, cells, source_order, groups[g].cell, at, sums);
            for (int64_t t = 0; t < range.end - range.begin; ++t) {
                T* to = out.data + target_order.order[range.begin + t] * sum.num_channels;
                for (int64_t c = 0; c < sum.num_channels; ++c) {
                    to[c] = 0;
                    for (int lane = 0; lane < lanes<T>; ++lane) to[c] += sums[c * targets_at_once + t][lane];
                }
            }
        }
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
