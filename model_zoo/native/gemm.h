/* Matrix products; see gemm.c. All give 0, or 1 when there is no memory. */
#ifndef PET_GEMM_H
#define PET_GEMM_H

#include <stdint.h>

/* a (rows, depth), b (columns, depth) → c = a·bᵀ (rows, columns), or c + a·bᵀ */
int product_by_rows(const float *a, const float *b, float *c, int64_t rows, int64_t columns, int64_t depth, int add);

/* a (rows, depth), b (depth, columns) → c = a·b, or c + a·b */
int product_by_depth(const float *a, const float *b, float *c, int64_t rows, int64_t columns, int64_t depth, int add);

/* a (depth, rows), b (depth, columns) → c = aᵀ·b, or c + aᵀ·b */
int product_by_columns(const float *a, const float *b, float *c, int64_t rows, int64_t columns, int64_t depth, int add);

#endif
