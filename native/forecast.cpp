#include "forecast.hpp"

#include <algorithm>
#include <cmath>

#include "index/cell_grid.hpp"
#include "index/vertex_index.hpp"
#include "runtime/cache_sizes.hpp"

namespace permutohedral {
namespace {

constexpr int64_t index_bytes = sizeof(int32_t), word_bytes = sizeof(uint64_t), word_bits = 64;
// about the width of one digit of a packed key
constexpr int64_t bits_per_column = 6;
// upper bound, per coordinate, of what a table stores beside its keys: the packing, and padding
constexpr int64_t header_bytes = 80;
// From this many corners per lattice point on, vertices are usually numbered by cells, in a grid with about this many
// cells per lattice point, and less for small pictures.
constexpr int64_t shared_corners = 24, cells_per_lattice_point = 512;
// allocations are rounded up to huge pages
constexpr int64_t page_bytes = int64_t{1} << 22;

// The keys in the lists of all chunks, for points in no order. A chunk lists every vertex it touches once if its cache
// holds all of them; how many repetitions a smaller cache finds was fitted to measurements.
int64_t count_listed_keys(double num_points, double num_corners, double num_lattice_points) {
    if (num_lattice_points == 0) return 0;
    const double cached = double(int64_t{1} << vertex_cache_bits);
    const double chunks = std::max(1.0, num_points / double(max_chunk_points));
    const double distinct = chunks * num_lattice_points * -std::expm1(-num_corners / chunks / num_lattice_points);
    const double found = std::min(1.0, std::pow(cached / num_lattice_points, 0.8));
    return int64_t(std::max(distinct, num_corners * (1 - found)));
}

int64_t count_scratch(const MemoryRequest& request, int64_t num_corners, int64_t key_bytes) {
    if (request.dimension <= max_grid_dimension && num_corners >= shared_corners * request.num_lattice_points) {
        const int64_t most = cells_per_corner * num_corners;
        const int64_t cells = std::min(cells_per_lattice_point * request.num_lattice_points, most);
        return int64_t(sizeof(CellGroup)) * cells / group_cells;
    }
    const int64_t listed = request.ordered ? request.num_lattice_points
                                           : count_listed_keys(double(request.num_points), double(num_corners),
                                                               double(request.num_lattice_points));
    // the list of the chunk that each thread works on
    const int64_t collected =
        std::min(request.num_points, max_chunk_points * request.threads) * (request.dimension + 1);
    return listed * (key_bytes + index_bytes) + (collected + request.num_lattice_points) * key_bytes;
}

}  // namespace

CoreMemory forecast_memory(const MemoryRequest& request) {
    const int64_t num_columns = request.dimension + 1, num_corners = request.num_points * num_columns;
    const int64_t key_bytes = word_bytes * ((num_columns * bits_per_column + word_bits - 1) / word_bits);
    CoreMemory memory{};
    memory.table = request.num_lattice_points * key_bytes + header_bytes * (request.dimension + 4);
    const int64_t scratch = count_scratch(request, num_corners, key_bytes);
    memory.scratch = scratch + std::min(scratch, page_bytes);
    const bool exceeds_caches = double(request.num_lattice_points) * request.row_bytes >= double(cached_lattice_bytes);
    if (!request.ordered && exceeds_caches) {
        memory.order = num_corners * (index_bytes + request.element_bytes) + request.num_points * index_bytes;
    }
    return memory;
}

}  // namespace permutohedral
