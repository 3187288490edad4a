#include "index/vertex_index.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/dispatch.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t min_chunk_points = 2048;
// keys of a range: few enough to stay in a level-two cache
constexpr int64_t range_keys = 16384;
constexpr int64_t max_ranges = 256;
constexpr int bucket_bits = 14;
constexpr int64_t max_lattice_points = int64_t{1} << 31;
constexpr int64_t unpacked_per_task = 8192;

inline uint64_t bucket_of(const uint64_t* key) { return key[0] >> (64 - bucket_bits); }

// A set of keys, numbered in the order of insertion. Open addressing with linear probing; a slot holds a number plus
// one, or 0 if it is free.
template <int W>
class KeySet {
public:
    explicit KeySet(int64_t num_words) : words_(num_words), slots_(256, 0) {}

    uint32_t insert(const uint64_t* key) {
        if (2 * count_ >= int64_t(slots_.size())) grow();
        const uint64_t mask = slots_.size() - 1;
        for (uint64_t place = hash_key<W>(key, words_) & mask;; place = (place + 1) & mask) {
            const uint32_t slot = slots_[place];
            if (slot == 0) {
                keys_.insert(keys_.end(), key, key + words_);
                slots_[place] = uint32_t(++count_);
                return uint32_t(count_ - 1);
            }
            if (same_key<W>(keys_.data() + (slot - 1) * words_, key, words_)) return slot - 1;
        }
    }

    void clear() {
        std::fill(slots_.begin(), slots_.end(), 0);
        keys_.clear();
        count_ = 0;
    }

    int64_t count() const { return count_; }
    const uint64_t* keys() const { return keys_.data(); }

private:
    void grow() {
        slots_.assign(2 * slots_.size(), 0);
        const uint64_t mask = slots_.size() - 1;
        for (int64_t i = 0; i < count_; ++i) {
            uint64_t place = hash_key<W>(keys_.data() + i * words_, words_) & mask;
            while (slots_[place] != 0) place = (place + 1) & mask;
            slots_[place] = uint32_t(i + 1);
        }
    }

    Extent<W> words_;
    int64_t count_ = 0;
    std::vector<uint32_t> slots_;
    std::vector<uint64_t> keys_;
};

struct NumberedKey {
    uint64_t key;
    uint32_t number;
};

// Sorts by key, eight bits at a time from the lowest; bits in which no two keys differ are skipped.
void radix_sort(std::vector<NumberedKey>& items, std::vector<NumberedKey>& scratch) {
    uint64_t all_ones = ~uint64_t{0}, any_ones = 0;
    for (const NumberedKey& item : items) {
        all_ones &= item.key;
        any_ones |= item.key;
    }
    scratch.resize(items.size());
    for (int shift = 0; shift < 64; shift += 8) {
        if ((((any_ones & ~all_ones) >> shift) & 0xff) == 0) continue;
        uint32_t starts[257] = {0};
        for (const NumberedKey& item : items) ++starts[((item.key >> shift) & 0xff) + 1];
        for (int i = 0; i < 256; ++i) starts[i + 1] += starts[i];
        for (const NumberedKey& item : items) scratch[starts[(item.key >> shift) & 0xff]++] = item;
        items.swap(scratch);
    }
}

// Merges ranges; one per thread, which reuses its buffers.
template <int W>
struct alignas(thread_alignment) RangeMerger {
    explicit RangeMerger(int64_t num_words) : words(num_words), set(num_words) {}

    // The numbers of the distinct keys, in the order of the keys.
    const std::vector<NumberedKey>& sorted() {
        items.resize(set.count());
        for (int64_t i = 0; i < set.count(); ++i) items[i] = {set.keys()[i * words], uint32_t(i)};
        if (words == 1) {
            radix_sort(items, scratch);
        } else {
            std::sort(items.begin(), items.end(), [&](const NumberedKey& a, const NumberedKey& b) {
                return less_key<W>(set.keys() + a.number * words, set.keys() + b.number * words, words);
            });
        }
        return items;
    }

    void merge(std::vector<ChunkKeys>& chunks, int64_t range, KeyRange& out) {
        set.clear();
        for (ChunkKeys& chunk : chunks) {
            if (chunk.count == 0) continue;
            uint64_t* keys = chunk.keys;
            const int64_t end = chunk.starts[range + 1];
            for (int64_t i = chunk.starts[range]; i < end; ++i) keys[i * words] = set.insert(keys + i * words);
        }
        out.count = set.count();
        out.keys = Memory(sizeof(uint64_t) * out.count * words);
        ranks.resize(out.count);
        uint32_t rank = 0;
        for (const NumberedKey& item : sorted()) {
            const uint64_t* key = set.keys() + item.number * words;
            std::memcpy(as<uint64_t>(out.keys) + rank * words, key, sizeof(uint64_t) * words);
            ranks[item.number] = rank++;
        }
        for (ChunkKeys& chunk : chunks) {
            if (chunk.count == 0) continue;
            uint64_t* numbers = chunk.keys;
            const int64_t end = chunk.starts[range + 1];
            for (int64_t i = chunk.starts[range]; i < end; ++i) numbers[i * words] = ranks[numbers[i * words]];
        }
    }

    int64_t words;
    KeySet<W> set;
    std::vector<NumberedKey> items, scratch;
    std::vector<uint32_t> ranks;
};

template <int W>
void merge_ranges(std::vector<ChunkKeys>& chunks, std::vector<KeyRange>& ranges, int64_t words, int threads) {
    std::vector<std::vector<RangeMerger<W>>> mergers(threads);
    parallel_for(threads, int64_t(ranges.size()), [&](int64_t range, int worker) {
        if (mergers[worker].empty()) mergers[worker].emplace_back(words);
        mergers[worker][0].merge(chunks, range, ranges[range]);
    });
}

}  // namespace

VertexIndex::VertexIndex(int64_t num_points, int64_t num_corners, int32_t* vertices, int threads)
    : num_points(num_points),
      num_corners(num_corners),
      vertices(vertices),
      threads(threads) {
    chunk_points = std::clamp(num_points / (4 * threads), min_chunk_points, max_chunk_points);
    num_chunks = divide_up(num_points, chunk_points);
    chunks_.resize(num_chunks);
}

void VertexIndex::choose_ranges(const uint64_t* sample, int64_t count) {
    const int64_t wanted = std::clamp<int64_t>(num_points * num_corners / range_keys, 1, max_ranges);
    std::vector<int64_t> below(size_t{1} << bucket_bits, 0);
    for (int64_t i = 0; i < count; ++i) ++below[bucket_of(sample + i * packing.num_words)];
    range_of_bucket_.resize(below.size());
    int64_t seen = 0, range = 0;
    for (size_t bucket = 0; bucket < below.size(); ++bucket) {
        // seen * wanted / count, without a division for every bucket
        while (range < wanted - 1 && seen * wanted >= (range + 1) * count) ++range;
        range_of_bucket_[bucket] = uint8_t(range);
        seen += below[bucket];
    }
    ranges_.resize(wanted);
}

void VertexIndex::store_chunk(int64_t chunk, const uint64_t* keys, int64_t count) {
    ChunkKeys& list = chunks_[chunk];
    const int64_t words = packing.num_words, ranges = int64_t(ranges_.size());
    list.count = count;
    list.keys = static_cast<uint64_t*>(arena_.allocate(sizeof(uint64_t) * count * words));
    list.positions = static_cast<uint32_t*>(arena_.allocate(sizeof(uint32_t) * count));
    list.starts.assign(ranges + 1, 0);
    for (int64_t i = 0; i < count; ++i) ++list.starts[range_of_bucket_[bucket_of(keys + i * words)] + 1];
    for (int64_t p = 0; p < ranges; ++p) list.starts[p + 1] += list.starts[p];
    std::vector<uint32_t> next(list.starts.begin(), list.starts.end() - 1);
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t place = next[range_of_bucket_[bucket_of(keys + i * words)]]++;
        list.positions[place] = uint32_t(i);
        for (int64_t w = 0; w < words; ++w) list.keys[place * words + w] = keys[i * words + w];
    }
}

void VertexIndex::merge() {
    if (packing.num_words == 1) {
        merge_ranges<1>(chunks_, ranges_, 1, threads);
    } else {
        merge_ranges<0>(chunks_, ranges_, packing.num_words, threads);
    }
    for (KeyRange& range : ranges_) {
        range.first_number = num_lattice_points;
        num_lattice_points += range.count;
    }
    if (num_lattice_points >= max_lattice_points) {
        throw std::length_error("more than 2^31 lattice points: split the points into batches");
    }
}

int64_t VertexIndex::table_size() const { return lookup_table_size(packing, num_lattice_points); }

void VertexIndex::number_chunk(int64_t chunk) {
    const ChunkKeys& list = chunks_[chunk];
    // from positions in the list of the chunk to numbers
    const Memory memory(sizeof(int32_t) * list.count);
    int32_t* numbers = as<int32_t>(memory);
    const uint32_t* positions = list.positions;
    const uint64_t* ranks = list.keys;
    for (size_t range = 0; range < ranges_.size(); ++range) {
        const int64_t first = ranges_[range].first_number;
        for (int64_t i = list.starts[range]; i < list.starts[range + 1]; ++i) {
            numbers[positions[i]] = int32_t(first + int64_t(ranks[i * packing.num_words]));
        }
    }
    const int64_t begin = chunk * chunk_points * num_corners;
    const int64_t end = std::min((chunk + 1) * chunk_points, num_points) * num_corners;
    for (int64_t i = begin; i < end; ++i) vertices[i] = numbers[vertices[i]];
}

void VertexIndex::finish(int32_t* keys, int64_t* table) {
    const int64_t words = packing.num_words;
    uint64_t* packed = begin_lookup_table(packing, num_lattice_points, table);
    if (is_by_cells()) {
        write_packed_keys(grid, packing, packed, threads);
        return parallel_ranges(threads, num_lattice_points, unpacked_per_task, [&](int64_t begin, int64_t end, int) {
            unpack_keys(packing, packed + begin * words, end - begin, keys + begin * packing.num_columns);
        });
    }
    parallel_for(threads, int64_t(ranges_.size()), [&](int64_t p, int) {
        const KeyRange& range = ranges_[p];
        if (range.count == 0) return;
        std::memcpy(packed + range.first_number * words, range.keys.data(), sizeof(uint64_t) * range.count * words);
        unpack_keys(packing, as<uint64_t>(range.keys), range.count, keys + range.first_number * packing.num_columns);
    });
    parallel_for(threads, num_chunks, [&](int64_t chunk, int) { number_chunk(chunk); });
}

}  // namespace permutohedral
