/* Attention whose products are of factors rounded to bfloat16, with float32 sums: BF16_ROWS query rows at a time. Scores,
 * softmax and everything else are as in attention.c, in float32. */
#include "attention.h"
#include "bf16.h"

enum { SOME = BF16_ROWS, WIDTH = 4 * BF16_COLUMNS, BEHIND = BF16_DEPTH }; /* of a product's result; zeros behind the last key */

/* Blocks of rows whose gradients of keys and values are added up in one product: so these are read and written once. */
enum { TOGETHER = 4, TOGETHER_DEEP = TOGETHER * BF16_DEPTH };

/* Matrices of a head in bfloat16. Those for which the depth of a product runs along the keys begin where a block's keys do,
 * and so have room behind the last one. */
struct head {
    int64_t width, total, deep, keys; /* the latter two filled up, to be the depth of a product */
    float *room;                      /* for what is widened: some rows, twice */
    uint16_t *rows;                   /* some rows of queries, or of their gradients */
    uint16_t *shares;                 /* some rows of scores */
};

static int64_t columns_of(int64_t columns) { return (columns + BF16_COLUMNS - 1) / BF16_COLUMNS * BF16_COLUMNS; }

/* (depth, width) numbers from number `first` on, whose lines are `row` apart, as a right factor; `deep` is its depth filled
 * up, and that of the matrix of which it is a part `all`. */
static void along(struct numbers of, int64_t first, int64_t row, int64_t depth, int64_t width, uint16_t *to, int64_t deep,
                  int64_t all) {
    for (int64_t k = 0; k < deep; k += BF16_DEPTH)
        for (int64_t j = 0; j < width; j += 2 * BF16_COLUMNS)
            bf16_pairs(of, first + k * row + j, row, least(depth - k, BF16_DEPTH), least(width - j, 2 * BF16_COLUMNS),
                       BF16_DEPTH, to + j * all + k * BF16_COLUMNS, all * BF16_COLUMNS);
}

/* (total, width) numbers from number `first` on as a right factor (width, total). */
static void across(const struct head *head, struct numbers from, int64_t first, uint16_t *to) {
    int64_t width = head->width;
    for (int64_t j = 0; j < columns_of(head->total); j += BF16_COLUMNS)
        for (int64_t k = 0; k < head->deep; k += BF16_DEPTH)
            bf16_turned_pairs(from, first + j * width + k, width, least(width - k, BF16_DEPTH), least(head->total - j, BF16_COLUMNS),
                              BF16_COLUMNS, to + j * head->deep + k * BF16_COLUMNS);
}

/* c (rows, columns) = a·b, or c + a·b, for a strip `a`, that lies by these steps, and b as `along` and `across` make it. */
static void multiply(int64_t rows, int64_t columns, float *c, int64_t c_row, const uint16_t *a, struct bf16_steps steps,
                     const uint16_t *b, int64_t b_row, int64_t depth, int add) {
    struct bf16_factors both = {a, steps.row, steps.pair, BF16_STRIP, b, b_row * BF16_COLUMNS, depth};
    for (int64_t j = 0; j < columns; j += WIDTH) {
        struct bf16_part part = {.factors = &both, .count = 1, .b_first = j * b_row, .c = c + j, .c_row = c_row, .add = add};
        bf16_product(rows, least(columns - j, WIDTH), &part);
    }
}

static struct head head_of(const struct attention *of) {
    return (struct head){.width = of->width, .total = of->total, .deep = up_to_pairs(of->width),
                         .keys = up_to_pairs(of->total) + BEHIND};
}

/* How many numbers `head.room` holds. */
static int64_t room_of(const struct attention *of) { return 2 * SOME * of->width; }

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
    float *scores = pet_scratch(1, SOME * padded * 4);
    uint16_t *keys = pet_scratch(2, (columns_of(of->total) * deep + columns_of(width) * head.keys) * 2);
    head.rows = pet_scratch(3, SOME * (deep + head.keys) * 2);
    head.room = pet_scratch(4, room_of(of) * 4);
    if (!scores || !keys || !head.rows || !head.room) {
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
            across(&head, of->keys, at, keys);
            along(of->values, at, width, of->total, width, values, head.keys, head.keys);
        }
        pair_before = pair;
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row, SOME);
            struct view view = look(of, batch, row, rows);
            int64_t count = up_to_lanes(last_seen(&view, rows) - view.first), filled = up_to_pairs(count);
            bf16_rows(of->query, query + row * width, width, rows, width, head.rows);
            multiply(rows, count, scores, padded, head.rows, bf16_by_rows, keys + view.first * deep, deep, deep, 0);
            for (int64_t i = 0; i < rows; i++) {
                float *line = scores + i * padded, *of_row = stats + (row + i) * 2;
                of_row[0] = highest_of(of, &view, batch, row, i, line, count);
                of_row[1] = weigh(line, count, of_row[0], view.blind[i] ? 1.0f : of->scale);
            }
            bf16_rows((struct numbers){scores}, 0, padded, rows, count, head.shares);
            int64_t at = mixed + row * of->joined, out_row = of->mixed.low ? width : of->joined;
            float *out = room_for(of->mixed, at, head.room);
            multiply(rows, width, out, out_row, head.shares, bf16_by_rows, values + view.first * BF16_COLUMNS, head.keys, filled, 0);
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

/* What a few blocks of rows give to the gradients of keys and values, not yet added to these. */
struct gathered {
    int64_t blocks, first, last; /* and which keys they see, in whole strips */
    uint16_t *shares, *slopes;   /* of their scores, turned: strips of keys, TOGETHER_DEEP deep */
    uint16_t *query, *dout;      /* as right factors (TOGETHER_DEEP, width) */
};

static uint16_t *strip_of(uint16_t *of, int64_t key) { return of + key / SOME * TOGETHER * BF16_STRIP; }

/* Adds that up. `offset` is the first number of their keys. */
static void add_gathered(const struct attention *of, struct gathered *all, int64_t offset) {
    int64_t width = of->width, deep = all->blocks * BF16_DEPTH;
    for (int64_t key = all->first; key < all->last; key += SOME) {
        int64_t some = least(of->total - key, SOME), at = offset + key * width;
        multiply(some, width, of->d_keys + at, width, strip_of(all->slopes, key), bf16_turned(), all->query, TOGETHER_DEEP, deep, 1);
        multiply(some, width, of->d_values + at, width, strip_of(all->shares, key), bf16_turned(), all->dout, TOGETHER_DEEP, deep, 1);
    }
    all->blocks = all->first = all->last = 0;
}

/* The place for one more block of rows, which see keys from `first` to `last`. What else the blocks see is zero there. */
static int64_t next_block(const struct attention *of, struct gathered *all, int64_t first, int64_t last, int64_t offset) {
    first = first / SOME * SOME, last = (last + SOME - 1) / SOME * SOME;
    if (all->blocks == TOGETHER || first >= all->last || last <= all->first) add_gathered(of, all, offset);
    for (int64_t key = first; key < last; key += SOME) {
        if (all->blocks && key >= all->first && key < all->last) continue;
        memset(strip_of(all->shares, key), 0, TOGETHER * BF16_STRIP * sizeof *all->shares);
        memset(strip_of(all->slopes, key), 0, TOGETHER * BF16_STRIP * sizeof *all->slopes);
    }
    if (!all->blocks || first < all->first) all->first = first;
    if (last > all->last) all->last = last;
    return all->blocks++;
}

/* Scores (rows, count) of a block, of which the first is that of key `first`, turned. */
static void gather_turned(uint16_t *to, int64_t block, float *scores, int64_t padded, int64_t rows, int64_t first,
                          int64_t count) {
    int64_t row = bf16_turned().row;
    for (int64_t j = 0; j < count; j += BF16_COLUMNS)
        bf16_columns((struct numbers){scores}, j, padded, rows, BF16_COLUMNS,
                     strip_of(to, first + j) + block * BF16_STRIP + (first + j) % SOME * row);
}

/* The gradients of all queries that one key head serves, and of its keys and values. */
static void attention_gradient_heads(void *arguments, int64_t first, int64_t last) {
    struct attention *of = arguments;
    struct head head = head_of(of);
    int64_t width = of->width, padded = of->padded, joined = of->joined, groups = of->heads / of->key_heads, deep = head.deep;
    int64_t wide = columns_of(width), strips = (of->total + SOME) / SOME * TOGETHER * BF16_STRIP;
    float *scores = pet_scratch(1, 2 * SOME * padded * 4);
    uint16_t *keys = pet_scratch(2, (2 * columns_of(of->total) * deep + wide * head.keys) * 2);
    head.rows = pet_scratch(3, SOME * (deep + head.keys) * 2);
    head.room = pet_scratch(4, room_of(of) * 4);
    uint16_t *turned = pet_scratch(5, 2 * (strips + wide * TOGETHER_DEEP) * 2);
    if (!scores || !keys || !head.rows || !head.room || !turned) {
        of->failed = 1;
        return;
    }
    float *d_scores = scores + SOME * padded;
    uint16_t *values = keys + columns_of(of->total) * deep, *keys_along = values + columns_of(of->total) * deep;
    struct gathered all = {.shares = turned, .slopes = turned + strips, .query = turned + 2 * strips,
                           .dout = turned + 2 * strips + wide * TOGETHER_DEEP};
    head.shares = head.rows + SOME * deep;
    bf16_begin();
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->key_heads, key_head = unit % of->key_heads, offset = unit * of->total * width;
        across(&head, of->keys, offset, keys);
        along(of->keys, offset, width, of->total, width, keys_along, head.keys, head.keys);
        across(&head, of->values, offset, values);
        memset(of->d_keys + offset, 0, (size_t)(of->total * width) * sizeof(float));
        memset(of->d_values + offset, 0, (size_t)(of->total * width) * sizeof(float));
        for (int64_t row = 0, rows; row < of->length; row += rows) {
            rows = rows_together(of, batch, row, SOME);
            struct view view = look(of, batch, row, rows);
            int64_t count = up_to_lanes(last_seen(&view, rows) - view.first), filled = up_to_pairs(count);
            for (int64_t group = 0; group < groups; group++) {
                int64_t number = batch * of->heads + key_head * groups + group, place = (number * of->length + row) * width;
                int64_t outside = (batch * of->length + row) * joined + (key_head * groups + group) * width;
                int64_t block = next_block(of, &all, view.first, view.first + count, offset), at = block * BF16_DEPTH * BF16_COLUMNS;
                const float *stats = of->stats + (number * of->length + row) * 2;
                int64_t out_row = of->out.low ? width : joined, d_out_row = of->dout.low ? width : joined;
                const float *out = widened_rows(of->out, outside, joined, rows, width, head.room);
                const float *d_out = widened_rows(of->dout, outside, joined, rows, width, head.room + SOME * width);
                along(of->query, place, width, rows, width, all.query + at, BF16_DEPTH, TOGETHER_DEEP);
                along(of->dout, outside, joined, rows, width, all.dout + at, BF16_DEPTH, TOGETHER_DEEP);
                bf16_rows(of->query, place, width, rows, width, head.rows);
                multiply(rows, count, scores, padded, head.rows, bf16_by_rows, keys + view.first * deep, deep, deep, 0);
                bf16_rows(of->dout, outside, joined, rows, width, head.rows);
                multiply(rows, count, d_scores, padded, head.rows, bf16_by_rows, values + view.first * deep, deep, deep, 0);
                for (int64_t i = 0; i < rows; i++) {
                    float along = dot(out + i * out_row, d_out + i * d_out_row, width);
                    unweigh(of, &view, batch, row, i, scores + i * padded, d_scores + i * padded, count, stats + i * 2, along);
                }
                bf16_rows((struct numbers){d_scores}, 0, padded, rows, count, head.shares);
                multiply(rows, width, of->d_query + place, width, head.shares, bf16_by_rows, keys_along + view.first * BF16_COLUMNS,
                         head.keys, filled, 0);
                gather_turned(all.slopes, block, d_scores, padded, rows, view.first, count);
                gather_turned(all.shares, block, scores, padded, rows, view.first, count);
            }
        }
        add_gathered(of, &all, offset);
    }
    bf16_end();
}

/* as `attention_gradient` */
PET_KERNEL(attention_bf16_gradient) { return attend_backward(params, shapes, dtypes, attention_gradient_heads); }
