// Pictures as rows of points. Torch could do it, but its threads wait for each other without sleep, which on a busy
// machine takes longer than the whole filter.
#pragma once

#include <cstdint>
#include <vector>

namespace permutohedral {

// Pictures, volumes or signals on a grid of any number of axes.
template <class T>
struct Pictures {
    const T* values;  // [count, channels, *space], or with `channels_last` [count, *space, channels]
    bool channels_last;
    int64_t count, channels;
    std::vector<int64_t> space, origin;  // extents, and the position of the first sample
};

// Position / sigma_space [axes] and color / sigma_range [channels] of each sample: [count * samples, axes + channels].
template <class T>
void picture_features(const Pictures<T>& pictures, const std::vector<T>& sigma_space, const std::vector<T>& sigma_range,
                      T* features, int threads);

// Planes [channels, points] as rows [points, channels].
template <class T>
void interleave(const T* planes, int64_t channels, int64_t points, T* rows, int threads);

}  // namespace permutohedral
