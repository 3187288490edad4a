// Lattice values in panels: the channels of one cache line, for all lattice points. Splat and blur treat each panel by
// itself, so threads may divide the panels among them where they cannot divide the lattice points.
#pragma once

#include "filter/channel_vectors.hpp"
#include "filter/point_order.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t cache_line_bytes = 64;

template <class T>
constexpr int64_t panel_channels = cache_line_bytes / int64_t(sizeof(T));

// Channels [first, first + width) of every lattice point; those of v begin at data + v * stride.
template <class T>
struct Panel {
    T* data;
    int64_t stride, first, width;
};

// `count` panels of full width; each begins `step` after the one before it.
template <class T>
struct FullPanels {
    T* data;
    int64_t stride, first, count, step;
};

// All panels of a lattice.
template <class T>
struct ChannelPanels {
    T* data;
    int64_t num_rows, num_channels, num_panels;
    bool consecutive;  // each panel lies in one piece, the last one padded; else they are columns of a matrix

    Panel<T> operator[](int64_t p) const {
        const int64_t first = p * panel_channels<T>;
        if (!consecutive)
            return {data + first, num_channels, first, num_panels == 1 ? num_channels : panel_channels<T>};
        const int64_t width = padded_width(num_channels - first);
        return {data + first * num_rows, width, first, width};
    }

    // The panels [begin, end), all of full width.
    FullPanels<T> full(int64_t begin, int64_t end) const {
        const int64_t first = begin * panel_channels<T>;
        if (!consecutive) return {data + first, num_channels, first, end - begin, panel_channels<T>};
        return {data + first * num_rows, panel_channels<T>, first, end - begin, num_rows * panel_channels<T>};
    }

    // In elements.
    int64_t size() const {
        if (!consecutive) return num_rows * num_channels;
        const int64_t rest = num_channels % panel_channels<T>;
        return num_rows * (num_channels - rest + (rest > 0 ? padded_width(rest) : 0));
    }

    // The least power of two that holds the channels, at most a full panel.
    static int64_t padded_width(int64_t num_channels) {
        int64_t width = 1;
        while (width < num_channels && width < panel_channels<T>) width *= 2;
        return width;
    }
};

// in points ahead, for their values or results
constexpr int64_t prefetch_distance = 16;

PERMUTOHEDRAL_INLINE void prefetch_bytes(const void* data, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += cache_line_bytes) __builtin_prefetch(static_cast<const char*>(data) + b);
}

// A matrix [num_rows, num_channels] is one panel, unless its rows consist of whole cache lines.
template <class T>
inline ChannelPanels<T> panels_of_matrix(T* data, int64_t num_rows, int64_t num_channels) {
    const bool has_full_lines =
        num_channels % panel_channels<T> == 0 && reinterpret_cast<uintptr_t>(data) % cache_line_bytes == 0;
    return {data, num_rows, num_channels, has_full_lines ? num_channels / panel_channels<T> : 1, false};
}

// Panels one after another, in memory of ChannelPanels::size elements.
template <class T>
inline ChannelPanels<T> consecutive_panels(T* data, int64_t num_rows, int64_t num_channels) {
    return {data, num_rows, num_channels, (num_channels + panel_channels<T> - 1) / panel_channels<T>, true};
}

// Calls function(Constant<C>) with the width of a panel if it is full or narrow, else with Constant<0>.
template <class T, class Function>
PERMUTOHEDRAL_INLINE void dispatch_width(int64_t width, Function&& function) {
    dispatch<panel_channels<T>, 1, 2, 3, 4, 5, 6, 7, 8, 0>(width, function);
}

// The same for consecutive panels, whose widths are powers of two.
template <class T, class Function>
PERMUTOHEDRAL_INLINE void dispatch_padded_width(int64_t width, Function&& function) {
    dispatch<1, 2, 4, 8, panel_channels<T>>(width, function);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
