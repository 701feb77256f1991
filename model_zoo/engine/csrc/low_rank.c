/* LoRA's sum, y + s·(x·Aᵀ)·Bᵀ, and its gradients. */
#include <stdlib.h>

#include "few_rows.h"
#include "gemm.h"
#include "numbers.h"
#include "pool.h"
#include "product.h"

enum {
    ROWS = 64,
    MOST_CHUNKS = 16, /* of rows, whose sums are added up in order, whatever the number of threads */
    LEAST_CHUNK = 64,
    BROAD = LANES > 8 ? 64 : 32, /* from this rank on products of gemm.c, which copy a factor first, are faster */
    COLUMNS = 64,     /* of those sums, that are added up together */
};

struct low_rank {
    struct numbers x, dout;
    const float *a, *b, *inner;
    float *new_inner, *outer, *d_a, *d_b, *parts;
    float *turned_b; /* B as (r, out) */
    int64_t rows, in, columns, rank, chunk, chunks;
    float scale;
};

/* Numbers as a product's right factor. */
static struct matrix rows_of(struct numbers of, int64_t width) {
    return (struct matrix){.data = of.at, .columns = width, .storage = of.low ? BFLOAT16 : FLOAT32};
}

/* to (rows, r) = s·from·linesᵀ, for rows of `from` from `first` on and lines (r, width). All lines meet a few rows at a time. */
static void narrow(const struct low_rank *of, float *to, struct numbers from, int64_t first, const float *lines, int64_t rows,
                   int64_t width) {
    float turned[BROAD * ROWS];
    for (int64_t row = 0; row < rows; row += ROWS) {
        int64_t some = least(rows - row, ROWS);
        lines_by_lines(lines, rows_of(from, width), first + row, turned, ROWS, of->rank, some);
        for (int64_t i = 0; i < some; i++)
            for (int64_t k = 0; k < of->rank; k++) to[(row + i) * of->rank + k] = turned[k * ROWS + i] * of->scale;
    }
}

static void inner_rows(void *arguments, int64_t first, int64_t last) {
    struct low_rank *of = arguments;
    for (int64_t block = first; block < last; block++) {
        int64_t row = block * ROWS, rows = of->rows - row < ROWS ? of->rows - row : ROWS;
        narrow(of, of->new_inner + row * of->rank, of->x, row, of->a, rows, of->in);
    }
}

/* The same by a product. */
static int broad(const struct low_rank *of, float *to, struct numbers from, const float *factor, int turned, int64_t width) {
    struct matrix right = float_matrix(factor, turned ? width : of->rank);
    struct product one = {.c = {to}, .columns = of->rank, .count = 1, .terms = {{from, right, width, turned}}};
    if (products(&one, 1, of->rows)) return 1;
    for (int64_t i = 0; i < of->rows * of->rank; i++) to[i] *= of->scale;
    return 0;
}

static int inner(struct low_rank of) {
    if (of.rank >= BROAD) return broad(&of, of.new_inner, of.x, of.a, 1, of.in);
    pet_parallel(inner_rows, &of, (of.rows + ROWS - 1) / ROWS, 1);
    return 0;
}

/* x (N, in), A (r, in), s (1) → s·x·Aᵀ (N, r): what a product with B adds to y */
PET_KERNEL(low_rank_inner) {
    return inner((struct low_rank){.x = numbers_of(params, dtypes, 0), .a = params[1], .scale = *(float *)params[2],
                                   .new_inner = params[3], .rows = shapes[0][0], .in = shapes[0][1], .rank = shapes[1][0]});
}

/* y (N, out), x (N, in), A (r, in), B (out, r), s (1) → y + s·x·Aᵀ·Bᵀ (N, out), s·x·Aᵀ (N, r) */
PET_KERNEL(low_rank) {
    int64_t rows = shapes[0][0], columns = shapes[0][1], rank = shapes[2][0];
    struct low_rank of = {.x = {params[1]}, .a = params[2], .scale = *(float *)params[4], .new_inner = params[6],
                          .rows = rows, .in = shapes[1][1], .rank = rank};
    if (inner(of)) return 1;
    memcpy(params[5], params[0], (size_t)(rows * columns) * sizeof(float));
    return product_by_rows(params[6], float_matrix(params[3], rank), params[5], rows, columns, rank, 1);
}

/* to (r, width) = leftᵀ·right for `left` (rows, r) and rows of `right` from `first` on. */
static void factor_part(const struct low_rank *of, float *to, const float *left, struct numbers right, int64_t first,
                        int64_t rows, int64_t width) {
    void *from = place_of(right, first * width);
    (right.low ? product_turned_low : product_turned)(of->rank, width, to, width, left, of->rank, from, width, rows, 0);
}

/* t = s·dy·B, and of each chunk of rows its part of dA = tᵀ·x and of dBᵀ = innerᵀ·dy. */
static void factor_chunks(void *arguments, int64_t first, int64_t last) {
    struct low_rank *of = arguments;
    for (int64_t index = first; index < last; index++) {
        int64_t row = index * of->chunk, rows = of->rows - row < of->chunk ? of->rows - row : of->chunk;
        float *d_a = of->parts + index * of->rank * (of->in + of->columns), *d_b = d_a + of->rank * of->in;
        float *t = of->outer + row * of->rank;
        narrow(of, t, of->dout, row, of->turned_b, rows, of->columns);
        factor_part(of, d_a, t, of->x, row, rows, of->in);
        factor_part(of, d_b, of->inner + row * of->rank, of->dout, row, rows, of->columns);
    }
}

static int64_t blocks_of(int64_t columns) { return (columns + COLUMNS - 1) / COLUMNS; }

/* Adds up some columns of the chunks' parts: those of dA, and behind those of dBᵀ. */
static void factor_columns(void *arguments, int64_t first, int64_t last) {
    struct low_rank *of = arguments;
    int64_t of_a = blocks_of(of->in), part = of->rank * (of->in + of->columns);
    for (int64_t block = first; block < last; block++) {
        int is_a = block < of_a;
        int64_t width = is_a ? of->in : of->columns, column = (is_a ? block : block - of_a) * COLUMNS;
        int64_t columns = width - column < COLUMNS ? width - column : COLUMNS;
        for (int64_t k = 0; k < of->rank; k++) {
            const float *line = of->parts + (is_a ? 0 : of->rank * of->in) + k * width + column;
            float sums[COLUMNS] = {0};
            for (int64_t index = 0; index < of->chunks; index++)
                for (int64_t i = 0; i < columns; i++) sums[i] += line[index * part + i];
            for (int64_t i = 0; i < columns; i++)
                *(is_a ? of->d_a + k * width + column + i : of->d_b + (column + i) * of->rank + k) = sums[i];
        }
    }
}

/* All three gradients by products. */
static int broad_factors(const struct low_rank *of) {
    struct matrix x = rows_of(of->x, of->in), inner = float_matrix(of->inner, of->rank);
    return broad(of, of->outer, of->dout, of->b, 0, of->columns) ||
           product_by_columns((struct numbers){of->outer}, of->rank, x, of->d_a, of->rank, of->in, of->rows, 0) ||
           product_by_columns(of->dout, of->columns, inner, of->d_b, of->columns, of->rank, of->rows, 0);
}

/* B (out, r), s, x (N, in), s·x·Aᵀ (N, r), dy (N, out) → t = s·dy·B (N, r), whose product with A is dx, dA (r, in), dB (out, r) */
PET_KERNEL(low_rank_factors) {
    struct low_rank of = {.b = params[0], .scale = *(float *)params[1], .x = numbers_of(params, dtypes, 2), .inner = params[3],
                          .dout = numbers_of(params, dtypes, 4), .outer = params[5], .d_a = params[6], .d_b = params[7],
                          .columns = shapes[0][0], .rank = shapes[0][1], .rows = shapes[2][0], .in = shapes[2][1]};
    if (of.rank >= BROAD) return broad_factors(&of);
    of.chunk = (of.rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
    if (of.chunk < LEAST_CHUNK) of.chunk = LEAST_CHUNK;
    of.chunks = (of.rows + of.chunk - 1) / of.chunk;
    of.turned_b = pet_scratch(0, of.rank * of.columns * 4);
    /* too much to keep for the thread's life */
    of.parts = malloc((size_t)(of.chunks * of.rank * (of.in + of.columns) + 1) * sizeof(float));
    if (of.turned_b && of.parts) {
        for (int64_t i = 0; i < of.columns; i++)
            for (int64_t k = 0; k < of.rank; k++) of.turned_b[k * of.columns + i] = of.b[i * of.rank + k];
        pet_parallel(factor_chunks, &of, of.chunks, 1);
        pet_parallel(factor_columns, &of, blocks_of(of.in) + blocks_of(of.columns), 1);
    }
    int failed = !of.turned_b || !of.parts;
    free(of.parts);
    return failed;
}
