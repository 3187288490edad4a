// Numbering of keys that are given, instead of found from points; and of their parents, on the lattice of twice the step.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "index/vertex_index.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t keys_per_task = 8192, parents_per_task = 4096;
constexpr int cache_bits = 13;

// Writes the digits of one key; see find_digits. C is the number of columns if known at compile time, else 0: dividing by a
// constant is much faster.
template <int C>
inline bool key_digits(const int32_t* key, Extent<C> columns, int64_t* digits) {
    bool valid = true;
    for (int64_t column = 0; column < columns; ++column) {
        digits[column] = key[column];
        if (column < 2) continue;
        const int64_t difference = int64_t(key[1]) - key[column];
        digits[column] = difference / columns;
        valid &= digits[column] * columns == difference;
    }
    return valid;
}

// The range of the digits; false if a key is no vertex of the lattice.
template <int C>
bool find_range(const int32_t* keys, int64_t count, Extent<C> columns, DigitRange& range) {
    int64_t digits[max_columns];
    // local, so that they stay in registers
    int64_t low[capacity_for<C, max_columns>], high[capacity_for<C, max_columns>];
    bool valid = key_digits<C>(keys, columns, digits);
    for (int64_t column = 0; column < columns; ++column) low[column] = high[column] = digits[column];
    for (int64_t i = 1; i < count && valid; ++i) {
        valid = key_digits<C>(keys + i * columns, columns, digits);
        for (int64_t column = 0; column < columns; ++column) {
            low[column] = std::min(low[column], digits[column]);
            high[column] = std::max(high[column], digits[column]);
        }
    }
    std::copy_n(low, int64_t(columns), range.low);
    std::copy_n(high, int64_t(columns), range.high);
    return valid;
}

// Packs a key that lies in the range of the packing.
template <int C, int W>
inline void pack_inside(const KeyPacking& packing, const int32_t* key, uint64_t* packed) {
    int64_t digits[max_columns];
    const Extent<C> columns(packing.num_columns);
    key_digits<C>(key, columns, digits);
    if constexpr (W == 1) {
        // in a register: the loop would wait for its own stores
        uint64_t word = 0;
        for (int64_t column = 0; column < columns; ++column) {
            word |= uint64_t(digits[column] - packing.low[column]) << packing.shift[column];
        }
        *packed = word;
    } else {
        for (int64_t w = 0; w < packing.num_words; ++w) packed[w] = 0;
        for (int64_t column = 0; column < columns; ++column) {
            packed[packing.word[column]] |= uint64_t(digits[column] - packing.low[column]) << packing.shift[column];
        }
    }
}

// Lists the packed keys of a chunk and writes the position of each in the list; returns how many it lists. Keys that were
// met a while ago are listed again, and found when the lists are merged.
template <int C, int W>
int64_t list_keys(const KeyPacking& packing, const int32_t* keys, int64_t count, uint64_t* list, int32_t* positions) {
    const Extent<W> words(packing.num_words);
    // where the last key of each hash is listed
    std::vector<int32_t> last(size_t{1} << cache_bits, -1);
    int64_t listed = 0;
    for (int64_t i = 0; i < count; ++i) {
        uint64_t* key = list + listed * words;
        pack_inside<C, W>(packing, keys + i * Extent<C>(packing.num_columns), key);
        int32_t& place = last[hash_key<W>(key, words) >> (64 - cache_bits)];
        if (place < 0 || !same_key<W>(list + place * words, key, words)) place = int32_t(listed++);
        positions[i] = place;
    }
    return listed;
}

bool find_range_in_parallel(const int32_t* keys, const VertexIndex& index, int64_t num_columns, DigitRange& range) {
    const int64_t blocks = divide_up(index.num_points, keys_per_task);
    std::vector<DigitRange> ranges(blocks);
    std::vector<uint8_t> valid(blocks);
    parallel_for(index.threads, blocks, [&](int64_t b, int) {
        const int64_t begin = b * keys_per_task, count = std::min(keys_per_task, index.num_points - begin);
        dispatch<3, 4, 5, 6, 0>(num_columns, [&](auto columns) {
            constexpr int C = decltype(columns)::value;
            valid[b] = find_range<C>(keys + begin * num_columns, count, num_columns, ranges[b]);
        });
    });
    range = ranges[0];
    for (int64_t b = 1; b < blocks; ++b) {
        for (int64_t column = 0; column < num_columns; ++column) {
            range.low[column] = std::min(range.low[column], ranges[b].low[column]);
            range.high[column] = std::max(range.high[column], ranges[b].high[column]);
        }
    }
    return std::all_of(valid.begin(), valid.end(), [](uint8_t v) { return v != 0; });
}

// Which n_j - n_1 are odd, a bit for each of the d+1 coordinates. C is the number of columns if known at compile time,
// else 0; there are as many coordinates, since the last takes the place of the item.
template <int C>
inline uint64_t odd_coordinates(const int32_t* key, Extent<C> columns) {
    uint64_t odd = 0;
    int64_t sum = 0;
    // x_j - x_1 is a multiple of d+1, so that the quotient is exact
    for (int64_t j = 1; j < columns; ++j) {
        sum += key[j];
        odd |= uint64_t((int64_t(key[j]) - key[1]) / columns & 1) << (j - 1);
    }
    return odd | uint64_t((-sum - key[1]) / columns & 1) << (columns - 1);
}

template <int C>
void write_parents(const int32_t* keys, Extent<C> columns, Range range, int32_t* out) {
    for (int64_t v = range.begin; v < range.end; ++v) {
        const int32_t* key = keys + v * columns;
        int32_t* low = out + 2 * v * columns;
        int32_t* high = low + columns;
        const uint64_t odd = odd_coordinates<C>(key, columns);
        int64_t number = 0;
        for (int64_t j = 0; j < columns; ++j) number += int64_t(odd >> j & 1);
        low[0] = high[0] = key[0];
        for (int64_t j = 1; j < columns; ++j) {
            const int64_t step = columns * int64_t(odd >> (j - 1) & 1) - number;
            low[j] = int32_t((key[j] - step) >> 1);
            high[j] = int32_t((key[j] + step) >> 1);
        }
    }
}

}  // namespace

void index_keys(VertexIndex& index, const int32_t* keys, int64_t num_columns) {
    DigitRange range;
    if (!find_range_in_parallel(keys, index, num_columns, range)) {
        throw std::invalid_argument("keys must be vertices of the lattice: coordinates congruent modulo d + 1");
    }
    index.packing = plan_packing(num_columns, range, DigitReduction{});
    const int64_t words = index.packing.num_words;
    constexpr int64_t sample_size = 4096;
    const int64_t stride = std::max<int64_t>(1, index.num_points / sample_size),
                  count = divide_up(index.num_points, stride);
    std::vector<uint64_t> sample(count * words);
    for (int64_t i = 0; i < count; ++i) {
        pack_inside<0, 0>(index.packing, keys + i * stride * num_columns, sample.data() + i * words);
    }
    index.choose_ranges(sample.data(), count);
    parallel_for(index.threads, index.num_chunks, [&](int64_t chunk, int) {
        const int64_t begin = chunk * index.chunk_points;
        const int64_t count = std::min(index.chunk_points, index.num_points - begin);
        const Memory packed(sizeof(uint64_t) * (count + 1) * words);
        int64_t distinct = 0;
        dispatch<3, 4, 5, 6, 0>(num_columns, [&](auto columns) {
            constexpr int C = decltype(columns)::value;
            const auto list = words == 1 ? list_keys<C, 1> : list_keys<C, 0>;
            distinct =
                list(index.packing, keys + begin * num_columns, count, as<uint64_t>(packed), index.vertices + begin);
        });
        index.store_chunk(chunk, as<uint64_t>(packed), distinct);
    });
    index.merge();
}

void index_parents(VertexIndex& index, const int32_t* keys, int64_t num_columns) {
    const int64_t num_vertices = index.num_points / 2;
    const Memory memory(sizeof(int32_t) * 2 * num_vertices * num_columns);
    int32_t* parents = as<int32_t>(memory);
    parallel_ranges(index.threads, num_vertices, parents_per_task, [&](int64_t begin, int64_t end, int) {
        dispatch<3, 4, 5, 6, 0>(num_columns, [&](auto columns) {
            write_parents<decltype(columns)::value>(keys, num_columns, {begin, end}, parents);
        });
    });
    index_keys(index, parents, num_columns);
}

}  // namespace permutohedral
