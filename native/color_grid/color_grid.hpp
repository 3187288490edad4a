// The Gaussian over position and color on a grid of nodes: see filters/color_grid.py for the formula.
// At every node over positions, which bound cells of pixels, lies a grid of nodes over colors, in rows along the axis in
// which colors differ most; only those nodes are stored that are needed.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "color_grid/color_layout.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/simd.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int cell_corners = cell_ends * cell_ends, cell_parts = parts_along * parts_along;
// cells with fewer numbers than this for each column of pixels are interpolated along y first
constexpr int64_t numbers_of_a_column = 48;

// One item. I and J are the nodes that a pixel touches along the first and the second axis of colors.
template <class T, int I, int J>
class ColorGrid {
public:
    ColorGrid(const ColorGridShape& shape, const T* guide, int threads)
        : shape_(shape),
          threads_(threads),
          coordinates_(shape, guide, threads),
          axes_{{shape.height, shape.cell_y, shape.sigma_y, shape.blur_reach},
                {shape.width, shape.cell_x, shape.sigma_x, shape.blur_reach},
                coordinates_.extents[1],
                coordinates_.extents[0] * coordinates_.extents[1],
                {I, J}},
          of_cells_(axes_.y.num_cells * axes_.x.num_cells, axes_.rows),
          needed_(axes_, find_ranges(), threads),
          stored_(needed_.stored, axes_.num_places(), axes_.rows, threads),
          halfway_(needed_.halfway, axes_.num_places(), axes_.rows, threads),
          touched_(needed_.touched, stored_, axes_.num_places(), threads),
          memory_{Memory(sizeof(T) * grid_channels * plane()),
                  Memory(sizeof(T) * (grid_channels * stored_.num_nodes() + vector_size)),
                  Memory(sizeof(T) * grid_channels * halfway_.num_nodes())},
          values_(as<T>(memory_[0])),
          nodes_(as<T>(memory_[1])),
          halfway_nodes_(as<T>(memory_[2])) {}

    // Of planes, one for each channel, at most `grid_channels`; those of out lie one after another.
    void run(const std::vector<const T*>& planes, T* out) {
        gather_values(planes);
        parallel_for(threads_, axes_.num_places(), [&](int64_t place, int) { clear(stored_, place, nodes_); });
        // rows of cells that touch no common node
        for (int phase = 0; phase < cell_ends; ++phase) {
            parallel_for(threads_, divide_up(axes_.y.num_cells - phase, cell_ends), [&](int64_t part, int) {
                CellNodes cell;
                for (int64_t x = 0; x < axes_.x.num_cells; ++x) splat_cell(phase + cell_ends * part, x, cell);
            });
        }
        parallel_for(threads_, axes_.num_places(), [&](int64_t place, int) { blur_colors(place); });
        // in the order in which what one place reads is what the next one reads
        parallel_for(threads_, axes_.x.num_nodes(), [&](int64_t x, int) {
            for (int64_t y = 0; y < axes_.y.num_nodes(); ++y) {
                const int64_t place = axes_.place(y, x);
                clear(halfway_, place, halfway_nodes_);
                blur_places(axes_.y, y, place, axes_.x.num_nodes(), stored_, nodes_, halfway_, halfway_nodes_);
            }
        });
        // back to the nodes that are stored, of which only those are needed that colors touch
        parallel_for(threads_, axes_.num_places(), [&](int64_t place, int) {
            clear(stored_, place, nodes_);
            blur_places(axes_.x, place % axes_.x.num_nodes(), place, 1, halfway_, halfway_nodes_, touched_, nodes_);
        });
        parallel_for(threads_, axes_.y.num_cells, [&](int64_t y, int) {
            CellNodes cell;
            for (int64_t x = 0; x < axes_.x.num_cells; ++x) slice_cell(y, x, cell);
            write_sums(int64_t(planes.size()), y, out);
        });
    }

private:
    // The nodes that the pixels of one cell touch, in rows of their own: reused from cell to cell.
    struct CellNodes {
        std::vector<StoredRow> own;
        std::vector<int32_t> rows;
        std::vector<T> nodes;
    };

    int64_t plane() const { return shape_.height * shape_.width; }

    // The nodes that the pixels of each cell touch.
    const ColorRanges& find_ranges() const {
        const int64_t step = 2 * axes_.rows, size = step * axes_.x.num_cells;
        parallel_for(threads_, axes_.y.num_cells, [&](int64_t cell_y, int) {
            const Range rows = axes_.y.pixels(cell_y);
            // in the first of the rows that each pixel touches
            std::vector<int16_t> first(size, no_node);
            for (int64_t cell_x = 0; cell_x < axes_.x.num_cells; ++cell_x) {
                int16_t *const begin = first.data() + step * cell_x, *const end = begin + axes_.rows;
                const Range columns = axes_.x.pixels(cell_x);
                const Range pixels = cell_pixels(rows, columns);
                for (int64_t at = pixels.begin; at < pixels.end; ++at) {
                    const ColorPlace<T>& color = coordinates_[at];
                    const auto from = int16_t(color.node), until = int16_t(-from - color_taps);
                    int16_t &least = begin[color.row], &most = end[color.row];
                    // mostly nothing is stored, so that the next pixel need not wait for it
                    if (from < least || until < most) least = std::min(least, from), most = std::min(most, until);
                }
            }
            int16_t* const all = of_cells_.at(cell_y * axes_.x.num_cells);
            std::fill(all, all + size, no_node);
            for (int i = 0; i < I; ++i) {
                for (int j = 0; j < J; ++j) unite(first.data(), size, all, i * axes_.row_step + j);
            }
        });
        return of_cells_;
    }

    // The numbers of the pixels of a cell: see ColorCoordinates.
    Range cell_pixels(Range rows, Range columns) const {
        const int64_t height = rows.end - rows.begin, begin = rows.begin * shape_.width + columns.begin * height;
        return {begin, begin + height * (columns.end - columns.begin)};
    }

    // Missing channels repeat the last plane; their sums are discarded.
    void gather_values(const std::vector<const T*>& planes) {
        const T* from[grid_channels];
        for (int c = 0; c < grid_channels; ++c) from[c] = planes[std::min<size_t>(c, planes.size() - 1)];
        parallel_for(threads_, axes_.y.num_cells, [&](int64_t cell_y, int) {
            coordinates_.for_cells(cell_y, [&](int64_t pixel, int64_t y, int64_t x, int64_t count) {
                T* to = values_ + grid_channels * pixel;
                const int64_t begin = y * shape_.width + x;
                for (int64_t at = begin; at < begin + count; ++at, to += grid_channels) {
                    for (int c = 0; c < grid_channels; ++c) to[c] = from[c][at];
                }
            });
        });
    }

    static void clear(const NodeTable& table, int64_t place, T* nodes) {
        const Range all = table.nodes(place);
        std::fill(nodes + grid_channels * all.begin, nodes + grid_channels * all.end, T(0));
    }

    // Calls function(row, weight) for the rows that a color touches, counted from the first of them.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_rows(const ColorPlace<T>& color, Function&& function) const {
        T along_i[color_taps] = {1}, along_j[color_taps] = {1};
        if constexpr (I > 1) spline_weights(color.offset[0], along_i);
        if constexpr (J > 1) spline_weights(color.offset[1], along_j);
        for (int i = 0; i < I; ++i) {
            for (int j = 0; j < J; ++j) function(i * axes_.row_step + j, along_i[i] * along_j[j]);
        }
    }

    // Adds what the pixels of a cell give to the nodes at its corners. Those of a part of it give together, from the
    // middle of the part: first to nodes of their own.
    void splat_cell(int64_t cell_y, int64_t cell_x, CellNodes& cell) {
        const int64_t size = number_cell(cell_y, cell_x, cell);
        cell.nodes.assign(cell_parts * size, T(0));
        T weights[cell_parts][cell_corners] = {};
        const Range rows = axes_.y.pixels(cell_y), columns = axes_.x.pixels(cell_x);
        const int64_t first = cell_pixels(rows, columns).begin;
        for (int part = 0; part < cell_parts; ++part) {
            const Range ys = axes_.y.pixels(cell_y, part / parts_along),
                        xs = axes_.x.pixels(cell_x, part % parts_along);
            if (ys.begin == ys.end || xs.begin == xs.end) continue;
            for (int64_t y = ys.begin; y < ys.end; ++y) {
                const int64_t row = first + (y - rows.begin) * (columns.end - columns.begin) - columns.begin;
                for (int64_t at = row + xs.begin; at < row + xs.end; ++at) {
                    splat_pixel(at, cell.own.data(), cell.nodes.data() + part * size);
                }
            }
            const T down = axes_.y.right_of(cell_y, ys), right = axes_.x.right_of(cell_x, xs);
            weights[part][0] = (1 - down) * (1 - right), weights[part][1] = (1 - down) * right;
            weights[part][2] = down * (1 - right), weights[part][3] = down * right;
        }
        const StoredRow* corners[cell_corners];
        find_corners(cell_y, cell_x, corners);
        for (const int32_t r : cell.rows) {
            T* to[cell_corners];
            for (int corner = 0; corner < cell_corners; ++corner) to[corner] = nodes_ + corners[corner][r].first;
            const int64_t end = grid_channels * cell.own[r].end;
            for (int64_t i = grid_channels * cell.own[r].begin; i < end; i += vector_size) {
                NodeVector<T> parts[cell_parts];
                for (int part = 0; part < cell_parts; ++part) {
                    parts[part] = load<T, vector_size>(cell.nodes.data() + part * size + cell.own[r].first + i);
                }
                for (int corner = 0; corner < cell_corners; ++corner) {
                    NodeVector<T> sum = load<T, vector_size>(to[corner] + i);
                    for (int part = 0; part < cell_parts; ++part) sum += weights[part][corner] * parts[part];
                    store<T, vector_size>(to[corner] + i, sum);
                }
            }
        }
    }

    void find_corners(int64_t cell_y, int64_t cell_x, const StoredRow* (&corners)[cell_corners]) const {
        for (int corner = 0; corner < cell_corners; ++corner) {
            corners[corner] = stored_.rows(axes_.place(cell_y + corner / cell_ends, cell_x + corner % cell_ends));
        }
    }

    PERMUTOHEDRAL_INLINE void splat_pixel(int64_t at, const StoredRow* rows, T* local) const {
        const ColorPlace<T>& color = coordinates_[at];
        T along[color_taps];
        spline_weights(color.offset[color_axes - 1], along);
        NodeVector<T> values;
        for (int i = 0; i < vector_size; ++i) values[i] = values_[at * grid_channels + i % grid_channels];
        const NodeVector<T> vectors[vectors_of_color] = {values * pair_weights(along[0], along[1]),
                                                         values * pair_weights(along[2], T(0))};
        T* const nodes = local + grid_channels * color.node;
        for_rows(color, [&](int64_t row, T weight) {
            T* to = nodes + rows[color.row + row].first;
            for (int v = 0; v < vectors_of_color; ++v, to += vector_size) {
                store<T, vector_size>(to, load<T, vector_size>(to) + weight * vectors[v]);
            }
        });
    }

    // The nodes at the corners of a cell are gathered in rows of their own. If there are few, they are interpolated along y
    // for each row of pixels: pixels then read those of two sides instead of four corners.
    void slice_cell(int64_t cell_y, int64_t cell_x, CellNodes& cell) const {
        const Range rows = axes_.y.pixels(cell_y), columns = axes_.x.pixels(cell_x);
        const int64_t size = number_cell(cell_y, cell_x, cell), both = cell_ends * size;
        const bool few = size <= numbers_of_a_column * (columns.end - columns.begin);
        cell.nodes.resize((cell_corners + cell_ends) * size);
        T *const upper = cell.nodes.data(), *const between = upper + cell_corners * size;
        const StoredRow* corners[cell_corners];
        find_corners(cell_y, cell_x, corners);
        for (const int32_t r : cell.rows) {
            const T* from[cell_corners];
            for (int corner = 0; corner < cell_corners; ++corner) from[corner] = nodes_ + corners[corner][r].first;
            const int64_t end = grid_channels * cell.own[r].end;
            for (int64_t i = grid_channels * cell.own[r].begin; i < end; i += vector_size) {
                T* to = upper + cell.own[r].first + i;
                for (int corner = 0; corner < cell_corners; ++corner, to += size) {
                    store<T, vector_size>(to, load<T, vector_size>(from[corner] + i));
                }
            }
        }
        int64_t pixel = cell_pixels(rows, columns).begin;
        for (int64_t y = rows.begin; y < rows.end; ++y) {
            const T down = axes_.y.right[y - rows.begin];
            if (few) interpolate_nodes(upper, upper + both, down, both / grid_channels, between);
            for (int64_t x = columns.begin; x < columns.end; ++x, ++pixel) {
                const T right = axes_.x.right[x - columns.begin], left = 1 - right;
                if (few) {
                    slice_pixel<cell_ends>(pixel, cell.own.data(), between, size, {left, right});
                } else {
                    const T up = 1 - down;
                    slice_pixel<cell_corners>(pixel, cell.own.data(), upper, size,
                                              {up * left, up * right, down * left, down * right});
                }
            }
        }
    }

    // Writes the sums of a row of cells, which lie where the values were, row by row.
    void write_sums(int64_t channels, int64_t cell_y, T* out) const {
        const Range rows = axes_.y.pixels(cell_y);
        for (int64_t y = rows.begin; y < rows.end; ++y) {
            for (int64_t cell_x = 0; cell_x < axes_.x.num_cells; ++cell_x) {
                const Range columns = axes_.x.pixels(cell_x);
                const int64_t count = columns.end - columns.begin;
                const T* from = values_ + grid_channels * (cell_pixels(rows, columns).begin + (y - rows.begin) * count);
                for (int64_t c = 0; c < channels; ++c) {
                    T* const to = out + c * plane() + y * shape_.width + columns.begin;
                    for (int64_t x = 0; x < count; ++x) to[x] = from[x * grid_channels + c];
                }
            }
        }
    }

    // Numbers the nodes that the pixels of a cell touch. How many numbers they hold; vectors may reach beyond the last.
    int64_t number_cell(int64_t cell_y, int64_t cell_x, CellNodes& cell) const {
        cell.own.resize(axes_.rows);
        const int16_t* const ranges = of_cells_.at(cell_y * axes_.x.num_cells + cell_x);
        const int64_t num_nodes = number_nodes(ranges, axes_.rows, cell.own.data());
        find_rows(cell.own.data(), axes_.rows, cell.rows);
        return grid_channels * num_nodes + vector_size;
    }

    // Out of the nodes of several corners or sides, each `size` numbers after another.
    template <int Sides>
    PERMUTOHEDRAL_INLINE void slice_pixel(int64_t pixel, const StoredRow* rows, const T* nodes, int64_t size,
                                          const T (&weights)[Sides]) const {
        const ColorPlace<T>& color = coordinates_[pixel];
        // apart, so that no sum has to wait for another
        NodeVector<T> taken[Sides][vectors_of_color] = {};
        for_rows(color, [&](int64_t row, T weight) {
            const T* from = nodes + rows[color.row + row].first + grid_channels * color.node;
            for (int side = 0; side < Sides; ++side, from += size) {
                for (int v = 0; v < vectors_of_color; ++v) {
                    taken[side][v] += weight * load<T, vector_size>(from + v * vector_size);
                }
            }
        });
        T total[vectors_of_color * vector_size], along[color_taps];
        for (int v = 0; v < vectors_of_color; ++v) {
            NodeVector<T> sum{};
            for (int side = 0; side < Sides; ++side) sum += weights[side] * taken[side][v];
            store<T, vector_size>(total + v * vector_size, sum);
        }
        spline_weights(color.offset[color_axes - 1], along);
        typename VectorOf<T, grid_channels>::type sums{};
        for (int k = 0; k < color_taps; ++k) sums += along[k] * load<T, grid_channels>(total + k * grid_channels);
        store<T, grid_channels>(values_ + grid_channels * pixel, sums);
    }

    // Every node gives to its neighbors at the same place, also to those across edges and corners.
    void blur_colors(int64_t place) {
        const Range all = stored_.nodes(place);
        const int64_t size = grid_channels * (all.end - all.begin);
        const StoredRow *touched = touched_.rows(place), *stored = stored_.rows(place);
        // the nodes as they were; behind them a row, blurred, which is longer at both ends
        const Memory memory(sizeof(T) * (size + grid_channels * (coordinates_.extents[2] + 4 * nodes_at_once)));
        T *const before = as<T>(memory), *const row = before + size;
        std::memcpy(before, nodes_ + grid_channels * all.begin, sizeof(T) * size);
        clear(stored_, place, nodes_);
        const T weights[] = {T(shape_.own_weight), T(shape_.neighbor_weight)};
        std::vector<int32_t> rows;
        find_rows(touched, axes_.rows, rows);
        for (const int32_t r : rows) {
            const int64_t begin = touched[r].begin - nodes_at_once, end = touched[r].end + nodes_at_once;
            blur_row(before + touched[r].first + grid_channels * (touched[r].begin - all.begin),
                     touched[r].end - touched[r].begin, row);
            for (int i = -(I / 2); i <= I / 2; ++i) {
                for (int j = -(J / 2); j <= J / 2; ++j) {
                    const StoredRow& to = stored[r + i * axes_.row_step + j];
                    const int64_t from = std::max<int64_t>(begin, to.begin), until = std::min<int64_t>(end, to.end);
                    if (from >= until) continue;
                    const T factor = (I > 1 ? weights[std::abs(i)] : T(1)) * (J > 1 ? weights[std::abs(j)] : T(1));
                    add_nodes(row + grid_channels * (from - begin), factor, until - from,
                              nodes_ + to.first + grid_channels * from);
                }
            }
        }
    }

    // out [nodes + 2 nodes_at_once]: from, which begins nodes_at_once later, blurred.
    PERMUTOHEDRAL_INLINE void blur_row(const T* from, int64_t nodes, T* out) const {
        std::fill(out, out + grid_channels * (nodes + 2 * nodes_at_once), T(0));
        T* to = out + grid_channels * nodes_at_once;
        add_nodes(from, T(shape_.own_weight), nodes, to);
        add_nodes(from, T(shape_.neighbor_weight), nodes, to - grid_channels);
        add_nodes(from, T(shape_.neighbor_weight), nodes, to + grid_channels);
    }

    // Adds the nodes of the places near `place`, the at-th along an axis of places `step` apart, as far as they are wanted.
    void blur_places(const CellAxis<T>& axis, int64_t at, int64_t place, int64_t step, const NodeTable& given,
                     const T* from, const NodeTable& table, T* to) const {
        const StoredRow* const wanted = table.rows(place);
        std::vector<int32_t> rows;
        find_rows(wanted, axes_.rows, rows);
        const Range near = axis.nodes_near(at);
        for (int64_t other = near.begin; other < near.end; ++other) {
            const StoredRow* const source = given.rows(place + (other - at) * step);
            for (const int32_t r : rows) {
                const int64_t begin = std::max(source[r].begin, wanted[r].begin);
                const int64_t nodes = std::min(source[r].end, wanted[r].end) - begin;
                add_nodes(from + source[r].first + grid_channels * begin, axis.blur_between(other, at), nodes,
                          to + wanted[r].first + grid_channels * begin);
            }
        }
    }

    const ColorGridShape shape_;
    const int threads_;
    const ColorCoordinates<T> coordinates_;
    const GridAxes<T> axes_;
    const ColorRanges of_cells_;
    const NeededNodes<T> needed_;
    const NodeTable stored_, halfway_, touched_;
    const Memory memory_[3];
    T* const values_;  // [pixels, grid_channels], cell after cell
    T *const nodes_, *const halfway_nodes_;
};

template <class T, int I, int J>
void sum_items(const ColorGridShape& shape, const T* values, const T* guide, T* out, int threads) {
    const int64_t plane = shape.height * shape.width, num_sums = shape.num_channels + 1;
    const Memory ones(sizeof(T) * plane);
    std::fill(as<T>(ones), as<T>(ones) + plane, T(1));
    for (int64_t item = 0; item < shape.num_items; ++item) {
        std::vector<const T*> planes;
        for (int64_t c = 0; c < shape.num_channels; ++c) {
            planes.push_back(values + (item * shape.num_channels + c) * plane);
        }
        planes.push_back(as<T>(ones));
        ColorGrid<T, I, J> grid(shape, guide + item * shape.num_guides * plane, threads);
        for (int64_t first = 0; first < num_sums; first += grid_channels) {
            const auto begin = planes.begin() + first;
            const int64_t channels = std::min<int64_t>(grid_channels, num_sums - first);
            grid.run(std::vector<const T*>(begin, begin + channels), out + (item * num_sums + first) * plane);
        }
    }
}

// Sums the pixels around each pixel on a grid over colors. values and guide: see sum_window; out [num_items, grid_channels
// + 1, height, width], the sums of ones are the last. `directions` and `origin`: from a color to its place, in nodes.
template <class T>
void sum_color_grid(View<const T, 4> pixels, View<const T, 4> colors, const std::vector<double>& sigma,
                    const std::vector<int64_t>& cells, double blur_reach,
                    const std::vector<std::vector<double>>& directions, const std::vector<double>& origin,
                    const std::vector<double>& color_blur, View<T, 4> sums, int threads) {
    ColorGridShape shape{pixels.shape[0],
                         pixels.shape[1],
                         colors.shape[1],
                         pixels.shape[2],
                         pixels.shape[3],
                         sigma[0],
                         sigma[1],
                         cells[0],
                         cells[1],
                         blur_reach,
                         {},
                         {},
                         color_blur[0],
                         color_blur[1]};
    for (size_t axis = 0; axis < directions.size(); ++axis) {
        std::copy(directions[axis].begin(), directions[axis].end(), shape.directions[axis]);
    }
    std::copy(origin.begin(), origin.end(), shape.origin);
    const T *values = pixels.data, *guide = colors.data;
    T* out = sums.data;
    if (shape.num_guides == 1) return sum_items<T, 1, 1>(shape, values, guide, out, threads);
    if (shape.num_guides == 2) return sum_items<T, 1, color_taps>(shape, values, guide, out, threads);
    sum_items<T, color_taps, color_taps>(shape, values, guide, out, threads);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
