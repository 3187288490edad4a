// add_beside: what lies beside each lattice point, added up. Compiled once per instruction set.
#include <algorithm>
#include <cstring>

#include "filter/channel_vectors.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t added_per_task = 2048;

// `in` has a row of zeros in front, which is what a missing neighbor, of number -1, reads: which are missing cannot be
// foreseen, and a branch would cost more than all else.
template <class T, int C>
void add_rows(Matrix<const T> in, const int32_t* neighbors, int64_t number, Range vertices, T* out) {
    const Extent<C> channels(in.num_channels);
    for (int64_t v = vertices.begin; v < vertices.end; ++v) {
        for_channel_vectors<T, C>(channels, [&](int64_t c, auto width) {
            constexpr int N = decltype(width)::value;
            ChannelVector<T, N> sum = T(number) * load_channels<T, N>(in.data + v * channels + c);
            for (int64_t a = 0; a < number; ++a) {
                sum += load_channels<T, N>(in.data + neighbors[a * in.num_rows + v] * channels + c);
            }
            store_channels<T, N>(out + v * channels + c, sum);
        });
    }
}

}  // namespace

template <class T>
void add_beside(Matrix<const T> lattice_values, const int32_t* axis_neighbors, int64_t number, T* out, int threads) {
    const int64_t rows = lattice_values.num_rows, channels = lattice_values.num_channels;
    const Memory padded(sizeof(T) * (rows + 1) * channels);
    std::memset(padded.data(), 0, sizeof(T) * channels);
    std::memcpy(as<T>(padded) + channels, lattice_values.data, sizeof(T) * rows * channels);
    const Matrix<const T> in{as<T>(padded) + channels, rows, channels};
    parallel_for(threads, divide_up(rows, added_per_task), [&](int64_t task, int) {
        const int64_t begin = task * added_per_task;
        const Range range{begin, std::min(begin + added_per_task, rows)};
        dispatch<1, 2, 3, 4, 0>(channels, [&](auto constant) {
            add_rows<T, decltype(constant)::value>(in, axis_neighbors, number, range, out);
        });
    });
}

template void add_beside(Matrix<const float>, const int32_t*, int64_t, float*, int);
template void add_beside(Matrix<const double>, const int32_t*, int64_t, double*, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
