// Why a custom allocator: the first write to a new page is a page fault, in which the system clears the page. For buffers
// of a few megabytes and more that takes longer than most kernels take to fill them. The C library returns such blocks to
// the system when they are freed, so that without this file every call would pay for its pages again.
#include "runtime/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__linux__) && !defined(PERMUTOHEDRAL_PLAIN_MEMORY)
#include <sys/mman.h>
#include <unistd.h>
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

constexpr size_t huge_page = size_t{1} << 21, default_limit = size_t{1} << 29;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Rounds up to a size class, eight between one power of two and the next: blocks of similar sizes replace each other.
size_t size_class(size_t bytes) {
    static const size_t page = size_t(sysconf(_SC_PAGESIZE));
    size_t power = page;
    while (2 * power <= bytes) power *= 2;
    return round_up(bytes, std::max(page, power / 8));
}

// Returns new pages from the system, aligned to huge pages; null if there are none.
char* map_pages(size_t bytes) {
    void* mapped = mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    char* begin = static_cast<char*>(mapped);
    char* data = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(begin), huge_page));
    if (data > begin) munmap(begin, size_t(data - begin));
    if (data < begin + huge_page) munmap(data + bytes, size_t(begin + huge_page - data));
    // advice only: it may be ignored
    (void)madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

struct Block {
    char* data;
    size_t bytes;
};

// Free blocks, in the order in which they were freed.
class FreeBlocks {
public:
    // Removes the smallest block of at least `bytes`, and at most twice as many; sets `bytes` to its size. Null if there
    // is none.
    char* take(size_t& bytes) {
        int best = -1;
        for (int i = 0; i < count_; ++i) {
            const size_t size = blocks_[i].bytes;
            if (size >= bytes && size <= 2 * bytes && (best < 0 || size < blocks_[best].bytes)) best = i;
        }
        if (best < 0) return nullptr;
        bytes = blocks_[best].bytes;
        return remove(best);
    }

    // Keeps a block; the oldest ones return to the system where there are too many.
    void keep(Block block) {
        if (count_ == most_blocks) release_oldest();
        blocks_[count_++] = block;
        kept_ += block.bytes;
        release(limit_);
    }

    // Returns the oldest blocks to the system until at most `bytes` are kept.
    void release(size_t bytes) {
        while (kept_ > bytes) release_oldest();
    }

    void set_limit(size_t bytes) {
        limit_ = bytes;
        release(limit_);
    }

    size_t kept() const { return kept_; }
    size_t limit() const { return limit_; }

private:
    static constexpr int most_blocks = 32;

    char* remove(int index) {
        char* data = blocks_[index].data;
        kept_ -= blocks_[index].bytes;
        std::copy(blocks_ + index + 1, blocks_ + count_, blocks_ + index);
        --count_;
        return data;
    }

    void release_oldest() {
        const size_t bytes = blocks_[0].bytes;
        munmap(remove(0), bytes);
    }

    Block blocks_[most_blocks];
    int count_ = 0;
    size_t kept_ = 0, limit_ = default_limit;
};

struct SharedBlocks {
    std::mutex lock;
    FreeBlocks blocks;
};

// never destroyed: tensors are freed until the process ends
SharedBlocks& shared_blocks() {
    static SharedBlocks* const shared = new SharedBlocks;
    return *shared;
}

// Calls function(blocks) unless another thread holds the lock. It never waits: a forked child may have inherited the lock
// from a thread that does not exist there.
template <class Function>
void try_with_blocks(Function&& function) {
    SharedBlocks& shared = shared_blocks();
    const std::unique_lock<std::mutex> locked(shared.lock, std::try_to_lock);
    if (locked.owns_lock()) function(shared.blocks);
}

Block take_block(size_t bytes) {
    char* data = nullptr;
    try_with_blocks([&](FreeBlocks& blocks) { data = blocks.take(bytes); });
    if (data == nullptr) data = map_pages(bytes);
    if (data == nullptr) {
        try_with_blocks([](FreeBlocks& blocks) { blocks.release(0); });
        data = map_pages(bytes);
    }
    if (data == nullptr) throw std::bad_alloc();
    return {data, bytes};
}

#endif

}  // namespace

void* allocate_memory(size_t bytes) {
    bytes += header_bytes;
    if (bytes < header_bytes) throw std::bad_alloc();
#if defined(PERMUTOHEDRAL_PAGES)
    if (bytes >= least_kept_bytes && bytes < SIZE_MAX / 4) {
        const Block block = take_block(size_class(bytes));
        return behind_header(block.data, block.bytes);
    }
#endif
    return behind_header(::operator new(bytes, alignment), 0);
}

void free_memory(void* data) {
    char* block = static_cast<char*>(data) - header_bytes;
    const size_t bytes = reinterpret_cast<Header*>(block)->bytes;
    if (bytes == 0) return ::operator delete(block, alignment);
#if defined(PERMUTOHEDRAL_PAGES)
    try_with_blocks([&](FreeBlocks& blocks) {
        blocks.keep({block, bytes});
        block = nullptr;
    });
    if (block != nullptr) munmap(block, bytes);
#endif
}

size_t kept_memory() {
    size_t kept = 0;
#if defined(PERMUTOHEDRAL_PAGES)
    try_with_blocks([&](FreeBlocks& blocks) { kept = blocks.kept(); });
#endif
    return kept;
}

size_t kept_memory_limit() {
    size_t limit = 0;
#if defined(PERMUTOHEDRAL_PAGES)
    try_with_blocks([&](FreeBlocks& blocks) { limit = blocks.limit(); });
#endif
    return limit;
}

void limit_kept_memory(size_t limit) {
#if defined(PERMUTOHEDRAL_PAGES)
    try_with_blocks([&](FreeBlocks& blocks) { blocks.set_limit(limit); });
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
void Memory::release() { data_ = nullptr; }

}  // namespace permutohedral
