/* Matrix products of few rows; see few_rows.c. */
#ifndef PET_FEW_ROWS_H
#define PET_FEW_ROWS_H

#include <stdint.h>

#include "storage.h"

/* Up to how many rows these are faster than those of gemm.c; and of a factor in 8 or 4 bits, which gemm.c would widen. (One in
 * 16 bits gives the bits of one in 32.) */
enum { FEW_ROWS = 12, FEW_PACKED_ROWS = 24 };

enum { MOST_TOGETHER = 8 };

/* a (rows, depth), b (columns, depth) → c = a·bᵀ where b is turned, or b (depth, columns) → c = a·b */
struct few_rows {
    const float *a;
    struct matrix b;
    float *c;
    int64_t columns, depth;
    int turned;
};

/* Some products of as many rows, of which none reads what another one writes. */
void few_rows(const struct few_rows *of, int count, int64_t rows);

/* a (rows, depth), and `columns` rows of b (…, depth), in float32 or bfloat16, from `first` on → a·bᵀ, whose rows are `c_row`
 * apart, by the calling thread alone */
void lines_by_lines(const float *a, struct matrix b, int64_t first, float *c, int64_t c_row, int64_t rows, int64_t columns);

#endif
