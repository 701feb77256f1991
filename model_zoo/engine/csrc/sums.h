/* What blocks.c adds up in one go, and its right factors' columns. */
#ifndef PET_SUMS_H
#define PET_SUMS_H

#include "gemm.h"
#include "pool.h"
#include "product.h"

enum {
    PANEL = WIDE * LANES,
    CHUNK = 4 * TALL,  /* rows of a result in float32 that a thread takes at once */
    MOST_DEPTH = 1536, /* of a block's rows: 384 KB, which the second caches of servers hold, and some rows besides */
};

/* Some of a term's depth. */
struct part {
    struct numbers a;
    struct matrix b;
    int64_t b_first;      /* where its depth begins in b */
    int64_t a_row, depth; /* how far rows are apart, and how many of b there are */
    int a_turned;         /* whether a is (depth, rows), for sums of bfloat16 by vectors alone */
    int b_turned;         /* whether b is (columns, depth) */
    const uint16_t *rounded;     /* a in bfloat16, for sums of these */
};

/* What is added up in one go for a result, no deeper than MOST_DEPTH. */
struct sum {
    struct numbers c, before; /* where it goes, and what it is added to: the same, or, for a c in bfloat16, float32 */
    int64_t columns, panel, depth;
    int add, bf16, count;
    struct part parts[MOST_TERMS];
};

/* Computes some sums of as many rows, all in bfloat16 or none. Gives 0, or 1 when there is no memory. */
int add_up(struct sum *sums, int count, int64_t rows);

/* Some rows of a part's columns. */
static inline void copy_part(const struct part *part, int64_t k, int64_t depth, int64_t column, int64_t columns, int64_t panel,
                      float *to) {
    int64_t first = part->b_first + k;
    if (part->b_turned)
        BY_STORAGE(part->b.storage, turn_stored, part->b, column, first, columns, depth, to, panel)
    else
        BY_STORAGE(part->b.storage, copy_stored, part->b, first, column, columns, depth, to, panel)
}

#endif
