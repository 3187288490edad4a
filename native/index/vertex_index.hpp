// Numbering of keys: which vertices occur, each once, in the order of their packed keys.
//
// Where the digits of the keys span few cells, these are marked and counted (grid.hpp). Else the points are cut into
// chunks. Each chunk lists the keys it touches (nearly without repetition, thanks to small caches) and writes positions
// in that list to `vertices`. The lists are then merged in parts, ranges of packed keys, each by one thread:
// repetitions are found by hashing, and what is left is sorted. The ids are the ranks in that order, so neither the
// number of threads nor the chunks nor the parts show in the result. Sorted keys need no hash table to find neighbors:
// the keys of all points moved by one offset are sorted too, and one walk along both finds all pairs.
#pragma once

#include <cstdint>
#include <vector>

#include "index/cell_grid.hpp"
#include "runtime/memory.hpp"
#include "index/key_packing.hpp"

namespace permutohedral {

// Keys of one chunk, grouped by part.
struct ChunkList {
    uint64_t* keys = nullptr;       // [count, words]; once merged, the first word is the rank of the key in its part
    uint32_t* positions = nullptr;  // [count], in the list before grouping
    std::vector<uint32_t> starts;  // [parts + 1]
    int64_t count = 0;
};

// The distinct keys of a part, sorted.
struct Part {
    Memory keys;  // uint64 [count, words]
    int64_t count = 0;
    int64_t base = 0;  // id of the first
};

class Index {
public:
    // rows of `corners` keys each, for which `vertices [rows, corners]` is to be written
    Index(int64_t rows, int64_t corners, int32_t* vertices, int threads);

    // Cuts the range of keys into parts of about the same size, by a sample of packed keys.
    void choose_parts(const uint64_t* sample, int64_t count);

    // From here on the rows are visited in another order, with `vertices` by visit: row of each visit, to be filled.
    uint32_t* reorder();
    const uint32_t* order() const { return as<uint32_t>(order_); }

    // Takes over the list of a chunk; called once per chunk, by any thread.
    void store_chunk(int64_t chunk, const uint64_t* keys, int64_t count);

    // Numbers the keys, once all chunks are stored.
    void merge();

    // int64 words of the table that `finish` writes
    int64_t table_size() const;

    // Writes ids to `vertices`, the table, and `keys [num_lattice_points, columns]` unless that is null.
    void finish(int32_t* keys, int64_t* table);

    Packing packing{};
    Grid grid;  // without cells where the vertices are numbered by chunks
    int64_t rows, corners, num_chunks, chunk_rows;
    int64_t num_lattice_points = 0;
    int32_t* vertices;
    int threads;
    bool may_reorder = false;

private:
    void finish_chunk(int64_t chunk);

    Memory order_;
    std::vector<uint8_t> part_of_bucket_;  // by the leading bits of a key
    Arena arena_;
    std::vector<ChunkList> chunks_;
    std::vector<Part> parts_;
};

// A table: packing | num_lattice_points | sorted packed keys | padding above all keys | order
// The order, uint32 [num_lattice_points], two to a word, is the row of each sorted key; it is there only if the rows
// are not sorted themselves.
struct TableView {
    Packing packing;
    int64_t num_lattice_points;
    const uint64_t* packed;  // [num_lattice_points + table_padding, words]
    const uint32_t* order;   // or null
};

// keys that may be read past the end
constexpr int64_t table_padding = 4;

// Throws std::invalid_argument if `data` is no table.
TableView view_table(const int64_t* data, int64_t size);

// Numbers rows of arbitrary integers: the distinct rows of `keys [rows, columns]`.
void index_rows(Index& index, const int32_t* keys, int64_t columns);

struct NeighborQuery {
    const int64_t* table;
    int64_t table_size;
    const int32_t* target_keys;  // [num_targets, 1 + d]
    int64_t num_targets;
    const int32_t* offsets;  // [filter_size, d]
    int64_t filter_size;
    bool same;  // the targets are the keys of the table
};

void find_neighbors(const NeighborQuery& query, int32_t* neighbors, int threads);

struct NeighborShape {
    int64_t filter_size, num_target, num_source;
};

void transpose_neighbors(const int32_t* neighbors, const int64_t* opposite, NeighborShape shape, int32_t* transposed,
                         int threads);

}  // namespace permutohedral
