#include <initializer_list>

#include "check.hpp"
#include "runtime/dispatch.hpp"

using namespace permutohedral;

void test_dispatch() {
    auto chosen = [](int64_t number) {
        return dispatch<1, 2, 3, 8, 0>(number, [](auto constant) { return decltype(constant)::value; });
    };
    for (const int number : {1, 2, 3, 8}) CHECK(chosen(number) == number);
    for (const int number : {0, 4, 7, 9, -1}) CHECK(chosen(number) == 0);
    // the last of the list takes all others
    CHECK((dispatch<1, 16>(5, [](auto constant) { return decltype(constant)::value; }) == 16));
    CHECK(Extent<3>(7) == 3);
    CHECK(Extent<0>(7) == 7);
    CHECK((capacity_for<3, 256> == 3) && (capacity_for<0, 256> == 256));
}
