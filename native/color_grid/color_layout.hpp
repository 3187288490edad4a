// The layout of a color grid (color_grid.hpp): cells of pixels and the blur between the places that bound them, where
// colors lie on a grid over colors, which of its nodes are needed at each place, and nodes in rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/simd.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// nodes along each axis that a pixel touches: those on both sides of it
constexpr int cell_ends = 2;
// the pixels of a cell give to its nodes from the middles of this number of parts along each axis
constexpr int parts_along = 2;

// A pixel gives to the nodes at both ends of its cell, and takes from them.
template <class T>
struct CellAxis {
    int64_t size, cell, num_cells;
    std::vector<T> right;  // of each pixel of a cell, the weight of the right node; the left one has the rest
    std::vector<T> blur;   // by the number of steps between two nodes

    // The blur reaches `reach` of its standard deviations.
    CellAxis(int64_t size, int64_t cell, double sigma, double reach)
        : size(size),
          cell(cell),
          num_cells(divide_up(size, cell)) {
        for (int64_t i = 0; i < std::min(cell, size); ++i) right.push_back(T((double(i) + 0.5) / double(cell)));
        // interpolation at the source and at the target has a variance of a sixth of a step, on average
        const double steps = sigma / double(cell), variance = steps * steps - 1.0 / 3.0;
        // not converted before it is known to be small
        const auto farthest = int64_t(std::min(reach * std::sqrt(variance) + 1, double(num_nodes() - 1)));
        for (int64_t i = 0; i <= farthest; ++i) {
            blur.push_back(T(steps / std::sqrt(variance) * std::exp(-0.5 * double(i * i) / variance)));
        }
    }

    int64_t num_nodes() const { return num_cells + cell_ends - 1; }
    Range pixels(int64_t at) const { return {at * cell, std::min((at + 1) * cell, size)}; }
    // one of the parts of a cell, which may be empty
    Range pixels(int64_t at, int64_t part) const {
        const int64_t length = divide_up(cell, parts_along), begin = at * cell + part * length;
        const int64_t end = std::min({begin + length, (at + 1) * cell, size});
        return {std::min(begin, end), end};
    }
    // the weight of the right node at the middle of pixels of a cell
    T right_of(int64_t at, Range pixels) const {
        return T((double(pixels.begin + pixels.end) / 2 - double(at * cell)) / double(cell));
    }
    // the cells that a node bounds
    Range cells(int64_t node) const {
        return {std::max<int64_t>(node - cell_ends + 1, 0), std::min(node + 1, num_cells)};
    }
    // the nodes that the blur of one reads
    Range nodes_near(int64_t node) const {
        const auto farthest = int64_t(blur.size()) - 1;
        return {std::max<int64_t>(node - farthest, 0), std::min(node + farthest + 1, num_nodes())};
    }
    T blur_between(int64_t a, int64_t b) const { return blur[std::abs(a - b)]; }
};

constexpr int color_axes = 3;

struct ColorGridShape {
    int64_t num_items, num_channels, num_guides, height, width;
    double sigma_y, sigma_x;
    int64_t cell_y, cell_x;              // pixels between the nodes on which is blurred
    double blur_reach;                   // how far that blur reaches, in its standard deviations
    double directions[3][3], origin[3];  // of the first num_guides axes of colors
    double own_weight, neighbor_weight;  // of the blur along each axis of colors
};

// Where a color lies: how far it is from the middle one of the nodes it touches along each axis, the first of their rows,
// and the first node in it.
template <class T>
struct ColorPlace {
    T offset[color_axes];
    int32_t row, node;
};

// Where the color of each pixel lies, at least two nodes from both ends. Axes that are not used come first; they have one
// node. Pixels lie cell after cell, row after row, so that a cell is read from one end to the other.
template <class T>
struct ColorCoordinates {
    int64_t extents[color_axes];

    ColorCoordinates(const ColorGridShape& shape, const T* guide, int threads)
        : extents{1, 1, 1},
          shape_(shape),
          unused_(color_axes - shape.num_guides),
          plane_(shape.height * shape.width),
          memory_(sizeof(ColorPlace<T>) * plane_),
          places_(as<ColorPlace<T>>(memory_)) {
        std::vector<T> least[color_axes], most[color_axes];
        for (int64_t g = unused_; g < color_axes; ++g) least[g].resize(shape.height), most[g].resize(shape.height);
        // projected twice, which takes less time than to write coordinates and to read them
        parallel_for(threads, shape.height, [&](int64_t y, int) {
            std::vector<T> along(shape.width);
            for (int64_t g = unused_; g < color_axes; ++g) {
                project(guide + y * shape.width, g, shape.width, along.data());
                find_ends(along.data(), least[g][y], most[g][y]);
            }
        });
        for (int64_t g = unused_; g < color_axes; ++g) {
            first_[g] = nearest(*std::min_element(least[g].begin(), least[g].end()));
            last_[g] = nearest(*std::max_element(most[g].begin(), most[g].end()));
            extents[g] = int64_t(last_[g] - first_[g]) + 5;
        }
        parallel_for(threads, divide_up(shape.height, shape.cell_y),
                     [&](int64_t cell_y, int) { locate(guide, cell_y); });
    }

    const ColorPlace<T>& operator[](int64_t pixel) const { return places_[pixel]; }

    // Calls function(pixel, y, x, count) for each row of pixels of each cell in a row of cells: the number of its first
    // pixel, which lies at y and x.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_cells(int64_t cell_y, Function&& function) const {
        const int64_t begin = cell_y * shape_.cell_y, end = std::min(begin + shape_.cell_y, shape_.height);
        int64_t pixel = begin * shape_.width;
        for (int64_t x = 0; x < shape_.width; x += shape_.cell_x) {
            const int64_t count = std::min(shape_.cell_x, shape_.width - x);
            for (int64_t y = begin; y < end; ++y, pixel += count) function(pixel, y, x, count);
        }
    }

private:
    static T nearest(T coordinate) { return std::floor(coordinate + T(0.5)); }

    // Writes the coordinates of pixels along axis g.
    void project(const T* guide, int64_t g, int64_t count, T* to) const {
        const double* directions = shape_.directions[g - unused_];
        const T origin = T(shape_.origin[g - unused_]);
        for (int64_t x = 0; x < count; ++x) to[x] = T(directions[0]) * guide[x] - origin;
        for (int64_t c = 1; c < shape_.num_guides; ++c) {
            const T direction = T(directions[c]);
            for (int64_t x = 0; x < count; ++x) to[x] += direction * guide[c * plane_ + x];
        }
    }

    void find_ends(const T* along, T& least, T& most) const {
        // lanes apart, which the compiler does not do by itself
        T low[lanes<T>], high[lanes<T>];
        std::fill(low, low + lanes<T>, along[0]);
        std::fill(high, high + lanes<T>, along[0]);
        int64_t x = 0;
        for (; x + lanes<T> <= shape_.width; x += lanes<T>) {
            for (int i = 0; i < lanes<T>; ++i) low[i] = along[x + i] < low[i] ? along[x + i] : low[i];
            for (int i = 0; i < lanes<T>; ++i) high[i] = along[x + i] > high[i] ? along[x + i] : high[i];
        }
        for (; x < shape_.width; ++x) low[0] = std::min(low[0], along[x]), high[0] = std::max(high[0], along[x]);
        least = *std::min_element(low, low + lanes<T>), most = *std::max_element(high, high + lanes<T>);
    }

    // Row by row into planes of a row of cells, then cell by cell: what is written has to follow in memory.
    void locate(const T* guide, int64_t cell_y) const {
        const int64_t begin = cell_y * shape_.cell_y, end = std::min(begin + shape_.cell_y, shape_.height);
        const int64_t size = (end - begin) * shape_.width;
        std::vector<int32_t> rows(size), nodes(size);
        std::vector<T> along(color_axes * size);
        for (int64_t g = unused_; g < color_axes; ++g) {
            // whole numbers are added, so that parts of a picture have the nodes of the whole
            const T shift = T(2) - first_[g];
            // a sum that is rounded to the next one would have another nearest node
            const T lowest = T(1.5), highest = std::nextafter(last_[g] - first_[g] + T(2.5), T(0));
            T* const to = along.data() + g * size;
            int32_t* const number = g == color_axes - 1 ? nodes.data() : rows.data();
            const auto step = int32_t(g == 0 ? extents[1] : 1);
            project(guide + begin * shape_.width, g, size, to);
            for (int64_t x = 0; x < size; ++x) {
                const T moved = to[x] + shift, below = moved < highest ? moved : highest;
                const T coordinate = below > lowest ? below : lowest;
                const auto middle = int32_t(coordinate + T(0.5));
                to[x] = coordinate - T(middle);
                number[x] += step * (middle - 1);
            }
        }
        const T *const first = along.data(), *const second = first + size, *const third = second + size;
        for_cells(cell_y, [&](int64_t pixel, int64_t y, int64_t x, int64_t count) {
            const int64_t from = (y - begin) * shape_.width + x;
            ColorPlace<T>* const to = places_ + pixel - from;
            for (int64_t i = from; i < from + count; ++i) to[i] = {{first[i], second[i], third[i]}, rows[i], nodes[i]};
        });
    }

    const ColorGridShape shape_;
    const int64_t unused_, plane_;
    T first_[color_axes], last_[color_axes];
    const Memory memory_;
    ColorPlace<T>* const places_;
};

// channels that are summed together
constexpr int grid_channels = 4;
// nodes along each axis of colors that a pixel touches
constexpr int color_taps = 3;
// ranges begin and end at multiples of this, so that vectors of this number of nodes fit
constexpr int nodes_at_once = 2;

// Ranges of nodes at every place: where those of its rows begin, then where they end, negated, so that the union of ranges
// has the lesser numbers. Those of rows without nodes are `no_node`, or a little less.
constexpr int16_t no_node = std::numeric_limits<int16_t>::max();

class ColorRanges {
public:
    ColorRanges(int64_t places, int64_t rows) : rows_(rows), memory_(sizeof(int16_t) * 2 * places * rows) {}

    int16_t* at(int64_t place) const { return as<int16_t>(memory_) + 2 * place * rows_; }

private:
    int64_t rows_;
    Memory memory_;
};

// Joins ranges with others, each that of `shift` rows earlier; rows that would come from beyond the ends are empty.
void unite(const int16_t* ranges, int64_t count, int16_t* to, int64_t shift = 0) {
    const int64_t first = std::max<int64_t>(shift, 0), last = std::min(count + shift, count);
    for (int64_t i = first; i < last; ++i) to[i] = std::min(to[i], ranges[i - shift]);
}

// What ranges of one place have in common with others.
void intersect(const int16_t* ranges, int64_t rows, int16_t* to) {
    for (int64_t begin = 0, end = rows; begin < rows; ++begin, ++end) {
        const int16_t from = std::max(to[begin], ranges[begin]), until = std::max(to[end], ranges[end]);
        to[begin] = from + until < 0 ? from : no_node;
        to[end] = from + until < 0 ? until : no_node;
    }
}

// A row of nodes that is stored: node k begins at `first + k grid_channels`.
struct StoredRow {
    int32_t first;
    int16_t begin, end;

    bool is_empty() const { return begin >= end; }
};

// Numbers the nodes of one place from zero on; how many they are, which may be more than numbers of 32 bits reach: then
// they must not be used.
int64_t number_nodes(const int16_t* ranges, int64_t num_rows, StoredRow* rows) {
    constexpr int rest = nodes_at_once - 1;
    int64_t count = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        rows[row] = {0, 0, 0};
        const int first = ranges[row], last = -ranges[num_rows + row];
        if (first >= last) continue;
        const int begin = first & ~rest, end = (last + rest) & ~rest;
        rows[row] = {int32_t(grid_channels * (count - begin)), int16_t(begin), int16_t(end)};
        count += end - begin;
    }
    return count;
}

// The extents of a grid over positions and colors: places, and at each of them rows of nodes over colors.
template <class T>
struct GridAxes {
    CellAxis<T> y, x;
    int64_t row_step;  // rows between neighbors along the first axis of colors; along the second they are one apart
    int64_t rows;
    int64_t taps[2];  // nodes along those axes that a pixel touches: one where the guide has fewer channels

    int64_t num_places() const { return y.num_nodes() * x.num_nodes(); }
    int64_t place(int64_t at_y, int64_t at_x) const { return at_y * x.num_nodes() + at_x; }
};

// The nodes that are needed between the steps of the filter. A step reads a node if it can be other than zero, and if a
// color needs it in the end:
//
//                 can be other than zero                             is needed
//     splat       touched: colors touch them
//     over colors stored:  touched, and neighbors over colors   and  near, of places in reach of the blur along y
//     along y     halfway: stored, of places in reach along y   and  near: touched, of places in reach along x
//     along x     touched                                            touched
//     slice
//
// Colors are so far from the ends of all axes of colors that none of
// the rows they are blurred to is that of another place: rows of places are shifted as a whole.
template <class T>
struct NeededNodes {
    ColorRanges touched, stored, halfway;

    // of_cells: the nodes that the pixels of each cell touch
    NeededNodes(const GridAxes<T>& axes, const ColorRanges& of_cells, int threads)
        : touched(axes.num_places(), axes.rows),
          stored(axes.num_places(), axes.rows),
          halfway(axes.num_places(), axes.rows) {
        const ColorRanges near(axes.num_places(), axes.rows);
        const int64_t step = 2 * axes.rows, size = step * axes.x.num_nodes();
        parallel_for(threads, axes.y.num_nodes(), [&](int64_t y, int) {
            int16_t *const all = touched.at(axes.place(y, 0)), *const wide = near.at(axes.place(y, 0));
            std::fill(all, all + size, no_node);
            const Range cells = axes.y.cells(y);
            for (int64_t cell = cells.begin; cell < cells.end; ++cell) {
                const int16_t* const row = of_cells.at(cell * axes.x.num_cells);
                for (int end = 0; end < cell_ends; ++end) unite(row, step * axes.x.num_cells, all + end * step);
            }
            std::copy(all, all + size, wide);
            for (int64_t far = 1; far < int64_t(axes.x.blur.size()); ++far) {
                unite(all, size, wide, far * step);
                unite(all, size, wide, -far * step);
            }
        });
        parallel_for(threads, axes.y.num_nodes(), [&](int64_t y, int) {
            const int16_t* const own = touched.at(axes.place(y, 0));
            int16_t* const row = stored.at(axes.place(y, 0));
            std::fill(row, row + size, no_node);
            const int64_t far_i = axes.taps[0] / 2, far_j = axes.taps[1] / 2;
            for (int64_t i = -far_i; i <= far_i; ++i) {
                for (int64_t j = -far_j; j <= far_j; ++j) unite(own, size, row, i * axes.row_step + j);
            }
            // the blur along the rows makes them longer at both ends
            for (int64_t i = 0; i < size; ++i) row[i] = int16_t(row[i] - 1);
            std::vector<int16_t> all(size);
            unite_along_y(axes, near, y, all.data());
            for (int64_t x = 0; x < axes.x.num_nodes(); ++x)
                intersect(all.data() + x * step, axes.rows, row + x * step);
        });
        parallel_for(threads, axes.y.num_nodes(), [&](int64_t y, int) {
            int16_t* const row = halfway.at(axes.place(y, 0));
            unite_along_y(axes, stored, y, row);
            for (int64_t x = 0; x < axes.x.num_nodes(); ++x) {
                intersect(near.at(axes.place(y, x)), axes.rows, row + x * step);
            }
        });
    }

private:
    // The ranges that the blur of one row of places along y reads.
    static void unite_along_y(const GridAxes<T>& axes, const ColorRanges& ranges, int64_t y, int16_t* out) {
        const int64_t size = 2 * axes.rows * axes.x.num_nodes();
        const Range from = axes.y.nodes_near(y);
        std::fill(out, out + size, no_node);
        for (int64_t other = from.begin; other < from.end; ++other) unite(ranges.at(axes.place(other, 0)), size, out);
    }
};

// Where the nodes of the ranges lie, one after another.
class NodeTable {
public:
    NodeTable(const ColorRanges& ranges, int64_t places, int64_t rows, int threads)
        : rows_(rows),
          ends_(places + 1),
          memory_(sizeof(StoredRow) * places * rows),
          table_(as<StoredRow>(memory_)) {
        parallel_for(threads, places, [&](int64_t place, int) {
            ends_[place + 1] = number_nodes(ranges.at(place), rows, table_ + place * rows);
        });
        for (int64_t place = 0; place < places; ++place) ends_[place + 1] += ends_[place];
        if (grid_channels * num_nodes() > std::numeric_limits<int32_t>::max()) throw std::bad_alloc();
        parallel_for(threads, places, [&](int64_t place, int) {
            const auto first = int32_t(grid_channels * ends_[place]);
            for (int64_t row = 0; row < rows; ++row) table_[place * rows + row].first += first;
        });
    }
    // Of ranges within those of another table, in the same nodes.
    NodeTable(const ColorRanges& ranges, const NodeTable& other, int64_t places, int threads)
        : rows_(other.rows_),
          memory_(sizeof(StoredRow) * places * rows_),
          table_(as<StoredRow>(memory_)) {
        parallel_for(threads, places, [&](int64_t place, int) {
            number_nodes(ranges.at(place), rows_, table_ + place * rows_);
            for (int64_t row = 0; row < rows_; ++row) table_[place * rows_ + row].first = other.rows(place)[row].first;
        });
    }

    const StoredRow* rows(int64_t place) const { return table_ + place * rows_; }
    // all nodes of one place
    Range nodes(int64_t place) const { return {ends_[place], ends_[place + 1]}; }
    int64_t num_nodes() const { return ends_.back(); }

private:
    const int64_t rows_;
    std::vector<int64_t> ends_;
    const Memory memory_;
    StoredRow* const table_;
};

// Vectors hold two nodes. A color touches three in a row; what comes of the fourth is left out.
constexpr int vector_size = nodes_at_once * grid_channels;
constexpr int vectors_of_color = (color_taps + nodes_at_once - 1) / nodes_at_once;
template <class T>
using NodeVector = typename VectorOf<T, vector_size>::type;

// Quadratic B-spline weights of a color's three nodes.
template <class T>
PERMUTOHEDRAL_INLINE void spline_weights(T offset, T* weights) {
    weights[0] = T(0.5) * (T(0.5) - offset) * (T(0.5) - offset);
    weights[1] = T(0.75) - offset * offset;
    weights[2] = T(0.5) * (T(0.5) + offset) * (T(0.5) + offset);
}

// Weights of two nodes, each for all channels.
template <class T>
PERMUTOHEDRAL_INLINE NodeVector<T> pair_weights(T first, T second) {
    NodeVector<T> weights;
    for (int i = 0; i < vector_size; ++i) weights[i] = i < grid_channels ? first : second;
    return weights;
}

// to += weight * from, of a multiple of nodes_at_once
template <class T>
PERMUTOHEDRAL_INLINE void add_nodes(const T* from, T weight, int64_t nodes, T* to) {
    for (int64_t i = 0; i < nodes * grid_channels; i += vector_size) {
        store<T, vector_size>(to + i, load<T, vector_size>(to + i) + weight * load<T, vector_size>(from + i));
    }
}

// to = (1 - down) * upper + down * lower, of as many nodes
template <class T>
PERMUTOHEDRAL_INLINE void interpolate_nodes(const T* upper, const T* lower, T down, int64_t nodes, T* to) {
    for (int64_t i = 0; i < nodes * grid_channels; i += vector_size) {
        const NodeVector<T> above = (1 - down) * load<T, vector_size>(upper + i);
        store<T, vector_size>(to + i, above + down * load<T, vector_size>(lower + i));
    }
}

// The rows that are not empty.
void find_rows(const StoredRow* rows, int64_t count, std::vector<int32_t>& found) {
    found.resize(count);
    size_t num_found = 0;
    for (int64_t r = 0; r < count; ++r) {
        found[num_found] = int32_t(r);
        num_found += !rows[r].is_empty();
    }
    found.resize(num_found);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
