/* Sums, and columns apart and together: what layers that run as one operator need between the other kernels. Places of
 * columns are int32. */
#include <math.h>
#include <string.h>

#include "numbers.h"
#include "pool.h"

enum { AT_ONCE = 8192, PIECE = 512 };

struct elements {
    struct numbers x, y, out;
    int64_t width, rows;
    float factor;
};

/* x·factor, and y added to it where there is one. */
static void add_part(void *arguments, int64_t first, int64_t last) {
    struct elements of = *(struct elements *)arguments;
    for (int64_t at = first; at < last; at += PIECE) {
        int64_t some = last - at < PIECE ? last - at : PIECE;
        float rooms[3][PIECE], *out = room_for(of.out, at, rooms[2]);
        const float *x = widened(of.x, at, some, rooms[0]), *y = of.y.at ? widened(of.y, at, some, rooms[1]) : NULL;
#pragma omp simd
        for (int64_t i = 0; i < some; i++) out[i] = y ? x[i] * of.factor + y[i] : x[i] * of.factor;
        put_back(of.out, at, some, rooms[2]);
    }
}

/* a, b and a factor (1) → a·factor + b, which may lie where either does */
PET_KERNEL(add) {
    struct elements of = {.x = numbers_of(params, dtypes, 0), .y = numbers_of(params, dtypes, 1), .out = {params[3]},
                        .factor = *(float *)params[2]};
    pet_parallel(add_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* x and a factor (1) → x·factor, which may lie where x does */
PET_KERNEL(scale) {
    struct elements of = {.x = numbers_of(params, dtypes, 0), .out = numbers_of(params, dtypes, 2),
                          .factor = *(float *)params[1]};
    pet_parallel(add_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* Kernels of x (N, W) and y → one number for each of x, which may lie where x does. */
#define ROW_BY_ROW(name, number)                                                                                \
    static void name##_rows(void *arguments, int64_t first, int64_t last) {                                     \
        struct elements of = *(struct elements *)arguments;                                                     \
        const float *y = of.y.at;                                                                               \
        for (int64_t row = first; row < last; row++) {                                                          \
            float rooms[2][of.width], *out = room_for(of.out, row * of.width, rooms[1]);                        \
            const float *x = widened(of.x, row * of.width, of.width, rooms[0]);                                 \
            _Pragma("omp simd") for (int64_t i = 0; i < of.width; i++) out[i] = number;                         \
            put_back(of.out, row * of.width, of.width, rooms[1]);                                               \
        }                                                                                                       \
    }                                                                                                           \
    PET_KERNEL(name) {                                                                                          \
        struct elements of = {.x = numbers_of(params, dtypes, 0), .y = {params[1]},                             \
                              .out = numbers_of(params, dtypes, 2), .width = shapes[0][1]};                     \
        pet_parallel(name##_rows, &of, shapes[0][0], rows_at_once(of.width));                                   \
        return 0;                                                                                               \
    }

ROW_BY_ROW(add_bias, x[i] + y[i])      /* y (W) */
ROW_BY_ROW(scale_columns, x[i] * y[i]) /* y (W) */
ROW_BY_ROW(scale_rows, x[i] * y[row])  /* y (N, 1) */

static void scale_rows_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct elements of = *(struct elements *)arguments;
    int64_t width = of.width;
    for (int64_t row = first; row < last; row++) {
        float rooms[2][width];
        const float *x = widened(of.x, row * width, width, rooms[0]), *y = widened(of.y, row * width, width, rooms[1]);
        ((float *)of.out.at)[row] = dot(x, y, width);
    }
}

/* x, dy (N, W) → the sum of each row of x·dy (N, 1) */
PET_KERNEL(scale_rows_gradient) {
    struct elements of = {.x = numbers_of(params, dtypes, 0), .y = numbers_of(params, dtypes, 1), .out = {params[2]},
                          .width = shapes[0][1]};
    pet_parallel(scale_rows_gradient_part, &of, shapes[0][0], rows_at_once(of.width));
    return 0;
}

/* Some columns of all rows, one row after the other, each times y's where there is one. */
static void column_sum_part(void *arguments, int64_t first, int64_t last) {
    struct elements of = *(struct elements *)arguments;
    float rooms[2][last - first], *out = of.out.at;
    for (int64_t i = first; i < last; i++) out[i] = 0.0f;
    for (int64_t row = 0; row < of.rows; row++) {
        const float *x = widened(of.x, row * of.width + first, last - first, rooms[0]) - first;
        const float *y = of.y.at ? widened(of.y, row * of.width + first, last - first, rooms[1]) - first : NULL;
#pragma omp simd
        for (int64_t i = first; i < last; i++) out[i] += y ? x[i] * y[i] : x[i];
    }
}

/* x, dy (N, W) → the sum over rows of x·dy (W numbers) */
PET_KERNEL(scale_columns_gradient) {
    struct elements of = {.x = numbers_of(params, dtypes, 0), .y = numbers_of(params, dtypes, 1), .out = {params[2]},
                          .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(column_sum_part, &of, of.width, 64);
    return 0;
}

struct dropout {
    struct numbers x, out;
    float factor;
    uint32_t seed, threshold;
    int64_t width, members, place; /* columns of this process, which of how many these are */
    const int32_t *token_of;       /* of each row, where rows are not tokens in their order */
};

/* As adapters/dropout.py has it; MindSpore's integers wrap around as these do. */
static inline uint32_t mixed(uint32_t bits) {
    bits = (bits ^ (bits >> 16)) * 2246822507u;
    bits = (bits ^ (bits >> 13)) * 3266489909u;
    return bits ^ (bits >> 16);
}

static const uint32_t STRIDE = 2654435769u;

static void dropout_part(void *arguments, int64_t first, int64_t last) {
    struct dropout of = *(struct dropout *)arguments;
    for (int64_t at = first; at < last; at += PIECE) {
        int64_t some = last - at < PIECE ? last - at : PIECE, end = at + some;
        float rooms[2][PIECE], *out = room_for(of.out, at, rooms[1]);
        const float *x = widened(of.x, at, some, rooms[0]);
        for (int64_t from = at; from < end;) {
            int64_t before = 0, to = end;
            if (of.members > 1 || of.token_of) {
                int64_t row = from / of.width, token = of.token_of ? of.token_of[row] : row;
                before = (token * of.members + of.place - row) * of.width;
                to = least((row + 1) * of.width, end);
            }
#pragma omp simd
            for (int64_t i = from - at; i < to - at; i++) {
                uint32_t bits = mixed((uint32_t)(before + at + i) * STRIDE + of.seed) & 0x7FFFFFFFu;
                out[i] = bits >= of.threshold ? x[i] * of.factor : 0.0f;
            }
            from = to;
        }
        put_back(of.out, at, some, rooms[1]);
    }
}

/* x, the key and the block's number (2), site, threshold, factor, members, place → x with some numbers zeroed and the others
 * larger; it may lie where x does. Its gradient is the same of dy. Where x has a process's columns of a whole that several
 * members divide, what is zeroed is that of the whole; so it is where x has some tokens' rows: then these tokens follow, and
 * what has as many rows as there are tokens. */
PET_KERNEL(dropout) {
    const int32_t *key = params[1];
    int64_t size = size_of(ndims[0], shapes[0]), members = *(int32_t *)params[5], width = shapes[0][ndims[0] - 1];
    int some = count > 8;
    struct dropout of = {.x = numbers_of(params, dtypes, 0), .out = numbers_of(params, dtypes, count - 1),
                         .factor = *(float *)params[4], .threshold = *(uint32_t *)params[3], .width = width,
                         .members = members, .place = *(int32_t *)params[6], .token_of = some ? params[7] : NULL};
    int64_t whole = (some ? shapes[8][0] * width : size) * members;
    of.seed = mixed((uint32_t)key[0] * 668265263u + *(uint32_t *)params[2]) + (uint32_t)(key[1] * whole) * STRIDE;
    pet_parallel(dropout_part, &of, size, AT_ONCE);
    return 0;
}

/* x (N, W) → the sum of its rows (W) */
PET_KERNEL(column_sum) {
    struct elements of = {.x = numbers_of(params, dtypes, 0), .out = {params[1]}, .rows = shapes[0][0], .width = shapes[0][1]};
    pet_parallel(column_sum_part, &of, of.width, 64);
    return 0;
}

/* Some columns of rows `x_row` apart, from `first` on, become columns of rows `out_row` apart. */
struct columns {
    struct numbers x, out;
    int64_t x_row, first, out_row, at, some;
};

static void copy_columns(void *arguments, int64_t first, int64_t last) {
    struct columns of = *(struct columns *)arguments;
    for (int64_t row = first; row < last; row++)
        copy_numbers(of.x, row * of.x_row + of.first, of.out, row * of.out_row + of.at, of.some);
}

/* x, first (1), and what comes out; `first` is of the wider one. */
static int some_columns(void **params, int *ndims, int64_t **shapes, const char **dtypes, int put) {
    int64_t first = *(int32_t *)params[1], x_row = shapes[0][ndims[0] - 1], out_row = shapes[2][ndims[2] - 1];
    struct columns of = {.x = numbers_of(params, dtypes, 0), .out = numbers_of(params, dtypes, 2), .x_row = x_row, .out_row = out_row,
                         .first = put ? 0 : first, .at = put ? first : 0, .some = put ? x_row : out_row};
    if (first < 0 || first + of.some > (put ? out_row : x_row)) return 1;
    if (x_row) pet_parallel(copy_columns, &of, size_of(ndims[0], shapes[0]) / x_row, rows_at_once(of.some));
    return 0;
}

/* x (…, W), first (1) → columns first … first + w − 1, (…, w) */
PET_KERNEL(take_columns) { return some_columns(params, ndims, shapes, dtypes, 0); }

/* x (…, w), first (1) → its columns are columns first … first + w − 1 of (…, W), whose others stay as they are */
PET_KERNEL(put_columns) { return some_columns(params, ndims, shapes, dtypes, 1); }

static void join_columns_rows(void *arguments, int64_t first, int64_t last) {
    struct columns *both = arguments;
    copy_columns(both, first, last);
    copy_columns(both + 1, first, last);
}

/* a (…, W), b (…, w) → a | b, (…, W + w) */
PET_KERNEL(join_columns) {
    int64_t width = shapes[0][ndims[0] - 1], other = shapes[1][ndims[1] - 1];
    struct numbers out = numbers_of(params, dtypes, 2);
    struct columns both[] = {{numbers_of(params, dtypes, 0), out, width, 0, width + other, 0, width},
                             {numbers_of(params, dtypes, 1), out, other, 0, width + other, width, other}};
    if (width) pet_parallel(join_columns_rows, both, size_of(ndims[0], shapes[0]) / width, rows_at_once(width + other));
    return 0;
}

/* positions (B, S), lanes (w), scale → cosines and sines (B, 1, S, w), computed in double precision as MindSpore does */
PET_KERNEL(rotary_table) {
    const int32_t *positions = params[0];
    const float *lanes = params[1], scale = *(float *)params[2];
    float *cosines = params[3], *sines = params[4];
    int64_t width = shapes[1][0], all = size_of(ndims[0], shapes[0]) * width;
    for (int64_t i = 0; i < all; i++) {
        double angle = (float)positions[i / width] * lanes[i % width];
        cosines[i] = (float)cos(angle) * scale;
        sines[i] = (float)sin(angle) * scale;
    }
    return 0;
}

struct rows {
    struct matrix table;
    const int32_t *ids;
    float *out, *gradient;
    int64_t width, rows, count, padding;
    _Atomic int failed;
};

INLINE void copy_rows(enum storage storage, struct rows *of, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
        int64_t row = of->ids[i];
        if (row < 0 || row >= of->rows) {
            of->failed = 1;
            continue;
        }
        float *out = of->out + i * of->width;
        int64_t j = 0;
        for (; j + LANES <= of->width; j += LANES) store(out + j, load_stored(storage, of->table, row, j));
        for (; j < of->width; j++) out[j] = load_one(storage, of->table, row, j);
    }
}

static void take_rows(void *arguments, int64_t first, int64_t last) {
    struct rows *of = arguments;
    BY_STORAGE(of->table.storage, copy_rows, of, first, last)
}

/* table (V, W), ids (…), the padding's row or -1, which counts for the gradient alone → their rows (…, W) */
PET_KERNEL(rows_of) {
    struct rows of = {.table = matrix_of(params, shapes, dtypes, 0), .ids = params[1], .out = params[3], .rows = shapes[0][0],
                      .width = shapes[0][1]};
    pet_parallel(take_rows, &of, size_of(ndims[1], shapes[1]), rows_at_once(of.width));
    return of.failed;
}

enum { ROW_PIECES = 32 }; /* each goes over all ids */

/* Clears some rows of the gradient and adds to them, in the order of the ids, what these get. */
static void add_rows(void *arguments, int64_t first, int64_t last) {
    struct rows *of = arguments;
    memset(of->gradient + first * of->width, 0, (last - first) * of->width * sizeof(float));
    for (int64_t i = 0; i < of->count; i++) {
        int64_t row = of->ids[i];
        if (row < 0 || row >= of->rows) of->failed = 1;
        if (row < first || row >= last || row == of->padding) continue;
        float *sum = of->gradient + row * of->width;
        const float *more = of->out + i * of->width;
#pragma omp simd
        for (int64_t j = 0; j < of->width; j++) sum[j] += more[j];
    }
}

/* table (V, W), ids (…), the padding's row or -1, the gradient of their rows (…, W) → the table's (V, W), nothing in
 * the padding's row */
PET_KERNEL(rows_of_gradient) {
    struct rows of = {.ids = params[1], .padding = *(int32_t *)params[2], .out = params[3], .gradient = params[4],
                      .rows = shapes[0][0], .width = shapes[0][1], .count = size_of(ndims[1], shapes[1])};
    pet_parallel(add_rows, &of, of.rows, of.rows / ROW_PIECES + 1);
    return of.failed;
}
