#include <algorithm>
#include <vector>

#include "check.hpp"
#include "index/cell_grid.hpp"
#include "lattice_keys.hpp"

using namespace permutohedral;

namespace {

uint64_t cell_of(const CellGrid& grid, const std::vector<int64_t>& key) {
    uint64_t origin, linear;
    pack_origin(grid, &origin);
    pack_linear(grid, key.data(), &linear);
    return origin + linear;
}

// The cells of the keys, marked, give their packed keys in order.
void test_packed_keys(int64_t d, int64_t spread) {
    const std::vector<std::vector<int64_t>> keys = random_keys(d, 40, spread);
    const DigitReduction reduction = some_reduction(d);
    const DigitRange range = range_of(keys, reduction);
    const KeyPacking packing = plan_packing(d + 1, range, reduction);
    CellGrid grid;
    if (packing.num_words > 1 || !plan_grid(d + 1, range, reduction, max_cells, grid)) return;
    grid.groups = Memory(sizeof(CellGroup) * grid.num_groups());
    CellGroup* groups = as<CellGroup>(grid.groups);
    std::fill_n(groups, grid.num_groups(), CellGroup{0, 0});
    std::vector<uint64_t> expected;
    for (const std::vector<int64_t>& key : keys) {
        const uint64_t cell = cell_of(grid, key);
        CHECK(cell < uint64_t(grid.num_cells));
        groups[cell / group_cells].occupied |= uint32_t{1} << cell % group_cells;
        uint64_t packed;
        CHECK(pack_key(packing, key.data(), &packed));
        expected.push_back(packed);
    }
    std::sort(expected.begin(), expected.end());
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    uint32_t before = 0;
    for (int64_t g = 0; g < grid.num_groups(); ++g) {
        groups[g].num_before = before;
        before += uint32_t(__builtin_popcount(groups[g].occupied));
    }
    CHECK(before == expected.size());
    std::vector<uint64_t> packed(before);
    for (const int threads : {1, 2}) {
        write_packed_keys(grid, packing, packed.data(), threads);
        CHECK(packed == expected);
    }
}

}  // namespace

void test_cell_grid() {
    for (int64_t d = 1; d <= 6; ++d) {
        for (const int64_t spread : {1, 3, 100}) test_packed_keys(d, spread);
    }
    // as many cells as there may be, and no more
    DigitRange range{};
    range.high[0] = 0;
    range.high[1] = max_cells / 8 - 1;
    range.high[2] = 7;
    CellGrid grid;
    CHECK(plan_grid(3, range, DigitReduction{}, max_cells, grid) && grid.num_cells == max_cells);
    range.high[0] = 1;
    CHECK(!plan_grid(3, range, DigitReduction{}, max_cells, grid));
    range.high[0] = 0;
    CHECK(!plan_grid(3, range, DigitReduction{}, max_cells / cells_per_corner - 1, grid));
}
