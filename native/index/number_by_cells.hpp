// Numbering of vertices by marks in a grid of cells.
#pragma once

#include <cstring>
#include <type_traits>

#include "index/touched_keys.hpp"
#include "index/cell_grid.hpp"
#include "index/digit_ranges.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

// a grid of more cells would take longer to clear and to count than hashing
constexpr int64_t cells_per_corner = 4, most_cells = int64_t{1} << 26;
constexpr int64_t cell_block = 1 << 16;
constexpr int64_t block_entries = cell_block / entry_cells;
constexpr int64_t corner_block = 1 << 15;

// The cells of the corners of the points in lanes.
template <class T, int D>
inline void find_cells(const Simplex<T, D>& simplex, const KeyMap<D, 1>& map, int64_t num_cells, const int32_t* batch,
                       int64_t count, WholeVector<T>* cells) {
    // without sign: products may be larger than the sum
    using Unsigned = std::make_unsigned_t<Whole<T>>;
    using U = typename VectorOf<Unsigned, lanes<T>>::type;
    U cell = U{} + Unsigned(map.constant[0]);
    for (int64_t i = 0; i < D; ++i) cell += (U)simplex.cell[i] * Unsigned(map.cell[i]);
    if (batch != nullptr) {
        for (int64_t l = 0; l < count; ++l) cell[l] += Unsigned(batch[l]) * Unsigned(map.item[0]);
    }
    const U last = U{} + Unsigned(num_cells - 1);
    for (int64_t j = 0; j <= D; ++j) {
        // who changes the features meanwhile gets a wrong lattice, but nothing is written elsewhere
        cells[j] = (WholeVector<T>)(cell < last ? cell : last);
        for (int64_t i = 0; i <= D && j < D; ++i) {
            cell += simplex.rank[i] == Whole<T>(D - j) ? U{} + Unsigned(map.step[i]) : U{};
        }
    }
}

// Lanes to rows of d+1 cells.
template <class T, int D>
inline void store_cells(const WholeVector<T>* columns, int64_t count, int32_t* rows) {
    if constexpr (sizeof(T) == 4) return store_weights<int32_t, D>(columns, D, count, rows);
    for (int64_t l = 0; l < count; ++l) {
        for (int64_t j = 0; j <= D; ++j) rows[l * (D + 1) + j] = int32_t(columns[j][l]);
    }
}

// Cells to `vertices`, and their marks.
template <class T, int D>
void mark_points(const Points<T>& points, const Grid& grid, const KeyMap<D, 1>& map, Range range, uint8_t* marks,
                 int32_t* vertices, T* barycentric) {
    const Elevation<T> elevation = make_elevation<T>(D);
    Vector<T> features[D], weights[D + 1];
    WholeVector<T> cells[D + 1];
    Simplex<T, D> simplex;
    for (int64_t begin = range.begin; begin < range.end; begin += lanes<T>) {
        const int64_t count = std::min<int64_t>(lanes<T>, range.end - begin);
        load_points<T, D>(points.features + begin * D, D, count, features);
        find_simplex<T, D>(features, D, elevation, simplex);
        find_barycentric<T, D>(simplex, D, weights);
        const int32_t* batch = points.batch == nullptr ? nullptr : points.batch + begin;
        find_cells<T, D>(simplex, map, grid.cells, batch, count, cells);
        store_weights<T, D>(weights, D, count, barycentric + begin * (D + 1));
        int32_t* rows = vertices + begin * (D + 1);
        store_cells<T, D>(cells, count, rows);
        // several threads may mark a cell
        for (int64_t i = 0; i < count * (D + 1); ++i) {
            __atomic_store_n(marks + rows[i], uint8_t{1}, __ATOMIC_RELAXED);
        }
    }
}

// Bytes of all copies to bits, eight at a time: the product moves each of them to a bit of the highest byte, where none
// meets another.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of eight bytes must be the lowest");
inline uint32_t collect_marks(const uint8_t* marks, int64_t copies, int64_t size) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < entry_cells; i += 8) {
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

// Entries from marks; returns the number of vertices.
int64_t count_marks(Grid& grid, const Memory& marks, int threads) {
    const int64_t num_entries = grid.num_entries(), blocks = divide_up(num_entries, block_entries);
    const int64_t size = num_entries * entry_cells, copies = int64_t(marks.size()) / size;
    grid.entries = Memory(sizeof(GridEntry) * num_entries);
    GridEntry* entries = as<GridEntry>(grid.entries);
    const Memory memory(sizeof(uint32_t) * (blocks + 1));
    uint32_t* base = as<uint32_t>(memory);
    parallel_ranges(threads, num_entries, block_entries, [&](int64_t begin, int64_t end, int) {
        uint32_t count = 0;
        for (int64_t e = begin; e < end; ++e) {
            entries[e] = {collect_marks(as<uint8_t>(marks) + e * entry_cells, copies, size), count};
            count += uint32_t(__builtin_popcount(entries[e].marks));
        }
        base[begin / block_entries + 1] = count;
    });
    base[0] = 0;
    for (int64_t b = 0; b < blocks; ++b) base[b + 1] += base[b];
    parallel_ranges(threads, num_entries, block_entries, [&](int64_t begin, int64_t end, int) {
        for (int64_t e = begin; e < end; ++e) entries[e].base += base[begin / block_entries];
    });
    return base[blocks];
}

// From cells to ids.
void number_vertices(const Grid& grid, int32_t* vertices, Range range) {
    const GridEntry* entries = as<GridEntry>(grid.entries);
    for (int64_t i = range.begin; i < range.end; ++i) {
        const uint32_t cell = uint32_t(vertices[i]);
        const GridEntry entry = entries[cell / entry_cells];
        const uint32_t before = entry.marks & ((uint32_t{1} << cell % entry_cells) - 1);
        vertices[i] = int32_t(entry.base + uint32_t(__builtin_popcount(before)));
    }
}

template <class T, int D>
void mark_and_number(const Points<T>& points, Index& index, T* barycentric) {
    Grid& grid = index.grid;
    const KeyMap<D, 1> map(grid);
    // marks of its own for each worker, unless there are many: a processor waits for what another has just written
    const int64_t size = grid.num_entries() * entry_cells, corners = points.points * (D + 1);
    const int64_t copies = std::clamp<int64_t>(cells_per_corner * corners / size, 1, index.threads);
    Memory memory(size * copies);
    uint8_t* marks = as<uint8_t>(memory);
    parallel_ranges(index.threads, size * copies, cell_block, [&](int64_t begin, int64_t end, int) {
        std::memset(marks + begin, 0, end - begin);
    });
    parallel_ranges(index.threads, points.points, point_block, [&](int64_t begin, int64_t end, int worker) {
        uint8_t* own = marks + worker % copies * size;
        mark_points<T, D>(points, grid, map, {begin, end}, own, index.vertices, barycentric);
    });
    index.num_lattice_points = count_marks(grid, memory, index.threads);
    memory = Memory();
    parallel_ranges(index.threads, corners, corner_block, [&](int64_t begin, int64_t end, int) {
        number_vertices(grid, index.vertices, {begin, end});
    });
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
