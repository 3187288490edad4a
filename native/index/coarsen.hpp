// From the vertices of a lattice to those of the lattice of twice the step.
#pragma once

#include <cstdint>

#include "index/vertex_index.hpp"

namespace permutohedral {

// Numbers the parents of `keys [num_vertices, num_columns]`; `index` is of 2 num_vertices points of one corner each, the
// two parents of every vertex one after the other. With x = sum_j n_j e_j and S = {j : n_j - n_1 odd}, they are
// (x - e_S) / 2 and (x + e_S) / 2.
void index_parents(VertexIndex& index, const int32_t* keys, int64_t num_vertices, int64_t num_columns);

}  // namespace permutohedral
