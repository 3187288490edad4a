#include "filter/pixels.hpp"

#include "runtime/threads.hpp"

namespace permutohedral {

// points of one task: their rows stay in the nearest cache while the planes are read one after another
constexpr int64_t points_per_task = 2048;

template <class T>
void picture_features(const Pictures<T>& pictures, const std::vector<T>& sigma_space, const std::vector<T>& sigma_range,
                      T* features, int threads) {
    const int64_t axes = int64_t(pictures.space.size()), channels = pictures.channels, row = axes + channels;
    const int64_t last = axes - 1, width = pictures.space[last];
    int64_t lines = 1;
    for (int64_t axis = 0; axis < last; ++axis) lines *= pictures.space[axis];
    const int64_t channel_step = pictures.channels_last ? 1 : lines * width;
    const int64_t sample_step = pictures.channels_last ? channels : 1;
    parallel_for(threads, pictures.count * lines, [&](int64_t task, int) {
        T* out = features + task * width * row;
        int64_t line = task % lines;
        for (int64_t axis = last - 1; axis >= 0; --axis) {
            const T place = T(pictures.origin[axis] + line % pictures.space[axis]) / sigma_space[axis];
            line /= pictures.space[axis];
            for (int64_t x = 0; x < width; ++x) out[x * row + axis] = place;
        }
        for (int64_t x = 0; x < width; ++x) out[x * row + last] = T(pictures.origin[last] + x) / sigma_space[last];
        const int64_t picture = task / lines;
        const T* colors = pictures.values + picture * lines * width * channels + task % lines * width * sample_step;
        for (int64_t channel = 0; channel < channels; ++channel) {
            for (int64_t x = 0; x < width; ++x) {
                out[x * row + axes + channel] = colors[channel * channel_step + x * sample_step] / sigma_range[channel];
            }
        }
    });
}

template <class T>
void interleave(const T* planes, int64_t channels, int64_t points, T* rows, int threads) {
    parallel_ranges(threads, points, points_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t channel = 0; channel < channels; ++channel) {
            const T* plane = planes + channel * points;
            for (int64_t i = begin; i < end; ++i) rows[i * channels + channel] = plane[i];
        }
    });
}

template void picture_features(const Pictures<float>&, const std::vector<float>&, const std::vector<float>&, float*,
                               int);
template void picture_features(const Pictures<double>&, const std::vector<double>&, const std::vector<double>&, double*,
                               int);
template void interleave(const float*, int64_t, int64_t, float*, int);
template void interleave(const double*, int64_t, int64_t, double*, int);

}  // namespace permutohedral
