// The vertices of the lattice of twice the step, and the simplices of the points there. Compiled once per instruction set.
#include <vector>

#include "index/cell_marks.hpp"
#include "index/coarsen.hpp"
#include "index/lookup_table.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t vertices_per_task = 4096;
// in a row of coarse corners: the fine vertex is a coarse one itself
constexpr int32_t coincides = INT32_MIN;

// The digits of e_S, by column, for the set S of coordinates given by bits.
void digits_of_set(const KeyPacking& packing, uint64_t set, int64_t* digits) {
    const int64_t columns = packing.num_columns;
    int64_t key[max_columns] = {0}, members = 0;
    for (int64_t j = 0; j < columns; ++j) members += int64_t(set >> j & 1);
    for (int64_t j = 0; j + 1 < columns; ++j) key[j + 1] = columns * int64_t(set >> j & 1) - members;
    find_digits(columns, true, packing.reduction, key, digits);
}

// Digits are linear in the key, and any digits belong to a vertex. So the digits of a vertex x and of e_S have the same
// parities for one set S (and its complement), and (x - e_S) / 2 has half the difference of their digits.
template <int C>
class ParentCells {
public:
    static constexpr int num_classes = 1 << (C - 1);

    // Plans packing and grid of the coarse vertices; false if the grid would be too large.
    bool plan(const LookupTable& fine, VertexIndex& index) {
        DigitRange range = find_range(fine), reach{};
        for (int s = 0; s < num_classes; ++s) {
            // S without the first coordinate, as its complement means the same
            int64_t digits[max_columns];
            digits_of_set(fine.packing, uint64_t(s) << 1, digits);
            int parity = 0;
            for (int64_t column = 1; column < C; ++column) {
                parity |= int(digits[column] & 1) << (column - 1);
                reach.high[column] = std::max(reach.high[column], std::abs(digits[column]));
            }
            for (int64_t column = 1; column < C; ++column) set_digits_[parity][column] = digits[column];
        }
        for (int64_t column = 1; column < C; ++column) {
            range.low[column] = (range.low[column] - reach.high[column]) >> 1;
            range.high[column] = (range.high[column] + reach.high[column]) >> 1;
        }
        index.packing = plan_packing(C, true, range, fine.packing.reduction);
        const bool fits = plan_grid(C, range, fine.packing.reduction, index.num_points, index.grid);
        if (index.packing.num_words != 1 || !fits) {
            index.grid.num_cells = 0;
            return false;
        }
        prepare(fine.packing, index.grid);
        return true;
    }

    // Writes the cells of both parents of some vertices, and marks them.
    void mark(const LookupTable& fine, Range range, CellGroup* marks, int32_t* cells) const {
        for (int64_t v = range.begin; v < range.end; ++v) {
            const uint64_t word = fine.packed[v];
            int64_t digit[C];
            int parity = parity_;
            for (int column = 1; column < C; ++column) {
                digit[column] = int64_t(word >> shift_[column] & mask_[column]);
                parity ^= int(digit[column] & 1) << (column - 1);
            }
            int64_t cell = origin_ + int64_t(word >> shift_[0] & mask_[0]) * stride_[0];
            for (int column = 1; column < C; ++column) {
                cell += ((digit[column] + halved_[parity][column]) >> 1) * stride_[column];
            }
            cells[2 * v] = int32_t(cell);
            cells[2 * v + 1] = int32_t(cell + step_[parity]);
            mark_cell(marks, uint32_t(cell));
            mark_cell(marks, uint32_t(cell + step_[parity]));
        }
    }

private:
    static DigitRange find_range(const LookupTable& fine) {
        const KeyPacking& packing = fine.packing;
        uint64_t low[C], high[C] = {0}, mask[C];
        for (int column = 0; column < C; ++column) {
            low[column] = ~uint64_t{0};
            mask[column] = (uint64_t{1} << packing.bits[column]) - 1;
        }
        for (int64_t v = 0; v < fine.num_lattice_points; ++v) {
            for (int column = 0; column < C; ++column) {
                const uint64_t digit = fine.packed[v] >> packing.shift[column] & mask[column];
                low[column] = std::min(low[column], digit);
                high[column] = std::max(high[column], digit);
            }
        }
        DigitRange range{};
        for (int column = 0; column < C; ++column) {
            range.low[column] = int64_t(low[column]) + packing.low[column];
            range.high[column] = int64_t(high[column]) + packing.low[column];
        }
        return range;
    }

    // what `mark` adds to the packed digits, which are counted from the lowest one
    void prepare(const KeyPacking& packing, const CellGrid& grid) {
        origin_ = (packing.low[0] - grid.low[0]) * grid.stride[0];
        for (int column = 0; column < C; ++column) {
            shift_[column] = packing.shift[column];
            mask_[column] = (uint64_t{1} << packing.bits[column]) - 1;
            stride_[column] = grid.stride[column];
            if (column == 0) continue;
            parity_ |= int(packing.low[column] & 1) << (column - 1);
            origin_ -= grid.low[column] * grid.stride[column];
        }
        for (int s = 0; s < num_classes; ++s) {
            for (int column = 1; column < C; ++column) {
                halved_[s][column] = packing.low[column] - set_digits_[s][column];
                step_[s] += set_digits_[s][column] * grid.stride[column];
            }
        }
    }

    int64_t set_digits_[num_classes][C] = {}, halved_[num_classes][C] = {}, step_[num_classes] = {};
    int64_t shift_[C], stride_[C], origin_ = 0;
    uint64_t mask_[C];
    int parity_ = 0;
};

template <int C>
bool index_by_cells(VertexIndex& index, const LookupTable& fine) {
    ParentCells<C> cells;
    if (!cells.plan(fine, index)) return false;
    clear_marks(index.grid, index.threads);
    CellGroup* marks = as<CellGroup>(index.grid.groups);
    parallel_ranges(index.threads, fine.num_lattice_points, vertices_per_task,
                    [&](int64_t begin, int64_t end, int) { cells.mark(fine, {begin, end}, marks, index.vertices); });
    number_marked_cells(index);
    return true;
}

// Of each fine vertex, by corner: the row plus one of the coarse vertex that it has a part in, or 0.
template <int C>
void list_coarse_corners(const CoarseSimplices& coarse, Extent<C> corners, Range range, int32_t* rows) {
    std::fill(rows + range.begin * corners, rows + range.end * corners, 0);
    for (int64_t v = range.begin; v < range.end; ++v) {
        const int32_t low = coarse.parents[2 * v], high = coarse.parents[2 * v + 1];
        for (const int32_t parent : {low, high}) {
            // corner j is the vertex whose coordinates are congruent to j modulo d+1
            const int64_t remainder = coarse.coarse_keys[parent * int64_t(corners) + 1] % corners;
            const int64_t corner = remainder < 0 ? remainder + corners : remainder;
            rows[v * corners + corner] = (parent + 1) | (low == high ? coincides : 0);
        }
    }
}

// The rows of coarse corners of one simplex, or of two side by side, for the corner of each that `own` begins with.
template <int Points>
inline auto rows_of_corners(const int32_t* rows, const int32_t* own) {
    const auto first = load<int32_t, 4>(rows + own[0] * int64_t(4));
    if constexpr (Points == 1) {
        return first;
    } else {
        const auto second = load<int32_t, 4>(rows + own[4] * int64_t(4));
#if defined(PERMUTOHEDRAL_SHUFFLE)
        return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
#else
        using Row = typename VectorOf<int32_t, 8>::type;
        return Row{first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3]};
#endif
    }
}

// `coarsen_points` for one point or two of four corners each.
template <class T, int Points>
inline void coarsen_together(const int32_t* own, const T* weights, const int32_t* rows, int32_t* vertices,
                             T* barycentric) {
    constexpr int N = 4 * Points;
    using Row = typename VectorOf<int32_t, N>::type;
    using Mask = typename VectorOf<Integer<T>, N>::type;
    using Weights = typename VectorOf<T, N>::type;
    Row found{};
    Weights sum{};
    for (int64_t i = 0; i < 4; ++i) {
        const Row row = rows_of_corners<Points>(rows, own + i);
        found |= row;
        const Mask at = __builtin_convertvector(row, Mask);
        Weights whole;
        for (int lane = 0; lane < N; ++lane) whole[lane] = weights[lane / 4 * 4 + i];
        const Weights part = at < 0 ? whole : whole * T(0.5);
        sum += at != 0 ? part : Weights{};
    }
    store<int32_t, N>(vertices, (found & ~coincides) - 1);
    store<T, N>(barycentric, sum);
}

// All parents of the vertices of a simplex are corners of one coarse simplex, so that at each corner there is one row.
template <class T, int C>
void coarsen_points(const Simplices<T>& fine, const int32_t* rows, Extent<C> corners, Range range, int32_t* vertices,
                    T* barycentric) {
    int64_t point = range.begin;
    if constexpr (C == 4) {
        // two at once where their weights fit a register
        if constexpr (2 * C * sizeof(T) <= PERMUTOHEDRAL_VECTOR_BYTES) {
            for (; point + 2 <= range.end; point += 2) {
                coarsen_together<T, 2>(fine.vertices + point * C, fine.barycentric + point * C, rows,
                                       vertices + point * C, barycentric + point * C);
            }
        }
        for (; point < range.end; ++point) {
            coarsen_together<T, 1>(fine.vertices + point * C, fine.barycentric + point * C, rows, vertices + point * C,
                                   barycentric + point * C);
        }
    }
    for (; point < range.end; ++point) {
        const int32_t* own = fine.vertices + point * corners;
        const T* weights = fine.barycentric + point * corners;
        int32_t found[capacity_for<C, max_columns>] = {0};
        T sum[capacity_for<C, max_columns>] = {0};
        for (int64_t i = 0; i < corners; ++i) {
            const int32_t* row = rows + own[i] * int64_t(corners);
            for (int64_t j = 0; j < corners; ++j) {
                found[j] |= row[j];
                if (row[j] != 0) sum[j] += row[j] < 0 ? weights[i] : weights[i] * T(0.5);
            }
        }
        for (int64_t j = 0; j < corners; ++j) {
            vertices[point * corners + j] = (found[j] & ~coincides) - 1;
            barycentric[point * corners + j] = sum[j];
        }
    }
}

}  // namespace

bool index_parents_by_cells(VertexIndex& index, const LookupTable& fine) {
    const int64_t columns = fine.packing.num_columns;
    const bool plain = fine.packing.num_words == 1 && fine.packing.lattice_form != 0 && fine.order == nullptr;
    if (!plain || columns > max_grid_dimension + 1 || 2 * fine.num_lattice_points != index.num_points) return false;
    return dispatch<2, 3, 4, 5, 6, 7>(
        columns, [&](auto constant) { return index_by_cells<decltype(constant)::value>(index, fine); });
}

template <class T>
void coarsen_simplices(const Simplices<T>& fine, const CoarseSimplices& coarse, int32_t* vertices, T* barycentric,
                       int threads) {
    const Memory memory(sizeof(int32_t) * coarse.num_fine * fine.num_corners);
    int32_t* rows = as<int32_t>(memory);
    dispatch<3, 4, 5, 6, 0>(fine.num_corners, [&](auto constant) {
        constexpr int C = decltype(constant)::value;
        const Extent<C> corners(fine.num_corners);
        parallel_ranges(threads, coarse.num_fine, vertices_per_task, [&](int64_t begin, int64_t end, int) {
            list_coarse_corners<C>(coarse, corners, {begin, end}, rows);
        });
        parallel_ranges(threads, fine.num_points, vertices_per_task, [&](int64_t begin, int64_t end, int) {
            coarsen_points<T, C>(fine, rows, corners, {begin, end}, vertices, barycentric);
        });
    });
}

template void coarsen_simplices(const Simplices<float>&, const CoarseSimplices&, int32_t*, float*, int);
template void coarsen_simplices(const Simplices<double>&, const CoarseSimplices&, int32_t*, double*, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
