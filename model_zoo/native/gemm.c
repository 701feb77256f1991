/* Matrix products of the sizes that layers have (after Goto & van de Geijn 2008).
 *
 * The right factor is copied into panels, of which a thread's registers take one row at a time; tiles of the result, some
 * rows by one panel each, are shared among the threads. Large factors are taken a part at a time, so that what is copied
 * stays small. Every number is a sum in the order of k, whatever the number of threads. All float32. */
#include "gemm.h"

#include "few_rows.h"
#include "pool.h"
#include "product.h"
#include "vectors.h"

enum {
    PANEL = WIDE * LANES,
    DEPTH = 256,              /* rows of a panel that are used together: they fit the first caches */
    MOST_DEPTH = 8 * DEPTH,   /* rows of a panel that are copied together */
    COPIED = 1 << 20,         /* numbers that are copied together */
    KEPT = 160 * 1024,        /* numbers of the left factor that a tile uses: they fit the second cache */
    MOST_ROWS = 64 * TALL,
    TILES = 6,                /* for every thread, at least, so that all end at about the same time */
};

struct gemm {
    const float *a, *b;
    float *c, *copied;
    int64_t rows, columns, depth, a_row, b_row; /* of the whole product */
    int a_turned, b_turned;                     /* whether a is (depth, rows), and b (columns, depth) */
    int add;                                    /* whether the product is added to what c holds */
    int64_t panel, column, panels, k, part;     /* what is copied: panels from a column on, `part` rows from k on */
    int64_t height;                             /* rows of a tile */
    _Atomic int failed;
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void copy_panels(void *arguments, int64_t first, int64_t last) {
    struct gemm *of = arguments;
    for (int64_t index = first; index < last; index++) {
        float *to = of->copied + index * of->panel * of->part;
        int64_t column = of->column + index * of->panel, columns = least(of->columns - column, of->panel);
        if (of->b_turned) {
            turn(of->b + column * of->b_row + of->k, of->b_row, columns, of->part, to, of->panel);
            continue;
        }
        for (int64_t k = 0; k < of->part; k++) {
            const float *from = of->b + (of->k + k) * of->b_row + column;
            for (int64_t j = 0; j < of->panel; j += LANES)
                store(to + k * of->panel + j, j + LANES <= columns ? load(from + j)
                                              : j < columns        ? load_some(from + j, columns - j)
                                                                   : (floats){0});
        }
    }
}

/* Rows of the result by one panel; `a` and its steps are those of the rows, `rest` has room for a panel that is cut off. */
static void tile(const struct gemm *of, int64_t index, int64_t row, int64_t rows, const float *a, int64_t down,
                 int64_t along, int64_t k, int64_t depth, float *rest) {
    int64_t column = of->column + index * of->panel, columns = least(of->columns - column, of->panel);
    const float *panel = of->copied + index * of->panel * of->part + k * of->panel;
    float *c = of->c + row * of->columns + column;
    int add = of->add || of->k + k > 0;
    if (columns == of->panel) {
        product(rows, of->panel, c, of->columns, a, down, along, panel, of->panel, depth, add);
        return;
    }
    for (int64_t i = 0; i < rows && add; i++) memcpy(rest + i * of->panel, c + i * of->columns, (size_t)columns * 4);
    product(rows, of->panel, rest, of->panel, a, down, along, panel, of->panel, depth, add);
    for (int64_t i = 0; i < rows; i++) memcpy(c + i * of->columns, rest + i * of->panel, (size_t)columns * 4);
}

static void tiles(void *arguments, int64_t first, int64_t last) {
    struct gemm *of = arguments;
    float *rest = pet_scratch(2, MOST_ROWS * PANEL * 4);
    if (!rest) of->failed = 1;
    for (int64_t unit = first; unit < last && rest; unit++) {
        int64_t index = unit % of->panels, row = unit / of->panels * of->height;
        int64_t rows = least(of->rows - row, of->height);
        for (int64_t k = 0; k < of->part; k += DEPTH)
            tile(of, index, row, rows, of->a + row * of->a_row + of->k + k, of->a_row, 1, k, least(of->part - k, DEPTH), rest);
    }
}

/* The same where a is (depth, rows): a unit turns its rows once for all panels. */
static void turned_tiles(void *arguments, int64_t first, int64_t last) {
    struct gemm *of = arguments;
    float *rest = pet_scratch(2, MOST_ROWS * PANEL * 4), *turned = pet_scratch(1, (MOST_ROWS + LANES) * DEPTH * 4);
    if (!rest || !turned) of->failed = 1;
    for (int64_t unit = first; unit < last && rest && turned; unit++) {
        int64_t row = unit * of->height, rows = least(of->rows - row, of->height);
        for (int64_t k = 0; k < of->part; k += DEPTH) {
            int64_t depth = least(of->part - k, DEPTH), wide = up_to_lanes(depth);
            turn(of->a + (of->k + k) * of->a_row + row, of->a_row, depth, rows, turned, wide);
            for (int64_t index = 0; index < of->panels; index++)
                tile(of, index, row, rows, turned, wide, 1, k, depth, rest);
        }
    }
}

static int gemm(struct gemm of) {
    if (of.depth == 0 && !of.add) memset(of.c, 0, (size_t)(of.rows * of.columns) * sizeof(float));
    if (of.rows == 0 || of.columns == 0 || of.depth == 0) return 0;
    int64_t wide = up_to_lanes(of.columns);
    of.panel = least(wide, PANEL);
    int64_t all = (of.columns + of.panel - 1) / of.panel, depth = least(of.depth, MOST_DEPTH);
    int64_t together = COPIED / (of.panel * depth);
    together = together < 1 ? 1 : least(together, all);
    float *copied = pet_scratch(3, together * of.panel * depth * 4);
    if (!copied) return 1;
    of.copied = copied;
    int64_t shares = TILES * pet_threads(), across = of.a_turned ? 1 : together;
    of.height = least(KEPT / depth, MOST_ROWS) / TALL * TALL;
    while (of.height > 8 * TALL && (of.rows + of.height - 1) / of.height * across < shares)
        of.height = of.height / 2 / TALL * TALL;
    int64_t heights = (of.rows + of.height - 1) / of.height;
    for (int64_t first = 0; first < all; first += together)
        for (of.k = 0; of.k < of.depth; of.k += depth) {
            of.column = first * of.panel;
            of.panels = least(all - first, together);
            of.part = least(of.depth - of.k, depth);
            pet_parallel(copy_panels, &of, of.panels, 1);
            if (of.a_turned)
                pet_parallel(turned_tiles, &of, heights, 1);
            else
                pet_parallel(tiles, &of, heights * of.panels, 1);
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
