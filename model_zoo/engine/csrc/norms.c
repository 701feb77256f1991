/* Norms row by row, and their gradients. */
#include <math.h>
#include <stddef.h>

#include "numbers.h"
#include "pool.h"

enum { COLUMNS = 64 }; /* whose weights' gradients are added up together */

struct norm {
    const float *x, *weight, *bias, *mean, *scale, *before; /* before: what a gradient is added to */
    struct numbers y, dout;
    float *out, *out_mean, *out_scale;
    int64_t width, rows;
    float eps, offset;
};

/* RMSNorm: y = x·s·(w + offset) with s = 1 / sqrt(mean(x²) + eps). LayerNorm, where the numbers are centred by their mean:
 * y = (x − m)·s·w + b. */
INLINE void norm_rows(int centred, const struct norm *of, int64_t first, int64_t last) {
    int64_t width = of->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        const float *x = of->x + row * width;
        float room[width], *out = room_for(of->y, row * width, room), mean = 0.0f, sum = 0.0f;
        if (centred) {
            floats sums = {0};
            for (int64_t i = 0; i < whole; i += LANES) sums += load(x + i);
            sum = sum_of(sums);
            for (int64_t i = whole; i < width; i++) sum += x[i];
            of->out_mean[row] = mean = sum / (float)width;
            floats squares = {0};
            for (int64_t i = 0; i < whole; i += LANES) squares += (load(x + i) - mean) * (load(x + i) - mean);
            sum = sum_of(squares);
            for (int64_t i = whole; i < width; i++) sum += (x[i] - mean) * (x[i] - mean);
        } else {
            sum = dot(x, x, width);
        }
        float scale = 1.0f / sqrtf(sum / (float)width + of->eps);
        of->out_scale[row] = scale;
        for (int64_t i = 0; i < whole; i += LANES)
            store(out + i, centred ? (load(x + i) - mean) * scale * load(of->weight + i) + load(of->bias + i)
                                   : load(x + i) * scale * (load(of->weight + i) + of->offset));
        for (int64_t i = whole; i < width; i++)
            out[i] = centred ? (x[i] - mean) * scale * of->weight[i] + of->bias[i] : x[i] * scale * (of->weight[i] + of->offset);
        put_back(of->y, row * width, width, room);
    }
}

static void rms_norm_rows(void *arguments, int64_t first, int64_t last) { norm_rows(0, arguments, first, last); }
static void layer_norm_rows(void *arguments, int64_t first, int64_t last) { norm_rows(1, arguments, first, last); }

/* x (N, H), weight (H), eps (1), offset (1) → y (N, H), s (N, 1) */
PET_KERNEL(rms_norm) {
    struct norm of = {.x = params[0], .weight = params[1], .y = numbers_of(params, dtypes, 4), .out_scale = params[5],
                      .eps = *(float *)params[2], .offset = *(float *)params[3], .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(rms_norm_rows, &of, of.rows, rows_at_once(of.width));
    return 0;
}

/* x (N, H), weight (H), bias (H), eps (1) → y (N, H), m (N, 1), s (N, 1) */
PET_KERNEL(layer_norm) {
    struct norm of = {.x = params[0], .weight = params[1], .bias = params[2], .y = numbers_of(params, dtypes, 4), .out_mean = params[5],
                      .out_scale = params[6], .eps = *(float *)params[3], .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(layer_norm_rows, &of, of.rows, rows_at_once(of.width));
    return 0;
}

/* With q = dy·s·(w + offset): dx = q − x·s²·mean(q·x); centred, with c = x − m: dx = q − mean(q) − c·s²·mean(q·c). */
INLINE void norm_gradient_rows(int centred, const struct norm *of, int64_t first, int64_t last) {
    int64_t width = of->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        const float *x = of->x + row * width, *weight = of->weight;
        float room[width];
        const float *dout = widened(of->dout, row * width, width, room), *before = of->before ? of->before + row * width : NULL;
        float *out = of->out + row * width, scale = of->scale[row], mean = centred ? of->mean[row] : 0.0f;
        floats sums = {0}, products = {0};
        for (int64_t i = 0; i < whole; i += LANES) {
            floats q = load(dout + i) * (centred ? load(weight + i) : load(weight + i) + of->offset);
            sums += q;
            products += q * (centred ? load(x + i) - mean : load(x + i));
        }
        float sum = sum_of(sums), product = sum_of(products);
        for (int64_t i = whole; i < width; i++) {
            float q = dout[i] * (centred ? weight[i] : weight[i] + of->offset);
            sum += q;
            product += q * (centred ? x[i] - mean : x[i]);
        }
        float level = sum * scale / (float)width, along = product * scale * scale * scale / (float)width;
        for (int64_t i = 0; i < whole; i += LANES) {
            floats dx = centred ? load(dout + i) * scale * load(weight + i) - level - (load(x + i) - mean) * along
                                : load(dout + i) * scale * (load(weight + i) + of->offset) - load(x + i) * along;
            store(out + i, before ? load(before + i) + dx : dx);
        }
        for (int64_t i = whole; i < width; i++) {
            float dx = centred ? dout[i] * scale * weight[i] - level - (x[i] - mean) * along
                               : dout[i] * scale * (weight[i] + of->offset) - x[i] * along;
            out[i] = before ? before[i] + dx : dx;
        }
    }
}

static void rms_norm_gradient_rows(void *arguments, int64_t first, int64_t last) { norm_gradient_rows(0, arguments, first, last); }
static void layer_norm_gradient_rows(void *arguments, int64_t first, int64_t last) { norm_gradient_rows(1, arguments, first, last); }

/* x, weight, m or RMSNorm's offset, s, dy and, if dx is `added` to it, what there is → dx */
static int gradient_of(void (*rows)(void *, int64_t, int64_t), void **params, int64_t **shapes, const char **dtypes, int centred, int added) {
    struct norm of = {.x = params[0], .weight = params[1], .mean = centred ? params[2] : NULL, .offset = centred ? 0.0f : *(float *)params[2],
                      .scale = params[3], .dout = numbers_of(params, dtypes, 4), .before = added ? params[5] : NULL,
                      .out = params[5 + added], .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(rows, &of, of.rows, rows_at_once(of.width));
    return 0;
}

PET_KERNEL(rms_norm_gradient) { return gradient_of(rms_norm_gradient_rows, params, shapes, dtypes, 0, 0); }
PET_KERNEL(layer_norm_gradient) { return gradient_of(layer_norm_gradient_rows, params, shapes, dtypes, 1, 0); }

/* what they give may lie where that does which it is added to */
PET_KERNEL(rms_norm_gradient_added) { return gradient_of(rms_norm_gradient_rows, params, shapes, dtypes, 0, 1); }
PET_KERNEL(layer_norm_gradient_added) { return gradient_of(layer_norm_gradient_rows, params, shapes, dtypes, 1, 1); }

/* The weight's gradient, Σ over rows of dy·(x − m)·s; m is 0 for RMSNorm. Each piece is some columns of all rows. */
INLINE void some_columns(const struct norm *of, int64_t column, int vectors, int64_t columns) {
    floats sums[COLUMNS / LANES] = {{0}};
    for (int64_t row = 0; row < of->rows; row++) {
        int64_t at = row * of->width + column;
        float room[COLUMNS], scale = of->scale[row], mean = of->mean ? of->mean[row] : 0.0f;
        const float *x = of->x + at, *dout = widened(of->dout, at, columns, room);
#pragma GCC unroll 16
        for (int i = 0; i < vectors; i++) {
            int64_t some = columns < LANES ? columns : LANES;
            sums[i] += load_some(dout + i * LANES, some) * (load_some(x + i * LANES, some) - mean) * scale;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < vectors; i++) store_some(of->out + column + i * LANES, sums[i], columns < LANES ? columns : LANES);
}

static void norm_weight_columns(void *arguments, int64_t first, int64_t last) {
    for (; first + COLUMNS <= last; first += COLUMNS) some_columns(arguments, first, COLUMNS / LANES, COLUMNS);
    for (; first + LANES <= last; first += LANES) some_columns(arguments, first, 1, LANES);
    if (first < last) some_columns(arguments, first, 1, last - first);
}

/* x, m where there is one, s, dy → dw */
static int weight_gradient_of(void **params, int64_t **shapes, const char **dtypes, int centred) {
    struct norm of = {.x = params[0], .mean = centred ? params[1] : NULL, .scale = params[1 + centred],
                      .dout = numbers_of(params, dtypes, 2 + centred), .out = params[3 + centred], .rows = shapes[0][0],
                      .width = shapes[0][1]};
    pet_parallel(norm_weight_columns, &of, of.width, COLUMNS);
    return 0;
}

PET_KERNEL(rms_norm_weight_gradient) { return weight_gradient_of(params, shapes, dtypes, 0); }
PET_KERNEL(layer_norm_weight_gradient) { return weight_gradient_of(params, shapes, dtypes, 1); }
