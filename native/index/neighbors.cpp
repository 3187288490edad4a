// Neighbors by walking along sorted keys.
#include "index/neighbors.hpp"

#include <algorithm>
#include <vector>

#include "index/key_packing.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t targets_per_task = 2048;
// taps walked together: they are independent, so the processor overlaps them
constexpr int64_t taps_at_once = 8;

// Place of the first sorted key not below `key`, by galloping search from `start`: cheap if it is near.
template <int W>
int64_t find_place(const LookupTable& table, const uint64_t* key, int64_t start) {
    const Extent<W> words(table.packing.num_words);
    const int64_t count = table.num_lattice_points;
    auto below = [&](int64_t place) { return less_key<W>(table.packed + place * words, key, words); };
    // throughout, the place lies in [low, high]
    int64_t low = 0, high = count;
    if (start < count && below(start)) {
        low = start + 1;
        for (int64_t step = 1; low + step < count; step *= 2) {
            if (!below(low + step - 1)) {
                high = low + step - 1;
                break;
            }
            low += step;
        }
    } else {
        high = start;
        for (int64_t step = 1; high - step >= 0; step *= 2) {
            if (below(high - step)) {
                low = high - step + 1;
                break;
            }
            high -= step;
        }
    }
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (below(middle)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct NeighborQuery {
    const int32_t* target_keys;  // [num_targets, 1 + d]
    int64_t num_targets;
    const int32_t* offsets;  // [filter_size, d]
    int64_t filter_size;
    const int64_t*
        opposite;  // [filter_size], the tap of the negative offset; null unless the targets are the table's keys
};

struct Tap {
    int64_t index;
    int64_t partner;  // tap of the opposite offset, filled in by the same walk; -1 if there is none
    bool packable;    // `addend` moves any packed key; else the offset may leave the margin
    std::vector<uint64_t> addend;
};

// The result, [filter_size, num_targets].
struct Output {
    int32_t* neighbors;
    int64_t num_targets;
    const uint32_t* order;  // vertex of each sorted key, or null

    int32_t* of_tap(int64_t tap) const { return tap < 0 ? nullptr : neighbors + tap * num_targets; }
    int64_t vertex_at(int64_t place) const { return order == nullptr ? place : order[place]; }
};

// The table's own keys as targets, one word each: several taps walk along the sorted keys side by side. The targets lie
// inside the margins, so no sum carries from one digit into another, and the moved keys are sorted like the keys.
void walk(const LookupTable& table, const Tap* taps, int64_t num_taps, Range range, const Output& output) {
    const uint64_t* packed = table.packed;
    const uint64_t* const end = packed + table.num_lattice_points;
    const uint64_t* at[taps_at_once];
    uint64_t addend[taps_at_once];
    int32_t* row[taps_at_once];
    int32_t* partner[taps_at_once];
    for (int64_t t = 0; t < num_taps; ++t) {
        addend[t] = taps[t].addend[0];
        row[t] = output.of_tap(taps[t].index);
        partner[t] = output.of_tap(taps[t].partner);
        const uint64_t first = packed[range.begin] + addend[t];
        at[t] = std::lower_bound(packed, end, first);
    }
    for (int64_t place = range.begin; place < range.end; ++place) {
        for (int64_t t = 0; t < num_taps; ++t) {
            const uint64_t key = packed[place] + addend[t];
            const uint64_t* next = at[t];
            int64_t skipped;
            do {
                // counted without branches: how many keys to skip is not predictable
                skipped = (next[0] < key) + (next[1] < key) + (next[2] < key) + (next[3] < key);
                next += skipped;
            } while (skipped == table_padding);
            at[t] = next;
            const bool found = *next == key && next < end;
            row[t][place] = found ? int32_t(next - packed) : -1;
            if (found && partner[t] != nullptr) partner[t][next - packed] = int32_t(place);
        }
    }
}

// Packed keys of the targets; `valid` is null if all could be packed.
struct PackedTargets {
    const uint64_t* packed;
    const uint8_t* valid;
};

// Any targets; fastest if they are sorted.
template <int W>
void search(const LookupTable& table, const PackedTargets& targets, const Tap& tap, Range range, const Output& output) {
    const Extent<W> words(table.packing.num_words);
    std::vector<uint64_t> key(words);
    int32_t* row = output.of_tap(tap.index);
    int32_t* partner = output.of_tap(tap.partner);
    int64_t place = 0;
    for (int64_t target = range.begin; target < range.end; ++target) {
        // without `valid` the targets are the table's own keys, in its order
        const int64_t out = targets.valid == nullptr ? output.vertex_at(target) : target;
        row[out] = -1;
        if (targets.valid != nullptr && targets.valid[target] == 0) continue;
        for (int64_t w = 0; w < words; ++w) key[w] = targets.packed[target * words + w] + tap.addend[w];
        place = find_place<W>(table, key.data(), place);
        if (place == table.num_lattice_points) continue;
        if (!same_key<W>(table.packed + place * words, key.data(), words)) continue;
        row[out] = int32_t(output.vertex_at(place));
        if (partner != nullptr) partner[output.vertex_at(place)] = int32_t(out);
    }
}

// An offset that may leave the margin: the key of each neighbor is packed, and checked, by itself.
void search_unpacked(const LookupTable& table, const NeighborQuery& query, const Tap& tap, Range range,
                     const Output& output) {
    const int64_t columns = table.packing.num_columns, words = table.packing.num_words;
    std::vector<uint64_t> key(words);
    int64_t sum[max_columns];
    int32_t* row = output.of_tap(tap.index);
    int64_t place = 0;
    for (int64_t target = range.begin; target < range.end; ++target) {
        const int32_t* target_key = query.target_keys + target * columns;
        sum[0] = target_key[0];
        for (int64_t column = 1; column < columns; ++column) {
            sum[column] = int64_t(target_key[column]) + query.offsets[tap.index * (columns - 1) + column - 1];
        }
        row[target] = -1;
        if (!pack_key(table.packing, sum, key.data())) continue;
        place = find_place<0>(table, key.data(), place);
        if (place == table.num_lattice_points) continue;
        if (same_key<0>(table.packed + place * words, key.data(), words))
            row[target] = int32_t(output.vertex_at(place));
    }
}

// The taps to look up. Where the targets are the table's keys, only one of two opposite taps: b is a's neighbor along an
// offset exactly if a is b's along the opposite one.
std::vector<Tap> plan_taps(const LookupTable& table, const NeighborQuery& query) {
    const int64_t d = table.packing.num_columns - 1;
    std::vector<Tap> taps;
    for (int64_t k = 0; k < query.filter_size; ++k) {
        Tap tap{k, -1, false, std::vector<uint64_t>(table.packing.num_words)};
        // the margins are symmetric, so this also holds for the opposite tap
        tap.packable = pack_offset(table.packing, query.offsets + k * d, tap.addend.data());
        if (query.opposite != nullptr && tap.packable) {
            if (query.opposite[k] < k) continue;
            if (query.opposite[k] > k) tap.partner = query.opposite[k];
        }
        taps.push_back(std::move(tap));
    }
    // those that can walk together come first
    std::stable_partition(taps.begin(), taps.end(), [](const Tap& tap) { return tap.packable; });
    return taps;
}

PackedTargets pack_targets(const LookupTable& table, const NeighborQuery& query, Memory& packed, Memory& valid,
                           int threads) {
    if (query.opposite != nullptr) return {table.packed, nullptr};
    const int64_t columns = table.packing.num_columns, words = table.packing.num_words;
    packed = Memory(sizeof(uint64_t) * query.num_targets * words);
    valid = Memory(query.num_targets);
    parallel_ranges(threads, query.num_targets, targets_per_task, [&](int64_t begin, int64_t end, int) {
        int64_t key[max_columns];
        for (int64_t target = begin; target < end; ++target) {
            for (int64_t column = 0; column < columns; ++column) {
                key[column] = query.target_keys[target * columns + column];
            }
            as<uint8_t>(valid)[target] = pack_key(table.packing, key, as<uint64_t>(packed) + target * words);
        }
    });
    return {as<uint64_t>(packed), as<uint8_t>(valid)};
}

}  // namespace

void find_neighbors(View<const int64_t, 1> words, Matrix<const int32_t> target_keys, Matrix<const int32_t> offsets,
                    std::optional<View<const int64_t, 1>> opposite, Matrix<int32_t> neighbors, int threads) {
    const LookupTable table = view_lookup_table(words.data, words.shape[0]);
    const NeighborQuery query{target_keys.data, target_keys.num_rows, offsets.data, offsets.num_rows,
                              opposite ? opposite->data : nullptr};
    Memory packed, valid;
    const PackedTargets targets = pack_targets(table, query, packed, valid, threads);
    const std::vector<Tap> taps = plan_taps(table, query);
    const Output output{neighbors.data, query.num_targets, table.order};
    parallel_for(threads, int64_t(taps.size()), [&](int64_t tap, int) {
        if (taps[tap].partner >= 0) std::fill_n(output.of_tap(taps[tap].partner), query.num_targets, -1);
    });
    const int64_t blocks = divide_up(query.num_targets, targets_per_task);
    const int64_t near = std::count_if(taps.begin(), taps.end(), [](const Tap& tap) { return tap.packable; });
    const bool walks = query.opposite != nullptr && table.order == nullptr && table.packing.num_words == 1;
    const int64_t walkable = walks ? near : 0, groups = divide_up(walkable, taps_at_once);
    parallel_for(threads, (groups + int64_t(taps.size()) - walkable) * blocks, [&](int64_t task, int) {
        const int64_t begin = task % blocks * targets_per_task, group = task / blocks;
        const Range range{begin, std::min(begin + targets_per_task, query.num_targets)};
        if (group < groups) {
            const int64_t first = group * taps_at_once;
            return walk(table, taps.data() + first, std::min(taps_at_once, walkable - first), range, output);
        }
        const Tap& tap = taps[walkable + group - groups];
        if (!tap.packable) return search_unpacked(table, query, tap, range, output);
        if (table.packing.num_words == 1) return search<1>(table, targets, tap, range, output);
        search<0>(table, targets, tap, range, output);
    });
}

void transpose_neighbors(NeighborTable neighbors, View<const int64_t, 1> opposite, Matrix<int32_t> transposed,
                         int threads) {
    const int64_t num_sources = transposed.num_channels;
    parallel_for(threads, neighbors.filter_size, [&](int64_t tap, int) {
        const int32_t* row = neighbors.data + tap * neighbors.num_targets;
        int32_t* out = transposed.data + opposite.data[tap] * num_sources;
        std::fill_n(out, num_sources, -1);
        for (int64_t target = 0; target < neighbors.num_targets; ++target) {
            if (row[target] >= 0) out[row[target]] = int32_t(target);
        }
    });
}

}  // namespace permutohedral
