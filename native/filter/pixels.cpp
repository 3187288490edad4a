#include "filter/pixels.hpp"

#include "runtime/threads.hpp"

namespace permutohedral {

// points of one task: their rows stay in the nearest cache while the planes are read one after another
constexpr int64_t points_per_task = 2048;

template <class T>
void picture_features(const Pictures<T>& pictures, T sigma_space, T sigma_range, T* features, int threads) {
    const int64_t width = pictures.width, plane = pictures.height * width, row = 2 + pictures.channels;
    parallel_for(threads, pictures.count * pictures.height, [&](int64_t task, int) {
        const int64_t picture = task / pictures.height, y = task % pictures.height;
        T* out = features + task * width * row;
        for (int64_t x = 0; x < width; ++x) {
            out[x * row] = T(y) / sigma_space;
            out[x * row + 1] = T(x) / sigma_space;
        }
        const T* colors = pictures.values + picture * pictures.channels * plane + y * width;
        for (int64_t channel = 0; channel < pictures.channels; ++channel) {
            for (int64_t x = 0; x < width; ++x) out[x * row + 2 + channel] = colors[channel * plane + x] / sigma_range;
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

template void picture_features(const Pictures<float>&, float, float, float*, int);
template void picture_features(const Pictures<double>&, double, double, double*, int);
template void interleave(const float*, int64_t, int64_t, float*, int);
template void interleave(const double*, int64_t, int64_t, double*, int);

}  // namespace permutohedral
