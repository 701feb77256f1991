/* Matrix products of few rows; see few_rows.c. */
#ifndef PET_FEW_ROWS_H
#define PET_FEW_ROWS_H

#include <stdint.h>

#include "storage.h"

/* Up to how many rows these are faster than those of gemm.c. */
enum { FEW_ROWS = 12 };

/* a (rows, depth), b (columns, depth) → a·bᵀ */
void few_rows_by_rows(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth);

/* a (rows, depth), b (depth, columns) → a·b */
void few_rows_by_columns(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth);

/* a (rows, depth), b (columns, depth) → a·bᵀ, whose rows are `c_row` apart, by the calling thread alone: for few columns,
 * too */
void lines_by_lines(const float *a, const float *b, float *c, int64_t c_row, int64_t rows, int64_t columns, int64_t depth);

#endif
