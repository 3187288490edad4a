#include "packing.hpp"

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

// The column of the i-th most significant digit: item, the differences, c_0.
int64_t ranked_column(int64_t i, int64_t columns) {
    if (i == 0) return 0;
    return i == columns - 1 ? 1 : i + 1;
}

// Lays the columns out for a margin of `steps`; returns the number of words.
int64_t lay_out(Packing& packing, const DigitRange& range, int64_t steps) {
    const int64_t d = packing.columns - 1;
    int64_t word = 0, used = 0;
    for (int64_t i = 0; i < packing.columns; ++i) {
        const int64_t column = ranked_column(i, packing.columns);
        const bool whole = packing.lattice == 0 || column == 1;
        const int64_t margin = column == 0 ? 0 : whole ? steps * d : steps;
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

}  // namespace

Packing plan_packing(int64_t columns, bool lattice, const DigitRange& range) {
    Packing packing{};
    packing.columns = columns;
    packing.lattice = lattice;
    for (const int64_t steps : margins) {
        packing.words = lay_out(packing, range, steps);
        if (packing.words == 1) break;
    }
    return packing;
}

bool find_digits(int64_t columns, bool lattice, const int64_t* row, int64_t* digits) {
    for (int64_t column = 0; column < columns; ++column) {
        digits[column] = row[column];
        if (!lattice || column < 2) continue;
        const int64_t difference = row[column] - row[1];
        digits[column] = difference / columns;
        if (digits[column] * columns != difference) return false;
    }
    return true;
}

bool pack_row(const Packing& packing, const int64_t* row, uint64_t* key) {
    int64_t digits[max_columns];
    if (!find_digits(packing.columns, packing.lattice != 0, row, digits)) return false;
    std::memset(key, 0, sizeof(uint64_t) * packing.words);
    for (int64_t column = 0; column < packing.columns; ++column) {
        const int64_t digit = digits[column] - packing.low[column];
        if (digit < 0 || (digit >> packing.bits[column]) != 0) return false;
        key[packing.word[column]] |= uint64_t(digit) << packing.shift[column];
    }
    return true;
}

void unpack_rows(const Packing& packing, const uint64_t* keys, int64_t count, int32_t* rows) {
    const int64_t columns = packing.columns;
    uint64_t mask[max_columns];
    uint32_t low[max_columns];
    for (int64_t column = 0; column < columns; ++column) {
        mask[column] = (uint64_t{1} << packing.bits[column]) - 1;
        low[column] = uint32_t(packing.low[column]);
    }
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t* key = keys + i * packing.words;
        int32_t* row = rows + i * columns;
        uint32_t factor = 1, base = 0;
        for (int64_t column = 0; column < columns; ++column) {
            const uint64_t packed = (key[packing.word[column]] >> packing.shift[column]) & mask[column];
            const uint32_t coordinate = (uint32_t(packed) + low[column]) * factor + base;
            row[column] = int32_t(coordinate);
            if (column == 1 && packing.lattice != 0) {
                factor = uint32_t(columns);
                base = coordinate;
            }
        }
    }
}

bool pack_offset(const Packing& packing, const int32_t* offset, uint64_t* addend) {
    int64_t row[max_columns] = {0}, digits[max_columns];
    for (int64_t column = 1; column < packing.columns; ++column) row[column] = offset[column - 1];
    if (!find_digits(packing.columns, packing.lattice != 0, row, digits)) return false;
    std::memset(addend, 0, sizeof(uint64_t) * packing.words);
    for (int64_t column = 1; column < packing.columns; ++column) {
        if (digits[column] > packing.margin[column] || digits[column] < -packing.margin[column]) return false;
        addend[packing.word[column]] += uint64_t(digits[column]) << packing.shift[column];
    }
    return true;
}

int64_t packing_size(int64_t columns) { return fixed_fields + column_fields * columns; }

void write_packing(const Packing& packing, int64_t* out) {
    const int64_t* fields[] = {packing.low, packing.margin, packing.bits, packing.word, packing.shift};
    *out++ = packing.columns;
    *out++ = packing.words;
    *out++ = packing.lattice;
    for (const int64_t* field : fields) {
        std::memcpy(out, field, sizeof(int64_t) * packing.columns);
        out += packing.columns;
    }
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
    return true;
}

}  // namespace permutohedral
