// Why an allocator of our own: the first write to a new page is a page fault, in which the system clears the page. For
// buffers of a few megabytes and more that takes longer than most kernels take to fill them. The C library returns such
// blocks to the system when they are freed, so that without this file every call would pay for its pages again.
#include "runtime/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <new>
#include <utility>

#if defined(__linux__) && !defined(PERMUTOHEDRAL_PLAIN_MEMORY)
#include <sys/mman.h>
#define PERMUTOHEDRAL_PAGES 1
#endif

namespace permutohedral {
namespace {

// in front of every allocation, in a cache line of its own
struct Header {
    size_t bytes;  // of the block with its header; 0 if it came from operator new
};

constexpr size_t header_bytes = 64;
constexpr std::align_val_t alignment{header_bytes};

void* behind_header(void* block, size_t bytes) {
    new (block) Header{bytes};
    return static_cast<char*>(block) + header_bytes;
}

#if defined(PERMUTOHEDRAL_PAGES)

constexpr size_t page = size_t{1} << 12, huge_page = size_t{1} << 21;
constexpr size_t default_limit = size_t{1} << 29;
// Smaller requests are cut out of a mapping of this size, so that free neighbors can be joined. Pages that nobody has
// written to take no memory.
constexpr size_t least_mapped = size_t{1} << 26;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// New pages from the system, aligned to huge pages; null if there are none.
char* map_pages(size_t bytes) {
    void* mapped = mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    char* begin = static_cast<char*>(mapped);
    char* data = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(begin), huge_page));
    if (data > begin) munmap(begin, size_t(data - begin));
    if (data < begin + huge_page) munmap(data + bytes, size_t(begin + huge_page - data));
    // advice only: it may be refused
    (void)madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

// Ranges of mapped memory that are free, by address; adjacent ranges are joined.
class FreeRanges {
public:
    // Best fit: out of the smallest range that is large enough; null if none is. A range of many times what is asked
    // for stays whole: the next large result needs all of it.
    char* take(size_t bytes) {
        const size_t most = 4 * std::max(bytes, least_mapped);
        auto best = free_.end();
        for (auto range = free_.begin(); range != free_.end(); ++range) {
            const bool fits = range->second >= bytes && range->second <= most;
            if (fits && (best == free_.end() || range->second < best->second)) best = range;
        }
        if (best == free_.end()) return nullptr;
        char* data = best->first;
        const size_t rest = best->second - bytes;
        free_.erase(best);
        if (rest > 0) free_[data + bytes] = rest;
        kept_ -= bytes;
        return data;
    }

    void keep(char* data, size_t bytes) {
        kept_ += bytes;
        auto next = free_.upper_bound(data);
        if (next != free_.end() && data + bytes == next->first) {
            bytes += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == data) {
                data = before->first;
                bytes += before->second;
                free_.erase(before);
            }
        }
        free_[data] = bytes;
        release(limit_);
    }

    // Returns ranges of at most `largest` to the system until at most `bytes` are kept: the smallest that is enough, so
    // that a large result, whose pages take longest to come again, is not given up for the sake of a few small ones.
    void release(size_t bytes, size_t largest = SIZE_MAX) {
        while (kept_ > bytes) {
            const size_t excess = kept_ - bytes;
            auto chosen = free_.end();
            for (auto range = free_.begin(); range != free_.end(); ++range) {
                if (range->second > largest) continue;
                const bool enough = range->second >= excess;
                if (chosen == free_.end() || (enough && range->second < chosen->second) ||
                    (chosen->second < excess && range->second > chosen->second)) {
                    chosen = range;
                }
            }
            if (chosen == free_.end()) return;
            munmap(chosen->first, chosen->second);
            kept_ -= chosen->second;
            free_.erase(chosen);
        }
    }

    void limit(size_t bytes) {
        limit_ = bytes;
        release(limit_);
    }

    size_t kept() const { return kept_; }

private:
    std::map<char*, size_t> free_;
    size_t kept_ = 0, limit_ = default_limit;
};

struct SharedRanges {
    std::mutex lock;
    FreeRanges ranges;
};

// never destroyed: tensors are freed until the process ends
SharedRanges& shared_ranges() {
    static SharedRanges* const shared = new SharedRanges;
    return *shared;
}

// Calls function(ranges) unless another thread holds the lock. Nobody waits for it: a forked child may have inherited
// it locked by a thread that does not exist there.
template <class Function>
void try_with_ranges(Function&& function) {
    SharedRanges& shared = shared_ranges();
    const std::unique_lock<std::mutex> locked(shared.lock, std::try_to_lock);
    if (locked.owns_lock()) function(shared.ranges);
}

char* take_block(size_t bytes) {
    char* block = nullptr;
    try_with_ranges([&](FreeRanges& ranges) {
        block = ranges.take(bytes);
        if (block != nullptr) return;
        // ranges that are too small go back to the system, so that fragments do not add up
        ranges.release(ranges.kept() > bytes ? ranges.kept() - bytes : 0, bytes);
        if (bytes >= least_mapped) return;
        char* mapped = map_pages(least_mapped);
        if (mapped == nullptr) return;
        ranges.keep(mapped, least_mapped);
        block = ranges.take(bytes);
    });
    if (block == nullptr) block = map_pages(bytes);
    if (block == nullptr) {
        try_with_ranges([&](FreeRanges& ranges) { ranges.release(0); });
        block = map_pages(bytes);
    }
    if (block == nullptr) throw std::bad_alloc();
    return block;
}

#endif

}  // namespace

void* allocate_memory(size_t bytes) {
    bytes += header_bytes;
    if (bytes < header_bytes) throw std::bad_alloc();
#if defined(PERMUTOHEDRAL_PAGES)
    if (bytes >= least_kept_bytes) {
        bytes = round_up(bytes, page);
        return behind_header(take_block(bytes), bytes);
    }
#endif
    return behind_header(::operator new(bytes, alignment), 0);
}

void free_memory(void* data) {
    char* block = static_cast<char*>(data) - header_bytes;
    const size_t bytes = reinterpret_cast<Header*>(block)->bytes;
    if (bytes == 0) return ::operator delete(block, alignment);
#if defined(PERMUTOHEDRAL_PAGES)
    try_with_ranges([&](FreeRanges& ranges) {
        ranges.keep(block, bytes);
        block = nullptr;
    });
    if (block != nullptr) munmap(block, bytes);
#endif
}

size_t kept_memory() {
    size_t kept = 0;
#if defined(PERMUTOHEDRAL_PAGES)
    try_with_ranges([&](FreeRanges& ranges) { kept = ranges.kept(); });
#endif
    return kept;
}

void limit_kept_memory(size_t limit) {
#if defined(PERMUTOHEDRAL_PAGES)
    try_with_ranges([&](FreeRanges& ranges) { ranges.limit(limit); });
#else
    (void)limit;
#endif
}

Memory::Memory(size_t bytes) : size_(bytes) {
    if (bytes > 0) data_ = allocate_memory(bytes);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Memory::~Memory() {
    if (data_ != nullptr) free_memory(data_);
}

void* Arena::allocate(size_t bytes) {
    constexpr size_t line = 64, block = size_t{1} << 25;
    bytes = (bytes + line - 1) / line * line;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_.empty() || used_ + bytes > blocks_.back().size()) {
        blocks_.emplace_back(std::max(block, bytes));
        used_ = 0;
    }
    used_ += bytes;
    return static_cast<char*>(blocks_.back().data()) + used_ - bytes;
}

void* Memory::data() const { return data_; }
size_t Memory::size() const { return size_; }

}  // namespace permutohedral
