/* LoRA's sum, y + s·(x·Aᵀ)·Bᵀ, and its gradients: each large matrix is read once. All float32. */
#include <stdlib.h>

#include "pool.h"
#include "product.h"
#include "vectors.h"

enum {
    ROWS = 48,
    MOST_CHUNKS = 16, /* of rows, whose sums are added up in order, whatever the number of threads */
    LEAST_CHUNK = 64,
    COLUMNS = 64,     /* of those sums, that are added up together */
};

struct low_rank {
    const float *y, *x, *a, *b, *inner, *dout;
    float *out, *new_inner, *d_x, *d_a, *d_b, *parts;
    float *turned_a, *turned_b; /* A as (in, padded r); B as (r, padded out) forward and (out, padded r) backward */
    int64_t rows, in, columns, rank, padded, padded_columns, chunk, chunks;
    float scale;
    int add; /* whether dx is added to what is there */
    _Atomic int failed;
};

static void low_rank_rows(void *arguments, int64_t first, int64_t last) {
    struct low_rank *of = arguments;
    float *inner = pet_scratch(1, ROWS * of->padded * 4);
    if (!inner) of->failed = 1;
    for (int64_t block = first; block < last && inner; block++) {
        int64_t row = block * ROWS, rows = of->rows - row < ROWS ? of->rows - row : ROWS;
        product(rows, of->padded, inner, of->padded, of->x + row * of->in, of->in, of->turned_a, of->padded, of->in, 0);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < of->rank; k++)
                of->new_inner[(row + i) * of->rank + k] = inner[i * of->padded + k] *= of->scale;
        float *out = of->out + row * of->columns;
        if (of->out != of->y) memcpy(out, of->y + row * of->columns, (size_t)(rows * of->columns) * sizeof(float));
        product(rows, of->columns, out, of->columns, inner, of->padded, of->turned_b, of->padded_columns, of->rank, 1);
    }
}

/* y (N, out), x (N, in), A (r, in), B (out, r), s (1) → y + s·x·Aᵀ·Bᵀ (N, out), which may lie where y does, s·x·Aᵀ (N, r) */
PET_KERNEL(low_rank) {
    struct low_rank of = {.y = params[0], .x = params[1], .a = params[2], .b = params[3],
                          .scale = *(float *)params[4], .out = params[5], .new_inner = params[6],
                          .rows = shapes[0][0], .columns = shapes[0][1], .in = shapes[1][1], .rank = shapes[2][0]};
    of.padded = up_to_lanes(of.rank);
    of.padded_columns = up_to_lanes(of.columns);
    of.turned_a = pet_scratch(0, (of.in * of.padded + of.rank * of.padded_columns) * 4);
    if (!of.turned_a) return 1;
    of.turned_b = of.turned_a + of.in * of.padded;
    turn(of.a, of.in, of.rank, of.in, of.turned_a, of.padded);
    turn(of.b, of.rank, of.columns, of.rank, of.turned_b, of.padded_columns);
    pet_parallel(low_rank_rows, &of, (of.rows + ROWS - 1) / ROWS, 1);
    return of.failed;
}

/* With t = s·dy·B: dx = t·A, and of each chunk of rows its part of dA = tᵀ·x and of dBᵀ = innerᵀ·dy. */
static void low_rank_gradient_chunks(void *arguments, int64_t first, int64_t last) {
    struct low_rank *of = arguments;
    float *t = pet_scratch(1, of->chunk * of->padded * 4);
    if (!t) of->failed = 1;
    for (int64_t index = first; index < last && t; index++) {
        int64_t row = index * of->chunk, rows = of->rows - row < of->chunk ? of->rows - row : of->chunk;
        const float *x = of->x + row * of->in, *dout = of->dout + row * of->columns;
        float *d_a = of->parts + index * of->rank * (of->in + of->columns), *d_b = d_a + of->rank * of->in;
        product(rows, of->padded, t, of->padded, dout, of->columns, of->turned_b, of->padded, of->columns, 0);
        for (int64_t i = 0; i < rows * of->padded; i++) t[i] *= of->scale;
        product(rows, of->in, of->d_x + row * of->in, of->in, t, of->padded, of->a, of->in, of->rank, of->add);
        product_turned(of->rank, of->in, d_a, of->in, t, of->padded, x, of->in, rows, 0);
        product_turned(of->rank, of->columns, d_b, of->columns, of->inner + row * of->rank, of->rank, dout, of->columns,
                       rows, 0);
    }
}

/* Adds up some columns of the chunks' parts: those of dA, and behind those of dBᵀ. */
static void low_rank_gradient_columns(void *arguments, int64_t first, int64_t last) {
    struct low_rank *of = arguments;
    int64_t of_a = (of->in + COLUMNS - 1) / COLUMNS, part = of->rank * (of->in + of->columns);
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

static int gradient(void **params, int64_t **shapes, int add) {
    struct low_rank of = {.add = add, .a = params[0], .b = params[1], .scale = *(float *)params[2], .x = params[3],
                          .inner = params[4], .dout = params[5], .d_x = params[6], .d_a = params[7],
                          .d_b = params[8], .rank = shapes[0][0], .in = shapes[0][1], .columns = shapes[1][0],
                          .rows = shapes[3][0]};
    of.padded = up_to_lanes(of.rank);
    of.chunk = (of.rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
    if (of.chunk < LEAST_CHUNK) of.chunk = LEAST_CHUNK;
    of.chunks = (of.rows + of.chunk - 1) / of.chunk;
    int64_t part = of.rank * (of.in + of.columns);
    of.turned_b = pet_scratch(0, of.columns * of.padded * 4);
    of.parts = malloc((size_t)(of.chunks * part + 1) * sizeof(float)); /* too much to keep for the thread's life */
    if (!of.turned_b || !of.parts) {
        free(of.parts);
        return 1;
    }
    for (int64_t i = 0; i < of.columns; i++)
        for (int64_t k = 0; k < of.padded; k++)
            of.turned_b[i * of.padded + k] = k < of.rank ? of.b[i * of.rank + k] : 0.0f;
    pet_parallel(low_rank_gradient_chunks, &of, of.chunks, 1);
    if (!of.failed) pet_parallel(low_rank_gradient_columns, &of, (of.in + COLUMNS - 1) / COLUMNS + (of.columns + COLUMNS - 1) / COLUMNS, 1);
    free(of.parts);
    return of.failed;
}

/* A, B, s, x (N, in), s·x·Aᵀ (N, r), dy (N, out) → dx (N, in), dA (r, in), dB (out, r) */
PET_KERNEL(low_rank_gradient) { return gradient(params, shapes, 0); }

/* the same, dx added to what is there */
PET_KERNEL(low_rank_gradient_added) { return gradient(params, shapes, 1); }
