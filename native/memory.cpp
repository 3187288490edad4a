#include "memory.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace permutohedral {
namespace {

constexpr std::align_val_t alignment{64};
constexpr uintptr_t huge_page = uintptr_t{1} << 21;

}  // namespace

void prefer_huge_pages(void* data, size_t bytes) {
#if defined(__linux__)
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + huge_page - 1) & ~(huge_page - 1);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(huge_page - 1);
    // advice only: that it may be refused does no harm
    if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)data;
    (void)bytes;
    (void)huge_page;
#endif
}

Memory::Memory(size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    data_ = ::operator new(bytes, alignment);
    prefer_huge_pages(data_, bytes);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Memory::~Memory() {
    if (data_ != nullptr) ::operator delete(data_, alignment);
}

void* Arena::take(size_t bytes) {
    constexpr size_t line = 64;
    bytes = (bytes + line - 1) / line * line;
    const std::lock_guard<std::mutex> lock(mutex_);
    // The first block is of a size that allocators keep when it is freed, so that the next call finds its pages in
    // place. The others are large enough to go back to the system, and do not count beside what is allocated later.
    const size_t block = size_t{1} << (blocks_.empty() ? 24 : 26);
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
