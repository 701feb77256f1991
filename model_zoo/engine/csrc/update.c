/* The optimizer's work on long vectors. All float32.
 *
 * Products and sums are rounded one by one, as the formula of other libraries' optimizers is. */
#pragma STDC FP_CONTRACT OFF
#ifndef __clang__
#pragma GCC optimize("fp-contract=off")
#endif
#include <math.h>

#include "numbers.h"
#include "pool.h"

enum { AT_ONCE = 16384, SQUARES = 32 };

struct adamw {
    float *weights, *average, *square;
    const float *gradient;
    float factor, step_size, root, keep, new_share, decay, square_share, eps;
};

static void adamw_part(void *arguments, int64_t first, int64_t last) {
    struct adamw of = *(struct adamw *)arguments;
#pragma omp simd
    for (int64_t i = first; i < last; i++) {
        float gradient = of.gradient[i] * of.factor;
        float mean = of.average[i] + (gradient - of.average[i]) * of.new_share;
        float mean_square = of.square[i] * of.decay + gradient * gradient * of.square_share;
        of.weights[i] = of.weights[i] * of.keep - of.step_size * (mean / (sqrtf(mean_square) / of.root + of.eps));
        of.average[i] = mean;
        of.square[i] = mean_square;
    }
}

/* Moves weights where they lie, `count` arrays of these sizes, whose gradients, averages and averages of squares lie end to
 * end. The numbers: what the gradient is multiplied by, step size, root of the squares' correction, share of the weights
 * that stays, 1 − β₁, β₂, 1 − β₂, ε. */
void adamw_in_place(int64_t count, float *const *weights, const int64_t *sizes, const float *gradient, float *average,
                    float *square, const float *numbers) {
    struct adamw of = {.average = average, .square = square, .gradient = gradient, .factor = numbers[0],
                       .step_size = numbers[1], .root = numbers[2], .keep = numbers[3], .new_share = numbers[4],
                       .decay = numbers[5], .square_share = numbers[6], .eps = numbers[7]};
    for (int64_t index = 0; index < count; index++) {
        of.weights = weights[index];
        pet_parallel(adamw_part, &of, sizes[index], AT_ONCE);
        of.gradient += sizes[index];
        of.average += sizes[index];
        of.square += sizes[index];
    }
}

struct squares {
    const float *vector;
    double *sums;
    int64_t size;
};

static void square_parts(void *arguments, int64_t first, int64_t last) {
    struct squares *of = arguments;
    for (int64_t part = first; part < last; part++) {
        int64_t end = (part + 1) * AT_ONCE < of->size ? (part + 1) * AT_ONCE : of->size;
        double lanes[SQUARES] = {0}, sum = 0.0; /* one sum after the other would wait for each addition */
        int64_t i = part * AT_ONCE;
        for (; i + SQUARES <= end; i += SQUARES)
#pragma GCC unroll 32
            for (int j = 0; j < SQUARES; j++) lanes[j] += (double)of->vector[i + j] * of->vector[i + j];
        for (; i < end; i++) sum += (double)of->vector[i] * of->vector[i];
        for (int j = 0; j < SQUARES; j++) sum += lanes[j];
        of->sums[part] = sum;
    }
}

struct copy {
    const float *from;
    float *to;
};

static void copy_some(void *arguments, int64_t first, int64_t last) {
    struct copy *of = arguments;
    memcpy(of->to + first, of->from + first, (size_t)(last - first) * sizeof(float));
}

/* n tensors (…) → their numbers end to end */
PET_KERNEL(joined) {
    struct copy of = {.to = params[count - 1]};
    for (int each = 0; each < count - 1; each++) {
        int64_t size = size_of(ndims[each], shapes[each]);
        of.from = params[each];
        pet_parallel(copy_some, &of, size, AT_ONCE);
        of.to += size;
    }
    return 0;
}

/* n tensors (…) → the sum of the squares of each (n), in double precision and an order of its own whatever the threads */
PET_KERNEL(sums_of_squares) {
    for (int each = 0; each < count - 1; each++) {
        int64_t size = size_of(ndims[each], shapes[each]), parts = (size + AT_ONCE - 1) / AT_ONCE;
        struct squares of = {.vector = params[each], .size = size, .sums = pet_scratch(0, (parts + 1) * 8)};
        if (!of.sums) return 1;
        pet_parallel(square_parts, &of, parts, 4);
        double sum = 0.0;
        for (int64_t part = 0; part < parts; part++) sum += of.sums[part];
        ((float *)params[count - 1])[each] = (float)sum;
    }
    return 0;
}
