// Neighbors of lattice points, by exact lookup of their keys.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels.hpp"

namespace permutohedral {

// Writes `neighbors [filter_size, num_targets]`; -1 where a neighbor is not in the table (key_packing.hpp). `target_keys
// [num_targets, 1 + d]`, `offsets [filter_size, d]`. Where the targets are the keys of the table, `opposite [filter_size]`
// is the tap of the negative of each offset.
void find_neighbors(View<const int64_t, 1> table, Matrix<const int32_t> target_keys, Matrix<const int32_t> offsets,
                    std::optional<View<const int64_t, 1>> opposite, Matrix<int32_t> neighbors, int threads);

// Writes transposed[opposite[k], source] = target wherever neighbors[k, target] = source, else -1.
void transpose_neighbors(NeighborTable neighbors, View<const int64_t, 1> opposite, Matrix<int32_t> transposed,
                         int threads);

}  // namespace permutohedral
