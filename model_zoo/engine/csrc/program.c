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
enum { HEADER = 3, WORDS = 5, INSTRUCTION = 5 }; /* words of the program, of a value, and of an instruction but for its values */
enum { CONSTANT = -1, PACKED = -2, BOUND = -3, EACH = -4, BY_HEAD = 1, LOW = 2, TOGETHER = 1, ALWAYS = 2 };
enum { ADDRESS = 2, NAME = 3 }; /* words of a bound operand */

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

/* A program that runs, and of which member of a group of experts, whose rows these are: `rows` of `all`, from `first` on.
 * Without a group `all` is 0. */
struct state {
    void **params;
    int *ndims;
    int64_t **shapes;
    const char **dtypes;
    const int32_t *words;
    int64_t tokens, batch, length;
    int32_t member;
    int64_t first, rows, all;
    void *stream, *extra;
};

/* What an instruction uses. */
struct uses {
    void *its[MOST_OPERANDS];
    const char *types[MOST_OPERANDS];
    int dimensions[MOST_OPERANDS];
    int64_t *shapes[MOST_OPERANDS], made[MOST_OPERANDS][DIMENSIONS];
    struct matrix matrices[MOST_OPERANDS];
};

/* Puts a value among those that an instruction uses. Gives 0, or 1 where there is no such value. */
static int use(const struct state *run, int value, struct uses *to, int i) {
    const int32_t *words = run->words;
    int operands = words[0], values = operands + words[1];
    to->types[i] = "float32";
    if (value < 0 || value >= values) return 1;
    if (value < operands) {
        to->its[i] = run->params[value];
        if (run->dtypes) to->types[i] = run->dtypes[value];
        to->dimensions[i] = run->ndims[value];
        to->shapes[i] = run->shapes[value];
        return 0;
    }
    const int32_t *its = words + HEADER + (int64_t)(value - operands) * WORDS;
    if (its[0] >= operands || its[0] < EACH) return 1;
    if (its[0] == EACH) return use(run, words[its[1] + run->member], to, i);
    int64_t rows = its[3], width = its[4], *made = to->made[i];
    to->shapes[i] = made;
    if (its[0] == BOUND) {
        const int32_t *held = words + its[1], *its_type = held + ADDRESS, *sizes = its_type + NAME + 1;
        to->its[i] = bound(held);
        to->types[i] = (const char *)its_type;
        to->dimensions[i] = its_type[NAME];
        for (int j = 0; j < to->dimensions[i] && j < DIMENSIONS; j++) made[j] = sizes[j];
        return 0;
    }
    to->dimensions[i] = 2;
    memcpy(made, (int64_t[]){rows, width, 1, 1}, sizeof to->made[i]);
    if (its[0] == PACKED) {
        to->matrices[i] = packed(words + its[1], run->params, words, rows, width);
        to->its[i] = to->matrices + i;
        to->types[i] = MATRIX;
        return 0;
    }
    if (its[2] & LOW) to->types[i] = "bfloat16";
    if (its[0] == CONSTANT) {
        to->its[i] = (void *)(words + its[1]);
        return 0;
    }
    to->its[i] = (float *)run->params[its[0]] + its[1] * run->tokens;
    if (its[2] & BY_HEAD) {
        to->dimensions[i] = 4;
        memcpy(made, (int64_t[]){run->batch, rows, run->length, width}, sizeof to->made[i]);
    } else if (run->all) { /* of a member's rows each has so many here */
        int64_t here = run->tokens * rows / run->all;
        made[0] = run->rows * here;
        to->its[i] = (char *)to->its[i] + run->first * here * width * (its[2] & LOW ? 2 : 4);
    } else {
        made[0] = run->tokens * rows;
    }
    return 0;
}

/* Computes an instruction, and those that run at once with it. Gives how many these are, or 0 where one failed. */
static int run_together(const struct state *run, const int32_t **word) {
    struct gathered gathered;
    gathered.count = gathered.bf16 = 0;
    for (int instruction = 1;; instruction++) {
        kernel does;
        struct uses uses;
        const int32_t *head = *word, *its = head + INSTRUCTION;
        int together = head[2] & TOGETHER, count = head[4];
        memcpy(&does, head, sizeof does);
        *word = its + count;
        if (count > MOST_OPERANDS) return 0;
        for (int i = 0; i < count; i++)
            if (use(run, its[i], &uses, i)) return 0;
        if (!together && instruction == 1)
            return !does(count, uses.its, uses.dimensions, uses.shapes, uses.types, run->stream, run->extra);
        if (gather(&gathered, does, count, uses.its, uses.shapes, uses.types)) return 0;
        if (together) continue;
        for (int i = 0; i < gathered.count; i++) gathered.products[i].bf16 = gathered.bf16;
        return products(gathered.products, gathered.count, gathered.rows) ? 0 : instruction;
    }
}

/* The first row of those, in the order of their experts, that chose this expert or one behind it. */
static int64_t first_row(const int32_t *experts, int64_t rows, int32_t expert) {
    int64_t first = 0;
    while (first < rows) {
        int64_t middle = first + (rows - first) / 2;
        if (experts[middle] < expert) first = middle + 1;
        else rows = middle;
    }
    return first;
}

/* The same for each member of a group. */
static int run_group(struct state run, const int32_t **word) {
    const int32_t *start = *word, *group = run.words + start[3];
    struct uses uses;
    int instructions = 1;
    for (; (*word)[2] & TOGETHER; *word += INSTRUCTION + (*word)[4]) instructions++;
    const int32_t *end = *word + INSTRUCTION + (*word)[4];
    if (use(&run, group[0], &uses, 0)) return 0;
    int64_t all = uses.shapes[0][0] * uses.shapes[0][1];
    for (run.member = 0; run.member < group[1]; run.member++) {
        int32_t expert = group[2 + run.member];
        run.first = first_row(uses.its[0], all, expert);
        run.rows = first_row(uses.its[0], all, expert + 1) - run.first;
        run.all = all;
        *word = start;
        if ((run.rows || start[2] & ALWAYS) && !run_together(&run, word)) return 0;
    }
    *word = end;
    return instructions;
}

/* Inputs and then outputs, of which the first is (N, …), the second the program, and the third (B, S) with N = B·S.
 *
 * The program, int32: how many operands there are, outputs included; how many values besides, how many instructions.
 * For each value besides: in which operand it lies, or among the program's own words; at which number per token, or
 * which word; BY_HEAD and LOW, whether it is in bfloat16; how many rows it has, and how wide they are: (N·rows, width), or
 * (B, rows, S, width), or of a packed matrix (rows, width); a bound one says so itself, and EACH stands for other values,
 * one for each member of a group. For each instruction the address of its kernel in two words; TOGETHER, where it is a
 * product that runs at once with the next one, and ALWAYS, where it runs for a member without rows, too; at which word
 * its group is, or 0; how many values it uses, and which: the operands are the first, those besides follow. For each
 * group the value that has its rows' experts, in their order; how many members it has, and which experts these are. */
PET_KERNEL(program) {
    struct state run = {.params = params, .ndims = ndims, .shapes = shapes, .dtypes = dtypes, .words = params[1],
                      .tokens = shapes[0][0], .batch = shapes[2][0], .length = shapes[2][1], .stream = stream, .extra = extra};
    const int32_t *words = run.words, *word = words + HEADER + (int64_t)words[1] * WORDS;
    if (count != words[0]) return 1;
    for (int done = 0, some; done < words[2]; done += some) {
        some = word[3] ? run_group(run, &word) : run_together(&run, &word);
        if (!some) return 1;
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
