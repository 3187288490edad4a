// Rows of channels in pieces of vectors: whole ones, then halves down to single channels.
#pragma once

#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

template <int N>
struct Width {
    static constexpr int value = N;
};

// A vector of N channels; a plain T for one.
template <class T, int N>
struct PieceOf {
    using type = typename VectorOf<T, N>::type;
};
template <class T>
struct PieceOf<T, 1> {
    using type = T;
};
template <class T, int N>
using Piece = typename PieceOf<T, N>::type;

template <class T, int N>
inline Piece<T, N> load_piece(const T* from) {
    if constexpr (N == 1) {
        return *from;
    } else {
        return load<T, N>(from);
    }
}

template <class T, int N>
inline void store_piece(T* to, Piece<T, N> piece) {
    if constexpr (N == 1) {
        *to = piece;
    } else {
        store<T, N>(to, piece);
    }
}

template <class T, int N, class Function>
PERMUTOHEDRAL_INLINE void narrower_pieces(int64_t& c, int64_t channels, Function&& function) {
    if constexpr (N >= 1) {
        if (c + N <= channels) {
            function(c, Width<N>{});
            c += N;
        }
        narrower_pieces<T, N / 2>(c, channels, function);
    }
}

// Calls function(first channel, Width<N>) for pieces that cover all channels. C is the number of channels if known
// at compile time, else 0.
template <class T, int C, class Function>
PERMUTOHEDRAL_INLINE void for_pieces(int64_t channels_dynamic, Function&& function) {
    const int64_t channels = C > 0 ? C : channels_dynamic;
    int64_t c = 0;
    for (; c + lanes<T> <= channels; c += lanes<T>) function(c, Width<lanes<T>>{});
    narrower_pieces<T, lanes<T> / 2>(c, channels, function);
}

// Calls function(Width<N>) with a number of channels or corners as a constant where it is small, else Width<0>.
template <class Function>
inline void with_constant(int64_t number, Function&& function) {
    switch (number) {
        case 1: return function(Width<1>{});
        case 2: return function(Width<2>{});
        case 3: return function(Width<3>{});
        case 4: return function(Width<4>{});
        case 5: return function(Width<5>{});
        case 6: return function(Width<6>{});
        case 7: return function(Width<7>{});
        case 8: return function(Width<8>{});
        default: return function(Width<0>{});
    }
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
