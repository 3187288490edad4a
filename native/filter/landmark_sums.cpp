// The Gaussian over position and color, its part over colors as a sum of few terms: see filters/landmarks.py for the formula.
// Every term is a picture that is blurred over positions, on a grid of cells as wide as the blur permits. Compiled once
// per instruction set.
#include <algorithm>
#include <cmath>
#include <vector>

#include "filter/pixel_window.hpp"
#include "filter/powers_of_two.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/lane_exchange.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr double log2_e = 1.4426950408889634;
// nodes along each axis that a pixel touches: those on both sides of it
constexpr int taps = 2;
// vectors of weights that are computed at once, step by step
constexpr int vectors_at_once = 2;
// weights below two to this power count as zero
constexpr double least_exponent = -13.3;
// so few blocks of landmarks are all taken as active: it takes less time than to find out
constexpr int64_t fewest_blocks = 2;
// the blur of the nodes reaches this many of its standard deviations
constexpr double blur_reach = 4.5;
// rows and vectors of the product with the mixture that stay in registers
constexpr int product_rows = 4, product_vectors = 2;

// Cells along an axis. A pixel gives to the nodes of its cell and of both next to it, and takes from them.
template <class T>
struct Axis {
    int64_t size, cell, num_cells;
    std::vector<T> spline;  // [cell, taps]: linear
    std::vector<T> blur;    // between nodes that are so many steps apart

    Axis(int64_t size, int64_t cell, double sigma) : size(size), cell(cell), num_cells(divide_up(size, cell)) {
        for (int64_t i = 0; i < cell; ++i) {
            const double right = (double(i) + 0.5) / double(cell);
            spline.push_back(T(1 - right));
            spline.push_back(T(right));
        }
        // interpolation at the source and at the target has a variance of a sixth of a step, on average
        const double steps = sigma / double(cell), variance = steps * steps - 1.0 / 3.0;
        const auto reach = std::min(int64_t(blur_reach * std::sqrt(variance)) + 1, num_nodes() - 1);
        for (int64_t i = 0; i <= reach; ++i) {
            blur.push_back(T(steps / std::sqrt(variance) * std::exp(-0.5 * double(i * i) / variance)));
        }
    }

    int64_t num_nodes() const { return num_cells + taps - 1; }
    Range pixels(int64_t at) const { return {at * cell, std::min((at + 1) * cell, size)}; }
};

// One item and up to C of its channels.
template <class T, int G, int C>
class LandmarkSum {
public:
    LandmarkSum(const LandmarkShape& shape, const T* landmarks, const T* mixture)
        : shape_(shape),
          guides_(shape.num_guides),
          y_(shape.height, shape.cell_y, shape.sigma_y),
          x_(shape.width, shape.cell_x, shape.sigma_x),
          num_blocks_(divide_up(shape.num_landmarks, lanes<T>)),
          num_terms_(num_blocks_ * lanes<T>),
          memory_{Memory(sizeof(T) * guides_ * num_terms_), Memory(sizeof(T) * num_terms_ * num_terms_),
                  Memory(sizeof(int32_t) * y_.num_cells * x_.num_cells * (num_blocks_ + 1)),
                  Memory(sizeof(T) * y_.num_nodes() * row_size()), Memory(sizeof(T) * y_.num_nodes() * row_size())},
          landmarks_(as<T>(memory_[0])),
          mixture_(as<T>(memory_[1])),
          active_(as<int32_t>(memory_[2])),
          nodes_(as<T>(memory_[3])),
          blurred_(as<T>(memory_[4])) {
        for (int64_t g = 0; g < guides_; ++g) {
            for (int64_t k = 0; k < num_terms_; ++k) {
                // the last one fills its block
                const int64_t from = std::min(k, shape.num_landmarks - 1);
                landmarks_[g * num_terms_ + k] = landmarks[from * guides_ + g];
            }
        }
        for (int64_t k = 0; k < num_terms_; ++k) {
            for (int64_t l = 0; l < num_terms_; ++l) {
                const bool inside = k < shape.num_landmarks && l < shape.num_landmarks;
                mixture_[k * num_terms_ + l] = inside ? mixture[k * shape.num_landmarks + l] : T(0);
            }
        }
    }

    // Of planes, one for each channel; those of out lie one after another.
    void run(const std::vector<const T*>& given, const T* guide, T* out, int threads) {
        const auto channels = int64_t(given.size());
        parallel_for(threads, y_.num_cells, [&](int64_t cell_y, int) { find_active(guide, cell_y); });
        parallel_for(threads, y_.num_nodes(),
                     [&](int64_t y, int) { std::fill(node(nodes_, y, 0), node(nodes_, y + 1, 0), T(0)); });
        Planes planes;
        // where there are fewer channels the last one stands in, and what comes of it is not written
        for (int64_t c = 0; c < C; ++c) planes.at[c] = given[std::min(c, channels - 1)];
        // rows of cells that touch no common node
        for (int phase = 0; phase < taps; ++phase) {
            parallel_for(threads, divide_up(y_.num_cells - phase, taps), [&](int64_t part, int) {
                for (int64_t x = 0; x < x_.num_cells; ++x) splat_cell(planes, guide, phase + taps * part, x);
            });
        }
        parallel_for(threads, y_.num_nodes(), [&](int64_t y, int) { blur_along_y(y); });
        parallel_for(threads, y_.num_nodes(), [&](int64_t y, int) { blur_and_mix(y); });
        parallel_for(threads, y_.num_cells, [&](int64_t cell_y, int) {
            const Memory weights(sizeof(T) * taps * C * num_terms_);
            for (int64_t x = 0; x < x_.num_cells; ++x) slice_cell(guide, channels, cell_y, x, as<T>(weights), out);
        });
    }

private:
    struct Planes {
        const T* at[C];
    };

    int64_t node_size() const { return C * num_terms_; }
    int64_t row_size() const { return x_.num_nodes() * node_size(); }
    T* node(T* nodes, int64_t y, int64_t x) const { return nodes + y * row_size() + x * node_size(); }
    // how many blocks of landmarks are near the colors of a cell, and which
    int32_t* active(int64_t cell_y, int64_t cell_x) const {
        return active_ + (cell_y * x_.num_cells + cell_x) * (num_blocks_ + 1);
    }
    const T* landmark(int64_t g, int64_t block) const { return landmarks_ + g * num_terms_ + block * lanes<T>; }
    int64_t plane() const { return shape_.height * shape_.width; }

    void find_active(const T* guide, int64_t cell_y) {
        if (num_blocks_ <= fewest_blocks) {
            for (int64_t cell_x = 0; cell_x < x_.num_cells; ++cell_x) {
                int32_t* all = active(cell_y, cell_x);
                all[0] = int32_t(num_blocks_);
                for (int32_t block = 0; block < num_blocks_; ++block) all[block + 1] = block;
            }
            return;
        }
        const Range rows = y_.pixels(cell_y);
        std::vector<T> least(guides_), most(guides_);
        for (int64_t cell_x = 0; cell_x < x_.num_cells; ++cell_x) {
            const Range columns = x_.pixels(cell_x);
            for (int64_t g = 0; g < guides_; ++g) {
                const T* colors = guide + g * plane();
                T low = colors[rows.begin * shape_.width + columns.begin], high = low;
                for (int64_t y = rows.begin; y < rows.end; ++y) {
                    for (int64_t x = columns.begin; x < columns.end; ++x) {
                        low = std::min(low, colors[y * shape_.width + x]);
                        high = std::max(high, colors[y * shape_.width + x]);
                    }
                }
                least[g] = low, most[g] = high;
            }
            int32_t* found = active(cell_y, cell_x);
            int32_t count = 0;
            for (int64_t block = 0; block < num_blocks_; ++block) {
                Vector<T> exponents{};
                for (int64_t g = 0; g < guides_; ++g) {
                    const Vector<T> at = load<T, lanes<T>>(landmark(g, block)), zero{};
                    const Vector<T> below = least[g] - at, above = at - most[g];
                    const Vector<T> outside = (below > zero ? below : zero) + (above > zero ? above : zero);
                    exponents -= outside * outside;
                }
                T largest = exponents[0];
                for (int i = 1; i < lanes<T>; ++i) largest = std::max(largest, exponents[i]);
                if (factor * largest > T(least_exponent)) found[++count] = int32_t(block);
            }
            found[0] = count;
        }
    }

    // The logarithm, to the base two, of the weights of a pixel's color at one block of landmarks.
    PERMUTOHEDRAL_INLINE Vector<T> exponents(const T* guide, int64_t pixel, int64_t block) const {
        const int64_t size = plane();
        Vector<T> sum{};
        for (int64_t g = 0; g < guides_; ++g) {
            const Vector<T> difference = guide[g * size + pixel] - load<T, lanes<T>>(landmark(g, block));
            sum -= difference * difference;
        }
        return factor * sum;
    }

    // Adds U consecutive pixels to what a row of a cell gives to the nodes along x.
    template <int U>
    PERMUTOHEDRAL_INLINE void add_pixels(const Planes& values, const T* guide, int64_t pixel, int64_t block,
                                         const T* spline, Vector<T>* sums) const {
        Vector<T> weights[U];
        for (int u = 0; u < U; ++u) weights[u] = exponents(guide, pixel + u, block);
        rough_exp2_in_place<T, U>(weights);
        for (int u = 0; u < U; ++u) {
            for (int c = 0; c < C; ++c) {
                const Vector<T> given = weights[u] * values.at[c][pixel + u];
                for (int i = 0; i < taps; ++i) sums[i * C + c] += given * spline[u * taps + i];
            }
        }
    }

    void splat_cell(const Planes& values, const T* guide, int64_t cell_y, int64_t cell_x) {
        const Range rows = y_.pixels(cell_y), columns = x_.pixels(cell_x);
        const int32_t* blocks = active(cell_y, cell_x);
        for (int32_t a = 1; a <= blocks[0]; ++a) {
            const int64_t block = blocks[a];
            Vector<T> totals[taps][taps * C] = {};
            for (int64_t y = rows.begin; y < rows.end; ++y) {
                Vector<T> sums[taps * C] = {};
                int64_t x = columns.begin;
                for (; x + vectors_at_once <= columns.end; x += vectors_at_once) {
                    add_pixels<vectors_at_once>(values, guide, y * shape_.width + x, block,
                                                &x_.spline[taps * (x - columns.begin)], sums);
                }
                for (; x < columns.end; ++x) {
                    add_pixels<1>(values, guide, y * shape_.width + x, block, &x_.spline[taps * (x - columns.begin)],
                                  sums);
                }
                for (int j = 0; j < taps; ++j) {
                    const T weight = y_.spline[taps * (y - rows.begin) + j];
                    for (int i = 0; i < taps * C; ++i) totals[j][i] += weight * sums[i];
                }
            }
            for (int j = 0; j < taps; ++j) {
                // the nodes along x follow each other
                T* to = node(nodes_, cell_y + j, cell_x) + block * lanes<T>;
                for (int i = 0; i < taps * C; ++i) {
                    T* term = to + i * num_terms_;
                    store<T, lanes<T>>(term, load<T, lanes<T>>(term) + totals[j][i]);
                }
            }
        }
    }

    // out += weight * from, of multiples of a vector
    static void add_scaled(const T* from, T weight, int64_t size, T* out) {
        for (int64_t i = 0; i < size; i += lanes<T>) {
            store<T, lanes<T>>(out + i, load<T, lanes<T>>(out + i) + weight * load<T, lanes<T>>(from + i));
        }
    }

    static Range reach_of(const Axis<T>& axis, int64_t at) {
        const auto reach = int64_t(axis.blur.size()) - 1;
        return {std::max<int64_t>(at - reach, 0), std::min(at + reach + 1, axis.num_nodes())};
    }

    void blur_along_y(int64_t y) {
        T* to = node(blurred_, y, 0);
        std::fill(to, to + row_size(), T(0));
        const Range near = reach_of(y_, y);
        for (int64_t x = 0; x < x_.num_nodes(); ++x) {
            for (int64_t from = near.begin; from < near.end; ++from) {
                add_scaled(node(nodes_, from, x), y_.blur[std::abs(from - y)], node_size(), to + x * node_size());
            }
        }
    }

    // Blurs a row of nodes along x, and multiplies the terms of each channel by the mixture.
    void blur_and_mix(int64_t y) {
        const Memory row(sizeof(T) * row_size());
        std::fill(as<T>(row), as<T>(row) + row_size(), T(0));
        for (int64_t x = 0; x < x_.num_nodes(); ++x) {
            const Range near = reach_of(x_, x);
            for (int64_t from = near.begin; from < near.end; ++from) {
                add_scaled(node(blurred_, y, from), x_.blur[std::abs(from - x)], node_size(),
                           as<T>(row) + x * node_size());
            }
        }
        const int64_t num_rows = x_.num_nodes() * C;
        int64_t first = 0;
        for (; first + product_rows <= num_rows; first += product_rows) {
            multiply<product_rows>(as<T>(row) + first * num_terms_, node(nodes_, y, 0) + first * num_terms_);
        }
        for (; first < num_rows; ++first) {
            multiply<1>(as<T>(row) + first * num_terms_, node(nodes_, y, 0) + first * num_terms_);
        }
    }

    template <int Rows>
    void multiply(const T* from, T* to) const {
        int64_t block = 0;
        for (; block + product_vectors <= num_blocks_; block += product_vectors) {
            multiply_blocks<Rows, product_vectors>(from, block, to);
        }
        for (; block < num_blocks_; ++block) multiply_blocks<Rows, 1>(from, block, to);
    }

    template <int Rows, int Vectors>
    PERMUTOHEDRAL_INLINE void multiply_blocks(const T* from, int64_t block, T* to) const {
        Vector<T> sums[Rows][Vectors] = {};
        const T* mixture = mixture_ + block * lanes<T>;
        for (int64_t k = 0; k < num_terms_; ++k) {
            for (int v = 0; v < Vectors; ++v) {
                const Vector<T> factors = load<T, lanes<T>>(mixture + k * num_terms_ + v * lanes<T>);
                for (int r = 0; r < Rows; ++r) sums[r][v] += from[r * num_terms_ + k] * factors;
            }
        }
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) {
                store<T, lanes<T>>(to + r * num_terms_ + (block + v) * lanes<T>, sums[r][v]);
            }
        }
    }

    // Adds what U of the active blocks give to a pixel, for each node along x.
    template <int U>
    PERMUTOHEDRAL_INLINE void take_blocks(const T* guide, int64_t pixel, const int32_t* blocks, const T* terms,
                                          Vector<T>* sums) const {
        Vector<T> weights[U];
        for (int u = 0; u < U; ++u) weights[u] = exponents(guide, pixel, blocks[u]);
        rough_exp2_in_place<T, U>(weights);
        for (int u = 0; u < U; ++u) {
            for (int i = 0; i < taps * C; ++i) {
                sums[i] += weights[u] * load<T, lanes<T>>(terms + (u * taps * C + i) * lanes<T>);
            }
        }
    }

    // `terms [active blocks, taps, C, lanes]` holds what is interpolated along y.
    void slice_cell(const T* guide, int64_t channels, int64_t cell_y, int64_t cell_x, T* terms, T* out) const {
        const Range rows = y_.pixels(cell_y), columns = x_.pixels(cell_x);
        const int32_t* blocks = active(cell_y, cell_x) + 1;
        const int32_t count = blocks[-1];
        for (int64_t y = rows.begin; y < rows.end; ++y) {
            const T* spline_y = &y_.spline[taps * (y - rows.begin)];
            for (int32_t a = 0; a < count; ++a) {
                for (int i = 0; i < taps * C; ++i) {
                    Vector<T> sum{};
                    for (int j = 0; j < taps; ++j) {
                        const T* from = node(nodes_, cell_y + j, cell_x) + i * num_terms_ + blocks[a] * lanes<T>;
                        sum += spline_y[j] * load<T, lanes<T>>(from);
                    }
                    store<T, lanes<T>>(terms + (a * taps * C + i) * lanes<T>, sum);
                }
            }
            for (int64_t x = columns.begin; x < columns.end; ++x) {
                const int64_t pixel = y * shape_.width + x;
                Vector<T> sums[taps * C] = {};
                int32_t a = 0;
                for (; a + vectors_at_once <= count; a += vectors_at_once) {
                    take_blocks<vectors_at_once>(guide, pixel, blocks + a, terms + a * taps * C * lanes<T>, sums);
                }
                for (; a < count; ++a) take_blocks<1>(guide, pixel, blocks + a, terms + a * taps * C * lanes<T>, sums);
                const T* spline_x = &x_.spline[taps * (x - columns.begin)];
                for (int64_t c = 0; c < C; ++c) {
                    Vector<T> sum{};
                    for (int i = 0; i < taps; ++i) sum += spline_x[i] * sums[i * C + c];
                    sum = reduce_lanes<T, lanes<T>>(sum, [](Vector<T> a, Vector<T> b) { return a + b; });
                    if (c < channels) out[c * plane() + pixel] = sum[0];
                }
            }
        }
    }

    // exp(-x^2 / 2) is two to the power of -factor x^2
    static constexpr T factor = T(0.5 * log2_e);
    const LandmarkShape shape_;
    const Extent<G> guides_;
    const Axis<T> y_, x_;
    const int64_t num_blocks_, num_terms_;
    const Memory memory_[5];
    T *const landmarks_, *const mixture_;
    int32_t* const active_;
    T *const nodes_, *const blurred_;  // [nodes along y, nodes along x, C, terms]
};

}  // namespace

template <class T>
void sum_landmarks(const LandmarkShape& shape, const T* values, const T* guide, const T* landmarks, const T* mixture,
                   T* out, int threads) {
    constexpr int channels_at_once = 4;
    const int64_t plane = shape.height * shape.width, num_sums = shape.num_channels + 1;
    const Memory ones(sizeof(T) * plane);
    std::fill(as<T>(ones), as<T>(ones) + plane, T(1));
    WindowShape window{};
    window.num_guides = shape.num_guides;
    window.height = shape.height;
    window.width = shape.width;
    window.sigma_y = shape.sigma_y;
    window.sigma_x = shape.sigma_x;
    window.reach = shape.reach;
    dispatch<3, 0>(shape.num_guides, [&](auto guides) {
        LandmarkSum<T, decltype(guides)::value, channels_at_once> sum(shape, landmarks, mixture);
        for (int64_t item = 0; item < shape.num_items; ++item) {
            std::vector<const T*> planes;
            for (int64_t c = 0; c < shape.num_channels; ++c) {
                planes.push_back(values + (item * shape.num_channels + c) * plane);
            }
            planes.push_back(as<T>(ones));
            const T* colors = guide + item * shape.num_guides * plane;
            T* sums = out + item * num_sums * plane;
            for (int64_t first = 0; first < num_sums; first += channels_at_once) {
                const auto begin = planes.begin() + first;
                const int64_t channels = std::min<int64_t>(channels_at_once, num_sums - first);
                sum.run(std::vector<const T*>(begin, begin + channels), colors, sums + first * plane, threads);
            }
            repair_sums(window, planes, colors, T(shape.small_mass), shape.most_repaired, sums, threads);
        }
    });
}

template void sum_landmarks(const LandmarkShape&, const float*, const float*, const float*, const float*, float*, int);
template void sum_landmarks(const LandmarkShape&, const double*, const double*, const double*, const double*, double*,
                            int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
