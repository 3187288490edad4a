// Which nodes of a grid over colors are needed at each place of a picture: of every row of nodes a range.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "filter/cell_axis.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// channels that are summed at once
constexpr int num_channels = 4;
// nodes along each axis of colors that a pixel touches
constexpr int color_taps = 3;
// ranges begin and end at multiples of this, so that vectors of so many nodes fit
constexpr int nodes_at_once = 2;

// The ranges of all rows at one place; one that is empty begins at the greatest number and ends at the least.
struct RowRanges {
    int16_t *begin, *end;
    int64_t rows;

    void clear() const {
        std::fill(begin, begin + rows, std::numeric_limits<int16_t>::max());
        std::fill(end, end + rows, std::numeric_limits<int16_t>::min());
    }

    void add(int64_t row, int16_t node) const {
        begin[row] = std::min(begin[row], node);
        end[row] = std::max(end[row], int16_t(node + 1));
    }

    // Joins other ranges, each that of the row so many rows before.
    void unite(const RowRanges& other, int64_t shift = 0) const {
        const int64_t first = std::max<int64_t>(shift, 0), last = std::min(rows + shift, rows);
        for (int64_t r = first; r < last; ++r) begin[r] = std::min(begin[r], other.begin[r - shift]);
        for (int64_t r = first; r < last; ++r) end[r] = std::max(end[r], other.end[r - shift]);
    }

    void intersect(const RowRanges& other) const {
        for (int64_t r = 0; r < rows; ++r) {
            const int16_t from = std::max(begin[r], other.begin[r]), to = std::min(end[r], other.end[r]);
            begin[r] = from < to ? from : std::numeric_limits<int16_t>::max();
            end[r] = from < to ? to : std::numeric_limits<int16_t>::min();
        }
    }

    // Makes ranges that are not empty longer at both ends.
    void widen(int16_t before, int16_t after) const {
        for (int64_t r = 0; r < rows; ++r) {
            const bool empty = begin[r] >= end[r];
            begin[r] = int16_t(empty ? begin[r] : begin[r] - before);
            end[r] = int16_t(empty ? end[r] : end[r] + after);
        }
    }
};

// Ranges at every place.
class ColorRanges {
public:
    ColorRanges(int64_t places, int64_t rows) : rows_(rows), memory_(sizeof(int16_t) * 2 * places * rows) {}

    RowRanges at(int64_t place) const {
        int16_t* begin = as<int16_t>(memory_) + 2 * place * rows_;
        return {begin, begin + rows_, rows_};
    }

private:
    int64_t rows_;
    Memory memory_;
};

// A row of nodes that is stored: node k begins at `first + k num_channels`.
struct StoredRow {
    int32_t first;
    int16_t begin, end;

    bool is_empty() const { return begin >= end; }
};

// Numbers the nodes of one place from zero on; how many they are, which may be more than numbers of 32 bits reach: then
// they must not be used.
int64_t number_nodes(const RowRanges& ranges, StoredRow* rows) {
    constexpr int rest = nodes_at_once - 1;
    int64_t count = 0;
    for (int64_t row = 0; row < ranges.rows; ++row) {
        rows[row] = {0, 0, 0};
        if (ranges.begin[row] >= ranges.end[row]) continue;
        const int begin = ranges.begin[row] & ~rest, end = (ranges.end[row] + rest) & ~rest;
        rows[row] = {int32_t(num_channels * (count - begin)), int16_t(begin), int16_t(end)};
        count += end - begin;
    }
    return count;
}

// The extents of a grid over positions and colors: places, and at each of them rows of nodes over colors.
template <class T>
struct GridAxes {
    CellAxis<T> y, x;
    int64_t row_step;  // rows between neighbors along the first axis of colors; along the second they are one apart
    int64_t rows;
    int64_t taps[2];  // nodes along those axes that a pixel touches: one where the guide has fewer channels

    int64_t num_places() const { return y.num_nodes() * x.num_nodes(); }
    int64_t place(int64_t at_y, int64_t at_x) const { return at_y * x.num_nodes() + at_x; }
};

// The nodes that colors touch; those to which they are blurred, as far as they are needed; and those that are needed
// when that is blurred along y, but not yet along x.
template <class T>
struct NeededNodes {
    ColorRanges of_cells, touched, stored, halfway;

    // first: the first nodes that the pixels of each cell touch, which become all that they touch
    NeededNodes(const GridAxes<T>& axes, ColorRanges first, int threads)
        : of_cells(std::move(first)),
          touched(axes.num_places(), axes.rows),
          stored(axes.num_places(), axes.rows),
          halfway(axes.num_places(), axes.rows) {
        const ColorRanges near(axes.num_places(), axes.rows);
        const auto for_places = [&](auto&& function) {
            parallel_for(threads, axes.y.num_nodes(), [&](int64_t y, int) {
                for (int64_t x = 0; x < axes.x.num_nodes(); ++x) function(y, x);
            });
        };
        parallel_for(threads, axes.y.num_cells * axes.x.num_cells, [&](int64_t cell, int) { complete(axes, cell); });
        for_places([&](int64_t y, int64_t x) {
            const RowRanges all = touched.at(axes.place(y, x));
            all.clear();
            const Range ys = axes.y.cells(y), xs = axes.x.cells(x);
            for (int64_t j = ys.begin; j < ys.end; ++j) {
                for (int64_t i = xs.begin; i < xs.end; ++i) all.unite(of_cells.at(j * axes.x.num_cells + i));
            }
        });
        for_places([&](int64_t y, int64_t x) {
            const RowRanges row = near.at(axes.place(y, x));
            row.clear();
            const Range from = axes.x.nodes_near(x);
            for (int64_t other = from.begin; other < from.end; ++other) row.unite(touched.at(axes.place(y, other)));
        });
        for_places([&](int64_t y, int64_t x) { find_stored(axes, near, y, x); });
        for_places([&](int64_t y, int64_t x) {
            const RowRanges row = halfway.at(axes.place(y, x));
            unite_along_y(axes, stored, y, x, row);
            row.intersect(near.at(axes.place(y, x)));
        });
    }

    // Numbers the nodes that the pixels of a cell touch; how many they are.
    int64_t number_cell(const GridAxes<T>& axes, int64_t y, int64_t x, StoredRow* rows) const {
        return number_nodes(of_cells.at(y * axes.x.num_cells + x), rows);
    }

private:
    void complete(const GridAxes<T>& axes, int64_t cell) const {
        const RowRanges all = of_cells.at(cell);
        all.widen(0, color_taps - 1);
        std::vector<int16_t> memory(all.begin, all.end + axes.rows);
        const RowRanges first{memory.data(), memory.data() + axes.rows, axes.rows};
        for (int64_t i = 0; i < axes.taps[0]; ++i) {
            for (int64_t j = 0; j < axes.taps[1]; ++j) all.unite(first, i * axes.row_step + j);
        }
    }

    // What the blur over colors reaches, as far as colors touch it anywhere near.
    void find_stored(const GridAxes<T>& axes, const ColorRanges& near, int64_t y, int64_t x) const {
        std::vector<int16_t> memory(2 * axes.rows);
        const RowRanges all{memory.data(), memory.data() + axes.rows, axes.rows};
        unite_along_y(axes, near, y, x, all);
        const RowRanges own = touched.at(axes.place(y, x)), row = stored.at(axes.place(y, x));
        row.clear();
        const int64_t far_i = axes.taps[0] / 2, far_j = axes.taps[1] / 2;
        for (int64_t i = -far_i; i <= far_i; ++i) {
            for (int64_t j = -far_j; j <= far_j; ++j) row.unite(own, i * axes.row_step + j);
        }
        row.widen(1, 1);
        row.intersect(all);
    }

    static void unite_along_y(const GridAxes<T>& axes, const ColorRanges& ranges, int64_t y, int64_t x,
                              const RowRanges& out) {
        const Range from = axes.y.nodes_near(y);
        out.clear();
        for (int64_t other = from.begin; other < from.end; ++other) out.unite(ranges.at(axes.place(other, x)));
    }
};

// Where the nodes of the ranges lie, one after another.
class NodeTable {
public:
    NodeTable(const ColorRanges& ranges, int64_t places, int64_t rows, int threads)
        : rows_(rows),
          ends_(places + 1),
          memory_(sizeof(StoredRow) * places * rows),
          table_(as<StoredRow>(memory_)) {
        parallel_for(threads, places, [&](int64_t place, int) {
            ends_[place + 1] = number_nodes(ranges.at(place), table_ + place * rows);
        });
        for (int64_t place = 0; place < places; ++place) ends_[place + 1] += ends_[place];
        if (num_channels * num_nodes() > std::numeric_limits<int32_t>::max()) throw std::bad_alloc();
        parallel_for(threads, places, [&](int64_t place, int) {
            const auto first = int32_t(num_channels * ends_[place]);
            for (int64_t row = 0; row < rows; ++row) table_[place * rows + row].first += first;
        });
    }
    // Of ranges within those of another table, in the same nodes.
    NodeTable(const ColorRanges& ranges, const NodeTable& other, int64_t places, int threads)
        : rows_(other.rows_),
          memory_(sizeof(StoredRow) * places * rows_),
          table_(as<StoredRow>(memory_)) {
        parallel_for(threads, places, [&](int64_t place, int) {
            number_nodes(ranges.at(place), table_ + place * rows_);
            for (int64_t row = 0; row < rows_; ++row) table_[place * rows_ + row].first = other.rows(place)[row].first;
        });
    }

    const StoredRow* rows(int64_t place) const { return table_ + place * rows_; }
    // all nodes of one place
    Range nodes(int64_t place) const { return {ends_[place], ends_[place + 1]}; }
    int64_t num_nodes() const { return ends_.back(); }

private:
    const int64_t rows_;
    std::vector<int64_t> ends_;
    const Memory memory_;
    StoredRow* const table_;
};

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
