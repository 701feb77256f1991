/* DoRA's rescaling of a linear cell's output (Liu et al. 2024), and its gradients: each column by f = m / ‖W + s·B·A‖, the
 * norm over the weights of an output. It is never taken of the built matrix, see adapters/dora.py, and counts as a constant
 * in the gradients. */
#include <math.h>
#include <string.h>

#include "gemm.h"
#include "pool.h"

enum { MOST_CHUNKS = 16 }; /* of rows, whose sums are added up in order, whatever the number of threads */
static const float SMALLEST = 1e-12f; /* as in adapters/dora.py */

struct dora {
    struct numbers y, dout, out;
    const float *a, *b, *norm, *magnitude, *bias;
    float *parts;
    float *wa, *aa, *factor, *current; /* (W·Aᵀ)ᵀ (r, out), A·Aᵀ (r, r), f and the norm (out) */
    int64_t rows, columns, rank, chunk;
    float scale;
};

/* With c = W·Aᵀ: ‖W + s·B·A‖² = ‖W‖² + 2·s·Σ c∘B + s²·Σ (B·A·Aᵀ)∘B, relative to ‖W‖². */
static void factors(void *arguments, int64_t first, int64_t last) {
    struct dora *of = arguments;
    for (int64_t i = first; i < last; i++) {
        const float *b = of->b + i * of->rank;
        float cross = 0.0f, square = 0.0f, norm = of->norm[i] < SMALLEST ? SMALLEST : of->norm[i];
        for (int64_t k = 0; k < of->rank; k++) {
            float along = 0.0f;
            for (int64_t l = 0; l < of->rank; l++) along += of->aa[k * of->rank + l] * b[l];
            cross += of->wa[k * of->columns + i] * b[k];
            square += along * b[k];
        }
        float change = 1.0f + (2.0f * of->scale * cross + of->scale * of->scale * square) / (norm * norm);
        of->current[i] = norm * sqrtf(change < SMALLEST ? SMALLEST : change);
        of->factor[i] = of->magnitude[i] / of->current[i];
    }
}

/* y (N, out), W, A (r, in), B (out, r), ‖W‖ (out), m (out), s (1), whether W is (in, out), and a bias (out) if `inputs` are
 * nine: what the two kernels have in common. 1 when there is no memory. */
static int prepare(struct dora *of, int inputs, void **params, int64_t **shapes, const char **dtypes) {
    *of = (struct dora){.y = numbers_of(params, dtypes, 0), .a = params[2], .b = params[3], .norm = params[4], .magnitude = params[5],
                        .scale = *(float *)params[6], .bias = inputs == 9 ? params[8] : NULL, .rows = shapes[0][0],
                        .columns = shapes[0][1], .rank = shapes[2][0]};
    int64_t rank = of->rank, columns = of->columns, in = shapes[2][1];
    of->wa = pet_scratch(1, ((rank + 2) * columns + rank * rank) * 4); /* a slot that these products do not use */
    if (!of->wa) return 1;
    of->factor = of->wa + rank * columns;
    of->current = of->factor + columns;
    of->aa = of->current + columns;
    if ((*(int32_t *)params[7] ? product_by_depth : product_by_rows)(of->a, matrix_of(params, shapes, dtypes, 1), of->wa, rank, columns, in, 0) ||
        product_by_rows(of->a, float_matrix(of->a, in), of->aa, rank, rank, in, 0))
        return 1;
    pet_parallel(factors, of, columns, rows_at_once(rank * rank));
    return 0;
}

/* Some columns of a row: y + (f − 1)·(y − bias), which is y where f is 1. */
INLINE void rescale_some(const struct dora *of, int64_t row, int64_t i, int64_t some) {
    int64_t at = row * of->columns + i;
    floats y = take(of->y, at, some), own = of->bias ? y - load_some(of->bias + i, some) : y;
    put(of->out, at, y + (load_some(of->factor + i, some) - 1.0f) * own, some);
}

static void rescale(void *arguments, int64_t first, int64_t last) {
    struct dora of = *(struct dora *)arguments;
    int64_t whole = of.columns / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        for (int64_t i = 0; i < whole; i += LANES) rescale_some(&of, row, i, LANES);
        if (whole < of.columns) rescale_some(&of, row, whole, of.columns - whole);
    }
}

/* what `prepare` says; y holds W·x, the bias and s·B·A·x → y + (f − 1)·(y − bias) (N, out) */
PET_KERNEL(dora) {
    struct dora of;
    if (prepare(&of, count - 1, params, shapes, dtypes)) return 1;
    of.out = numbers_of(params, dtypes, count - 1);
    pet_parallel(rescale, &of, of.rows, rows_at_once(of.columns));
    return 0;
}

/* Some columns of a row: dy = f·dout, and dout·(y − bias) added to their sums. */
INLINE void gradient_of_some(const struct dora *of, float *sums, int64_t row, int64_t i, int64_t some) {
    int64_t at = row * of->columns + i;
    floats y = take(of->y, at, some), gradient = take(of->dout, at, some), own = of->bias ? y - load_some(of->bias + i, some) : y;
    store_some(sums + i, load_some(sums + i, some) + gradient * own, some);
    put(of->out, at, gradient * load_some(of->factor + i, some), some);
}

/* dy, and of each chunk of rows its part of dm = Σ dout·(y − bias) / ‖W + s·B·A‖. */
static void gradient_chunks(void *arguments, int64_t first, int64_t last) {
    struct dora of = *(struct dora *)arguments;
    int64_t whole = of.columns / LANES * LANES;
    for (int64_t index = first; index < last; index++) {
        int64_t row = index * of.chunk, end = row + of.chunk < of.rows ? row + of.chunk : of.rows;
        float *sums = of.parts + index * of.columns;
        memset(sums, 0, (size_t)of.columns * sizeof(float));
        for (; row < end; row++) {
            for (int64_t i = 0; i < whole; i += LANES) gradient_of_some(&of, sums, row, i, LANES);
            if (whole < of.columns) gradient_of_some(&of, sums, row, whole, of.columns - whole);
        }
    }
}

/* the same inputs, dout (N, out) → dy (N, out), which may lie where dout does, dm (out) */
PET_KERNEL(dora_gradient) {
    struct dora of;
    if (prepare(&of, count - 3, params, shapes, dtypes)) return 1;
    of.dout = numbers_of(params, dtypes, count - 3);
    of.out = numbers_of(params, dtypes, count - 2);
    float *d_magnitude = params[count - 1];
    of.chunk = (of.rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
    int64_t chunks = of.chunk ? (of.rows + of.chunk - 1) / of.chunk : 0;
    if (!(of.parts = pet_scratch(0, (chunks + 1) * of.columns * 4))) return 1;
    pet_parallel(gradient_chunks, &of, chunks, 1);
    for (int64_t i = 0; i < of.columns; i++) {
        float sum = 0.0f;
        for (int64_t index = 0; index < chunks; index++) sum += of.parts[index * of.columns + i];
        d_magnitude[i] = sum / of.current[i];
    }
    return 0;
}
