/* Matrix products of bfloat16 factors with float32 sums: what gemm.c computes with instead of product.h; see bf16.c. */
#ifndef PET_BF16_H
#define PET_BF16_H

#include <stdint.h>

/* What the instructions take at once: pairs along the depth, in vectors of 16 columns; with tiles, 32 of the depth, 16 rows
 * and 16 columns, of which two by two are computed together. */
enum { BF16_DEPTH = 32, BF16_COLUMNS = 16, BF16_ROWS = 32 };

/* The next multiple of BF16_DEPTH: factors are filled up with zeros. */
static inline int64_t up_to_pairs(int64_t depth) { return (depth + BF16_DEPTH - 1) / BF16_DEPTH * BF16_DEPTH; }

/* By what: 0 where this processor has no such instructions, or the compiler does not know them. */
enum { BF16_VECTORS = 1, BF16_TILES = 2 };
int pet_bf16(void);

/* Before the first and after the last product of a thread's piece of work. */
void bf16_begin(void);
void bf16_end(void);

/* Numbers of a strip of BF16_ROWS rows of a left factor: blocks of BF16_DEPTH of the depth, one behind the other, in each of
 * which its rows are. (So a product reads a strip from its beginning to its end. Rows that lie as far apart as a whole
 * row is long would meet in the same few places of the first cache.) */
enum { BF16_STRIP = BF16_ROWS * BF16_DEPTH };

/* Up to BF16_ROWS rows, `row` apart, as a strip. Rounds to the nearest, ties to even; what is missing becomes zeros. */
void bf16_rows(const void *from, int64_t row, int64_t rows, int64_t depth, uint16_t *to);

/* The same of rows that are in bfloat16. */
void bf16_same_rows(const void *from, int64_t row, int64_t rows, int64_t depth, uint16_t *to);

/* (depth, BF16_COLUMNS) numbers, whose lines are `row` apart, as pairs along the depth; `depth` is at most BF16_DEPTH, and
 * what is missing up to it becomes zeros. */
void bf16_pairs(const float *from, int64_t row, int64_t depth, uint16_t *to);

/* The same of up to 2·BF16_COLUMNS columns of numbers that are in bfloat16, so that whole lines of a cache are read: the
 * columns behind the first BF16_COLUMNS go `apart` behind `to`. What is missing becomes zeros. */
void bf16_same_pairs(const uint16_t *from, int64_t row, int64_t depth, int64_t columns, uint16_t *to, int64_t apart);

/* (depth, BF16_COLUMNS) numbers, at most BF16_DEPTH deep, as BF16_COLUMNS rows of a strip: their columns. */
void bf16_columns(const float *from, int64_t row, int64_t depth, uint16_t *to);

/* The same of up to 2·BF16_COLUMNS columns of numbers that are in bfloat16: as many rows, and zeros for those that are missing. */
void bf16_same_columns(const uint16_t *from, int64_t row, int64_t depth, int64_t columns, uint16_t *to);

/* BF16_COLUMNS columns, or fewer, of (columns, depth) numbers in bfloat16, whose rows are `row` apart, as pairs likewise. */
void bf16_turned_pairs(const uint16_t *from, int64_t row, int64_t depth, int64_t columns, uint16_t *to);

/* Two factors, or some of their depth. Behind it both have zeros up to a multiple of BF16_DEPTH. */
struct bf16_factors {
    const uint16_t *a;      /* a strip as bf16_rows makes it, or some of its blocks; or, on vectors, rows where they lie */
    int64_t a_row, a_block; /* how far its rows, and its blocks of BF16_DEPTH, are apart */
    const uint16_t *b;      /* vectors of columns as bf16_pairs makes them, `b_column` apart */
    int64_t b_column, depth;
};

/* The float32 sum of some products, which stays in registers from one to the next. */
struct bf16_part {
    const struct bf16_factors *factors;
    int64_t count, b_first; /* how far behind its `b` each right factor begins */
    float *c;               /* (rows, columns), whose lines are `c_row` apart: the result, or what it is added to */
    int64_t c_row;
    int add;
    uint16_t *low; /* if anywhere, the result goes there in bfloat16; c then holds nothing of use */
    int64_t low_row;
};

/* c = the sum, or c + the sum. Up to BF16_ROWS rows and 4·BF16_COLUMNS columns. */
void bf16_product(int64_t rows, int64_t columns, const struct bf16_part *of);

#endif
