#include "index/key_packing.hpp"

#include <algorithm>
#include <cstring>

namespace permutohedral {
namespace {

constexpr int64_t word_bits = 64;
constexpr int64_t fixed_fields = 3;
constexpr int64_t column_fields = 5;
// in steps of the lattice; a filter that reaches further is looked up digit by digit
constexpr int64_t margins[] = {64, 16, 4};

int64_t bits_for(int64_t values) {
    int64_t bits = 0;
    while (bits < 63 && (int64_t{1} << bits) < values) ++bits;
    return bits;
}

// Lays the columns out for a margin of `steps`; returns the number of words.
int64_t lay_out(Packing& packing, const DigitRange& range, const DigitReach& reach, int64_t steps) {
    int64_t word = 0, used = 0;
    for (int64_t i = 0; i < packing.columns; ++i) {
        const int64_t column = ranked_column(i, packing.columns);
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
        // a digit of no bits stays inside the word
        packing.shift[column] = packing.bits[column] > 0 ? word_bits - used : 0;
    }
    return word + 1;
}

// Calls function(rank, other) for the factors of a reduction that may not be zero.
template <class Function>
void for_factors(int64_t columns, Function&& function) {
    const int64_t d = columns - 1;
    for (int64_t rank = 1; rank < d && d <= max_reduced; ++rank) {
        for (int64_t other = 0; other < rank; ++other) function(rank, other);
    }
}

// What the digit of a column counts in its word.
uint64_t unit_of(const Packing& packing, int64_t column) {
    return packing.bits[column] > 0 ? uint64_t{1} << packing.shift[column] : uint64_t{0};
}

}  // namespace

Packing plan_packing(int64_t columns, bool lattice, const DigitRange& range, const Reduction& reduction) {
    Packing packing{};
    packing.columns = columns;
    packing.lattice = lattice;
    packing.reduction = reduction;
    DigitReach reach = find_reach(columns, reduction);
    // a step changes a coordinate by d at most
    if (!lattice) std::fill(reach.step + 1, reach.step + columns, columns - 1);
    for (const int64_t steps : margins) {
        packing.words = lay_out(packing, range, reach, steps);
        if (packing.words == 1) break;
    }
    return packing;
}

bool pack_row(const Packing& packing, const int64_t* row, uint64_t* key) {
    int64_t digits[max_columns];
    if (!find_digits(packing.columns, packing.lattice != 0, packing.reduction, row, digits)) return false;
    std::memset(key, 0, sizeof(uint64_t) * packing.words);
    for (int64_t column = 0; column < packing.columns; ++column) {
        const int64_t digit = digits[column] - packing.low[column];
        if (digit < 0 || (digit >> packing.bits[column]) != 0) return false;
        key[packing.word[column]] |= uint64_t(digit) << packing.shift[column];
    }
    return true;
}

void pack_origin(const Packing& packing, uint64_t* key) {
    std::memset(key, 0, sizeof(uint64_t) * packing.words);
    for (int64_t column = 0; column < packing.columns; ++column) {
        key[packing.word[column]] -= uint64_t(packing.low[column]) * unit_of(packing, column);
    }
}

void pack_linear(const Packing& packing, const int64_t* row, uint64_t* addend) {
    int64_t digits[max_columns];
    find_digits(packing.columns, packing.lattice != 0, packing.reduction, row, digits);
    std::memset(addend, 0, sizeof(uint64_t) * packing.words);
    for (int64_t column = 0; column < packing.columns; ++column) {
        addend[packing.word[column]] += uint64_t(digits[column]) * unit_of(packing, column);
    }
}

namespace {

// C is the number of columns if known at compile time, else 0.
template <int C>
void unpack_rows_of(const Packing& packing, const uint64_t* keys, int64_t count, int32_t* rows) {
    const int64_t columns = C > 0 ? C : packing.columns, d = columns - 1;
    const bool lattice = packing.lattice != 0, reduced = lattice && d <= max_reduced;
    uint64_t mask[max_columns];
    for (int64_t column = 0; column < columns; ++column) mask[column] = (uint64_t{1} << packing.bits[column]) - 1;
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t* key = keys + i * packing.words;
        uint32_t digits[C > 0 ? C : max_columns];
        for (int64_t column = 0; column < columns; ++column) {
            const uint64_t packed = (key[packing.word[column]] >> packing.shift[column]) & mask[column];
            digits[column] = uint32_t(packed) + uint32_t(packing.low[column]);
        }
        // from the least significant on: a digit took those before it as they are
        for (int64_t rank = d - 1; rank > 0 && reduced; --rank) {
            uint32_t& digit = digits[ranked_column(rank + 1, columns)];
            for (int64_t other = 0; other < rank; ++other) {
                digit -= uint32_t(packing.reduction.factor[rank][other]) * digits[ranked_column(other + 1, columns)];
            }
        }
        int32_t* row = rows + i * columns;
        for (int64_t column = 0; column < columns; ++column) {
            const bool difference = lattice && column > 1;
            row[column] = int32_t(difference ? digits[1] - digits[column] * uint32_t(columns) : digits[column]);
        }
    }
}

}  // namespace

void unpack_rows(const Packing& packing, const uint64_t* keys, int64_t count, int32_t* rows) {
    switch (packing.columns) {
        case 3: return unpack_rows_of<3>(packing, keys, count, rows);
        case 4: return unpack_rows_of<4>(packing, keys, count, rows);
        case 5: return unpack_rows_of<5>(packing, keys, count, rows);
        case 6: return unpack_rows_of<6>(packing, keys, count, rows);
        default: return unpack_rows_of<0>(packing, keys, count, rows);
    }
}

bool pack_offset(const Packing& packing, const int32_t* offset, uint64_t* addend) {
    int64_t row[max_columns] = {0}, digits[max_columns];
    for (int64_t column = 1; column < packing.columns; ++column) row[column] = offset[column - 1];
    if (!find_digits(packing.columns, packing.lattice != 0, packing.reduction, row, digits)) return false;
    std::memset(addend, 0, sizeof(uint64_t) * packing.words);
    for (int64_t column = 1; column < packing.columns; ++column) {
        if (digits[column] > packing.margin[column] || digits[column] < -packing.margin[column]) return false;
        addend[packing.word[column]] += uint64_t(digits[column]) << packing.shift[column];
    }
    return true;
}

int64_t packing_size(int64_t columns) {
    const int64_t d = columns - 1, reduced = d <= max_reduced ? d * (d - 1) / 2 : 0;
    return fixed_fields + column_fields * columns + reduced;
}

void write_packing(const Packing& packing, int64_t* out) {
    const int64_t* fields[] = {packing.low, packing.margin, packing.bits, packing.word, packing.shift};
    *out++ = packing.columns;
    *out++ = packing.words;
    *out++ = packing.lattice;
    for (const int64_t* field : fields) {
        std::memcpy(out, field, sizeof(int64_t) * packing.columns);
        out += packing.columns;
    }
    for_factors(packing.columns, [&](int64_t rank, int64_t other) { *out++ = packing.reduction.factor[rank][other]; });
}

bool read_packing(const int64_t* in, int64_t available, Packing& packing) {
    if (available < fixed_fields || in[0] < 2 || in[0] > max_columns || available < packing_size(in[0])) return false;
    packing.columns = *in++;
    packing.words = *in++;
    packing.lattice = *in++;
    int64_t* fields[] = {packing.low, packing.margin, packing.bits, packing.word, packing.shift};
    for (int64_t* field : fields) {
        std::memcpy(field, in, sizeof(int64_t) * packing.columns);
        in += packing.columns;
    }
    for_factors(packing.columns, [&](int64_t rank, int64_t other) { packing.reduction.factor[rank][other] = *in++; });
    return true;
}

}  // namespace permutohedral
