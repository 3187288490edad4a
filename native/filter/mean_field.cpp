// The mean field of a dense conditional random field. Compiled once per instruction set.
//
// One pass over the points makes a step: their logits are interpolated from the lattices of all kernels, become
// marginals, and are splatted again, while they are in the cache; marginals are stored in the last pass only. What is
// done on the lattices, between two passes, is the blur, and a product with the matrix of costs.
#include <cmath>

#include "filter/field_passes.hpp"
#include "filter/point_order.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// added to the mass of a point, which is a divisor
constexpr double smallest_mass = 1e-20;
constexpr int64_t points_per_task = 1 << 14;

// 1 / mass of each point, or its root; nothing for a kernel that is not divided.
template <class T>
Memory find_scales(const PairwiseKernel<T>& kernel, int threads) {
    if (kernel.source_power == 0 && kernel.target_power == 0) return Memory();
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
class MeanFieldPasses : FieldPasses<T> {
public:
    MeanFieldPasses(const MeanField<T>& field, T* out, KeptField* kept, int threads)
        : FieldPasses<T>(field, threads, 1),
          out_(out),
          kept_(kept),
          scales_(field.num_kernels) {
        if (field.steps == 0) return;
        for (int64_t k = 0; k < field.num_kernels; ++k) {
            scales_[k] = find_scales(field.kernels[k], threads);
            this->set_scales(k, as<T>(scales_[k]));
        }
    }

    void run() {
        for (int64_t step = 0; step < field_.steps; ++step) {
            this->splat_all(this->source_,
                            [&](const Chunk<T>& chunk, T* columns) { make_values(chunk, step == 0, columns); });
            for (int64_t k = 0; k < field_.num_kernels; ++k) {
                this->blur(k, false);
                publish(k);
            }
        }
        this->for_chunks([&](const Chunk<T>& chunk, T* columns) { write(chunk, columns); });
        if (kept_ != nullptr) kept_->scales = std::move(scales_);
    }

private:
    using FieldPasses<T>::field_;
    using FieldPasses<T>::mirrored_;
    using FieldPasses<T>::stride_;

    // Lets the next pass slice what was blurred, with the costs applied. What is kept is without them.
    void publish(int64_t k) {
        const T* costs = field_.kernels[k].costs;
        Memory& blurred = this->tables_[k].blurred;
        const T* from = as<T>(blurred);
        if (kept_ != nullptr) {
            kept_->tables.push_back(std::move(blurred));
            blurred = this->table_memory(k);
        }
        if (costs != nullptr) {
            this->apply_costs(k, costs, from, as<T>(blurred));
            from = as<T>(blurred);
        }
        this->sliced_[k] = from;
    }

    // What is splatted: marginals, or of mirrored labels their difference.
    void make_values(const Chunk<T>& chunk, bool first, T* columns) {
        if (first && field_.start != nullptr) return load_start(chunk, columns);
        this->gather(chunk, first);
        if (mirrored_) {
            return this->for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const Mirrored<T> marginals = mirrored_softmax<T>(logits);
                store_at_most<T, lanes<T>>(chunk.rows + i, marginals.second - marginals.first, count);
            });
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            make_marginals<T, N>(chunk, stride_, this->energies_of(chunk), this->template columns_at<N>(columns));
        });
    }

    void load_start(const Chunk<T>& chunk, T* columns) {
        if (mirrored_) {
            const LabelPlanes<const T> start = this->planes_of(chunk, field_.start);
            for (int64_t i = 0; i < chunk.count; ++i) chunk.rows[i] = start.data[start.step + i] - start.data[i];
            return;
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            load_planes<T, N>(chunk, stride_, this->planes_of(chunk, field_.start),
                              this->template columns_at<N>(columns));
        });
    }

    // The last marginals; or, where a gradient will be asked for, their logits.
    void write(const Chunk<T>& chunk, T* columns) {
        this->gather(chunk, field_.steps == 0);
        const LabelPlanes<T> out = this->planes_of(chunk, out_);
        if (mirrored_) {
            return this->for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const Mirrored<T> pair =
                    kept_ == nullptr ? mirrored_softmax<T>(logits) : Mirrored<T>{Vector<T>{}, logits};
                store_at_most<T, lanes<T>>(out.data + i, pair.first, count);
                store_at_most<T, lanes<T>>(out.data + out.step + i, pair.second, count);
            });
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            auto* write = kept_ == nullptr ? write_marginals<T, N> : write_logits<T, N>;
            write(chunk, stride_, this->energies_of(chunk), this->template columns_at<N>(columns), out);
        });
    }

    T* const out_;
    KeptField* const kept_;
    std::vector<Memory> scales_;
};

}  // namespace

template <class T>
void mean_field(const MeanField<T>& field, T* out, KeptField* kept, int threads) {
    MeanFieldPasses<T>(field, out, kept, threads).run();
}

template void mean_field(const MeanField<float>&, float*, KeptField*, int);
template void mean_field(const MeanField<double>&, double*, KeptField*, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
