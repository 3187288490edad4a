// The allocator on a kernel with pages of 64 KiB, as arm64 servers have: the system's functions are replaced by ones that
// reject what such a kernel rejects.
#include <cstring>
#include <vector>

#include "check.hpp"
#include "runtime/memory.hpp"

#if defined(__linux__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PERMUTOHEDRAL_LARGE_PAGES 1
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr size_t page = size_t{1} << 16;
std::atomic<bool> pages_are_large{false};
// all mapped bytes
std::atomic<size_t> mapped_bytes{0};

bool is_page(const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % page == 0 && bytes % page == 0 && bytes > 0;
}

}  // namespace

extern "C" long sysconf(int name) noexcept {
    using Function = long (*)(int);
    static const Function original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "sysconf"));
    return name == _SC_PAGESIZE && pages_are_large ? long(page) : original(name);
}

extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
    if (!pages_are_large || at != nullptr) {
        return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
    }
    // a page of such a kernel, never at a huge page
    const size_t whole = (bytes + page - 1) / page * page, space = whole + (size_t{1} << 22);
    char* begin = reinterpret_cast<char*>(syscall(SYS_mmap, nullptr, space, protection, flags, file, offset));
    CHECK(begin != MAP_FAILED);
    char* found = begin + ((size_t{1} << 21) - reinterpret_cast<uintptr_t>(begin) % (size_t{1} << 21)) + page;
    syscall(SYS_munmap, begin, found - begin);
    syscall(SYS_munmap, found + whole, begin + space - found - whole);
    mapped_bytes += whole;
    return found;
}

extern "C" int munmap(void* address, size_t bytes) noexcept {
    if (pages_are_large) {
        CHECK(is_page(address, bytes));
        mapped_bytes -= bytes;
    }
    return int(syscall(SYS_munmap, address, bytes));
}
#endif

using namespace permutohedral;

namespace {

void test_blocks_are_apart() {
    std::vector<std::pair<unsigned char*, size_t>> blocks;
    for (size_t bytes = 1; bytes < (size_t{1} << 26); bytes = bytes * 5 / 3 + 1) {
        auto* block = static_cast<unsigned char*>(allocate_memory(bytes));
        CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
        std::memset(block, int(blocks.size()), bytes);
        blocks.emplace_back(block, bytes);
        // frees every third, whose memory later blocks reuse
        if (blocks.size() % 3 == 0) {
            free_memory(blocks[blocks.size() - 2].first);
            blocks.erase(blocks.end() - 2);
            std::memset(blocks.back().first, int(blocks.size()) - 1, bytes);
        }
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
        for (size_t at = 0; at < blocks[i].second; ++at) CHECK(blocks[i].first[at] == i);
        free_memory(blocks[i].first);
    }
}

}  // namespace

void test_memory() {
#if defined(PERMUTOHEDRAL_LARGE_PAGES)
    pages_are_large = true;
#endif
    test_blocks_are_apart();
    limit_kept_memory(0);
    CHECK(kept_memory() == 0);
#if defined(PERMUTOHEDRAL_LARGE_PAGES)
    CHECK(mapped_bytes == 0);
    pages_are_large = false;
#endif
}
