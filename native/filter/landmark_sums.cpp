// The Gaussian over position and color, its part over colors as a sum of few terms: see filters/landmarks.py for the formula.
// Every term is a picture that is blurred over positions, on a grid of cells as wide as the blur permits. Compiled once
// per instruction set.
#include <algorithm>
#include <cmath>
#include <vector>

#include "filter/cell_axis.hpp"
#include "filter/landmark_mixture.hpp"
#include "filter/pixel_window.hpp"
#include "filter/powers_of_two.hpp"
#include "filter/rare_pixels.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/lane_exchange.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr double log2_e = 1.4426950408889634;
// channels of a guide: those that are missing are zero
constexpr int num_guides = 3;
// channels that are summed at once
constexpr int num_channels = 4;
// pixels that are splatted at once, and blocks of landmarks that are sliced at once, step by step
constexpr int pixels_at_once = 2, blocks_at_once = 2;
// weights below two to this power count as zero
constexpr double least_exponent = -13.3;
// so few blocks of landmarks are all taken as active: it takes less time than to find out
constexpr int64_t fewest_blocks = 2;

// What is needed of a pixel. The logarithm of its weight at a landmark c is |a|^2 + |c|^2 - 2 a c, times a factor.
template <class T>
struct Pixel {
    T color[num_guides];
    T square;
    T values[num_channels];
};

// One item and up to `num_channels` of its channels.
template <class T>
class LandmarkSum {
public:
    LandmarkSum(const LandmarkShape& shape, const T* landmarks, const T* mixture)
        : shape_(shape),
          y_(shape.height, shape.cell_y, shape.sigma_y, shape.blur_reach),
          x_(shape.width, shape.cell_x, shape.sigma_x, shape.blur_reach),
          num_blocks_(divide_up(shape.num_landmarks, lanes<T>)),
          num_terms_(num_blocks_ * lanes<T>),
          mixture_(mixture, shape.num_landmarks, num_blocks_),
          memory_{Memory(sizeof(T) * (num_guides + 1) * num_terms_),
                  Memory(sizeof(int32_t) * y_.num_cells * x_.num_cells * (num_blocks_ + 1)),
                  Memory(sizeof(T) * y_.num_nodes() * row_size()), Memory(sizeof(T) * y_.num_nodes() * row_size()),
                  Memory(sizeof(Pixel<T>) * plane())},
          landmarks_(as<T>(memory_[0])),
          active_(as<int32_t>(memory_[1])),
          nodes_(as<T>(memory_[2])),
          blurred_(as<T>(memory_[3])),
          pixels_(as<Pixel<T>>(memory_[4])) {
        center_landmarks(landmarks);
    }

    // Of planes, one for each channel; those of out lie one after another.
    void run(const std::vector<const T*>& values, const T* guide, T* out, int threads) {
        const Planes planes = planes_of(values, guide);
        parallel_for(threads, shape_.height, [&](int64_t y, int) { gather_row(planes, y); });
        parallel_for(threads, y_.num_cells, [&](int64_t cell_y, int) { find_active(guide, cell_y); });
        parallel_for(threads, y_.num_nodes(),
                     [&](int64_t y, int) { std::fill(node(nodes_, y, 0), node(nodes_, y + 1, 0), T(0)); });
        // rows of cells that touch no common node
        for (int phase = 0; phase < cell_ends; ++phase) {
            parallel_for(threads, divide_up(y_.num_cells - phase, cell_ends), [&](int64_t part, int) {
                for (int64_t x = 0; x < x_.num_cells; ++x) splat_cell(phase + cell_ends * part, x);
            });
        }
        parallel_for(threads, y_.num_nodes(), [&](int64_t y, int) { blur_along_y(y); });
        parallel_for(threads, y_.num_nodes(), [&](int64_t y, int) { blur_and_mix(y); });
        parallel_for(threads, y_.num_cells, [&](int64_t cell_y, int) {
            const Memory terms(sizeof(T) * cell_ends * num_channels * num_terms_);
            for (int64_t x = 0; x < x_.num_cells; ++x) slice_cell(planes.channels, cell_y, x, as<T>(terms), out);
        });
    }

private:
    // Where there are fewer channels the last one stands in: what comes of values is not written, and colors of a guide
    // are multiplied by zero.
    struct Planes {
        const T* values[num_channels];
        const T* colors[num_guides];
        int64_t channels;
    };

    Planes planes_of(const std::vector<const T*>& values, const T* guide) const {
        Planes planes{};
        planes.channels = int64_t(values.size());
        for (int64_t c = 0; c < num_channels; ++c) planes.values[c] = values[std::min(c, planes.channels - 1)];
        for (int64_t g = 0; g < num_guides; ++g)
            planes.colors[g] = guide + std::min(g, shape_.num_guides - 1) * plane();
        return planes;
    }

    int64_t node_size() const { return num_channels * num_terms_; }
    int64_t row_size() const { return x_.num_nodes() * node_size(); }
    T* node(T* nodes, int64_t y, int64_t x) const { return nodes + y * row_size() + x * node_size(); }
    // how many blocks of landmarks are near the colors of a cell, and which
    int32_t* active(int64_t cell_y, int64_t cell_x) const {
        return active_ + (cell_y * x_.num_cells + cell_x) * (num_blocks_ + 1);
    }
    // channel g of the colors; behind them their squares, times the factor
    Vector<T> landmark(int64_t g, int64_t block) const {
        return load<T, lanes<T>>(landmarks_ + g * num_terms_ + block * lanes<T>);
    }
    int64_t plane() const { return shape_.height * shape_.width; }

    // Squares of colors lose digits far from the origin, so that lies in the middle of the landmarks.
    void center_landmarks(const T* landmarks) {
        for (int64_t g = 0; g < num_guides; ++g) {
            double sum = 0;
            for (int64_t k = 0; g < shape_.num_guides && k < shape_.num_landmarks; ++k) {
                sum += double(landmarks[k * shape_.num_guides + g]);
            }
            origin_[g] = T(sum / double(shape_.num_landmarks));
            scale_[g] = T(g < shape_.num_guides ? 1 : 0);
        }
        for (int64_t k = 0; k < num_terms_; ++k) {
            // the last one fills its block
            const T* from = landmarks + std::min(k, shape_.num_landmarks - 1) * shape_.num_guides;
            T square = 0;
            for (int64_t g = 0; g < num_guides; ++g) {
                const T color = g < shape_.num_guides ? from[g] - origin_[g] : T(0);
                landmarks_[g * num_terms_ + k] = color;
                square += color * color;
            }
            landmarks_[num_guides * num_terms_ + k] = -factor * square;
        }
    }

    // The planes lie far from each other, but what is needed of a pixel is needed at once.
    void gather_row(const Planes& planes, int64_t y) {
        for (int64_t at = y * shape_.width; at < (y + 1) * shape_.width; ++at) {
            Pixel<T>& pixel = pixels_[at];
            T square = 0;
            for (int g = 0; g < num_guides; ++g) {
                const T color = scale_[g] * (planes.colors[g][at] - origin_[g]);
                pixel.color[g] = 2 * factor * color;
                square += color * color;
            }
            pixel.square = -factor * square;
            for (int c = 0; c < num_channels; ++c) pixel.values[c] = planes.values[c][at];
        }
    }

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
        for (int64_t cell_x = 0; cell_x < x_.num_cells; ++cell_x) {
            const Range columns = x_.pixels(cell_x);
            T least[num_guides] = {}, most[num_guides] = {};
            for (int64_t g = 0; g < shape_.num_guides; ++g) {
                const T* colors = guide + g * plane();
                T low = colors[rows.begin * shape_.width + columns.begin], high = low;
                for (int64_t y = rows.begin; y < rows.end; ++y) {
                    for (int64_t x = columns.begin; x < columns.end; ++x) {
                        low = std::min(low, colors[y * shape_.width + x]);
                        high = std::max(high, colors[y * shape_.width + x]);
                    }
                }
                least[g] = low - origin_[g], most[g] = high - origin_[g];
            }
            int32_t* found = active(cell_y, cell_x);
            int32_t count = 0;
            for (int64_t block = 0; block < num_blocks_; ++block) {
                Vector<T> exponents{};
                for (int64_t g = 0; g < num_guides; ++g) {
                    const Vector<T> at = landmark(g, block), zero{};
                    const Vector<T> below = least[g] - at, above = at - most[g];
                    const Vector<T> outside = larger<T>(below, zero) + larger<T>(above, zero);
                    exponents -= outside * outside;
                }
                T largest = exponents[0];
                for (int i = 1; i < lanes<T>; ++i) largest = std::max(largest, exponents[i]);
                if (factor * largest > T(least_exponent)) found[++count] = int32_t(block);
            }
            found[0] = count;
        }
    }

    void splat_cell(int64_t cell_y, int64_t cell_x) {
        const int32_t* blocks = active(cell_y, cell_x);
        for (int64_t part_y = 0; part_y < parts_along; ++part_y) {
            for (int64_t part_x = 0; part_x < parts_along; ++part_x) {
                const Range rows = y_.pixels(cell_y, part_y), columns = x_.pixels(cell_x, part_x);
                if (rows.begin == rows.end || columns.begin == columns.end) continue;
                const T down = y_.right_of(cell_y, rows), right = x_.right_of(cell_x, columns);
                const T weights[cell_ends][cell_ends] = {{(1 - down) * (1 - right), (1 - down) * right},
                                                         {down * (1 - right), down * right}};
                for (int32_t a = 1; a <= blocks[0]; ++a) {
                    splat_block(rows, columns, blocks[a], weights, node(nodes_, cell_y, cell_x));
                }
            }
        }
    }

    // Adds what the pixels of one part give to one block of landmarks, at the nodes from `first` on.
    PERMUTOHEDRAL_INLINE void splat_block(Range rows, Range columns, int64_t block,
                                          const T (&node_weights)[cell_ends][cell_ends], T* first) const {
        Vector<T> colors[num_guides + 1];
        for (int g = 0; g <= num_guides; ++g) colors[g] = landmark(g, block);
        Vector<T> sums[num_channels] = {};
        for (int64_t y = rows.begin; y < rows.end; ++y) {
            const Pixel<T>* at = pixels_ + y * shape_.width + columns.begin;
            const Pixel<T>* const end = at + (columns.end - columns.begin);
            for (; at + pixels_at_once <= end; at += pixels_at_once) add_pixels<pixels_at_once>(at, colors, sums);
            for (; at < end; ++at) add_pixels<1>(at, colors, sums);
        }
        for (int j = 0; j < cell_ends; ++j) {
            for (int i = 0; i < cell_ends; ++i) {
                T* to = first + j * row_size() + i * node_size() + block * lanes<T>;
                for (int c = 0; c < num_channels; ++c) {
                    T* term = to + c * num_terms_;
                    store<T, lanes<T>>(term, load<T, lanes<T>>(term) + node_weights[j][i] * sums[c]);
                }
            }
        }
    }

    template <int U>
    PERMUTOHEDRAL_INLINE static void add_pixels(const Pixel<T>* pixels, const Vector<T>* colors, Vector<T>* sums) {
        Vector<T> weights[U];
        for (int u = 0; u < U; ++u) weights[u] = exponents(pixels[u], colors);
        rough_exp2_in_place<T, U>(weights);
        for (int u = 0; u < U; ++u) {
            for (int c = 0; c < num_channels; ++c) sums[c] += weights[u] * pixels[u].values[c];
        }
    }

    // The logarithm, to the base two, of the weights of a pixel's color at one block of landmarks.
    PERMUTOHEDRAL_INLINE static Vector<T> exponents(const Pixel<T>& pixel, const Vector<T>* colors) {
        Vector<T> sum = colors[num_guides] + pixel.square;
        for (int g = 0; g < num_guides; ++g) sum += pixel.color[g] * colors[g];
        return sum;
    }

    // out += weight * from, of multiples of a vector
    static void add_scaled(const T* from, T weight, int64_t size, T* out) {
        for (int64_t i = 0; i < size; i += lanes<T>) {
            store<T, lanes<T>>(out + i, load<T, lanes<T>>(out + i) + weight * load<T, lanes<T>>(from + i));
        }
    }

    void blur_along_y(int64_t y) {
        T* to = node(blurred_, y, 0);
        std::fill(to, to + row_size(), T(0));
        const Range near = y_.nodes_near(y);
        for (int64_t x = 0; x < x_.num_nodes(); ++x) {
            for (int64_t from = near.begin; from < near.end; ++from) {
                add_scaled(node(nodes_, from, x), y_.blur_between(from, y), node_size(), to + x * node_size());
            }
        }
    }

    // Blurs a row of nodes along x, and multiplies the terms of each channel by the mixture.
    void blur_and_mix(int64_t y) {
        const Memory row(sizeof(T) * row_size());
        std::fill(as<T>(row), as<T>(row) + row_size(), T(0));
        for (int64_t x = 0; x < x_.num_nodes(); ++x) {
            const Range near = x_.nodes_near(x);
            for (int64_t from = near.begin; from < near.end; ++from) {
                add_scaled(node(blurred_, y, from), x_.blur_between(from, x), node_size(),
                           as<T>(row) + x * node_size());
            }
        }
        mixture_.multiply(as<T>(row), x_.num_nodes() * num_channels, node(nodes_, y, 0));
    }

    // Adds what U of the active blocks give to a pixel, for each node along x.
    template <int U>
    PERMUTOHEDRAL_INLINE void take_blocks(const Pixel<T>& pixel, const int32_t* blocks, const T* terms,
                                          Vector<T>* sums) const {
        Vector<T> weights[U];
        for (int u = 0; u < U; ++u) {
            Vector<T> colors[num_guides + 1];
            for (int g = 0; g <= num_guides; ++g) colors[g] = landmark(g, blocks[u]);
            weights[u] = exponents(pixel, colors);
        }
        rough_exp2_in_place<T, U>(weights);
        for (int u = 0; u < U; ++u) {
            for (int i = 0; i < cell_ends * num_channels; ++i) {
                sums[i] += weights[u] * load<T, lanes<T>>(terms + (u * cell_ends * num_channels + i) * lanes<T>);
            }
        }
    }

    // `terms [active blocks, cell_ends, num_channels, lanes]` holds what is interpolated along y.
    void slice_cell(int64_t channels, int64_t cell_y, int64_t cell_x, T* terms, T* out) const {
        constexpr int block_size = cell_ends * num_channels;
        const Range rows = y_.pixels(cell_y), columns = x_.pixels(cell_x);
        const int32_t* blocks = active(cell_y, cell_x) + 1;
        const int32_t count = blocks[-1];
        for (int64_t y = rows.begin; y < rows.end; ++y) {
            const T down = y_.right[y - rows.begin];
            for (int32_t a = 0; a < count; ++a) {
                const T* upper = node(nodes_, cell_y, cell_x) + blocks[a] * lanes<T>;
                for (int i = 0; i < block_size; ++i) {
                    const Vector<T> above = load<T, lanes<T>>(upper + i * num_terms_);
                    const Vector<T> below = load<T, lanes<T>>(upper + row_size() + i * num_terms_);
                    store<T, lanes<T>>(terms + (a * block_size + i) * lanes<T>, above + down * (below - above));
                }
            }
            for (int64_t x = columns.begin; x < columns.end; ++x) {
                const int64_t at = y * shape_.width + x;
                Vector<T> sums[block_size] = {};
                int32_t a = 0;
                for (; a + blocks_at_once <= count; a += blocks_at_once) {
                    take_blocks<blocks_at_once>(pixels_[at], blocks + a, terms + a * block_size * lanes<T>, sums);
                }
                for (; a < count; ++a) take_blocks<1>(pixels_[at], blocks + a, terms + a * block_size * lanes<T>, sums);
                const T right = x_.right[x - columns.begin];
                for (int c = 0; c < num_channels; ++c) {
                    sums[c] += right * (sums[num_channels + c] - sums[c]);
                }
                T totals[num_channels];
                add_lanes_of_four<T>(sums, totals);
                for (int64_t c = 0; c < channels; ++c) out[c * plane() + at] = totals[c];
            }
        }
    }

    // exp(-x^2 / 2) is two to the power of -factor x^2
    static constexpr T factor = T(0.5 * log2_e);
    const LandmarkShape shape_;
    const CellAxis<T> y_, x_;
    const int64_t num_blocks_, num_terms_;
    const Mixture<T> mixture_;
    const Memory memory_[5];
    T* const landmarks_;
    T origin_[num_guides], scale_[num_guides];
    int32_t* const active_;
    T *const nodes_, *const blurred_;  // [nodes along y, nodes along x, num_channels, terms]
    Pixel<T>* const pixels_;
};

}  // namespace

template <class T>
void sum_landmarks(const LandmarkShape& shape, const T* values, const T* guide, const T* landmarks, const T* mixture,
                   T* out, int threads) {
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
    LandmarkSum<T> sum(shape, landmarks, mixture);
    for (int64_t item = 0; item < shape.num_items; ++item) {
        std::vector<const T*> planes;
        for (int64_t c = 0; c < shape.num_channels; ++c) {
            planes.push_back(values + (item * shape.num_channels + c) * plane);
        }
        planes.push_back(as<T>(ones));
        const T* colors = guide + item * shape.num_guides * plane;
        T* sums = out + item * num_sums * plane;
        for (int64_t first = 0; first < num_sums; first += num_channels) {
            const auto begin = planes.begin() + first;
            const int64_t channels = std::min<int64_t>(num_channels, num_sums - first);
            sum.run(std::vector<const T*>(begin, begin + channels), colors, sums + first * plane, threads);
        }
        if (shape.most_repaired == 0) continue;
        const T* mass = sums + (num_sums - 1) * plane;
        const std::vector<int64_t> rare = find_rare(shape, landmarks, mixture, colors, mass, threads);
        sum_again(window, planes, colors, rare, sums, threads);
    }
}

template void sum_landmarks(const LandmarkShape&, const float*, const float*, const float*, const float*, float*, int);
template void sum_landmarks(const LandmarkShape&, const double*, const double*, const double*, const double*, double*,
                            int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
