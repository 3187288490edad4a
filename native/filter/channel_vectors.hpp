// Walks a row of channels in SIMD vectors: full width, then half, quarter, ... down to single channels.
#pragma once

#include "runtime/dispatch.hpp"
#include "runtime/simd.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// A vector of N channels; a plain T for one.
template <class T, int N>
struct ChannelVectorOf {
    using type = typename VectorOf<T, N>::type;
};
template <class T>
struct ChannelVectorOf<T, 1> {
    using type = T;
};
template <class T, int N>
using ChannelVector = typename ChannelVectorOf<T, N>::type;

template <class T, int N>
inline ChannelVector<T, N> load_channels(const T* from) {
    if constexpr (N == 1) {
        return *from;
    } else {
        return load<T, N>(from);
    }
}

template <class T, int N>
inline void store_channels(T* to, ChannelVector<T, N> channels) {
    if constexpr (N == 1) {
        *to = channels;
    } else {
        store<T, N>(to, channels);
    }
}

template <class T, int N, class Function>
PERMUTOHEDRAL_INLINE void for_narrower_vectors(int64_t& c, int64_t num_channels, Function&& function) {
    if constexpr (N >= 1) {
        if (c + N <= num_channels) {
            function(c, Constant<N>{});
            c += N;
        }
        for_narrower_vectors<T, N / 2>(c, num_channels, function);
    }
}

// Calls function(first channel, Constant<N>) for vectors of N channels that cover all of them. C is the number of
// channels if known at compile time, else 0.
template <class T, int C, class Function>
PERMUTOHEDRAL_INLINE void for_channel_vectors(Extent<C> num_channels, Function&& function) {
    int64_t c = 0;
    for (; c + lanes<T> <= num_channels; c += lanes<T>) function(c, Constant<lanes<T>>{});
    for_narrower_vectors<T, lanes<T> / 2>(c, num_channels, function);
}

// Calls function(Constant<N>) with a number of channels or corners that is small, else with Constant<0>.
template <class Function>
PERMUTOHEDRAL_INLINE void dispatch_small(int64_t number, Function&& function) {
    dispatch<1, 2, 3, 4, 5, 6, 7, 8, 0>(number, function);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
