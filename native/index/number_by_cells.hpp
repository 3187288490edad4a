// Numbers vertices by marks in a grid of cells, one byte per cell; see cell_grid.hpp.
#pragma once

#include <cstring>
#include <type_traits>

#include "index/cell_grid.hpp"
#include "index/digit_ranges.hpp"
#include "index/linear_keys.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t cells_per_task = 1 << 16;
constexpr int64_t groups_per_task = cells_per_task / group_cells;
constexpr int64_t corners_per_task = 1 << 15;

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
                 uint8_t* marks, int32_t* vertices, T* barycentric) {
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
        // several threads may mark the same cell
        for (int64_t i = 0; i < count * (D + 1); ++i) {
            __atomic_store_n(marks + rows[i], uint8_t{1}, __ATOMIC_RELAXED);
        }
    }
}

// The marks of a group of cells as bits: those of all copies combined, eight bytes at a time. The product moves each of
// the eight to its own bit of the highest byte, without carries.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of eight bytes must be the lowest");
inline uint32_t combine_marks(const uint8_t* marks, int64_t copies, int64_t size) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < group_cells; i += 8) {
        uint64_t bytes = 0;
        for (int64_t copy = 0; copy < copies; ++copy) {
            uint64_t more;
            std::memcpy(&more, marks + copy * size + i, sizeof(more));
            bytes |= more;
        }
        bits |= uint32_t((bytes * 0x0102040810204080u) >> 56) << i;
    }
    return bits;
}

// Writes the groups of the grid from marks; returns the number of vertices.
int64_t count_marks(CellGrid& grid, const Memory& marks, int threads) {
    const int64_t num_groups = grid.num_groups(), num_tasks = divide_up(num_groups, groups_per_task);
    const int64_t size = num_groups * group_cells, copies = int64_t(marks.size()) / size;
    grid.groups = Memory(sizeof(CellGroup) * num_groups);
    CellGroup* groups = as<CellGroup>(grid.groups);
    const Memory memory(sizeof(uint32_t) * (num_tasks + 1));
    uint32_t* before = as<uint32_t>(memory);
    parallel_ranges(threads, num_groups, groups_per_task, [&](int64_t begin, int64_t end, int) {
        uint32_t count = 0;
        for (int64_t g = begin; g < end; ++g) {
            groups[g] = {combine_marks(as<uint8_t>(marks) + g * group_cells, copies, size), count};
            count += uint32_t(__builtin_popcount(groups[g].occupied));
        }
        before[begin / groups_per_task + 1] = count;
    });
    before[0] = 0;
    for (int64_t task = 0; task < num_tasks; ++task) before[task + 1] += before[task];
    parallel_ranges(threads, num_groups, groups_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t g = begin; g < end; ++g) groups[g].num_before += before[begin / groups_per_task];
    });
    return before[num_tasks];
}

// Replaces cells by the numbers of their vertices.
void number_vertices(const CellGrid& grid, int32_t* vertices, Range range) {
    const CellGroup* groups = as<CellGroup>(grid.groups);
    for (int64_t i = range.begin; i < range.end; ++i) {
        const uint32_t cell = uint32_t(vertices[i]);
        const CellGroup group = groups[cell / group_cells];
        const uint32_t before = group.occupied & ((uint32_t{1} << cell % group_cells) - 1);
        vertices[i] = int32_t(group.num_before + uint32_t(__builtin_popcount(before)));
    }
}

template <class T, int D>
void number_by_cells(const Points<T>& points, VertexIndex& index, T* barycentric) {
    static_assert(D <= max_grid_dimension, "see write_packed_keys");
    CellGrid& grid = index.grid;
    const LinearKeys<D, 1> linear(grid);
    // a copy of the marks for each worker, as far as that is cheap: against false sharing
    const int64_t size = grid.num_groups() * group_cells, corners = points.num_points * (D + 1);
    const int64_t copies = std::clamp<int64_t>(cells_per_corner * corners / size, 1, index.threads);
    Memory memory(size * copies);
    uint8_t* marks = as<uint8_t>(memory);
    parallel_ranges(index.threads, size * copies, cells_per_task,
                    [&](int64_t begin, int64_t end, int) { std::memset(marks + begin, 0, end - begin); });
    parallel_ranges(index.threads, points.num_points, points_per_task, [&](int64_t begin, int64_t end, int worker) {
        uint8_t* own = marks + worker % copies * size;
        mark_points<T, D>(points, grid, linear, {begin, end}, own, index.vertices, barycentric);
    });
    index.num_lattice_points = count_marks(grid, memory, index.threads);
    memory = Memory();
    parallel_ranges(index.threads, corners, corners_per_task,
                    [&](int64_t begin, int64_t end, int) { number_vertices(grid, index.vertices, {begin, end}); });
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
