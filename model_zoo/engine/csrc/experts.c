/* Mixtures of experts: which of them a token goes through, and their shares. */
#include <math.h>
#include <string.h>

#include "pool.h"

struct shares {
    const float *logits, *shares, *dout;
    float *out;
    int64_t width, chosen;
    int normed;
};

static void softmax_row(const float *x, int64_t width, float *out) {
    float greatest = x[0], sum = 0.0f;
    for (int64_t i = 1; i < width; i++) greatest = x[i] > greatest ? x[i] : greatest;
    for (int64_t i = 0; i < width; i++) sum += out[i] = expf(x[i] - greatest);
    for (int64_t i = 0; i < width; i++) out[i] /= sum;
}

static void shares_rows(void *arguments, int64_t first, int64_t last) {
    struct shares *of = arguments;
    char marked[of->width];
    for (int64_t row = first; row < last; row++) {
        float *out = of->out + row * of->width, sum = 0.0f;
        softmax_row(of->logits + row * of->width, of->width, out);
        memset(marked, 0, sizeof marked);
        for (int64_t n = 0; n < of->chosen; n++) {
            int64_t best = -1;
            for (int64_t i = 0; i < of->width; i++)
                if (!marked[i] && (best < 0 || out[i] > out[best])) best = i;
            marked[best] = 1;
        }
        for (int64_t i = 0; i < of->width; i++) sum += out[i] *= (float)marked[i]; /* what is not a number stays so */
        for (int64_t i = 0; of->normed && i < of->width; i++) out[i] /= sum;
    }
}

/* logits (N, E), how many are chosen, whether their shares add up to 1 → shares (N, E), 0 for the others */
PET_KERNEL(chosen_shares) {
    struct shares of = {.logits = params[0], .chosen = *(int32_t *)params[1], .normed = *(int32_t *)params[2],
                        .out = params[3], .width = shapes[0][1]};
    if (of.chosen < 1 || of.chosen > of.width) return 1;
    pet_parallel(shares_rows, &of, shapes[0][0], rows_at_once(of.width * of.chosen));
    return 0;
}

/* With p the softmax of all and m what was chosen: of y = p·m dx = y·dy − p·Σ(y·dy), of y = p·m/Σ(p·m) the same with y
 * for p. */
static void shares_gradient_rows(void *arguments, int64_t first, int64_t last) {
    struct shares *of = arguments;
    float all[of->width];
    for (int64_t row = first; row < last; row++) {
        int64_t at = row * of->width;
        const float *y = of->shares + at, *dout = of->dout + at, *p = of->normed ? y : all;
        float *out = of->out + at, along = 0.0f;
        if (!of->normed) softmax_row(of->logits + at, of->width, all);
        for (int64_t i = 0; i < of->width; i++) along += y[i] * dout[i];
        for (int64_t i = 0; i < of->width; i++) out[i] = y[i] * dout[i] - p[i] * along;
    }
}

/* logits, chosen, normed, shares, their gradient (N, E) → the logits' */
PET_KERNEL(chosen_shares_gradient) {
    struct shares of = {.logits = params[0], .normed = *(int32_t *)params[2], .shares = params[3], .dout = params[4],
                        .out = params[5], .width = shapes[0][1]};
    pet_parallel(shares_gradient_rows, &of, shapes[0][0], rows_at_once(2 * of.width));
    return 0;
}
