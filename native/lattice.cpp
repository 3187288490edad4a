#include "lattice.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "parallel.hpp"

namespace permutohedral {
namespace {

constexpr uint64_t empty_slot = ~uint64_t{0};
constexpr uint32_t is_id = uint32_t{1} << 31;
constexpr int64_t max_positions = int64_t{1} << 31;
constexpr int64_t min_chunk_rows = 2048, max_chunk_rows = 65536;
// keys per part: small enough for a part's slots to stay in a level-two cache
constexpr int64_t part_keys = 16384;
constexpr int max_part_bits = 8;
constexpr int64_t position_block = 65536;

void clear_slots(PartTable& table, int64_t capacity, int64_t stride) {
    table.capacity = capacity;
    table.slots = Memory(sizeof(uint64_t) * capacity * stride);
    std::memset(table.slots.data(), 0xff, table.slots.size());
}

template <int W>
void grow(PartTable& table, int64_t words) {
    const int64_t stride = words + 1, old_capacity = table.capacity;
    const Memory old = std::move(table.slots);
    table.slots = Memory();
    clear_slots(table, 2 * old_capacity, stride);
    const uint64_t mask = table.capacity - 1;
    uint64_t* slots = as<uint64_t>(table.slots);
    for (int64_t i = 0; i < old_capacity; ++i) {
        const uint64_t* slot = as<uint64_t>(old) + i * stride;
        if (slot[words] == empty_slot) continue;
        uint64_t place = hash_key<W>(slot, words) & mask;
        while (slots[place * stride + words] != empty_slot) place = (place + 1) & mask;
        std::memcpy(slots + place * stride, slot, sizeof(uint64_t) * stride);
    }
}

// The first position of `key`, which is `position` if the key is new.
template <int W>
inline uint64_t insert(PartTable& table, const uint64_t* key, uint64_t position, int64_t words) {
    if (2 * table.count >= table.capacity) grow<W>(table, words);
    const int64_t stride = (W > 0 ? W : words) + 1;
    const uint64_t mask = table.capacity - 1;
    uint64_t* slots = as<uint64_t>(table.slots);
    for (uint64_t place = hash_key<W>(key, words) & mask;; place = (place + 1) & mask) {
        uint64_t* slot = slots + place * stride;
        if (slot[stride - 1] == empty_slot) {
            std::memcpy(slot, key, sizeof(uint64_t) * (stride - 1));
            slot[stride - 1] = position;
            ++table.count;
            return position;
        }
        if (same_key<W>(slot, key, words)) return slot[stride - 1];
    }
}

template <int W>
void merge_lists(const std::vector<ChunkList>& chunks, int64_t part, int64_t words, PartTable& table,
                 uint32_t* firsts) {
    clear_slots(table, 64, words + 1);
    for (const ChunkList& chunk : chunks) {
        const uint64_t* keys = as<uint64_t>(chunk.keys);
        const uint32_t* positions = as<uint32_t>(chunk.positions);
        if (chunk.count == 0) continue;
        for (uint32_t i = chunk.starts[part]; i < chunk.starts[part + 1]; ++i) {
            const uint64_t position = chunk.base + positions[i];
            firsts[position] = uint32_t(insert<W>(table, keys + i * (W > 0 ? W : words), position, words));
        }
    }
}

}  // namespace

Index::Index(int64_t rows, int64_t corners, int32_t* vertices, int threads)
    : rows(rows), corners(corners), vertices(vertices), threads(threads) {
    chunk_rows = std::clamp(rows / (8 * threads), min_chunk_rows, max_chunk_rows);
    num_chunks = divide_up(rows, chunk_rows);
    chunks_.resize(num_chunks);
    part_bits_ = 0;
    while (part_bits_ < max_part_bits && (rows * corners) >> part_bits_ > part_keys) ++part_bits_;
    parts_.resize(size_t{1} << part_bits_);
}

void Index::store_chunk(int64_t chunk, const uint64_t* keys, int64_t count) {
    ChunkList& list = chunks_[chunk];
    const int64_t words = packing.words, parts = int64_t{1} << part_bits_;
    list.count = count;
    list.keys = Memory(sizeof(uint64_t) * count * words);
    list.positions = Memory(sizeof(uint32_t) * count);
    list.starts.assign(parts + 1, 0);
    const Memory part_memory(sizeof(uint8_t) * count);
    uint8_t* part = as<uint8_t>(part_memory);
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t hash = words == 1 ? hash_key<1>(keys + i, 1) : hash_key<0>(keys + i * words, words);
        part[i] = uint8_t(part_of(hash, part_bits_));
        ++list.starts[part[i] + 1];
    }
    for (int64_t p = 0; p < parts; ++p) list.starts[p + 1] += list.starts[p];
    std::vector<uint32_t> next(list.starts.begin(), list.starts.end() - 1);
    uint64_t* grouped = as<uint64_t>(list.keys);
    uint32_t* positions = as<uint32_t>(list.positions);
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t place = next[part[i]]++;
        positions[place] = uint32_t(i);
        for (int64_t w = 0; w < words; ++w) grouped[place * words + w] = keys[i * words + w];
    }
}

void Index::merge_part(int64_t part) {
    uint32_t* firsts = as<uint32_t>(firsts_);
    if (packing.words == 1) {
        merge_lists<1>(chunks_, part, 1, parts_[part], firsts);
    } else {
        merge_lists<0>(chunks_, part, packing.words, parts_[part], firsts);
    }
}

// Turns every first position into an id, flagged by `is_id`; the others keep pointing at their first position.
void Index::number_firsts() {
    uint32_t* firsts = as<uint32_t>(firsts_);
    std::vector<int64_t> ids(divide_up(num_positions_, position_block) + 1, 0);
    parallel_ranges(threads, num_positions_, position_block, [&](int64_t begin, int64_t end, int) {
        int64_t count = 0;
        for (int64_t i = begin; i < end; ++i) count += firsts[i] == uint32_t(i);
        ids[begin / position_block + 1] = count;
    });
    for (size_t b = 1; b < ids.size(); ++b) ids[b] += ids[b - 1];
    parallel_ranges(threads, num_positions_, position_block, [&](int64_t begin, int64_t end, int) {
        uint32_t id = uint32_t(ids[begin / position_block]);
        for (int64_t i = begin; i < end; ++i) {
            if (firsts[i] == uint32_t(i)) firsts[i] = is_id | id++;
        }
    });
    num_lattice_points = ids.back();
}

void Index::merge() {
    for (ChunkList& chunk : chunks_) {
        chunk.base = num_positions_;
        num_positions_ += chunk.count;
    }
    if (num_positions_ >= max_positions) throw std::length_error("more than 2^31 keys: split the points into batches");
    firsts_ = Memory(sizeof(uint32_t) * num_positions_);
    parallel_for(threads, int64_t(parts_.size()), [&](int64_t part, int) { merge_part(part); });
    number_firsts();
}

int64_t Index::table_size() const {
    int64_t slots = 0;
    for (const PartTable& part : parts_) slots += part.capacity;
    return packing_size(packing.columns) + 2 + int64_t(parts_.size()) + 1 + num_lattice_points * packing.words + slots;
}

void Index::finish_chunk(int64_t chunk, int32_t* keys, uint64_t* packed) {
    ChunkList& list = chunks_[chunk];
    const uint32_t* firsts = as<uint32_t>(firsts_);
    const uint32_t* own = firsts + list.base;
    const int64_t words = packing.words;
    for (int64_t i = 0; i < list.count; ++i) {
        const uint32_t first = own[as<uint32_t>(list.positions)[i]];
        if ((first & is_id) == 0) continue;
        const int64_t id = first ^ is_id;
        const uint64_t* key = as<uint64_t>(list.keys) + i * words;
        std::memcpy(packed + id * words, key, sizeof(uint64_t) * words);
        unpack_row(packing, key, keys + id * packing.columns);
    }
    list.keys = Memory();
    // from positions in the chunk's list to ids
    const Memory ids_memory(sizeof(int32_t) * list.count);
    int32_t* ids = as<int32_t>(ids_memory);
    for (int64_t i = 0; i < list.count; ++i) {
        const uint32_t first = own[i];
        ids[i] = int32_t(((first & is_id) != 0 ? first : firsts[first]) ^ is_id);
    }
    const int64_t begin = chunk * chunk_rows * corners;
    const int64_t end = std::min((chunk + 1) * chunk_rows, rows) * corners;
    for (int64_t i = begin; i < end; ++i) vertices[i] = ids[vertices[i]];
}

void Index::finish_part(int64_t part, uint64_t* slots) const {
    const PartTable& table = parts_[part];
    const uint32_t* firsts = as<uint32_t>(firsts_);
    const int64_t words = packing.words;
    for (int64_t i = 0; i < table.capacity; ++i) {
        const uint64_t* slot = as<uint64_t>(table.slots) + i * (words + 1);
        slots[i] = 0;
        if (slot[words] == empty_slot) continue;
        const uint64_t hash = words == 1 ? hash_key<1>(slot, 1) : hash_key<0>(slot, words);
        slots[i] = tag_of(hash) | ((firsts[slot[words]] ^ is_id) + 1);
    }
}

void Index::finish(int32_t* keys, int64_t* table) {
    const int64_t parts = int64_t(parts_.size());
    write_packing(packing, table);
    int64_t* cursor = table + packing_size(packing.columns);
    *cursor++ = num_lattice_points;
    *cursor++ = part_bits_;
    int64_t* bases = cursor;
    bases[0] = 0;
    for (int64_t part = 0; part < parts; ++part) bases[part + 1] = bases[part] + parts_[part].capacity;
    uint64_t* packed = reinterpret_cast<uint64_t*>(bases + parts + 1);
    uint64_t* slots = packed + num_lattice_points * packing.words;
    parallel_for(threads, parts, [&](int64_t part, int) { finish_part(part, slots + bases[part]); });
    parts_.clear();
    parallel_for(threads, num_chunks, [&](int64_t chunk, int) { finish_chunk(chunk, keys, packed); });
    chunks_.clear();
    firsts_ = Memory();
}

TableView view_table(const int64_t* data, int64_t size) {
    TableView view{};
    if (!read_packing(data, size, view.packing)) throw std::invalid_argument("not a table of the native backend");
    const int64_t* cursor = data + packing_size(view.packing.columns);
    view.num_lattice_points = *cursor++;
    view.part_bits = int(*cursor++);
    view.bases = cursor;
    view.packed = reinterpret_cast<const uint64_t*>(cursor + (int64_t{1} << view.part_bits) + 1);
    view.slots = view.packed + view.num_lattice_points * view.packing.words;
    return view;
}

}  // namespace permutohedral
