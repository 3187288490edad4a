// The mean field of a dense conditional random field. Compiled once per instruction set.
//
// One pass over the points makes a step: their logits are interpolated from the lattices of all kernels, become
// marginals, and are splatted again, while they are in the cache; marginals are stored in the last pass only. What is
// done on the lattices, between two passes, is the blur, and a product with the matrix of costs.
#include <cmath>
#include <utility>
#include <vector>

#include "filter/blur_passes.hpp"
#include "filter/label_rows.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// elements of the rows of a chunk, which stay in a level-one cache; its points are a multiple of the lanes of a vector
constexpr int64_t chunk_elements = 4096, least_chunk_points = 16, most_chunks = 8;
// elements of the rows that several threads make before they splat them
constexpr int64_t window_elements = int64_t{1} << 19;
constexpr int64_t chunks_per_task = 8, rows_per_task = 2048, points_per_task = 1 << 14;
// threads that share the splats of a kernel, which are about a quarter of the work
constexpr int64_t threads_per_splat = 4;

// added to the mass of a point, which is a divisor
constexpr double smallest_mass = 1e-20;

// The tables of one kernel: one is written, the other is read; a third one where it is blurred both ways. And how points
// are splatted and sliced.
template <class T>
struct Tables {
    Memory memory[3], scales;
    ScaledSimplices<T> source, target;
    T* splatted;
    T* blurred;
    T* spare;
};

// 1 / mass of each point, or its root.
template <class T>
Memory find_scales(const PairwiseKernel<T>& kernel, int threads) {
    const int64_t points = kernel.simplices.num_points, rows = kernel.num_lattice_points;
    const Memory splatted(sizeof(T) * rows), blurred(sizeof(T) * rows);
    const PointOrder<T> order = plan_order(kernel.simplices, {rows, int64_t(sizeof(T))}, threads > 1, threads);
    splat_with_mass<T>(order, {nullptr, points, 0}, {as<T>(splatted), rows, 1}, threads);
    blur<T>({as<T>(splatted), rows, 1}, kernel.axis_neighbors, kernel.num_axes, false, as<T>(blurred), threads);
    Memory scales(sizeof(T) * points);
    T* scale = as<T>(scales);
    slice<T>(kernel.simplices, {as<T>(blurred), rows, 1}, {scale, points, 1}, threads);
    const bool is_root = kernel.source_power == kernel.target_power;
    parallel_ranges(threads, points, points_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            const T mass = scale[i] + T(smallest_mass);
            scale[i] = T(1) / (is_root ? std::sqrt(mass) : mass);
        }
    });
    return scales;
}

template <class T>
class MeanFieldPasses {
public:
    MeanFieldPasses(const MeanField<T>& field, T* out, int threads)
        : field_(field),
          out_(out),
          threads_(threads),
          mirrored_(field.labels == 2 && !has_costs(field)),
          stride_(row_stride<T>(field.labels, mirrored_)),
          chunk_points_(std::clamp(chunk_elements / stride_ / least_chunk_points, int64_t{1}, most_chunks) *
                        least_chunk_points),
          chunks_per_item_(divide_up(field.num_points, chunk_points_)),
          num_chunks_(chunks_per_item_ * field.num_items),
          tables_(field.num_kernels) {
        if (field.steps == 0) return;
        for (int64_t k = 0; k < field.num_kernels; ++k) {
            for (int64_t t = 0; t < (field.kernels[k].both_ways ? 3 : 2); ++t) {
                tables_[k].memory[t] = Memory(sizeof(T) * field.kernels[k].num_lattice_points * stride_);
            }
            tables_[k].splatted = as<T>(tables_[k].memory[0]);
            tables_[k].blurred = as<T>(tables_[k].memory[1]);
            tables_[k].spare = as<T>(tables_[k].memory[2]);
            set_scales(k);
        }
    }

    void run() {
        for (int64_t step = 0; step < field_.steps; ++step) {
            splat_all(step == 0);
            for (int64_t k = 0; k < field_.num_kernels; ++k) blur(k);
        }
        const Memory memory = scratch();
        parallel_ranges(threads_, num_chunks_, chunks_per_task, [&](int64_t begin, int64_t end, int worker) {
            for (int64_t c = begin; c < end; ++c) {
                write(chunk_at(c, rows_of(memory, worker)), columns_of(memory, worker));
            }
        });
    }

private:
    static bool has_costs(const MeanField<T>& field) {
        return std::any_of(field.kernels, field.kernels + field.num_kernels,
                           [](const PairwiseKernel<T>& kernel) { return kernel.costs != nullptr; });
    }

    void set_scales(int64_t k) {
        const PairwiseKernel<T>& kernel = field_.kernels[k];
        Tables<T>& tables = tables_[k];
        tables.source = {kernel.simplices, nullptr, T(1)};
        tables.target = {kernel.simplices, nullptr, kernel.factor};
        if (kernel.source_power == 0 && kernel.target_power == 0) return;
        tables.scales = find_scales(kernel, threads_);
        if (kernel.source_power > 0) tables.source.scale = as<T>(tables.scales);
        if (kernel.target_power > 0) tables.target.scale = as<T>(tables.scales);
    }

    // For each thread: the columns of `lanes` points, and the rows of a chunk.
    Memory scratch() const { return Memory(sizeof(T) * threads_ * (lanes<T> + chunk_points_) * stride_); }
    T* columns_of(const Memory& memory, int worker) const {
        return as<T>(memory) + worker * (lanes<T> + chunk_points_) * stride_;
    }
    T* rows_of(const Memory& memory, int worker) const {
        return as<T>(memory) + (worker * (lanes<T> + chunk_points_) + lanes<T>)*stride_;
    }

    Chunk<T> chunk_at(int64_t number, T* rows) const {
        const int64_t first = number % chunks_per_item_ * chunk_points_;
        return {number / chunks_per_item_, first, std::min(chunk_points_, field_.num_points - first), rows};
    }

    int64_t point_of(const Chunk<T>& chunk) const { return chunk.item * field_.num_points + chunk.first; }

    // Where the numbers of a label begin, in energies and marginals.
    int64_t plane_of(const Chunk<T>& chunk, int64_t label) const {
        return (chunk.item * field_.labels + label) * field_.num_points + chunk.first;
    }

    // Makes the marginals of all points and splats them into the tables of all kernels.
    void splat_all(bool first) {
        for (int64_t k = 0; k < field_.num_kernels; ++k) clear(k);
        if (threads_ == 1) {
            const Memory memory = scratch();
            return parallel_for(1, num_chunks_, [&](int64_t c, int) {
                const Chunk<T> chunk = chunk_at(c, rows_of(memory, 0));
                make_values(chunk, first, columns_of(memory, 0));
                for (int64_t k = 0; k < field_.num_kernels; ++k) splat(k, chunk, {0, num_rows(k)});
            });
        }
        splat_in_windows(first);
    }

    // While some threads splat the values of a window, each kernel by itself, the others make those of the next one.
    // Every lattice point adds up its points in their order, so the sums have the same bits on any number of threads.
    void splat_in_windows(bool first) {
        const int64_t window = std::max<int64_t>(window_elements / (stride_ * chunk_points_), 1);
        const Memory columns = scratch(), memory(sizeof(T) * 2 * window * chunk_points_ * stride_);
        const int64_t parts = divide_up(threads_, threads_per_splat);
        for (int64_t begin = 0; begin < num_chunks_ + window; begin += window) {
            auto rows_at = [&](int64_t c) {
                return as<T>(memory) + (c / window % 2 * window + c % window) * chunk_points_ * stride_;
            };
            const int64_t made = std::max<int64_t>(std::min(window, num_chunks_ - begin), 0);
            const int64_t makers = divide_up(made, chunks_per_task);
            const int64_t splats = begin == 0 ? 0 : field_.num_kernels * parts;
            parallel_for(threads_, makers + splats, [&](int64_t task, int worker) {
                // the splats take longer, so each begins the share of a thread
                const int64_t before = splats == 0 ? 0 : divide_up(task * splats, makers + splats);
                if (before < splats && block_range(makers + splats, splats, before).begin == task) {
                    const int64_t k = before / parts, end = std::min(begin, num_chunks_);
                    const Range vertices = block_range(num_rows(k), parts, before % parts);
                    for (int64_t c = begin - window; c < end; ++c) splat(k, chunk_at(c, rows_at(c)), vertices);
                    return;
                }
                const int64_t maker = begin + (task - before) * chunks_per_task;
                for (int64_t c = maker; c < std::min(maker + chunks_per_task, begin + made); ++c) {
                    make_values(chunk_at(c, rows_at(c)), first, columns_of(columns, worker));
                }
            });
        }
    }

    int64_t num_rows(int64_t k) const { return field_.kernels[k].num_lattice_points; }

    void splat(int64_t k, const Chunk<T>& chunk, Range vertices) {
        const bool everywhere = vertices.end - vertices.begin == num_rows(k);
        add_splats(tables_[k].source, tables_[k].splatted, stride_, point_of(chunk), chunk.count, chunk.rows, vertices,
                   everywhere);
    }

    void clear(int64_t k) {
        parallel_ranges(threads_, num_rows(k), rows_per_task, [&](int64_t begin, int64_t end, int) {
            std::memset(tables_[k].splatted + begin * stride_, 0, sizeof(T) * (end - begin) * stride_);
        });
    }

    // What the kernels say, and of mirrored labels what they cost.
    void gather(const Chunk<T>& chunk, bool first) {
        if (mirrored_) {
            const T *one = field_.energies + plane_of(chunk, 0), *other = field_.energies + plane_of(chunk, 1);
            for (int64_t i = 0; i < chunk.count; ++i) chunk.rows[i] = one[i] - other[i];
        } else {
            // those of the next chunk: the processor does not foresee so many short pieces
            const int64_t ahead = std::min(chunk_points_, field_.num_points - chunk.first - chunk.count);
            for (int64_t label = 0; label < field_.labels; ++label) {
                prefetch_bytes(field_.energies + plane_of(chunk, label) + chunk.count, int64_t(sizeof(T)) * ahead);
            }
            if (first) std::memset(chunk.rows, 0, sizeof(T) * chunk.count * stride_);
        }
        if (first) return;
        for (int64_t k = 0; k < field_.num_kernels; ++k) {
            const bool fresh = k == 0 && !mirrored_;
            add_slices(tables_[k].target, tables_[k].blurred, stride_, point_of(chunk), chunk.count, chunk.rows, fresh);
        }
    }

    template <int N>
    LabelColumns<T, N> columns_at(T* memory) const {
        return {reinterpret_cast<typename VectorOf<T, N>::type*>(memory), field_.labels};
    }

    LabelPlanes<const T> planes_of(const Chunk<T>& chunk, const T* data) const {
        return {data + plane_of(chunk, 0), field_.num_points};
    }

    // What is splatted: marginals, or of mirrored labels their difference.
    void make_values(const Chunk<T>& chunk, bool first, T* columns) {
        if (first && field_.start != nullptr) return load_start(chunk, columns);
        gather(chunk, first);
        if (mirrored_) {
            return for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const Mirrored<T> marginals = mirrored_softmax<T>(logits);
                store_at_most<T, lanes<T>>(chunk.rows + i, marginals.second - marginals.first, count);
            });
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            make_marginals<T, N>(chunk, stride_, planes_of(chunk, field_.energies), columns_at<N>(columns));
        });
    }

    void load_start(const Chunk<T>& chunk, T* columns) {
        if (mirrored_) {
            const T *one = field_.start + plane_of(chunk, 0), *other = field_.start + plane_of(chunk, 1);
            for (int64_t i = 0; i < chunk.count; ++i) chunk.rows[i] = other[i] - one[i];
            return;
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            load_marginals<T, N>(chunk, stride_, planes_of(chunk, field_.start), columns_at<N>(columns));
        });
    }

    void write(const Chunk<T>& chunk, T* columns) {
        gather(chunk, field_.steps == 0);
        const LabelPlanes<T> out{out_ + plane_of(chunk, 0), field_.num_points};
        if (mirrored_) {
            return for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const Mirrored<T> marginals = mirrored_softmax<T>(logits);
                store_at_most<T, lanes<T>>(out.data + i, marginals.first, count);
                store_at_most<T, lanes<T>>(out.data + out.step + i, marginals.second, count);
            });
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            write_marginals<T, N>(chunk, stride_, planes_of(chunk, field_.energies), columns_at<N>(columns), out);
        });
    }

    // Calls function(first, vector, how many points are left) for the single numbers of a chunk.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_vectors(const Chunk<T>& chunk, Function&& function) {
        for (int64_t i = 0; i < chunk.count; i += lanes<T>) {
            function(i, load<T, lanes<T>>(chunk.rows + i), chunk.count - i);
        }
    }

    // From the splatted table to the blurred one, with the costs applied.
    void blur(int64_t k) {
        const PairwiseKernel<T>& kernel = field_.kernels[k];
        Tables<T>& tables = tables_[k];
        if (kernel.both_ways) {
            // the reverse may overwrite what was splatted
            T* forward = blur_passes_of(k, tables.splatted, tables.blurred, tables.spare, false);
            T* free = forward == tables.blurred ? tables.spare : tables.blurred;
            T* reverse = blur_passes_of(k, tables.splatted, free, tables.splatted, true);
            average(k, forward, reverse);
            tables.blurred = forward;
            tables.spare = free;
        } else {
            T* result = blur_passes_of(k, tables.splatted, tables.blurred, tables.splatted, false);
            if (result == tables.splatted) std::swap(tables.splatted, tables.blurred);
        }
        if (kernel.costs != nullptr) apply_costs(kernel, tables.blurred);
    }

    // Blurs `in`, the passes writing to `first` and `second` in turn; returns which has the result.
    T* blur_passes_of(int64_t k, T* in, T* first, T* second, bool reverse) {
        const PairwiseKernel<T>& kernel = field_.kernels[k];
        const BlurredPanel<T> panel{{in, num_rows(k), stride_}, first, second};
        blur_passes<T>(1, [&](int64_t) { return panel; }, {kernel.axis_neighbors, kernel.num_axes, reverse}, threads_);
        return kernel.num_axes % 2 == 1 ? first : second;
    }

    void average(int64_t k, T* to, const T* other) {
        parallel_ranges(threads_, num_rows(k), rows_per_task, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin * stride_; i < end * stride_; ++i) to[i] = T(0.5) * (to[i] + other[i]);
        });
    }

    void apply_costs(const PairwiseKernel<T>& kernel, T* table) {
        const int64_t labels = field_.labels;
        const Memory memory(sizeof(T) * threads_ * stride_);
        parallel_ranges(threads_, kernel.num_lattice_points, rows_per_task,
                        [&](int64_t begin, int64_t end, int worker) {
                            T* sums = as<T>(memory) + worker * stride_;
                            for (int64_t v = begin; v < end; ++v) {
                                T* row = table + v * stride_;
                                std::memset(sums, 0, sizeof(T) * stride_);
                                for (int64_t l = 0; l < labels; ++l) {
                                    for (int64_t c = 0; c < labels; ++c)
                                        sums[c] += row[l] * kernel.costs[l * labels + c];
                                }
                                std::memcpy(row, sums, sizeof(T) * stride_);
                            }
                        });
    }

    const MeanField<T>& field_;
    T* const out_;
    const int threads_;
    const bool mirrored_;
    const int64_t stride_, chunk_points_, chunks_per_item_, num_chunks_;
    std::vector<Tables<T>> tables_;
};

}  // namespace

template <class T>
void mean_field(const MeanField<T>& field, T* out, int threads) {
    MeanFieldPasses<T>(field, out, threads).run();
}

template void mean_field(const MeanField<float>&, float*, int);
template void mean_field(const MeanField<double>&, double*, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
