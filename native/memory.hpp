// Uninitialized memory, on huge pages where the system offers them.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace permutohedral {

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

// Asks for huge pages in a large buffer that has not been written to yet: random access is then up to twice as fast.
void prefer_huge_pages(void* data, size_t bytes);

}  // namespace permutohedral
