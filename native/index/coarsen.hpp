// From the vertices of a lattice to those of the lattice of twice the step.
#pragma once

#include <cstdint>

#include "index/vertex_index.hpp"
#include "kernels.hpp"

namespace permutohedral {

// Numbers the parents of `keys [num_vertices, num_columns]`; `index` is of 2 num_vertices points of one corner each, the
// two parents of every vertex one after the other. With x = sum_j n_j e_j and S = {j : n_j - n_1 odd}, they are
// (x - e_S) / 2 and (x + e_S) / 2.
void index_parents(VertexIndex& index, const int32_t* keys, int64_t num_vertices, int64_t num_columns);

// Writes the tables between the levels for filters of all taps up to one step. keys [num_fine, num_columns]; parents
// [num_fine, 2], rows of the coarse lattice; offsets [2^num_columns - 1, num_columns - 1].
// down [taps, num_coarse]: the fine vertex at twice a coarse one plus the offset; up [taps, num_fine]: the coarse vertex
// at half of a fine one plus the offset; -1 where there is none.
void connect_levels(Matrix<const int32_t> keys, Matrix<const int32_t> parents, Matrix<const int32_t> offsets,
                    Matrix<int32_t> down, Matrix<int32_t> up, int threads);

}  // namespace permutohedral
