#include "index/lookup_table.hpp"

#include <cstring>
#include <stdexcept>

namespace permutohedral {

int64_t lookup_table_size(const KeyPacking& packing, int64_t num_lattice_points) {
    return packing_size(packing.num_columns) + 1 + (num_lattice_points + table_padding) * packing.num_words;
}

uint64_t* begin_lookup_table(const KeyPacking& packing, int64_t num_lattice_points, int64_t* table) {
    write_packing(packing, table);
    int64_t* count = table + packing_size(packing.num_columns);
    *count = num_lattice_points;
    uint64_t* packed = reinterpret_cast<uint64_t*>(count + 1);
    std::memset(packed + num_lattice_points * packing.num_words, 0xff,
                sizeof(uint64_t) * table_padding * packing.num_words);
    return packed;
}

LookupTable view_lookup_table(const int64_t* data, int64_t size) {
    LookupTable table{};
    if (!read_packing(data, size, table.packing)) throw std::invalid_argument("not a table of the native backend");
    const int64_t* cursor = data + packing_size(table.packing.num_columns);
    table.num_lattice_points = *cursor++;
    table.packed = reinterpret_cast<const uint64_t*>(cursor);
    const int64_t* order = cursor + (table.num_lattice_points + table_padding) * table.packing.num_words;
    table.order = data + size > order ? reinterpret_cast<const uint32_t*>(order) : nullptr;
    return table;
}

}  // namespace permutohedral
