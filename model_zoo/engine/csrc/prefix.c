/* Attention over keys and values of which the first ones are trained (Li & Liang 2021) and in front of every row's own.
 * They are joined for the time of a layer: to read them from two places would gain less than copying costs. All float32. */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

PET_KERNEL(attention);
PET_KERNEL(attention_gradient);
PET_KERNEL(token_attention);

enum { MOST = 15 }; /* operands of these */

struct prefixed {
    const float *prompt;          /* (T, 2, key heads, d): keys, and values */
    const float *keys, *values;   /* (B, key heads, K, d) */
    float *joined_keys, *joined_values, *d_joined_keys, *d_joined_values; /* (B, key heads, T + K, d) */
    float *d_keys, *d_values, *d_prompt;
    int32_t *columns; /* (B, T + seen) */
    int64_t batch, heads, total, width, front, seen;
};

static void join_heads_of(void *arguments, int64_t first, int64_t last) {
    struct prefixed *of = arguments;
    size_t line = (size_t)of->width * sizeof(float);
    for (int64_t unit = first; unit < last; unit++) {
        int64_t head = unit % of->heads, at = unit * (of->front + of->total) * of->width, own = unit * of->total * of->width;
        for (int64_t t = 0; t < of->front; t++) {
            const float *given = of->prompt + (2 * t * of->heads + head) * of->width;
            memcpy(of->joined_keys + at + t * of->width, given, line);
            memcpy(of->joined_values + at + t * of->width, given + of->heads * of->width, line);
        }
        memcpy(of->joined_keys + at + of->front * of->width, of->keys + own, (size_t)of->total * line);
        memcpy(of->joined_values + at + of->front * of->width, of->values + own, (size_t)of->total * line);
    }
}

/* The gradients of each row's own keys, and the sum over rows of those of the trained ones. */
static void part_heads_of(void *arguments, int64_t first, int64_t last) {
    struct prefixed *of = arguments;
    int64_t all = (of->front + of->total) * of->width, own = of->total * of->width;
    for (int64_t head = first; head < last; head++)
        for (int64_t row = 0; row < of->batch; row++) {
            int64_t unit = row * of->heads + head;
            const float *keys = of->d_joined_keys + unit * all, *values = of->d_joined_values + unit * all;
            memcpy(of->d_keys + unit * own, keys + of->front * of->width, (size_t)own * sizeof(float));
            memcpy(of->d_values + unit * own, values + of->front * of->width, (size_t)own * sizeof(float));
            for (int64_t t = 0; t < of->front; t++) {
                float *to = of->d_prompt + (2 * t * of->heads + head) * of->width, *other = to + of->heads * of->width;
                for (int64_t i = 0; i < of->width; i++) {
                    to[i] = (row ? to[i] : 0.0f) + keys[t * of->width + i];
                    other[i] = (row ? other[i] : 0.0f) + values[t * of->width + i];
                }
            }
        }
}

/* Joins what comes in, of which these operands are the columns that are seen and the trained keys and values; the memory
 * that is to be freed, or NULL when there is none. `copies`: 2, or 4 with gradients. */
static void *join(struct prefixed *of, void **params, int64_t **shapes, int columns, int prompt, int copies) {
    *of = (struct prefixed){.keys = params[1], .values = params[2], .prompt = params[prompt], .batch = shapes[1][0],
                            .heads = shapes[1][1], .total = shapes[1][2], .width = shapes[1][3],
                            .front = shapes[prompt][0], .seen = shapes[columns][1]};
    int64_t size = of->batch * of->heads * (of->front + of->total) * of->width, length = of->front + of->seen;
    float *memory = malloc((size_t)(copies * size + of->batch * length) * sizeof(float));
    if (!memory) return NULL;
    of->joined_keys = memory;
    of->joined_values = memory + size;
    of->d_joined_keys = memory + 2 * size;
    of->d_joined_values = memory + 3 * size;
    of->columns = (int32_t *)(memory + copies * size);
    const int32_t *given = params[columns];
    for (int64_t row = 0; row < of->batch; row++) {
        for (int64_t t = 0; t < of->front; t++) of->columns[row * length + t] = 1;
        memcpy(of->columns + row * length + of->front, given + row * of->seen, (size_t)of->seen * sizeof(int32_t));
    }
    pet_parallel(join_heads_of, of, of->batch * of->heads, 1);
    return memory;
}

typedef int (*attending)(int, void **, int *, int64_t **, const char **, void *, void *);

/* What one of the above gives of what is joined, whose operands, so many, are those here but for the trained ones. With
 * gradients, of which those of keys and values are the last ones, they are parted again. */
static int attend_joined(attending work, int count, void **params, int64_t **shapes, int columns, int prompt, int gradient) {
    struct prefixed of;
    void *given[MOST], *memory = join(&of, params, shapes, columns, prompt, gradient ? 4 : 2);
    if (!memory) return 1;
    int64_t joined[] = {of.batch, of.heads, of.front + of.total, of.width}, seen[] = {of.batch, of.front + of.seen}, *sizes[MOST];
    for (int i = 0; i < count; i++) {
        given[i] = params[i + (i >= prompt)];
        sizes[i] = shapes[i + (i >= prompt)];
    }
    given[1] = of.joined_keys, given[2] = of.joined_values, given[columns] = of.columns;
    sizes[1] = sizes[2] = joined, sizes[columns] = seen;
    if (gradient) {
        of.d_keys = given[count - 2], of.d_values = given[count - 1], of.d_prompt = params[count + 1];
        given[count - 2] = of.d_joined_keys, given[count - 1] = of.d_joined_values;
        sizes[count - 2] = sizes[count - 1] = joined;
    }
    int failed = work(count, given, NULL, sizes, NULL, NULL, NULL);
    if (gradient && !failed) pet_parallel(part_heads_of, &of, of.heads, 1);
    free(memory);
    return failed;
}

/* the inputs of `attention`, and the trained keys and values (T, 2·key heads·d), which every row sees → its outputs */
PET_KERNEL(attention_prefixed) { return attend_joined(attention, 11, params, shapes, 5, 9, 0); }

/* the inputs, out, its rows' highest scores and inverse sums, dout → dquery, dkeys, dvalues, and that of the trained ones */
PET_KERNEL(attention_prefixed_gradient) { return attend_joined(attention_gradient, 15, params, shapes, 5, 9, 1); }

/* the inputs of `token_attention`, and the trained keys and values, which every row sees → its output */
PET_KERNEL(token_attention_prefixed) {
    return shapes[1][2] != 1 || attend_joined(token_attention, 12, params, shapes, 6, 11, 0);
}
