// Numbering of keys: which vertices occur, each once, in the order in which the points touch them first.
//
// The points are cut into chunks. Each chunk lists the keys it touches (nearly without repetition, thanks to small
// caches) and writes positions in that list to `vertices`. The lists are then merged in parts by hash, each part
// by one thread, chunk after chunk, so that the first position of a key is the same whatever the threads do; the
// ids are the ranks of those first positions. Hence neither the number of threads nor the chunks show in the result.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.hpp"
#include "packing.hpp"

namespace permutohedral {

// Keys of one chunk, grouped by part, in each group by position.
struct ChunkList {
    Memory keys;       // uint64 [count, words]
    Memory positions;  // uint32 [count], in the list before grouping
    std::vector<uint32_t> starts;  // [parts + 1]
    int64_t count = 0;
    int64_t base = 0;  // position of the chunk's list among all lists
};

// Open addressing by linear probing. A slot is a key's words, then the first position of the key.
struct PartTable {
    Memory slots;  // uint64 [capacity, words + 1]
    int64_t capacity = 0;
    int64_t count = 0;
};

class Index {
public:
    // rows of `corners` keys each, for which `vertices [rows, corners]` is to be written
    Index(int64_t rows, int64_t corners, int32_t* vertices, int threads);

    // Takes over the list of a chunk; called once per chunk, by any thread.
    void store_chunk(int64_t chunk, const uint64_t* keys, int64_t count);

    // Numbers the keys, once all chunks are stored.
    void merge();

    // int64 words of the table that `finish` writes
    int64_t table_size() const;

    // Writes ids to `vertices`, `keys [num_lattice_points, columns]` and the table; frees what is no longer needed.
    void finish(int32_t* keys, int64_t* table);

    Packing packing{};
    int64_t rows, corners, num_chunks, chunk_rows;
    int64_t num_lattice_points = 0;
    int32_t* vertices;
    int threads;

private:
    void merge_part(int64_t part);
    void number_firsts();
    void finish_chunk(int64_t chunk, int32_t* keys, uint64_t* packed);
    void finish_part(int64_t part, uint64_t* slots) const;

    int part_bits_;
    std::vector<ChunkList> chunks_;
    std::vector<PartTable> parts_;
    Memory firsts_;  // uint32 [all positions]: first position of the same key; later an id, see number_firsts
    int64_t num_positions_ = 0;
};

// A table as `finish` writes it:
//   packing | num_lattice_points | part_bits | slot base of each part, and the end | packed keys | slots
// A slot is 0 if empty, else 32 bits of the hash above id + 1. The slots of a part are a power of two.
struct TableView {
    Packing packing;
    int64_t num_lattice_points;
    int part_bits;
    const int64_t* bases;    // [parts + 1]
    const uint64_t* packed;  // [num_lattice_points, words]
    const uint64_t* slots;
};

// Throws std::invalid_argument if `data` is no table.
TableView view_table(const int64_t* data, int64_t size);

static inline uint64_t part_of(uint64_t hash, int part_bits) { return (hash >> 1) >> (63 - part_bits); }
static inline uint64_t tag_of(uint64_t hash) { return (hash << 8) & 0xffffffff00000000u; }

// Numbers rows of arbitrary integers: the distinct rows of `keys [rows, columns]`.
void index_rows(Index& index, const int32_t* keys, int64_t columns);

struct NeighborQuery {
    const int64_t* table;
    int64_t table_size;
    const int32_t* target_keys;  // [num_targets, 1 + d]
    int64_t num_targets;
    const int32_t* offsets;  // [filter_size, d]
    int64_t filter_size;
    bool same;  // source and target keys are the same
};

void find_neighbors(const NeighborQuery& query, int32_t* neighbors, int threads);

struct NeighborShape {
    int64_t filter_size, num_target, num_source;
};

void transpose_neighbors(const int32_t* neighbors, const int64_t* opposite, NeighborShape shape, int32_t* transposed,
                         int threads);

}  // namespace permutohedral
