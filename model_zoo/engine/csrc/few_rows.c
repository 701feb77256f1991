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
    DISTANCE = 4096, /* bytes */
    FACTORS = 2048, /* of blocks of the rows that are read together */
};

struct few {
    const float *a;
    struct matrix b;
    float *c, *apart; /* a, where b is read in pairs of codes */
    int64_t rows, columns, depth;
};

/* A row of the right factor, as it is stored. */
struct line {
    const char *from;
    float factor;
    const float *factors; /* of its blocks */
    const uint8_t *zeros;
};

enum { ALIGNED = CODES + 1 }; /* codes whose factors are there, and whose rows begin with a block of whole pairs of vectors */

static int aligned(struct matrix of) {
    return of.storage == CODES && of.shift >= 0 && of.block >= 2 * LANES && of.columns % of.block == 0;
}

INLINE struct line line_of(int storage, struct matrix of, int64_t row) {
    int64_t first = row * of.columns;
    struct line line = {.from = of.data};
    line.from += storage == FLOAT32 ? first * 4 : storage == INT8 ? first : storage < INT8 ? first * 2 : first / 2;
    if (storage == INT8) line.factor = of.factors[row] * INT8_STEP;
    if (storage == ALIGNED) line.factors = of.factors + (first >> of.shift);
    if (storage == ALIGNED && of.zeros) line.zeros = of.zeros + (first >> of.shift);
    return line;
}

/* Bytes of eight numbers. */
INLINE int64_t eighths(int storage) { return storage == FLOAT32 ? 32 : storage < INT8 ? 16 : storage == INT8 ? 8 : 4; }

/* LANES numbers of a row. */
INLINE floats load_line(int storage, struct matrix of, struct line line, int64_t row, int64_t k) {
    if (storage == FLOAT32) return load((const float *)line.from + k);
    if (storage == BFLOAT16) return load_bfloat16((const uint16_t *)line.from + k);
    if (storage == FLOAT16) return load_float16((const uint16_t *)line.from + k);
    if (storage == INT8) return from_int8((const int8_t *)line.from + k); /* times the row's factor in the end */
    return load_stored(CODES, of, row, k);
}

/* Adds to sums what `tall` rows of a and `wide` of b have in a block from k on: the codes' own numbers first, and once times
 * the block's factor. In a, each 2·LANES numbers are those of even places and then those of odd ones. */
INLINE void add_block(int tall, int wide, const float *a, int64_t depth, struct matrix b, const struct line *rights, int64_t k,
                      floats (*sums)[SOME]) {
    floats of_block[SOME][SOME];
    int64_t block = k >> b.shift, end = k + b.block;
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) of_block[i][j] = (floats){0};
    for (; k < end; k += 2 * LANES)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) {
            floats even, odd;
            code_pairs((const uint8_t *)rights[j].from + k / 2, b.map, &even, &odd);
            if (b.zeros) even += 8.0f - rights[j].zeros[block], odd += 8.0f - rights[j].zeros[block];
#pragma GCC unroll 8
            for (int i = 0; i < tall; i++) of_block[i][j] += load(a + i * depth + k) * even;
#pragma GCC unroll 8
            for (int i = 0; i < tall; i++) of_block[i][j] += load(a + i * depth + k + LANES) * odd;
        }
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) sums[i][j] += of_block[i][j] * rights[j].factors[block];
}

/* `tall` rows of a times `wide` rows of b from its `first` on, each `depth` long; from row `next` on will be read then. */
INLINE void dots(int storage, int tall, int wide, const float *a, struct matrix b, int64_t first, int64_t next,
                 int64_t depth, float *c, int64_t c_row) {
    floats sums[SOME][SOME];
    struct line rights[SOME];
    int64_t whole = depth / LANES * LANES;
    const char *ahead = (const char *)b.data + eighths(storage) * (next * depth) / 8;
#pragma GCC unroll 8
    for (int j = 0; j < wide; j++) rights[j] = line_of(storage, b, first + j);
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) sums[i][j] = (floats){0};
    for (int64_t k = 0; storage == ALIGNED && k < whole; k += b.block) {
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++)
            for (int64_t i = 0; i < b.block; i += 128) __builtin_prefetch(ahead + eighths(storage) * (j * depth + k + i) / 8);
        add_block(tall, wide, a, depth, b, rights, k, sums);
    }
    for (int64_t k = 0; storage != ALIGNED && k < whole; k += LANES) {
        floats right[SOME];
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) {
            right[j] = load_line(storage, b, rights[j], first + j, k);
            __builtin_prefetch(ahead + eighths(storage) * (j * depth + k) / 8);
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
        for (int j = 0; j < wide && storage == INT8; j++) sums[i][j] *= rights[j].factor;
    floats last[SOME];
#pragma GCC unroll 8
    for (int j = 0; j < wide && whole < depth; j++)
        last[j] = load_stored_some(storage == ALIGNED ? CODES : storage, b, first + j, whole, depth - whole);
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide && whole < depth; j++)
            sums[i][j] += load_some(a + i * depth + whole, depth - whole) * last[j];
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

/* The same matrix, the factors of some rows out of their bytes where there is room for them. */
INLINE struct matrix with_factors(int storage, struct matrix of, int64_t row, int64_t rows, float *room) {
    if (storage < CODES || of.factors) return of;
    int64_t first = block_of(of, row * of.columns), count = block_of(of, (row + rows) * of.columns - 1) - first + 1;
    if (count > FACTORS || of.columns == 0) return of;
    some_factors(&of, first, count, room);
    of.factors = room - first;
    return of;
}

INLINE void lines(int storage, const float *a, struct matrix b, int64_t first, float *c, int64_t c_row, int64_t rows,
                  int64_t columns, int64_t depth) {
    int64_t ahead = SOME; /* rows, but of short ones as many as take so long that they are there in time */
    while (ahead < columns && ahead * depth * eighths(storage) < 8 * DISTANCE) ahead += SOME;
    for (int64_t column = 0; column < columns;) {
        int64_t wide = column + SOME <= columns ? SOME : 1;
        int64_t from = first + column, next = column + wide + ahead <= columns ? from + ahead : from;
        float factors[FACTORS];
        struct matrix read = with_factors(storage, b, from, wide, factors);
        for (int64_t row = 0; row < rows; row += SOME) {
            const float *left = a + row * depth;
            float *to = c + row * c_row + column;
#define DOTS(tall)                                                               \
    if (wide == SOME)                                                            \
        dots(storage, tall, SOME, left, read, from, next, depth, to, c_row);        \
    else                                                                         \
        dots(storage, tall, 1, left, read, from, next, depth, to, c_row)
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
    lines(FLOAT32, a, float_matrix(b, depth), 0, c, c_row, rows, columns, depth);
}

static void by_rows(void *arguments, int64_t first, int64_t last) {
    struct few *of = arguments;
    if (of->apart)
        lines(ALIGNED, of->apart, of->b, first, of->c + first, of->columns, of->rows, last - first, of->depth);
    else
        BY_STORAGE(of->b.storage, lines, of->a, of->b, first, of->c + first, of->columns, of->rows, last - first, of->depth)
}

/* Rows of whole pairs of vectors, of each pair the numbers of even places and then those of odd ones. */
static void take_apart(void *arguments, int64_t first, int64_t last) {
    struct few *of = arguments;
    for (int64_t k = first * 2 * LANES; k < last * 2 * LANES; k += 2 * LANES) {
        floats left = load(of->a + k), right = load(of->a + k + LANES);
        store(of->apart + k, EVENS(left, right));
        store(of->apart + k + LANES, ODDS(left, right));
    }
}

/* Adds to rows of c, `wide` numbers each, `deep` rows of b from (row, column) on, times the numbers of a that belong to
 * them. */
INLINE void add_rows(enum storage storage, int deep, const float *a, int64_t a_row, struct matrix b, int64_t row,
                     int64_t column, int64_t rows, float *c, int64_t c_row, int64_t wide) {
    for (int64_t j = 0; j < wide; j += LANES) {
        floats right[DEEP];
#pragma GCC unroll 8
        for (int k = 0; k < deep; k++) {
            right[k] = load_stored(storage, b, row + k, column + j);
            fetch_stored(storage, b, row + 2 * DEEP + k, column + j);
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
        add_rows(storage, DEEP, of.a + k, depth, of.b, k, first, of.rows, c, columns, wide);
    for (; k < depth; k++)
        add_rows(storage, 1, of.a + k, depth, of.b, k, first, of.rows, c, columns, wide);
    for (k = 0; k < depth && rest; k++)
        for (int64_t j = wide; j < wide + rest; j++) {
            float right = load_one(storage, of.b, k, first + j);
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
    /* without memory they are read one by one, which takes longer */
    if (aligned(b) && (b.factors || SOME * depth / b.block <= FACTORS)) of.apart = pet_scratch(5, rows * depth * 4);
    if (of.apart) pet_parallel(take_apart, &of, rows * depth / (2 * LANES), 512);
    pet_parallel(by_rows, &of, columns, piece(columns, depth, COLUMNS));
}

void few_rows_by_columns(const float *a, struct matrix b, float *c, int64_t rows, int64_t columns, int64_t depth) {
    struct few of = {.a = a, .b = b, .c = c, .rows = rows, .columns = columns, .depth = depth};
    pet_parallel(by_columns, &of, columns, piece(columns, depth, BROAD * LANES));
}
