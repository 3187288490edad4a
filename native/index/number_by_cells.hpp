// Numbers the vertices of points by marks in a grid of cells; see cell_grid.hpp.
#pragma once

#include <type_traits>

#include "index/cell_marks.hpp"
#include "index/digit_ranges.hpp"
#include "index/linear_keys.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// The cells of all corners of the points in lanes.
template <class T, int D>
inline void find_cells(const SimplexLanes<T, D>& simplex, const LinearKeys<D, 1>& linear, int64_t num_cells,
                       const int32_t* batch, int64_t count, IntegerVector<T>* cells) {
    // unsigned, so that it may wrap: the terms may be larger than the sum
    using Unsigned = std::make_unsigned_t<Integer<T>>;
    using U = typename VectorOf<Unsigned, lanes<T>>::type;
    U cell = U{} + Unsigned(linear.constant[0]);
    for (int64_t i = 0; i < D; ++i) cell += (U)simplex.cell[i] * Unsigned(linear.cell[i]);
    if (batch != nullptr) {
        for (int64_t l = 0; l < count; ++l) cell[l] += Unsigned(batch[l]) * Unsigned(linear.item[0]);
    }
    const U last = U{} + Unsigned(num_cells - 1);
    for (int64_t j = 0; j <= D; ++j) {
        // if another thread modifies the features meanwhile the lattice is wrong, but every write stays in the grid
        cells[j] = (IntegerVector<T>)(cell < last ? cell : last);
        for (int64_t i = 0; i <= D && j < D; ++i) {
            cell += simplex.rank[i] == Integer<T>(D - j) ? U{} + Unsigned(linear.step[i]) : U{};
        }
    }
}

// From lanes to a matrix [count, d + 1].
template <class T, int D>
inline void store_cells(const IntegerVector<T>* columns, int64_t count, int32_t* rows) {
    if constexpr (sizeof(T) == 4) return store_weights<int32_t, D>(columns, D, count, rows);
    for (int64_t l = 0; l < count; ++l) {
        for (int64_t j = 0; j <= D; ++j) rows[l * (D + 1) + j] = int32_t(columns[j][l]);
    }
}

// Writes the cell of every corner to `vertices`, and marks it.
template <class T, int D>
void mark_points(const Points<T>& points, const CellGrid& grid, const LinearKeys<D, 1>& linear, Range range,
                 CellGroup* marks, int32_t* vertices, T* barycentric) {
    const Elevation<T> elevation = make_elevation<T>(D);
    Vector<T> features[D], weights[D + 1];
    IntegerVector<T> cells[D + 1];
    SimplexLanes<T, D> simplex;
    for (int64_t begin = range.begin; begin < range.end; begin += lanes<T>) {
        const int64_t count = std::min<int64_t>(lanes<T>, range.end - begin);
        load_points<T, D>(points.features + begin * D, D, count, features);
        find_simplex<T, D>(features, D, elevation, simplex);
        find_barycentric<T, D>(simplex, D, weights);
        const int32_t* batch = points.batch == nullptr ? nullptr : points.batch + begin;
        find_cells<T, D>(simplex, linear, grid.num_cells, batch, count, cells);
        store_weights<T, D>(weights, D, count, barycentric + begin * (D + 1));
        int32_t* rows = vertices + begin * (D + 1);
        store_cells<T, D>(cells, count, rows);
        for (int64_t i = 0; i < count * (D + 1); ++i) mark_cell(marks, uint32_t(rows[i]));
    }
}

template <class T, int D>
void number_by_cells(const Points<T>& points, VertexIndex& index, T* barycentric) {
    static_assert(D <= max_grid_dimension, "see write_packed_keys");
    CellGrid& grid = index.grid;
    const LinearKeys<D, 1> linear(grid);
    clear_marks(grid, index.threads);
    CellGroup* marks = as<CellGroup>(grid.groups);
    parallel_ranges(index.threads, points.num_points, points_per_task, [&](int64_t begin, int64_t end, int) {
        mark_points<T, D>(points, grid, linear, {begin, end}, marks, index.vertices, barycentric);
    });
    number_marked_cells(index);
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
