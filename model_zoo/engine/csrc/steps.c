/* Kernels one after the other as one operator: what a framework needs to compile and to launch its parts costs more than
 * many of them. What they hand to one another stays in one piece of memory. */
#include <string.h>

#include "gemm.h"
#include "pool.h"

PET_KERNEL(rms_norm);
PET_KERNEL(rms_norm_gradient);
PET_KERNEL(rms_norm_gradient_added);
PET_KERNEL(rms_norm_weight_gradient);
PET_KERNEL(layer_norm);
PET_KERNEL(layer_norm_gradient);
PET_KERNEL(layer_norm_gradient_added);
PET_KERNEL(layer_norm_weight_gradient);
PET_KERNEL(product_of_rows);
PET_KERNEL(product_of_rows_added);
PET_KERNEL(product_of_rows_onto);
PET_KERNEL(plain_product);
PET_KERNEL(plain_product_added);
PET_KERNEL(product_of_columns);
PET_KERNEL(low_rank_inner);
PET_KERNEL(low_rank_factors);
PET_KERNEL(dora);
PET_KERNEL(dora_gradient);
PET_KERNEL(split_heads);
PET_KERNEL(join_heads);
PET_KERNEL(rotary_half);
PET_KERNEL(rotary_interleaved);
PET_KERNEL(split_rotary_half);
PET_KERNEL(split_rotary_half_back);
PET_KERNEL(split_rotary_interleaved);
PET_KERNEL(split_rotary_interleaved_back);
PET_KERNEL(attention);
PET_KERNEL(attention_gradient);
PET_KERNEL(attention_prefixed);
PET_KERNEL(attention_prefixed_gradient);
PET_KERNEL(keep_columns);
PET_KERNEL(token_attention);
PET_KERNEL(swiglu);
PET_KERNEL(swiglu_gradient);
PET_KERNEL(gelu_tanh);
PET_KERNEL(gelu_tanh_gradient);
PET_KERNEL(relu);
PET_KERNEL(relu_gradient);
PET_KERNEL(silu);
PET_KERNEL(silu_gradient);
PET_KERNEL(hyperbolic_tangent);
PET_KERNEL(hyperbolic_tangent_gradient);
PET_KERNEL(add);
PET_KERNEL(scale);
PET_KERNEL(scale_columns);
PET_KERNEL(scale_columns_gradient);
PET_KERNEL(dropout);
PET_KERNEL(add_bias);
PET_KERNEL(column_sum);
PET_KERNEL(take_columns);
PET_KERNEL(put_columns);
PET_KERNEL(join_columns);

typedef int (*kernel)(int, void **, int *, int64_t **, const char **, void *, void *);

static const kernel kernels[] = {
    /* in the order of KERNELS in calls.py */
    rms_norm, rms_norm_gradient, rms_norm_gradient_added, rms_norm_weight_gradient, layer_norm, layer_norm_gradient,
    layer_norm_gradient_added, layer_norm_weight_gradient, product_of_rows, product_of_rows_added,
    product_of_rows_onto, plain_product, plain_product_added, product_of_columns, low_rank_inner, low_rank_factors,
    dora, dora_gradient, split_heads, join_heads, rotary_half, rotary_interleaved, split_rotary_half,
    split_rotary_half_back, split_rotary_interleaved, split_rotary_interleaved_back, attention, attention_gradient,
    attention_prefixed, attention_prefixed_gradient, keep_columns, token_attention, swiglu, swiglu_gradient, gelu_tanh,
    gelu_tanh_gradient, relu, relu_gradient, silu, silu_gradient, hyperbolic_tangent, hyperbolic_tangent_gradient, add,
    scale, scale_columns, scale_columns_gradient, dropout, add_bias, column_sum, take_columns, put_columns,
    join_columns,
};

enum { KERNELS = sizeof kernels / sizeof *kernels, DIMENSIONS = 4, MOST_OPERANDS = 16 };
enum { HEADER = 3, WORDS = 5, CONSTANT = -1, TOGETHER = 1 << 16 }; /* of the program */

/* Products that run at once. */
struct gathered {
    struct product products[MOST_PRODUCTS];
    int count;
    int64_t rows;
};

/* A product's kernel among those that run at once: one of its own, or a term of the one whose result it adds to. */
static int gather(struct gathered *all, kernel does, int uses, void **its, int64_t **shapes) {
    int turned = does == product_of_rows || does == product_of_rows_added || does == product_of_rows_onto;
    int add = does == product_of_rows_added || does == plain_product_added || does == product_of_rows_onto;
    if (!turned && !add && does != plain_product) return 1;
    if (does == product_of_rows_onto && its[2] != its[3]) return 1;
    struct product *to = NULL;
    for (int i = 0; i < all->count; i++)
        if (all->products[i].c == its[uses - 1]) to = all->products + i;
    if (to ? !add : all->count == MOST_PRODUCTS) return 1;
    if (!to) {
        to = all->products + all->count++;
        *to = (struct product){.c = its[uses - 1], .columns = shapes[1][turned ? 0 : 1], .add = add};
    }
    if (to->count == MOST_TERMS) return 1;
    to->terms[to->count++] = (struct term){.a = its[0], .b = its[1], .depth = shapes[0][1], .b_turned = turned};
    all->rows = shapes[0][0];
    return 0;
}

/* Inputs and then outputs, of which the first is (N, …), the second the program, and the third (B, S) with N = B·S.
 *
 * The program, int32: how many operands there are, outputs included; how many places besides, how many steps. For each
 * place besides: in which operand it lies, or among the program's own words; at which number per token, or which word;
 * whether it is by head; how many rows it has, and how wide they are: (N·rows, width), or (B, rows, S, width). For each
 * step its kernel, and TOGETHER where it is a product that runs at once with the next step's; how many places it uses,
 * and which: the operands are the first, those besides follow. */
PET_KERNEL(steps) {
    const int32_t *program = params[1], *own = program + HEADER;
    int operands = program[0], places = operands + program[1];
    if (count != operands) return 1;
    int64_t tokens = shapes[0][0], batch = shapes[2][0], length = shapes[2][1];
    const int32_t *word = own + (int64_t)program[1] * WORDS;
    struct gathered gathered = {0};
    for (int step = 0; step < program[2]; step++) {
        int index = *word & ~TOGETHER, together = *word & TOGETHER, uses = word[1];
        word += 2;
        void *its[MOST_OPERANDS];
        int dimensions[MOST_OPERANDS];
        int64_t *its_shapes[MOST_OPERANDS], made[MOST_OPERANDS][DIMENSIONS];
        if (index < 0 || index >= KERNELS || uses > MOST_OPERANDS) return 1;
        for (int i = 0; i < uses; i++) {
            int place = *word++;
            if (place < 0 || place >= places) return 1;
            if (place < operands) {
                its[i] = params[place];
                dimensions[i] = ndims[place];
                its_shapes[i] = shapes[place];
                continue;
            }
            const int32_t *told = own + (int64_t)(place - operands) * WORDS;
            int64_t rows = told[3], width = told[4];
            if (told[0] >= operands || told[0] < CONSTANT) return 1;
            if (told[0] == CONSTANT)
                its[i] = (void *)(program + told[1]);
            else
                its[i] = (float *)params[told[0]] + told[1] * tokens;
            dimensions[i] = told[2] ? 4 : 2;
            memcpy(made[i], told[2] ? (int64_t[]){batch, rows, length, width} : (int64_t[]){tokens * rows, width, 1, 1},
                   sizeof made[i]);
            its_shapes[i] = made[i];
        }
        int failed = 0;
        if (!together && !gathered.count) {
            failed = kernels[index](uses, its, dimensions, its_shapes, dtypes, stream, extra);
        } else if (gather(&gathered, kernels[index], uses, its, its_shapes)) {
            failed = 1;
        } else if (!together) {
            failed = products(gathered.products, gathered.count, gathered.rows);
            gathered.count = 0;
        }
        if (failed) return failed;
    }
    return 0;
}
