/* Heads apart and together, and rotations by position. */
#include "numbers.h"
#include "pool.h"

struct heads {
    struct numbers x, out;
    const float *cosine, *sine;
    int64_t batch, heads, length, width, rotated, tables;
    int half, back;
};

/* Each pair (a, b) → (a·cos − b·sin, b·cos + a·sin); the way back is the rotation by the opposite angle. */
static void rotary_row(const struct heads *of, int64_t from, int64_t to, int64_t table) {
    float rooms[2][of->width], *out = room_for(of->out, to, rooms[1]);
    const float *x = widened(of->x, from, of->width, rooms[0]), *c = of->cosine + table, *s = of->sine + table;
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
    put_back(of->out, to, of->width, rooms[1]);
}

static void rotary_rows(void *arguments, int64_t first, int64_t last) {
    struct heads *of = arguments;
    for (int64_t row = first; row < last; row++) {
        int64_t batch = row / (of->heads * of->length), place = row % of->length;
        int64_t table = ((of->tables == 1 ? 0 : batch) * of->length + place) * of->rotated;
        rotary_row(of, row * of->width, row * of->width, table);
    }
}

static int rotary_of(void **params, int64_t **shapes, const char **types, int half, int back) {
    struct heads of = {.x = numbers_of(params, types, 0), .cosine = params[1], .sine = params[2], .out = numbers_of(params, types, 3),
                       .batch = shapes[0][0], .heads = shapes[0][1], .length = shapes[0][2], .width = shapes[0][3],
                       .tables = shapes[1][0], .rotated = shapes[1][3], .half = half, .back = back};
    pet_parallel(rotary_rows, &of, of.batch * of.heads * of.length, rows_at_once(of.width));
    return 0;
}

/* x (B, heads, S, d), cosines and sines (B or 1, 1, S, rotated) → x rotated, pairs (i, i + rotated/2) */
PET_KERNEL(rotary_half) { return rotary_of(params, shapes, dtypes, 1, 0); }
PET_KERNEL(rotary_half_back) { return rotary_of(params, shapes, dtypes, 1, 1); }

/* the same with pairs (2i, 2i + 1) */
PET_KERNEL(rotary_interleaved) { return rotary_of(params, shapes, dtypes, 0, 0); }
PET_KERNEL(rotary_interleaved_back) { return rotary_of(params, shapes, dtypes, 0, 1); }

/* Splitting, with rotating where there are tables, and both backwards. Token by token, because a token's row is read or
 * written whole. */
static void split_tokens(void *arguments, int64_t first, int64_t last) {
    struct heads *of = arguments;
    for (int64_t token = first; token < last; token++) {
        int64_t batch = token / of->length, place = token % of->length;
        int64_t table = ((of->tables == 1 ? 0 : batch) * of->length + place) * of->rotated;
        for (int64_t head = 0; head < of->heads; head++) {
            int64_t inner = ((batch * of->heads + head) * of->length + place) * of->width;
            int64_t outer = (token * of->heads + head) * of->width;
            int64_t from = of->back ? inner : outer, to = of->back ? outer : inner;
            if (of->cosine) rotary_row(of, from, to, table);
            else copy_numbers(of->x, from, of->out, to, of->width);
        }
    }
}

static int split_of(struct heads of, const int64_t *split, int back) {
    of.batch = split[0], of.heads = split[1], of.length = split[2], of.width = split[3], of.back = back;
    pet_parallel(split_tokens, &of, of.batch * of.length, rows_at_once(of.heads * of.width));
    return 0;
}

/* x (B·S, heads·d) → (B, heads, S, d) */
PET_KERNEL(split_heads) {
    return split_of((struct heads){.x = numbers_of(params, dtypes, 0), .out = numbers_of(params, dtypes, count - 1)}, shapes[count - 1], 0);
}

/* x (B, heads, S, d) → (B·S, heads·d) */
PET_KERNEL(join_heads) {
    return split_of((struct heads){.x = numbers_of(params, dtypes, 0), .out = numbers_of(params, dtypes, count - 1)}, shapes[0], 1);
}

static int rotary_tokens_of(void **params, int64_t **shapes, const char **types, const int64_t *split, int half, int back) {
    struct heads of = {.x = numbers_of(params, types, 0), .cosine = params[1], .sine = params[2], .out = numbers_of(params, types, 4),
                       .tables = shapes[1][0], .rotated = shapes[1][3], .half = half};
    return split_of(of, split, back);
}

/* x (B·S, heads·d), cosines and sines, start (B, S) for its shape → (B, heads, S, d) rotated */
PET_KERNEL(split_rotary_half) { return rotary_tokens_of(params, shapes, dtypes, shapes[4], 1, 0); }
PET_KERNEL(split_rotary_interleaved) { return rotary_tokens_of(params, shapes, dtypes, shapes[4], 0, 0); }

/* dy (B, heads, S, d), cosines and sines, start → dx (B·S, heads·d) */
PET_KERNEL(split_rotary_half_back) { return rotary_tokens_of(params, shapes, dtypes, shapes[0], 1, 1); }
PET_KERNEL(split_rotary_interleaved_back) { return rotary_tokens_of(params, shapes, dtypes, shapes[0], 0, 1); }
