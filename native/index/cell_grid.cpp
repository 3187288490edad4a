#include "index/cell_grid.hpp"

#include <algorithm>
#include <limits>

#include "runtime/dispatch.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t groups_per_task = 4096;

// From the number of a cell to its packed key, digit by digit. C is the number of columns.
//
// The number is divided by each stride through its reciprocal, in double precision. The quotient (cell + 1/2) / stride
// is at least 1 / (2 stride) away from every integer, a relative distance of 1 / (2 cell + 1), while reciprocal and
// product together are rounded by less than 2^-51 of it: the integer part is exact for all cells below 2^50.
static_assert(max_cells <= std::numeric_limits<int32_t>::max(), "a cell must fit int32, and stay below 2^50");

template <int C>
class CellKeys {
public:
    CellKeys(const CellGrid& grid, const KeyPacking& packing) {
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
void write_keys(const CellGrid& grid, const KeyPacking& packing, uint64_t* packed, int threads) {
    const CellKeys<C> key_of(grid, packing);
    const CellGroup* groups = as<CellGroup>(grid.groups);
    parallel_ranges(threads, grid.num_groups(), groups_per_task, [&](int64_t begin, int64_t end, int) {
        uint64_t* key = packed + groups[begin].num_before;
        for (int64_t g = begin; g < end; ++g) {
            for (uint32_t left = groups[g].occupied; left != 0; left &= left - 1) {
                *key++ = key_of(uint32_t(g * group_cells + __builtin_ctz(left)));
            }
        }
    });
}

}  // namespace

bool plan_grid(int64_t num_columns, const DigitRange& range, const DigitReduction& reduction, int64_t num_corners,
               CellGrid& grid) {
    const int64_t most = std::min(max_cells, cells_per_corner * num_corners);
    grid.num_columns = num_columns;
    grid.reduction = reduction;
    int64_t cells = 1;
    for (int64_t i = num_columns - 1; i >= 0; --i) {
        const int64_t column = ranked_column(i, num_columns);
        grid.low[column] = range.low[column];
        grid.stride[column] = cells;
        const int64_t num_values = range.high[column] - range.low[column] + 1;
        if (num_values > most / cells) return false;
        cells *= num_values;
    }
    grid.num_cells = cells;
    return true;
}

void pack_origin(const CellGrid& grid, uint64_t* cell) {
    *cell = 0;
    for (int64_t column = 0; column < grid.num_columns; ++column)
        *cell -= uint64_t(grid.low[column] * grid.stride[column]);
}

void pack_linear(const CellGrid& grid, const int64_t* key, uint64_t* addend) {
    int64_t digits[max_columns];
    find_digits(grid.num_columns, grid.reduction, key, digits);
    *addend = 0;
    for (int64_t column = 0; column < grid.num_columns; ++column) {
        *addend += uint64_t(digits[column] * grid.stride[column]);
    }
}

void write_packed_keys(const CellGrid& grid, const KeyPacking& packing, uint64_t* packed, int threads) {
    static_assert(max_grid_dimension == 6, "a constant for each number of columns");
    dispatch<2, 3, 4, 5, 6, 7>(
        grid.num_columns, [&](auto columns) { write_keys<decltype(columns)::value>(grid, packing, packed, threads); });
}

}  // namespace permutohedral
