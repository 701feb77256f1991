/* Matrix products; see gemm.c. All give 0, or 1 when there is no memory. */
#ifndef PET_GEMM_H
#define PET_GEMM_H

#include <stdint.h>

#include "numbers.h"

enum { MOST_PRODUCTS = 8, MOST_TERMS = 8 };

/* a·b for a (rows, depth) and b (depth, columns), or a·bᵀ for b (columns, depth). */
struct term {
    struct numbers a;
    struct matrix b;
    int64_t depth;
    int b_turned;
    int64_t a_row; /* how far a's rows are apart, if it needs no widening; 0: as long as they are */
};

/* c (rows, columns) = the sum of its terms, or c + that sum; of factors rounded to bfloat16, where asked for and there. Of
 * products that run at once all are, or none. Where c lies in bfloat16, they have to be; a left factor that does is widened where they are not. */
struct product {
    struct numbers c;
    int64_t columns;
    int add, bf16, count;
    struct term terms[MOST_TERMS];
};

/* Some products of as many rows, of which none reads what another one writes: threads go from one to the next without
 * waiting for each other. */
int products(const struct product *of, int count, int64_t rows);

/* How a product is computed: added to c; of factors rounded to bfloat16. */
enum { ADDS = 1, IN_BF16 = 2 };

/* a (rows, depth), b (columns, depth) → c = a·bᵀ (rows, columns), or c + a·bᵀ */
int product_by_rows(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth, int how);

/* a (rows, depth), b (depth, columns) → c = a·b, or c + a·b */
int product_by_depth(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth, int how);

/* a (depth, rows), whose lines are `a_row` apart, b (depth, columns) → c = aᵀ·b, or c + aᵀ·b */
int product_by_columns(struct numbers a, int64_t a_row, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth,
                       int how);

/* A kernel of a (rows, depth), b and, as the operand `out`, c; `turned` as in a term, `how` as above. */
int product_kernel(void **params, int64_t **shapes, const char **types, int out, int turned, int how);

/* The same of a (depth, rows) and b (depth, columns). */
int columns_kernel(void **params, int64_t **shapes, const char **types, int how);

#endif
