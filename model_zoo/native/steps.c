/* Kernels one after the other as one operator: what a layer does with single tokens takes less time than a framework
 * needs to launch its parts. What they hand to one another stays in one piece of memory. */
#include "pool.h"
#include "vectors.h"

/* Small kernels that only such steps need -------------------------------------------------------------------------- */

/* a, b and a factor (1) → a·factor + b */
static PET_KERNEL(add) {
    const float *a = params[0], *b = params[1], factor = *(float *)params[2];
    float *out = params[3];
    int64_t size = 1;
    for (int i = 0; i < ndims[0]; i++) size *= shapes[0][i];
#pragma omp simd
    for (int64_t i = 0; i < size; i++) out[i] = a[i] * factor + b[i];
    return 0;
}

/* x (N, W), bias (W) → x + bias */
static PET_KERNEL(add_bias) {
    const float *x = params[0], *bias = params[1];
    float *out = params[2];
    int64_t width = shapes[0][1];
    for (int64_t row = 0; row < shapes[0][0]; row++)
#pragma omp simd
        for (int64_t i = 0; i < width; i++) out[row * width + i] = x[row * width + i] + bias[i];
    return 0;
}

/* x (N, W), first (1) → columns first … first + w − 1, (N, w) */
static PET_KERNEL(take_columns) {
    const float *x = (const float *)params[0] + *(int32_t *)params[1];
    float *out = params[2];
    int64_t width = shapes[2][1];
    for (int64_t row = 0; row < shapes[0][0]; row++)
        memcpy(out + row * width, x + row * shapes[0][1], (size_t)width * sizeof(float));
    return 0;
}

/* a (N, W), b (N, w) → a | b, (N, W + w) */
static PET_KERNEL(join_columns) {
    const float *a = params[0], *b = params[1];
    float *out = params[2];
    int64_t first = shapes[0][1], second = shapes[1][1];
    for (int64_t row = 0; row < shapes[0][0]; row++, out += first + second) {
        memcpy(out, a + row * first, (size_t)first * sizeof(float));
        memcpy(out + first, b + row * second, (size_t)second * sizeof(float));
    }
    return 0;
}

/* The list ---------------------------------------------------------------------------------------------------------- */

PET_KERNEL(rms_norm);
PET_KERNEL(layer_norm);
PET_KERNEL(product_of_rows);
PET_KERNEL(plain_product);
PET_KERNEL(rotary_half);
PET_KERNEL(rotary_interleaved);
PET_KERNEL(token_attention);
PET_KERNEL(swiglu);
PET_KERNEL(gelu_tanh);

static int (*const kernels[])(int, void **, int *, int64_t **, const char **, void *, void *) = {
    /* in the order of KERNELS in decoding.py */
    rms_norm, layer_norm, product_of_rows, plain_product, rotary_half, rotary_interleaved,
    token_attention, swiglu, gelu_tanh, add, add_bias, take_columns, join_columns,
};

enum { KERNELS = sizeof kernels / sizeof *kernels, DIMENSIONS = 4, MOST_OPERANDS = 12, MOST_PLACES = 256 };

/* Operands, and last the program, int32: how many places, how many steps, how many numbers they need together; for each
 * place where it is, how many dimensions it has, and four of them; for each step its kernel, how many places it uses,
 * and which. The operands are the first places, the output is the next, then come those of the program: where it is
 * counts numbers, in the memory that they share, or, below 0, those of the program, from −1 on. → the output */
PET_KERNEL(steps) {
    int operands = count - 2;
    const int32_t *program = params[operands], *word = program + 3;
    int places = operands + 1 + program[0];
    if (places > MOST_PLACES) return 1;
    float *memory = pet_scratch(PET_STEPS, (int64_t)program[2] * (int64_t)sizeof(float));
    if (!memory) return 1;
    void *at[MOST_PLACES];
    int dimensions[MOST_PLACES];
    int64_t *shape[MOST_PLACES], own[MOST_PLACES][DIMENSIONS];
    for (int i = 0; i <= operands; i++) {
        int from = i < operands ? i : count - 1;
        at[i] = params[from];
        dimensions[i] = ndims[from];
        shape[i] = shapes[from];
    }
    for (int i = operands + 1; i < places; i++, word += 2 + DIMENSIONS) {
        at[i] = word[0] < 0 ? (void *)(program - 1 - word[0]) : (void *)(memory + word[0]);
        dimensions[i] = word[1];
        for (int j = 0; j < DIMENSIONS; j++) own[i][j] = word[2 + j];
        shape[i] = own[i];
    }
    for (int step = 0; step < program[1]; step++) {
        int kernel = *word++, uses = *word++;
        void *its[MOST_OPERANDS];
        int its_dimensions[MOST_OPERANDS];
        int64_t *its_shapes[MOST_OPERANDS];
        if (kernel < 0 || kernel >= KERNELS || uses > MOST_OPERANDS) return 1;
        for (int i = 0; i < uses; i++) {
            int place = *word++;
            if (place < 0 || place >= places) return 1;
            its[i] = at[place];
            its_dimensions[i] = dimensions[place];
            its_shapes[i] = shape[place];
        }
        int failed = kernels[kernel](uses, its, its_dimensions, its_shapes, dtypes, stream, extra);
        if (failed) return failed;
    }
    return 0;
}
