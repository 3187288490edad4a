// Runs the test named on the command line.
#include <cstring>

#include "check.hpp"

int main(int argc, char** argv) {
    const struct {
        const char* name;
        void (*run)();
    } tests[] = {
        {"dispatch", test_dispatch},       {"digit_reduction", test_digit_reduction},
        {"key_packing", test_key_packing}, {"cell_grid", test_cell_grid},
        {"memory", test_memory},           {"threads", test_threads},
    };
    for (const auto& test : tests) {
        if (argc == 2 && std::strcmp(argv[1], test.name) == 0) {
            test.run();
            return 0;
        }
    }
    std::fprintf(stderr, "usage: %s TEST\n", argv[0]);
    return 2;
}
