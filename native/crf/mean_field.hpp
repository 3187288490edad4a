// The mean field of a dense conditional random field.
//
// One pass over the points makes a step: their logits are interpolated from the lattices of all kernels, become
// marginals, and are splatted again, while they are in the cache; marginals are stored in the last pass only. On the
// lattices, between two passes, follow the blur, and a product with the matrix of costs.
//
// The gradient goes from the last step to the first. A pass over the points makes their marginals again, from the saved
// state; interpolates the gradients with respect to them; pulls these back to logits, and splats them for the step before.
// The work on the lattices, between two passes, is the adjoint of that of the mean field.
#pragma once

#include <cmath>
#include <stdexcept>

#include "crf/field_passes.hpp"
#include "filter/gaussian.hpp"
#include "kernels.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t scaled_per_task = 1 << 14;

// 1 / mass of each point, or its root; nothing for a kernel that is not divided.
template <class T>
Memory find_scales(const PairwiseKernel<T>& kernel, T smallest_mass, int threads) {
    if (kernel.source_power == 0 && kernel.target_power == 0) return Memory();
    const int64_t points = kernel.simplices.num_points, rows = kernel.axis_neighbors.num_targets;
    const Memory splatted(sizeof(T) * rows), blurred(sizeof(T) * rows);
    const PointOrder<T> order = plan_order(kernel.simplices, {rows, int64_t(sizeof(T))}, threads > 1, threads);
    splat_with_mass<T>(order, {nullptr, points, 0}, {as<T>(splatted), rows, 1}, threads);
    blur<T>({as<T>(splatted), rows, 1}, kernel.axis_neighbors, false, {as<T>(blurred), rows, 1}, threads);
    Memory scales(sizeof(T) * points);
    T* scale = as<T>(scales);
    slice<T>({as<T>(blurred), rows, 1}, kernel.simplices, {scale, points, 1}, threads);
    const bool is_root = kernel.source_power == kernel.target_power;
    parallel_ranges(threads, points, scaled_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            const T mass = scale[i] + smallest_mass;
            scale[i] = T(1) / (is_root ? std::sqrt(mass) : mass);
        }
    });
    return scales;
}

template <class T>
class MeanFieldPasses : FieldPasses<T> {
public:
    MeanFieldPasses(const MeanField<T>& field, T* out, FieldState* state, int threads)
        : FieldPasses<T>(field, threads, 1),
          out_(out),
          state_(state),
          scales_(field.num_kernels) {
        if (field.steps == 0) return;
        for (int64_t k = 0; k < field.num_kernels; ++k) {
            scales_[k] = find_scales(field.kernels[k], field.smallest_mass, threads);
            this->set_scales(k, as<T>(scales_[k]));
        }
    }

    void run() {
        for (int64_t step = 0; step < field_.steps; ++step) {
            this->splat_all(this->source_,
                            [&](const Chunk<T>& chunk, T* columns) { make_values(chunk, step == 0, columns); });
            for (int64_t k = 0; k < field_.num_kernels; ++k) {
                this->blur(k, false);
                set_slice_source(k);
            }
        }
        this->for_chunks([&](const Chunk<T>& chunk, T* columns) { write(chunk, columns); });
        if (state_ == nullptr) return;
        for (Memory& scale : scales_) state_->push_back(std::move(scale));
    }

private:
    using FieldPasses<T>::field_;
    using FieldPasses<T>::binary_;
    using FieldPasses<T>::stride_;

    // Lets the next pass slice the blurred values, with the costs applied. Those of the state are without them.
    void set_slice_source(int64_t k) {
        const T* costs = field_.kernels[k].costs;
        Memory& blurred = this->tables_[k].blurred;
        const T* from = as<T>(blurred);
        if (state_ != nullptr) {
            state_->push_back(std::move(blurred));
            blurred = this->table_memory(k);
        }
        if (costs != nullptr) {
            this->apply_costs(k, costs, from, as<T>(blurred));
            from = as<T>(blurred);
        }
        this->sliced_[k] = from;
    }

    // Makes the values to splat: marginals, or for two labels their difference.
    void make_values(const Chunk<T>& chunk, bool first, T* columns) {
        if (first && field_.start != nullptr) return load_start(chunk, columns);
        this->gather(chunk, first);
        if (binary_) {
            return this->for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const BinaryMarginals<T> marginals = binary_softmax<T>(logits);
                store_at_most<T, lanes<T>>(chunk.rows + i, marginals.second - marginals.first, count);
            });
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            make_marginals<T, N>(chunk, stride_, this->energies_of(chunk), this->template columns_at<N>(columns));
        });
    }

    void load_start(const Chunk<T>& chunk, T* columns) {
        if (binary_) {
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
        if (binary_) {
            return this->for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const BinaryMarginals<T> pair =
                    state_ == nullptr ? binary_softmax<T>(logits) : BinaryMarginals<T>{Vector<T>{}, logits};
                store_at_most<T, lanes<T>>(out.data + i, pair.first, count);
                store_at_most<T, lanes<T>>(out.data + out.step + i, pair.second, count);
            });
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            auto* write = state_ == nullptr ? write_marginals<T, N> : write_logits<T, N>;
            write(chunk, stride_, this->energies_of(chunk), this->template columns_at<N>(columns), out);
        });
    }

    T* const out_;
    FieldState* const state_;
    std::vector<Memory> scales_;
};

template <class T>
void mean_field(const MeanField<T>& field, T* out, FieldState* state, int threads) {
    MeanFieldPasses<T>(field, out, state, threads).run();
}

template <class T>
class GradientPasses : FieldPasses<T> {
public:
    using State = std::vector<View<const T, 1>>;

    GradientPasses(const MeanField<T>& field, const State& state, const FieldGradients<T>& out, int threads)
        : FieldPasses<T>(field, threads, 2),
          state_(state),
          out_(out),
          applied_(field.num_kernels),
          transposed_(field.num_kernels),
          sums_(field.num_kernels) {
        const int64_t labels = field.labels;
        for (int64_t k = 0; k < field.num_kernels; ++k) {
            if (state[k].shape[0] != this->num_rows(k) * stride_) {
                throw std::invalid_argument("the mean field was computed with another instruction set");
            }
            const View<const T, 1>& scales = state[field.steps * field.num_kernels + k];
            this->set_scales(k, scales.shape[0] == 0 ? nullptr : scales.data);
            const T* costs = field.kernels[k].costs;
            sums_[k].assign(costs == nullptr ? 1 : labels * labels, 0.0);
            if (costs == nullptr) continue;
            applied_[k] = this->table_memory(k);
            transposed_[k].resize(labels * labels);
            for (int64_t i = 0; i < labels * labels; ++i) transposed_[k][i % labels * labels + i / labels] = costs[i];
        }
    }

    void run(const T* gradient) {
        const int64_t steps = field_.steps;
        this->splat_all(this->target_, [&](const Chunk<T>& chunk, T* columns) { begin(chunk, gradient, columns); });
        for (int64_t step = steps - 1; step >= 0; --step) {
            for (int64_t k = 0; k < field_.num_kernels; ++k) pull_back_on_lattice(k, step);
            auto make = [&](const Chunk<T>& chunk, T* columns) { pull_back(chunk, step == 0, columns); };
            if (step > 0) {
                this->splat_all(this->target_, make);
            } else {
                this->for_chunks(make);
            }
        }
        for (int64_t k = 0; k < field_.num_kernels; ++k) {
            // the costs are multiplied by the factor
            const double factor = field_.kernels[k].costs == nullptr ? 1.0 : double(field_.kernels[k].factor);
            for (size_t i = 0; i < sums_[k].size(); ++i) out_.kernels[k][i] = T(factor * sums_[k][i]);
        }
    }

private:
    using FieldPasses<T>::field_;
    using FieldPasses<T>::binary_;
    using FieldPasses<T>::stride_;

    const T* state_at(int64_t k, int64_t step) const { return state_[step * field_.num_kernels + k].data; }

    // The gradients with respect to logits to those with respect to marginals, between two splats; and, on the way, the
    // gradient of costs or factor. The next pass slices the saved values of the previous step.
    void pull_back_on_lattice(int64_t k, int64_t step) {
        FieldTables& tables = this->tables_[k];
        const T* costs = field_.kernels[k].costs;
        const T* splatted = as<T>(tables.splatted);
        add_products(k, state_at(k, step), splatted);
        if (costs != nullptr) this->apply_costs(k, transposed_[k].data(), splatted, as<T>(tables.splatted));
        this->blur(k, true);
        if (step == 0) return;
        this->sliced_[k] = state_at(k, step - 1);
        if (costs == nullptr) return;
        this->apply_costs(k, costs, this->sliced_[k], as<T>(applied_[k]));
        this->sliced_[k] = as<T>(applied_[k]);
    }

    // Adds <blurred, splatted>; or, for costs, the products of all pairs of labels. In parts, whatever the threads.
    void add_products(int64_t k, const T* blurred, const T* splatted) {
        const bool has_costs = field_.kernels[k].costs != nullptr;
        const int64_t labels = field_.labels;
        const int64_t size = int64_t(sums_[k].size()), rows = this->num_rows(k);
        const Memory memory(sizeof(T) * divide_up(rows, rows_per_task) * size);
        std::memset(memory.data(), 0, memory.size());
        parallel_ranges(this->threads_, rows, rows_per_task, [&](int64_t begin, int64_t end, int) {
            T* sums = as<T>(memory) + begin / rows_per_task * size;
            const T *first = blurred + begin * stride_, *second = splatted + begin * stride_;
            for (int64_t v = 0; v < end - begin; ++v, first += stride_, second += stride_) {
                if (!has_costs) {
                    for (int64_t c = 0; c < stride_; ++c) sums[0] += first[c] * second[c];
                    continue;
                }
                for (int64_t l = 0; l < labels; ++l) {
                    for (int64_t c = 0; c < labels; ++c) sums[l * labels + c] += first[l] * second[c];
                }
            }
        });
        for (int64_t i = 0; i < int64_t(memory.size() / sizeof(T)); ++i) sums_[k][i % size] += as<T>(memory)[i];
    }

    // The gradients with respect to the last logits, which are those of the energies times -1.
    void begin(const Chunk<T>& chunk, const T* gradient, T* columns) {
        const LabelPlanes<const T> from = this->planes_of(chunk, gradient);
        const LabelPlanes<T> to = this->planes_of(chunk, out_.energies);
        for (int64_t l = 0; l < field_.labels; ++l) {
            for (int64_t i = 0; i < chunk.count; ++i) to.data[l * to.step + i] = -from.data[l * from.step + i];
        }
        if (binary_) {
            // of the difference of two logits
            for (int64_t i = 0; i < chunk.count; ++i) {
                chunk.rows[i] = (from.data[from.step + i] - from.data[i]) / 2;
            }
            return;
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            load_planes<T, N>(chunk, stride_, from, this->template columns_at<N>(columns));
        });
    }

    // The gradients with respect to the marginals before a step to those with respect to their logits, in rows.
    void pull_back(const Chunk<T>& chunk, bool first, T* columns) {
        // behind the columns, and behind the first set of rows
        T* others = columns + lanes<T> * stride_;
        const Chunk<T> gradients{chunk.item, chunk.first, chunk.count,
                                 columns + (2 * lanes<T> + this->chunk_points_) * stride_};
        for (int64_t k = 0; k < field_.num_kernels; ++k) {
            this->slice(this->source_[k], field_.kernels[k].factor, as<T>(this->tables_[k].blurred), gradients, k == 0);
        }
        if (first && out_.start != nullptr) return write_start(gradients, columns);
        this->gather(chunk, first);
        const LabelPlanes<T> to = this->planes_of(chunk, out_.energies);
        if (binary_) {
            return this->for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const BinaryMarginals<T> marginals = binary_softmax<T>(logits);
                const Vector<T> slope = T(2) * marginals.first * marginals.second;
                const Vector<T> gradient = slope * load<T, lanes<T>>(gradients.rows + i);
                add_at_most(to.data + i, gradient, count);
                add_at_most(to.data + to.step + i, -gradient, count);
                store_at_most<T, lanes<T>>(chunk.rows + i, gradient, count);
            });
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            pull_back_marginals<T, N>(chunk, stride_, this->energies_of(chunk), gradients.rows,
                                      this->template columns_at<N>(columns), this->template columns_at<N>(others), to);
        });
    }

    static void add_at_most(T* to, Vector<T> vector, int64_t count) {
        store_at_most<T, lanes<T>>(to, load_first<T, lanes<T>>(to, count) + vector, count);
    }

    void write_start(const Chunk<T>& gradients, T* columns) {
        const LabelPlanes<T> to = this->planes_of(gradients, out_.start);
        if (binary_) {
            for (int64_t i = 0; i < gradients.count; ++i) {
                to.data[i] = -gradients.rows[i];
                to.data[to.step + i] = gradients.rows[i];
            }
            return;
        }
        dispatch_lanes<T>(stride_, [&](auto lanes_of) {
            constexpr int N = decltype(lanes_of)::value;
            write_planes<T, N>(gradients, stride_, this->template columns_at<N>(columns), to);
        });
    }

    const State& state_;
    const FieldGradients<T>& out_;
    std::vector<Memory> applied_;
    std::vector<std::vector<T>> transposed_;
    std::vector<std::vector<double>> sums_;
};

template <class T>
void mean_field_gradient(const MeanField<T>& field, const std::vector<View<const T, 1>>& state, const T* gradient,
                         const FieldGradients<T>& out, int threads) {
    GradientPasses<T>(field, state, out, threads).run(gradient);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
