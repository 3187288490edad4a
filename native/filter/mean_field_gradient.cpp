// The gradient of a mean field. Compiled once per instruction set.
//
// From the last step to the first, a pass over the points makes their marginals again, from the tables that the mean
// field has kept; interpolates the gradients with respect to them; pulls these back to logits, and splats them for the
// step before. What is done on the lattices, between two passes, is the adjoint of what the mean field does there.
#include <stdexcept>

#include "filter/field_passes.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

template <class T>
class GradientPasses : FieldPasses<T> {
public:
    GradientPasses(const MeanField<T>& field, const KeptField& kept, const FieldGradients<T>& out, int threads)
        : FieldPasses<T>(field, threads, 2),
          kept_(kept),
          out_(out),
          applied_(field.num_kernels),
          transposed_(field.num_kernels),
          sums_(field.num_kernels) {
        const int64_t labels = field.labels;
        for (int64_t k = 0; k < field.num_kernels; ++k) {
            if (kept.tables[k].size() != sizeof(T) * this->num_rows(k) * stride_) {
                throw std::invalid_argument("the mean field was computed with another instruction set");
            }
            this->set_scales(k, as<T>(kept.scales[k]));
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
            // that of the costs is of what is multiplied with the factor
            const double factor = field_.kernels[k].costs == nullptr ? 1.0 : double(field_.kernels[k].factor);
            for (size_t i = 0; i < sums_[k].size(); ++i) out_.kernels[k][i] = T(factor * sums_[k][i]);
        }
    }

private:
    using FieldPasses<T>::field_;
    using FieldPasses<T>::mirrored_;
    using FieldPasses<T>::stride_;

    const T* kept_at(int64_t k, int64_t step) const { return as<T>(kept_.tables[step * field_.num_kernels + k]); }

    // The gradients with respect to logits to those with respect to marginals, between two splats; and, on the way, the
    // gradient of costs or factor. What this step's marginals, the last but one, were made of is sliced next.
    void pull_back_on_lattice(int64_t k, int64_t step) {
        FieldTables& tables = this->tables_[k];
        const T* costs = field_.kernels[k].costs;
        const T* splatted = as<T>(tables.splatted);
        add_products(k, kept_at(k, step), splatted);
        if (costs != nullptr) this->apply_costs(k, transposed_[k].data(), splatted, as<T>(tables.splatted));
        this->blur(k, true);
        if (step == 0) return;
        this->sliced_[k] = kept_at(k, step - 1);
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
        if (mirrored_) {
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
        if (mirrored_) {
            return this->for_vectors(chunk, [&](int64_t i, Vector<T> logits, int64_t count) {
                const Mirrored<T> marginals = mirrored_softmax<T>(logits);
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
        if (mirrored_) {
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

    const KeptField& kept_;
    const FieldGradients<T>& out_;
    std::vector<Memory> applied_;
    std::vector<std::vector<T>> transposed_;
    std::vector<std::vector<double>> sums_;
};

}  // namespace

template <class T>
void mean_field_gradient(const MeanField<T>& field, const KeptField& kept, const T* gradient,
                         const FieldGradients<T>& out, int threads) {
    GradientPasses<T>(field, kept, out, threads).run(gradient);
}

template void mean_field_gradient(const MeanField<float>&, const KeptField&, const float*, const FieldGradients<float>&,
                                  int);
template void mean_field_gradient(const MeanField<double>&, const KeptField&, const double*,
                                  const FieldGradients<double>&, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
