/* What is computed row by row or number by number: norms, activations, heads, rotations, the loss. All float32. */
#include <math.h>

#include "pool.h"
#include "vectors.h"

static int64_t size_of(int dimensions, const int64_t *shape) {
    int64_t size = 1;
    for (int i = 0; i < dimensions; i++) size *= shape[i];
    return size;
}

/* So many rows that a piece is some 32 KB. */
static int64_t rows_at_once(int64_t width) { return 8192 / (width + 1) + 1; }

enum { AT_ONCE = 8192 };

/* RMSNorm: y = x·s·w with s = 1 / sqrt(mean(x²) + eps) ------------------------------------------------------------- */

struct norm {
    const float *x, *weight, *bias, *mean, *scale, *dout;
    float *out, *out_mean, *out_scale;
    int64_t width, rows;
    float eps;
};

static void rms_norm_rows(void *arguments, int64_t first, int64_t last) {
    struct norm *of = arguments;
    int64_t width = of->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        const float *x = of->x + row * width;
        float *out = of->out + row * width;
        floats squares = {0};
        for (int64_t i = 0; i < whole; i += LANES) squares += load(x + i) * load(x + i);
        float sum = sum_of(squares);
        for (int64_t i = whole; i < width; i++) sum += x[i] * x[i];
        float scale = 1.0f / sqrtf(sum / (float)width + of->eps);
        of->out_scale[row] = scale;
        for (int64_t i = 0; i < whole; i += LANES) store(out + i, load(x + i) * scale * load(of->weight + i));
        for (int64_t i = whole; i < width; i++) out[i] = x[i] * scale * of->weight[i];
    }
}

/* x (N, H), weight (H), eps (1) → y (N, H), s (N, 1) */
PET_KERNEL(rms_norm) {
    struct norm of = {.x = params[0], .weight = params[1], .out = params[3], .out_scale = params[4],
                      .eps = *(float *)params[2], .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(rms_norm_rows, &of, of.rows, rows_at_once(of.width));
    return 0;
}

/* With q = dy·s·w: dx = q − x·s²·mean(q·x). */
static void rms_norm_gradient_rows(void *arguments, int64_t first, int64_t last) {
    struct norm *of = arguments;
    int64_t width = of->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        const float *x = of->x + row * width, *dout = of->dout + row * width;
        float *out = of->out + row * width, scale = of->scale[row];
        floats sums = {0};
        for (int64_t i = 0; i < whole; i += LANES) sums += load(dout + i) * load(of->weight + i) * load(x + i);
        float sum = sum_of(sums);
        for (int64_t i = whole; i < width; i++) sum += dout[i] * of->weight[i] * x[i];
        float along = sum * scale * scale * scale / (float)width;
        for (int64_t i = 0; i < whole; i += LANES)
            store(out + i, load(dout + i) * scale * load(of->weight + i) - load(x + i) * along);
        for (int64_t i = whole; i < width; i++) out[i] = dout[i] * scale * of->weight[i] - x[i] * along;
    }
}

/* x, weight, s, dy → dx */
PET_KERNEL(rms_norm_gradient) {
    struct norm of = {.x = params[0], .weight = params[1], .scale = params[2], .dout = params[3], .out = params[4],
                      .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(rms_norm_gradient_rows, &of, of.rows, rows_at_once(of.width));
    return 0;
}

/* LayerNorm: y = (x − m)·s·w + b ---------------------------------------------------------------------------------- */

static void layer_norm_rows(void *arguments, int64_t first, int64_t last) {
    struct norm *of = arguments;
    int64_t width = of->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        const float *x = of->x + row * width;
        float *out = of->out + row * width;
        floats sums = {0};
        for (int64_t i = 0; i < whole; i += LANES) sums += load(x + i);
        float sum = sum_of(sums);
        for (int64_t i = whole; i < width; i++) sum += x[i];
        float mean = sum / (float)width;
        floats squares = {0};
        for (int64_t i = 0; i < whole; i += LANES) squares += (load(x + i) - mean) * (load(x + i) - mean);
        sum = sum_of(squares);
        for (int64_t i = whole; i < width; i++) sum += (x[i] - mean) * (x[i] - mean);
        float scale = 1.0f / sqrtf(sum / (float)width + of->eps);
        of->out_mean[row] = mean;
        of->out_scale[row] = scale;
        for (int64_t i = 0; i < whole; i += LANES)
            store(out + i, (load(x + i) - mean) * scale * load(of->weight + i) + load(of->bias + i));
        for (int64_t i = whole; i < width; i++) out[i] = (x[i] - mean) * scale * of->weight[i] + of->bias[i];
    }
}

/* x (N, H), weight (H), bias (H), eps (1) → y (N, H), m (N, 1), s (N, 1) */
PET_KERNEL(layer_norm) {
    struct norm of = {.x = params[0], .weight = params[1], .bias = params[2], .out = params[4], .out_mean = params[5],
                      .out_scale = params[6], .eps = *(float *)params[3], .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(layer_norm_rows, &of, of.rows, rows_at_once(of.width));
    return 0;
}

/* With c = x − m and q = dy·s·w: dx = q − mean(q) − c·s²·mean(q·c). */
static void layer_norm_gradient_rows(void *arguments, int64_t first, int64_t last) {
    struct norm *of = arguments;
    int64_t width = of->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        const float *x = of->x + row * width, *dout = of->dout + row * width;
        float *out = of->out + row * width, scale = of->scale[row], mean = of->mean[row];
        floats sums = {0}, products = {0};
        for (int64_t i = 0; i < whole; i += LANES) {
            floats q = load(dout + i) * load(of->weight + i);
            sums += q;
            products += q * (load(x + i) - mean);
        }
        float sum = sum_of(sums), product = sum_of(products);
        for (int64_t i = whole; i < width; i++) {
            float q = dout[i] * of->weight[i];
            sum += q;
            product += q * (x[i] - mean);
        }
        float level = sum * scale / (float)width, along = product * scale * scale * scale / (float)width;
        for (int64_t i = 0; i < whole; i += LANES)
            store(out + i, load(dout + i) * scale * load(of->weight + i) - level - (load(x + i) - mean) * along);
        for (int64_t i = whole; i < width; i++)
            out[i] = dout[i] * scale * of->weight[i] - level - (x[i] - mean) * along;
    }
}

/* x, weight, m, s, dy → dx */
PET_KERNEL(layer_norm_gradient) {
    struct norm of = {.x = params[0], .weight = params[1], .mean = params[2], .scale = params[3], .dout = params[4],
                      .out = params[5], .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(layer_norm_gradient_rows, &of, of.rows, rows_at_once(of.width));
    return 0;
}

/* The weight's gradient, Σ over rows of dy·(x − m)·s; m is 0 for RMSNorm. Each piece is some columns of all rows. */
static void norm_weight_columns(void *arguments, int64_t first, int64_t last) {
    struct norm *of = arguments;
    for (int64_t i = first; i < last; i++) of->out[i] = 0.0f;
    for (int64_t row = 0; row < of->rows; row++) {
        const float *x = of->x + row * of->width, *dout = of->dout + row * of->width;
        float scale = of->scale[row], mean = of->mean ? of->mean[row] : 0.0f;
#pragma omp simd
        for (int64_t i = first; i < last; i++) of->out[i] += dout[i] * (x[i] - mean) * scale;
    }
}

/* x, s, dy → dw */
PET_KERNEL(rms_norm_weight_gradient) {
    struct norm of = {.x = params[0], .scale = params[1], .dout = params[2], .out = params[3], .rows = shapes[0][0],
                      .width = shapes[0][1]};
    pet_parallel(norm_weight_columns, &of, of.width, 64);
    return 0;
}

/* x, m, s, dy → dw */
PET_KERNEL(layer_norm_weight_gradient) {
    struct norm of = {.x = params[0], .mean = params[1], .scale = params[2], .dout = params[3], .out = params[4],
                      .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(norm_weight_columns, &of, of.width, 64);
    return 0;
}

/* Activations ------------------------------------------------------------------------------------------------------ */

struct activation {
    const float *gate, *up, *dout;
    float *out, *out_up;
};

static inline floats sigmoid(floats x) { return 1.0f / (1.0f + exponential(-x)); }

/* Calls `step` on a vector of numbers at a time, and on the rest filled up with zeros. */
#define EACH(step)                                                    \
    do {                                                              \
        int64_t i = first;                                            \
        for (; i + LANES <= last; i += LANES) step(load, store);      \
        if (i < last) step(load_rest, store_rest);                    \
    } while (0)
#define load_rest(from) load_some(from, last - i)
#define store_rest(to, value) store_some(to, value, last - i)

static void swiglu_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put)                                                         \
    {                                                                          \
        floats gate = get(of->gate + i);                                       \
        put(of->out + i, gate * sigmoid(gate) * get(of->up + i));              \
    }
    EACH(STEP);
#undef STEP
}

/* gate, up → silu(gate)·up */
PET_KERNEL(swiglu) {
    struct activation of = {.gate = params[0], .up = params[1], .out = params[2]};
    pet_parallel(swiglu_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* silu' = σ + x·σ·(1 − σ) */
static void swiglu_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put)                                                         \
    {                                                                          \
        floats gate = get(of->gate + i), dout = get(of->dout + i);             \
        floats s = sigmoid(gate), silu = gate * s;                             \
        put(of->out + i, dout * get(of->up + i) * (s + silu - silu * s));      \
        put(of->out_up + i, dout * silu);                                      \
    }
    EACH(STEP);
#undef STEP
}

/* gate, up, dy → dgate, dup */
PET_KERNEL(swiglu_gradient) {
    struct activation of = {.gate = params[0], .up = params[1], .dout = params[2], .out = params[3],
                            .out_up = params[4]};
    pet_parallel(swiglu_gradient_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* x·sigmoid(u) with u = 2·√(2/π)·(x + 0.044715·x³), which is GELU by tanh */
static const float LINEAR = 1.5957691216057308f, CUBIC = 0.07135481282731592f;

static void gelu_tanh_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put)                                                         \
    {                                                                          \
        floats x = get(of->gate + i);                                          \
        put(of->out + i, x * sigmoid(x * (x * x * CUBIC + LINEAR)));           \
    }
    EACH(STEP);
#undef STEP
}

/* x → gelu(x) */
PET_KERNEL(gelu_tanh) {
    struct activation of = {.gate = params[0], .out = params[1]};
    pet_parallel(gelu_tanh_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

static void gelu_tanh_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put)                                                         \
    {                                                                          \
        floats x = get(of->gate + i), square = x * x;                          \
        floats s = sigmoid(x * (square * CUBIC + LINEAR));                     \
        floats slope = square * (3.0f * CUBIC) + LINEAR;                       \
        put(of->out + i, get(of->dout + i) * (s + x * slope * (s - s * s)));   \
    }
    EACH(STEP);
#undef STEP
}

/* x, dy → dx */
PET_KERNEL(gelu_tanh_gradient) {
    struct activation of = {.gate = params[0], .dout = params[1], .out = params[2]};
    pet_parallel(gelu_tanh_gradient_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* Heads and rotations ---------------------------------------------------------------------------------------------- */

struct heads {
    const float *x, *cosine, *sine;
    float *out;
    int64_t batch, heads, length, width, rotated, tables;
    int half, back;
};

/* Token by token, because a token's row is read or written whole. */
static void split_heads_tokens(void *arguments, int64_t first, int64_t last) {
    struct heads *of = arguments;
    size_t bytes = (size_t)of->width * sizeof(float);
    for (int64_t token = first; token < last; token++) {
        int64_t batch = token / of->length, place = token % of->length;
        for (int64_t head = 0; head < of->heads; head++) {
            int64_t inner = ((batch * of->heads + head) * of->length + place) * of->width;
            int64_t outer = (token * of->heads + head) * of->width;
            if (of->back)
                memcpy(of->out + outer, of->x + inner, bytes);
            else
                memcpy(of->out + inner, of->x + outer, bytes);
        }
    }
}

/* x (B·S, heads·d) → (B, heads, S, d) */
PET_KERNEL(split_heads) {
    int64_t *out = shapes[count - 1];
    struct heads of = {.x = params[0], .out = params[count - 1], .batch = out[0], .heads = out[1], .length = out[2],
                       .width = out[3]};
    pet_parallel(split_heads_tokens, &of, of.batch * of.length, rows_at_once(of.heads * of.width));
    return 0;
}

/* x (B, heads, S, d) → (B·S, heads·d) */
PET_KERNEL(join_heads) {
    int64_t *x = shapes[0];
    struct heads of = {.x = params[0], .out = params[count - 1], .batch = x[0], .heads = x[1], .length = x[2],
                       .width = x[3], .back = 1};
    pet_parallel(split_heads_tokens, &of, of.batch * of.length, rows_at_once(of.heads * of.width));
    return 0;
}

/* Each pair (a, b) → (a·cos − b·sin, b·cos + a·sin); the way back is the rotation by the opposite angle. */
static void rotary_row(const struct heads *of, const float *x, float *out, const float *c, const float *s) {
    int64_t rotated = of->rotated, pairs = rotated / 2;
    float sign = of->back ? -1.0f : 1.0f;
    if (of->half) {
#pragma omp simd
        for (int64_t i = 0; i < pairs; i++) {
            float a = x[i], b = x[i + pairs];
            out[i] = a * c[i] - sign * b * s[i];
            out[i + pairs] = b * c[i + pairs] + sign * a * s[i + pairs];
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < rotated; i += 2) {
            float a = x[i], b = x[i + 1];
            out[i] = a * c[i] - sign * b * s[i];
            out[i + 1] = b * c[i + 1] + sign * a * s[i + 1];
        }
    }
    for (int64_t i = rotated; i < of->width; i++) out[i] = x[i];
}

static void rotary_rows(void *arguments, int64_t first, int64_t last) {
    struct heads *of = arguments;
    for (int64_t row = first; row < last; row++) {
        int64_t batch = row / (of->heads * of->length), place = row % of->length;
        int64_t table = ((of->tables == 1 ? 0 : batch) * of->length + place) * of->rotated;
        rotary_row(of, of->x + row * of->width, of->out + row * of->width, of->cosine + table, of->sine + table);
    }
}

static int rotary_of(void **params, int64_t **shapes, int half, int back) {
    struct heads of = {.x = params[0], .cosine = params[1], .sine = params[2], .out = params[3],
                       .batch = shapes[0][0], .heads = shapes[0][1], .length = shapes[0][2], .width = shapes[0][3],
                       .tables = shapes[1][0], .rotated = shapes[1][3], .half = half, .back = back};
    pet_parallel(rotary_rows, &of, of.batch * of.heads * of.length, rows_at_once(of.width));
    return 0;
}

/* x (B, heads, S, d), cosines and sines (B or 1, 1, S, rotated) → x rotated, pairs (i, i + rotated/2) */
PET_KERNEL(rotary_half) { return rotary_of(params, shapes, 1, 0); }
PET_KERNEL(rotary_half_back) { return rotary_of(params, shapes, 1, 1); }

/* the same with pairs (2i, 2i + 1) */
PET_KERNEL(rotary_interleaved) { return rotary_of(params, shapes, 0, 0); }
PET_KERNEL(rotary_interleaved_back) { return rotary_of(params, shapes, 0, 1); }

/* Splitting and rotating in one, and both backwards, token by token. */
static void rotary_tokens(void *arguments, int64_t first, int64_t last) {
    struct heads *of = arguments;
    for (int64_t token = first; token < last; token++) {
        int64_t batch = token / of->length, place = token % of->length;
        int64_t table = ((of->tables == 1 ? 0 : batch) * of->length + place) * of->rotated;
        for (int64_t head = 0; head < of->heads; head++) {
            int64_t inner = ((batch * of->heads + head) * of->length + place) * of->width;
            int64_t outer = (token * of->heads + head) * of->width;
            rotary_row(of, of->x + (of->back ? inner : outer), of->out + (of->back ? outer : inner),
                       of->cosine + table, of->sine + table);
        }
    }
}

static int rotary_tokens_of(void **params, int64_t **shapes, const int64_t *split, int half, int back) {
    struct heads of = {.x = params[0], .cosine = params[1], .sine = params[2], .out = params[4], .batch = split[0],
                       .heads = split[1], .length = split[2], .width = split[3], .tables = shapes[1][0],
                       .rotated = shapes[1][3], .half = half, .back = back};
    pet_parallel(rotary_tokens, &of, of.batch * of.length, rows_at_once(of.heads * of.width));
    return 0;
}

/* x (B·S, heads·d), cosines and sines, start (B, S) for its shape → (B, heads, S, d) rotated */
PET_KERNEL(split_rotary_half) { return rotary_tokens_of(params, shapes, shapes[4], 1, 0); }
PET_KERNEL(split_rotary_interleaved) { return rotary_tokens_of(params, shapes, shapes[4], 0, 0); }

/* dy (B, heads, S, d), cosines and sines, start → dx (B·S, heads·d) */
PET_KERNEL(split_rotary_half_back) { return rotary_tokens_of(params, shapes, shapes[0], 1, 1); }
PET_KERNEL(split_rotary_interleaved_back) { return rotary_tokens_of(params, shapes, shapes[0], 0, 1); }

/* Loss ------------------------------------------------------------------------------------------------------------- */

struct loss {
    const float *logits;
    const int32_t *targets;
    float *losses, *gradient;
    int64_t width, ignored;
};

static void softmax_loss_rows(void *arguments, int64_t first, int64_t last) {
    struct loss *of = arguments;
    int64_t width = of->width, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        const float *logits = of->logits + row * width;
        float *gradient = of->gradient + row * width;
        int64_t target = of->targets[row];
        if (target < 0 || target >= width) { /* a row that does not count */
            of->losses[row] = 0.0f;
            memset(gradient, 0, (size_t)width * sizeof(float));
            continue;
        }
        floats most = fill(-INFINITY);
        for (int64_t i = 0; i < whole; i += LANES) most = greater(most, load(logits + i));
        float highest = -INFINITY, parts[LANES];
        store(parts, most);
        for (int i = 0; i < LANES; i++) highest = parts[i] > highest ? parts[i] : highest;
        for (int64_t i = whole; i < width; i++) highest = logits[i] > highest ? logits[i] : highest;
        floats sums = {0};
        for (int64_t i = 0; i < whole; i += LANES) {
            floats value = exponential(load(logits + i) - highest);
            sums += value;
            store(gradient + i, value);
        }
        float sum = sum_of(sums);
        if (whole < width) {
            floats value = exponential(load_some(logits + whole, width - whole) - highest);
            store_some(gradient + whole, value, width - whole);
            for (int64_t i = whole; i < width; i++) sum += gradient[i];
        }
        float share = 1.0f / sum;
        for (int64_t i = 0; i < whole; i += LANES) store(gradient + i, load(gradient + i) * share);
        for (int64_t i = whole; i < width; i++) gradient[i] *= share;
        gradient[target] -= 1.0f;
        of->losses[row] = logf(sum) + highest - logits[target];
    }
}

/* logits (n, V), targets (n), negative where a row does not count → losses (n), softmax − onehot (n, V) */
PET_KERNEL(softmax_loss) {
    struct loss of = {.logits = params[0], .targets = params[1], .losses = params[2], .gradient = params[3],
                      .width = shapes[0][1]};
    pet_parallel(softmax_loss_rows, &of, shapes[0][0], rows_at_once(of.width));
    return 0;
}
