// Uninitialized memory, on huge pages where the system offers them.
#pragma once

#include <cstddef>

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

// Asks for huge pages in a large buffer that has not been written to yet: random access is then up to twice as fast.
void prefer_huge_pages(void* data, size_t bytes);

}  // namespace permutohedral
