/* The head and the cross-entropy of what it predicts in one, of the rows that count alone: a token without a label costs
 * nothing, and there are never more logits than those of a piece. All float32, targets int32. */
#include <math.h>

#include "few_rows.h"
#include "gemm.h"
#include "pool.h"
#include "vectors.h"

struct head {
    const float *hidden;
    struct matrix weight;
    const int32_t *targets;
    float *losses, *second; /* of each row; the second is its gradient, or whether its target is ranked first */
    float *weight_gradient;
    int64_t rows, width, vocabulary, together;
    float cap, smoothing; /* logits become cap·tanh(logit/cap), unless it is 0; this share of what is wanted is spread evenly */
    float apart;          /* what the divergence of rows 2i and 2i + 1 from each other, both ways, adds to the loss; 0 for no pairs */
    int ranks, how; /* the products are computed */
    int rounds;     /* what becomes of logits is in bfloat16, each row where its logits were */
    /* of a piece */
    float *logits, *some_hidden, *some_gradient;
    int32_t *numbers, *some_targets;
};

static float highest_of(const float *logits, int64_t width) {
    int64_t whole = width / LANES * LANES;
    floats most = fill(-INFINITY);
    for (int64_t i = 0; i < whole; i += LANES) most = greater(most, load(logits + i));
    float highest = greatest_of(most);
    for (int64_t i = whole; i < width; i++) highest = logits[i] > highest ? logits[i] : highest;
    return highest;
}

static float mean_of(const float *logits, int64_t width) {
    floats sums = {0};
    for (int64_t i = 0; i < width; i += LANES) sums += load_some(logits + i, width - i < LANES ? width - i : LANES);
    return sum_of(sums) / (float)width;
}

/* How logits before the cap move those behind it. */
static floats slopes_at(floats logits, float cap) {
    floats bent = logits * (1.0f / cap);
    return cap > 0.0f ? 1.0f - bent * bent : fill(1.0f);
}

/* Turns each row's logits into softmax − what is wanted, a onehot unless it is smoothed, or says whether no other token is
 * ahead of its target. A target that there is not has no finite loss. */
static void lose(void *arguments, int64_t first, int64_t last) {
    struct head *of = arguments;
    int64_t width = of->vocabulary, whole = width / LANES * LANES;
    for (int64_t row = first; row < last; row++) {
        float *logits = of->logits + row * width;
        int64_t target = of->some_targets[row];
        int capped = of->cap > 0.0f;
        if (capped) bend(logits, width, 1.0f / of->cap, of->cap);
        float highest = highest_of(logits, width), its_own = target < width ? logits[target] : NAN;
        if (of->ranks) {
            int64_t ahead = 0;
            while (ahead < target && ahead < width && logits[ahead] < its_own) ahead++; /* of equals the first leads */
            of->second[of->numbers[row]] = ahead == target && its_own == highest ? 1.0f : 0.0f;
        }
        float wanted = its_own, even = of->smoothing / (float)width;
        if (of->smoothing > 0.0f) wanted = (1.0f - of->smoothing) * its_own + of->smoothing * mean_of(logits, width);
        floats sums = {0};
        for (int64_t i = 0; i < whole; i += LANES) {
            floats value = exponential(load(logits + i) - highest);
            sums += value;
            if (!capped) store(logits + i, value);
        }
        float sum = sum_of(sums);
        if (whole < width) {
            floats value = exponential(load_some(logits + whole, width - whole) - highest);
            for (int64_t i = whole; i < width; i++) sum += value[i - whole];
            if (!capped) store_some(logits + whole, value, width - whole);
        }
        of->losses[of->numbers[row]] = logf(sum) + (highest - wanted); /* a small loss is no difference of large sums */
        if (of->ranks) continue;
        float share = 1.0f / sum, slope = capped ? 1.0f - its_own * its_own / (of->cap * of->cap) : 1.0f;
        for (int64_t i = 0; capped && i < width; i += LANES) { /* the gradient goes through the cap */
            int64_t some = width - i < LANES ? width - i : LANES;
            floats x = load_some(logits + i, some);
            store_some(logits + i, (exponential(x - highest) - even * sum) * slopes_at(x, of->cap), some);
        }
#pragma omp simd
        for (int64_t i = 0; i < width; i++) logits[i] = logits[i] * share - (capped ? 0.0f : even);
        if (target < width) logits[target] -= (1.0f - of->smoothing) * slope;
        put_back((struct numbers){logits, of->rounds}, 0, width, logits); /* as their products would */
    }
}

/* The first numbers of a vector; the others are 0. */
static floats first_of(floats value, int64_t count) { return load_some((float *)&value, count); }

/* The logarithm of a row's sum of exponentials, without the highest logit. */
static float log_sum_of(const float *logits, int64_t width, float highest) {
    floats sums = {0};
    for (int64_t i = 0; i < width; i += LANES) {
        int64_t some = width - i < LANES ? width - i : LANES;
        sums += first_of(exponential(load_some(logits + i, some) - highest), some);
    }
    return logf(sum_of(sums));
}

/* `lose` of pairs, whose losses hold half of what their divergence adds each. With p and q, x = log p − log q and the
 * divergences P = Σp·x and −Q = Σq·x, the gradient of P + Q is p·(x − P) + p − q, and that of q likewise. */
static void lose_pairs(void *arguments, int64_t first, int64_t last) {
    struct head *of = arguments;
    int64_t width = of->vocabulary;
    float even = of->smoothing / (float)width, weight = of->apart;
    for (int64_t pair = first; pair < last; pair++) {
        float *rows[] = {of->logits + 2 * pair * width, of->logits + (2 * pair + 1) * width};
        float its_own[2], highest[2], logs[2], sums[2];
        int64_t target = of->some_targets[2 * pair];
        for (int i = 0; i < 2; i++) {
            if (of->cap > 0.0f) bend(rows[i], width, 1.0f / of->cap, of->cap);
            its_own[i] = target < width ? rows[i][target] : NAN;
            highest[i] = highest_of(rows[i], width);
            logs[i] = log_sum_of(rows[i], width, highest[i]);
            sums[i] = logs[i] + highest[i];
        }
        floats here = {0}, there = {0};
        for (int64_t i = 0; i < width; i += LANES) {
            int64_t some = width - i < LANES ? width - i : LANES;
            floats log_p = load_some(rows[0] + i, some) - sums[0], log_q = load_some(rows[1] + i, some) - sums[1];
            here += first_of(exponential(log_p) * (log_p - log_q), some);
            there += first_of(exponential(log_q) * (log_q - log_p), some);
        }
        float to_other[] = {sum_of(here), sum_of(there)};
        for (int i = 0; i < 2; i++) {
            float wanted = (1.0f - of->smoothing) * its_own[i] + of->smoothing * mean_of(rows[i], width);
            float apart = 0.5f * weight * (to_other[0] + to_other[1]);
            of->losses[of->numbers[2 * pair + i]] = logs[i] + (highest[i] - wanted) + apart;
        }
        for (int64_t i = 0; i < width; i += LANES) {
            int64_t some = width - i < LANES ? width - i : LANES;
            floats x = load_some(rows[0] + i, some), y = load_some(rows[1] + i, some);
            floats log_p = x - sums[0], log_q = y - sums[1], p = exponential(log_p), q = exponential(log_q), both = weight * (p - q);
            floats of_x = p + weight * p * (log_p - log_q - to_other[0]) + both - even;
            floats of_y = q + weight * q * (log_q - log_p - to_other[1]) - both - even;
            store_some(rows[0] + i, of_x * slopes_at(x, of->cap), some);
            store_some(rows[1] + i, of_y * slopes_at(y, of->cap), some);
        }
        for (int i = 0; i < 2; i++) {
            if (target < width) rows[i][target] -= (1.0f - of->smoothing) * slopes_at(fill(its_own[i]), of->cap)[0];
            put_back((struct numbers){rows[i], of->rounds}, 0, width, rows[i]);
        }
    }
}

static int over_pieces(struct head *of, float *workspace) {
    size_t line = (size_t)of->width * sizeof(float);
    of->logits = workspace;
    of->some_hidden = of->logits + of->together * of->vocabulary;
    of->some_gradient = of->some_hidden + of->together * of->width;
    of->numbers = (int32_t *)(of->some_gradient + of->together * of->width);
    of->some_targets = of->numbers + of->together;
    memset(of->losses, 0, (size_t)of->rows * sizeof(float));
    memset(of->second, 0, of->ranks ? (size_t)of->rows * sizeof(float) : (size_t)of->rows * line);
    int began = 0;
    for (int64_t row = 0; row < of->rows;) {
        int64_t some = 0;
        for (; row < of->rows && some < of->together; row++) {
            if (of->targets[row] < 0) continue;
            of->numbers[some] = (int32_t)row;
            of->some_targets[some] = of->targets[row];
            memcpy(of->some_hidden + some++ * of->width, of->hidden + row * of->width, line);
        }
        if (some == 0) break;
        if (product_by_rows(of->some_hidden, of->weight, of->logits, some, of->vocabulary, of->width, of->how)) return 1;
        of->rounds = of->how & IN_BF16 && some > FEW_ROWS;
        if (of->apart > 0.0f) pet_parallel(lose_pairs, of, some / 2, rows_at_once(2 * of->vocabulary));
        else pet_parallel(lose, of, some, rows_at_once(of->vocabulary));
        if (of->ranks) continue;
        struct numbers slopes = {of->logits, of->rounds};
        int64_t slopes_row = of->rounds ? 2 * of->vocabulary : of->vocabulary;
        struct product gradient = {.c = {of->some_gradient}, .columns = of->width, .bf16 = (of->how & IN_BF16) != 0, .count = 1,
                                   .terms = {{.a = slopes, .a_row = slopes_row, .b = of->weight, .depth = of->vocabulary}}};
        if (products(&gradient, 1, some)) return 1;
        for (int64_t i = 0; i < some; i++)
            memcpy(of->second + of->numbers[i] * of->width, of->some_gradient + i * of->width, line);
        if (of->weight_gradient && product_by_columns(slopes, slopes_row, float_matrix(of->some_hidden, of->width), of->weight_gradient,
                                                      of->vocabulary, of->width, some, of->how | (began ? ADDS : 0)))
            return 1;
        began = 1;
    }
    if (of->weight_gradient && !began) memset(of->weight_gradient, 0, (size_t)of->vocabulary * line);
    return 0;
}

enum what { OF_HIDDEN, OF_BOTH, RANKS }; /* whose gradients are asked for, or whether each target is ranked first */

static int cross_entropy(void **params, int64_t **shapes, const char **dtypes, enum what what, int how) {
    int room = what == OF_BOTH ? 7 : 6;
    struct head of = {.hidden = params[0], .weight = matrix_of(params, shapes, dtypes, 1), .targets = params[2], .cap = ((float *)params[3])[0],
                      .smoothing = ((float *)params[3])[1], .apart = ((float *)params[3])[2], .losses = params[4], .second = params[5],
                      .weight_gradient = what == OF_BOTH ? params[6] : NULL, .rows = shapes[0][0], .width = shapes[0][1],
                      .vocabulary = shapes[1][0], .together = shapes[room][0], .ranks = what == RANKS, .how = how};
    return over_pieces(&of, params[room]);
}

/* hidden (N, H), weight (V, H), targets (N), negative where a row does not count, cap, smoothing and apart (3), 0 for none →
 * losses (N), hidden's gradient (N, H), and room for a piece of so many rows (rows, V + 2·H + 2) */
PET_KERNEL(linear_cross_entropy) { return cross_entropy(params, shapes, dtypes, OF_HIDDEN, 0); }
PET_KERNEL(linear_cross_entropy_bf16) { return cross_entropy(params, shapes, dtypes, OF_HIDDEN, IN_BF16); }

/* the same, and the weight's gradient (V, H) before the room */
PET_KERNEL(linear_cross_entropy_trained) { return cross_entropy(params, shapes, dtypes, OF_BOTH, 0); }
PET_KERNEL(linear_cross_entropy_trained_bf16) { return cross_entropy(params, shapes, dtypes, OF_BOTH, IN_BF16); }

/* the same inputs → losses (N), 1 where the target is ranked first (N), and the room */
PET_KERNEL(ranked_cross_entropy) { return cross_entropy(params, shapes, dtypes, RANKS, 0); }
PET_KERNEL(ranked_cross_entropy_bf16) { return cross_entropy(params, shapes, dtypes, RANKS, IN_BF16); }
