#include <algorithm>
#include <vector>

#include "check.hpp"
#include "index/key_packing.hpp"
#include "lattice_keys.hpp"

using namespace permutohedral;

namespace {

using Packed = std::vector<uint64_t>;

Packed pack(const KeyPacking& packing, const std::vector<int64_t>& key) {
    Packed packed(packing.num_words);
    CHECK(pack_key(packing, key.data(), packed.data()));
    return packed;
}

// Keys come back, distinct ones stay distinct, and packing is affine.
void test_round_trip(const KeyPacking& packing, const std::vector<std::vector<int64_t>>& keys) {
    Packed origin(packing.num_words), linear(packing.num_words);
    pack_origin(packing, origin.data());
    for (const std::vector<int64_t>& key : keys) {
        const Packed packed = pack(packing, key);
        std::vector<int32_t> unpacked(key.size());
        unpack_keys(packing, packed.data(), 1, unpacked.data());
        CHECK(std::equal(key.begin(), key.end(), unpacked.begin()));
        pack_linear(packing, key.data(), linear.data());
        for (int64_t w = 0; w < packing.num_words; ++w) CHECK(origin[w] + linear[w] == packed[w]);
        const Packed first = pack(packing, keys[0]);
        CHECK(same_key<0>(first.data(), packed.data(), packing.num_words) == (key == keys[0]));
        CHECK(less_key<0>(first.data(), packed.data(), packing.num_words) == (first < packed));
    }
}

// Adding an offset to a packed key gives the packed key of the sum, or one that no key has.
void test_offsets(const KeyPacking& packing, const std::vector<std::vector<int64_t>>& keys) {
    const int64_t d = packing.num_columns - 1;
    std::vector<int32_t> offset(d);
    Packed addend(packing.num_words), direct(packing.num_words);
    for (int64_t axis = 0; axis <= d; ++axis) {
        for (int64_t i = 0; i < d; ++i) offset[i] = i == axis ? int32_t(-d) : 1;
        CHECK(pack_offset(packing, offset.data(), addend.data()));
        for (const std::vector<int64_t>& key : keys) {
            std::vector<int64_t> sum = key;
            for (int64_t i = 0; i < d; ++i) sum[i + 1] += offset[i];
            Packed moved = pack(packing, key);
            for (int64_t w = 0; w < packing.num_words; ++w) moved[w] += addend[w];
            // one step stays within the margin
            CHECK(pack_key(packing, sum.data(), direct.data()));
            CHECK(moved == direct);
        }
    }
    std::fill(offset.begin(), offset.end(), int32_t((d + 1) * 1000000));
    CHECK(!pack_offset(packing, offset.data(), addend.data()));
}

void test_written_packing(const KeyPacking& packing, const std::vector<std::vector<int64_t>>& keys) {
    const int64_t size = packing_size(packing.num_columns);
    std::vector<int64_t> words(size);
    write_packing(packing, words.data());
    KeyPacking read{};
    CHECK(read_packing(words.data(), size, read));
    for (const std::vector<int64_t>& key : keys) CHECK(pack(packing, key) == pack(read, key));
    CHECK(!read_packing(words.data(), size - 1, read));
    words[1] = max_columns + 1;
    CHECK(!read_packing(words.data(), size, read));
    words[1] = packing.num_columns;
    // the tag
    ++words[0];
    CHECK(!read_packing(words.data(), size, read));
}

}  // namespace

void test_key_packing() {
    for (const int64_t d : {1, 2, 3, 5, 6, 8, 9, 40}) {
        for (const int64_t spread : {3, 1000}) {
            const std::vector<std::vector<int64_t>> keys = random_keys(d, 50, spread);
            for (const DigitReduction& reduction : {some_reduction(d), DigitReduction{}}) {
                const DigitRange range = range_of(keys, reduction);
                const KeyPacking packing = plan_packing(d + 1, range, reduction);
                CHECK(d > 3 || packing.num_words == 1);
                CHECK(d < 40 || packing.num_words > 1);
                test_round_trip(packing, keys);
                test_offsets(packing, keys);
                test_written_packing(packing, keys);
            }
        }
    }
}
