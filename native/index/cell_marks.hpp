// Marks in a grid of cells, one bit per cell, and the vertices that are numbered by them; see cell_grid.hpp.
#pragma once

#include <cstring>

#include "index/cell_grid.hpp"
#include "index/vertex_index.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t groups_per_task = 4096;
constexpr int64_t corners_per_task = 1 << 15;

// No marks yet.
void clear_marks(CellGrid& grid, int threads) {
    grid.groups = Memory(sizeof(CellGroup) * grid.num_groups());
    parallel_ranges(threads, grid.num_groups(), groups_per_task, [&](int64_t begin, int64_t end, int) {
        std::memset(as<CellGroup>(grid.groups) + begin, 0, sizeof(CellGroup) * (end - begin));
    });
}

// Several threads may mark the same cell. It is looked at first: most cells are marked already, and a word that is only
// read is neither waited for nor taken from other threads.
inline void mark_cell(CellGroup* groups, uint32_t cell) {
    uint32_t* occupied = &groups[cell / group_cells].occupied;
    const uint32_t mark = uint32_t{1} << cell % group_cells;
    if ((__atomic_load_n(occupied, __ATOMIC_RELAXED) & mark) == 0) __atomic_fetch_or(occupied, mark, __ATOMIC_RELAXED);
}

// Writes how many marks lie before each group; returns the number of vertices.
int64_t count_marks(CellGrid& grid, int threads) {
    const int64_t num_groups = grid.num_groups(), num_tasks = divide_up(num_groups, groups_per_task);
    CellGroup* groups = as<CellGroup>(grid.groups);
    const Memory memory(sizeof(uint32_t) * (num_tasks + 1));
    uint32_t* before = as<uint32_t>(memory);
    parallel_ranges(threads, num_groups, groups_per_task, [&](int64_t begin, int64_t end, int) {
        uint32_t count = 0;
        for (int64_t g = begin; g < end; ++g) count += uint32_t(__builtin_popcount(groups[g].occupied));
        before[begin / groups_per_task + 1] = count;
    });
    before[0] = 0;
    for (int64_t task = 0; task < num_tasks; ++task) before[task + 1] += before[task];
    parallel_ranges(threads, num_groups, groups_per_task, [&](int64_t begin, int64_t end, int) {
        uint32_t count = before[begin / groups_per_task];
        for (int64_t g = begin; g < end; ++g) {
            groups[g].num_before = count;
            count += uint32_t(__builtin_popcount(groups[g].occupied));
        }
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

// Numbers the marked cells, and replaces the cells in the index's vertices by these numbers.
void number_marked_cells(VertexIndex& index) {
    index.num_lattice_points = count_marks(index.grid, index.threads);
    const int64_t corners = index.num_points * index.num_corners;
    parallel_ranges(index.threads, corners, corners_per_task, [&](int64_t begin, int64_t end, int) {
        number_vertices(index.grid, index.vertices, {begin, end});
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
