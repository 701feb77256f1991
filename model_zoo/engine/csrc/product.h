/* Small matrix products whose factors are in the processor's caches. */
#ifndef PET_PRODUCT_H
#define PET_PRODUCT_H

#include "numbers.h"

enum { TALL = 6 };

/* `tall` rows by `wide` vectors of C = A·B, or of C + A·B, the sums in registers. A's element (i, k) is at
 * a[i·down + k·along]; B is in bfloat16 where it is `low`. */
INLINE void product_tile(int low, int tall, int wide, float *c, int64_t c_row, const float *a, int64_t down, int64_t along,
                         const void *b, int64_t b_row, int64_t depth, int add) {
    struct numbers from = {(void *)b, low};
    floats sums[TALL][WIDE];
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) sums[i][j] = add ? load(c + i * c_row + j * LANES) : (floats){0};
    /* unrolled: where two threads share a core, it is instructions of which there are too few in a cycle */
    UNROLL_WHERE_IT_FITS
    for (int64_t k = 0; k < depth; k++) {
        floats right[WIDE];
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) right[j] = take(from, k * b_row + j * LANES, LANES);
#pragma GCC unroll 8
        for (int i = 0; i < tall; i++) {
            float left = a[i * down + k * along];
#pragma GCC unroll 8
            for (int j = 0; j < wide; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) store(c + i * c_row + j * LANES, sums[i][j]);
}

/* The last columns, fewer than a vector holds. */
INLINE void product_rest(int low, int64_t rows, int64_t columns, float *c, int64_t c_row, const float *a, int64_t down,
                         int64_t along, const void *b, int64_t b_row, int64_t depth, int add) {
    struct numbers from = {(void *)b, low};
    for (int64_t i = 0; i < rows; i++) {
        float sums[LANES] = {0};
        for (int64_t k = 0; k < depth; k++) {
            float left = a[i * down + k * along], room[LANES];
            const float *right = widened(from, k * b_row, columns, room);
            for (int64_t j = 0; j < columns; j++) sums[j] += left * right[j];
        }
        for (int64_t j = 0; j < columns; j++) c[i * c_row + j] = sums[j] + (add ? c[i * c_row + j] : 0.0f);
    }
}

INLINE void product_tiles(int low, int64_t rows, int64_t columns, float *c, int64_t c_row, const float *a, int64_t down,
                          int64_t along, const void *b, int64_t b_row, int64_t depth, int add) {
    struct numbers from = {(void *)b, low};
#define TILE(tall, wide) \
    product_tile(low, tall, wide, c + i * c_row + j, c_row, a + i * down, down, along, place_of(from, j), b_row, depth, add)
#define TILES(wide)                                           \
    do {                                                      \
        int64_t i = 0;                                        \
        for (; i + TALL <= rows; i += TALL) TILE(TALL, wide); \
        for (; i + 2 <= rows; i += 2) TILE(2, wide);          \
        for (; i < rows; i++) TILE(1, wide);                  \
        j += wide * LANES;                                    \
    } while (0)
    int64_t j = 0;
    while (j + WIDE * LANES <= columns) TILES(WIDE);
    if (WIDE > 3 && j + 3 * LANES <= columns) TILES(3);
    if (WIDE > 2 && j + 2 * LANES <= columns) TILES(2);
    if (j + LANES <= columns) TILES(1);
#undef TILES
#undef TILE
    if (j < columns)
        product_rest(low, rows, columns - j, c + j, c_row, a, down, along, place_of(from, j), b_row, depth, add);
}

/* C (rows, columns) = A·B, or C + A·B, for A (rows, depth) and B (depth, columns). */
static inline void product(int64_t rows, int64_t columns, float *c, int64_t c_row, const float *a, int64_t a_row, const float *b,
                    int64_t b_row, int64_t depth, int add) {
    product_tiles(0, rows, columns, c, c_row, a, a_row, 1, b, b_row, depth, add);
}

/* The same for Aᵀ (depth, rows). Each of the two knows one of the distances in A, which saves counting addresses. */
static inline void product_turned(int64_t rows, int64_t columns, float *c, int64_t c_row, const float *a, int64_t a_row,
                                  const void *b, int64_t b_row, int64_t depth, int add) {
    product_tiles(0, rows, columns, c, c_row, a, 1, a_row, b, b_row, depth, add);
}

/* And for B in bfloat16. */
static inline void product_turned_low(int64_t rows, int64_t columns, float *c, int64_t c_row, const float *a, int64_t a_row,
                                      const void *b, int64_t b_row, int64_t depth, int add) {
    product_tiles(1, rows, columns, c, c_row, a, 1, a_row, b, b_row, depth, add);
}

#endif
