// What the core assumes about the caches of a processor. Results do not depend on it, only speed.
#pragma once

#include <cstdint>

namespace permutohedral {

constexpr int64_t cache_line_bytes = 64;

// a lattice of fewer bytes mostly stays in the caches, in whatever order its points are read
constexpr int64_t cached_lattice_bytes = int64_t{1} << 24;

}  // namespace permutohedral
