// Pictures as rows of points. Torch could do it, but its threads wait for each other without sleep, which on a busy
// machine takes longer than the whole filter.
#pragma once

#include <cstdint>

namespace permutohedral {

template <class T>
struct Pictures {
    const T* values;  // [count, channels, height, width]
    int64_t count, channels, height, width;
};

// y / sigma_space, x / sigma_space, colors / sigma_range of each pixel: [count * height * width, 2 + channels].
template <class T>
void picture_features(const Pictures<T>& pictures, T sigma_space, T sigma_range, T* features, int threads);

// Planes [channels, points] as rows [points, channels].
template <class T>
void interleave(const T* planes, int64_t channels, int64_t points, T* rows, int threads);

}  // namespace permutohedral
