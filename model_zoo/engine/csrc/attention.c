/* Attention in blocks of query rows (Dao et al. 2022, with whole rows of scores: they fit the cache).
 *
 * Row i sees key j when columns[j] != 0 and index(j) < end[i] and (index(j) >= start[i] or columns[j] < 0 or
 * index(j) < 0), where index(j) counts from the first token: keys in front of the tokens (a prefix) have one below 0. With
 * a window w, no start lies before end[i] − w. Keys that no row of a block sees are not touched. A row that sees nothing is
 * spread over all keys evenly.
 *
 * Key head j serves the query heads j·g … j·g + g − 1. All float32 but start, end and columns, which are int32. */
#include "attention.h"

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
    float *turned = pet_scratch(0, (padded + of->total) * width * 4), *scores = pet_scratch(1, ROWS * padded * 4);
    if (!turned || !scores) {
        of->failed = 1;
        return;
    }
    float *values = turned + padded * width;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->heads, head = unit % of->heads;
        int64_t pair = batch * of->key_heads + head * of->key_heads / of->heads;
        const float *query = (const float *)of->query.at + unit * of->length * width;
        float *mixed = (float *)of->mixed.at + batch * of->length * of->joined + head * width, *stats = of->mixed_stats + unit * of->length * 2;
        if (pair != turned_for) {
            turn((const float *)of->keys.at + pair * of->total * width, width, of->total, width, turned, padded);
            gather_rows((const float *)of->values.at + pair * of->total * width, width, of->total, width, values);
        }
        turned_for = pair;
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row, ROWS);
            struct view view = look(of, batch, row, rows);
            for (int64_t strip = 0, seen = 0; strip < rows; strip += TALL) {
                int64_t tall = rows_of_strip(strip, rows);
                seen = seen_by_strip(&view, strip, tall, seen);
                int64_t count = up_to_lanes(seen);
                float *lines = scores + strip * padded, *out = mixed + (row + strip) * of->joined, shares[TALL];
                product(tall, count, lines, padded, query + (row + strip) * width, width, turned + view.first, padded, width, 0);
                for (int64_t i = strip; i < strip + tall; i++)
                    stats[(row + i) * 2] = highest_of(of, &view, batch, row, i, scores + i * padded, count);
                for (int64_t i = strip; i < strip + tall; i++) {
                    float *of_row = stats + (row + i) * 2;
                    of_row[1] = weigh(scores + i * padded, count, of_row[0], view.blind[i] ? 1.0f : of->scale);
                    shares[i - strip] = of_row[1];
                }
                product(tall, width, out, of->joined, lines, padded, values + view.first * width, width, seen, 0);
                for (int64_t i = 0; i < tall; i++)
                    for (int64_t k = 0; k < width; k++) out[i * of->joined + k] *= shares[i];
            }
        }
    }
}

/* query (B, heads, S, d), keys and values (B, key heads, K, d), start and end (B, S), columns (B, K), scale (1), window (1)
 * and cap (1), 0 for none
 * → out (B·S, heads·d), and per row its highest score and the inverse of its sum (B, heads, S, 2) */
PET_KERNEL(attention) { return attend(params, shapes, dtypes, attention_heads); }

/* The gradients of all queries that one key head serves, and of its keys and values. */
static void attention_gradient_heads(void *arguments, int64_t first, int64_t last) {
    struct attention *of = arguments;
    int64_t width = of->width, padded = of->padded, joined = of->joined, groups = of->heads / of->key_heads;
    int64_t all = of->total * width, some = ROWS * width;
    float *turned = pet_scratch(0, 2 * padded * width * 4), *scores = pet_scratch(1, 2 * ROWS * padded * 4);
    float *gathered = pet_scratch(2, (3 * all + 2 * some) * 4);
    if (!turned || !scores || !gathered) {
        of->failed = 1;
        return;
    }
    float *turned_values = turned + padded * width, *d_scores = scores + ROWS * padded;
    float *keys = gathered, *d_keys = keys + all, *d_values = d_keys + all, *query = d_values + all, *dout = query + some;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->key_heads, key_head = unit % of->key_heads, offset = unit * all;
        gather_rows((const float *)of->keys.at + offset, width, of->total, width, keys);
        turn(keys, width, of->total, width, turned, padded);
        turn((const float *)of->values.at + offset, width, of->total, width, turned_values, padded);
        memset(d_keys, 0, (size_t)(2 * all) * sizeof(float));
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row, ROWS);
            struct view view = look(of, batch, row, rows);
            int64_t key = view.first * width;
            for (int64_t group = 0; group < groups; group++) {
                int64_t head = batch * of->heads + key_head * groups + group, place = (head * of->length + row) * width;
                int64_t outside = (batch * of->length + row) * joined + (key_head * groups + group) * width;
                const float *out = (const float *)of->out.at + outside, *stats = of->stats + (head * of->length + row) * 2;
                gather_rows((const float *)of->query.at + place, width, rows, width, query);
                gather_rows((const float *)of->dout.at + outside, joined, rows, width, dout);
                int64_t ends[ROWS / TALL + 1] = {0}; /* of the keys that each strip sees */
                for (int64_t strip = 0, i = 0; i < rows; strip++) {
                    int64_t tall = rows_of_strip(i, rows), seen = seen_by_strip(&view, i, tall, ends[strip]);
                    int64_t count = up_to_lanes(seen);
                    float *lines = scores + i * padded, *d_lines = d_scores + i * padded;
                    product(tall, count, lines, padded, query + i * width, width, turned + view.first, padded, width, 0);
                    product(tall, count, d_lines, padded, dout + i * width, width, turned_values + view.first, padded, width, 0);
                    for (int64_t end = i + tall; i < end; i++) {
                        float along = dot(out + i * joined, dout + i * width, width);
                        unweigh(of, &view, batch, row, i, scores + i * padded, d_scores + i * padded, count, stats + i * 2, along);
                    }
                    product(tall, width, of->d_query + place + (i - tall) * width, width, d_lines, padded, keys + key, width,
                            seen, 0);
                    ends[strip + 1] = seen;
                }
                /* keys that no strip before sees, and the rows from there on */
                for (int64_t strip = 0, i = 0; i < rows; strip++, i += TALL) {
                    int64_t from = ends[strip], count = ends[strip + 1] - from, at = key + from * width, left = rows - i;
                    const float *p = scores + i * padded + from, *d_p = d_scores + i * padded + from;
                    if (count == 0) continue;
                    product_turned(count, width, d_keys + at, width, d_p, padded, query + i * width, width, left, 1);
                    product_turned(count, width, d_values + at, width, p, padded, dout + i * width, width, left, 1);
                }
            }
        }
        memcpy(of->d_keys + offset, d_keys, (size_t)all * sizeof(float));
        memcpy(of->d_values + offset, d_values, (size_t)all * sizeof(float));
    }
}

/* the inputs of `attention`, out, its rows' highest scores and inverse sums, dout → dquery, dkeys, dvalues */
PET_KERNEL(attention_gradient) { return attend_backward(params, shapes, dtypes, attention_gradient_heads); }
