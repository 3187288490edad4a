// Neighbors of lattice points, by exact lookup of their keys.
#pragma once

#include <cstdint>

namespace permutohedral {

struct NeighborQuery {
    const int64_t* table;  // [table_size], see lookup_table.hpp
    int64_t table_size;
    const int32_t* target_keys;  // [num_targets, 1 + d]
    int64_t num_targets;
    const int32_t* offsets;  // [filter_size, d]
    int64_t filter_size;
    bool same;  // the targets are the keys of the table
};

// Writes `neighbors [filter_size, num_targets]`; -1 where a neighbor is not in the table.
void find_neighbors(const NeighborQuery& query, int32_t* neighbors, int threads);

struct NeighborShape {
    int64_t filter_size, num_targets, num_sources;
};

// transposed[opposite[k], source] = target wherever neighbors[k, target] = source, else -1.
void transpose_neighbors(const int32_t* neighbors, const int64_t* opposite, NeighborShape shape, int32_t* transposed,
                         int threads);

}  // namespace permutohedral
