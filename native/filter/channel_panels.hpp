// Lattice values in panels: the channels of one cache line, for all rows. A panel is a problem of its own to splat and
// blur, so threads may share the panels where the points do not let them share the rows.
#pragma once

#include "filter/channel_vectors.hpp"
#include "filter/point_order.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

template <class T>
constexpr int64_t panel_channels = 64 / int64_t(sizeof(T));

// Channels [first, first + width) of every row; row v begins at data + v * stride.
template <class T>
struct Panel {
    T* data;
    int64_t stride, first, width;
};

// Panels of whole cache lines, each `step` behind the one before it.
template <class T>
struct WholePanels {
    T* data;
    int64_t stride, first, count, step;
};

// All panels of a lattice.
template <class T>
struct Panels {
    T* data;
    int64_t rows, channels, num_panels;
    bool by_panel;  // one panel behind the other, the last one padded; else a matrix by rows

    Panel<T> operator[](int64_t p) const {
        const int64_t first = p * panel_channels<T>;
        if (!by_panel) return {data + first, channels, first, num_panels == 1 ? channels : panel_channels<T>};
        const int64_t width = padded_width(channels - first);
        return {data + first * rows, width, first, width};
    }

    // The panels [begin, end), none of which is narrower.
    WholePanels<T> whole(int64_t begin, int64_t end) const {
        const int64_t first = begin * panel_channels<T>;
        if (!by_panel) return {data + first, channels, first, end - begin, panel_channels<T>};
        return {data + first * rows, panel_channels<T>, first, end - begin, rows * panel_channels<T>};
    }

    // Numbers of T.
    int64_t size() const {
        if (!by_panel) return rows * channels;
        const int64_t rest = channels % panel_channels<T>;
        return rows * (channels - rest + (rest > 0 ? padded_width(rest) : 0));
    }

    // The least power of two that holds the channels, or a whole panel.
    static int64_t padded_width(int64_t channels) {
        int64_t width = 1;
        while (width < channels && width < panel_channels<T>) width *= 2;
        return width;
    }
};

// visits ahead whose values or results are fetched
constexpr int64_t visits_ahead = 16;

// Fetches `bytes` from anywhere in memory.
PERMUTOHEDRAL_INLINE void fetch(const void* data, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(data) + b);
}

// A matrix by rows is one panel, unless its rows consist of whole cache lines.
template <class T>
inline Panels<T> panels_of_rows(T* data, int64_t rows, int64_t channels) {
    const bool lines = channels % panel_channels<T> == 0 && reinterpret_cast<uintptr_t>(data) % 64 == 0;
    return {data, rows, channels, lines ? channels / panel_channels<T> : 1, false};
}

template <class T>
inline Panels<T> panels_in(T* data, int64_t rows, int64_t channels) {
    return {data, rows, channels, (channels + panel_channels<T> - 1) / panel_channels<T>, true};
}

// Calls function(Width<C>) with the width of a panel where it is common, else Width<0>.
template <class T, class Function>
inline void with_width(int64_t width, Function&& function) {
    if (width == panel_channels<T>) return function(Width<panel_channels<T>>{});
    with_constant(width, function);
}

// Calls function(Width<C>) with the width of a padded panel.
template <class T, class Function>
inline void with_padded_width(int64_t width, Function&& function) {
    switch (width) {
        case 1: return function(Width<1>{});
        case 2: return function(Width<2>{});
        case 4: return function(Width<4>{});
        case 8: return function(Width<8>{});
        default: return function(Width<panel_channels<T>>{});
    }
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
