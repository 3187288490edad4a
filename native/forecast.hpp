// How much memory the core itself will allocate for a lattice and one filter, beside the tensors it returns.
#pragma once

#include <cstdint>

namespace permutohedral {

struct MemoryRequest {
    int64_t num_points, dimension, num_lattice_points;
    int64_t element_bytes;  // of a weight or a value
    double row_bytes;       // values of one lattice point, as they are splatted
    bool ordered;           // consecutive points are near each other, as pixels are
    int threads;
};

// In bytes.
struct CoreMemory {
    int64_t table;    // the lookup table (lookup_table.hpp)
    int64_t scratch;  // while the points are indexed
    int64_t order;    // a sorted copy of the simplices (point_order.hpp)
};

CoreMemory forecast_memory(const MemoryRequest& request);

}  // namespace permutohedral
