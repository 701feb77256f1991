/* Cross-entropy and its gradient in one. All float32, targets int32. */
#include <math.h>

#include "pool.h"
#include "vectors.h"

struct loss {
    const float *logits;
    const int32_t *targets;
    float *losses, *gradient;
    int64_t width;
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
