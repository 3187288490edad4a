#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#endif

#include "check.hpp"
#include "runtime/threads.hpp"

using namespace permutohedral;

namespace {

void test_every_task_runs_once() {
    for (const int threads : {1, 2, 3, 8, 100}) {
        for (const int64_t count : {0, 1, 2, 7, 1000}) {
            std::vector<std::atomic<int>> runs(count);
            parallel_for(threads, count, [&](int64_t index, int worker) {
                CHECK(worker >= 0 && worker < threads);
                ++runs[index];
            });
            for (const std::atomic<int>& number : runs) CHECK(number == 1);
        }
    }
}

// A thread needs memory for its stack: without any, each call uses the threads that exist already.
void test_runs_without_new_threads() {
#if defined(__linux__)
    rlimit before{};
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    rlimit none = before;
    none.rlim_cur = 0;
    std::atomic<int> runs{0};
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    parallel_for(150, 1000, [&](int64_t, int) { ++runs; });
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(runs == 1000);
#endif
}

void test_ranges_cover() {
    for (const int64_t size : {0, 1, 10, 11, 4097}) {
        std::vector<std::atomic<int>> covered(size);
        parallel_ranges(3, size, 10, [&](int64_t begin, int64_t end, int) {
            CHECK(begin < end && end - begin <= 10);
            for (int64_t i = begin; i < end; ++i) ++covered[i];
        });
        for (const std::atomic<int>& number : covered) CHECK(number == 1);
        for (int64_t blocks = 1; blocks <= 7; ++blocks) {
            int64_t at = 0;
            for (int64_t b = 0; b < blocks; ++b) {
                const Range range = block_range(size, blocks, b);
                CHECK(range.begin == at && range.end >= at);
                at = range.end;
            }
            CHECK(at == size);
        }
    }
}

void test_the_first_exception_ends_the_call() {
    std::atomic<int64_t> runs{0};
    bool caught = false;
    try {
        parallel_for(4, int64_t{1} << 40, [&](int64_t index, int) {
            ++runs;
            if (index == 3) throw std::runtime_error("task 3");
        });
    } catch (const std::runtime_error&) {
        caught = true;
    }
    CHECK(caught && runs < int64_t{1} << 40);
    // and the pool goes on
    test_every_task_runs_once();
}

void test_a_task_may_call_again() {
    std::atomic<int> inner{0};
    parallel_for(3, 5, [&](int64_t, int) {
        const std::thread::id outer = std::this_thread::get_id();
        parallel_for(3, 4, [&](int64_t, int worker) {
            CHECK(worker == 0 && std::this_thread::get_id() == outer);
            ++inner;
        });
    });
    CHECK(inner == 20);
}

void test_callers_at_once() {
    std::atomic<int64_t> sum{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
            for (int round = 0; round < 50; ++round) {
                parallel_for(3, 10, [&](int64_t index, int) { sum += index; });
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(sum == 4 * 50 * 45);
}

struct Stop {};

void test_the_caller_may_stop() {
    set_interruption([] { throw Stop{}; });
    bool caught = false;
    try {
        parallel_for(2, int64_t{1} << 40, [](int64_t, int) {});
    } catch (const Stop&) {
        caught = true;
    }
    set_interruption(nullptr);
    CHECK(caught);
}

}  // namespace

void test_threads() {
    test_runs_without_new_threads();
    test_every_task_runs_once();
    test_ranges_cover();
    test_the_first_exception_ends_the_call();
    test_a_task_may_call_again();
    test_callers_at_once();
    test_the_caller_may_stop();
}
