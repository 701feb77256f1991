/* Matrix products with so few rows that reading the right factor is what takes the time: those of single tokens.
 *
 * The factor is read once for all rows, as nearly as possible in the order in which it lies in memory, and fetched ahead
 * of its use; the columns of the result are shared among the threads. Each number is summed in an order that depends
 * neither on the number of rows nor on that of the threads. All float32 but that factor, which may be stored otherwise. */
#include "few_rows.h"

#include "pool.h"
#include "vectors.h"

enum {
    SOME = 4,      /* rows, or columns, of the result that are in registers together */
    COLUMNS = 32,  /* columns of a piece of work */
    BROAD = 16,    /* vectors of a piece of work where the factor's rows run across: enough to be read as a stream */
    DEEP = 4,      /* rows of that factor that are added together */
};

struct few {
    const float *a;
    struct matrix b;
    float *c;
    int64_t rows, columns, depth;
};

/* `tall` rows of a times `wide` rows of b from its `first` number on, each `depth` long; `next` is what will be read then. */
INLINE void dots(enum storage storage, int tall, int wide, const float *a, struct matrix b, int64_t first, int64_t next,
                 int64_t depth, float *c, int64_t c_row) {
    floats sums[SOME][SOME];
    int64_t whole = depth / LANES * LANES;
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) sums[i][j] = (floats){0};
    for (int64_t k = 0; k < whole; k += LANES) {
        floats right[SOME];
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) {
            right[j] = load_stored(storage, b, first + j * depth + k);
            fetch_stored(storage, b, next + j * depth + k);
        }
#pragma GCC unroll 8
        for (int i = 0; i < tall; i++) {
            floats left = load(a + i * depth + k);
#pragma GCC unroll 8
            for (int j = 0; j < wide; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide && whole < depth; j++)
            sums[i][j] += load_some(a + i * depth + whole, depth - whole) *
                          load_stored_some(storage, b, first + j * depth + whole, depth - whole);
    if (tall == SOME && wide == SOME) { /* in the order of sum_of, as many at a time as a vector holds */
        float out[SOME * SOME];
        for (int first = 0; first < SOME * SOME; first += LANES) {
            floats *square = &sums[0][0] + first;
            turn_square(square);
#pragma GCC unroll 4
            for (int width = LANES / 2; width > 0; width /= 2)
#pragma GCC unroll 8
                for (int i = 0; i < width; i++) square[i] += square[i + width];
            store(out + first, square[0]);
        }
        for (int i = 0; i < tall; i++) memcpy(c + i * c_row, out + i * SOME, SOME * sizeof(float));
        return;
    }
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) c[i * c_row + j] = sum_of(sums[i][j]);
}

INLINE void lines(enum storage storage, const float *a, struct matrix b, int64_t first, float *c, int64_t c_row, int64_t rows,
                  int64_t columns, int64_t depth) {
    for (int64_t column = 0; column < columns;) {
        int64_t wide = column + SOME <= columns ? SOME : 1;
        int64_t from = first + column * depth, next = column + 2 * wide <= columns ? from + wide * depth : from;
        for (int64_t row = 0; row < rows; row += SOME) {
            const float *left = a + row * depth;
            float *to = c + row * c_row + column;
#define DOTS(tall)                                                               \
    if (wide == SOME)                                                            \
        dots(storage, tall, SOME, left, b, from, next, depth, to, c_row);        \
    else                                                                         \
        dots(storage, tall, 1, left, b, from, next, depth, to, c_row)
            switch (rows - row) {
                case 1: DOTS(1); break;
                case 2: DOTS(2); break;
                case 3: DOTS(3); break;
                default: DOTS(4);
            }
#undef DOTS
        }
        column += wide;
    }
}

void lines_by_lines(const float *a, const float *b, float *c, int64_t c_row, int64_t rows, int64_t columns, int64_t depth) {
    lines(FLOAT32, a, float_matrix(b), 0, c, c_row, rows, columns, depth);
}

static void by_rows(void *arguments, int64_t first, int64_t last) {
    struct few *of = arguments;
    BY_STORAGE(of->b.storage, lines, of->a, of->b, first * of->depth, of->c + first, of->columns, of->rows, last - first,
               of->depth)
}

/* Adds to rows of c, `wide` numbers each, `deep` rows of b from its `first` number on, times the numbers of a that belong to
 * them. */
INLINE void add_rows(enum storage storage, int deep, const float *a, int64_t a_row, struct matrix b, int64_t first,
                     int64_t b_row, int64_t rows, float *c, int64_t c_row, int64_t wide) {
    for (int64_t j = 0; j < wide; j += LANES) {
        floats right[DEEP];
#pragma GCC unroll 8
        for (int k = 0; k < deep; k++) {
            right[k] = load_stored(storage, b, first + k * b_row + j);
            fetch_stored(storage, b, first + (2 * DEEP + k) * b_row + j);
        }
        for (int64_t i = 0; i < rows; i++) {
            floats sum = load(c + i * c_row + j);
#pragma GCC unroll 8
            for (int k = 0; k < deep; k++) sum += a[i * a_row + k] * right[k];
            store(c + i * c_row + j, sum);
        }
    }
}

INLINE void columns_of(enum storage storage, struct few of, int64_t first, int64_t last) {
    int64_t columns = of.columns, depth = of.depth, wide = (last - first) / LANES * LANES, rest = last - first - wide;
    float *c = of.c + first;
    for (int64_t i = 0; i < of.rows; i++) memset(c + i * columns, 0, (size_t)(last - first) * sizeof(float));
    int64_t k = 0;
    for (; k + DEEP <= depth; k += DEEP)
        add_rows(storage, DEEP, of.a + k, depth, of.b, k * columns + first, columns, of.rows, c, columns, wide);
    for (; k < depth; k++)
        add_rows(storage, 1, of.a + k, depth, of.b, k * columns + first, columns, of.rows, c, columns, wide);
    for (k = 0; k < depth && rest; k++)
        for (int64_t j = wide; j < wide + rest; j++) {
            float right = load_one(storage, of.b, k * columns + first + j);
            for (int64_t i = 0; i < of.rows; i++) c[i * columns + j] += of.a[i * depth + k] * right;
        }
}

static void by_columns(void *arguments, int64_t first, int64_t last) {
    struct few *of = arguments;
    BY_STORAGE(of->b.storage, columns_of, *of, first, last)
}

/* Pieces of about this many columns, a multiple of it; fewer pieces for factors that are read in no time. */
static int64_t piece(int64_t columns, int64_t depth, int64_t least) {
    int64_t small = 8192 / (depth + 1) + 1; /* columns below which a thread is not worth its waking */
    return small > least ? (small + least - 1) / least * least : least;
}

void few_rows_by_rows(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth) {
    struct few of = {.a = a, .b = b, .c = c, .rows = rows, .columns = columns, .depth = depth};
    pet_parallel(by_rows, &of, columns, piece(columns, depth, COLUMNS));
}

void few_rows_by_columns(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth) {
    struct few of = {.a = a, .b = b, .c = c, .rows = rows, .columns = columns, .depth = depth};
    pet_parallel(by_columns, &of, columns, piece(columns, depth, BROAD * LANES));
}
