// Uninitialized memory, on huge pages where the system offers them, kept for the next call when it is freed.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace permutohedral {

// New pages cost more than most kernels need to fill them, and allocators return large blocks to the system at once.
// Therefore large blocks are kept when they are freed, up to a limit, joined, and given out again in any size.
void* take_memory(size_t bytes);  // aligned to 64 bytes; throws std::bad_alloc
void return_memory(void* data);

size_t kept_memory();
// Releases what is kept beyond the limit, in bytes, now and from now on.
void limit_kept_memory(size_t limit);

// Owns memory aligned to 64 bytes; throws std::bad_alloc. Not inline: see parallel.hpp on linkage.
class Memory {
public:
    Memory() = default;
    explicit Memory(size_t bytes);
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    ~Memory();

    void* data() const;
    size_t size() const;

private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

template <class T>
static inline T* as(const Memory& memory) {
    return static_cast<T*>(memory.data());
}

// Memory for many pieces, freed together: small pieces then share huge pages, too. Any thread may take some.
class Arena {
public:
    void* take(size_t bytes);

private:
    std::mutex mutex_;
    std::vector<Memory> blocks_;
    size_t used_ = 0;
};

}  // namespace permutohedral
