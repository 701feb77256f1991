/* Attention in blocks of query rows (Dao et al. 2022, with whole rows of scores: they fit the cache).
 *
 * Row i sees key j when columns[j] != 0 and index(j) < end[i] and (index(j) >= start[i] or columns[j] < 0 or
 * index(j) < 0), where index(j) counts from the first token: keys in front of the tokens (a prefix) have one below 0. Keys
 * that no row of a block sees are not touched. A row that sees nothing is spread over all keys evenly.
 *
 * Key head j serves the query heads j·g … j·g + g − 1. All float32 but start, end and columns, which are int32. */
#include <math.h>

#include "pool.h"
#include "product.h"
#include "vectors.h"

enum { ROWS = 8 * TALL };
static const float HIDDEN = -1e30f;

struct attention {
    const float *query, *keys, *values, *out, *stats, *dout;
    const int32_t *start, *end, *columns;
    float *mixed, *mixed_stats, *d_query, *d_keys, *d_values;
    int64_t heads, key_heads, length, total, width;
    int64_t padded; /* room for `total`: an odd number of vectors, lest all rows meet in a few lines of a cache */
    int64_t joined; /* of a token's row, all heads together */
    float scale;
    _Atomic int failed;
};

/* What a block of rows of one sequence sees. */
struct view {
    int64_t first; /* key, where a vector begins */
    int plain;     /* whether every row sees the whole of its interval */
    int64_t from[ROWS], to[ROWS];
    int blind[ROWS];
};

/* How many rows from this one on are a block: up to ROWS, and none of a document that begins behind the first one, since
 * all rows of a block meet the keys of all. Tokens that are alone, such as padding, all begin anew and stay together. */
static int64_t rows_together(const struct attention *of, int64_t batch, int64_t row) {
    const int32_t *start = of->start + batch * of->length;
    int64_t most = row + ROWS < of->length ? row + ROWS : of->length, next = row + 1;
    while (next < most && !(start[next] == next && next + 1 < of->length && start[next + 1] == next)) next++;
    return next - row;
}

static struct view look(const struct attention *of, int64_t batch, int64_t row, int64_t rows) {
    const int32_t *columns = of->columns + batch * of->total;
    int64_t before = of->total - of->length;
    struct view view = {.first = of->total, .plain = 1};
    for (int64_t j = 0; j < of->total; j++) view.plain &= columns[j] == 1;
    view.plain &= before == 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = of->start[batch * of->length + row + i] + before;
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

/* Hides what row i of the block does not see in its `count` scores, of which the first is that of key view->first. */
static void hide(const struct attention *of, const struct view *view, int64_t batch, int64_t row, int64_t i,
                 float *scores, int64_t count) {
    int64_t from = view->from[i] - view->first, to = view->to[i] - view->first;
    for (int64_t j = 0; j < from; j++) scores[j] = HIDDEN;
    if (!view->plain || view->blind[i]) {
        const int32_t *columns = of->columns + batch * of->total + view->first;
        int64_t before = of->total - of->length - view->first;
        int64_t start = of->start[batch * of->length + row + i] + before;
        for (int64_t j = from; j < to; j++)
            if (view->blind[i] || !columns[j] || (j < start && j >= before && columns[j] > 0)) scores[j] = HIDDEN;
    }
    /* a blind row is even over all keys; what only fills up the vectors gets nothing in any row */
    for (int64_t j = to; j < count; j++) scores[j] = view->blind[i] ? -INFINITY : HIDDEN;
}

/* A strip: rows of a block from `row` on that are computed together. Returns how many keys it or one before it sees, from
 * the block's first on: along the diagonal fewer than the whole block. `before` is what it was of the strip before. */
static int64_t seen_by_strip(const struct view *view, int64_t row, int64_t rows, int64_t before) {
    for (int64_t i = row; i < row + rows; i++)
        if (view->to[i] - view->first > before) before = view->to[i] - view->first;
    return before;
}

static inline int64_t rows_of_strip(int64_t row, int64_t rows) { return row + TALL < rows ? TALL : rows - row; }

static void attention_heads(void *arguments, int64_t first, int64_t last) {
    struct attention *of = arguments;
    int64_t width = of->width, padded = of->padded, turned_for = -1;
    float *turned = pet_scratch(0, padded * width * 4), *scores = pet_scratch(1, ROWS * padded * 4);
    if (!turned || !scores) {
        of->failed = 1;
        return;
    }
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->heads, head = unit % of->heads;
        int64_t pair = batch * of->key_heads + head / (of->heads / of->key_heads);
        const float *query = of->query + unit * of->length * width;
        const float *values = of->values + pair * of->total * width;
        float *mixed = of->mixed + batch * of->length * of->joined + head * width;
        float *stats = of->mixed_stats + unit * of->length * 2;
        if (turned_for != pair) turn(of->keys + pair * of->total * width, width, of->total, width, turned, padded);
        turned_for = pair;
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row);
            struct view view = look(of, batch, row, rows);
            float *out = mixed + row * of->joined;
            for (int64_t strip = 0, seen = 0; strip < rows; strip += TALL) {
                int64_t tall = rows_of_strip(strip, rows);
                seen = seen_by_strip(&view, strip, tall, seen);
                int64_t count = up_to_lanes(seen);
                float *lines = scores + strip * padded;
                product(tall, count, lines, padded, query + (row + strip) * width, width, 1, turned + view.first, padded,
                        width, 0);
                for (int64_t i = strip; i < strip + tall; i++) {
                    float *line = scores + i * padded;
                    hide(of, &view, batch, row, i, line, count);
                    floats most = fill(-INFINITY);
                    for (int64_t j = 0; j < count; j += LANES) most = greater(most, load(line + j));
                    float parts[LANES], highest = -INFINITY;
                    store(parts, most);
                    for (int j = 0; j < LANES; j++) highest = parts[j] > highest ? parts[j] : highest;
                    if (view.blind[i]) highest = HIDDEN;
                    floats sums = {0};
                    float scale = view.blind[i] ? 1.0f : of->scale;
                    for (int64_t j = 0; j < count; j += LANES) {
                        floats value = exponential((load(line + j) - highest) * scale);
                        sums += value;
                        store(line + j, value);
                    }
                    stats[(row + i) * 2] = highest;
                    stats[(row + i) * 2 + 1] = 1.0f / sum_of(sums);
                }
                product(tall, width, out + strip * of->joined, of->joined, lines, padded, 1, values + view.first * width,
                        width, seen, 0);
            }
            for (int64_t i = 0; i < rows; i++) {
                float share = stats[(row + i) * 2 + 1];
                for (int64_t k = 0; k < width; k++) out[i * of->joined + k] *= share;
            }
        }
    }
}

static struct attention attention_of(void **params, int64_t **shapes) {
    int64_t *query = shapes[0], *keys = shapes[1];
    return (struct attention){.query = params[0], .keys = params[1], .values = params[2], .start = params[3],
                              .end = params[4], .columns = params[5], .heads = query[1], .key_heads = keys[1],
                              .length = query[2], .total = keys[2], .width = query[3],
                              .padded = up_to_lanes(keys[2]) | LANES, .joined = query[1] * query[3],
                              .scale = 1.0f / sqrtf((float)query[3])};
}

/* query (B, heads, S, d), keys and values (B, key heads, K, d), start and end (B, S), columns (B, K)
 * → out (B·S, heads·d), and per row its highest score and the inverse of its sum (B, heads, S, 2) */
PET_KERNEL(attention) {
    struct attention of = attention_of(params, shapes);
    of.mixed = params[6];
    of.mixed_stats = params[7];
    pet_parallel(attention_heads, &of, shapes[0][0] * of.heads, 1);
    return of.failed;
}

/* The gradients of all queries that one key head serves, and of its keys and values. */
static void attention_gradient_heads(void *arguments, int64_t first, int64_t last) {
    struct attention *of = arguments;
    int64_t width = of->width, padded = of->padded, joined = of->joined, groups = of->heads / of->key_heads;
    float *turned = pet_scratch(0, 2 * padded * width * 4), *scores = pet_scratch(1, ROWS * padded * 4);
    float *d_scores = pet_scratch(2, ROWS * padded * 4);
    if (!turned || !scores || !d_scores) {
        of->failed = 1;
        return;
    }
    float *turned_values = turned + padded * width;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->key_heads, key_head = unit % of->key_heads, offset = unit * of->total * width;
        const float *keys = of->keys + offset;
        float *d_keys = of->d_keys + offset, *d_values = of->d_values + offset;
        turn(keys, width, of->total, width, turned, padded);
        turn(of->values + offset, width, of->total, width, turned_values, padded);
        memset(d_keys, 0, (size_t)(of->total * width) * sizeof(float));
        memset(d_values, 0, (size_t)(of->total * width) * sizeof(float));
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row);
            struct view view = look(of, batch, row, rows);
            int64_t key = view.first * width;
            for (int64_t group = 0; group < groups; group++) {
                int64_t head = batch * of->heads + key_head * groups + group, place = (head * of->length + row) * width;
                int64_t outside = (batch * of->length + row) * joined + (key_head * groups + group) * width;
                const float *query = of->query + place, *out = of->out + outside, *dout = of->dout + outside;
                const float *stats = of->stats + (head * of->length + row) * 2;
                int64_t ends[ROWS / TALL + 1] = {0}; /* of the keys that each strip sees */
                for (int64_t strip = 0, i = 0; i < rows; strip++) {
                    int64_t tall = rows_of_strip(i, rows), seen = seen_by_strip(&view, i, tall, ends[strip]);
                    int64_t count = up_to_lanes(seen);
                    float *lines = scores + i * padded, *d_lines = d_scores + i * padded;
                    product(tall, count, lines, padded, query + i * width, width, 1, turned + view.first, padded, width, 0);
                    product(tall, count, d_lines, padded, dout + i * joined, joined, 1, turned_values + view.first, padded,
                            width, 0);
                    for (int64_t end = i + tall; i < end; i++) {
                        float *line = scores + i * padded, *d_line = d_scores + i * padded;
                        float along = 0.0f, highest = stats[i * 2], share = stats[i * 2 + 1];
#pragma omp simd reduction(+ : along)
                        for (int64_t k = 0; k < width; k++) along += out[i * joined + k] * dout[i * joined + k];
                        hide(of, &view, batch, row, i, line, count);
                        float scale = view.blind[i] ? 1.0f : of->scale;
                        for (int64_t j = 0; j < count; j += LANES) {
                            floats p = exponential((load(line + j) - highest) * scale) * share;
                            store(line + j, p);
                            store(d_line + j, p * (load(d_line + j) - along) * of->scale);
                        }
                        if (view.blind[i]) memset(d_line, 0, (size_t)count * sizeof(float));
                    }
                    product(tall, width, of->d_query + place + (i - tall) * width, width, d_lines, padded, 1, keys + key,
                            width, seen, 0);
                    ends[strip + 1] = seen;
                }
                /* keys that no strip before sees, and the rows from there on */
                for (int64_t strip = 0, i = 0; i < rows; strip++, i += TALL) {
                    int64_t from = ends[strip], count = ends[strip + 1] - from, at = key + from * width, left = rows - i;
                    const float *p = scores + i * padded + from, *d_p = d_scores + i * padded + from;
                    if (count == 0) continue;
                    product(count, width, d_keys + at, width, d_p, 1, padded, query + i * width, width, left, 1);
                    product(count, width, d_values + at, width, p, 1, padded, dout + i * joined, joined, left, 1);
                }
            }
        }
    }
}

/* the inputs of `attention`, out, its rows' highest scores and inverse sums, dout → dquery, dkeys, dvalues */
PET_KERNEL(attention_gradient) {
    struct attention of = attention_of(params, shapes);
    of.out = params[6];
    of.stats = params[7];
    of.dout = params[8];
    of.d_query = params[9];
    of.d_keys = params[10];
    of.d_values = params[11];
    pet_parallel(attention_gradient_heads, &of, shapes[0][0] * of.key_heads, 1);
    return of.failed;
}
