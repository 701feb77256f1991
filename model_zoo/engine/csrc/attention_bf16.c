/* Attention whose products are of factors rounded to bfloat16, with float32 sums: BF16_ROWS query rows at a time. Scores,
 * softmax and everything else are as in attention.c, in float32. */
#include "attention.h"
#include "bf16.h"

enum { SOME = BF16_ROWS, WIDTH = 4 * BF16_COLUMNS, BEHIND = BF16_DEPTH }; /* of a product's result; zeros behind the last key */

/* Matrices of a head in bfloat16. Those for which the depth of a product runs along the keys begin where a block's keys do,
 * and so have room behind the last one. */
struct head {
    int64_t width, total, deep, keys; /* the latter two filled up, to be the depth of a product */
    float *turned;                    /* (width, padded) */
    float *room;                      /* for what is widened: (total, width), and for some rows twice */
    uint16_t *rows;                   /* some rows of queries, or of their gradients */
    uint16_t *shares;                 /* some rows of scores */
};

static int64_t columns_of(int64_t columns) { return (columns + BF16_COLUMNS - 1) / BF16_COLUMNS * BF16_COLUMNS; }

/* (depth, width) numbers, whose lines are `row` apart, as a right factor; `deep` is its depth filled up. */
static void along(const float *from, int64_t row, int64_t depth, int64_t width, uint16_t *to, int64_t deep) {
    float some[BF16_DEPTH * BF16_COLUMNS];
    for (int64_t j = 0; j < width; j += BF16_COLUMNS)
        for (int64_t k = 0; k < deep; k += BF16_DEPTH) {
            int64_t rows = depth - k < BF16_DEPTH ? depth - k : BF16_DEPTH;
            int64_t wide = width - j < BF16_COLUMNS ? width - j : BF16_COLUMNS;
            if (wide < BF16_COLUMNS) memset(some, 0, sizeof some);
            for (int64_t i = 0; i < rows; i++)
                memcpy(some + i * BF16_COLUMNS, from + (k + i) * row + j, (size_t)wide * sizeof(float));
            bf16_pairs(some, BF16_COLUMNS, rows > 0 ? rows : 0, to + j * deep + k * BF16_COLUMNS);
        }
}

/* (total, width) numbers as a right factor (width, total). */
static void across(const struct attention *of, const struct head *head, const float *from, uint16_t *to) {
    turn(from, head->width, head->total, head->width, head->turned, of->padded);
    for (int64_t j = 0; j < columns_of(head->total); j += BF16_COLUMNS)
        for (int64_t k = 0; k < head->deep; k += BF16_DEPTH) {
            int64_t rows = head->width - k < BF16_DEPTH ? head->width - k : BF16_DEPTH;
            bf16_pairs(head->turned + k * of->padded + j, of->padded, rows, to + j * head->deep + k * BF16_COLUMNS);
        }
}

/* c (rows, columns) = a·b, or c + a·b, for a strip `a` and b as `along` and `across` make it. */
static void multiply(int64_t rows, int64_t columns, float *c, int64_t c_row, const uint16_t *a, const uint16_t *b,
                     int64_t b_row, int64_t depth, int add) {
    for (int64_t j = 0; j < columns; j += WIDTH) {
        struct bf16_part part = {.a = a, .a_row = BF16_DEPTH, .a_block = BF16_STRIP, .b = b + j * b_row,
                                 .b_column = b_row * BF16_COLUMNS, .depth = depth, .c = c + j, .c_row = c_row, .add = add};
        bf16_product(rows, columns - j < WIDTH ? columns - j : WIDTH, &part);
    }
}

static struct head head_of(const struct attention *of) {
    return (struct head){.width = of->width, .total = of->total, .deep = up_to_pairs(of->width),
                         .keys = up_to_pairs(of->total) + BEHIND};
}

/* How many numbers `head.room` holds. */
static int64_t room_of(const struct attention *of) { return (of->total + 2 * SOME) * of->width; }

/* Behind the last key that some rows see. */
static int64_t last_seen(const struct view *view, int64_t rows) {
    int64_t last = 0;
    for (int64_t i = 0; i < rows; i++)
        if (view->to[i] > last) last = view->to[i];
    return last;
}

static void attention_heads(void *arguments, int64_t first, int64_t last) {
    struct attention *of = arguments;
    struct head head = head_of(of);
    int64_t width = of->width, padded = of->padded, deep = head.deep, pair_before = -1;
    head.turned = pet_scratch(0, width * padded * 4);
    float *scores = pet_scratch(1, SOME * padded * 4);
    uint16_t *keys = pet_scratch(2, (columns_of(of->total) * deep + columns_of(width) * head.keys) * 2);
    head.rows = pet_scratch(3, SOME * (deep + head.keys) * 2);
    head.room = pet_scratch(4, room_of(of) * 4);
    if (!head.turned || !scores || !keys || !head.rows || !head.room) {
        of->failed = 1;
        return;
    }
    uint16_t *values = keys + columns_of(of->total) * deep;
    head.shares = head.rows + SOME * deep;
    bf16_begin();
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->heads, number = unit % of->heads;
        int64_t pair = batch * of->key_heads + number * of->key_heads / of->heads;
        int64_t query = unit * of->length * width, mixed = batch * of->length * of->joined + number * width;
        float *stats = of->mixed_stats + unit * of->length * 2;
        if (pair != pair_before) {
            int64_t at = pair * of->total * width;
            across(of, &head, widened(of->keys, at, of->total * width, head.room), keys);
            along(widened(of->values, at, of->total * width, head.room), width, of->total, width, values, head.keys);
        }
        pair_before = pair;
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row, SOME);
            struct view view = look(of, batch, row, rows);
            int64_t count = up_to_lanes(last_seen(&view, rows) - view.first), filled = up_to_pairs(count);
            bf16_rows(widened(of->query, query + row * width, rows * width, head.room), width, rows, width, head.rows);
            multiply(rows, count, scores, padded, head.rows, keys + view.first * deep, deep, deep, 0);
            for (int64_t i = 0; i < rows; i++) {
                float *line = scores + i * padded, *of_row = stats + (row + i) * 2;
                settle(of, &view, batch, row, i, line, count);
                floats most = fill(-INFINITY);
                for (int64_t j = 0; j < count; j += LANES) most = greater(most, load(line + j));
                of_row[0] = view.blind[i] ? HIDDEN : greatest_of(most);
                of_row[1] = weigh(line, count, of_row[0], view.blind[i] ? 1.0f : of->scale);
            }
            bf16_rows(scores, padded, rows, count, head.shares);
            int64_t at = mixed + row * of->joined, out_row = of->mixed.low ? width : of->joined;
            float *out = room_for(of->mixed, at, head.room);
            multiply(rows, width, out, out_row, head.shares, values + view.first * BF16_COLUMNS, head.keys, filled, 0);
            for (int64_t i = 0; i < rows; i++) {
                for (int64_t k = 0; k < width; k++) out[i * out_row + k] *= stats[(row + i) * 2 + 1];
                put_back(of->mixed, at + i * of->joined, width, out + i * out_row);
            }
        }
    }
    bf16_end();
}

/* as `attention` */
PET_KERNEL(attention_bf16) { return attend(params, shapes, dtypes, attention_heads); }

/* Some rows, `row` apart, as `widened` gives them: one behind the other where they are widened. */
static const float *widened_rows(struct numbers of, int64_t first, int64_t row, int64_t rows, int64_t width, float *room) {
    for (int64_t i = 0; i < rows && of.low; i++) widened(of, first + i * row, width, room + i * width);
    return of.low ? room : (const float *)of.at + first;
}

/* Adds the gradient that some rows give to the keys that they see: scores (rows, count) turned, times `right` (rows, width). */
static void add_turned(const struct head *head, float *turned, const float *scores, int64_t padded, int64_t rows, int64_t count,
                       const uint16_t *right, float *to) {
    turn(scores, padded, rows, count, turned, SOME);
    for (int64_t i = 0; i < count; i += SOME) {
        int64_t some = count - i < SOME ? count - i : SOME;
        bf16_rows(turned + i * SOME, SOME, some, SOME, head->rows);
        multiply(some, head->width, to + i * head->width, head->width, head->rows, right, SOME, SOME, 1);
    }
}

/* The gradients of all queries that one key head serves, and of its keys and values. */
static void attention_gradient_heads(void *arguments, int64_t first, int64_t last) {
    struct attention *of = arguments;
    struct head head = head_of(of);
    int64_t width = of->width, padded = of->padded, joined = of->joined, groups = of->heads / of->key_heads, deep = head.deep;
    int64_t turned = (width > SOME ? width : SOME) * padded, wide = columns_of(width), long_side = deep > SOME ? deep : SOME;
    head.turned = pet_scratch(0, turned * 4);
    float *scores = pet_scratch(1, 2 * SOME * padded * 4);
    uint16_t *keys = pet_scratch(2, (2 * columns_of(of->total) * deep + wide * head.keys) * 2);
    head.rows = pet_scratch(3, (SOME * (long_side + head.keys) + 2 * wide * SOME) * 2);
    head.room = pet_scratch(4, room_of(of) * 4);
    if (!head.turned || !scores || !keys || !head.rows || !head.room) {
        of->failed = 1;
        return;
    }
    float *d_scores = scores + SOME * padded;
    uint16_t *values = keys + columns_of(of->total) * deep, *keys_along = values + columns_of(of->total) * deep;
    head.shares = head.rows + SOME * long_side;
    uint16_t *query = head.shares + SOME * head.keys, *dout = query + wide * SOME; /* as right factors */
    bf16_begin();
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->key_heads, key_head = unit % of->key_heads, offset = unit * of->total * width;
        const float *wide_keys = widened(of->keys, offset, of->total * width, head.room);
        across(of, &head, wide_keys, keys);
        along(wide_keys, width, of->total, width, keys_along, head.keys);
        across(of, &head, widened(of->values, offset, of->total * width, head.room), values);
        memset(of->d_keys + offset, 0, (size_t)(of->total * width) * sizeof(float));
        memset(of->d_values + offset, 0, (size_t)(of->total * width) * sizeof(float));
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row, SOME);
            struct view view = look(of, batch, row, rows);
            int64_t seen = last_seen(&view, rows) - view.first, count = up_to_lanes(seen), filled = up_to_pairs(count);
            for (int64_t group = 0; group < groups; group++) {
                int64_t number = batch * of->heads + key_head * groups + group, place = (number * of->length + row) * width;
                int64_t outside = (batch * of->length + row) * joined + (key_head * groups + group) * width;
                const float *stats = of->stats + (number * of->length + row) * 2;
                const float *own = widened(of->query, place, rows * width, head.room);
                along(own, width, rows, width, query, SOME);
                bf16_rows(own, width, rows, width, head.rows);
                int64_t out_row = of->out.low ? width : joined, d_out_row = of->dout.low ? width : joined;
                const float *out = widened_rows(of->out, outside, joined, rows, width, head.room);
                const float *d_out = widened_rows(of->dout, outside, joined, rows, width, head.room + rows * width);
                along(d_out, d_out_row, rows, width, dout, SOME);
                multiply(rows, count, scores, padded, head.rows, keys + view.first * deep, deep, deep, 0);
                bf16_rows(d_out, d_out_row, rows, width, head.rows);
                multiply(rows, count, d_scores, padded, head.rows, values + view.first * deep, deep, deep, 0);
                for (int64_t i = 0; i < rows; i++) {
                    float *line = scores + i * padded, *d_line = d_scores + i * padded;
                    settle(of, &view, batch, row, i, line, count);
                    unweigh(of, line, d_line, count, stats + i * 2, dot(out + i * out_row, d_out + i * d_out_row, width),
                            view.blind[i] ? 1.0f : of->scale);
                    if (view.blind[i]) memset(d_line, 0, (size_t)count * sizeof(float));
                }
                bf16_rows(d_scores, padded, rows, count, head.shares);
                multiply(rows, width, of->d_query + place, width, head.shares, keys_along + view.first * BF16_COLUMNS,
                         head.keys, filled, 0);
                add_turned(&head, head.turned, d_scores, padded, rows, seen, query, of->d_keys + offset + view.first * width);
                add_turned(&head, head.turned, scores, padded, rows, seen, dout, of->d_values + offset + view.first * width);
            }
        }
    }
    bf16_end();
}

/* as `attention_gradient` */
PET_KERNEL(attention_bf16_gradient) { return attend_backward(params, shapes, dtypes, attention_gradient_heads); }
