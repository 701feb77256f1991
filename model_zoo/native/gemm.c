/* Matrix products of the sizes that layers have (after Goto & van de Geijn 2008).
 *
 * A thread takes a block of the right factor's columns, copies it for itself into panels as wide as its registers, and
 * multiplies all rows with it. So a block lies in the second cache of the core that uses it, rows pass by in the order in
 * which they lie in memory, and a result is written once. (Blocks that all threads share, and rows that stay, are a
 * quarter slower: what one core has just written is far away for the others.) Threads that find no block left help with
 * the rows of others, by their panels. Every number is a sum in the order of k, whatever the number of threads. All float32. */
#include "gemm.h"

#include <sched.h>
#include <stdatomic.h>

#include "few_rows.h"
#include "pool.h"
#include "product.h"
#include "vectors.h"

enum {
    PANEL = WIDE * LANES,
    BLOCK = 64,        /* columns of a block */
    MOST_DEPTH = 1536, /* and its rows: 384 KB, which the second caches of servers hold, and some rows besides */
    CHUNK = 4 * TALL,  /* rows of the result that a thread takes at once */
    TURNED = 1 << 20,  /* numbers of the left factor that are turned together */
};

struct block {
    _Atomic int64_t next_row;        /* the first that nobody has taken */
    _Atomic(const float *) copied;   /* its panels, once they are there */
};

struct gemm {
    const float *a, *b;
    float *c;
    int64_t rows, columns, depth, a_row, b_row; /* of the whole product */
    int a_turned, b_turned;                     /* whether a is (depth, rows), and b (columns, depth) */
    int add;                                    /* whether the product is added to what c holds */
    int64_t panel, blocks;                      /* columns of a panel, and how many blocks there are */
    int64_t k, part;                            /* the part of the depth that is being added up: `part` from k on */
    int64_t first, last;                        /* the rows that are being computed */
    const float *left;                          /* their factors, from the first row and k on, and ... */
    int64_t left_row;                           /* ... how far rows are apart */
    float *turned;
    _Atomic int64_t next; /* the first block that nobody has taken */
    struct block *block;
    _Atomic int failed;
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void copy_panel(const struct gemm *of, int64_t column, float *to) {
    int64_t columns = least(of->columns - column, of->panel);
    if (of->b_turned) {
        turn(of->b + column * of->b_row + of->k, of->b_row, columns, of->part, to, of->panel);
        return;
    }
    for (int64_t k = 0; k < of->part; k++) {
        const float *from = of->b + (of->k + k) * of->b_row + column;
        for (int64_t j = 0; j < of->panel; j += LANES)
            store(to + k * of->panel + j, j + LANES <= columns ? load(from + j)
                                          : j < columns        ? load_some(from + j, columns - j)
                                                               : (floats){0});
    }
}

/* Rows of the result by one panel; `rest` has room for a panel that is cut off. */
static void some_rows(const struct gemm *of, int64_t column, int64_t row, int64_t rows, const float *panel, float *rest) {
    int64_t columns = least(of->columns - column, of->panel);
    const float *left = of->left + (row - of->first) * of->left_row;
    float *c = of->c + row * of->columns + column;
    int add = of->add || of->k > 0;
    if (columns == of->panel) {
        product(rows, columns, c, of->columns, left, of->left_row, panel, of->panel, of->part, add);
        return;
    }
    for (int64_t i = 0; i < rows && add; i++) memcpy(rest + i * of->panel, c + i * of->columns, (size_t)columns * 4);
    product(rows, of->panel, rest, of->panel, left, of->left_row, panel, of->panel, of->part, add);
    for (int64_t i = 0; i < rows; i++) memcpy(c + i * of->columns, rest + i * of->panel, (size_t)columns * 4);
}

/* All rows that nobody has taken, by a block whose panels are there. */
static void remaining_rows(struct gemm *of, int64_t block, float *rest) {
    int64_t first = block * BLOCK, last = least(first + BLOCK, of->columns), row;
    const float *copied = atomic_load(&of->block[block].copied);
    while ((row = atomic_fetch_add(&of->block[block].next_row, CHUNK)) < of->last)
        for (int64_t column = first; column < last; column += of->panel)
            some_rows(of, column, row, least(of->last - row, CHUNK), copied + (column - first) * of->part, rest);
}

/* What every thread does, for as long as there is work. */
static void take_blocks(void *arguments, int64_t first, int64_t last) {
    (void)first, (void)last;
    struct gemm *of = arguments;
    float *rest = pet_scratch(2, CHUNK * PANEL * 4), *copied = pet_scratch(3, BLOCK * of->part * 4);
    if (!rest || !copied) {
        of->failed = 1;
        return;
    }
    int64_t block;
    while ((block = atomic_fetch_add(&of->next, 1)) < of->blocks) {
        for (int64_t j = 0; j < least(BLOCK, of->columns - block * BLOCK); j += of->panel)
            copy_panel(of, block * BLOCK + j, copied + j * of->part);
        atomic_store(&of->block[block].copied, copied);
        remaining_rows(of, block, rest);
    }
    /* No block is left to be copied, so what was copied last stays until all are done. */
    for (int waiting = 1; waiting;) {
        int64_t most = CHUNK, chosen = -1;
        waiting = 0;
        for (block = 0; block < of->blocks; block++) {
            int64_t left = of->last - atomic_load(&of->block[block].next_row);
            if (left <= most) continue;
            waiting = 1;
            if (atomic_load(&of->block[block].copied)) most = left, chosen = block;
        }
        if (chosen >= 0) remaining_rows(of, chosen, rest);
        else sched_yield();
    }
}

/* Rows of a left factor that is (depth, rows). */
static void turn_rows(void *arguments, int64_t first, int64_t last) {
    struct gemm *of = arguments;
    int64_t row = of->first + first * CHUNK, rows = least(of->last, of->first + last * CHUNK) - row;
    turn(of->a + of->k * of->a_row + row, of->a_row, of->part, rows, of->turned + first * CHUNK * of->left_row, of->left_row);
}

static int gemm(struct gemm of) {
    if (of.depth == 0 && !of.add) memset(of.c, 0, (size_t)(of.rows * of.columns) * sizeof(float));
    if (of.rows == 0 || of.columns == 0 || of.depth == 0) return 0;
    of.panel = least(up_to_lanes(of.columns), PANEL);
    of.blocks = (of.columns + BLOCK - 1) / BLOCK;
    of.block = pet_scratch(0, of.blocks * (int64_t)sizeof *of.block);
    if (!of.block) return 1;
    for (; of.k < of.depth; of.k += of.part) {
        of.part = least(of.depth - of.k, MOST_DEPTH);
        int64_t wide = up_to_lanes(of.part), rows = of.a_turned ? least(of.rows, TURNED / wide / CHUNK * CHUNK) : of.rows;
        if (of.a_turned && !(of.turned = pet_scratch(1, rows * wide * 4))) return 1;
        for (of.first = 0; of.first < of.rows; of.first = of.last) {
            of.last = least(of.first + rows, of.rows);
            of.left = of.a_turned ? of.turned : of.a + of.k;
            of.left_row = of.a_turned ? wide : of.a_row;
            if (of.a_turned) pet_parallel(turn_rows, &of, (of.last - of.first + CHUNK - 1) / CHUNK, 1);
            of.next = 0;
            for (int64_t block = 0; block < of.blocks; block++) {
                of.block[block].next_row = of.first;
                of.block[block].copied = NULL;
            }
            pet_parallel(take_blocks, &of, pet_threads(), 1);
        }
    }
    return of.failed;
}

int product_by_rows(const float *a, const float *b, float *c, int64_t rows, int64_t columns, int64_t depth, int add) {
    if (rows <= FEW_ROWS && !add) {
        few_rows_by_rows(a, b, c, rows, columns, depth);
        return 0;
    }
    return gemm((struct gemm){.a = a, .b = b, .c = c, .rows = rows, .columns = columns, .depth = depth, .a_row = depth,
                              .b_row = depth, .b_turned = 1, .add = add});
}

int product_by_depth(const float *a, const float *b, float *c, int64_t rows, int64_t columns, int64_t depth, int add) {
    if (rows <= FEW_ROWS && !add) {
        few_rows_by_columns(a, b, c, rows, columns, depth);
        return 0;
    }
    return gemm((struct gemm){.a = a, .b = b, .c = c, .rows = rows, .columns = columns, .depth = depth, .a_row = depth,
                              .b_row = columns, .add = add});
}

int product_by_columns(const float *a, const float *b, float *c, int64_t rows, int64_t columns, int64_t depth, int add) {
    return gemm((struct gemm){.a = a, .b = b, .c = c, .rows = rows, .columns = columns, .depth = depth, .a_row = rows,
                              .b_row = columns, .a_turned = 1, .add = add});
}

/* a (M, K), b (N, K) → a·bᵀ (M, N) */
PET_KERNEL(product_of_rows) {
    return product_by_rows(params[0], params[1], params[2], shapes[0][0], shapes[1][0], shapes[0][1], 0);
}

/* a (M, K), b (K, N) → a·b (M, N) */
PET_KERNEL(plain_product) {
    return product_by_depth(params[0], params[1], params[2], shapes[0][0], shapes[1][1], shapes[0][1], 0);
}

/* the same two, added to what c holds */
PET_KERNEL(product_of_rows_added) {
    return product_by_rows(params[0], params[1], params[2], shapes[0][0], shapes[1][0], shapes[0][1], 1);
}

PET_KERNEL(plain_product_added) {
    return product_by_depth(params[0], params[1], params[2], shapes[0][0], shapes[1][1], shapes[0][1], 1);
}

/* a (K, M), b (K, N) → aᵀ·b (M, N) */
PET_KERNEL(product_of_columns) {
    return product_by_columns(params[0], params[1], params[2], shapes[0][1], shapes[1][1], shapes[0][0], 0);
}
