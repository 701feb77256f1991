/* The optimizer's work on long vectors. All float32.
 *
 * Products and sums are rounded one by one, as the formula of other libraries' optimizers is. */
#pragma STDC FP_CONTRACT OFF
#ifndef __clang__
#pragma GCC optimize("fp-contract=off")
#endif
#include <math.h>

#include "pool.h"
#include "vectors.h"

enum { AT_ONCE = 16384 };

struct adamw {
    const float *weights, *gradient, *average, *square;
    float *new_weights, *new_average, *new_square;
    float step_size, root, keep, new_share, decay, square_share, eps;
};

static void adamw_part(void *arguments, int64_t first, int64_t last) {
    struct adamw of = *(struct adamw *)arguments;
#pragma omp simd
    for (int64_t i = first; i < last; i++) {
        float gradient = of.gradient[i];
        float mean = of.average[i] + (gradient - of.average[i]) * of.new_share;
        float mean_square = of.square[i] * of.decay + gradient * gradient * of.square_share;
        of.new_weights[i] = of.weights[i] * of.keep - of.step_size * (mean / (sqrtf(mean_square) / of.root + of.eps));
        of.new_average[i] = mean;
        of.new_square[i] = mean_square;
    }
}

/* weights, gradient, average, average of squares (n); step size, root of the squares' correction, share of the weights that
 * stays (one number each); 1 − β₁, β₂, 1 − β₂, ε (4) → the new weights and averages (n) */
PET_KERNEL(adamw) {
    const float *numbers = params[7];
    struct adamw of = {.weights = params[0], .gradient = params[1], .average = params[2], .square = params[3],
                       .step_size = *(float *)params[4], .root = *(float *)params[5], .keep = *(float *)params[6],
                       .new_share = numbers[0], .decay = numbers[1], .square_share = numbers[2], .eps = numbers[3],
                       .new_weights = params[8], .new_average = params[9], .new_square = params[10]};
    pet_parallel(adamw_part, &of, shapes[0][0], AT_ONCE);
    return 0;
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
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = part * AT_ONCE; i < end; i++) sum += (double)of->vector[i] * of->vector[i];
        of->sums[part] = sum;
    }
}

/* vector (n) → the sum of its squares (1), in double precision and an order of its own whatever the threads */
PET_KERNEL(sum_of_squares) {
    int64_t parts = (shapes[0][0] + AT_ONCE - 1) / AT_ONCE;
    struct squares of = {.vector = params[0], .size = shapes[0][0], .sums = pet_scratch(0, (parts + 1) * 8)};
    if (!of.sums) return 1;
    pet_parallel(square_parts, &of, parts, 4);
    double sum = 0.0;
    for (int64_t part = 0; part < parts; part++) sum += of.sums[part];
    *(float *)params[1] = (float)sum;
    return 0;
}
