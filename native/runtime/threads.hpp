// All parallelism of the core goes through parallel_for: the choice of threads lives in parallel.cpp alone.
#pragma once

#include <cstdint>

namespace permutohedral {

// What one thread keeps writing to shares no cache line, nor the next, which is fetched along, with another's.
constexpr int thread_alignment = 128;

using Task = void (*)(void* context, int64_t index, int worker);

// Calls task(context, index, worker) once for every index in [0, count), on at most `threads` threads;
// worker, in [0, threads), names the thread. Returns when all are done; rethrows the first exception.
// A call from inside a task, or while another thread uses the pool, runs on the calling thread alone.
void run_tasks(int threads, int64_t count, Task task, void* context);

// What to ask between tasks whether the caller wants to stop: it throws if so, and run_tasks rethrows. It is called
// some twenty times a second, only on the thread that called run_tasks.
using Interruption = void (*)();
void set_interruption(Interruption ask);

// For a task that takes long: throws if the call is to end. run_tasks does the same between tasks.
void check_interruption();

// Internal linkage on purpose: these files are compiled for several instruction sets, and the linker must not
// merge an instance of one with another.
template <class Function>
static inline void parallel_for(int threads, int64_t count, Function&& function) {
    auto call = [](void* context, int64_t index, int worker) {
        (*static_cast<Function*>(context))(index, worker);
    };
    run_tasks(threads, count, call, &function);
}

// The b-th of `blocks` nearly equal parts of [0, size).
struct Range {
    int64_t begin, end;
};

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
