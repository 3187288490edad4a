// Uninitialized memory, on huge pages where the system offers them, cached for the next call when it is freed.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace permutohedral {

// Large blocks are kept when they are freed, up to a limit, and reused for allocations of similar size; memory.cpp says
// why.
void* allocate_memory(size_t bytes);  // aligned to 64 bytes; throws std::bad_alloc
void free_memory(void* data);

// smaller blocks are left to the system's allocator, which keeps them itself
constexpr size_t least_kept_bytes = size_t{1} << 20;

// Bytes that are free, but not returned to the system.
size_t kept_memory();
// The most bytes that are kept; 0 where this build keeps none.
size_t kept_memory_limit();
void limit_kept_memory(size_t limit);

// Owns a block. Its functions are not inline: see threads.hpp on linkage.
class Memory {
public:
    Memory() = default;
    explicit Memory(size_t bytes);
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    ~Memory();

    void* data() const;
    size_t size() const;
    // Leaves the block to the caller, who frees it with `free_memory`.
    void release();

private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

template <class T>
static inline T* as(const Memory& memory) {
    return static_cast<T*>(memory.data());
}

// Many allocations that are freed together, so that small ones share huge pages, too. Thread-safe.
class Arena {
public:
    void* allocate(size_t bytes);

private:
    std::mutex mutex_;
    std::vector<Memory> blocks_;
    size_t used_ = 0;
};

}  // namespace permutohedral
