/* What attention.c and attention_bf16.c share: who sees whom, and what happens to a row of scores. */
#ifndef PET_ATTENTION_H
#define PET_ATTENTION_H

#include <math.h>

#include "numbers.h"
#include "pool.h"
#include "product.h"

enum { ROWS = 8 * TALL };
static const float HIDDEN = -1e30f;

struct attention {
    struct numbers query, keys, values, out, dout, mixed;
    const float *stats;
    const int32_t *start, *end, *columns;
    float *mixed_stats, *d_query, *d_keys, *d_values;
    int64_t heads, key_heads, length, total, width;
    int64_t padded; /* room for `total`: an odd number of vectors, lest all rows meet in a few lines of a cache */
    int64_t joined; /* of a token's row, all heads together */
    int64_t window; /* how many keys of its own a row sees at most, or 0 */
    float scale, cap; /* scores become cap·tanh(score/cap), unless it is 0 */
    _Atomic int failed;
};

/* What a block of rows of one sequence sees. */
struct view {
    int64_t first; /* key, where a vector begins */
    int plain;     /* whether every row sees the whole of its interval */
    int64_t from[ROWS], to[ROWS];
    int blind[ROWS];
};

/* How many rows from this one on are a block: up to `most`, and none of a document that begins behind the first one, since
 * all rows of a block meet the keys of all. Tokens that are alone, such as padding, all begin anew and stay together. */
static inline int64_t rows_together(const struct attention *of, int64_t batch, int64_t row, int64_t most) {
    const int32_t *start = of->start + batch * of->length;
    int64_t last = row + most < of->length ? row + most : of->length, next = row + 1;
    while (next < last && !(start[next] == next && next + 1 < of->length && start[next + 1] == next)) next++;
    return next - row;
}

/* The first key that a row sees, counted from the first token. */
static inline int64_t start_of(const struct attention *of, int64_t batch, int64_t row) {
    int64_t at = batch * of->length + row, first = of->end[at] - of->window;
    return of->window && first > of->start[at] ? first : of->start[at];
}

static inline struct view look(const struct attention *of, int64_t batch, int64_t row, int64_t rows) {
    const int32_t *columns = of->columns + batch * of->total;
    int64_t before = of->total - of->length;
    struct view view = {.first = of->total, .plain = 1};
    for (int64_t j = 0; j < of->total; j++) view.plain &= columns[j] == 1;
    view.plain &= before == 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = start_of(of, batch, row + i) + before;
        int64_t end = of->end[batch * of->length + row + i] + before;
        if (start < before) start = before;
        if (end > of->total) end = of->total;
        int64_t from = start, to = end;
        if (!view.plain) { /* the first and the last key that it sees */
            if (end < before) end = before;
            from = end;
            to = 0;
            for (int64_t j = 0; j < end; j++)
                if (columns[j] && (j >= start || j < before || columns[j] < 0)) {
                    if (j < from) from = j;
                    to = j + 1;
                }
        }
        view.blind[i] = from >= to;
        view.from[i] = view.blind[i] ? 0 : from;
        view.to[i] = view.blind[i] ? of->total : to;
        if (view.from[i] < view.first) view.first = view.from[i];
    }
    view.first = view.first / LANES * LANES;
    return view;
}

/* Some numbers of a line from `first` on, where `last` is behind the last one, become what hides them. */
static inline void cover(float *line, int64_t first, int64_t last, float with) {
    ints places;
    for (int j = 0; j < LANES; j++) places[j] = j;
    for (int64_t j = first / LANES * LANES; j < last; j += LANES) {
        ints at = places + (int32_t)j;
        store(line + j, choose((at >= (int32_t)first) & (at < (int32_t)last), fill(with), load(line + j)));
    }
}

/* Caps the `count` scores of row i of the block, of which the first is that of key view->first, and hides what it does not
 * see. */
static inline void settle(const struct attention *of, const struct view *view, int64_t batch, int64_t row, int64_t i,
                        float *scores, int64_t count) {
    int64_t from = view->from[i] - view->first, to = view->to[i] - view->first;
    if (of->cap > 0.0f) bend(scores, count, of->scale / of->cap, of->cap / of->scale);
    cover(scores, 0, from, HIDDEN);
    if (!view->plain || view->blind[i]) {
        const int32_t *columns = of->columns + batch * of->total + view->first;
        int64_t before = of->total - of->length - view->first;
        int64_t start = start_of(of, batch, row + i) + before;
        for (int64_t j = from; j < to; j++)
            if (view->blind[i] || !columns[j] || (j < start && j >= before && columns[j] > 0)) scores[j] = HIDDEN;
    }
    /* a blind row is even over all keys; what only fills up the vectors gets nothing in any row */
    cover(scores, to, count, view->blind[i] ? -INFINITY : HIDDEN);
}

/* Rows of a matrix one after the other, where vectors begin with lines of the caches: a product reads them many times, and
 * what crosses a line twice as often. */
static inline void gather_rows(const float *from, int64_t row, int64_t rows, int64_t width, float *to) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * width, from + i * row, (size_t)width * sizeof(float));
}

/* A row of scores, of which the greatest is known → e^(score − greatest), and the inverse of their sum. */
static inline float weigh(float *line, int64_t count, float highest, float scale) {
    floats sums = {0};
    for (int64_t j = 0; j < count; j += LANES) {
        floats value = exponential((load(line + j) - highest) * scale);
        sums += value;
        store(line + j, value);
    }
    return 1.0f / sum_of(sums);
}

/* A row of scores, which are settled first, and of dout·valuesᵀ → its probabilities and the gradients of its scores; `along`
 * is out·dout. */
static inline void unweigh(const struct attention *of, const struct view *view, int64_t batch, int64_t row, int64_t i, float *line,
                           float *d_line, int64_t count, const float *stats, float along) {
    float scale = view->blind[i] ? 1.0f : of->scale;
    settle(of, view, batch, row, i, line, count);
    for (int64_t j = 0; j < count; j += LANES) {
        floats score = load(line + j), p = exponential((score - stats[0]) * scale) * stats[1];
        floats slope = p * (load(d_line + j) - along) * of->scale;
        if (of->cap > 0.0f) { /* what is hidden has p = 0, and must stay a number */
            floats bent = lesser(greater(score * (of->scale / of->cap), fill(-1.0f)), fill(1.0f));
            slope *= 1.0f - bent * bent;
        }
        store(line + j, p);
        store(d_line + j, slope);
    }
    if (view->blind[i]) memset(d_line, 0, (size_t)count * sizeof(float));
}

/* The greatest of a row of scores, which are settled first. */
static inline float highest_of(const struct attention *of, const struct view *view, int64_t batch, int64_t row, int64_t i,
                               float *line, int64_t count) {
    settle(of, view, batch, row, i, line, count);
    floats most = fill(-INFINITY);
    for (int64_t j = 0; j < count; j += LANES) most = greater(most, load(line + j));
    return view->blind[i] ? HIDDEN : greatest_of(most);
}

static inline struct attention attention_of(void **params, int64_t **shapes, const char **types) {
    int64_t *query = shapes[0], *keys = shapes[1];
    return (struct attention){.query = numbers_of(params, types, 0), .keys = numbers_of(params, types, 1),
                              .values = numbers_of(params, types, 2), .start = params[3], .end = params[4],
                              .columns = params[5], .heads = query[1], .key_heads = keys[1],
                              .length = query[2], .total = keys[2], .width = query[3],
                              .padded = up_to_lanes(keys[2]) | LANES, .joined = query[1] * query[3],
                              .scale = *(float *)params[6], .window = *(int32_t *)params[7], .cap = *(float *)params[8]};
}

/* `attention` by the work on a head: its outputs follow the inputs. */
static inline int attend(void **params, int64_t **shapes, const char **types, pet_work heads) {
    struct attention of = attention_of(params, shapes, types);
    of.mixed = numbers_of(params, types, 9);
    of.mixed_stats = params[10];
    pet_parallel(heads, &of, shapes[0][0] * of.heads, 1);
    return of.failed;
}

/* `attention_gradient` by the work on a key head. */
static inline int attend_backward(void **params, int64_t **shapes, const char **types, pet_work heads) {
    struct attention of = attention_of(params, shapes, types);
    of.out = numbers_of(params, types, 9);
    of.stats = params[10];
    of.dout = numbers_of(params, types, 11);
    of.d_query = params[12];
    of.d_keys = params[13];
    of.d_values = params[14];
    pet_parallel(heads, &of, shapes[0][0] * of.key_heads, 1);
    return of.failed;
}

#endif
