/* Matrix products of the sizes that layers have, as sums that `add_up` takes (blocks.c); those of few rows by few_rows.c. */
#include "gemm.h"

#include <stdlib.h>

#include "few_rows.h"
#include "pool.h"
#include "product.h"
#include "rounded.h"
#include "sums.h"

enum { TURNED = 1 << 20 }; /* numbers of a left factor that are turned together */

/* The next of a product's terms from `term` and `k` on, as deep as they may be together; moves both. In bfloat16 a term that
 * would be cut begins anew: what is left of MOST_DEPTH may be little, and costs a pass over the result. */
static struct sum next_of(const struct product *product, int *term, int64_t *k) {
    int64_t columns = product->columns;
    struct sum of = {.c = product->c, .before = product->c, .columns = columns, .panel = least(up_to_lanes(columns), PANEL),
                     .add = product->add || *term > 0 || *k > 0, .bf16 = product->bf16};
    while (*term < product->count && of.depth < MOST_DEPTH) {
        if (of.bf16 && of.depth && product->terms[*term].depth > MOST_DEPTH - of.depth) break;
        const struct term *from = product->terms + *term;
        struct part part = {.a = {place_of(from->a, *k), from->a.low}, .a_row = from->a_row ? from->a_row : from->depth, .b = from->b, .b_first = *k,
                            .depth = least(from->depth - *k, MOST_DEPTH - of.depth), .b_turned = from->b_turned};
        if (part.depth) of.parts[of.count++] = part;
        of.depth += part.depth;
        *k += part.depth;
        if (*k == from->depth) *k = 0, ++*term;
    }
    return of;
}

/* Where the sums of products lie between one go and the next: in their results, or, where these are in bfloat16, in memory
 * of their own, which is to be freed. Gives 0, or 1 when there is none. */
static int between(const struct product *of, int count, int64_t rows, struct numbers *to, float **room) {
    int64_t all = 0, sizes[MOST_PRODUCTS];
    for (int i = 0; i < count; i++) {
        int64_t depth = 0;
        for (int j = 0; j < of[i].count; j++) depth += of[i].terms[j].depth;
        sizes[i] = of[i].c.low && depth > MOST_DEPTH ? rows * of[i].columns : 0;
        all += sizes[i];
    }
    *room = all ? malloc((size_t)all * sizeof **room) : NULL;
    if (all && !*room) return 1;
    float *next = *room;
    for (int i = 0; i < count; next += sizes[i++]) to[i] = sizes[i] ? (struct numbers){next} : of[i].c;
    return 0;
}

/* Computes those of the products that have few rows and one term, and notes them as done. */
static void all_few_rows(const struct product *products, int count, int64_t rows, int *done) {
    struct few_rows few[MOST_PRODUCTS];
    int some = 0;
    for (int i = 0; i < count; i++) {
        const struct term *term = products[i].terms;
        int packed = term->b.storage >= INT8 && term->b_turned && !products[i].bf16;
        int not_here = products[i].add || products[i].count != 1 || term->a.low || products[i].c.low;
        if (done[i] || not_here || rows > (packed ? FEW_PACKED_ROWS : FEW_ROWS)) continue;
        few[some++] = (struct few_rows){term->a.at, term->b, products[i].c.at, products[i].columns, term->depth, term->b_turned};
        done[i] = 1;
    }
    if (some) few_rows(few, some, rows);
}

/* The same products with factors that are read as they are: those in bytes are worth it where many rows follow. */
static int with_factors(const struct product *of, int count, struct product *to) {
    int64_t all = 0;
    memcpy(to, of, (size_t)count * sizeof *of);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < of[i].count; j++) all += nested_factors(&of[i].terms[j].b);
    float *factors = all ? pet_scratch(5, all * (int64_t)sizeof(float)) : NULL;
    if (all && !factors) return 1;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < of[i].count; j++) {
            int64_t own = nested_factors(&of[i].terms[j].b);
            if (own) expand_factors(&to[i].terms[j].b, factors);
            factors += own;
        }
    return 0;
}

struct widening {
    struct numbers from;
    float *to;
    int64_t width;
};

static void widen_rows(void *arguments, int64_t first, int64_t last) {
    struct widening *of = arguments;
    widened(of->from, first * of->width, (last - first) * of->width, of->to + first * of->width);
}

/* Left factors in bfloat16 of products in float32 become float32, in memory that is to be freed. Gives 0, or 1 when there is
 * none. */
static int widen_lefts(struct product *of, int count, int64_t rows, float **room) {
    int64_t all = 0;
    for (int pass = 0; pass < 2; pass++) {
        float *next = *room = all ? malloc((size_t)all * sizeof **room) : NULL;
        if (all && !next) return 1;
        for (int i = 0; i < count; i++)
            for (struct term *term = of[i].terms; term < of[i].terms + of[i].count; term++) {
                if (of[i].bf16 || !term->a.low) continue;
                all += rows * term->depth;
                if (!pass) continue;
                struct widening widening = {term->a, next, term->depth};
                pet_parallel(widen_rows, &widening, rows, rows_at_once(term->depth));
                term->a = (struct numbers){next};
                next += rows * term->depth;
            }
        if (!all) break;
    }
    return 0;
}

static int compute(struct product *of, int count, int64_t rows);

int products(const struct product *given, int count, int64_t rows) {
    struct product of[MOST_PRODUCTS];
    if (rows <= FEW_PACKED_ROWS)
        memcpy(of, given, (size_t)count * sizeof *of);
    else if (with_factors(given, count, of))
        return 1;
    float *room;
    int failed = widen_lefts(of, count, rows, &room) || compute(of, count, rows);
    free(room);
    return failed;
}

static int compute(struct product *of, int count, int64_t rows) {
    int term[MOST_PRODUCTS] = {0}, done[MOST_PRODUCTS] = {0};
    int64_t k[MOST_PRODUCTS] = {0};
    for (int i = 0; i < count; i++) {
        if (of[i].bf16 && !pet_bf16()) return 1;
        done[i] = rows == 0 || of[i].columns == 0;
    }
    all_few_rows(of, count, rows, done);
    struct numbers sums_between[MOST_PRODUCTS];
    float *room;
    if (between(of, count, rows, sums_between, &room)) return 1;
    for (;;) {
        struct sum sums[MOST_PRODUCTS];
        int some = 0;
        for (int i = 0; i < count; i++) {
            if (done[i]) continue;
            int first = term[i] == 0 && k[i] == 0;
            sums[some] = next_of(of + i, term + i, k + i);
            if (!first) sums[some].before = sums_between[i];
            if (term[i] < of[i].count) sums[some].c = sums_between[i];
            if (sums[some].depth)
                some++;
            else if (first && !of[i].add) /* a sum of nothing */
                memset(of[i].c.at, 0, (size_t)(rows * of[i].columns * (of[i].c.low ? 2 : 4)));
            done[i] = term[i] == of[i].count;
        }
        int failed = some > 0 && add_up(sums, some, rows);
        if (some > 0 && !failed) continue;
        free(room);
        return failed;
    }
}

static int one(struct numbers c, int64_t rows, int64_t columns, int how, struct term term) {
    return products(&(struct product){.c = c, .columns = columns, .add = how & ADDS,
                                      .bf16 = how & IN_BF16 || c.low, .count = 1, .terms = {term}}, 1, rows);
}

int product_by_rows(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth, int how) {
    return one((struct numbers){c}, rows, columns, how, (struct term){.a = {(void *)a}, .b = b, .depth = depth, .b_turned = 1});
}

int product_by_depth(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth, int how) {
    return one((struct numbers){c}, rows, columns, how, (struct term){.a = {(void *)a}, .b = b, .depth = depth});
}

int product_kernel(void **params, int64_t **shapes, const char **types, int out, int turned, int how) {
    struct term term = {.a = numbers_of(params, types, 0), .b = matrix_of(params, shapes, types, 1), .depth = shapes[0][1],
                        .b_turned = turned};
    return one(numbers_of(params, types, out), shapes[0][0], shapes[1][turned ? 0 : 1], how, term);
}

struct turning {
    struct numbers a;
    void *to;
    int64_t row, rows, depth, wide;
};

static void turn_rows(void *arguments, int64_t first, int64_t last) {
    struct turning *of = arguments;
    int64_t row = first * CHUNK, rows = least(of->rows, last * CHUNK) - row;
    struct matrix from = {.data = place_of(of->a, row), .columns = of->row, .storage = of->a.low ? BFLOAT16 : FLOAT32};
    BY_STORAGE(from.storage, turn_stored, from, 0, 0, of->depth, rows, (float *)of->to + row * of->wide, of->wide)
}

static void turn_strips(void *arguments, int64_t first, int64_t last) {
    struct turning *of = arguments;
    struct part part = {.a = of->a, .a_row = of->row, .depth = of->depth};
    for (int64_t row = first * BF16_ROWS; row < least(of->rows, last * BF16_ROWS); row += BF16_ROWS)
        turned_strip(&part, row, least(of->rows - row, BF16_ROWS), (uint16_t *)of->to + row * of->wide);
}

/* The left factor is turned, some of its depth and rows at a time; for vectors of bfloat16 by those who multiply it. */
int product_by_columns(struct numbers a, int64_t a_row, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth,
                       int how) {
    if (depth == 0) return one((struct numbers){c}, rows, columns, how, (struct term){.b = b});
    int bf16 = (how & IN_BF16) != 0, later = bf16 && pet_bf16() == BF16_VECTORS, unit = bf16 ? BF16_ROWS : CHUNK;
    for (int64_t k = 0; k < depth; k += MOST_DEPTH) {
        int64_t deep = least(depth - k, MOST_DEPTH), wide = bf16 ? up_to_pairs(deep) : up_to_lanes(deep), some;
        for (int64_t row = 0; row < rows; row += some) {
            some = later ? rows : least(rows - row, TURNED / wide / unit * unit);
            struct numbers from = {place_of(a, k * a_row + row), a.low}, to = {c + row * columns};
            struct part part = {.a = from, .a_row = a_row, .a_turned = later, .b = b, .b_first = k, .depth = deep};
            void *turned = later ? NULL : pet_scratch(1, bf16 ? (some + BF16_ROWS) * wide * 2 : some * wide * 4);
            if (!later && !turned) return 1;
            struct turning of = {from, turned, a_row, some, deep, wide};
            if (!bf16) {
                pet_parallel(turn_rows, &of, (some + CHUNK - 1) / CHUNK, 1);
                part.a = (struct numbers){turned}, part.a_row = wide;
            } else if (!later) {
                pet_parallel(turn_strips, &of, (some + BF16_ROWS - 1) / BF16_ROWS, 1);
                part.rounded = turned;
            }
            struct sum sum = {.c = to, .before = to, .columns = columns, .panel = least(up_to_lanes(columns), PANEL),
                              .depth = deep, .add = how & ADDS || k > 0, .bf16 = bf16, .count = 1, .parts = {part}};
            if (columns > 0 && add_up(&sum, 1, some)) return 1;
        }
    }
    return 0;
}

int columns_kernel(void **params, int64_t **shapes, const char **types, int how) {
    return product_by_columns(numbers_of(params, types, 0), shapes[0][1], matrix_of(params, shapes, types, 1), params[2],
                              shapes[0][1], shapes[1][1], shapes[0][0], how);
}

/* a (M, K), b (N, K) → a·bᵀ (M, N) */
PET_KERNEL(product_of_rows) { return product_kernel(params, shapes, dtypes, 2, 1, 0); }

/* a (M, K), b (K, N) → a·b (M, N) */
PET_KERNEL(plain_product) { return product_kernel(params, shapes, dtypes, 2, 0, 0); }

/* the same two, added to what c holds */
PET_KERNEL(product_of_rows_added) { return product_kernel(params, shapes, dtypes, 2, 1, ADDS); }

PET_KERNEL(plain_product_added) { return product_kernel(params, shapes, dtypes, 2, 0, ADDS); }

/* a (M, K), b (N, K), y (M, N) → y + a·bᵀ, which may lie where y does */
PET_KERNEL(product_of_rows_onto) {
    if (params[3] != params[2])
        copy_numbers(numbers_of(params, dtypes, 2), 0, numbers_of(params, dtypes, 3), 0, shapes[2][0] * shapes[2][1]);
    return product_kernel(params, shapes, dtypes, 3, 1, ADDS);
}

/* a (K, M), b (K, N) → aᵀ·b (M, N) */
PET_KERNEL(product_of_columns) { return columns_kernel(params, shapes, dtypes, 0); }
