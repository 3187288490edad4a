// solve_smooth: the equations of the bilateral solver, by conjugate gradients on the threads of the core. The definition is
// in ops/smoothness.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "guided/axis_neighbors.hpp"
#include "guided/cell_means.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// as in ops/conjugate_gradients.py
constexpr double rounding_errors = 64, largest_rise = 1e2;

// Sums of a loop over numbers [rows, C] that are independent of each other, so that the loop becomes one over vectors: the
// numbers of channel c are added to the sums j with j % C == c.
constexpr int sums_together = 16;
template <class T>
using Sums = T[sums_together];

// Calls function(i, j) for i in [begin, end), with j = i - begin modulo sums_together.
template <class Function>
PERMUTOHEDRAL_INLINE void for_numbers(int64_t begin, int64_t end, Function&& function) {
    int64_t i = begin;
    for (; i + sums_together <= end; i += sums_together) {
        for (int j = 0; j < sums_together; ++j) function(i + j, j);
    }
    for (int j = 0; i + j < end; ++j) function(i + j, j);
}

// Conjugate gradients for C channels of the equations, from `first` on; those beyond the last are zero.
template <class T, int C>
class SmoothSolver {
public:
    SmoothSolver(const SmoothEquations<T>& equations, const SparseRows<T>& means, const SparseRows<T>& spread,
                 int64_t first, int threads)
        : equations_(equations),
          means_(means),
          spread_(spread),
          first_(first),
          width_(std::min<int64_t>(C, equations.diagonal.num_channels - first)),
          rows_(equations.diagonal.num_rows),
          threads_(threads),
          memory_(size_t((8 * rows_ + 1) * C) * sizeof(T)),
          seen_(means.first.empty() ? 0 : (means.first.size() - 1) * C),
          partial_(size_t(divide_up(rows_, rows_per_block) * 2 * C)) {
        // before the scaled direction: see sum_axis_rows
        T* at = std::fill_n(as<T>(memory_), C, T(0));
        for (T** each : {&scaled_, &solution_, &residual_, &direction_, &image_, &scale_, &diagonal_, &own_}) {
            *each = at;
            at += rows_ * C;
        }
        for (int j = 0; j < sums_together; ++j) {
            strength_[j] = j % C < width_ ? equations.strength.data[first + j % C] : T(0);
        }
    }

    // Replaces the start in `out` by the solution.
    void solve(Matrix<const T> right, Matrix<T> out, int64_t iterations, double tolerance) {
        const double epsilon = double(std::numeric_limits<T>::epsilon());
        const double tiny = double(std::numeric_limits<T>::min());
        double norm_of_right[C], norm[C], now[C], curvature[C], size[C], enough[C], before[C], least[C];
        bool is_open[C];
        T unit[C], length[C] = {}, share[C] = {};
        find_units(right, unit);
        prepare({out.data, out.num_rows, out.num_channels}, unit, norm_of_right);
        // of the start
        multiply(curvature, size);
        std::fill_n(length, C, T(1));
        advance(length, false, norm, now);
        for (int c = 0; c < C; ++c) {
            const double rounding = epsilon * epsilon * std::max(norm_of_right[c], norm[c]);
            enough[c] = std::max(tolerance * tolerance * norm_of_right[c], rounding);
            before[c] = least[c] = now[c];
            is_open[c] = true;
        }
        for (int64_t step = 0; step < iterations; ++step) {
            turn(share);
            multiply(curvature, size);
            bool any = false;
            for (int c = 0; c < C; ++c) {
                is_open[c] = is_open[c] && norm[c] > enough[c] && curvature[c] > rounding_errors * epsilon * size[c] &&
                             before[c] <= largest_rise * largest_rise * least[c];
                length[c] = is_open[c] ? T(before[c] / curvature[c]) : T(0);
                any = any || is_open[c];
            }
            if (!any) break;
            advance(length, true, norm, now);
            for (int c = 0; c < C; ++c) {
                share[c] = T(now[c] / std::max(before[c], tiny));
                before[c] = now[c];
                least[c] = std::min(least[c], now[c]);
            }
        }
        for_blocks([&](int64_t begin, int64_t end) {
            for (int64_t v = begin; v < end; ++v) {
                for (int64_t c = 0; c < width_; ++c) at(out, v, c) = unit[c] * solution_[v * C + c];
            }
        });
    }

private:
    template <class Function>
    void for_blocks(Function&& function) {
        parallel_ranges(threads_, rows_, rows_per_block,
                        [&](int64_t begin, int64_t end, int) { function(begin, end); });
    }

    template <class Number>
    Number& at(Matrix<Number> matrix, int64_t v, int64_t c) const {
        return matrix.data[v * matrix.num_channels + (matrix.num_channels == 1 ? 0 : first_ + c)];
    }

    // Calls function(begin, end, a, b), which adds to two sums of numbers [rows, C] in a block; writes the sums of all
    // blocks. They are added in the same order on any number of threads.
    template <class Function>
    void sum_blocks(double* first, double* second, Function&& function) {
        for_blocks([&](int64_t begin, int64_t end) {
            Sums<T> a = {}, b = {};
            function(begin * C, end * C, a, b);
            double* partial = partial_.data() + begin / rows_per_block * 2 * C;
            std::fill_n(partial, 2 * C, 0.0);
            for (int j = 0; j < sums_together; ++j) {
                partial[j % C] += double(a[j]);
                partial[C + j % C] += double(b[j]);
            }
        });
        std::fill_n(first, C, 0.0);
        std::fill_n(second, C, 0.0);
        for (size_t i = 0; i < partial_.size(); i += 2 * C) {
            for (int c = 0; c < C; ++c) {
                first[c] += partial_[i + size_t(c)];
                second[c] += partial_[i + size_t(C + c)];
            }
        }
    }

    // Copies the channels of some rows of a matrix that has them all, or one for all, to [rows, C].
    void read(Matrix<const T> from, int64_t begin, int64_t end, T* to, T padding = T(0)) const {
        if (C == 1 && from.num_channels == 1) {
            std::copy(from.data + begin, from.data + end, to + begin);
            return;
        }
        for (int64_t v = begin; v < end; ++v) {
            for (int c = 0; c < C; ++c) to[v * C + c] = c < width_ ? at(from, v, c) : padding;
        }
    }

    // Reads the right side, and finds the largest magnitude of each channel, or one.
    void find_units(Matrix<const T> right, T* unit) {
        for_blocks([&](int64_t begin, int64_t end) {
            Sums<T> largest = {};
            read(right, begin, end, residual_);
            for_numbers(begin * C, end * C, [&](int64_t i, int j) PERMUTOHEDRAL_INLINE_LAMBDA {
                largest[j] = std::max(largest[j], std::abs(residual_[i]));
            });
            double* partial = partial_.data() + begin / rows_per_block * 2 * C;
            std::fill_n(partial, C, 0.0);
            for (int j = 0; j < sums_together; ++j) partial[j % C] = std::max(partial[j % C], double(largest[j]));
        });
        std::fill_n(unit, C, T(0));
        for (size_t i = 0; i < partial_.size(); i += 2 * C) {
            for (int c = 0; c < C; ++c) unit[c] = std::max(unit[c], T(partial_[i + size_t(c)]));
        }
        for (int c = 0; c < C; ++c) unit[c] = unit[c] > 0 ? unit[c] : T(1);
    }

    // Reads the equations and the start; the solution has these units, and begins as the first direction.
    void prepare(Matrix<const T> start, const T* unit, double* norm_of_right) {
        double unused[C];
        Sums<T> units;
        for (int j = 0; j < sums_together; ++j) units[j] = unit[j % C];
        sum_blocks(norm_of_right, unused, [&](int64_t begin, int64_t end, Sums<T>& squares, Sums<T>&) {
            read(start, begin / C, end / C, solution_);
            read(equations_.scale, begin / C, end / C, scale_);
            read(equations_.diagonal, begin / C, end / C, diagonal_, T(1));
            std::fill(own_ + begin, own_ + end, T(0));
            if (equations_.data.num_rows > 0) read(equations_.data, begin / C, end / C, own_);
            for_numbers(begin, end, [&](int64_t i, int j) PERMUTOHEDRAL_INLINE_LAMBDA {
                own_[i] += strength_[j] * equations_.mass.data[i / C];
                solution_[i] /= units[j];
                direction_[i] = solution_[i];
                scaled_[i] = scale_[i] * solution_[i];
                residual_[i] /= units[j];
                squares[j] += residual_[i] * residual_[i];
            });
        });
    }

    // image = A direction, and the sums of direction * image and of direction^2 * diagonal.
    void multiply(double* curvature, double* size) {
        if (!seen_.empty()) {
            parallel_ranges(threads_, int64_t(means_.first.size()) - 1, cells_per_task,
                            [&](int64_t begin, int64_t end, int) {
                                for (int64_t cell = begin; cell < end; ++cell) see_cell(cell);
                            });
        }
        sum_blocks(curvature, size, [&](int64_t begin, int64_t end, Sums<T>& products, Sums<T>& squares) {
            sum_axis_range<T, C>(scaled_, equations_.axis_neighbors, {begin / C, end / C}, image_ + begin);
            for_numbers(begin, end, [&](int64_t i, int j) PERMUTOHEDRAL_INLINE_LAMBDA {
                image_[i] = own_[i] * direction_[i] - strength_[j] * scale_[i] * image_[i];
            });
            if (!seen_.empty()) {
                for (int64_t v = begin / C; v < end / C; ++v)
                    spread_.template add_row<C>(v, seen_.data(), image_ + v * C);
            }
            for_numbers(begin, end, [&](int64_t i, int j) PERMUTOHEDRAL_INLINE_LAMBDA {
                products[j] += direction_[i] * image_[i];
                squares[j] += direction_[i] * direction_[i] * diagonal_[i];
            });
        });
    }

    void see_cell(int64_t cell) {
        T sums[C] = {};
        means_.template add_row<C>(cell, direction_, sums);
        for (int64_t c = 0; c < C; ++c) {
            seen_[size_t(cell * C + c)] = c < width_ ? at(equations_.weights, cell, c) * sums[c] : T(0);
        }
    }

    // residual -= length * image and, if it moves, solution += length * direction; writes the sums of residual^2 and of
    // residual^2 / diagonal.
    void advance(const T* length, bool moves, double* norm, double* scaled_norm) {
        Sums<T> lengths, moved;
        for (int j = 0; j < sums_together; ++j) {
            lengths[j] = length[j % C];
            moved[j] = moves ? length[j % C] : T(0);
        }
        sum_blocks(norm, scaled_norm, [&](int64_t begin, int64_t end, Sums<T>& squares, Sums<T>& scaled) {
            for_numbers(begin, end, [&](int64_t i, int j) PERMUTOHEDRAL_INLINE_LAMBDA {
                solution_[i] += moved[j] * direction_[i];
                const T rest = residual_[i] - lengths[j] * image_[i];
                residual_[i] = rest;
                squares[j] += rest * rest;
                scaled[j] += rest * (rest / diagonal_[i]);
            });
        });
    }

    // direction = residual / diagonal + share * direction
    void turn(const T* share) {
        Sums<T> shares;
        for (int j = 0; j < sums_together; ++j) shares[j] = share[j % C];
        for_blocks([&](int64_t begin, int64_t end) {
            for_numbers(begin * C, end * C, [&](int64_t i, int j) PERMUTOHEDRAL_INLINE_LAMBDA {
                direction_[i] = residual_[i] / diagonal_[i] + shares[j] * direction_[i];
                scaled_[i] = scale_[i] * direction_[i];
            });
        });
    }

    const SmoothEquations<T>& equations_;
    const SparseRows<T>&means_, &spread_;
    const int64_t first_, width_, rows_;
    const int threads_;
    const Memory memory_;
    // own: what a lattice point has of its own value; seen: weighted means of cells
    T *solution_, *residual_, *direction_, *scaled_, *image_, *scale_, *diagonal_, *own_;
    std::vector<T> seen_;
    std::vector<double> partial_;
    Sums<T> strength_;
};

// Replaces the start in `solution` [lattice points, channels] by the solution for `right`.
template <class T>
void solve_smooth(const SmoothEquations<T>& equations, Matrix<const T> right, Matrix<T> solution, int64_t iterations,
                  double tolerance, int threads) {
    SparseRows<T> means, spread;
    if (!equations.coarse.empty()) {
        means = find_cell_means(equations.points, solution.num_rows, equations.coarse, equations.fine, threads);
        spread = means.transpose(solution.num_rows);
    }
    for (int64_t first = 0; first < solution.num_channels; first += 4) {
        const auto run = [&](auto constant) {
            SmoothSolver<T, decltype(constant)::value>(equations, means, spread, first, threads)
                .solve(right, solution, iterations, tolerance);
        };
        dispatch<1, 4>(solution.num_channels - first, run);
    }
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
