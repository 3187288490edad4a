// A test is a function that calls CHECK; the first check that fails ends the program with its place.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                \
        }                                                                                \
    } while (false)

// by file
void test_dispatch();
void test_digit_reduction();
void test_key_packing();
void test_cell_grid();
void test_memory();
void test_threads();
