/* Sums of products of bfloat16 factors; see rounded.c. */
#ifndef PET_ROUNDED_H
#define PET_ROUNDED_H

#include "bf16.h"
#include "sums.h"

/* How many numbers a column of the right factors' copies has. */
int64_t rounded_depth(const struct sum *of);

/* Rounds the left factors of some sums of as many rows. Gives 0, or 1 when there is no memory. */
int round_lefts(struct sum *sums, int count, int64_t rows);

/* Some rows of a left factor (depth, rows) as a strip. For vectors each thread makes those that it needs, since what one core
 * has just written is far away for the others; tiles multiply so fast that turning the same rows for each block would count. */
const uint16_t *turned_strip(const struct part *part, int64_t row, int64_t rows, uint16_t *to);

/* The panels of some columns, one behind the other: of each the columns from all parts, one below the other. Where a factor's
 * rows run across, a stretch of them for all panels before the next one: its lines are read as they lie. */
void copy_pairs(const struct sum *of, int64_t column, int64_t columns, uint16_t *to);

/* Up to BF16_ROWS rows of the result by the columns of a block, whose panels lie one behind the other; `room` has room for
 * so much of it, and behind that for as many rows of MOST_DEPTH numbers in bfloat16. */
void some_rounded_rows(const struct sum *of, int64_t first, int64_t last, int64_t row, int64_t rows, const uint16_t *copied,
                       float *room);

#endif
