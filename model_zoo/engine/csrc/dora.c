/* DoRA's rescaling of a linear cell's output (Liu et al. 2024), and its gradients: each column by f = m / ‖W + s·B·A‖, the
 * norm over the weights of an output. It is never taken of the built matrix, see adapters/dora.py, and counts as a constant
 * in the gradients.
 *
 * From PiSSA's or OLoRA's start s·(B·A − B₀·A₀) takes the place of s·B·A, which is s·[B − B₀, B₀]·[A; A − A₀]: no more than
 * zeros at the start, to the bit. */
#include <math.h>
#include <string.h>

#include "gemm.h"
#include "pool.h"

enum { MOST_CHUNKS = 16 }; /* of rows, whose sums are added up in order, whatever the number of threads */
static const float SMALLEST = 1e-12f; /* as in adapters/dora.py */

struct dora {
    struct numbers y, dout, out;
    const float *b, *first_b, *norm, *magnitude, *bias; /* B₀ or NULL */
    float *parts;
    float *wa, *aa, *factor, *current, *both; /* (W·Aᵀ)ᵀ (r, out), A·Aᵀ (r, r), f and the norm (out), [B − B₀, B₀] (out, r) */
    int64_t rows, columns, rank, chunk;       /* with B₀ the rank is twice B's */
    float scale;
    int taken; /* s·B₀·A₀ is to be added to W */
};

/* A row of [B − B₀, B₀]. */
static const float *both_of(const struct dora *of, int64_t i) {
    int64_t half = of->rank / 2;
    float *both = of->both + i * of->rank;
    memcpy(both + half, of->first_b + i * half, (size_t)half * sizeof(float));
    for (int64_t k = 0; k < half; k++) both[k] = of->b[i * half + k] - both[half + k];
    return both;
}

/* What s·B₀·A₀ adds to a number of W·Aᵀ, for a row of [B − B₀, B₀]: A₀ is what [A; A − A₀] has in A, without A − A₀. */
static float taken_along(const struct dora *of, int64_t k, const float *both) {
    const float *aa = of->aa + k * of->rank;
    float sum = 0.0f;
    for (int64_t l = 0, half = of->rank / 2; l < half; l++) sum += (aa[l] - aa[half + l]) * both[half + l];
    return of->scale * sum;
}

/* With c = W·Aᵀ: ‖W + s·B·A‖² = ‖W‖² + 2·s·Σ c∘B + s²·Σ (B·A·Aᵀ)∘B, relative to ‖W‖². */
static void factors(void *arguments, int64_t first, int64_t last) {
    struct dora *of = arguments;
    for (int64_t i = first; i < last; i++) {
        const float *b = of->first_b ? both_of(of, i) : of->b + i * of->rank;
        float cross = 0.0f, square = 0.0f, norm = of->norm[i] < SMALLEST ? SMALLEST : of->norm[i];
        for (int64_t k = 0; k < of->rank; k++) {
            float along = 0.0f;
            for (int64_t l = 0; l < of->rank; l++) along += of->aa[k * of->rank + l] * b[l];
            cross += (of->wa[k * of->columns + i] + (of->taken ? taken_along(of, k, b) : 0.0f)) * b[k];
            square += along * b[k];
        }
        float change = 1.0f + (2.0f * of->scale * cross + of->scale * of->scale * square) / (norm * norm);
        of->current[i] = norm * sqrtf(change < SMALLEST ? SMALLEST : change);
        of->factor[i] = of->magnitude[i] / of->current[i];
    }
}

/* W, A (r, in), B (out, r), ‖W‖ (out), m (out), s (1), whether W is (in, out), whether s·B₀·A₀ was taken off it, and A₀ and B₀
 * if there are ten `inputs`: what the kernels have in common. 1 when there is no memory. */
static int prepare(struct dora *of, int inputs, void **params, int64_t **shapes, const char **dtypes) {
    const float *a = params[1], *first_a = inputs >= 10 ? params[8] : NULL;
    int64_t own = shapes[1][0], in = shapes[1][1], rank = first_a ? 2 * own : own, columns = shapes[2][0];
    *of = (struct dora){.b = params[2], .first_b = first_a ? params[9] : NULL, .norm = params[3], .magnitude = params[4],
                        .scale = *(float *)params[5], .taken = *(int32_t *)params[7], .columns = columns, .rank = rank};
    int64_t stacked = first_a ? rank * (columns + in) : 0;
    of->wa = pet_scratch(1, ((rank + 2) * columns + rank * rank + stacked) * 4); /* a slot that these products do not use */
    if (!of->wa) return 1;
    of->factor = of->wa + rank * columns;
    of->current = of->factor + columns;
    of->aa = of->current + columns;
    of->both = of->aa + rank * rank;
    if (first_a) { /* [A; A − A₀] */
        float *both = of->both + rank * columns;
        memcpy(both, a, (size_t)(own * in) * sizeof(float));
        for (int64_t i = 0; i < own * in; i++) both[own * in + i] = a[i] - first_a[i];
        a = both;
    }
    if ((*(int32_t *)params[6] ? product_by_depth : product_by_rows)(a, matrix_of(params, shapes, dtypes, 0), of->wa, rank, columns, in, 0) ||
        product_by_rows(a, float_matrix(a, in), of->aa, rank, rank, in, 0))
        return 1;
    pet_parallel(factors, of, columns, rows_at_once(rank * rank));
    return 0;
}

/* y (N, out), what `prepare` says, and a bias (out) if the inputs are even. */
static int prepare_rows(struct dora *of, int inputs, void **params, int64_t **shapes, const char **dtypes) {
    if (prepare(of, inputs - 1, params + 1, shapes + 1, dtypes + 1)) return 1;
    of->y = numbers_of(params, dtypes, 0);
    of->rows = shapes[0][0];
    of->bias = inputs % 2 ? NULL : params[inputs - 1];
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

/* what `prepare` says → f (out) */
PET_KERNEL(dora_factor) {
    struct dora of;
    if (prepare(&of, count - 1, params, shapes, dtypes)) return 1;
    memcpy(params[count - 1], of.factor, (size_t)of.columns * sizeof(float));
    return 0;
}

/* y (N, out), f (out), and a bias (out) or none → y + (f − 1)·(y − bias) (N, out) */
PET_KERNEL(dora_rescaled) {
    struct dora of = {.y = numbers_of(params, dtypes, 0), .factor = params[1], .bias = count == 4 ? params[2] : NULL,
                      .out = numbers_of(params, dtypes, count - 1), .rows = shapes[0][0], .columns = shapes[0][1]};
    pet_parallel(rescale, &of, of.rows, rows_at_once(of.columns));
    return 0;
}

/* what `prepare_rows` says; y holds W·x, the bias and s·B·A·x → y + (f − 1)·(y − bias) (N, out) */
PET_KERNEL(dora) {
    struct dora of;
    if (prepare_rows(&of, count - 1, params, shapes, dtypes)) return 1;
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
    if (prepare_rows(&of, count - 3, params, shapes, dtypes)) return 1;
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
