// The vertices that some points touch, each once, numbered in the order of their packed keys.
//
// Where the digits of the keys span few cells, the vertices are numbered by marks in a grid (cell_grid.hpp). Otherwise
// the points are cut into chunks. Each chunk lists the keys it touches (index_points.hpp) and writes positions in its
// list to `vertices`. The keys are divided into ranges; each range is merged by one thread, which finds repetitions by
// hashing and sorts the rest. The number of a vertex is its rank in that order, so neither the number of threads
// nor the chunks nor the ranges show in the result. Sorted keys need no hash table to find neighbors: the keys of all
// points moved by one offset are sorted too, and one walk along both lists finds all pairs (neighbors.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "index/cell_grid.hpp"
#include "index/key_packing.hpp"
#include "runtime/memory.hpp"

namespace permutohedral {

// the chunks are at most this large, and the cache of vertices in index_points.hpp has 2^bits entries
constexpr int64_t max_chunk_points = 65536;
constexpr int vertex_cache_bits = 14;

// The keys that one chunk touches, grouped by range.
struct ChunkKeys {
    uint64_t* keys = nullptr;  // [count, num_words]; once merged, the first word is the rank of the key in its range
    uint32_t* positions = nullptr;  // [count], in the list as the chunk wrote it
    std::vector<uint32_t> starts;   // [ranges + 1]
    int64_t count = 0;
};

// The distinct keys of one range, sorted.
struct KeyRange {
    Memory keys;  // uint64 [count, num_words]
    int64_t count = 0;
    int64_t first_number = 0;  // of its first vertex
};

// How an index is built:
//   1. set `packing`;
//   2. by cells: plan `grid`, number the vertices and set `num_lattice_points` (index_points.hpp);
//      or by hashing: choose_ranges, then store_chunk for every chunk, then merge;
//   3. now `num_lattice_points` and table_size are known: the caller allocates keys and table, and calls finish.
class VertexIndex {
public:
    // For `num_points` points of `num_corners` keys each; `vertices [num_points, num_corners]` is written.
    VertexIndex(int64_t num_points, int64_t num_corners, int32_t* vertices, int threads);

    // Divides the keys into ranges of about the same number of keys, judging by a sample of packed keys.
    void choose_ranges(const uint64_t* sample, int64_t count);

    // Copies the list of keys of a chunk; called once per chunk, by any thread.
    void store_chunk(int64_t chunk, const uint64_t* keys, int64_t count);

    // Numbers the keys, after all chunks are stored.
    void merge();

    // Words of the table that `finish` writes.
    int64_t table_size() const;

    // Writes the numbers to `vertices`, the lookup table, and `keys [num_lattice_points, 1 + d]`.
    void finish(int32_t* keys, int64_t* table);

    bool is_by_cells() const { return grid.num_cells > 0; }

    KeyPacking packing{};
    CellGrid grid;  // without cells where the vertices are numbered by hashing
    int64_t num_points, num_corners, num_chunks, chunk_points;
    int64_t num_lattice_points = 0;
    int32_t* vertices;
    int threads;

private:
    void number_chunk(int64_t chunk);

    std::vector<uint8_t> range_of_bucket_;  // a bucket is given by the leading bits of a key
    Arena arena_;
    std::vector<ChunkKeys> chunks_;
    std::vector<KeyRange> ranges_;
};

// Numbers keys of vertices: the distinct ones among `keys [num_points, num_columns]`, as points of one corner each.
void index_keys(VertexIndex& index, const int32_t* keys, int64_t num_columns);

// Numbers the parents of `keys [num_points / 2, num_columns]`, as points of one corner each, the two parents of every vertex
// one after the other. With x = sum_j n_j e_j and S = {j : n_j - n_1 odd}, they are (x - e_S) / 2 and (x + e_S) / 2.
void index_parents(VertexIndex& index, const int32_t* keys, int64_t num_columns);

}  // namespace permutohedral
