// All parallelism of the core goes through parallel_for; threads.cpp alone knows what a thread is.
#pragma once

#include <cstdint>

namespace permutohedral {

// Alignment of what one thread writes often: two cache lines, since processors prefetch pairs, against false sharing.
constexpr int thread_alignment = 128;

using Task = void (*)(void* context, int64_t index, int worker);

// Calls task(context, index, worker) once for every index in [0, count), on at most `threads` threads, where worker is
// the number of the thread, in [0, threads). Returns when all are done; rethrows the first exception.
// A call from inside a task, or while another caller uses the pool, runs on the calling thread alone.
void run_tasks(int threads, int64_t count, Task task, void* context);

// A function that throws if the caller wants to stop, such as after Ctrl-C; run_tasks then ends and rethrows. It is
// called between tasks, about twenty times a second, only on the thread that called run_tasks.
using Interruption = void (*)();
void set_interruption(Interruption ask);

// For long tasks, to call now and then: throws if the call is to end, as run_tasks does between tasks.
void check_interruption();

// Functions in headers have internal linkage: the headers are compiled for several instruction sets, and the linker
// must not replace a function by its twin that was compiled for another one.
template <class Function>
static inline void parallel_for(int threads, int64_t count, Function&& function) {
    auto call = [](void* context, int64_t index, int worker) { (*static_cast<Function*>(context))(index, worker); };
    run_tasks(threads, count, call, &function);
}

struct Range {
    int64_t begin, end;
};

// The b-th of `blocks` nearly equal parts of [0, size).
static inline Range block_range(int64_t size, int64_t blocks, int64_t b) {
    const int64_t part = size / blocks, rest = size % blocks;
    return {part * b + rest * b / blocks, part * (b + 1) + rest * (b + 1) / blocks};
}

static inline int64_t divide_up(int64_t size, int64_t part) { return (size + part - 1) / part; }

// Calls function(begin, end, worker) for consecutive parts of [0, size), each of `grain` except the last.
template <class Function>
static inline void parallel_ranges(int threads, int64_t size, int64_t grain, Function&& function) {
    parallel_for(threads, divide_up(size, grain), [&](int64_t part, int worker) {
        const int64_t begin = part * grain;
        const int64_t end = begin + grain < size ? begin + grain : size;
        function(begin, end, worker);
    });
}

}  // namespace permutohedral
