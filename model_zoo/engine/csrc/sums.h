/* What gemm.c adds up in one go, and its right factors' columns. */
#ifndef PET_SUMS_H
#define PET_SUMS_H

#include "gemm.h"
#include "vectors.h"

enum { PANEL = WIDE * LANES };

/* Some of a term's depth. */
struct part {
    const float *a, *b;
    int64_t a_row, b_row, depth; /* how far rows are apart, and how many of b there are */
    int b_turned;                /* whether b is (columns, depth) */
    const uint16_t *rounded;     /* a in bfloat16, for sums of these */
};

/* What is added up in one go for a result, no deeper than MOST_DEPTH. */
struct sum {
    float *c;
    int64_t columns, panel, depth;
    int add, bf16, count;
    struct part parts[MOST_TERMS];
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Some rows of a part's columns. */
static inline void copy_part(const struct part *part, int64_t k, int64_t depth, int64_t column, int64_t columns, int64_t panel,
                      float *to) {
    if (part->b_turned) {
        turn(part->b + column * part->b_row + k, part->b_row, columns, depth, to, panel);
        return;
    }
    for (const float *from = part->b + k * part->b_row + column; depth > 0; depth--, from += part->b_row, to += panel)
        for (int64_t j = 0; j < panel; j += LANES)
            store(to + j, j + LANES <= columns ? load(from + j)
                          : j < columns        ? load_some(from + j, columns - j)
                                               : (floats){0});
}

#endif
