/* Mixtures of experts: which of them a token goes through, and their shares; rows in the order of their experts, and back.
 *
 * A token is a row for each expert that it goes through. Rows lie in the order of their experts, those of one in the order
 * of the tokens, so that there are as many as ever for any choice, and each expert's lie together. */
#include <math.h>
#include <string.h>

#include "numbers.h"
#include "pool.h"

struct shares {
    const float *logits, *shares, *dout;
    float *out;
    int32_t *chosen;
    int64_t width, chosen_count;
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
        for (int64_t n = 0; n < of->chosen_count; n++) {
            int64_t best = -1;
            for (int64_t i = 0; i < of->width; i++)
                if (!marked[i] && (best < 0 || out[i] > out[best])) best = i;
            marked[best] = 1;
        }
        int32_t *chosen = of->chosen + row * of->chosen_count;
        for (int64_t i = 0; i < of->width; i++) {
            if (marked[i]) *chosen++ = (int32_t)i;
            sum += out[i] *= (float)marked[i]; /* what is not a number stays so */
        }
        for (int64_t i = 0; of->normed && i < of->width; i++) out[i] /= sum;
    }
}

/* logits (N, E), how many are chosen, k, whether their shares add up to 1 → shares (N, E), 0 for the others; of each token's
 * experts, in their order, the rows (N, k); of each row its expert, and its token (N, k) */
PET_KERNEL(chosen_shares) {
    int64_t tokens = shapes[0][0], chosen = *(int32_t *)params[1];
    struct shares of = {.logits = params[0], .chosen_count = chosen, .normed = *(int32_t *)params[2], .out = params[3],
                        .chosen = params[5], .width = shapes[0][1]};
    if (chosen < 1 || chosen > of.width) return 1;
    pet_parallel(shares_rows, &of, tokens, rows_at_once(of.width * chosen));
    int32_t *row_of = params[4], *experts = params[5], *token_of = params[6];
    int64_t next[of.width + 1];
    memset(next, 0, sizeof next);
    for (int64_t i = 0; i < tokens * chosen; i++) next[experts[i] + 1]++;
    for (int64_t expert = 0; expert < of.width; expert++) next[expert + 1] += next[expert];
    for (int64_t i = 0; i < tokens * chosen; i++) token_of[row_of[i] = (int32_t)next[experts[i]]++] = (int32_t)(i / chosen);
    for (int64_t expert = 0, row = 0; expert < of.width; expert++) /* next is now where the rows of an expert end */
        while (row < next[expert]) experts[row++] = (int32_t)expert;
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

struct mixture {
    struct numbers x, dout, out;
    const int32_t *row_of, *experts, *token_of;
    const float *shares;
    float *d_shares;
    int64_t width, chosen, count; /* of the rows, of a token's experts, and of all experts */
};

static void rows_of_experts(void *arguments, int64_t first, int64_t last) {
    struct mixture *of = arguments;
    for (int64_t row = first; row < last; row++)
        copy_numbers(of->x, of->token_of[row] * of->width, of->out, row * of->width, of->width);
}

/* x (N, H), each row's token (N, k) and each token's rows (N, k) → the rows (N·k, H) */
PET_KERNEL(rows_to_experts) {
    struct mixture of = {.x = numbers_of(params, dtypes, 0), .token_of = params[1], .out = numbers_of(params, dtypes, 3),
                         .width = shapes[0][1]};
    pet_parallel(rows_of_experts, &of, shapes[1][0] * shapes[1][1], rows_at_once(of.width));
    return 0;
}

/* Of a token's rows the sum, by shares where there are some. Rows below 0 take no part. */
static void sum_tokens(void *arguments, int64_t first, int64_t last) {
    struct mixture *of = arguments;
    float rooms[2][of->width];
    for (int64_t token = first; token < last; token++) {
        float *out = room_for(of->out, token * of->width, rooms[0]);
        memset(out, 0, (size_t)of->width * sizeof *out);
        for (const int32_t *row = of->row_of + token * of->chosen; row < of->row_of + (token + 1) * of->chosen; row++) {
            if (*row < 0) continue;
            const float *x = widened(of->x, *row * of->width, of->width, rooms[1]);
            float share = of->shares ? of->shares[token * of->count + of->experts[*row]] : 1.0f;
#pragma omp simd
            for (int64_t i = 0; i < of->width; i++) out[i] += share * x[i];
        }
        put_back(of->out, token * of->width, of->width, rooms[0]);
    }
}

/* rows (N·k, H), each token's rows (N, k) → their sums (N, H) */
PET_KERNEL(rows_from_experts) {
    struct mixture of = {.x = numbers_of(params, dtypes, 0), .row_of = params[1], .out = numbers_of(params, dtypes, 2),
                         .width = shapes[0][1], .chosen = shapes[1][1]};
    pet_parallel(sum_tokens, &of, shapes[1][0], rows_at_once(of.width * of.chosen));
    return 0;
}

/* The same by shares: rows (N·k, H), shares (N, E), each token's rows and each row's expert (N, k) → their sums (N, H) */
PET_KERNEL(sum_by_share) {
    struct mixture of = {.x = numbers_of(params, dtypes, 0), .shares = params[1], .row_of = params[2], .experts = params[3],
                         .out = numbers_of(params, dtypes, 4), .width = shapes[0][1], .chosen = shapes[2][1],
                         .count = shapes[1][1]};
    pet_parallel(sum_tokens, &of, shapes[1][0], rows_at_once(of.width * of.chosen));
    return 0;
}

static void sum_gradient_tokens(void *arguments, int64_t first, int64_t last) {
    struct mixture *of = arguments;
    float rooms[3][of->width];
    for (int64_t token = first; token < last; token++) {
        const float *dout = widened(of->dout, token * of->width, of->width, rooms[0]);
        float *d_shares = of->d_shares + token * of->count;
        memset(d_shares, 0, (size_t)of->count * sizeof *d_shares);
        for (const int32_t *row = of->row_of + token * of->chosen; row < of->row_of + (token + 1) * of->chosen; row++) {
            if (*row < 0) continue;
            const float *x = widened(of->x, *row * of->width, of->width, rooms[1]);
            float *out = room_for(of->out, *row * of->width, rooms[2]), sum = 0.0f;
            float share = of->shares[token * of->count + of->experts[*row]];
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < of->width; i++) {
                sum += x[i] * dout[i];
                out[i] = share * dout[i];
            }
            put_back(of->out, *row * of->width, of->width, rooms[2]);
            d_shares[of->experts[*row]] = sum;
        }
    }
}

/* what sum_by_share takes, and the gradient of what it gives → those of the rows, which may lie where they do, and of the
 * shares */
PET_KERNEL(sum_by_share_gradient) {
    struct mixture of = {.x = numbers_of(params, dtypes, 0), .shares = params[1], .row_of = params[2], .experts = params[3],
                         .dout = numbers_of(params, dtypes, 4), .out = numbers_of(params, dtypes, 5), .d_shares = params[6],
                         .width = shapes[0][1], .chosen = shapes[2][1], .count = shapes[1][1]};
    pet_parallel(sum_gradient_tokens, &of, shapes[1][0], rows_at_once(of.width * of.chosen));
    return 0;
}

/* each token's rows and each row's expert (N, k), which experts are meant (E) → the rows of these, −1 for the others */
PET_KERNEL(rows_of_some) {
    const int32_t *row_of = params[0], *experts = params[1], *meant = params[2];
    int32_t *out = params[3];
    for (int64_t i = 0; i < shapes[0][0] * shapes[0][1]; i++) out[i] = meant[experts[row_of[i]]] ? row_of[i] : -1;
    return 0;
}
