#include "index/key_packing.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace permutohedral {
namespace {

constexpr int64_t word_bits = 64;
// layout of a serialized packing: numbers at its front, numbers per column, factors of the reduction
constexpr int64_t fixed_fields = 3, column_fields = 5, num_factors = max_reduced * max_reduced;
// the first word, which no table of another backend begins with
constexpr int64_t table_tag = 0x31656c6261742f68;
// in steps along an axis, tried in turn; where a filter reaches further, the keys of neighbors are packed one by one
constexpr int64_t margins[] = {64, 16, 4};

int64_t bits_for(int64_t num_values) {
    int64_t bits = 0;
    while (bits < 63 && (int64_t{1} << bits) < num_values) ++bits;
    return bits;
}

// Assigns words and bits to the columns, with a margin of `steps`; returns the number of words.
int64_t lay_out(KeyPacking& packing, const DigitRange& range, const DigitReach& reach, int64_t steps) {
    int64_t word = 0, used = 0;
    for (int64_t i = 0; i < packing.num_columns; ++i) {
        const int64_t column = ranked_column(i, packing.num_columns);
        const int64_t margin = steps * reach.step[column];
        packing.low[column] = range.low[column] - margin;
        packing.bits[column] = bits_for(range.high[column] - range.low[column] + 1 + 2 * margin);
        packing.margin[column] = margin;
        if (used + packing.bits[column] > word_bits) {
            ++word;
            used = 0;
        }
        packing.word[column] = word;
        used += packing.bits[column];
        // a shift by all 64 bits is undefined, so a digit without bits gets 0
        packing.shift[column] = packing.bits[column] > 0 ? word_bits - used : 0;
    }
    return word + 1;
}

// What one unit of a digit adds to its word.
uint64_t unit_of(const KeyPacking& packing, int64_t column) {
    return packing.bits[column] > 0 ? uint64_t{1} << packing.shift[column] : uint64_t{0};
}

}  // namespace

KeyPacking plan_packing(int64_t num_columns, const DigitRange& range, const DigitReduction& reduction) {
    KeyPacking packing{};
    packing.num_columns = num_columns;
    packing.reduction = reduction;
    const DigitReach reach = find_reach(num_columns, reduction);
    for (const int64_t steps : margins) {
        packing.num_words = lay_out(packing, range, reach, steps);
        if (packing.num_words == 1) break;
    }
    return packing;
}

bool pack_key(const KeyPacking& packing, const int64_t* key, uint64_t* packed) {
    int64_t digits[max_columns];
    if (!find_digits(packing.num_columns, packing.reduction, key, digits)) return false;
    std::memset(packed, 0, sizeof(uint64_t) * packing.num_words);
    for (int64_t column = 0; column < packing.num_columns; ++column) {
        const int64_t digit = digits[column] - packing.low[column];
        if (digit < 0 || (digit >> packing.bits[column]) != 0) return false;
        packed[packing.word[column]] |= uint64_t(digit) << packing.shift[column];
    }
    return true;
}

void pack_origin(const KeyPacking& packing, uint64_t* packed) {
    std::memset(packed, 0, sizeof(uint64_t) * packing.num_words);
    for (int64_t column = 0; column < packing.num_columns; ++column) {
        packed[packing.word[column]] -= uint64_t(packing.low[column]) * unit_of(packing, column);
    }
}

void pack_linear(const KeyPacking& packing, const int64_t* key, uint64_t* addend) {
    int64_t digits[max_columns];
    find_digits(packing.num_columns, packing.reduction, key, digits);
    std::memset(addend, 0, sizeof(uint64_t) * packing.num_words);
    for (int64_t column = 0; column < packing.num_columns; ++column) {
        addend[packing.word[column]] += uint64_t(digits[column]) * unit_of(packing, column);
    }
}

namespace {

// C is the number of columns if known at compile time, else 0.
template <int C>
void unpack_keys_of(const KeyPacking& packing, const uint64_t* packed_keys, int64_t count, int32_t* keys) {
    const Extent<C> columns(packing.num_columns);
    const int64_t d = columns - 1;
    const bool reduced = d <= max_reduced;
    uint64_t mask[max_columns];
    for (int64_t column = 0; column < columns; ++column) mask[column] = (uint64_t{1} << packing.bits[column]) - 1;
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t* words = packed_keys + i * packing.num_words;
        uint32_t digits[capacity_for<C, max_columns>];
        for (int64_t column = 0; column < columns; ++column) {
            const uint64_t packed = (words[packing.word[column]] >> packing.shift[column]) & mask[column];
            digits[column] = uint32_t(packed) + uint32_t(packing.low[column]);
        }
        // undo the reduction, the least significant digit first: it was made from more significant, reduced ones
        for (int64_t rank = d - 1; rank > 0 && reduced; --rank) {
            uint32_t& digit = digits[ranked_column(rank + 1, columns)];
            for (int64_t other = 0; other < rank; ++other) {
                digit -= uint32_t(packing.reduction.factor[rank][other]) * digits[ranked_column(other + 1, columns)];
            }
        }
        int32_t* key = keys + i * columns;
        for (int64_t column = 0; column < columns; ++column) {
            key[column] = int32_t(column > 1 ? digits[1] - digits[column] * uint32_t(columns) : digits[column]);
        }
    }
}

}  // namespace

void unpack_keys(const KeyPacking& packing, const uint64_t* packed, int64_t count, int32_t* keys) {
    dispatch<3, 4, 5, 6, 0>(packing.num_columns, [&](auto columns) {
        unpack_keys_of<decltype(columns)::value>(packing, packed, count, keys);
    });
}

bool pack_offset(const KeyPacking& packing, const int32_t* offset, uint64_t* addend) {
    int64_t key[max_columns] = {0}, digits[max_columns];
    for (int64_t column = 1; column < packing.num_columns; ++column) key[column] = offset[column - 1];
    if (!find_digits(packing.num_columns, packing.reduction, key, digits)) return false;
    std::memset(addend, 0, sizeof(uint64_t) * packing.num_words);
    for (int64_t column = 1; column < packing.num_columns; ++column) {
        if (digits[column] > packing.margin[column] || digits[column] < -packing.margin[column]) return false;
        addend[packing.word[column]] += uint64_t(digits[column]) << packing.shift[column];
    }
    return true;
}

int64_t packing_size(int64_t num_columns) { return fixed_fields + column_fields * num_columns + num_factors; }

void write_packing(const KeyPacking& packing, int64_t* out) {
    const int64_t* fields[] = {packing.low, packing.margin, packing.bits, packing.word, packing.shift};
    *out++ = table_tag;
    *out++ = packing.num_columns;
    *out++ = packing.num_words;
    for (const int64_t* field : fields) {
        std::memcpy(out, field, sizeof(int64_t) * packing.num_columns);
        out += packing.num_columns;
    }
    std::memcpy(out, packing.reduction.factor, sizeof(packing.reduction.factor));
}

bool read_packing(const int64_t* in, int64_t available, KeyPacking& packing) {
    if (available < fixed_fields || *in++ != table_tag) return false;
    if (in[0] < 2 || in[0] > max_columns || available < packing_size(in[0])) return false;
    packing.num_columns = *in++;
    packing.num_words = *in++;
    int64_t* fields[] = {packing.low, packing.margin, packing.bits, packing.word, packing.shift};
    for (int64_t* field : fields) {
        std::memcpy(field, in, sizeof(int64_t) * packing.num_columns);
        in += packing.num_columns;
    }
    std::memcpy(packing.reduction.factor, in, sizeof(packing.reduction.factor));
    return true;
}

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
