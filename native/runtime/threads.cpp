// A pool of std::threads, and why it is our own:
// - OpenMP: once a process has used libgomp, its forked children hang at their first parallel region. The workers of a
//   torch DataLoader are such children.
// - oneTBB would be a library to ship in addition to torch's own copy, and decides by itself how many threads run and which of
//   them gets which task. Here the caller says how many (torch.get_num_threads()), and a worker begins with the same
//   share of the tasks in every stage of a call, so that it finds its data in its cache.
// - Neither asks between tasks whether the user has pressed Ctrl-C.
#include "runtime/threads.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
#define PERMUTOHEDRAL_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PERMUTOHEDRAL_PAUSE() __asm__ __volatile__("yield")
#else
#define PERMUTOHEDRAL_PAUSE() ((void)0)
#endif

namespace permutohedral {
namespace {

// polls before a thread sleeps: about ten microseconds, longer than the gap between two stages of one call
constexpr int spins = 1000;

// between two questions whether to stop: seldom enough to cost nothing, often enough to seem immediate
constexpr int64_t nanoseconds_between_checks = 50'000'000;

std::atomic<Interruption> interruption{nullptr};
thread_local int64_t next_check = 0;

// Asks the caller whether to stop, unless that was done a moment ago.
void poll_interruption() {
    const Interruption ask = interruption.load(std::memory_order_relaxed);
    if (ask == nullptr) return;
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    if (now < next_check) return;
    next_check = now + nanoseconds_between_checks;
    ask();
}

// thrown on the other threads of a job that has failed; run_tasks does not let it out
struct Stopped {};

struct Job;

// whether this thread runs a task: one that calls run_tasks gets no other threads
thread_local bool inside_task = false;
// the job of another thread's call that this thread works on
thread_local const Job* helped_job = nullptr;

// The tasks that one worker begins with, consecutive ones: what it wrote in one stage of a call it mostly reads in the
// next, out of its own cache. A worker that has none left steals from the others.
struct alignas(thread_alignment) TaskShare {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
};

struct Job {
    Job(int threads, int64_t count, Task task, void* context)
        : task(task),
          context(context),
          num_shares(threads < max_shares ? threads : max_shares) {
        for (int i = 0; i < num_shares; ++i) {
            const Range range = block_range(count, num_shares, i);
            shares[i].next.store(range.begin, std::memory_order_relaxed);
            shares[i].end = range.end;
        }
    }

    void work(int worker) {
        inside_task = true;
        if (worker > 0) helped_job = this;
        try {
            for (int i = 0; i < num_shares; ++i) {
                TaskShare& share = shares[(worker + i) % num_shares];
                for (int64_t index; (index = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
                    if (worker == 0) poll_interruption();
                    task(context, index, worker);
                }
            }
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
            for (int i = 0; i < num_shares; ++i) shares[i].next.store(shares[i].end, std::memory_order_relaxed);
        }
        inside_task = false;
        helped_job = nullptr;
    }

    Task task;
    void* context;
    std::atomic<bool> failed{false};
    std::exception_ptr error = nullptr;

private:
    static constexpr int max_shares = 64;
    int num_shares;
    TaskShare shares[max_shares];
};

class Pool {
public:
    void run(int threads, Job& job) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            start_workers(threads - 1);
            job_ = &job;
            threads_ = threads;
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        job.work(0);
        {
            // from here on no thread joins
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = nullptr;
        }
        for (int i = 0; i < spins && active_.load(std::memory_order_acquire) > 0; ++i) PERMUTOHEDRAL_PAUSE();
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return active_.load(std::memory_order_acquire) == 0; });
    }

    // held by the caller whose job runs
    std::mutex owner;

private:
    // Starts threads until there are `wanted`, or as many as the system grants: the others take over their tasks.
    void start_workers(int wanted) {
        try {
            for (; num_threads_ < wanted; ++num_threads_) {
                std::thread([this, worker = num_threads_ + 1] { serve(worker); }).detach();
            }
        } catch (const std::system_error&) {
            // a limit on threads, such as that of a container; the next call tries again
        }
    }

    // Runs a worker until the process ends. It has the same number in every job, and skips those with fewer threads.
    void serve(int worker) {
        uint64_t seen = 0;
        for (;;) {
            for (int i = 0; i < spins; ++i) {
                if (generation_.load(std::memory_order_acquire) != seen) break;
                PERMUTOHEDRAL_PAUSE();
            }
            Job* job = nullptr;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
                seen = generation_.load(std::memory_order_acquire);
                if (job_ != nullptr && worker < threads_) {
                    job = job_;
                    active_.fetch_add(1, std::memory_order_relaxed);
                }
            }
            if (job == nullptr) continue;
            job->work(worker);
            std::lock_guard<std::mutex> lock(mutex_);
            if (active_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int> active_{0};
    Job* job_ = nullptr;
    int num_threads_ = 0, threads_ = 0;
};

// never destroyed: its threads wait for work until the process ends
std::atomic<Pool*> shared_pool{nullptr};

#if !defined(_WIN32)
// In a forked child: it has none of the threads, and may have inherited locked mutexes, so it makes a new pool.
void forget_pool() {
    shared_pool.store(nullptr, std::memory_order_relaxed);
    inside_task = false;
}
#endif

Pool& pool() {
    Pool* existing = shared_pool.load(std::memory_order_acquire);
    if (existing != nullptr) return *existing;
#if !defined(_WIN32)
    static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
    (void)registered;
#endif
    Pool* created = new Pool;
    if (shared_pool.compare_exchange_strong(existing, created)) return *created;
    delete created;
    return *existing;
}

}  // namespace

void run_tasks(int threads, int64_t count, Task task, void* context) {
    if (count <= 0) return;
    if (threads > count) threads = static_cast<int>(count);
    if (threads > 1 && !inside_task) {
        Pool& shared = pool();
        std::unique_lock<std::mutex> owner(shared.owner, std::try_to_lock);
        if (owner.owns_lock()) {
            Job job(threads, count, task, context);
            shared.run(threads, job);
            if (job.error) std::rethrow_exception(job.error);
            return;
        }
    }
    for (int64_t index = 0; index < count; ++index) {
        check_interruption();
        task(context, index, 0);
    }
}

void set_interruption(Interruption ask) { interruption.store(ask, std::memory_order_relaxed); }

void check_interruption() {
    if (helped_job == nullptr) return poll_interruption();
    if (helped_job->failed.load(std::memory_order_relaxed)) throw Stopped{};
}

}  // namespace permutohedral
