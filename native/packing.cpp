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

// Lays the columns out for a margin of `steps`; returns the number of words.
int64_t lay_out(Packing& packing, const DigitRange& range, int64_t steps) {
    const int64_t d = packing.columns - 1;
    int64_t word = 0, used = 0;
    for (int64_t column = 0; column < packing.columns; ++column) {
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
        packing.shift[column] = used;
        used += packing.bits[column];
    }
    return word + 1;
}

// The digit of one column; false where the row is no vertex.
bool digit_of(const Packing& packing, const int64_t* row, int64_t column, int64_t& digit) {
    digit = row[column];
    if (packing.lattice == 0 || column < 2) return true;
    const int64_t difference = row[column] - row[1];
    digit = difference / packing.columns;
    return digit * packing.columns == difference;
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

bool pack_row(const Packing& packing, const int64_t* row, uint64_t* key) {
    std::memset(key, 0, sizeof(uint64_t) * packing.words);
    for (int64_t column = 0; column < packing.columns; ++column) {
        int64_t digit;
        if (!digit_of(packing, row, column, digit)) return false;
        digit -= packing.low[column];
        if (digit < 0 || (digit >> packing.bits[column]) != 0) return false;
        // a column of no bits may sit at shift 64
        if (packing.bits[column] > 0) key[packing.word[column]] |= uint64_t(digit) << packing.shift[column];
    }
    return true;
}

void unpack_row(const Packing& packing, const uint64_t* key, int32_t* row) {
    for (int64_t column = 0; column < packing.columns; ++column) {
        const int64_t bits = packing.bits[column];
        const uint64_t mask = (uint64_t{1} << bits) - 1;
        const uint64_t packed = bits > 0 ? (key[packing.word[column]] >> packing.shift[column]) & mask : 0;
        const int64_t digit = int64_t(packed) + packing.low[column];
        const bool difference = packing.lattice != 0 && column >= 2;
        row[column] = int32_t(difference ? digit * packing.columns + row[1] : digit);
    }
}

bool pack_offset(const Packing& packing, const int32_t* offset, uint64_t* addend) {
    std::memset(addend, 0, sizeof(uint64_t) * packing.words);
    int64_t row[max_columns] = {0};
    for (int64_t column = 1; column < packing.columns; ++column) row[column] = offset[column - 1];
    for (int64_t column = 1; column < packing.columns; ++column) {
        int64_t digit;
        if (!digit_of(packing, row, column, digit)) return false;
        if (digit > packing.margin[column] || digit < -packing.margin[column]) return false;
        if (packing.bits[column] > 0) addend[packing.word[column]] += uint64_t(digit) << packing.shift[column];
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
