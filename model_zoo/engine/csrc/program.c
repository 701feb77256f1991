/* Kernels one after the other as one operator: what a framework needs to compile and to launch its parts costs more than
 * many of them. What they hand to one another stays in one piece of memory. */
#include <string.h>

#include "gemm.h"
#include "pool.h"

PET_KERNEL(product_of_rows);
PET_KERNEL(product_of_rows_added);
PET_KERNEL(product_of_rows_onto);
PET_KERNEL(plain_product);
PET_KERNEL(plain_product_added);
PET_KERNEL(product_of_rows_bf16);
PET_KERNEL(product_of_rows_bf16_added);
PET_KERNEL(plain_product_bf16);
PET_KERNEL(plain_product_bf16_added);

typedef int (*kernel)(int, void **, int *, int64_t **, const char **, void *, void *);

enum { DIMENSIONS = 4, MOST_OPERANDS = 20 };
enum { HEADER = 3, WORDS = 5, CONSTANT = -1, PACKED = -2, BOUND = -3, BY_HEAD = 1, LOW = 2 }; /* of the program */
enum { ADDRESS = 2, NAME = 3 };                                                               /* words of a bound operand */

/* The kernels that may run at once with others, and what they compute. */
static const struct {
    kernel does;
    int turned, add, bf16;
} PRODUCTS[] = {
    {product_of_rows, 1, 0, 0},      {product_of_rows_added, 1, 1, 0},      {product_of_rows_onto, 1, 1, 0},
    {plain_product, 0, 0, 0},        {plain_product_added, 0, 1, 0},
    {product_of_rows_bf16, 1, 0, 1}, {product_of_rows_bf16_added, 1, 1, 1},
    {plain_product_bf16, 0, 0, 1},   {plain_product_bf16_added, 0, 1, 1},
};
enum { KINDS = sizeof PRODUCTS / sizeof *PRODUCTS };

/* Products that run at once. */
struct gathered {
    struct product products[MOST_PRODUCTS];
    int count, bf16;
    int64_t rows;
};

/* A product's kernel among those that run at once: one of its own, or a term of the one whose result it adds to. */
static int gather(struct gathered *all, kernel does, int uses, void **its, int64_t **shapes, const char **types) {
    int which = 0;
    while (which < KINDS && PRODUCTS[which].does != does) which++;
    if (which == KINDS || (uses == 4 && its[2] != its[3])) return 1;
    int turned = PRODUCTS[which].turned, add = PRODUCTS[which].add;
    struct product *to = NULL;
    for (int i = 0; i < all->count; i++)
        if (all->products[i].c.at == its[uses - 1]) to = all->products + i;
    if (to ? !add : all->count == MOST_PRODUCTS) return 1;
    if (!to) {
        to = all->products + all->count++;
        *to = (struct product){.c = numbers_of(its, types, uses - 1), .columns = shapes[1][turned ? 0 : 1], .add = add};
    }
    if (to->count == MOST_TERMS) return 1;
    to->terms[to->count++] = (struct term){.a = numbers_of(its, types, 0), .b = matrix_of(its, shapes, types, 1),
                                           .depth = shapes[0][1], .b_turned = turned};
    all->rows = shapes[0][0];
    all->bf16 |= PRODUCTS[which].bf16 || to->c.low; /* what runs with a product in bfloat16, such as LoRA's sum, is rounded as well */
    return 0;
}

/* An operand that the operator is not called with: its address, the name of its type, how many dimensions it has, and these.
 * Where the address is 0 its numbers follow. */
static void *bound(const int32_t *words) {
    void *at;
    memcpy(&at, words, sizeof at);
    return at ? at : (void *)(words + ADDRESS + NAME + 1 + words[ADDRESS + NAME]);
}

/* A packed matrix: its storage, its block, and the operands that hold its parts, −1 for those that it has not. */
enum { DATA, FACTORS, MAP, SMALL, NESTED_FACTORS, NESTED_MAP, OFFSET, ZEROS, PARTS };

/* Parts behind the operands of the program, if there is one, are bound. */
static struct matrix packed(const int32_t *words, void **params, const int32_t *program, int64_t rows, int64_t columns) {
    const void *parts[PARTS];
    for (int i = 0; i < PARTS; i++) {
        int which = words[2 + i];
        if (program && which >= program[0])
            parts[i] = bound(program + program[HEADER + (which - program[0]) * WORDS + 1]);
        else
            parts[i] = which < 0 ? NULL : params[which];
    }
    struct matrix of = {.data = parts[DATA], .columns = columns, .storage = words[0], .shift = -1, .block = words[1],
                        .count = rows * columns, .factors = parts[FACTORS], .map = parts[MAP], .small = parts[SMALL],
                        .nested = parts[NESTED_FACTORS], .nested_map = parts[NESTED_MAP], .offset = parts[OFFSET],
                        .zeros = parts[ZEROS]};
    for (int shift = 0; shift < 31; shift++)
        if (of.block == (int64_t)1 << shift) of.shift = shift;
    return of;
}

/* Inputs and then outputs, of which the first is (N, …), the second the program, and the third (B, S) with N = B·S.
 *
 * The program, int32: how many operands there are, outputs included; how many values besides, how many instructions.
 * For each value besides: in which operand it lies, or among the program's own words; at which number per token, or
 * which word; BY_HEAD and LOW, whether it is in bfloat16; how many rows it has, and how wide they are: (N·rows, width), or (B, rows, S,
 * width), or of a packed matrix (rows, width); a bound one says so itself. For each instruction the address of its kernel in two words; whether it is a product that runs at once with
 * the next one; how many values it uses, and which: the operands are the first, those besides follow. */
PET_KERNEL(program) {
    const int32_t *words = params[1], *own = words + HEADER;
    int operands = words[0], values = operands + words[1];
    if (count != operands) return 1;
    int64_t tokens = shapes[0][0], batch = shapes[2][0], length = shapes[2][1];
    const int32_t *word = own + (int64_t)words[1] * WORDS;
    struct gathered gathered = {0};
    for (int instruction = 0; instruction < words[2]; instruction++) {
        kernel does;
        memcpy(&does, word, sizeof does);
        int together = word[2], uses = word[3];
        word += 4;
        void *its[MOST_OPERANDS];
        const char *types[MOST_OPERANDS];
        int dimensions[MOST_OPERANDS];
        int64_t *its_shapes[MOST_OPERANDS], made[MOST_OPERANDS][DIMENSIONS];
        struct matrix matrices[MOST_OPERANDS];
        if (uses > MOST_OPERANDS) return 1;
        for (int i = 0; i < uses; i++) {
            int value = *word++;
            types[i] = "float32";
            if (value < 0 || value >= values) return 1;
            if (value < operands) {
                its[i] = params[value];
                if (dtypes) types[i] = dtypes[value];
                dimensions[i] = ndims[value];
                its_shapes[i] = shapes[value];
                continue;
            }
            const int32_t *its_own = own + (int64_t)(value - operands) * WORDS;
            int64_t rows = its_own[3], width = its_own[4];
            int by_head = its_own[2] & BY_HEAD;
            if (its_own[0] >= operands || its_own[0] < BOUND) return 1;
            if (its_own[0] == BOUND) {
                const int32_t *held = words + its_own[1], *its_type = held + ADDRESS, *sizes = its_type + NAME + 1;
                its[i] = bound(held);
                types[i] = (const char *)its_type;
                dimensions[i] = its_type[NAME];
                for (int j = 0; j < dimensions[i] && j < DIMENSIONS; j++) made[i][j] = sizes[j];
                its_shapes[i] = made[i];
                continue;
            }
            if (its_own[0] == PACKED) {
                matrices[i] = packed(words + its_own[1], params, words, rows, width);
                its[i] = matrices + i;
                types[i] = MATRIX;
                dimensions[i] = 2;
                memcpy(made[i], (int64_t[]){rows, width, 1, 1}, sizeof made[i]);
                its_shapes[i] = made[i];
                continue;
            }
            if (its_own[0] == CONSTANT)
                its[i] = (void *)(words + its_own[1]);
            else
                its[i] = (float *)params[its_own[0]] + its_own[1] * tokens;
            if (its_own[2] & LOW) types[i] = "bfloat16";
            dimensions[i] = by_head ? 4 : 2;
            memcpy(made[i], by_head ? (int64_t[]){batch, rows, length, width} : (int64_t[]){tokens * rows, width, 1, 1},
                   sizeof made[i]);
            its_shapes[i] = made[i];
        }
        int failed = 0;
        if (!together && !gathered.count) {
            failed = does(uses, its, dimensions, its_shapes, types, stream, extra);
        } else if (gather(&gathered, does, uses, its, its_shapes, types)) {
            failed = 1;
        } else if (!together) {
            for (int i = 0; i < gathered.count; i++) gathered.products[i].bf16 = gathered.bf16;
            failed = products(gathered.products, gathered.count, gathered.rows);
            gathered.count = gathered.bf16 = 0;
        }
        if (failed) return failed;
    }
    return 0;
}

/* x (N, K); int32: rows and columns of W, whether it is turned, whether factors are rounded to bfloat16, and W as `packed`
 * takes it; its parts → x·Wᵀ (N, rows), or x·W (N, columns) */
PET_KERNEL(packed_product) {
    const int32_t *words = params[1];
    struct matrix of = packed(words + 4, params, NULL, words[0], words[1]);
    float *out = params[count - 1];
    int how = words[3] ? IN_BF16 : 0;
    return words[2] ? product_by_rows(params[0], of, out, shapes[0][0], words[0], words[1], how)
                    : product_by_depth(params[0], of, out, shapes[0][0], words[1], words[0], how);
}
