// What the passes of a mean field and those of its gradient share: chunks of points, tables on the lattices of all
// kernels, splats by several threads, and the work on the lattices between two passes.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "crf/label_lattices.hpp"
#include "crf/label_rows.hpp"
#include "filter/blur_passes.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// elements of the rows of a chunk, which stay in the nearest caches; its points are a multiple of the lanes of a vector
constexpr int64_t chunk_elements = 8192, least_chunk_points = 16, most_chunks = 16;
// elements of the rows that several threads make before they splat them
constexpr int64_t window_elements = int64_t{1} << 19;
constexpr int64_t chunks_per_task = 4, rows_per_task = 2048;
// threads that share the splats of a kernel, which are about a quarter of the work
constexpr int64_t threads_per_splat = 4;

// The tables of one kernel, [num_lattice_points, stride]: one to write, one to read, and a third one where it is
// blurred both ways.
struct FieldTables {
    Memory splatted, blurred, spare;
};

template <class T>
class FieldPasses {
protected:
    // num_sets: rows of chunks, and columns, that a thread works on together.
    FieldPasses(const MeanField<T>& field, int threads, int64_t num_sets)
        : field_(field),
          threads_(threads),
          binary_(field.labels == 2 && !has_costs(field)),
          stride_(row_stride<T>(field.labels, binary_)),
          chunk_points_(std::clamp(chunk_elements / stride_ / least_chunk_points, int64_t{1}, most_chunks) *
                        least_chunk_points),
          chunks_per_item_(divide_up(field.num_points, chunk_points_)),
          num_chunks_(chunks_per_item_ * field.num_items),
          padded_points_(divide_up(field.num_points, least_chunk_points) * least_chunk_points),
          num_sets_(num_sets),
          tables_(field.num_kernels),
          sliced_(field.num_kernels),
          source_(field.num_kernels),
          target_(field.num_kernels) {
        if (!binary_) arrange_energies();
        if (field.steps == 0) return;
        for (int64_t k = 0; k < field.num_kernels; ++k) {
            tables_[k].splatted = table_memory(k);
            tables_[k].blurred = table_memory(k);
            if (field.kernels[k].both_ways) tables_[k].spare = table_memory(k);
        }
    }

    static bool has_costs(const MeanField<T>& field) {
        return std::any_of(field.kernels, field.kernels + field.num_kernels,
                           [](const PairwiseKernel<T>& kernel) { return kernel.costs != nullptr; });
    }

    int64_t num_rows(int64_t k) const { return field_.kernels[k].axis_neighbors.num_targets; }
    Memory table_memory(int64_t k) const { return Memory(sizeof(T) * num_rows(k) * stride_); }

    // 1 / mass of each point, or its root; null for a kernel that is not divided.
    void set_scales(int64_t k, const T* scale) {
        const PairwiseKernel<T>& kernel = field_.kernels[k];
        source_[k] = {kernel.simplices, kernel.source_power > 0 ? scale : nullptr, T(1)};
        target_[k] = {kernel.simplices, kernel.target_power > 0 ? scale : nullptr, T(1)};
    }

    // For each thread: columns of `lanes` points, then rows of chunks; of each as many as there are sets.
    Memory scratch() const { return Memory(sizeof(T) * threads_ * set_elements(lanes<T> + chunk_points_)); }
    int64_t set_elements(int64_t points) const { return num_sets_ * points * stride_; }
    T* columns_of(const Memory& memory, int worker) const {
        return as<T>(memory) + worker * set_elements(lanes<T> + chunk_points_);
    }
    T* rows_of(const Memory& memory, int worker) const { return columns_of(memory, worker) + set_elements(lanes<T>); }

    Chunk<T> chunk_at(int64_t number, T* rows) const {
        const int64_t first = number % chunks_per_item_ * chunk_points_;
        return {number / chunks_per_item_, first, std::min(chunk_points_, field_.num_points - first), rows};
    }

    int64_t point_of(const Chunk<T>& chunk) const { return chunk.item * field_.num_points + chunk.first; }

    // Where the numbers of a label begin, in energies and marginals.
    int64_t plane_of(const Chunk<T>& chunk, int64_t label) const {
        return (chunk.item * field_.labels + label) * field_.num_points + chunk.first;
    }

    template <class U>
    LabelPlanes<U> planes_of(const Chunk<T>& chunk, U* data) const {
        return {data + plane_of(chunk, 0), field_.num_points};
    }

    // The energies of a chunk as columns: N points of the first label, the same points of the next, then the next points.
    T* energies_of(const Chunk<T>& chunk) const {
        return as<T>(energies_) + (chunk.item * padded_points_ + chunk.first) * field_.labels;
    }

    template <int N>
    LabelColumns<T, N> columns_at(T* memory) const {
        return {reinterpret_cast<typename VectorOf<T, N>::type*>(memory), field_.labels};
    }

    // Calls visit(chunk, scratch of the thread) for all chunks, each with rows of the thread.
    template <class Visit>
    void for_chunks(Visit&& visit) {
        const Memory memory = scratch();
        parallel_ranges(threads_, num_chunks_, chunks_per_task, [&](int64_t begin, int64_t end, int worker) {
            for (int64_t c = begin; c < end; ++c) {
                visit(chunk_at(c, rows_of(memory, worker)), columns_of(memory, worker));
            }
        });
    }

    // Splats what make(chunk, scratch of the thread) leaves in the rows of all chunks into the tables of all kernels.
    template <class Make>
    void splat_all(const std::vector<ScaledSimplices<T>>& from, Make&& make) {
        for (int64_t k = 0; k < field_.num_kernels; ++k) clear(k);
        if (threads_ == 1) {
            return for_chunks([&](const Chunk<T>& chunk, T* columns) {
                make(chunk, columns);
                for (int64_t k = 0; k < field_.num_kernels; ++k) splat(from, k, chunk, {0, num_rows(k)});
            });
        }
        splat_in_windows(from, make);
    }

    // Adds the messages of all kernels to the rows; for two labels also the unary difference.
    void gather(const Chunk<T>& chunk, bool first) {
        if (binary_) {
            const T *one = field_.energies + plane_of(chunk, 0), *other = field_.energies + plane_of(chunk, 1);
            for (int64_t i = 0; i < chunk.count; ++i) chunk.rows[i] = make_finite<T>(one[i]) - make_finite<T>(other[i]);
        } else if (first) {
            std::memset(chunk.rows, 0, sizeof(T) * chunk.count * stride_);
        }
        if (first) return;
        for (int64_t k = 0; k < field_.num_kernels; ++k) {
            slice(target_[k], field_.kernels[k].factor, sliced_[k], chunk, k == 0 && !binary_);
        }
    }

    void slice(ScaledSimplices<T> from, T factor, const T* table, const Chunk<T>& chunk, bool fresh) {
        from.factor = factor;
        add_slices(from, table, stride_, point_of(chunk), chunk.count, chunk.rows, fresh);
    }

    // Calls function(first, vector, how many points are left) for the single numbers of a chunk.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_vectors(const Chunk<T>& chunk, Function&& function) {
        for (int64_t i = 0; i < chunk.count; i += lanes<T>) {
            function(i, load<T, lanes<T>>(chunk.rows + i), chunk.count - i);
        }
    }

    // From the splatted table to the blurred one, along the axes in their order or, reversed, from the last to the
    // first; the mean of the two where the kernel is blurred both ways.
    void blur(int64_t k, bool reverse) {
        FieldTables& tables = tables_[k];
        if (!field_.kernels[k].both_ways) {
            if (!blur_into(k, tables.splatted, tables.blurred, tables.splatted, reverse)) {
                std::swap(tables.splatted, tables.blurred);
            }
            return;
        }
        // the second may overwrite what was splatted
        if (!blur_into(k, tables.splatted, tables.blurred, tables.spare, false)) {
            std::swap(tables.blurred, tables.spare);
        }
        const bool in_spare = blur_into(k, tables.splatted, tables.spare, tables.splatted, true);
        average(k, as<T>(tables.blurred), as<T>(in_spare ? tables.spare : tables.splatted));
    }

    // Every row times the costs; `to` may be `from`.
    void apply_costs(int64_t k, const T* costs, const T* from, T* to) {
        const int64_t labels = field_.labels;
        const Memory memory(sizeof(T) * threads_ * stride_);
        parallel_ranges(threads_, num_rows(k), rows_per_task, [&](int64_t begin, int64_t end, int worker) {
            T* sums = as<T>(memory) + worker * stride_;
            for (int64_t v = begin; v < end; ++v) {
                const T* row = from + v * stride_;
                std::memset(sums, 0, sizeof(T) * stride_);
                for (int64_t l = 0; l < labels; ++l) {
                    for (int64_t c = 0; c < labels; ++c) sums[c] += row[l] * costs[l * labels + c];
                }
                std::memcpy(to + v * stride_, sums, sizeof(T) * stride_);
            }
        });
    }

    const MeanField<T>& field_;
    const int threads_;
    const bool binary_;
    const int64_t stride_, chunk_points_, chunks_per_item_, num_chunks_, padded_points_, num_sets_;
    Memory energies_;
    std::vector<FieldTables> tables_;
    // the tables to interpolate at the points, for each kernel
    std::vector<const T*> sliced_;
    // how points are splatted and sliced
    std::vector<ScaledSimplices<T>> source_, target_;

private:
    // A pass then reads one stream: the processor does not foresee as many as there are labels.
    void arrange_energies() {
        energies_ = Memory(sizeof(T) * field_.num_items * padded_points_ * field_.labels);
        for_chunks([&](const Chunk<T>& chunk, T*) {
            dispatch_lanes<T>(stride_, [&](auto lanes_of) {
                planes_to_columns<T, decltype(lanes_of)::value>(planes_of(chunk, field_.energies), field_.labels,
                                                                chunk.count, energies_of(chunk));
            });
        });
    }

    // While some threads splat the values of a window, each kernel by itself, the others make those of the next one.
    // Tasks are dealt to threads in blocks. They are numbered so that each splat is the first of one of as many blocks:
    // a thread begins with a splat, and makes values when it is done.
    // Every lattice point adds up its points in their order, so the sums have the same bits on any number of threads.
    template <class Make>
    void splat_in_windows(const std::vector<ScaledSimplices<T>>& from, Make&& make) {
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
                    for (int64_t c = begin - window; c < end; ++c) splat(from, k, chunk_at(c, rows_at(c)), vertices);
                    return;
                }
                const int64_t maker = begin + (task - before) * chunks_per_task;
                for (int64_t c = maker; c < std::min(maker + chunks_per_task, begin + made); ++c) {
                    make(chunk_at(c, rows_at(c)), columns_of(columns, worker));
                }
            });
        }
    }

    void splat(const std::vector<ScaledSimplices<T>>& from, int64_t k, const Chunk<T>& chunk, Range vertices) {
        const bool everywhere = vertices.end - vertices.begin == num_rows(k);
        add_splats(from[k], as<T>(tables_[k].splatted), stride_, point_of(chunk), chunk.count, chunk.rows, vertices,
                   everywhere);
    }

    void clear(int64_t k) {
        T* table = as<T>(tables_[k].splatted);
        parallel_ranges(threads_, num_rows(k), rows_per_task, [&](int64_t begin, int64_t end, int) {
            std::memset(table + begin * stride_, 0, sizeof(T) * (end - begin) * stride_);
        });
    }

    // Blurs `in`, the passes writing to `first` and `second` in turn; returns whether the first has the result.
    bool blur_into(int64_t k, const Memory& in, const Memory& first, const Memory& second, bool reverse) {
        const PairwiseKernel<T>& kernel = field_.kernels[k];
        const BlurredPanel<T> panel{{as<T>(in), num_rows(k), stride_}, as<T>(first), as<T>(second)};
        blur_passes<T>(1, [&](int64_t) { return panel; }, kernel.axis_neighbors, reverse, threads_);
        return num_axes(kernel.axis_neighbors) % 2 == 1;
    }

    void average(int64_t k, T* to, const T* other) {
        parallel_ranges(threads_, num_rows(k), rows_per_task, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin * stride_; i < end * stride_; ++i) to[i] = T(0.5) * (to[i] + other[i]);
        });
    }
};

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
