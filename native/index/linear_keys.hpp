// Keys of simplices by linear arithmetic.
#pragma once

#include "index/key_packing.hpp"
#include "runtime/memory.hpp"
#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// The packed key of the first corner as an affine function of the SimplexLanes::cell, and what each step to the next
// corner adds. D is the dimension and W the number of words if known at compile time, else 0.
template <int D, int W>
struct LinearKeys {
    Extent<D> d;
    Extent<W> num_words;
    Memory memory;
    uint64_t* constant;  // [num_words]
    uint64_t* item;      // [num_words], times the batch item
    uint64_t* cell;      // [d, num_words], times cell i
    uint64_t* step;      // [d + 1, num_words], from a corner to the next, which is lower by d+1 along coordinate i

    // Of keys packed by a KeyPacking, or by a CellGrid.
    template <class Packing>
    explicit LinearKeys(const Packing& packing)
        : d(packing.num_columns - 1),
          num_words(packing.num_words),
          memory(sizeof(uint64_t) * num_words * (2 * d + 3)),
          constant(as<uint64_t>(memory)),
          item(constant + num_words),
          cell(item + num_words),
          step(cell + d * num_words) {
        int64_t key[max_columns] = {1};
        pack_origin(packing, constant);
        pack_linear(packing, key, item);
        key[0] = 0;
        for (int64_t i = 0; i < d; ++i) {
            key[i + 1] = d + 1;
            pack_linear(packing, key, cell + i * num_words);
            key[i + 1] = 0;
        }
        for (int64_t i = 0; i <= d; ++i) {
            for (int64_t j = 0; j < d; ++j) key[j + 1] = i == j ? -d : 1;
            pack_linear(packing, key, step + i * num_words);
        }
    }
};

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
