#include "index/vertex_index.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t min_chunk_rows = 2048, max_chunk_rows = 65536;
// keys per part: small enough to stay in a level-two cache
constexpr int64_t part_keys = 16384;
constexpr int64_t max_parts = 256;
constexpr int bucket_bits = 14;
constexpr int64_t max_lattice_points = int64_t{1} << 31;
constexpr int64_t row_block = 8192;

inline uint64_t bucket_of(const uint64_t* key) { return key[0] >> (64 - bucket_bits); }

// Distinct keys, numbered in the order of insertion. Open addressing by linear probing; a slot is a number plus one.
template <int W>
class KeySet {
public:
    explicit KeySet(int64_t words) : words_(W > 0 ? W : words), slots_(256, 0) {}

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

    int64_t words_, count_ = 0;
    std::vector<uint32_t> slots_;
    std::vector<uint64_t> keys_;
};

struct NumberedKey {
    uint64_t key;
    uint32_t number;
};

// Sorts by key, eight bits at a time from the lowest that differ.
void radix_sort(std::vector<NumberedKey>& items, std::vector<NumberedKey>& scratch) {
    uint64_t all = ~uint64_t{0}, any = 0;
    for (const NumberedKey& item : items) {
        all &= item.key;
        any |= item.key;
    }
    scratch.resize(items.size());
    for (int shift = 0; shift < 64; shift += 8) {
        if ((((any & ~all) >> shift) & 0xff) == 0) continue;
        uint32_t starts[257] = {0};
        for (const NumberedKey& item : items) ++starts[((item.key >> shift) & 0xff) + 1];
        for (int i = 0; i < 256; ++i) starts[i + 1] += starts[i];
        for (const NumberedKey& item : items) scratch[starts[(item.key >> shift) & 0xff]++] = item;
        items.swap(scratch);
    }
}

// What one thread needs to merge parts.
template <int W>
struct alignas(thread_alignment) Merger {
    explicit Merger(int64_t words) : words(words), set(words) {}

    // The numbers of the distinct keys, in the order of the keys.
    const std::vector<NumberedKey>& sorted() {
        items.resize(set.count());
        for (int64_t i = 0; i < set.count(); ++i) items[i] = {set.keys()[i * words], uint32_t(i)};
        if (words == 1) {
            radix_sort(items, scratch);
        } else {
            std::sort(items.begin(), items.end(), [&](const NumberedKey& a, const NumberedKey& b) {
                return less_key<0>(set.keys() + a.number * words, set.keys() + b.number * words, words);
            });
        }
        return items;
    }

    void merge(std::vector<ChunkList>& chunks, int64_t part, Part& out) {
        set.clear();
        for (ChunkList& chunk : chunks) {
            if (chunk.count == 0) continue;
            uint64_t* keys = chunk.keys;
            const int64_t end = chunk.starts[part + 1];
            for (int64_t i = chunk.starts[part]; i < end; ++i) keys[i * words] = set.insert(keys + i * words);
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
        for (ChunkList& chunk : chunks) {
            if (chunk.count == 0) continue;
            uint64_t* numbers = chunk.keys;
            const int64_t end = chunk.starts[part + 1];
            for (int64_t i = chunk.starts[part]; i < end; ++i) numbers[i * words] = ranks[numbers[i * words]];
        }
    }

    int64_t words;
    KeySet<W> set;
    std::vector<NumberedKey> items, scratch;
    std::vector<uint32_t> ranks;
};

template <int W>
void merge_parts(std::vector<ChunkList>& chunks, std::vector<Part>& parts, int64_t words, int threads) {
    std::vector<std::vector<Merger<W>>> mergers(threads);
    parallel_for(threads, int64_t(parts.size()), [&](int64_t part, int worker) {
        if (mergers[worker].empty()) mergers[worker].emplace_back(words);
        mergers[worker][0].merge(chunks, part, parts[part]);
    });
}

}  // namespace

Index::Index(int64_t rows, int64_t corners, int32_t* vertices, int threads)
    : rows(rows), corners(corners), vertices(vertices), threads(threads) {
    chunk_rows = std::clamp(rows / (4 * threads), min_chunk_rows, max_chunk_rows);
    num_chunks = divide_up(rows, chunk_rows);
    chunks_.resize(num_chunks);
}

uint32_t* Index::reorder() {
    order_ = Memory(sizeof(uint32_t) * rows);
    return as<uint32_t>(order_);
}

void Index::choose_parts(const uint64_t* sample, int64_t count) {
    const int64_t wanted = std::clamp<int64_t>(rows * corners / part_keys, 1, max_parts);
    std::vector<int64_t> below(size_t{1} << bucket_bits, 0);
    for (int64_t i = 0; i < count; ++i) ++below[bucket_of(sample + i * packing.words)];
    part_of_bucket_.resize(below.size());
    int64_t seen = 0;
    for (size_t bucket = 0; bucket < below.size(); ++bucket) {
        part_of_bucket_[bucket] = uint8_t(std::min(seen * wanted / std::max<int64_t>(count, 1), wanted - 1));
        seen += below[bucket];
    }
    parts_.resize(wanted);
}

void Index::store_chunk(int64_t chunk, const uint64_t* keys, int64_t count) {
    ChunkList& list = chunks_[chunk];
    const int64_t words = packing.words, parts = int64_t(parts_.size());
    list.count = count;
    list.keys = static_cast<uint64_t*>(arena_.take(sizeof(uint64_t) * count * words));
    list.positions = static_cast<uint32_t*>(arena_.take(sizeof(uint32_t) * count));
    list.starts.assign(parts + 1, 0);
    for (int64_t i = 0; i < count; ++i) ++list.starts[part_of_bucket_[bucket_of(keys + i * words)] + 1];
    for (int64_t p = 0; p < parts; ++p) list.starts[p + 1] += list.starts[p];
    std::vector<uint32_t> next(list.starts.begin(), list.starts.end() - 1);
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t place = next[part_of_bucket_[bucket_of(keys + i * words)]]++;
        list.positions[place] = uint32_t(i);
        for (int64_t w = 0; w < words; ++w) list.keys[place * words + w] = keys[i * words + w];
    }
}

void Index::merge() {
    if (packing.words == 1) {
        merge_parts<1>(chunks_, parts_, 1, threads);
    } else {
        merge_parts<0>(chunks_, parts_, packing.words, threads);
    }
    for (Part& part : parts_) {
        part.base = num_lattice_points;
        num_lattice_points += part.count;
    }
    if (num_lattice_points >= max_lattice_points) {
        throw std::length_error("more than 2^31 lattice points: split the points into batches");
    }
}

int64_t Index::table_size() const {
    return packing_size(packing.columns) + 1 + (num_lattice_points + table_padding) * packing.words;
}

void Index::finish_chunk(int64_t chunk) {
    const ChunkList& list = chunks_[chunk];
    // from positions in the chunk's list to ids
    const Memory memory(sizeof(int32_t) * list.count);
    int32_t* ids = as<int32_t>(memory);
    const uint32_t* positions = list.positions;
    const uint64_t* ranks = list.keys;
    for (size_t part = 0; part < parts_.size(); ++part) {
        const int64_t base = parts_[part].base;
        for (int64_t i = list.starts[part]; i < list.starts[part + 1]; ++i) {
            ids[positions[i]] = int32_t(base + int64_t(ranks[i * packing.words]));
        }
    }
    const int64_t begin = chunk * chunk_rows * corners;
    const int64_t end = std::min((chunk + 1) * chunk_rows, rows) * corners;
    for (int64_t i = begin; i < end; ++i) vertices[i] = ids[vertices[i]];
}

void Index::finish(int32_t* keys, int64_t* table) {
    const int64_t words = packing.words;
    write_packing(packing, table);
    table[packing_size(packing.columns)] = num_lattice_points;
    uint64_t* packed = reinterpret_cast<uint64_t*>(table + packing_size(packing.columns) + 1);
    std::memset(packed + num_lattice_points * words, 0xff, sizeof(uint64_t) * table_padding * words);
    if (grid.cells > 0) {
        write_packed_keys(grid, packing, packed, threads);
        if (keys == nullptr) return;
        return parallel_ranges(threads, num_lattice_points, row_block, [&](int64_t begin, int64_t end, int) {
            unpack_rows(packing, packed + begin * words, end - begin, keys + begin * packing.columns);
        });
    }
    parallel_for(threads, int64_t(parts_.size()), [&](int64_t p, int) {
        const Part& part = parts_[p];
        if (part.count == 0) return;
        std::memcpy(packed + part.base * words, part.keys.data(), sizeof(uint64_t) * part.count * words);
        if (keys == nullptr) return;
        unpack_rows(packing, as<uint64_t>(part.keys), part.count, keys + part.base * packing.columns);
    });
    parallel_for(threads, num_chunks, [&](int64_t chunk, int) { finish_chunk(chunk); });
}

TableView view_table(const int64_t* data, int64_t size) {
    TableView view{};
    if (!read_packing(data, size, view.packing)) throw std::invalid_argument("not a table of the native backend");
    const int64_t* cursor = data + packing_size(view.packing.columns);
    view.num_lattice_points = *cursor++;
    view.packed = reinterpret_cast<const uint64_t*>(cursor);
    const int64_t* order = cursor + (view.num_lattice_points + table_padding) * view.packing.words;
    view.order = data + size > order ? reinterpret_cast<const uint32_t*>(order) : nullptr;
    return view;
}

namespace {

// The digits of one row, as of find_digits. C is the number of columns if known at compile time, else 0: dividing by a
// constant is much faster.
template <int C>
inline bool row_digits(const int32_t* row, int64_t columns_dynamic, bool lattice, int64_t* digits) {
    const int64_t columns = C > 0 ? C : columns_dynamic;
    bool valid = true;
    for (int64_t column = 0; column < columns; ++column) {
        digits[column] = row[column];
        if (!lattice || column < 2) continue;
        const int64_t difference = int64_t(row[1]) - row[column];
        digits[column] = difference / columns;
        valid &= digits[column] * columns == difference;
    }
    return valid;
}

// Calls function with a small number of columns as a constant, else 0.
template <class Function>
void with_columns(int64_t columns, Function&& function) {
    switch (columns) {
        case 3: return function(std::integral_constant<int, 3>{});
        case 4: return function(std::integral_constant<int, 4>{});
        case 5: return function(std::integral_constant<int, 5>{});
        case 6: return function(std::integral_constant<int, 6>{});
        default: return function(std::integral_constant<int, 0>{});
    }
}

// The range of the digits; false if a row is no vertex of the lattice.
template <int C>
bool measure_rows(const int32_t* keys, int64_t rows, int64_t columns_dynamic, bool lattice, DigitRange& range) {
    const int64_t columns = C > 0 ? C : columns_dynamic;
    int64_t digits[max_columns];
    bool valid = true;
    for (int64_t i = 0; i < rows && valid; ++i) {
        valid = row_digits<C>(keys + i * columns, columns, lattice, digits);
        for (int64_t column = 0; column < columns; ++column) {
            range.low[column] = std::min(i == 0 ? digits[column] : range.low[column], digits[column]);
            range.high[column] = std::max(i == 0 ? digits[column] : range.high[column], digits[column]);
        }
    }
    return valid;
}

// Packs a row whose digits were measured.
template <int C>
inline void pack_measured(const Packing& packing, const int32_t* row, uint64_t* key) {
    int64_t digits[max_columns];
    const int64_t columns = C > 0 ? C : packing.columns;
    row_digits<C>(row, columns, packing.lattice != 0, digits);
    for (int64_t w = 0; w < packing.words; ++w) key[w] = 0;
    for (int64_t column = 0; column < columns; ++column) {
        key[packing.word[column]] |= uint64_t(digits[column] - packing.low[column]) << packing.shift[column];
    }
}

bool measure_in_parallel(const int32_t* keys, const Index& index, int64_t columns, bool lattice, DigitRange& range) {
    const int64_t blocks = divide_up(index.rows, row_block);
    std::vector<DigitRange> ranges(blocks);
    std::vector<uint8_t> valid(blocks);
    parallel_for(index.threads, blocks, [&](int64_t b, int) {
        const int64_t begin = b * row_block, count = std::min(row_block, index.rows - begin);
        with_columns(columns, [&](auto constant) {
            constexpr int C = decltype(constant)::value;
            valid[b] = measure_rows<C>(keys + begin * columns, count, columns, lattice, ranges[b]);
        });
    });
    range = ranges[0];
    for (int64_t b = 1; b < blocks; ++b) {
        for (int64_t column = 0; column < columns; ++column) {
            range.low[column] = std::min(range.low[column], ranges[b].low[column]);
            range.high[column] = std::max(range.high[column], ranges[b].high[column]);
        }
    }
    return std::all_of(valid.begin(), valid.end(), [](uint8_t v) { return v != 0; });
}

}  // namespace

void index_rows(Index& index, const int32_t* keys, int64_t columns) {
    DigitRange range;
    const bool lattice = measure_in_parallel(keys, index, columns, true, range);
    if (!lattice) measure_in_parallel(keys, index, columns, false, range);
    index.packing = plan_packing(columns, lattice, range, Reduction{});
    const int64_t words = index.packing.words;
    constexpr int64_t sample_size = 4096;
    const int64_t stride = std::max<int64_t>(1, index.rows / sample_size), count = divide_up(index.rows, stride);
    std::vector<uint64_t> sample(count * words);
    for (int64_t i = 0; i < count; ++i) {
        pack_measured<0>(index.packing, keys + i * stride * columns, sample.data() + i * words);
    }
    index.choose_parts(sample.data(), count);
    parallel_for(index.threads, index.num_chunks, [&](int64_t chunk, int) {
        const int64_t begin = chunk * index.chunk_rows;
        const int64_t rows = std::min(index.chunk_rows, index.rows - begin);
        const Memory packed(sizeof(uint64_t) * rows * words);
        with_columns(columns, [&](auto constant) {
            for (int64_t i = 0; i < rows; ++i) {
                const int32_t* row = keys + (begin + i) * columns;
                pack_measured<decltype(constant)::value>(index.packing, row, as<uint64_t>(packed) + i * words);
                index.vertices[begin + i] = int32_t(i);
            }
        });
        index.store_chunk(chunk, as<uint64_t>(packed), rows);
    });
    index.merge();
}

}  // namespace permutohedral
