// Marks in a grid of cells, one byte per cell, and the vertices that are numbered by them; see cell_grid.hpp.
#pragma once

#include <algorithm>
#include <cstring>

#include "index/cell_grid.hpp"
#include "index/vertex_index.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t cells_per_task = 1 << 16;
constexpr int64_t groups_per_task = cells_per_task / group_cells;
constexpr int64_t corners_per_task = 1 << 15;

// No marks yet, for the cells of `num_corners` corners: a copy for each worker, as far as that is cheap, against false
// sharing.
struct CellMarks {
    int64_t size, copies;
    Memory memory;

    CellMarks(const CellGrid& grid, int64_t num_corners, int threads)
        : size(grid.num_groups() * group_cells),
          copies(std::clamp<int64_t>(cells_per_corner * num_corners / size, 1, threads)),
          memory(size * copies) {
        parallel_ranges(threads, size * copies, cells_per_task, [&](int64_t begin, int64_t end, int) {
            std::memset(as<uint8_t>(memory) + begin, 0, end - begin);
        });
    }

    uint8_t* of_worker(int worker) { return as<uint8_t>(memory) + worker % copies * size; }
};

// Several threads may mark the same cell.
inline void mark_cell(uint8_t* marks, int64_t cell) { __atomic_store_n(marks + cell, uint8_t{1}, __ATOMIC_RELAXED); }

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

// Numbers the marked cells, and replaces the cells in the index's vertices by these numbers.
void number_marked_cells(CellMarks& marks, VertexIndex& index) {
    index.num_lattice_points = count_marks(index.grid, marks.memory, index.threads);
    marks.memory = Memory();
    const int64_t corners = index.num_points * index.num_corners;
    parallel_ranges(index.threads, corners, corners_per_task, [&](int64_t begin, int64_t end, int) {
        number_vertices(index.grid, index.vertices, {begin, end});
    });
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
