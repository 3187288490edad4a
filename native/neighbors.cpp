// Look-ups in the table of an Index, and the numbering of rows of integers.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "lattice.hpp"
#include "parallel.hpp"

namespace permutohedral {
namespace {

constexpr int64_t target_block = 8192;
// look-ups in flight: enough to hide the latency of memory
constexpr int64_t in_flight = 32;

inline const uint64_t* slot_of(const TableView& table, uint64_t hash) {
    const uint64_t part = part_of(hash, table.part_bits);
    const uint64_t mask = table.bases[part + 1] - table.bases[part] - 1;
    return table.slots + table.bases[part] + (hash & mask);
}

// The id of `key`, -1 if it does not occur.
template <int W>
inline int32_t find_key(const TableView& table, const uint64_t* key, uint64_t hash) {
    const int64_t words = W > 0 ? W : table.packing.words;
    const uint64_t part = part_of(hash, table.part_bits);
    const uint64_t* slots = table.slots + table.bases[part];
    const uint64_t mask = table.bases[part + 1] - table.bases[part] - 1;
    const uint64_t tag = tag_of(hash);
    for (uint64_t place = hash & mask;; place = (place + 1) & mask) {
        const uint64_t slot = slots[place];
        if (slot == 0) return -1;
        if (((slot ^ tag) >> 32) != 0) continue;
        const int64_t id = int64_t(slot & 0xffffffffu) - 1;
        if (same_key<W>(table.packed + id * words, key, words)) return int32_t(id);
    }
}

// Packed keys of the targets; `valid` is null if all of them can be looked up.
struct Targets {
    const uint64_t* packed;
    const uint8_t* valid;
};

struct Tap {
    int64_t index;
    int64_t partner;  // tap of the negative offset, found by the same look-up; -1 if there is none
    bool packable;
    std::vector<uint64_t> addend;
};

// One tap over targets [begin, end).
template <int W>
void look_up(const TableView& table, const Targets& targets, const Tap& tap, Range range, int32_t* row,
             int32_t* partner_row) {
    const int64_t words = W > 0 ? W : table.packing.words;
    std::vector<uint64_t> keys(in_flight * words);
    uint64_t hashes[in_flight];
    for (int64_t begin = range.begin; begin < range.end; begin += in_flight) {
        const int64_t count = std::min(in_flight, range.end - begin);
        for (int64_t i = 0; i < count; ++i) {
            uint64_t* key = keys.data() + i * words;
            for (int64_t w = 0; w < words; ++w) key[w] = targets.packed[(begin + i) * words + w] + tap.addend[w];
            hashes[i] = hash_key<W>(key, words);
            __builtin_prefetch(slot_of(table, hashes[i]));
        }
        for (int64_t i = 0; i < count; ++i) {
            const int64_t target = begin + i;
            const bool valid = targets.valid == nullptr || targets.valid[target] != 0;
            const int32_t found = valid ? find_key<W>(table, keys.data() + i * words, hashes[i]) : -1;
            row[target] = found;
            if (partner_row != nullptr && found >= 0) partner_row[found] = int32_t(target);
        }
    }
}

// An offset that may leave the margin: each sum is packed, and checked, by itself.
void look_up_far(const TableView& table, const NeighborQuery& query, const Tap& tap, Range range, int32_t* row) {
    const int64_t columns = table.packing.columns;
    std::vector<uint64_t> key(table.packing.words);
    int64_t sum[max_columns];
    for (int64_t target = range.begin; target < range.end; ++target) {
        const int32_t* target_key = query.target_keys + target * columns;
        sum[0] = target_key[0];
        for (int64_t column = 1; column < columns; ++column) {
            sum[column] = int64_t(target_key[column]) + query.offsets[tap.index * (columns - 1) + column - 1];
        }
        const bool valid = pack_row(table.packing, sum, key.data());
        row[target] = valid ? find_key<0>(table, key.data(), hash_key<0>(key.data(), table.packing.words)) : -1;
    }
}

// The taps to look up; of two opposite taps only one where source and target are the same.
std::vector<Tap> plan_taps(const TableView& table, const NeighborQuery& query) {
    const int64_t d = table.packing.columns - 1;
    std::map<std::vector<int32_t>, int64_t> by_offset;
    std::vector<Tap> taps;
    std::vector<int32_t> offset(d);
    for (int64_t k = 0; k < query.filter_size; ++k) {
        Tap tap{k, -1, false, std::vector<uint64_t>(table.packing.words)};
        for (int64_t column = 0; column < d; ++column) offset[column] = -query.offsets[k * d + column];
        tap.packable = pack_offset(table.packing, query.offsets + k * d, tap.addend.data());
        const auto opposite = by_offset.find(offset);
        if (query.same && tap.packable && opposite != by_offset.end() && taps[opposite->second].partner < 0) {
            taps[opposite->second].partner = k;
            continue;
        }
        for (int32_t& component : offset) component = -component;
        by_offset[offset] = int64_t(taps.size());
        taps.push_back(std::move(tap));
    }
    return taps;
}

Targets pack_targets(const TableView& table, const NeighborQuery& query, Memory& packed, Memory& valid, int threads) {
    if (query.same) return {table.packed, nullptr};
    const int64_t columns = table.packing.columns, words = table.packing.words;
    packed = Memory(sizeof(uint64_t) * query.num_targets * words);
    valid = Memory(query.num_targets);
    parallel_ranges(threads, query.num_targets, target_block, [&](int64_t begin, int64_t end, int) {
        int64_t row[max_columns];
        for (int64_t target = begin; target < end; ++target) {
            for (int64_t column = 0; column < columns; ++column) {
                row[column] = query.target_keys[target * columns + column];
            }
            as<uint8_t>(valid)[target] = pack_row(table.packing, row, as<uint64_t>(packed) + target * words);
        }
    });
    return {as<uint64_t>(packed), as<uint8_t>(valid)};
}

}  // namespace

void find_neighbors(const NeighborQuery& query, int32_t* neighbors, int threads) {
    const TableView table = view_table(query.table, query.table_size);
    Memory packed, valid;
    const Targets targets = pack_targets(table, query, packed, valid, threads);
    const std::vector<Tap> taps = plan_taps(table, query);
    const int64_t blocks = divide_up(query.num_targets, target_block);
    auto row_of = [&](int64_t tap) { return tap < 0 ? nullptr : neighbors + tap * query.num_targets; };
    for (const Tap& tap : taps) {
        if (tap.partner >= 0) std::fill_n(row_of(tap.partner), query.num_targets, -1);
    }
    parallel_for(threads, int64_t(taps.size()) * blocks, [&](int64_t task, int) {
        const Tap& tap = taps[task / blocks];
        const int64_t begin = task % blocks * target_block;
        const Range range{begin, std::min(begin + target_block, query.num_targets)};
        int32_t* row = row_of(tap.index);
        if (!tap.packable) {
            look_up_far(table, query, tap, range, row);
        } else if (table.packing.words == 1) {
            look_up<1>(table, targets, tap, range, row, row_of(tap.partner));
        } else {
            look_up<0>(table, targets, tap, range, row, row_of(tap.partner));
        }
    });
}

void transpose_neighbors(const int32_t* neighbors, const int64_t* opposite, NeighborShape shape, int32_t* transposed,
                         int threads) {
    parallel_for(threads, shape.filter_size, [&](int64_t tap, int) {
        const int32_t* row = neighbors + tap * shape.num_target;
        int32_t* out = transposed + opposite[tap] * shape.num_source;
        std::fill_n(out, shape.num_source, -1);
        for (int64_t target = 0; target < shape.num_target; ++target) {
            if (row[target] >= 0) out[row[target]] = int32_t(target);
        }
    });
}

namespace {

DigitRange measure_rows(const int32_t* keys, int64_t rows, int64_t columns) {
    DigitRange range{};
    for (int64_t column = 0; column < columns; ++column) range.low[column] = range.high[column] = keys[column];
    for (int64_t row = 1; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
            const int64_t digit = keys[row * columns + column];
            range.low[column] = std::min(range.low[column], digit);
            range.high[column] = std::max(range.high[column], digit);
        }
    }
    return range;
}

}  // namespace

void index_rows(Index& index, const int32_t* keys, int64_t columns) {
    index.packing = plan_packing(columns, false, measure_rows(keys, index.rows, columns));
    parallel_for(index.threads, index.num_chunks, [&](int64_t chunk, int) {
        const int64_t words = index.packing.words, begin = chunk * index.chunk_rows;
        const int64_t count = std::min(index.chunk_rows, index.rows - begin);
        const Memory packed(sizeof(uint64_t) * count * words);
        int64_t row[max_columns];
        for (int64_t i = 0; i < count; ++i) {
            for (int64_t column = 0; column < columns; ++column) row[column] = keys[(begin + i) * columns + column];
            pack_row(index.packing, row, as<uint64_t>(packed) + i * words);
            index.vertices[begin + i] = int32_t(i);
        }
        index.store_chunk(chunk, as<uint64_t>(packed), count);
    });
    index.merge();
}

}  // namespace permutohedral
