#include "index/cell_grid.hpp"

#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t entry_block = 4096;

// From the number of a cell to its packed key, digit by digit. C is the number of columns.
template <int C>
class CellKeys {
public:
    CellKeys(const Grid& grid, const Packing& packing) {
        for (int64_t i = 0; i < C; ++i) {
            const int64_t column = ranked_column(i, C);
            inverse_[i] = 1.0 / double(grid.stride[column]);
            stride_[i] = uint32_t(grid.stride[column]);
            unit_[i] = uint64_t{1} << packing.shift[column];
        }
        for (int64_t column = 0; column < C; ++column) {
            origin_ += uint64_t(grid.low[column] - packing.low[column]) << packing.shift[column];
        }
    }

    uint64_t operator()(uint32_t cell) const {
        uint64_t key = origin_;
        for (int64_t i = 0; i < C; ++i) {
            // exact: half a cell is more than what the product is rounded by
            const uint32_t digit = uint32_t(int32_t((double(int32_t(cell)) + 0.5) * inverse_[i]));
            cell -= digit * stride_[i];
            key += digit * unit_[i];
        }
        return key;
    }

private:
    double inverse_[C];
    uint32_t stride_[C];
    uint64_t unit_[C], origin_ = 0;
};

template <int C>
void write_keys(const Grid& grid, const Packing& packing, uint64_t* packed, int threads) {
    const CellKeys<C> key_of(grid, packing);
    const GridEntry* entries = as<GridEntry>(grid.entries);
    parallel_ranges(threads, grid.num_entries(), entry_block, [&](int64_t begin, int64_t end, int) {
        uint64_t* key = packed + entries[begin].base;
        for (int64_t e = begin; e < end; ++e) {
            for (uint32_t marks = entries[e].marks; marks != 0; marks &= marks - 1) {
                *key++ = key_of(uint32_t(e * entry_cells + __builtin_ctz(marks)));
            }
        }
    });
}

}  // namespace

bool plan_grid(int64_t columns, const DigitRange& range, const Reduction& reduction, int64_t most, Grid& grid) {
    grid.columns = columns;
    grid.reduction = reduction;
    int64_t cells = 1;
    for (int64_t i = columns - 1; i >= 0; --i) {
        const int64_t column = ranked_column(i, columns);
        grid.low[column] = range.low[column];
        grid.stride[column] = cells;
        const int64_t values = range.high[column] - range.low[column] + 1;
        if (values > most / cells) return false;
        cells *= values;
    }
    grid.cells = cells;
    return true;
}

void pack_origin(const Grid& grid, uint64_t* cell) {
    *cell = 0;
    for (int64_t column = 0; column < grid.columns; ++column) *cell -= uint64_t(grid.low[column] * grid.stride[column]);
}

void pack_linear(const Grid& grid, const int64_t* row, uint64_t* addend) {
    int64_t digits[max_columns];
    find_digits(grid.columns, true, grid.reduction, row, digits);
    *addend = 0;
    for (int64_t column = 0; column < grid.columns; ++column) {
        *addend += uint64_t(digits[column] * grid.stride[column]);
    }
}

void write_packed_keys(const Grid& grid, const Packing& packing, uint64_t* packed, int threads) {
    switch (grid.columns) {
        case 2: return write_keys<2>(grid, packing, packed, threads);
        case 3: return write_keys<3>(grid, packing, packed, threads);
        case 4: return write_keys<4>(grid, packing, packed, threads);
        case 5: return write_keys<5>(grid, packing, packed, threads);
        case 6: return write_keys<6>(grid, packing, packed, threads);
        default: return write_keys<7>(grid, packing, packed, threads);
    }
}

}  // namespace permutohedral
