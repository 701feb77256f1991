/* Matrix products of bfloat16 factors with float32 sums: what blocks.c computes with instead of product.h; see bf16.c. */
#ifndef PET_BF16_H
#define PET_BF16_H

#include "numbers.h"

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

/* What follows reads numbers from number `first` on, whose rows are `row` apart, rounds them to the nearest, ties to even,
 * unless they are in bfloat16, and puts zeros where the result is larger than they are. Rows `ahead` of those are fetched. */

/* Up to BF16_ROWS rows as a strip. */
void bf16_rows(struct numbers from, int64_t first, int64_t row, int64_t rows, int64_t depth, uint16_t *to);

/* (depth, columns) numbers as pairs along the depth: at most BF16_DEPTH by 2·BF16_COLUMNS, so that whole lines of a cache are
 * read; the columns behind the first BF16_COLUMNS go `apart` behind `to`, if there are any. */
void bf16_pairs(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, int64_t ahead, uint16_t *to,
                int64_t apart);

/* (depth, columns) numbers, at most BF16_DEPTH by BF16_ROWS, as a block of a strip whose rows these columns are. */
void bf16_columns(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, uint16_t *to);

/* How far the rows of a block, and the pairs of a row, are apart: row by row; or as in blocks of bf16_columns, where nothing has
 * to be turned for vectors: all rows' first pairs come first. */
struct bf16_steps {
    int64_t row, pair;
};
static const struct bf16_steps bf16_by_rows = {BF16_DEPTH, 2};
struct bf16_steps bf16_turned(void);

/* (columns, depth) numbers, at most BF16_COLUMNS by BF16_DEPTH, as pairs along the depth. */
void bf16_turned_pairs(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, int64_t ahead, uint16_t *to);

/* Of some rows in 4 bits BF16_DEPTH numbers each, from number `first` of the first one on, which begin at multiples of that: what
 * the sixteen codes of a block stand for is rounded, and looked up. For a matrix that is `aligned`. */
void bf16_codes(const struct matrix *of, int64_t first, int64_t rows, uint16_t *to);

/* Two factors, or some of their depth. Behind it both have zeros up to a multiple of BF16_DEPTH. */
struct bf16_factors {
    const uint16_t *a;      /* a strip as bf16_rows makes it, or some of its blocks; or, on vectors, rows where they lie */
    int64_t a_row, a_pair, a_block; /* how far its rows, its pairs, and its blocks of BF16_DEPTH, are apart */
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
